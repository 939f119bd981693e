//! The feed-forward of a decoder layer, in families where some layers are dense.

use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::tensor::{Device, Tensor};
use locum_substitution::{ModulePath, MoeLayerVisitor, MoeLayers};

use crate::{ExpertObserver, GatedMlp, Mlp, SparseMoe};

/// A dense feed-forward, or a mixture of experts in its place.
///
/// Both stand under the same name in a checkpoint. Burn's derive would put the variant's name into
/// parameter paths, so this is a transparent module, written out.
#[derive(Clone, Debug)]
// There is one of these per decoder layer: what they take is not worth an indirection.
#[allow(clippy::large_enum_variant)]
pub enum FeedForward {
    /// Every token goes through the same weights.
    Dense(GatedMlp),
    /// Every token goes to some experts.
    Sparse(SparseMoe),
}

impl FeedForward {
    /// Computes some tokens.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.forward_observed(x, None)
    }

    /// [`forward`](Self::forward), while somebody may look on.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    pub fn forward_observed(
        &self,
        x: Tensor<2>,
        observer: Option<&mut dyn ExpertObserver>,
    ) -> Tensor<2> {
        match self {
            Self::Dense(mlp) => mlp.forward(x),
            Self::Sparse(moe) => moe.forward_observed(x, observer),
        }
    }

    fn map_either(
        self,
        dense: impl FnOnce(GatedMlp) -> GatedMlp,
        sparse: impl FnOnce(SparseMoe) -> SparseMoe,
    ) -> Self {
        match self {
            Self::Dense(mlp) => Self::Dense(dense(mlp)),
            Self::Sparse(moe) => Self::Sparse(sparse(moe)),
        }
    }
}

impl MoeLayers for FeedForward {
    fn visit_moe_layers(&mut self, path: &mut ModulePath, visit: &mut MoeLayerVisitor<'_>) {
        if let Self::Sparse(moe) = self {
            moe.visit_moe_layers(path, visit);
        }
    }
}

impl Module for FeedForward {
    fn collect_devices(&self, devices: Devices) -> Devices {
        match self {
            Self::Dense(mlp) => mlp.collect_devices(devices),
            Self::Sparse(moe) => moe.collect_devices(devices),
        }
    }

    fn fork(self, device: &Device) -> Self {
        self.map_either(|mlp| mlp.fork(device), |moe| moe.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        self.map_either(|mlp| mlp.to_device(device), |moe| moe.to_device(device))
    }

    fn train(self) -> Self {
        self.map_either(Module::train, Module::train)
    }

    fn valid(&self) -> Self {
        match self {
            Self::Dense(mlp) => Self::Dense(mlp.valid()),
            Self::Sparse(moe) => Self::Sparse(moe.valid()),
        }
    }

    fn materialize(self) -> Self {
        self.map_either(Module::materialize, Module::materialize)
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        match self {
            Self::Dense(mlp) => mlp.visit(visitor),
            Self::Sparse(moe) => moe.visit(visitor),
        }
    }

    fn map<M: ModuleMapper>(self, mapper: &mut M) -> Self {
        match self {
            Self::Dense(mlp) => Self::Dense(mlp.map(mapper)),
            Self::Sparse(moe) => Self::Sparse(moe.map(mapper)),
        }
    }
}

impl ModuleDisplayDefault for FeedForward {
    fn content(&self, content: Content) -> Option<Content> {
        match self {
            Self::Dense(mlp) => mlp.content(content),
            Self::Sparse(moe) => moe.content(content),
        }
    }

    fn num_params(&self) -> usize {
        match self {
            Self::Dense(mlp) => Module::num_params(mlp),
            Self::Sparse(moe) => Module::num_params(moe),
        }
    }
}

impl ModuleDisplay for FeedForward {}
