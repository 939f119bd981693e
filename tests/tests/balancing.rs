//! Models as balancing sees them: their MoE layers, and what of them is placed.
#![allow(clippy::unwrap_used)]

use locum::burn::tensor::DType;
use locum::eplb::{LogicalExpert, collect_moe_layers};
use locum::models::ArchitectureConfig;
use locum::models::architectures::deepseek_v3::DeepseekV3Config;
use locum::models::architectures::olmoe::{OlmoeConfig, SubstitutedOlmoe};
use locum::nn::Device;
use locum::{SubstitutionSpec, checkpoint::read_json};
use locum_tests::fixture;

#[test]
fn retained_experts_of_a_substituted_olmoe_are_what_is_placed() {
    let json = read_json(fixture("olmoe/approx/config.json")).unwrap();
    let config = OlmoeConfig::from_json(&json).unwrap();
    let model = config.build(DType::F32, &Device::flex());
    let spec = SubstitutionSpec::from_config(&json).unwrap();
    let model = SubstitutedOlmoe::try_new(model, &spec).unwrap();
    let collected = collect_moe_layers(model.layers(), 0, None);
    assert_eq!(
        (
            collected.num_moe_layers(),
            collected.geometry.num_expert_groups
        ),
        (3, 1)
    );
    let geometry: Vec<_> = collected
        .geometry
        .layers
        .iter()
        .map(|layer| {
            let g = layer.geometry;
            (
                layer.layer,
                g.routed,
                g.shared,
                g.retained,
                g.physical,
                g.redundant,
            )
        })
        .collect();
    // Of 8 experts, 3, 5 and 2 are substituted.
    assert_eq!(
        geometry,
        [(0, 8, 0, 5, 5, 0), (1, 8, 0, 3, 3, 0), (2, 8, 0, 6, 6, 0)]
    );
    assert_eq!(
        collected.geometry.layers[1].retained,
        Some([2, 3, 4].map(LogicalExpert).to_vec())
    );
    assert!(collected.geometry.uniform().is_err());
}

#[test]
fn dense_layers_are_passed_over_and_shared_experts_counted() {
    let json = read_json(fixture("deepseek_v3/base/config.json")).unwrap();
    let config = DeepseekV3Config::from_json(&json).unwrap();
    let model = config.build(DType::F32, &Device::flex());
    let groups = json["n_group"].as_u64().map(|groups| groups as usize);
    let collected = collect_moe_layers(model.layers(), 0, groups);
    let layers: Vec<usize> = collected.geometry.layers.iter().map(|l| l.layer).collect();
    let dense = json["first_k_dense_replace"].as_u64().unwrap() as usize;
    let all = json["num_hidden_layers"].as_u64().unwrap() as usize;
    assert_eq!(layers, (dense..all).collect::<Vec<_>>());
    let geometry = collected.geometry.uniform().unwrap();
    assert_eq!(
        geometry.shared as u64,
        json["n_shared_experts"].as_u64().unwrap()
    );
    assert_eq!(
        geometry.retained as u64,
        json["n_routed_experts"].as_u64().unwrap()
    );
    assert_eq!(Some(collected.geometry.num_expert_groups), groups);
}
