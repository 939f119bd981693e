//! Tokens only: whatever comes in here is valid.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{GenericParam, Token, Type};

use crate::ast::Input;
use crate::valid::{Holder, Layer, Layers, Model};

/// The item with the hidden derive on top, which finds the arguments beside it.
///
/// `$crate` is this crate, whatever a user's dependencies are called: a macro has no other way to
/// name its sibling, and `crate = …` leads to the crate of the traits, which does not know this one.
pub(crate) fn hand_over(arguments: &TokenStream, item: &TokenStream) -> TokenStream {
    let this_crate = Ident::new("$crate", Span::mixed_site());
    quote! {
        #[derive(#this_crate::__ExpertSubstitution)]
        #[__expert_substitution(#arguments)]
        #item
    }
}

/// All of `#[expert_substitution]`.
pub(crate) fn expert_substitution(input: &Input<'_>, model: &Model<'_>) -> TokenStream {
    let Holder { runtime, layers } = &model.holder;
    let wrapper = wrapper(input, runtime, &model.wrapper);
    let layers = moe_layers_impl(input, layers);
    let requirements = requirements(input);
    let impls = scope(runtime, &quote!(#layers #requirements));
    quote! {
        #wrapper
        #impls
    }
}

/// All of `#[derive(MoeLayers)]`.
pub(crate) fn moe_layers(input: &Input<'_>, holder: &Holder<'_>) -> TokenStream {
    let layers = moe_layers_impl(input, &holder.layers);
    scope(&holder.runtime, &layers)
}

/// Impls, within which `__locum` is the `__private` module. As an import it is resolved once: where
/// there is no such crate, that is one error, and not one for each path.
fn scope(runtime: &TokenStream, impls: &TokenStream) -> TokenStream {
    quote! {
        #[allow(deprecated)]
        const _: () = {
            use #runtime as __locum;

            #impls
        };
    }
}

/// The visit of the marked fields. A visited path has the segments of Burn's `Module` derive: a
/// struct's field, or an enum's variant.
fn moe_layers_impl(input: &Input<'_>, layers: &Layers<'_>) -> TokenStream {
    let body = match layers {
        Layers::Fields(fields) => {
            let visits = fields.iter().map(|Layer { name, ty }| {
                let segment = name.unraw().to_string();
                quote! {
                    __locum::ModulePath::within(__path, #segment, |__path| {
                        <#ty as __locum::MoeLayers>::visit_moe_layers(
                            &mut self.#name,
                            __path,
                            __visit,
                        )
                    });
                }
            });
            quote!(#(#visits)*)
        }
        Layers::Variants { marked, others } => {
            let arms = marked.iter().map(|Layer { name, ty }| {
                let segment = name.unraw().to_string();
                quote! {
                    Self::#name(__layers) => {
                        __locum::ModulePath::within(__path, #segment, |__path| {
                            <#ty as __locum::MoeLayers>::visit_moe_layers(
                                __layers,
                                __path,
                                __visit,
                            )
                        })
                    }
                }
            });
            let others = others.then(|| quote!(_ => {}));
            quote! {
                match self {
                    #(#arms)*
                    #others
                }
            }
        }
    };
    let (Layers::Fields(fields) | Layers::Variants { marked: fields, .. }) = layers;
    let parameters = Parameters::new(input);
    // A field whose type holds no layers has its error where it is; one whose type depends on a
    // parameter can only be asked for.
    let bounds = fields
        .iter()
        .filter(|layer| parameters.are_mentioned_by(layer.ty))
        .map(|Layer { ty, .. }| quote!(for<'__locum> #ty: __locum::MoeLayers,));
    let name = input.name;
    let Parameters {
        declared,
        arguments,
        predicates,
        ..
    } = &parameters;
    quote! {
        #[automatically_derived]
        impl<#declared> __locum::MoeLayers for #name #arguments
        where
            #(#bounds)*
            #predicates
        {
            fn visit_moe_layers(
                &mut self,
                __path: &mut __locum::ModulePath,
                __visit: &mut __locum::MoeLayerVisitor<'_>,
            ) {
                #body
            }
        }
    }
}

/// Asks for what a model has to implement, once, at its name: the wrapper's own impls are there
/// where the model's are, and say nothing where they are not.
///
/// With type parameters the answer depends on what they will be, so the question is left to the
/// code that uses the wrapper.
fn requirements(input: &Input<'_>) -> TokenStream {
    if input.generics.type_params().next().is_some() {
        return TokenStream::new();
    }
    let name = input.name;
    let Parameters {
        declared,
        arguments,
        predicates,
        ..
    } = Parameters::new(input);
    quote! {
        #[allow(dead_code)]
        fn requirements<#declared>()
        where
            #predicates
        {
            let _ = <#name #arguments as __locum::PipelineStage>::stage;
            let _ = <#name #arguments as __locum::LoadWeights>::load_weights;
            let _ = <#name #arguments as __locum::ProcessWeightsAfterLoading>
                ::process_weights_after_loading;
            let _ = <#name #arguments as __locum::core::clone::Clone>::clone;
        }
    }
}

/// The generated type and everything that it implements.
pub(crate) fn wrapper(input: &Input<'_>, runtime: &TokenStream, wrapper: &Ident) -> TokenStream {
    let definition = definition(input, &quote!(#runtime::Substituted), wrapper);
    let visibility = input.visibility;
    let name = input.name;
    let Parameters {
        declared,
        arguments,
        predicates,
        ..
    } = &Parameters::new(input);
    let model = quote!(#name #arguments);
    let wrapper_text = wrapper.unraw().to_string();
    let wrapper = quote!(#wrapper #arguments);
    let std = quote!(__locum::core);
    let result = |ok: TokenStream| quote!(#std::result::Result<#ok, __locum::SubstitutionError>);
    let (constructed, loaded, done) = (
        result(quote!(Self)),
        result(quote!(__locum::Loaded)),
        result(quote!(())),
    );
    let impls = scope(
        runtime,
        &quote! {
            #[allow(dead_code)]
            impl<#declared> #wrapper
            where
                #predicates
            {
                /// Makes the declared experts of a model constants, before any weight is loaded.
                ///
                /// # Errors
                ///
                /// A declaration that does not fit the model.
                #visibility fn try_new(
                    model: #model,
                    spec: &__locum::SubstitutionSpec,
                ) -> #constructed
                where
                    for<'__locum> #model: __locum::MoeLayers + __locum::PipelineStage,
                {
                    #std::result::Result::map(
                        __locum::Substituted::try_new(model, spec),
                        |core| Self { core },
                    )
                }

                /// What was declared.
                #[must_use]
                #visibility fn spec(&self) -> &__locum::SubstitutionSpec {
                    __locum::Substituted::spec(&self.core)
                }

                /// The model with what was declared about it.
                #[must_use]
                #visibility fn core(&self) -> &__locum::Substituted<#model> {
                    &self.core
                }

                /// Gives the model back, constants and all.
                #[must_use]
                #visibility fn into_inner(self) -> #model {
                    __locum::Substituted::into_inner(self.core)
                }
            }

            #[automatically_derived]
            impl<#declared> #std::ops::Deref for #wrapper
            where
                #predicates
            {
                type Target = #model;

                fn deref(&self) -> &#model {
                    #std::ops::Deref::deref(&self.core)
                }
            }

            #[automatically_derived]
            impl<#declared> #std::clone::Clone for #wrapper
            where
                for<'__locum> #model: #std::clone::Clone,
                #predicates
            {
                fn clone(&self) -> Self {
                    Self { core: #std::clone::Clone::clone(&self.core) }
                }
            }

            #[automatically_derived]
            impl<#declared> #std::fmt::Debug for #wrapper
            where
                for<'__locum> #model: #std::fmt::Debug,
                #predicates
            {
                fn fmt(&self, formatter: &mut #std::fmt::Formatter<'_>) -> #std::fmt::Result {
                    formatter
                        .debug_struct(#wrapper_text)
                        .field("core", &self.core)
                        .finish()
                }
            }

            #[automatically_derived]
            impl<#declared> #std::fmt::Display for #wrapper
            where
                for<'__locum> #model: #std::fmt::Display,
                #predicates
            {
                fn fmt(&self, formatter: &mut #std::fmt::Formatter<'_>) -> #std::fmt::Result {
                    <#model as #std::fmt::Display>::fmt(&self.core, formatter)
                }
            }

            #[automatically_derived]
            impl<#declared> __locum::PipelineStage for #wrapper
            where
                for<'__locum> #model: __locum::PipelineStage,
                #predicates
            {
                fn stage(&self) -> __locum::Stage {
                    <#model as __locum::PipelineStage>::stage(&self.core)
                }
            }

            #[automatically_derived]
            impl<#declared> __locum::LoadWeights for #wrapper
            where
                for<'__locum> #model:
                    __locum::LoadWeights + __locum::MoeLayers + #std::clone::Clone,
                #predicates
            {
                fn load_weights(
                    &mut self,
                    weights: &mut __locum::WeightStream<'_>,
                ) -> #loaded {
                    __locum::LoadWeights::load_weights(&mut self.core, weights)
                }

                fn check_weights(
                    &self,
                    tensors: &mut dyn #std::iter::Iterator<Item = __locum::TensorInfo>,
                ) -> #done {
                    __locum::LoadWeights::check_weights(&self.core, tensors)
                }
            }

            #[automatically_derived]
            impl<#declared> __locum::ProcessWeightsAfterLoading for #wrapper
            where
                for<'__locum> #model: __locum::ProcessWeightsAfterLoading,
                #predicates
            {
                fn process_weights_after_loading(&mut self) -> #done {
                    __locum::ProcessWeightsAfterLoading::process_weights_after_loading(
                        &mut self.core,
                    )
                }
            }

            __locum::impl_module! {
                impl [#declared] for [#wrapper] of [#model] where [#predicates]
            }
        },
    );
    quote! {
        #definition
        #impls
    }
}

/// The generated type alone, around `core<Model>`, or around the model where there is no `core`.
///
/// Of the model's attributes it takes over `#[deprecated]`. All others are about the struct as it
/// is written: its derives, its representation, the lints that it silences.
pub(crate) fn definition(input: &Input<'_>, core: &TokenStream, wrapper: &Ident) -> TokenStream {
    let visibility = input.visibility;
    let name = input.name;
    // A deprecated type may not name another one without a warning.
    let deprecated = input
        .attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("deprecated"))
        .map(|attribute| quote!(#attribute #[allow(deprecated)]));
    let summary = format!(
        " [`{}`] with constants in place of its pruned experts.",
        name.unraw()
    );
    let Parameters {
        arguments,
        predicates,
        ..
    } = &Parameters::new(input);
    let declared = &input.generics.params;
    let model = quote!(#name #arguments);
    let core = if core.is_empty() {
        model
    } else {
        quote!(#core<#model>)
    };
    quote! {
        #[doc = #summary]
        ///
        /// Loading weights takes the constants out of the stream, and processing them afterwards
        /// checks that none is missing. The model is reached through `Deref`, and never mutably:
        /// its own loader would go past the constants.
        ///
        /// Generated by `#[expert_substitution]`.
        #(#deprecated)*
        #visibility struct #wrapper<#declared>
        where
            #predicates
        {
            core: #core,
        }
    }
}

/// Generic parameters in the forms that impls need.
struct Parameters {
    names: Vec<Ident>,
    /// `'a, T: Bound, const N: usize`: without defaults, which an impl may not have.
    declared: Punctuated<GenericParam, Token![,]>,
    /// `<'a, T, N>`
    arguments: TokenStream,
    /// What the where-clause says, with a trailing comma.
    predicates: TokenStream,
}

impl Parameters {
    fn new(input: &Input<'_>) -> Self {
        let mut declared = input.generics.params.clone();
        let mut names = Vec::new();
        for parameter in &mut declared {
            match parameter {
                GenericParam::Type(parameter) => {
                    parameter.default = None;
                    names.push(parameter.ident.clone());
                }
                GenericParam::Const(parameter) => parameter.default = None,
                GenericParam::Lifetime(_) => {}
            }
        }
        let (_, arguments, clause) = input.generics.split_for_impl();
        let predicates = clause.map(|clause| {
            let predicates = clause.predicates.iter();
            quote!(#(#predicates,)*)
        });
        Self {
            names,
            declared,
            arguments: arguments.into_token_stream(),
            predicates: predicates.unwrap_or_default(),
        }
    }

    /// Whether a type depends on a type parameter. It errs on the side of yes, which costs nothing.
    fn are_mentioned_by(&self, ty: &Type) -> bool {
        fn any(tokens: TokenStream, names: &[Ident]) -> bool {
            tokens.into_iter().any(|token| match token {
                TokenTree::Ident(word) => names.contains(&word),
                TokenTree::Group(group) => any(group.stream(), names),
                TokenTree::Punct(_) | TokenTree::Literal(_) => false,
            })
        }
        any(ty.to_token_stream(), &self.names)
    }
}
