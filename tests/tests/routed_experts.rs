//! Routed experts alone against transformers: input, routes and output of every layer.
#![allow(clippy::unwrap_used)]

use locum::burn::tensor::{DType, Device, Tensor, TensorData};
use locum::checkpoint::Checkpoint;
use locum::nn::{ExpertNames, ExpertsConfig, RoutedExperts, Routes};
use locum::substitution::{Dtype, RouteTable};
use locum::{Constant, MoeLayer, SubstitutionSpec};
use locum_tests::{Reference, distance, fixture};

/// The experts of a layer of `olmoe/approx`, tensor by tensor.
fn experts(layer: u32) -> RoutedExperts {
    let directory = fixture("olmoe/approx");
    let config = locum::checkpoint::read_json(directory.join("config.json")).unwrap();
    let spec = SubstitutionSpec::from_config(&config).unwrap();
    let checkpoint = Checkpoint::open(&directory).unwrap();
    let table = RouteTable::new(8, spec.experts(layer)).unwrap();
    let prefix = format!("model.layers.{layer}.mlp.experts");
    let config = ExpertsConfig {
        layer,
        prefix: prefix.clone(),
        num_logical_experts: 8,
        hidden: 64,
        intermediate: 48,
        names: ExpertNames::PROJ,
        constant_dtype: Dtype::F32,
    };
    let mut experts = RoutedExperts::new(config, &Device::flex());
    experts.substitute(&table).unwrap();
    for &expert in table.retained() {
        for part in ["up_proj.weight", "down_proj.weight", "gate_proj.weight"] {
            let tensor = checkpoint
                .tensor(&format!("{prefix}.{expert}.{part}"))
                .unwrap();
            let weights = experts.expert_weights().unwrap();
            weights.take(tensor, Some(expert), part).unwrap();
        }
    }
    let constants: Vec<Constant> = table
        .substituted()
        .iter()
        .enumerate()
        .map(|(row, &expert)| {
            let name = format!("{prefix}.{expert}.approx_value");
            let (_, value) = checkpoint.tensor(&name).unwrap().into_parts();
            let value = value.view().clone();
            Constant { row, expert, value }
        })
        .collect();
    experts.load_constants(&constants).unwrap();
    experts
}

#[test]
fn output_of_every_layer_agrees() {
    let reference = Reference::open(&fixture("olmoe/approx"));
    for layer in 0..3 {
        let tensor = |what: &str| reference.f32(&format!("debug.{layer}.{what}"));
        let (shape, input) = tensor("input");
        let x = Tensor::<2>::from_data(
            TensorData::new(input, [shape[0], shape[1]]),
            (&Device::flex(), DType::F32),
        );
        let (shape, ids) = reference.i64(&format!("debug.{layer}.top_k_index"));
        let routes = Routes {
            ids,
            weights: tensor("top_k_weights").1,
            top_k: shape[1],
        };
        let y = experts(layer).forward(x, &routes);
        let found: Vec<f32> = y.into_data().iter::<f32>().collect();
        let distance = distance(&found, &tensor("output").1);
        assert!(distance <= 2e-5, "layer {layer}: off by {distance}");
    }
}
