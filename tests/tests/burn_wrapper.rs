//! The generated wrapper around Burn modules of every shape: paths, attribute order, generics.
#![allow(clippy::unwrap_used)]

use locum::burn;
use locum::burn::module::{Module, ModuleDisplay, ModuleVisitor, Param};
use locum::burn::tensor::Tensor;
use locum::nn::{Device, ExpertNames, ExpertsConfig, Linear, RoutedExperts};
use locum::prelude::*;
use locum::substitution::Dtype;
use locum::{ModulePath, NamedTensor};
use serde_json::json;

/// Burn's derive puts the variant's name into parameter paths.
#[derive(Module, Debug, MoeLayers)]
// Boxes would hide what is tested.
#[allow(clippy::large_enum_variant)]
enum Mlp {
    Dense(Linear),
    Sparse(#[substitution(layers)] RoutedExperts),
}

#[derive(Module, Debug, MoeLayers)]
struct Block {
    #[substitution(layers)]
    mlp: Mlp,
    #[substitution(layers)]
    more: Option<RoutedExperts>,
}

/// The attribute below the derive, type and const generics, several marked fields.
#[derive(Module, Debug)]
#[expert_substitution(name = SubstitutedTower)]
struct Tower<H: Module + ModuleDisplay, const N: usize> {
    #[substitution(layers)]
    first: RoutedExperts,
    #[substitution(layers)]
    blocks: Vec<Block>,
    head: H,
}

impl<H: Module + ModuleDisplay, const N: usize> PipelineStage for Tower<H, N> {
    fn stage(&self) -> Stage {
        Stage::whole(N as u32)
    }
}

impl<H: Module + ModuleDisplay, const N: usize> LoadWeights for Tower<H, N> {
    fn load_weights(
        &mut self,
        weights: &mut WeightStream<'_>,
    ) -> Result<Loaded, SubstitutionError> {
        // Constants are all that these tests load; what else comes is read and left.
        for tensor in weights {
            tensor?;
        }
        Ok(Loaded {
            parameters: Some(Default::default()),
            ..Loaded::default()
        })
    }
}

impl<H: Module + ModuleDisplay, const N: usize> ProcessWeightsAfterLoading for Tower<H, N> {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        Ok(())
    }
}

fn experts(layer: u32) -> RoutedExperts {
    let config = ExpertsConfig {
        layer,
        prefix: format!("model.layers.{layer}.mlp.experts"),
        num_logical_experts: 3,
        hidden: 2,
        intermediate: 1,
        names: ExpertNames::PROJ,
        constant_dtype: Dtype::F32,
    };
    RoutedExperts::new(config, &Device::flex())
}

fn tower() -> SubstitutedTower<Linear, 4> {
    let device = Device::flex();
    let tower = Tower {
        first: experts(0),
        blocks: vec![
            Block {
                mlp: Mlp::Dense(Linear::new(2, 2, &device)),
                more: Some(experts(1)),
            },
            Block {
                mlp: Mlp::Sparse(experts(2)),
                more: None,
            },
        ],
        head: Linear::new(2, 2, &device),
    };
    let config = json!({ "approximate_experts": { "0": [0], "1": [1], "2": [2] } });
    let spec = SubstitutionSpec::from_config(&config).unwrap();
    SubstitutedTower::try_new(tower, &spec).unwrap()
}

/// Burn's paths of a module's parameters.
fn paths<M: Module>(module: &M) -> Vec<String> {
    #[derive(Default)]
    struct Paths(Vec<String>, Vec<String>);
    impl ModuleVisitor for Paths {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.into());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, _: &Param<Tensor<D>>) {
            self.1.push(self.0.join("."));
        }
    }
    let mut paths = Paths::default();
    module.visit(&mut paths);
    paths.1
}

#[test]
fn wrapper_has_the_paths_of_its_model() {
    let wrapper = tower();
    let expected = paths(&wrapper.clone().into_inner());
    assert_eq!(paths(&wrapper), expected);
    assert_eq!(
        format!("{wrapper}"),
        format!("{}", wrapper.clone().into_inner())
    );
    assert!(expected.contains(&"blocks.1.mlp.Sparse.values".to_owned()));
}

#[test]
fn visited_layers_are_where_burn_has_them() {
    let mut visited = Vec::new();
    let mut tower = tower().into_inner();
    tower.visit_moe_layers(&mut ModulePath::default(), &mut |path, layer| {
        visited.push((path.to_string(), layer.info().layer));
    });
    assert_eq!(
        visited,
        [
            ("first".into(), 0),
            ("blocks.0.more".into(), 1),
            ("blocks.1.mlp.Sparse".into(), 2)
        ]
    );
    let paths = paths(&tower);
    for (path, _) in visited {
        assert!(paths.contains(&format!("{path}.values")), "{path}");
    }
}

#[test]
fn constants_are_reported_at_burns_paths() {
    let mut wrapper = tower();
    let constants = [(0, 0), (1, 1), (2, 2)].map(|(layer, expert)| {
        let name = format!("model.layers.{layer}.mlp.experts.{expert}.approx_value");
        NamedTensor::from_f32(name, [2], &[layer as f32, 1.0])
    });
    let loaded = wrapper.load_weights(&mut constants.into_iter()).unwrap();
    assert_eq!(
        loaded.parameters.unwrap().into_iter().collect::<Vec<_>>(),
        [
            "blocks.0.more.values",
            "blocks.1.mlp.Sparse.values",
            "first.values"
        ]
    );
    let values = wrapper.first.values.as_ref().unwrap().val();
    assert_eq!(
        values.into_data().iter::<f32>().collect::<Vec<_>>(),
        [0.0, 1.0]
    );
}
