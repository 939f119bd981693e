//! Exported checkpoints: what is in them, that they load, and that they compute what they should.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use locum::checkpoint::Checkpoint;
use locum::nn::DType;
use locum::prune::{Export, ExportOptions, Plan, Replacement, Statistics, Subject};
use locum::substitution::ConfigFormat;
use locum_tests::{
    ByExpert, EditedModel, PARITY, Reference, StoredTensor, cases, constants_of, contents,
    distance, fixture, full_logits, load, plan_of, statistics_with_means,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

const FORMATS: [ConfigFormat; 2] = [
    ConfigFormat::ApproximateExperts,
    ConfigFormat::ExpertSubstitution,
];

/// The fixtures that are unpruned, each with its pruned one, which another implementation ran.
fn pairs() -> impl Iterator<Item = (&'static str, String, f32)> {
    let fixtures = PARITY.iter().flat_map(|parity| {
        let fixtures = parity.fixtures.iter();
        fixtures.map(|name| (*name, parity.tolerance))
    });
    fixtures.filter_map(|(name, tolerance)| {
        let family = name.strip_suffix("/base")?;
        Some((name, format!("{family}/approx"), tolerance))
    })
}

fn options(format: ConfigFormat) -> ExportOptions {
    ExportOptions {
        format,
        ..ExportOptions::default()
    }
}

/// Exports to `out` below a directory.
fn export(
    subject: &Subject,
    plan: &Plan,
    statistics: &Statistics,
    options: &ExportOptions,
    directory: &TempDir,
    out: &str,
) -> PathBuf {
    let constants = Replacement::Mean
        .constants(subject, plan, Some(statistics))
        .unwrap();
    assert_eq!(constants.never_routed, []);
    let out = directory.path().join(out);
    let export = Export::new(subject, plan, &constants, options).unwrap();
    let mut written = 0;
    export
        .write(&out, false, &mut |bytes| written += bytes)
        .unwrap();
    assert_eq!(written, export.bytes_after());
    assert_eq!(Checkpoint::open(&out).unwrap().total_bytes(), written);
    out
}

/// Exports a model with constants of all the experts that have some in `means`.
fn export_means(
    model: &Path,
    means: &ByExpert<Vec<f32>>,
    format: ConfigFormat,
    directory: &TempDir,
    out: &str,
) -> PathBuf {
    let subject = Subject::open(model).unwrap();
    let plan = plan_of(&subject, |layer, expert| {
        means.contains_key(&(layer, expert))
    });
    let statistics = statistics_with_means(&subject, means);
    export(
        &subject,
        &plan,
        &statistics,
        &options(format),
        directory,
        out,
    )
}

/// Every tensor of a directory, its files checked against what the `safetensors` crate reads.
fn tensors(directory: &Path) -> BTreeMap<String, StoredTensor> {
    let mut tensors = BTreeMap::new();
    for (name, bytes) in contents(directory) {
        if !name.ends_with(".safetensors") {
            continue;
        }
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in file.tensors() {
            let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            let size = view.dtype().bitsize() / 8;
            assert!(start.is_multiple_of(size), "{name} is not aligned");
            let tensor = StoredTensor {
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            };
            assert!(tensors.insert(name, tensor).is_none());
        }
    }
    tensors
}

#[track_caller]
fn assert_same_tensors(found: &Path, expected: &Path) {
    let (found, mut expected) = (tensors(found), {
        let bytes = std::fs::read(expected.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            (
                name.to_owned(),
                (view.dtype(), view.shape().to_vec(), view.data().to_vec()),
            )
        });
        tensors.collect::<BTreeMap<_, _>>()
    });
    for (name, tensor) in found {
        let found = (tensor.dtype, tensor.shape, tensor.bytes);
        assert_eq!(expected.remove(&name), Some(found), "{name}");
    }
    assert_eq!(expected.keys().collect::<Vec<_>>(), Vec::<&String>::new());
}

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
fn constants_have_the_type_of_the_experts_and_are_rounded_once() {
    let mut model = EditedModel::of_fixture("olmoe/base");
    for tensor in model.tensors.values_mut() {
        *tensor = tensor.to_bf16();
    }
    model.config["torch_dtype"] = json!("bfloat16");
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("bf16");
    std::fs::create_dir(&source).unwrap();
    model.write_to(&source);
    // Between two neighbours of bf16, which are 2⁻⁷ apart: to the nearer one, a tie to the even one.
    let between = [
        1.0 + 0.3 / 128.0,
        1.0 + 0.7 / 128.0,
        1.0 + 0.5 / 128.0,
        1.0 + 1.5 / 128.0,
    ];
    let means = ByExpert::from([((0, 3), between.repeat(16))]);
    let out = export_means(&source, &means, FORMATS[0], &directory, "out");
    let constant = &tensors(&out)["model.layers.0.mlp.experts.3.approx_value"];
    let expected = [1.0f32, 1.0 + 1.0 / 128.0, 1.0, 1.0 + 2.0 / 128.0].repeat(16);
    assert_eq!(constant.widened().elements(), expected);
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

#[test]
fn shards_hold_what_they_may_and_their_index_names_them() {
    let means = constants_of("qwen2_moe/approx");
    let subject = Subject::open(fixture("qwen2_moe/base")).unwrap();
    let plan = plan_of(&subject, |layer, expert| {
        means.contains_key(&(layer, expert))
    });
    let statistics = statistics_with_means(&subject, &means);
    let directory = TempDir::new().unwrap();
    let whole = export(
        &subject,
        &plan,
        &statistics,
        &options(FORMATS[0]),
        &directory,
        "whole",
    );
    let mut counts = Vec::new();
    for limit in [1, 20_000, 100_000, 10_000_000] {
        let options = ExportOptions {
            max_shard_bytes: limit,
            ..options(FORMATS[0])
        };
        let out = export(
            &subject,
            &plan,
            &statistics,
            &options,
            &directory,
            &limit.to_string(),
        );
        assert_eq!(tensors(&out), tensors(&whole));
        let files = contents(&out);
        let shards: Vec<&String> = files
            .keys()
            .filter(|n| n.ends_with(".safetensors"))
            .collect();
        counts.push(shards.len());
        if shards.len() == 1 {
            assert_eq!(shards, ["model.safetensors"]);
            assert!(!files.contains_key("model.safetensors.index.json"));
            continue;
        }
        let index: Value = serde_json::from_slice(&files["model.safetensors.index.json"]).unwrap();
        let mut total = 0;
        for (number, shard) in shards.iter().enumerate() {
            assert_eq!(
                **shard,
                format!("model-{:05}-of-{:05}.safetensors", number + 1, shards.len())
            );
            let file = SafeTensors::deserialize(&files[*shard]).unwrap();
            let size: usize = file.iter().map(|(_, view)| view.data().len()).sum();
            assert!(
                size <= limit as usize || file.len() == 1,
                "{shard} holds {size}"
            );
            total += size;
            for name in file.names() {
                assert_eq!(index["weight_map"][name], json!(shard));
            }
        }
        assert_eq!(index["metadata"], json!({ "total_size": total }));
        assert_eq!(
            index["weight_map"].as_object().unwrap().len(),
            tensors(&whole).len()
        );
    }
    // Each tensor alone, some, few, one.
    assert_eq!(counts[0], tensors(&whole).len());
    assert!(
        counts[1] > counts[2] && counts[2] > 1 && counts[3] == 1,
        "{counts:?}"
    );
}

/// Names, types and shapes, and the configuration: as text, to be compared with one that a person has
/// looked at. `LOCUM_BLESS=1` writes it anew.
#[test]
fn exported_files_are_listed() {
    for (base, pruned, _) in pairs() {
        let family = base.trim_end_matches("/base");
        let means = constants_of(&pruned);
        let directory = TempDir::new().unwrap();
        let mut listing = String::new();
        for format in FORMATS {
            let out = export_means(&fixture(base), &means, format, &directory, format.key());
            let config = std::fs::read_to_string(out.join("config.json")).unwrap();
            let files: Vec<String> = contents(&out).into_keys().collect();
            listing += &format!("# {format}\n\nfiles: {}\n\n{config}\n", files.join(" "));
            for (name, tensor) in tensors(&out) {
                listing += &format!("{name} {} {:?}\n", tensor.dtype, tensor.shape);
            }
            listing.push('\n');
        }
        let path = fixture("pruned").join(format!("{family}.txt"));
        if std::env::var_os("LOCUM_BLESS").is_some() {
            std::fs::write(&path, &listing).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert!(
            listing == expected,
            "{}: differs, LOCUM_BLESS=1 shows how",
            path.display()
        );
    }
    assert_eq!(
        cases().filter(|case| case.name.ends_with("/base")).count(),
        10
    );
}
