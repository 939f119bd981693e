//! What is emitted beside an error: everything that code elsewhere may name, so that one mistake is
//! one error.

use proc_macro2::TokenStream;
use quote::quote;

use crate::ast::Input;
use crate::expand;
use crate::valid::{Holder, Layers, Rejected};

/// For an item that cannot take the hidden derive: the item as it is.
pub(crate) fn item(error: &syn::Error, item: &TokenStream) -> TokenStream {
    let error = error.to_compile_error();
    quote! {
        #error
        #item
    }
}

/// For `#[expert_substitution]`: the wrapper, around a model that shows no layers.
pub(crate) fn expert_substitution(input: &Input<'_>, rejected: Rejected) -> TokenStream {
    let wrapper = match &rejected.runtime {
        Some(runtime) => expand::wrapper(input, runtime, &rejected.wrapper),
        None => {
            let definition = expand::definition(input, &TokenStream::new(), &rejected.wrapper);
            quote!(#[allow(dead_code)] #definition)
        }
    };
    let layers = moe_layers(input, rejected);
    quote! {
        #layers
        #wrapper
    }
}

/// For `#[derive(MoeLayers)]`: a type that shows no layers.
pub(crate) fn moe_layers(input: &Input<'_>, rejected: Rejected) -> TokenStream {
    let error = rejected.error.into_compile_error();
    let layers = rejected.runtime.map(|runtime| {
        let layers = Layers::Fields(Vec::new());
        expand::moe_layers(input, &Holder { runtime, layers })
    });
    quote! {
        #error
        #layers
    }
}
