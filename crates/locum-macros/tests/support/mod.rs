//! A layer of experts without any arithmetic, and the hooks of models made of such layers.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::BTreeMap;

use locum_substitution::{
    BoxError, Constant, Dtype, ModulePath, MoeLayer, MoeLayerInfo, MoeLayers, RouteTable,
};

/// Four experts of hidden size 2, which keep what they are given.
#[derive(Clone, Debug, Default)]
pub struct Experts {
    pub layer: u32,
    /// By logical expert.
    pub constants: BTreeMap<u32, [f32; 2]>,
    /// By tensor name.
    pub weights: BTreeMap<String, Vec<f32>>,
}

impl Experts {
    pub fn of_layer(layer: u32) -> Self {
        Self {
            layer,
            ..Self::default()
        }
    }
}

impl MoeLayer for Experts {
    fn info(&self) -> MoeLayerInfo {
        MoeLayerInfo {
            layer: self.layer,
            prefix: format!("model.layers.{}.mlp.experts", self.layer),
            num_logical_experts: 4,
            hidden_size: 2,
            expert_parts: vec!["up_proj.weight"],
            packed_parts: Vec::new(),
            constant_dtype: Dtype::F32,
            constants_parameter: "experts.values",
        }
    }

    fn substitute(&mut self, _: &RouteTable) -> Result<(), BoxError> {
        Ok(())
    }

    fn load_constants(&mut self, constants: &[Constant]) -> Result<(), BoxError> {
        for constant in constants {
            let element = |at| -> Result<f32, BoxError> {
                Ok(f32::from_le_bytes(constant.value[at..at + 4].try_into()?))
            };
            self.constants
                .insert(constant.expert, [element(0)?, element(4)?]);
        }
        Ok(())
    }
}

/// The path and the layer of each visit, in order.
pub fn visited(model: &mut impl MoeLayers) -> Vec<(String, u32)> {
    let mut visits = Vec::new();
    model.visit_moe_layers(&mut ModulePath::default(), &mut |path, layer| {
        visits.push((path.to_string(), layer.info().layer));
    });
    visits
}

/// The hooks that every model has, for one whose layers are `Experts`.
#[macro_export]
macro_rules! hooks {
    ([$($generics:tt)*] $model:ty, $layers:expr) => {
        impl<$($generics)*> ::locum_substitution::PipelineStage for $model {
            fn stage(&self) -> ::locum_substitution::Stage {
                ::locum_substitution::Stage::whole($layers)
            }
        }

        impl<$($generics)*> ::locum_substitution::LoadWeights for $model
        where
            $model: ::locum_substitution::MoeLayers,
        {
            fn load_weights(
                &mut self,
                weights: &mut ::locum_substitution::WeightStream<'_>,
            ) -> ::core::result::Result<
                ::locum_substitution::Loaded,
                ::locum_substitution::SubstitutionError,
            > {
                $crate::support::load(self, weights)
            }
        }

        impl<$($generics)*> ::locum_substitution::ProcessWeightsAfterLoading for $model {
            fn process_weights_after_loading(
                &mut self,
            ) -> ::core::result::Result<(), ::locum_substitution::SubstitutionError> {
                ::core::result::Result::Ok(())
            }
        }
    };
    ($model:ty, $layers:expr) => { $crate::hooks!([] $model, $layers); };
}

/// Reads the whole stream, and names no parameter.
pub fn load<M: MoeLayers>(
    _: &mut M,
    weights: &mut locum_substitution::WeightStream<'_>,
) -> Result<locum_substitution::Loaded, locum_substitution::SubstitutionError> {
    for tensor in weights {
        tensor?;
    }
    Ok(locum_substitution::Loaded::default())
}
