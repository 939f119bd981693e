//! All rules. What is wrong comes back beside what could be understood all the same, so that the
//! code emitted beside an error causes no second one.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{LitStr, Path, Type};

use crate::ast::{Annotated, Contents, Field, Input, Shape, Style, Variant};
use crate::attr::{Argument, Mark};

/// Where the marked fields are.
pub(crate) enum Layers<'a> {
    Fields(Vec<Layer<'a>>),
    Variants {
        marked: Vec<Layer<'a>>,
        /// Whether there are variants besides.
        others: bool,
    },
}

/// A marked field: of a struct by its name, of an enum by its variant's.
pub(crate) struct Layer<'a> {
    pub(crate) name: &'a Ident,
    pub(crate) ty: &'a Type,
}

/// A type whose layers can be visited.
pub(crate) struct Holder<'a> {
    /// The `__private` module that generated code names.
    pub(crate) runtime: TokenStream,
    pub(crate) layers: Layers<'a>,
}

/// A struct that can be wrapped.
pub(crate) struct Model<'a> {
    pub(crate) holder: Holder<'a>,
    /// The name of the wrapper.
    pub(crate) wrapper: Ident,
}

/// What is wrong, and what was understood in spite of it.
pub(crate) struct Rejected {
    pub(crate) error: syn::Error,
    /// As [`Holder::runtime`]; `None` where it was given, but not as a path.
    pub(crate) runtime: Option<TokenStream>,
    /// As [`Model::wrapper`].
    pub(crate) wrapper: Ident,
}

/// The rules for where `#[expert_substitution]` stands.
pub(crate) fn annotated(item: &Annotated) -> syn::Result<()> {
    if !item.derivable {
        return Err(syn::Error::new(
            item.keyword,
            "`#[expert_substitution]` belongs on the struct of a model",
        ));
    }
    for attribute in &item.attributes {
        if attribute
            .path()
            .segments
            .last()
            .is_some_and(|segment| segment.ident == "expert_substitution")
        {
            return Err(syn::Error::new_spanned(
                attribute.path(),
                "duplicate `#[expert_substitution]`: remove one",
            ));
        }
    }
    Ok(())
}

/// The rules of `#[expert_substitution]`.
pub(crate) fn expert_substitution<'a>(input: &Input<'a>) -> Result<Model<'a>, Rejected> {
    let mut errors = Errors::default();
    let mut settings = Settings::new(input.name);
    settings.read_attribute(&input.arguments, &mut errors);
    let mut marked = on_type(&input.marks, Entry::Attribute, &mut settings, &mut errors);
    let layers = match &input.shape {
        Shape::Struct(contents) => fields(input, contents, Entry::Attribute, &mut errors),
        Shape::Enum { keyword, .. } => {
            errors.push(
                *keyword,
                "`#[expert_substitution]` needs a struct with named fields, found an enum: derive \
                 `MoeLayers` for it, and put it into a marked field of the model's struct",
            );
            None
        }
        Shape::Union { keyword } => {
            errors.push(
                *keyword,
                "`#[expert_substitution]` needs a struct with named fields, found a union: make it \
                 a struct",
            );
            None
        }
    };
    marked |= layers.is_none();
    let wrapper = settings.wrapper.clone();
    settings
        .finish(input, layers, marked, errors)
        .map(|holder| Model { holder, wrapper })
}

/// The rules of `#[derive(MoeLayers)]`.
pub(crate) fn moe_layers<'a>(input: &Input<'a>) -> Result<Holder<'a>, Rejected> {
    let mut errors = Errors::default();
    let mut settings = Settings::new(input.name);
    let mut marked = on_type(&input.marks, Entry::Derive, &mut settings, &mut errors);
    let layers = match &input.shape {
        Shape::Struct(contents) => fields(input, contents, Entry::Derive, &mut errors),
        Shape::Enum { variants: all, .. } => Some(variants(all, &mut errors)),
        Shape::Union { keyword } => {
            errors.push(
                *keyword,
                "a union cannot say which of its fields holds MoE layers: make it an enum",
            );
            None
        }
    };
    marked |= layers.is_none();
    settings.finish(input, layers, marked, errors)
}

/// Which macro the rules are of.
#[derive(Clone, Copy, PartialEq)]
enum Entry {
    Attribute,
    Derive,
}

impl Entry {
    fn written(self) -> &'static str {
        match self {
            Self::Attribute => "`#[expert_substitution]`",
            Self::Derive => "`#[derive(MoeLayers)]`",
        }
    }

    fn crate_setting(self) -> &'static str {
        match self {
            Self::Attribute => "`#[expert_substitution(crate = some::path)]`",
            Self::Derive => "`#[substitution(crate = some::path)]` on the type",
        }
    }
}

#[derive(Default)]
struct Errors(Option<syn::Error>);

impl Errors {
    fn push(&mut self, span: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(span, message));
    }

    fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }
}

/// What can be set: the name of the wrapper, and the way to the crate.
struct Settings<'a> {
    model: &'a Ident,
    wrapper: Ident,
    runtime: Option<TokenStream>,
    seen: Vec<String>,
}

impl<'a> Settings<'a> {
    fn new(model: &'a Ident) -> Self {
        Self {
            model,
            wrapper: format_ident!("Substituted{}", model.unraw(), span = model.span()),
            runtime: Some(quote!(::locum::__private)),
            seen: Vec::new(),
        }
    }

    fn read_attribute(&mut self, arguments: &[Argument], errors: &mut Errors) {
        for argument in arguments {
            match argument.key() {
                Some(key) if key == "name" || key == "crate" => self.read(argument, &key, errors),
                Some(key) if key == "layers" => errors.push(
                    key.span(),
                    "`layers` belongs on a field that holds MoE layers: `#[substitution(layers)]`",
                ),
                Some(key) => errors.push(
                    key.span(),
                    format_args!(
                        "unknown argument `{key}`, expected `name = {}` or `crate = some::path`",
                        self.wrapper
                    ),
                ),
                None => errors.push(
                    argument.span(),
                    format_args!(
                        "expected an argument: `name = {}` or `crate = some::path`",
                        self.wrapper
                    ),
                ),
            }
        }
    }

    /// Reads `name = …` or `crate = …`.
    fn read(&mut self, argument: &Argument, key: &Ident, errors: &mut Errors) {
        let text = key.to_string();
        if self.seen.contains(&text) {
            return errors.push(
                key.span(),
                format_args!("duplicate argument `{key}`: remove one"),
            );
        }
        self.seen.push(text);
        let example = if key == "name" {
            self.wrapper.to_string()
        } else {
            "some::path".to_owned()
        };
        match argument {
            Argument::Assignment { value, .. } if !value.is_empty() => {
                if key == "name" {
                    self.read_name(value, errors);
                } else {
                    self.read_crate(value, errors);
                }
            }
            _ => {
                // The crate is known to be another one, but not which.
                if key == "crate" {
                    self.runtime = None;
                }
                errors.push(
                    key.span(),
                    format_args!("`{key}` needs a value: `{key} = {example}`"),
                );
            }
        }
    }

    fn read_name(&mut self, value: &TokenStream, errors: &mut Errors) {
        match syn::parse2::<Ident>(value.clone()) {
            Ok(name) if name.unraw() == self.model.unraw() => errors.push(
                name.span(),
                format_args!(
                    "`{name}` is the struct's own name: the generated type needs another, such as \
                     `{}`",
                    self.wrapper
                ),
            ),
            Ok(name) => self.wrapper = name,
            Err(_) => {
                if mentions_crate(value) {
                    self.runtime = None;
                }
                match unquoted(value, |text| text.parse::<Ident>()) {
                    Some(name) => {
                        errors.add(syn::Error::new_spanned(
                            value,
                            format_args!("a name goes without quotes: `name = {name}`"),
                        ));
                        self.wrapper = name;
                    }
                    None => errors.add(syn::Error::new_spanned(
                        value,
                        format_args!("`name` needs an identifier: `name = {}`", self.wrapper),
                    )),
                }
            }
        }
    }

    fn read_crate(&mut self, value: &TokenStream, errors: &mut Errors) {
        match Path::parse_mod_style.parse2(value.clone()) {
            Ok(path) => self.runtime = Some(quote!(#path::__private)),
            Err(_) => {
                let path = unquoted(value, |text| text.parse_with(Path::parse_mod_style));
                errors.add(syn::Error::new_spanned(
                    value,
                    match &path {
                        Some(path) => {
                            let path = quote!(#path).to_string().replace(' ', "");
                            format!("a path goes without quotes: `crate = {path}`")
                        }
                        None => "`crate` needs a path: `crate = some::path`".to_owned(),
                    },
                ));
                self.runtime = path.map(|path| quote!(#path::__private));
            }
        }
    }

    fn finish<'b>(
        self,
        input: &Input<'b>,
        layers: Option<Marked<'b>>,
        mut tried: bool,
        mut errors: Errors,
    ) -> Result<Holder<'b>, Rejected> {
        let layers = layers.map(|found| {
            tried |= found.tried;
            found.layers
        });
        // A mark that is refused has its own error, and is not missing besides.
        if !tried {
            errors.push(
                input.name.span(),
                match layers {
                    Some(Layers::Variants { .. }) => {
                        "no variant's field is marked: write `#[substitution(layers)]` on each \
                         that holds MoE layers"
                    }
                    _ => {
                        "no field is marked: write `#[substitution(layers)]` on each that holds \
                         MoE layers"
                    }
                },
            );
        }
        match (errors.0, layers, self.runtime) {
            (None, Some(layers), Some(runtime)) => Ok(Holder { runtime, layers }),
            (error, _, runtime) => Err(Rejected {
                error: error.unwrap_or_else(|| {
                    syn::Error::new(input.name.span(), "cannot be read: please report it")
                }),
                runtime,
                wrapper: self.wrapper,
            }),
        }
    }
}

/// What a string literal would have been without its quotes.
fn unquoted<T>(value: &TokenStream, parse: impl FnOnce(&LitStr) -> syn::Result<T>) -> Option<T> {
    let text = syn::parse2::<LitStr>(value.clone()).ok()?;
    parse(&text).ok()
}

/// Whether a forgotten comma may have swallowed `crate = …`.
fn mentions_crate(tokens: &TokenStream) -> bool {
    tokens
        .clone()
        .into_iter()
        .any(|token| matches!(token, TokenTree::Ident(word) if word == "crate"))
}

/// Reads the marks on a type, and returns whether one of them was meant for a field.
fn on_type(marks: &[Mark], entry: Entry, settings: &mut Settings<'_>, errors: &mut Errors) -> bool {
    let mut meant_for_a_field = false;
    for mark in marks {
        if mark.arguments.is_empty() {
            errors.push(
                mark.span,
                "empty `#[substitution]`: write `#[substitution(layers)]` on each field that holds \
                 MoE layers",
            );
            meant_for_a_field = true;
        }
        for argument in &mark.arguments {
            match argument.key() {
                Some(key) if key == "layers" => {
                    errors.push(
                        key.span(),
                        "`layers` belongs on each field that holds MoE layers, not on the type",
                    );
                    meant_for_a_field = true;
                }
                Some(key) if key == "crate" && entry == Entry::Derive => {
                    settings.read(argument, &key, errors);
                }
                Some(key) if key == "crate" || key == "name" => {
                    if let (true, Argument::Assignment { value, .. }) = (key == "crate", argument) {
                        settings.read_crate(value, &mut Errors::default());
                    }
                    errors.push(key.span(), misplaced_setting(&key, entry));
                }
                key => errors.push(
                    argument.span(),
                    match entry {
                        Entry::Attribute => format!(
                            "unknown {} on the type, which takes no `#[substitution]`: remove it",
                            word(key)
                        ),
                        Entry::Derive => format!(
                            "unknown {} on the type, expected `crate = some::path`",
                            word(key)
                        ),
                    },
                ),
            }
        }
    }
    meant_for_a_field
}

fn misplaced_setting(key: &Ident, entry: Entry) -> String {
    if key == "name" && entry == Entry::Derive {
        "`name` belongs in `#[expert_substitution(name = …)]`: `#[derive(MoeLayers)]` generates no \
         type"
            .to_owned()
    } else if key == "name" {
        "`name` belongs in `#[expert_substitution(name = …)]`".to_owned()
    } else {
        format!("`crate` belongs in {}", entry.crate_setting())
    }
}

fn word(key: Option<Ident>) -> String {
    match key {
        Some(key) => format!("word `{key}`"),
        None => "argument".to_owned(),
    }
}

/// The marked fields, and whether any mark was tried, be it a refused one.
struct Marked<'a> {
    layers: Layers<'a>,
    tried: bool,
}

/// The marked fields of a struct; `None` for a struct that cannot have any.
fn fields<'a>(
    input: &Input<'a>,
    contents: &Contents<'a>,
    entry: Entry,
    errors: &mut Errors,
) -> Option<Marked<'a>> {
    match contents.style {
        Style::Named => {}
        Style::Tuple(parentheses) => {
            errors.push(
                parentheses,
                format_args!(
                    "{} needs named fields, since Burn's `Module` derive refuses a tuple struct: \
                     name the fields",
                    entry.written()
                ),
            );
            return None;
        }
        Style::Unit => {
            errors.push(
                input.name.span(),
                format_args!(
                    "{} needs named fields, and a unit struct holds no MoE layers: give it a field \
                     marked `#[substitution(layers)]`",
                    entry.written()
                ),
            );
            return None;
        }
    }
    let mut marked = Vec::new();
    let mut tried = false;
    for field in &contents.fields {
        tried |= !field.marks.is_empty();
        if on_field(field, entry, errors)
            && let Some(name) = field.name
        {
            marked.push(Layer { name, ty: field.ty });
        }
    }
    Some(Marked {
        layers: Layers::Fields(marked),
        tried,
    })
}

/// The marked fields of an enum.
fn variants<'a>(all: &[Variant<'a>], errors: &mut Errors) -> Marked<'a> {
    let mut marked = Vec::new();
    let mut tried = false;
    for variant in all {
        for mark in &variant.marks {
            tried = true;
            errors.push(
                mark.span,
                format_args!(
                    "`#[substitution(layers)]` belongs on the field within the variant: \
                     `{}(#[substitution(layers)] …)`",
                    variant.name
                ),
            );
        }
        for field in &variant.contents.fields {
            tried |= !field.marks.is_empty();
            if !on_field(field, Entry::Derive, errors) {
                continue;
            }
            match (&variant.contents.style, variant.contents.fields.len()) {
                (Style::Tuple(_), 1) => marked.push(Layer {
                    name: variant.name,
                    ty: field.ty,
                }),
                _ => errors.push(
                    field.span(),
                    format_args!(
                        "a marked field must be its variant's only one, and unnamed, since Burn's \
                         `Module` derive takes no other variant: write \
                         `{}(#[substitution(layers)] …)`",
                        variant.name
                    ),
                ),
            }
        }
    }
    let others = marked.len() < all.len();
    Marked {
        layers: Layers::Variants { marked, others },
        tried,
    }
}

/// Reads the marks on a field, and returns whether it holds layers.
fn on_field(field: &Field<'_>, entry: Entry, errors: &mut Errors) -> bool {
    let mut layers = false;
    for mark in &field.marks {
        if mark.arguments.is_empty() {
            errors.push(
                mark.span,
                "empty `#[substitution]`: write `#[substitution(layers)]`",
            );
        }
        for argument in &mark.arguments {
            match (argument, argument.key()) {
                (Argument::Word(word), _) if word == "layers" => {
                    if layers {
                        errors.push(word.span(), "`layers` twice on one field: remove one");
                    }
                    layers = true;
                }
                (_, Some(key)) if key == "layers" => {
                    errors.push(
                        key.span(),
                        "`layers` takes no value: write `#[substitution(layers)]`",
                    );
                }
                (_, Some(key)) if key == "crate" || key == "name" => {
                    errors.push(key.span(), misplaced_setting(&key, entry));
                }
                (_, key) => errors.push(
                    argument.span(),
                    format_args!(
                        "unknown {} on a field: write `#[substitution(layers)]`",
                        word(key)
                    ),
                ),
            }
        }
    }
    layers
}
