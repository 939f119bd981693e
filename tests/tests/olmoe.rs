//! OLMoE's fixtures: unpruned, and pruned in both formats.

use locum::models::{LoadOptions, ModelFiles};
use locum_tests::{EditedModel, Reference, distance, fixture};
use serde_json::json;

const CASES: [&str; 3] = ["olmoe/base", "olmoe/approx", "olmoe/explicit"];

#[test]
fn substitution_changes_the_logits_that_are_compared() {
    let reference = Reference::open(&fixture("olmoe/approx"));
    let (_, full) = reference.f32("full_logits");
    let (_, substituted) = reference.f32("substituted_logits");
    assert!(distance(&full, &substituted) > 1.0);
}

#[test]
fn both_formats_are_told_apart() {
    let formats = CASES.map(|name| {
        let config = ModelFiles::open(fixture(name)).map(|files| files.config().clone());
        let config = config.unwrap_or_else(|error| panic!("{name}: {error}"));
        let spec = locum::SubstitutionSpec::from_config(&config);
        let spec = spec.unwrap_or_else(|error| panic!("{name}: {error}"));
        spec.format().map(|format| format.key())
    });
    assert_eq!(
        formats,
        [
            None,
            Some("approximate_experts"),
            Some("compression_config.transform_config.expert_substitution"),
        ]
    );
}

#[test]
fn names_that_the_authors_code_writes_are_olmoe() {
    for (model_type, class) in [
        (Some("olmoe_compressed"), "OlmoneForCausalLM"),
        (None, "OlmoneForCausalLM"),
        (Some("olmone"), "OlmoneForCausalLM"),
    ] {
        let mut model = EditedModel::of_fixture("olmoe/approx");
        model.config["model_type"] = json!(model_type);
        model.config["architectures"] = json!([class]);
        let planned = model.plan(&LoadOptions::default());
        let planned = planned.unwrap_or_else(|error| panic!("{model_type:?}: {error}"));
        assert_eq!(planned.architecture().model_type, "olmoe");
    }
}

#[test]
fn expert_counts_by_layer_are_understood() {
    let mut model = EditedModel::of_fixture("olmoe/approx");
    model.config["num_experts"] = json!({ "0": 8, "1": 8, "2": 8 });
    assert!(model.plan(&LoadOptions::default()).is_ok());
    model.config["num_experts_per_tok"] = json!({ "0": 3, "1": 3 });
    let error = model.plan(&LoadOptions::default()).err();
    let error = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(
        error.contains("has 2 layers, but `num_experts` has 3"),
        "{error}"
    );
}
