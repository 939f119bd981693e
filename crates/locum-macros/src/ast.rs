//! A borrowing view of the input: what the rules ask about, and nothing decided yet.

use proc_macro2::{Ident, Span};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Fields, Generics, Token, Type, Visibility};

use crate::attr::{self, Argument, Mark};

/// The item that the attribute is on, read only as far as the thin attribute has to.
pub(crate) struct Annotated {
    pub(crate) attributes: Vec<Attribute>,
    /// Its first token after attributes and visibility.
    pub(crate) keyword: Span,
    /// Whether a derive can be put on it.
    pub(crate) derivable: bool,
}

impl Parse for Annotated {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        input.parse::<Visibility>()?;
        let keyword = input.span();
        let derivable = input.peek(Token![struct])
            || input.peek(Token![enum])
            // `union` is a keyword only before a name; a macro call is the other thing it may be.
            || (input.peek(Token![union]) && input.peek2(syn::Ident));
        // The rest is the derive's business.
        input.parse::<proc_macro2::TokenStream>()?;
        Ok(Self {
            attributes,
            keyword,
            derivable,
        })
    }
}

/// A type definition with its marks.
pub(crate) struct Input<'a> {
    pub(crate) name: &'a Ident,
    pub(crate) visibility: &'a Visibility,
    pub(crate) generics: &'a Generics,
    pub(crate) attributes: &'a [Attribute],
    /// What `#[expert_substitution(…)]` was given; empty under `#[derive(MoeLayers)]`.
    pub(crate) arguments: Vec<Argument>,
    /// `#[substitution(…)]` on the type itself.
    pub(crate) marks: Vec<Mark>,
    pub(crate) shape: Shape<'a>,
}

pub(crate) enum Shape<'a> {
    Struct(Contents<'a>),
    Enum {
        keyword: Span,
        variants: Vec<Variant<'a>>,
    },
    Union {
        keyword: Span,
    },
}

pub(crate) struct Variant<'a> {
    pub(crate) name: &'a Ident,
    /// `#[substitution(…)]` on the variant itself.
    pub(crate) marks: Vec<Mark>,
    pub(crate) contents: Contents<'a>,
}

/// The fields of a struct or of an enum's variant.
pub(crate) struct Contents<'a> {
    pub(crate) style: Style,
    pub(crate) fields: Vec<Field<'a>>,
}

pub(crate) enum Style {
    /// `{ name: Type }`
    Named,
    /// `(Type)`, and where the parentheses are.
    Tuple(Span),
    /// Nothing.
    Unit,
}

pub(crate) struct Field<'a> {
    /// `None` in a tuple.
    pub(crate) name: Option<&'a Ident>,
    pub(crate) ty: &'a Type,
    pub(crate) marks: Vec<Mark>,
}

impl<'a> Input<'a> {
    pub(crate) fn new(node: &'a DeriveInput) -> Self {
        Self {
            name: &node.ident,
            visibility: &node.vis,
            generics: &node.generics,
            attributes: &node.attrs,
            arguments: attr::arguments(&node.attrs),
            marks: attr::marks(&node.attrs),
            shape: match &node.data {
                Data::Struct(data) => Shape::Struct(Contents::new(&data.fields)),
                Data::Enum(data) => Shape::Enum {
                    keyword: data.enum_token.span,
                    variants: data
                        .variants
                        .iter()
                        .map(|variant| Variant {
                            name: &variant.ident,
                            marks: attr::marks(&variant.attrs),
                            contents: Contents::new(&variant.fields),
                        })
                        .collect(),
                },
                Data::Union(data) => Shape::Union {
                    keyword: data.union_token.span,
                },
            },
        }
    }
}

impl<'a> Contents<'a> {
    fn new(fields: &'a Fields) -> Self {
        Self {
            style: match fields {
                Fields::Named(_) => Style::Named,
                Fields::Unnamed(fields) => Style::Tuple(fields.paren_token.span.join()),
                Fields::Unit => Style::Unit,
            },
            fields: fields.iter().map(Field::new).collect(),
        }
    }
}

impl<'a> Field<'a> {
    fn new(field: &'a syn::Field) -> Self {
        Self {
            name: field.ident.as_ref(),
            ty: &field.ty,
            marks: attr::marks(&field.attrs),
        }
    }

    /// Where the field is.
    pub(crate) fn span(&self) -> Span {
        match self.name {
            Some(name) => name.span(),
            None => self.ty.span(),
        }
    }
}
