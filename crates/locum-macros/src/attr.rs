//! Arguments of attributes, split but not judged: every one keeps its tokens and their spans.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;
use syn::{Attribute, Meta};

/// One argument, as it is written between two commas.
pub(crate) enum Argument {
    /// `layers`
    Word(Ident),
    /// `name = SubstitutedThing`
    Assignment { key: Ident, value: TokenStream },
    /// Anything else, such as `layers(3)`, or the value of `#[substitution = …]`.
    Other(TokenStream),
}

impl Argument {
    /// The argument's key, where it begins with one.
    pub(crate) fn key(&self) -> Option<Ident> {
        match self {
            Self::Word(key) | Self::Assignment { key, .. } => Some(key.clone()),
            Self::Other(tokens) => match tokens.clone().into_iter().next() {
                Some(TokenTree::Ident(key)) => Some(key),
                _ => None,
            },
        }
    }

    /// Where the argument begins.
    pub(crate) fn span(&self) -> Span {
        match self {
            Self::Word(key) | Self::Assignment { key, .. } => key.span(),
            Self::Other(tokens) => match tokens.clone().into_iter().next() {
                Some(token) => token.span(),
                None => Span::call_site(),
            },
        }
    }
}

/// One `#[substitution(…)]`, wherever it stands.
pub(crate) struct Mark {
    /// The attribute's name, for an error that concerns no argument of it.
    pub(crate) span: Span,
    pub(crate) arguments: Vec<Argument>,
}

/// The `#[substitution(…)]` among some attributes.
pub(crate) fn marks(attributes: &[Attribute]) -> Vec<Mark> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("substitution"))
        .map(|attribute| Mark {
            span: attribute.path().span(),
            arguments: match &attribute.meta {
                Meta::Path(_) => Vec::new(),
                Meta::List(list) => split(list.tokens.clone()),
                Meta::NameValue(pair) => vec![Argument::Other(pair.value.to_token_stream())],
            },
        })
        .collect()
}

/// What `#[expert_substitution(…)]` was given: its hidden derive finds it beside the item.
pub(crate) fn arguments(attributes: &[Attribute]) -> Vec<Argument> {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("__expert_substitution"))
        .filter_map(|attribute| match &attribute.meta {
            Meta::List(list) => Some(split(list.tokens.clone())),
            Meta::Path(_) | Meta::NameValue(_) => None,
        })
        .flatten()
        .collect()
}

/// Splits at commas, of which the last may be a trailing one.
fn split(tokens: TokenStream) -> Vec<Argument> {
    let mut arguments = Vec::new();
    let mut pending = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Punct(comma) if comma.as_char() == ',' => {
                if pending.is_empty() {
                    arguments.push(Argument::Other(TokenTree::Punct(comma).into()));
                } else {
                    arguments.push(argument(std::mem::take(&mut pending)));
                }
            }
            token => pending.push(token),
        }
    }
    if !pending.is_empty() {
        arguments.push(argument(pending));
    }
    arguments
}

fn argument(tokens: Vec<TokenTree>) -> Argument {
    match &tokens[..] {
        [TokenTree::Ident(key)] => Argument::Word(key.clone()),
        [TokenTree::Ident(key), TokenTree::Punct(equals), value @ ..]
            if equals.as_char() == '=' =>
        {
            Argument::Assignment {
                key: key.clone(),
                value: value.iter().cloned().collect(),
            }
        }
        _ => Argument::Other(tokens.into_iter().collect()),
    }
}
