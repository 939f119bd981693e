//! Macros that make a model with constants in place of pruned experts out of a model.
//!
//! ```
//! # use locum_macros::{MoeLayers, expert_substitution};
//! # use locum_substitution::{
//! #     BoxError, Constant, Dtype, LoadWeights, Loaded, MoeLayer, MoeLayerInfo, PipelineStage,
//! #     ProcessWeightsAfterLoading, RouteTable, Stage, SubstitutionError, SubstitutionSpec,
//! #     WeightStream,
//! # };
//! # #[derive(Clone)]
//! # struct Experts;
//! # impl MoeLayer for Experts {
//! #     fn info(&self) -> MoeLayerInfo {
//! #         MoeLayerInfo {
//! #             layer: 0,
//! #             prefix: "model.layers.0.mlp.experts".into(),
//! #             num_logical_experts: 4,
//! #             hidden_size: 2,
//! #             expert_parts: vec!["up_proj.weight"],
//! #             packed_parts: vec![],
//! #             constant_dtype: Dtype::F32,
//! #             constants_parameter: "values",
//! #         }
//! #     }
//! #     fn substitute(&mut self, _: &RouteTable) -> Result<(), BoxError> {
//! #         Ok(())
//! #     }
//! #     fn load_constants(&mut self, _: &[Constant]) -> Result<(), BoxError> {
//! #         Ok(())
//! #     }
//! # }
//! # impl PipelineStage for Decoder {
//! #     fn stage(&self) -> Stage {
//! #         Stage::whole(1)
//! #     }
//! # }
//! # impl LoadWeights for Decoder {
//! #     fn load_weights(
//! #         &mut self,
//! #         weights: &mut WeightStream<'_>,
//! #     ) -> Result<Loaded, SubstitutionError> {
//! #         for tensor in weights {
//! #             tensor?;
//! #         }
//! #         Ok(Loaded::default())
//! #     }
//! # }
//! # impl ProcessWeightsAfterLoading for Decoder {
//! #     fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
//! #         Ok(())
//! #     }
//! # }
//! #[expert_substitution(crate = locum_substitution)]
//! #[derive(Clone)]
//! pub struct Decoder {
//!     #[substitution(layers)]
//!     layers: Vec<Block>,
//!     vocabulary: usize,
//! }
//!
//! #[derive(Clone, MoeLayers)]
//! #[substitution(crate = locum_substitution)]
//! struct Block {
//!     #[substitution(layers)]
//!     mlp: Mlp,
//! }
//!
//! #[derive(Clone, MoeLayers)]
//! #[substitution(crate = locum_substitution)]
//! enum Mlp {
//!     Dense(f32),
//!     Sparse(#[substitution(layers)] Experts),
//! }
//!
//! let config = serde_json::json!({ "approximate_experts": { "0": [1, 3] } });
//! let spec = SubstitutionSpec::from_config(&config)?;
//! let layers = vec![Block { mlp: Mlp::Sparse(Experts) }];
//! let model = SubstitutedDecoder::try_new(Decoder { layers, vocabulary: 64 }, &spec)?;
//! assert_eq!(model.vocabulary, 64);
//! let (info, table) = model.core().moe_layers().next().expect("one layer has experts");
//! assert_eq!((info.layer, table.substituted()), (0, &[1, 3][..]));
//! # Ok::<(), SubstitutionError>(())
//! ```
//!
//! # The decision
//!
//! A macro that generates loading is hard to test and hard to read. So this one generates none: what
//! a substituted model does is written once, in `locum_substitution::Substituted<M>`, and the
//! generated type is a newtype around it that forwards. What generic code cannot know, where a model
//! keeps its MoE layers, is the visit that is derived from the marked fields.
//!
//! The newtype is there because an alias of `Substituted<M>` would be a foreign type to the model's
//! crate, which could implement nothing for it.
//!
//! - The attribute itself only puts a hidden derive on the item. A derive sees fields after `cfg`,
//!   and leaves the order relative to `#[derive(Module)]` and others free. It is named through
//!   `$crate`, so that it is found whatever the dependencies of the user's crate are called.
//! - Everything else in generated code is named through `::locum::__private`, or through
//!   `crate = some::path`, which must have the same `__private`.
//! - Paths of visited layers are those of Burn's `Module` derive, for parameter names are built on
//!   them: a field's name (without `r#`, which Burn's keeps), an index, an enum's *variant*. What that derive refuses (tuple structs,
//!   variants of other than one unnamed field) is refused here.
//! - The generated type implements a trait where the model does: bounds are written so that they may
//!   fail. What a model must have (`PipelineStage`, `LoadWeights`, `ProcessWeightsAfterLoading`,
//!   `Clone`) is asked for once, at the struct's name; with type parameters, which decide it, where
//!   the generated type is used.
//! - It implements `Deref` to the model, and never `DerefMut` or `MoeLayers`: with a `&mut` to the
//!   model or its layers, weights could be loaded past the constants.
//! - Beside an error stand the item and the generated type as they would have been: one mistake is
//!   one error.
#![deny(missing_docs)]

mod ast;
mod attr;
mod expand;
mod fallback;
mod valid;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Generates the type of a model some of whose experts are constants.
///
/// # Syntax
///
/// ```text
/// #[expert_substitution]
/// #[expert_substitution(name = Name, crate = some::path)]
/// ```
///
/// It stands on a struct with named fields, above or below its derives. At least one field is marked
/// `#[substitution(layers)]`: one whose type is a `MoeLayer`, derives [`MoeLayers`], or is a `Vec`,
/// an `Option` or an array of such.
///
/// - `name`: the name of the generated type, `Substituted…` and the struct's if left out.
/// - `crate`: where `locum` is, `::locum` if left out.
///
/// # What is generated
///
/// For `Foo`, beside the struct itself and an implementation of `MoeLayers` for it, a type
/// `SubstitutedFoo` of the same visibility, generics and where-clause, with
///
/// - `try_new(model: Foo, spec: &SubstitutionSpec) -> Result<Self, SubstitutionError>`,
///   `into_inner(self) -> Foo`, `spec(&self) -> &SubstitutionSpec` and
///   `core(&self) -> &Substituted<Foo>`, as visible as the struct;
/// - `Deref<Target = Foo>`;
/// - `LoadWeights`, `ProcessWeightsAfterLoading`, `PipelineStage`, `Clone`, `Debug`, `Display` and
///   Burn's `Module` and `ModuleDisplay`, where `Foo` has them.
///
/// Of the struct's attributes, `#[deprecated]` is taken over; the documentation is the type's own.
#[proc_macro_attribute]
pub fn expert_substitution(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let annotated = item.clone();
    let annotated = parse_macro_input!(annotated as ast::Annotated);
    match valid::annotated(&annotated) {
        Ok(()) => expand::hand_over(&arguments.into(), &item.into()),
        Err(error) => fallback::item(&error, &item.into()),
    }
    .into()
}

#[doc(hidden)]
#[proc_macro_derive(__ExpertSubstitution, attributes(substitution, __expert_substitution))]
pub fn derive_expert_substitution(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    let input = ast::Input::new(&item);
    match valid::expert_substitution(&input) {
        Ok(model) => expand::expert_substitution(&input, &model),
        Err(rejected) => fallback::expert_substitution(&input, rejected),
    }
    .into()
}

/// Implements `MoeLayers` for a type between a model and its MoE layers.
///
/// It stands on a struct with named fields, or on an enum; the fields that hold layers are marked
/// `#[substitution(layers)]`. In an enum that is the one unnamed field of a variant. Variants without
/// a mark hold no layers.
///
/// `#[substitution(crate = some::path)]` on the type says where `locum` is, `::locum` if left out.
///
/// The struct of a model itself is annotated [`macro@expert_substitution`], which implements
/// `MoeLayers` for it too.
#[proc_macro_derive(MoeLayers, attributes(substitution))]
pub fn derive_moe_layers(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    let input = ast::Input::new(&item);
    match valid::moe_layers(&input) {
        Ok(holder) => expand::moe_layers(&input, &holder),
        Err(rejected) => fallback::moe_layers(&input, rejected),
    }
    .into()
}
