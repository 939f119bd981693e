//! Exported checkpoints load, and compute what they should, whatever they were made from.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use locum::nn::DType;
use locum::prune::Subject;
use locum::substitution::ConfigFormat;
use locum_tests::{
    ByExpert, EditedModel, FORMATS, Reference, StoredTensor, assert_same_tensors, constants_of,
    distance, export_means, fixture, full_logits, load, pairs, tensors,
};
use serde_json::{Value, json};
use tempfile::TempDir;

#[test]
fn every_architecture_becomes_what_another_implementation_pruned_and_ran() {
    let mut families = 0;
    for (base, pruned, tolerance) in pairs() {
        let directory = TempDir::new().unwrap();
        let reference = Reference::open(&fixture(&pruned));
        let ids = reference.rows("input_ids");
        let (_, expected) = reference.f32("substituted_logits");
        let means = constants_of(&pruned);
        let logits = FORMATS.map(|format| {
            let out = export_means(&fixture(base), &means, format, &directory, format.key());
            assert_same_tensors(&out, &fixture(&pruned));
            full_logits(&load(&out, DType::F32), &ids)
        });
        assert!(logits[0] == logits[1], "{base}: the formats differ");
        let off = distance(&logits[0], &expected);
        assert!(off <= tolerance, "{base}: off by {off}");
        let declared = |config: &Path| {
            let config: Value =
                serde_json::from_slice(&std::fs::read(config.join("config.json")).unwrap())
                    .unwrap();
            config["approximate_experts"].clone()
        };
        let out = directory.path().join(FORMATS[0].key());
        assert_eq!(declared(&out), declared(&fixture(&pruned)), "{base}");
        families += 1;
    }
    assert_eq!(families, 10);
}

#[test]
fn explicit_declaration_of_another_producer_is_met() {
    for name in ["olmoe", "deepseek_v3"] {
        let reference = Reference::open(&fixture(&format!("{name}/explicit")));
        let directory = TempDir::new().unwrap();
        // Reading it and writing it anew, with one expert more.
        let source = fixture(&format!("{name}/explicit"));
        let subject = Subject::open(&source).unwrap();
        let layer = subject.layers()[1].info.layer;
        let more = subject.layers()[1].table.retained()[0];
        let hidden = subject.layers()[1].info.hidden_size;
        let means = ByExpert::from([((layer, more), vec![0.25f32; hidden])]);
        let logits = FORMATS.map(|format| {
            let out = export_means(&source, &means, format, &directory, format.key());
            full_logits(&load(&out, DType::F32), &reference.rows("input_ids"))
        });
        assert!(logits[0] == logits[1], "{name}: the formats differ");

        // The constants are those of the source, which has one for two experts.
        let config = |format: ConfigFormat| {
            let path = directory.path().join(format.key()).join("config.json");
            let config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            config
        };
        let explicit = config(ConfigFormat::ExpertSubstitution);
        let targets =
            &explicit["compression_config"]["transform_config"]["expert_substitution"]["targets"];
        let names: Vec<&Value> = targets
            .as_object()
            .unwrap()
            .values()
            .flat_map(|target| target["replacements"].as_object().unwrap().values())
            .map(|replacement| &replacement["tensors"]["value"])
            .collect();
        let distinct: HashSet<&str> = names.iter().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(
            distinct.len(),
            names.len() - 1,
            "{name}: two share a tensor"
        );
        // What others wrote beside the declaration stays.
        assert_eq!(
            explicit["compression_config"]["producer"]["name"],
            "gen_reference.py"
        );
        let approximate = config(ConfigFormat::ApproximateExperts);
        assert!(
            approximate["compression_config"]
                .get("transform_config")
                .is_none()
        );
        let written = tensors(&directory.path().join(FORMATS[0].key()));
        let constants = written
            .keys()
            .filter(|name| name.ends_with(".approx_value"));
        assert_eq!(constants.count(), names.len(), "{name}: each has its own");
    }
}

#[test]
fn pruning_in_two_steps_is_pruning_in_one() {
    for (base, pruned) in [
        ("olmoe/base", "olmoe/approx"),
        ("deepseek_v4/base", "deepseek_v4/approx"),
    ] {
        let means = constants_of(pruned);
        let (odd, even): (ByExpert<_>, ByExpert<_>) = means
            .into_iter()
            .partition(|((_, expert), _)| expert % 2 == 1);
        for formats in [
            [FORMATS[0], FORMATS[1]],
            [FORMATS[1], FORMATS[0]],
            [FORMATS[1]; 2],
        ] {
            let directory = TempDir::new().unwrap();
            let first = export_means(&fixture(base), &odd, formats[0], &directory, "first");
            let second = export_means(&first, &even, formats[1], &directory, "second");
            assert_same_tensors(&second, &fixture(pruned));
            let reference = Reference::open(&fixture(pruned));
            let ids = reference.rows("input_ids");
            let found = full_logits(&load(&second, DType::F32), &ids);
            let expected = full_logits(&load(&fixture(pruned), DType::F32), &ids);
            assert!(found == expected, "{base}: {formats:?}");
        }
    }
}

/// Packs the experts of an unpruned model of gate, up and down projections.
fn packed(model: &EditedModel) -> EditedModel {
    let mut packed = model.clone();
    let mut rows: BTreeMap<String, BTreeMap<u32, Vec<StoredTensor>>> = BTreeMap::new();
    for (part, into) in [
        ("gate_proj.weight", "gate_up_proj"),
        ("up_proj.weight", "gate_up_proj"),
        ("down_proj.weight", "down_proj"),
    ] {
        for (name, tensor) in &model.tensors {
            let Some((prefix, rest)) = name.split_once(".experts.") else {
                continue;
            };
            let (expert, found) = rest.split_once('.').unwrap();
            if found == part {
                let rows = rows.entry(format!("{prefix}.experts.{into}")).or_default();
                rows.entry(expert.parse().unwrap())
                    .or_default()
                    .push(tensor.clone());
                packed.tensors.remove(name);
            }
        }
    }
    for (name, experts) in rows {
        let example = &experts[&0];
        let shape = vec![
            experts.len(),
            example.len() * example[0].shape[0],
            example[0].shape[1],
        ];
        let bytes = experts
            .values()
            .flatten()
            .flat_map(|tensor| tensor.bytes.clone());
        let tensor = StoredTensor {
            shape,
            bytes: bytes.collect(),
            dtype: example[0].dtype,
        };
        packed.tensors.insert(name, tensor);
    }
    packed
}

#[test]
fn packed_experts_lose_the_rows_of_constants() {
    let means = constants_of("olmoe/approx");
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("packed");
    std::fs::create_dir(&source).unwrap();
    packed(&EditedModel::of_fixture("olmoe/base")).write_to(&source);
    let (first, then): (ByExpert<_>, ByExpert<_>) = means
        .iter()
        .map(|(key, mean)| (*key, mean.clone()))
        .partition(|((_, e), _)| *e < 2);
    let ids = Reference::open(&fixture("olmoe/approx")).rows("input_ids");
    let expected = full_logits(&load(&fixture("olmoe/approx"), DType::F32), &ids);
    for format in FORMATS {
        let out = export_means(&source, &means, format, &directory, format.key());
        let shape = |name: &str| tensors(&out)[name].shape.clone();
        // Layer 1 keeps 3 of 8 experts, of 48 by 64.
        assert_eq!(
            shape("model.layers.1.mlp.experts.gate_up_proj"),
            [3, 96, 64]
        );
        assert_eq!(shape("model.layers.1.mlp.experts.down_proj"), [3, 64, 48]);
        assert!(full_logits(&load(&out, DType::F32), &ids) == expected);
        // From rows of retained experts only, too.
        let once = export_means(&source, &first, format, &directory, "once");
        let twice = export_means(&once, &then, format, &directory, "twice");
        assert_eq!(tensors(&twice), tensors(&out));
        assert!(full_logits(&load(&twice, DType::F32), &ids) == expected);
        std::fs::remove_dir_all(once).unwrap();
        std::fs::remove_dir_all(twice).unwrap();
    }
}

#[test]
fn nested_text_model_keeps_its_spelling() {
    let means = constants_of("olmoe/approx");
    let mut model = EditedModel::of_fixture("olmoe/base");
    model.config = json!({
        "architectures": ["OlmoeForCausalLM"],
        "text_config": model.config,
        "model_type": "olmoe",
    });
    model.tensors = model
        .tensors
        .into_iter()
        .map(|(name, tensor)| match name.strip_prefix("model.") {
            Some(rest) => (format!("model.language_model.{rest}"), tensor),
            None => (name, tensor),
        })
        .collect();
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("nested");
    std::fs::create_dir(&source).unwrap();
    model.write_to(&source);
    let ids = Reference::open(&fixture("olmoe/approx")).rows("input_ids");
    let expected = full_logits(&load(&fixture("olmoe/approx"), DType::F32), &ids);
    for format in FORMATS {
        let out = export_means(&source, &means, format, &directory, format.key());
        assert!(full_logits(&load(&out, DType::F32), &ids) == expected);
        let written = tensors(&out);
        assert!(written.contains_key("model.language_model.layers.0.mlp.experts.0.approx_value"));
        let config = std::fs::read(out.join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        // Where each is looked for first: in the text model's configuration, and at the top.
        match format {
            ConfigFormat::ApproximateExperts => {
                assert_eq!(
                    config["text_config"]["approximate_experts"]["2"],
                    json!([2, 6])
                );
                assert!(config.get("approximate_experts").is_none());
            }
            ConfigFormat::ExpertSubstitution => {
                let targets = &config["compression_config"]["transform_config"]["expert_substitution"]
                    ["targets"];
                assert!(
                    targets
                        .get("model.language_model.layers.0.mlp.experts")
                        .is_some()
                );
            }
        }
        // From one format to the other, nothing of the first is left.
        for again in FORMATS {
            let means = ByExpert::from([((0, 1), vec![0.5; 64])]);
            let again = export_means(&out, &means, again, &directory, "again");
            let again_logits = full_logits(&load(&again, DType::F32), &ids);
            assert!(again_logits != expected);
            std::fs::remove_dir_all(again).unwrap();
        }
    }
}

#[test]
fn layers_of_multi_token_prediction_stay_as_they_are() {
    let mut model = EditedModel::of_fixture("deepseek_v3/base");
    model.config["num_nextn_predict_layers"] = json!(1);
    model.config["approximate_experts"] = json!({ "3": [0, 2] });
    let some = model.tensors["model.norm.weight"].clone();
    let kept = [
        "model.layers.3.mlp.experts.1.up_proj.weight",
        "model.layers.3.mlp.experts.0.approx_value",
        "model.layers.3.mlp.experts.2.approx_value",
    ];
    for name in kept {
        model.tensors.insert(name.into(), some.clone());
    }
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("mtp");
    std::fs::create_dir(&source).unwrap();
    model.write_to(&source);
    let means = constants_of("deepseek_v3/approx");
    let ids = Reference::open(&fixture("deepseek_v3/approx")).rows("input_ids");
    let expected = full_logits(&load(&fixture("deepseek_v3/approx"), DType::F32), &ids);
    let mut source = source;
    for (step, format) in [FORMATS[0], FORMATS[1], FORMATS[0]].into_iter().enumerate() {
        let means: ByExpert<_> = means
            .iter()
            .filter(|((_, expert), _)| (*expert as usize + step).is_multiple_of(3))
            .map(|(key, mean)| (*key, mean.clone()))
            .collect();
        source = export_means(&source, &means, format, &directory, &step.to_string());
        let written = tensors(&source);
        for name in kept {
            assert_eq!(written[name], some, "{name}");
        }
    }
    assert!(full_logits(&load(&source, DType::F32), &ids) == expected);
}
