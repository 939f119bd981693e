//! A model in plain Rust, its checkpoint, and short ways to load one into the other.
//!
//! The whole model has four layers: 0 and 1 are MoE layers of five experts, 2 is dense, and 3 is
//! multi-token prediction, an MoE layer of five experts as well. Each test builds a range of them.
// Each test crate uses a part of this.
#![allow(dead_code, unused_imports)]

mod checkpoint;
mod loader;
mod log;
mod model;

pub(crate) use checkpoint::{
    CONSTANT, bf16, checkpoint, constant, expert, f16, packed, part, tensor, without,
};
pub(crate) use loader::Loader;
pub(crate) use log::logged;
pub(crate) use model::{Experts, Layer, Model};

use locum_substitution::{
    LoadWeights, Loaded, NamedTensor, Substituted, SubstitutionError, SubstitutionSpec,
};
use proptest::test_runner::{Config as ProptestConfig, RngSeed};
use serde_json::Value;

/// Cases that are the same in every run.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(0x10C0),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// What a test returns.
pub(crate) type Outcome = Result<(), SubstitutionError>;

/// The parts of an expert, as most architectures name them.
pub(crate) const PARTS: [&str; 3] = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];

/// `approximate_experts` as a specification.
pub(crate) fn approximate(layers: Value) -> SubstitutionSpec {
    SubstitutionSpec::from_config(&serde_json::json!({ "approximate_experts": layers }))
        .expect("a well-formed declaration")
}

/// The explicit format around some targets.
pub(crate) fn explicit(targets: Value) -> Value {
    serde_json::json!({ "compression_config": { "transform_config": { "expert_substitution": {
        "version": 1,
        "router_semantics": {
            "preserve_logical_expert_ids": true,
            "preserve_router_weights": true,
            "renormalize_after_substitution": false,
        },
        "targets": targets,
    } } } })
}

/// A target of five experts whose replacements are pairs of id and tensor name.
pub(crate) fn target(replacements: &[(u32, &str)]) -> Value {
    let replacements: serde_json::Map<String, Value> = replacements
        .iter()
        .map(|(id, name)| {
            let value = serde_json::json!({
                "format": "constant-v1",
                "tensors": { "value": name },
            });
            (id.to_string(), value)
        })
        .collect();
    serde_json::json!({
        "num_logical_experts": 5,
        "weight_layout": "compact_retained_experts",
        "replacements": replacements,
    })
}

/// Loads tensors in one call.
pub(crate) fn load<M: LoadWeights>(
    model: &mut M,
    tensors: impl IntoIterator<Item = NamedTensor>,
) -> Result<Loaded, SubstitutionError> {
    model.load_weights(&mut tensors.into_iter().map(Ok))
}

/// A model with substitution, loaded and complete.
pub(crate) fn loaded(
    model: Model,
    spec: &SubstitutionSpec,
    tensors: impl IntoIterator<Item = NamedTensor>,
) -> Result<Substituted<Model>, SubstitutionError> {
    let mut model = Substituted::try_new(model, spec)?;
    load(&mut model, tensors)?;
    Ok(model)
}

/// Asserts that an error's message holds all of some texts.
#[track_caller]
pub(crate) fn assert_says<T: std::fmt::Debug>(
    result: Result<T, SubstitutionError>,
    expected: &[&str],
) {
    let message = result.expect_err("must be refused").to_string();
    for text in expected {
        assert!(message.contains(text), "{text:?} is not in {message:?}");
    }
}
