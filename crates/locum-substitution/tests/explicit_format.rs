//! The explicit format: every field of it, what it may say, and where it must agree with the model.

mod common;

use common::{Model, Outcome, assert_says, explicit, load, target, tensor};
use locum_substitution::{LayerExpert, Substituted, SubstitutionError, SubstitutionSpec};
use serde_json::{Value, json};

const PATH: &str = "compression_config.transform_config.expert_substitution";

fn spec(config: Value) -> Result<SubstitutionSpec, SubstitutionError> {
    SubstitutionSpec::from_config(&config)
}

/// Layers and their experts.
fn layers(spec: &SubstitutionSpec) -> Vec<(u32, Vec<u32>)> {
    spec.layers()
        .map(|(layer, declared)| (layer, declared.experts.clone()))
        .collect()
}

/// The explicit format with one target, in which one field is something else.
fn with(pointer: &str, value: Value) -> Value {
    let mut config = explicit(json!({ "model.layers.1.mlp.experts": target(&[(3, "a")]) }));
    let pointer = format!("/{}{pointer}", PATH.replace('.', "/"));
    let (parent, key) = pointer.rsplit_once('/').expect("a field");
    let parent = config.pointer_mut(parent).expect("the field's map");
    parent[key] = value;
    config
}

/// The same without one field.
fn lacking(pointer: &str) -> Value {
    let mut config = with(pointer, Value::Null);
    let pointer = format!("/{}{pointer}", PATH.replace('.', "/"));
    let (parent, key) = pointer.rsplit_once('/').expect("a field");
    let parent = config.pointer_mut(parent).expect("the field's map");
    parent.as_object_mut().expect("a map").remove(key);
    config
}

#[test]
fn one_tensor_of_the_explicit_format_feeds_several_experts() -> Outcome {
    let config = explicit(json!({
        "model.layers.1.mlp.experts": target(&[(3, "shared"), (1, "own")]),
        "model.layers.0.mlp.experts": target(&[(0, "shared")]),
    }));
    let spec = spec(config)?;
    assert_eq!(layers(&spec), [(0, vec![0]), (1, vec![1, 3])]);
    let (first, second) = (
        LayerExpert {
            layer: 1,
            expert: 3,
        },
        LayerExpert {
            layer: 0,
            expert: 0,
        },
    );
    assert_eq!(spec.experts_of_value("shared"), Some(&[first, second][..]));
    assert_eq!(spec.experts_of_value("other"), None);
    assert_eq!(spec.value_of(second), Some("shared"));
    assert_eq!(spec.value_names().count(), 2);

    let mut model = Substituted::try_new(Model::whole(), &spec)?;
    load(
        &mut model,
        [
            tensor("shared", &[2], &[1.0, 2.0]),
            tensor("own", &[2], &[3.0, 4.0]),
        ],
    )?;
    assert_eq!(model.experts(0).constant(0), [1.0, 2.0]);
    assert_eq!(model.experts(1).constant(0), [3.0, 4.0]);
    assert_eq!(model.experts(1).constant(1), [1.0, 2.0]);
    Ok(())
}

#[test]
fn explicit_format_names_path_and_field_of_what_is_wrong() {
    let target = "/targets/model.layers.1.mlp.experts";
    let replacement = format!("{target}/replacements/3");
    for (pointer, value, reason) in [
        ("/version", json!(2), "must be 1, found 2"),
        ("/version", json!(true), "must be 1, found true"),
        ("/version", json!("1"), "must be 1, found \"1\""),
        ("/version", json!(1.0), "must be 1, found 1.0"),
        ("/extra", json!(0), "is not known here"),
        (
            "/router_semantics/renormalize_after_substitution",
            json!(true),
            "must be false, found true",
        ),
        (
            "/router_semantics/preserve_router_weights",
            json!(false),
            "must be true, found false",
        ),
        (
            "/router_semantics/preserve_logical_expert_ids",
            json!(1),
            "must be true, found 1",
        ),
        ("/router_semantics/scale", json!(2.0), "is not known here"),
        ("/targets", json!([]), "must be a map, found a list"),
        (target, json!("all"), "must be a map, found \"all\""),
        (
            &format!("{target}/weight_layout"),
            json!("dense"),
            "must be \"compact_retained_experts\", found \"dense\"",
        ),
        (
            &format!("{target}/num_logical_experts"),
            json!(0),
            "must be a number of experts, found 0",
        ),
        (
            &format!("{target}/num_logical_experts"),
            json!(-5),
            "must be a number of experts, found -5",
        ),
        (&format!("{target}/shift"), json!(1), "is not known here"),
        (
            &format!("{target}/replacements"),
            json!([3]),
            "must be a map, found a list",
        ),
        (&replacement, json!("a"), "must be a map, found \"a\""),
        (
            &format!("{replacement}/format"),
            json!("linear-v1"),
            "must be \"constant-v1\", found \"linear-v1\"",
        ),
        (
            &format!("{replacement}/scale"),
            json!(2),
            "is not known here",
        ),
        (&format!("{replacement}/tensors"), json!({}), "is missing"),
        (
            &format!("{replacement}/tensors/bias"),
            json!("b"),
            "is not known here",
        ),
        (
            &format!("{replacement}/tensors/value"),
            json!(""),
            "must be a tensor name, found \"\"",
        ),
        (
            &format!("{replacement}/tensors/value"),
            json!(["a"]),
            "must be a tensor name, found a list",
        ),
    ] {
        let field = format!("{PATH}{}", pointer.replace('/', "."));
        let field = field
            .strip_suffix(".tensors")
            .filter(|_| reason == "is missing")
            .unwrap_or(&field);
        assert_says(spec(with(pointer, value)), &[field, reason]);
    }
}

#[test]
fn explicit_format_names_path_and_field_of_what_is_missing() {
    let target = "/targets/model.layers.1.mlp.experts";
    for pointer in [
        "/version".to_owned(),
        "/router_semantics".to_owned(),
        "/router_semantics/preserve_router_weights".to_owned(),
        "/router_semantics/preserve_logical_expert_ids".to_owned(),
        "/router_semantics/renormalize_after_substitution".to_owned(),
        "/targets".to_owned(),
        format!("{target}/num_logical_experts"),
        format!("{target}/weight_layout"),
        format!("{target}/replacements"),
        format!("{target}/replacements/3/format"),
        format!("{target}/replacements/3/tensors"),
        format!("{target}/replacements/3/tensors/value"),
    ] {
        let field = format!("`{PATH}{}`: is missing", pointer.replace('/', "."));
        assert_says(spec(lacking(&pointer)), &[&field]);
    }
}

#[test]
fn explicit_format_refuses_paths_that_are_no_experts_of_a_decoder_layer() {
    for path in [
        "model.mlp.experts",
        "model.layers.mlp.experts",
        "mtp.layers.1.mlp.experts",
        "model.layers.x.mlp.experts",
        "model.layers.01.mlp.experts",
        "model.layers.1",
        "",
        "model.layers.1.mlp",
        "model.layers.1.mlp.shared_experts",
        "model.layers.1.mlp.experts.3",
    ] {
        let field = format!("{PATH}.targets.{path}");
        assert_says(
            spec(explicit(json!({ path: target(&[(3, "a")]) }))),
            &[&field],
        );
    }
}

#[test]
fn explicit_format_refuses_two_paths_for_one_layer() {
    let second = "model.language_model.layers.1.mlp.experts";
    for (one, other) in [(vec![(3, "a")], vec![(4, "b")]), (vec![], vec![(4, "b")])] {
        let config = explicit(json!({
            "model.layers.1.mlp.experts": target(&one),
            second: target(&other),
        }));
        assert_says(
            spec(config),
            &[
                &format!("{PATH}.targets.{second}"),
                "layer 1",
                "`model.layers.1.mlp.experts`",
            ],
        );
    }
}

#[test]
fn explicit_format_refuses_experts_that_do_not_exist() {
    let path = "model.layers.1.mlp.experts";
    for (replacements, expected) in [
        (
            vec![(5, "a"), (7, "b"), (0, "c")],
            "names experts [5, 7], but num_logical_experts is 5",
        ),
        (
            vec![(0, "a"), (1, "a"), (2, "a"), (3, "a"), (4, "a")],
            "names all 5 experts of layer 1",
        ),
    ] {
        let config = explicit(json!({ path: target(&replacements) }));
        assert_says(spec(config), &[path, expected]);
    }
    for id in ["x", "-1", "03", "٣", "4294967296"] {
        let mut target = target(&[(3, "a")]);
        target["replacements"] =
            json!({ id: { "format": "constant-v1", "tensors": { "value": "a" } } });
        assert_says(
            spec(explicit(json!({ path: target }))),
            &[path, &format!("key {id:?} is not an expert id")],
        );
    }
}

#[test]
fn explicit_format_must_agree_with_the_model() -> Outcome {
    let path = "model.layers.1.mlp.experts";
    let mut other = target(&[(3, "a")]);
    other["num_logical_experts"] = json!(64);
    assert_says(
        Substituted::try_new(Model::whole(), &spec(explicit(json!({ path: other })))?),
        &[
            "layer 1",
            "[3]",
            "has 5 experts",
            "`model.layers.1.mlp.experts.num_logical_experts` is 64",
        ],
    );
    let elsewhere = "model.layers.1.block_sparse_moe.experts";
    let declared = spec(explicit(json!({ elsewhere: target(&[(3, "a")]) })))?;
    assert_says(
        Substituted::try_new(Model::whole(), &declared),
        &["layer 1", "[3]", path, elsewhere],
    );
    // Another spelling of the same module is the same module.
    let declared = spec(explicit(
        json!({ "model.language_model.layers.1.mlp.experts": target(&[(3, "a")]) }),
    ))?;
    Substituted::try_new(Model::whole(), &declared).map(|_| ())
}

#[test]
fn explicit_format_beside_another_transform_is_refused() {
    let mut config = explicit(json!({ "model.layers.1.mlp.experts": target(&[(3, "a")]) }));
    let transforms = &mut config["compression_config"]["transform_config"];
    transforms["config_groups"] = json!({});
    assert!(spec(config.clone()).is_ok());
    config["compression_config"]["transform_config"]["config_groups"] = json!({ "R1": {} });
    assert_says(
        spec(config),
        &["compression_config.transform_config.config_groups"],
    );
}
