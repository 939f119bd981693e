//! MoE layers as substitution sees them, and the visit that finds them in a model.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::{BoxError, Dtype, Listing, NamedTensor, RouteTable, SubstitutionError, TensorInfo};

/// What substitution must know of one MoE layer's experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoeLayerInfo {
    /// The global decoder layer.
    pub layer: u32,
    /// Where the experts' tensors are in a checkpoint: `model.layers.3.mlp.experts`.
    pub prefix: String,
    /// How many experts the router chooses from.
    pub num_logical_experts: u32,
    /// The length of a constant.
    pub hidden_size: usize,
    /// The tensor parts that every retained expert must have: `gate_proj.weight`, ….
    pub expert_parts: Vec<&'static str>,
    /// Packed tensors that hold a part, or several, of all experts at once.
    pub packed_parts: Vec<PackedPart>,
    /// The type that the layer holds its constants in.
    pub constant_dtype: Dtype,
    /// The path, within the layer, of the parameter that holds the constants.
    pub constants_parameter: &'static str,
}

/// A packed tensor below the experts' prefix, and the parts that it brings.
///
/// Its first dimension is experts: all logical ones of the layer, or the retained ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedPart {
    /// The packed tensor: `gate_up_proj`.
    pub name: &'static str,
    /// The parts in it: `gate_proj.weight` and `up_proj.weight`.
    pub parts: &'static [&'static str],
}

/// A constant that arrived, in the layer's [`constant_dtype`](MoeLayerInfo::constant_dtype).
#[derive(Clone, Debug)]
pub struct Constant {
    /// The row among the layer's constants.
    pub row: usize,
    /// The logical expert.
    pub expert: u32,
    /// `hidden_size` elements, little-endian.
    pub value: Bytes,
}

/// The routed experts of one layer, which own their constants.
///
/// Implement it for a layer type of your own, or use the one in `locum-nn`.
pub trait MoeLayer {
    /// What substitution must know of it.
    fn info(&self) -> MoeLayerInfo;

    /// Makes some experts constants: from now on the layer holds weights for the table's retained
    /// experts only, and a constant for each of the others.
    ///
    /// Called before any weight is loaded, and only for a layer that declares something.
    ///
    /// # Errors
    ///
    /// Whatever keeps the layer from doing so.
    fn substitute(&mut self, table: &RouteTable) -> Result<(), BoxError>;

    /// Takes constants; rows that are not among them stay as they are.
    ///
    /// # Errors
    ///
    /// Whatever keeps the layer from doing so.
    fn load_constants(&mut self, constants: &[Constant]) -> Result<(), BoxError>;

    /// The layer's own way of taking its experts' tensors, for loaders that know nothing of its
    /// inside. A model with a loader of its own needs none, which is the default.
    fn expert_weights(&mut self) -> Option<&mut dyn ExpertWeights> {
        None
    }
}

/// The weights of a layer's retained experts, taken tensor by tensor.
pub trait ExpertWeights {
    /// Logical ids of the experts whose weights the layer holds.
    fn retained(&self) -> &[u32];

    /// Whether a tensor below the experts' prefix is one of theirs, by its expert (none for a
    /// packed tensor) and the part that it is.
    ///
    /// # Errors
    ///
    /// A tensor of theirs that has the wrong shape or type.
    fn check(
        &self,
        tensor: &TensorInfo,
        expert: Option<u32>,
        part: &str,
    ) -> Result<bool, SubstitutionError>;

    /// Takes a tensor that [`check`](Self::check) accepted, and names the parameter, within the
    /// layer, that is complete with it.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and a tensor that does not go with the others.
    fn take(
        &mut self,
        tensor: NamedTensor,
        expert: Option<u32>,
        part: &str,
    ) -> Result<Option<&'static str>, SubstitutionError>;

    /// Lists the tensors that have not arrived.
    fn list_missing(&self, missing: &mut Listing);
}

/// A place within a model: the path of a Burn module, `layers.0.mlp.experts`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModulePath {
    segments: Vec<String>,
}

impl ModulePath {
    /// Goes into a field, an index or an enum variant for the length of `visit`.
    pub fn within(&mut self, segment: impl Into<String>, visit: impl FnOnce(&mut Self)) {
        self.segments.push(segment.into());
        visit(self);
        self.segments.pop();
    }
}

impl fmt::Display for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.segments.join("."))
    }
}

/// Called with each MoE layer and its path.
pub type MoeLayerVisitor<'a> = dyn FnMut(&ModulePath, &mut dyn MoeLayer) + 'a;

/// A type that holds MoE layers, or may hold some.
///
/// `#[derive(MoeLayers)]` implements it from the fields marked `#[substitution(layers)]`; every
/// [`MoeLayer`] is a holder of itself.
#[diagnostic::on_unimplemented(
    message = "`{Self}` holds no MoE layers",
    label = "marked `#[substitution(layers)]`, but not known to hold MoE layers",
    note = "derive `MoeLayers` for `{Self}`, or for the type within where this is a `Vec`, an `Option` or an array, and mark the fields that hold them",
    note = "a type that is the experts of one layer implements `MoeLayer` instead"
)]
pub trait MoeLayers {
    /// Shows every MoE layer, in order, with its path below `path`.
    fn visit_moe_layers(&mut self, path: &mut ModulePath, visit: &mut MoeLayerVisitor<'_>);
}

impl<L: MoeLayer> MoeLayers for L {
    fn visit_moe_layers(&mut self, path: &mut ModulePath, visit: &mut MoeLayerVisitor<'_>) {
        visit(path, self);
    }
}

impl<L: MoeLayers> MoeLayers for Vec<L> {
    fn visit_moe_layers(&mut self, path: &mut ModulePath, visit: &mut MoeLayerVisitor<'_>) {
        visit_slice(self, path, visit);
    }
}

impl<L: MoeLayers, const N: usize> MoeLayers for [L; N] {
    fn visit_moe_layers(&mut self, path: &mut ModulePath, visit: &mut MoeLayerVisitor<'_>) {
        visit_slice(self, path, visit);
    }
}

impl<L: MoeLayers> MoeLayers for Option<L> {
    fn visit_moe_layers(&mut self, path: &mut ModulePath, visit: &mut MoeLayerVisitor<'_>) {
        if let Some(layers) = self {
            layers.visit_moe_layers(path, visit);
        }
    }
}

fn visit_slice<L: MoeLayers>(
    layers: &mut [L],
    path: &mut ModulePath,
    visit: &mut MoeLayerVisitor<'_>,
) {
    for (index, layer) in layers.iter_mut().enumerate() {
        path.within(index.to_string(), |path| {
            layer.visit_moe_layers(path, visit)
        });
    }
}

/// Which decoder layers of the whole model are built in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Layers of the whole model, those of multi-token prediction (MTP) included.
    pub total_layers: u32,
    /// The layers that are built here.
    pub built: Range<u32>,
}

impl Stage {
    /// All of a model.
    #[must_use]
    pub fn whole(total_layers: u32) -> Self {
        Self {
            total_layers,
            built: 0..total_layers,
        }
    }
}

/// A model that knows which of its layers are built here: all, those of a pipeline stage, or those
/// of a draft.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which of its layers are built here",
    label = "a model with substituted experts needs `PipelineStage`",
    note = "implement `PipelineStage` for `{Self}`; a model that is built whole returns `Stage::whole(…)`"
)]
pub trait PipelineStage {
    /// The layers of the whole model, and those that are built here.
    fn stage(&self) -> Stage;
}
