//! What a `config.json` may declare, and what happens where it is wrong.

mod common;

use common::{
    Experts, Layer, Model, Outcome, approximate, assert_says, checkpoint, constant, explicit, load,
    target,
};
use locum_substitution::{
    ConfigFormat, ExpertCounts, LayerExpert, LoadWeights, ProcessWeightsAfterLoading, Substituted,
    SubstitutionError, SubstitutionSpec,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn spec(config: Value) -> Result<SubstitutionSpec, SubstitutionError> {
    SubstitutionSpec::from_config(&config)
}

/// Layers and their experts.
fn layers(spec: &SubstitutionSpec) -> Vec<(u32, Vec<u32>)> {
    spec.layers()
        .map(|(layer, declared)| (layer, declared.experts.clone()))
        .collect()
}

#[test]
fn no_entry_or_an_empty_one_declares_nothing() -> Outcome {
    for config in [
        json!({}),
        json!({ "approximate_experts": null }),
        json!({ "approximate_experts": {} }),
        json!({ "approximate_experts": { "3": [] } }),
        json!({ "text_config": {} }),
        json!({ "text_config": { "approximate_experts": {} } }),
        json!({ "compression_config": null }),
        json!({ "compression_config": {} }),
        json!({ "compression_config": { "transform_config": null } }),
        json!({ "compression_config": { "transform_config": {} } }),
        json!({ "compression_config": { "transform_config": { "expert_substitution": {} } } }),
        // Another transform is no business of ours where nothing is substituted.
        json!({ "compression_config": { "transform_config": {
            "expert_substitution": {}, "config_groups": { "R1": {} },
        } } }),
        explicit(json!({})),
        explicit(json!({ "model.layers.1.mlp.experts": target(&[]) })),
    ] {
        let spec = spec(config.clone())?;
        assert_eq!(spec, SubstitutionSpec::none(), "{config}");
        assert!(spec.is_empty());
        assert_eq!(spec.format(), None);
    }
    Ok(())
}

#[test]
fn model_without_substitution_is_the_bare_model() -> Outcome {
    let mut bare = Model::whole();
    let mut wrapped = Substituted::try_new(Model::whole(), &SubstitutionSpec::none())?;
    let tensors = || checkpoint(&[], &[]);
    assert_eq!(load(&mut wrapped, tensors())?, load(&mut bare, tensors())?);
    assert_eq!(*wrapped, bare);
    assert_eq!(wrapped.clones.count(), 0);

    wrapped.process_weights_after_loading()?;
    assert_eq!(wrapped.processed, 1);
    // What the bare model takes, the wrapper takes: parts of layers, and nothing at all.
    load(&mut wrapped, common::expert(1, 3))?;
    load(&mut wrapped, [])?;
    assert_eq!(wrapped.clones.count(), 0);
    assert_says(
        load(&mut wrapped, [constant(1, 3)]),
        &[
            "model.layers.1.mlp.experts.3.approx_value",
            "1 tensor is unexpected",
        ],
    );
    wrapped.check_weights(&mut std::iter::empty())
}

#[test]
fn approximate_experts_are_ids_by_layer() -> Outcome {
    let spec = spec(json!({ "approximate_experts": { "1": [3, 1], "2": [], "5": [0] } }))?;
    assert_eq!(layers(&spec), [(1, vec![1, 3]), (5, vec![0])]);
    assert_eq!(spec.value_names().count(), 0);
    assert_eq!(spec.format(), Some(ConfigFormat::ApproximateExperts));
    assert_eq!(spec.experts(1), [1, 3]);
    assert!(spec.experts(2).is_empty());
    assert_eq!(
        spec.value_of(LayerExpert {
            layer: 1,
            expert: 3
        }),
        None
    );
    Ok(())
}

#[test]
fn text_config_is_read_before_the_top_level() -> Outcome {
    let found = spec(json!({
        "text_config": { "approximate_experts": { "1": [3] } },
        "approximate_experts": { "2": [4] },
    }))?;
    assert_eq!(layers(&found), [(1, vec![3])]);
    let found = spec(json!({
        "text_config": { "hidden_size": 8, "approximate_experts": {} },
        "approximate_experts": { "2": [4] },
    }))?;
    assert_eq!(layers(&found), [(2, vec![4])]);
    let nested = explicit(json!({ "model.layers.1.mlp.experts": target(&[(3, "a")]) }));
    let found = spec(json!({ "text_config": nested }))?;
    assert_eq!(found.format(), Some(ConfigFormat::ExpertSubstitution));
    assert_eq!(layers(&found), [(1, vec![3])]);
    Ok(())
}

#[test]
fn approximate_experts_that_are_no_ids_by_layer_are_refused() {
    for (value, expected) in [
        (
            json!([[1, 2]]),
            "`approximate_experts`: must be a map, found a list",
        ),
        (json!("none"), "must be a map, found \"none\""),
        (
            json!({ "layer": [1] }),
            "key \"layer\" is not a layer number",
        ),
        (json!({ "-1": [1] }), "key \"-1\" is not a layer number"),
        (json!({ "01": [1] }), "key \"01\" is not a layer number"),
        (json!({ "١": [1] }), "key \"١\" is not a layer number"),
        (
            json!({ "1": [1, 1] }),
            "`approximate_experts.1`: expert 1 is listed twice",
        ),
        (
            json!({ "1": [-1] }),
            "`approximate_experts.1`: -1 is not an expert id",
        ),
        (
            json!({ "1": ["x"] }),
            "`approximate_experts.1`: \"x\" is not an expert id",
        ),
        (json!({ "1": [1.0] }), "1.0 is not an expert id"),
        (json!({ "1": [true] }), "true is not an expert id"),
        (
            json!({ "1": [4294967296u64] }),
            "4294967296 is not an expert id",
        ),
        (
            json!({ "1": 3 }),
            "`approximate_experts.1`: must be a list of expert ids, found 3",
        ),
        (
            json!({ "1": null }),
            "must be a list of expert ids, found null",
        ),
    ] {
        assert_says(spec(json!({ "approximate_experts": value })), &[expected]);
    }
    assert_says(spec(json!([])), &["must be a JSON object"]);
}

#[test]
fn message_shows_the_beginning_of_an_endless_string() {
    let key = "x".repeat(1_000_000);
    let error = spec(json!({ "approximate_experts": { key.clone(): [key] } }))
        .expect_err("no layer number")
        .to_string();
    assert!(error.contains("xxx\"… (1000000 bytes)"), "{}", error.len());
    assert!(error.len() < 300);
}

#[test]
fn declaration_that_does_not_fit_the_model_is_refused() {
    for (declared, expected) in [
        (
            json!({ "1": [1, 5, 9] }),
            vec!["layer 1", "[1, 5, 9]", "[5, 9] do not exist", "has 5"],
        ),
        (
            json!({ "1": [0, 1, 2, 3, 4] }),
            vec!["layer 1", "[0, 1, 2, 3, 4]", "all 5 experts"],
        ),
        (
            json!({ "4": [0] }),
            vec!["layer 4", "[0]", "the model has 4 layers"],
        ),
        (
            json!({ "99": [2] }),
            vec!["layer 99", "[2]", "the model has 4 layers"],
        ),
        (
            json!({ "2": [0, 3] }),
            vec!["layer 2", "[0, 3]", "is dense"],
        ),
    ] {
        assert_says(
            Substituted::try_new(Model::whole(), &approximate(declared)),
            &expected,
        );
    }
}

#[test]
fn layer_with_two_moe_modules_cannot_be_declared() -> Outcome {
    let mut model = Model::whole();
    model.layers[2] = Layer::Moe(Experts::at(1, "model.layers.1.mlp2.experts".into(), 5));
    assert_says(
        Substituted::try_new(model.clone(), &approximate(json!({ "1": [3] }))),
        &[
            "layer 1",
            "[3]",
            "2 MoE modules",
            "model.layers.1.mlp.experts",
            "layers.1.mlp2.experts",
        ],
    );
    // Declaring something of another layer is no reason to refuse.
    Substituted::try_new(model, &approximate(json!({ "0": [3] }))).map(|_| ())
}

#[test]
fn two_layers_at_one_prefix_are_refused_where_something_is_declared() -> Outcome {
    let mut model = Model::whole();
    model.layers[2] = Layer::Moe(Experts::at(2, "model.layers.1.mlp.experts".into(), 5));
    Substituted::try_new(model.clone(), &SubstitutionSpec::none())?;
    assert_says(
        Substituted::try_new(model, &approximate(json!({ "0": [3] }))),
        &["layers 1 and 2", "`model.layers.1.mlp.experts`"],
    );
    Ok(())
}

#[test]
fn declared_layer_of_another_stage_is_no_error() -> Outcome {
    let declared = approximate(json!({ "0": [2], "1": [1], "2": [0], "3": [4] }));
    // Whether layer 2 is dense is known where it is built.
    for built in [0..1, 1..2, 3..4, 0..0] {
        Substituted::try_new(Model::stage(built), &declared)?;
    }
    assert_says(
        Substituted::try_new(Model::stage(2..3), &declared),
        &["layer 2", "is dense"],
    );
    Ok(())
}

#[test]
fn layer_of_multi_token_prediction_can_be_declared() -> Outcome {
    let mut draft = Substituted::try_new(Model::stage(3..4), &approximate(json!({ "3": [4] })))?;
    load(&mut draft, [constant(3, 4)])?;
    assert_eq!(draft.experts(3).constant(0), [304.0, -304.0]);
    Ok(())
}

#[test]
fn constants_of_a_type_that_is_no_float_are_refused() {
    let model = Model::whole().with_dtype(locum_substitution::Dtype::Other("i8".into()));
    assert_says(
        Substituted::try_new(model, &approximate(json!({ "1": [3] }))),
        &["layer 1", "[3]", "i8"],
    );
}

#[test]
fn both_formats_at_once_are_refused() {
    let targets = json!({ "model.layers.1.mlp.experts": target(&[(3, "a")]) });
    for (text, mut top) in [
        (json!({}), explicit(targets.clone())),
        (
            json!({ "approximate_experts": { "1": [3] } }),
            explicit(targets.clone()),
        ),
        (
            explicit(targets),
            json!({ "approximate_experts": { "1": [3] } }),
        ),
    ] {
        if text == json!({}) {
            top["approximate_experts"] = json!({ "1": [3] });
        }
        top["text_config"] = text;
        assert_says(
            spec(top),
            &[
                "`approximate_experts`",
                "`compression_config.transform_config.expert_substitution`",
                "keep one",
            ],
        );
    }
}

#[test]
fn initial_tokens_of_approximate_experts_are_ignored() -> Outcome {
    let found = spec(json!({
        "approximate_experts": { "1": [3] },
        "approximate_expert_init_tokens": { "1": { "3": 128000 } },
    }))?;
    assert_eq!(found, approximate(json!({ "1": [3] })));
    Ok(())
}

fn counts(config: Value, keys: &[&str]) -> Result<Option<ExpertCounts>, SubstitutionError> {
    ExpertCounts::from_config(config.as_object().expect("a map"), keys)
}

#[test]
fn expert_count_is_a_number_or_a_dictionary_by_layer() -> Outcome {
    let uniform = counts(
        json!({ "num_experts": 64 }),
        &["n_routed_experts", "num_experts"],
    )?;
    assert_eq!(uniform, Some(ExpertCounts::Uniform(64)));
    assert_eq!(uniform.and_then(|c| c.of_layer(7)), Some(64));
    let by_layer = counts(
        json!({ "num_experts": { "1": 60, "2": 64 } }),
        &["num_experts"],
    )?;
    let by_layer = by_layer.expect("a count");
    assert_eq!(
        [0, 1, 2].map(|l| by_layer.of_layer(l)),
        [None, Some(60), Some(64)]
    );
    // `null` is how a config says that it has none; a dictionary of no layers says nothing.
    for absent in [json!({}), json!({ "num_experts": null })] {
        assert_eq!(counts(absent, &["num_experts"])?, None);
    }
    let empty = counts(json!({ "num_experts": {} }), &["num_experts"]);
    let empty = empty.expect_err("a dictionary without layers").to_string();
    assert_eq!(empty, "`num_experts`: has no layer");
    Ok(())
}

#[test]
fn expert_count_that_is_none_is_refused() {
    for (value, expected) in [
        (
            json!("64"),
            "`num_experts`: must be a number of experts, found \"64\"",
        ),
        (json!([64]), "found a list"),
        (json!(-1), "found -1"),
        (json!({ "x": 64 }), "key \"x\" is not a layer number"),
        (
            json!({ "1": "64" }),
            "`num_experts.1`: must be a number of experts",
        ),
    ] {
        assert_says(
            counts(json!({ "num_experts": value }), &["num_experts"]),
            &[expected],
        );
    }
}

#[test]
fn dictionaries_of_different_length_or_layers_are_refused() -> Outcome {
    let dictionary =
        |layers: Value| counts(json!({ "n": layers }), &["n"]).map(|c| c.expect("a count"));
    let (one, two) = (
        dictionary(json!({ "1": 60 }))?,
        dictionary(json!({ "1": 4, "2": 4 }))?,
    );
    let other = dictionary(json!({ "3": 4 }))?;
    let uniform = ExpertCounts::Uniform(8);
    assert_says(
        ExpertCounts::check_lengths(&[("num_experts", &one), ("top_k", &uniform), ("kept", &two)]),
        &["`kept`: has 2 layers, but `num_experts` has 1"],
    );
    assert_says(
        ExpertCounts::check_lengths(&[("num_experts", &one), ("kept", &other)]),
        &["`kept`: has layer 3, but `num_experts` has not"],
    );
    ExpertCounts::check_lengths(&[])?;
    ExpertCounts::check_lengths(&[("num_experts", &uniform), ("kept", &two), ("top_k", &two)])
}

/// JSON of the field names that matter, at random places.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u32..6).prop_map(Value::from),
        Just(Value::from("constant-v1")),
        Just(Value::from("compact_retained_experts")),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        prop::sample::select(vec![
            "approximate_experts",
            "text_config",
            "compression_config",
            "transform_config",
            "expert_substitution",
            "version",
            "router_semantics",
            "targets",
            "replacements",
            "model.layers.1.mlp.experts",
            "num_logical_experts",
            "weight_layout",
            "format",
            "tensors",
            "value",
            "num_experts",
        ])
        .prop_map(String::from),
        (0u32..6).prop_map(|n| n.to_string()),
        "\\PC{0,8}",
    ];
    leaf.prop_recursive(6, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(common::cases(1024))]

    #[test]
    fn any_json_is_read_or_refused_without_a_panic(value in any_json(), place in 0usize..6) {
        let path = "model.layers.1.mlp.experts";
        let mut of_five = target(&[]);
        of_five["replacements"] = value.clone();
        let config = match place {
            0 => value.clone(),
            1 => json!({ "approximate_experts": value.clone() }),
            2 => json!({ "text_config": value.clone() }),
            3 => explicit(value.clone()),
            4 => explicit(json!({ path: value.clone() })),
            _ => explicit(json!({ path: of_five })),
        };
        if let Ok(spec) = spec(config) {
            // What was read is in order, and fits a model or does not.
            for (_, declared) in spec.layers() {
                prop_assert!(!declared.experts.is_empty());
                prop_assert!(declared.experts.is_sorted_by(|a, b| a < b));
            }
            Substituted::try_new(Model::whole(), &spec).ok();
        }
        if let Value::Object(map) = &value {
            ExpertCounts::from_config(map, &["num_experts", "1"]).ok();
        }
    }
}
