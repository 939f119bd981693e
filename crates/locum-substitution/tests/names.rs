//! Tensor names: namespace, layer, module, expert — and what is none of them.

mod common;

use common::{
    Experts, Layer, Model, Outcome, PARTS, approximate, assert_says, checkpoint, constant, load,
    tensor, without,
};
use locum_substitution::name::{
    ExpertsName, LayerName, canonical, ends_in_approx_value, expert_and_part, parse_id,
};
use locum_substitution::{NamedTensor, ProcessWeightsAfterLoading, Substituted};
use proptest::prelude::*;
use serde_json::json;

fn experts_name(name: &str) -> Option<(u32, &str, Option<u32>, &str)> {
    ExpertsName::parse(name).map(|n| (n.layer, n.module, n.expert, n.part))
}

#[test]
fn name_is_layer_module_expert_and_part() {
    assert_eq!(
        experts_name("model.layers.3.mlp.experts.17.approx_value"),
        Some((3, "mlp.experts", Some(17), "approx_value"))
    );
    assert_eq!(
        experts_name("model.layers.0.mlp.experts.0.gate_proj.weight"),
        Some((0, "mlp.experts", Some(0), "gate_proj.weight"))
    );
    assert_eq!(
        experts_name("model.layers.60.mlp.experts.gate_up_proj"),
        Some((60, "mlp.experts", None, "gate_up_proj"))
    );
}

#[test]
fn multi_token_prediction_and_vision_are_no_decoder_layers() {
    for name in [
        "mtp.layers.0.mlp.experts.5.approx_value",
        "vision.layers.0.mlp.experts.5.approx_value",
        "model.visual.layers.0.mlp.experts.5.approx_value",
        "model.mtp.layers.0.mlp.experts.5.approx_value",
        "draft.model.layers.0.mlp.experts.5.approx_value",
        "model.layers.layers.0.mlp.experts.5.approx_value",
    ] {
        assert_eq!(LayerName::parse(name), None, "{name}");
        assert_eq!(experts_name(name), None, "{name}");
        assert_eq!(canonical(name), name);
    }
}

#[test]
fn three_nestings_name_the_text_stack() {
    for name in [
        "model.layers.3.mlp.experts.1.approx_value",
        "model.language_model.layers.3.mlp.experts.1.approx_value",
        "language_model.model.layers.3.mlp.experts.1.approx_value",
        "layers.3.mlp.experts.1.approx_value",
    ] {
        let parsed = experts_name(name);
        assert_eq!(
            parsed,
            Some((3, "mlp.experts", Some(1), "approx_value")),
            "{name}"
        );
        assert_eq!(canonical(name), "model.layers.3.mlp.experts.1.approx_value");
    }
    assert_eq!(
        canonical("model.language_model.norm.weight"),
        "model.norm.weight"
    );
    assert_eq!(canonical("language_model.lm_head.weight"), "lm_head.weight");
    // Not of a layer, so not known to be of the text stack.
    assert_eq!(canonical("layers.weight"), "layers.weight");
}

#[test]
fn name_nested_twice_is_left_alone() {
    for name in [
        "language_model.model.language_model.layers.3.mlp.experts.1.approx_value",
        "model.language_model.language_model.model.layers.3.mlp.experts.1.approx_value",
    ] {
        assert_eq!(canonical(name), name);
        assert_eq!(experts_name(name), None);
    }
}

#[test]
fn deepseek_v4_and_mixtral_names_are_read() {
    assert_eq!(
        experts_name("layers.12.ffn.experts.255.w1.weight"),
        Some((12, "ffn.experts", Some(255), "w1.weight"))
    );
    assert_eq!(
        experts_name("model.layers.7.block_sparse_moe.experts.3.w1.weight"),
        Some((7, "block_sparse_moe.experts", Some(3), "w1.weight"))
    );
}

#[test]
fn shared_experts_are_not_routed_experts() {
    assert_eq!(
        experts_name("model.layers.3.mlp.shared_experts.gate_proj.weight"),
        None
    );
    assert_eq!(
        experts_name("model.layers.3.mlp.shared_expert.0.gate_proj.weight"),
        None
    );
}

#[test]
fn what_should_be_an_id_and_is_none_confuses_nothing() {
    for id in [
        "٣",
        "3٣",
        "³",
        "Ⅷ",
        "007",
        "00",
        "4294967296",
        "18446744073709551617",
        "",
    ] {
        assert_eq!(parse_id(id), None, "{id}");
        let name = format!("model.layers.1.mlp.experts.{id}.approx_value");
        assert_eq!(experts_name(&name), None, "{name}");
        let name = format!("model.layers.{id}.mlp.experts.1.approx_value");
        assert_eq!(experts_name(&name), None, "{name}");
    }
    for id in ["-1", "+1", "1a", " 1", "1_0", "0x1", "1e0"] {
        assert_eq!(parse_id(id), None, "{id}");
        let name = format!("model.layers.1.mlp.experts.{id}.approx_value");
        let parsed = ExpertsName::parse(&name).expect("a packed tensor of an odd name");
        assert_eq!(parsed.expert, None, "{name}");
        assert!(!parsed.is_approx_value(), "{name}");
    }
    assert_eq!(parse_id("4294967295"), Some(u32::MAX));
    assert_eq!(parse_id("0"), Some(0));
}

#[test]
fn name_without_a_part_is_none() {
    for name in [
        "model.layers.1.mlp.experts",
        "model.layers.1.mlp.experts.",
        "model.layers.1.mlp.experts.3.",
        "model.layers.1.",
        "model.layers.1",
        "model.layers.",
        "",
    ] {
        assert_eq!(experts_name(name), None, "{name}");
    }
    // An id and nothing after it is a packed tensor of an odd name, not an expert.
    assert_eq!(
        experts_name("model.layers.1.mlp.experts.3"),
        Some((1, "mlp.experts", None, "3"))
    );
    assert_eq!(expert_and_part(""), None);
}

#[test]
fn approx_value_is_a_whole_segment() {
    assert!(ends_in_approx_value("a.approx_value"));
    assert!(!ends_in_approx_value("a_approx_value"));
    assert!(!ends_in_approx_value("approx_value"));
    assert!(!ends_in_approx_value("a.approx_value.scale"));
    let name = "model.layers.1.mlp.experts.3.approx_value.scale";
    assert!(
        !ExpertsName::parse(name)
            .expect("an expert")
            .is_approx_value()
    );
}

#[test]
fn names_of_ten_megabytes_are_read_in_no_time() -> Outcome {
    let digits = "1".repeat(10_000_000);
    let dots = ".".repeat(10_000_000);
    let experts = ".experts.4".repeat(1_000_000);
    let names = [
        format!("model.layers.{digits}.mlp.experts.3.approx_value"),
        format!("model.layers.1.mlp.experts.{digits}.approx_value"),
        format!(
            "model.layers.1.mlp.experts.{}.approx_value",
            "٣".repeat(5_000_000)
        ),
        format!("model.layers.1{dots}mlp.experts.3.approx_value"),
        format!("model.layers.1.mlp{experts}"),
        dots,
        digits,
    ];
    let mut model = Substituted::try_new(Model::whole(), &approximate(json!({"1": [3]})))?;
    let start = std::time::Instant::now();
    for name in &names {
        assert!(load(&mut model, [tensor(name, &[2], &[1.0, 2.0])]).is_err());
    }
    // Quadratic cost would take minutes.
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn two_spellings_of_one_tensor_in_one_stream_are_an_error() -> Outcome {
    let spec = approximate(json!({"1": [3]}));
    let twice = [
        (
            "model.layers.1.mlp.experts.3.approx_value",
            "model.language_model.layers.1.mlp.experts.3.approx_value",
        ),
        (
            "language_model.model.layers.1.mlp.experts.3.approx_value",
            "layers.1.mlp.experts.3.approx_value",
        ),
        ("model.norm.weight", "language_model.model.norm.weight"),
    ];
    for (first, second) in twice {
        let mut model = Substituted::try_new(Model::whole(), &spec)?;
        let values = [1.0, 2.0];
        assert_says(
            load(
                &mut model,
                [tensor(first, &[2], &values), tensor(second, &[2], &values)],
            ),
            &[&format!(
                "`{second}` comes twice, the first time as `{first}`"
            )],
        );
    }
    Ok(())
}

#[test]
fn checkpoint_of_a_multimodal_model_loads_into_its_text_model() -> Outcome {
    let spec = approximate(json!({"0": [2], "1": [3, 1]}));
    let mut plain = Substituted::try_new(Model::whole(), &spec)?;
    load(&mut plain, checkpoint(&[2], &[1, 3]))?;
    for nesting in ["model.language_model.", "language_model.model."] {
        let mut nested = Substituted::try_new(Model::whole(), &spec)?;
        let tensors = checkpoint(&[2], &[1, 3]).into_iter().map(|tensor| {
            let (mut info, bytes) = tensor.into_parts();
            info.name = info.name.replacen("model.", nesting, 1);
            NamedTensor::new(info, bytes).expect("the same tensor")
        });
        load(&mut nested, tensors)?;
        assert_eq!(*nested, *plain);
    }
    assert_eq!(plain.experts(1).constant(1), [103.0, -103.0]);
    Ok(())
}

#[test]
fn layer_whose_experts_are_outside_the_text_stack_loads_by_its_own_prefix() -> Outcome {
    // A draft that keeps multi-token prediction in a namespace of its own.
    let mut draft = Model::stage(3..4);
    draft.layers = vec![Layer::Moe(Experts::at(
        3,
        "mtp.layers.0.mlp.experts".into(),
        2,
    ))];
    let mut draft = Substituted::try_new(draft, &approximate(json!({"3": [1], "0": [1]})))?;
    let mtp = |end: &str| format!("mtp.layers.0.mlp.experts.{end}");
    let mut tensors: Vec<_> = PARTS
        .iter()
        .map(|part| {
            let shape = if part.starts_with("down") {
                [2, 3]
            } else {
                [3, 2]
            };
            tensor(&mtp(&format!("0.{part}")), &shape, &[1.0; 6])
        })
        .collect();
    tensors.push(tensor(&mtp("1.approx_value"), &[2], &[3.0, 4.0]));
    tensors.push(constant(0, 1));
    load(&mut draft, tensors)?;
    assert_eq!(draft.experts(3).constant(0), [3.0, 4.0]);
    draft.process_weights_after_loading()
}

#[test]
fn layer_below_the_prefix_of_another_is_told_apart() -> Outcome {
    let mut model = Model::whole();
    let inner = "model.layers.0.mlp.experts.group.experts";
    model.layers[1] = Layer::Moe(Experts::at(1, inner.into(), 5));
    let mut model = Substituted::try_new(model, &approximate(json!({"0": [2], "1": [3]})))?;
    let name = format!("{inner}.3.approx_value");
    load(&mut model, [tensor(&name, &[2], &[1.0, 2.0])])?;
    assert_eq!(model.experts(1).constant(0), [1.0, 2.0]);
    assert_eq!(model.experts(0).constants, [None]);
    Ok(())
}

#[test]
fn constant_of_mtp_layer_0_is_not_of_decoder_layer_0() -> Outcome {
    let mut model = Substituted::try_new(Model::whole(), &approximate(json!({"0": [2]})))?;
    assert_says(
        load(
            &mut model,
            [tensor(
                "mtp.layers.0.mlp.experts.2.approx_value",
                &[2],
                &[1.0, 2.0],
            )],
        ),
        &[
            "mtp.layers.0.mlp.experts.2.approx_value",
            "1 tensor is unexpected",
        ],
    );
    assert_eq!(model.experts(0).constants, [None]);
    Ok(())
}

#[test]
fn constant_of_another_module_of_the_layer_is_an_error() -> Outcome {
    let mut model = Substituted::try_new(Model::whole(), &approximate(json!({"1": [3]})))?;
    assert_says(
        load(
            &mut model,
            [tensor(
                "model.layers.1.ffn.experts.3.approx_value",
                &[2],
                &[1.0, 2.0],
            )],
        ),
        &[
            "model.layers.1.ffn.experts.3.approx_value",
            "ffn.experts",
            "layer 1",
            "model.layers.1.mlp.experts",
        ],
    );
    Ok(())
}

#[test]
fn odd_ids_in_a_checkpoint_are_unexpected_tensors() -> Outcome {
    let complete = checkpoint(&[], &[1, 3]);
    for id in ["٣", "007", "03", "4294967299", "-1", "+3"] {
        let mut model = Substituted::try_new(Model::whole(), &approximate(json!({"1": [3, 1]})))?;
        let name = format!("model.layers.1.mlp.experts.{id}.approx_value");
        let mut tensors = without(complete.clone(), "1.mlp.experts.3.approx_value");
        tensors.push(tensor(&name, &[2], &[1.0, 2.0]));
        assert_says(
            load(&mut model, tensors),
            &[&name, "1 tensor is unexpected"],
        );
    }
    Ok(())
}

/// Pieces that names are made of, and pieces that only look like them.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(vec![
            "model", "language_model", "layers", "mlp", "experts", "mtp", "vision", "ffn",
            "approx_value", "gate_proj", "weight", "gate_up_proj", "lm_head", "",
        ])
        .prop_map(String::from),
        3 => any::<u64>().prop_map(|n| n.to_string()),
        3 => (0u32..5).prop_map(|n| n.to_string()),
        1 => "[0-9٠-٩०-९０-９]{1,12}",
        1 => "\\PC{0,12}",
    ]
}

proptest! {
    #![proptest_config(common::cases(4096))]

    #[test]
    fn a_name_that_parses_is_the_name_put_together_again(
        pieces in prop::collection::vec(piece(), 0..10),
    ) {
        let name = pieces.join(".");
        let stacks = [
            "model.layers",
            "model.language_model.layers",
            "language_model.model.layers",
            "layers",
        ];
        let is_name = |rest: String| stacks.iter().any(|s| name == format!("{s}.{rest}"));
        if let Some(LayerName { layer, rest }) = LayerName::parse(&name) {
            prop_assert!(is_name([layer.to_string().as_str(), rest].join(".")));
        }
        if let Some(parsed) = ExpertsName::parse(&name) {
            let ExpertsName { layer, module, expert, part } = parsed;
            let (layer, expert) = (layer.to_string(), expert.map(|id| id.to_string()));
            let whole: Vec<&str> = [Some(layer.as_str()), Some(module), expert.as_deref(), Some(part)]
                .into_iter()
                .flatten()
                .collect();
            prop_assert!(is_name(whole.join(".")));
            prop_assert!(module == "experts" || module.ends_with(".experts"));
        }
        let once = canonical(&name);
        prop_assert_eq!(canonical(&once), once.as_ref());
    }

    #[test]
    fn an_id_that_parses_is_the_text_printed_again(text in "[+-]?[0-9٠-٩]{0,12}") {
        if let Some(id) = parse_id(&text) {
            prop_assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn any_name_loads_or_is_refused_without_a_panic(name in "\\PC{0,40}") {
        let spec = approximate(json!({"1": [3]}));
        let mut model = Substituted::try_new(Model::whole(), &spec)?;
        load(&mut model, [tensor(&name, &[2], &[1.0, 2.0])]).ok();
        prop_assert_eq!(&model.experts(1).constants, &vec![None]);
    }
}
