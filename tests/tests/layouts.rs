//! The same weights in every form that checkpoints have are the same model.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use locum::models::{LoadOptions, Model, ModelFiles};
use locum_tests::{EditedModel, Reference, StoredTensor, fixture, full_logits};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

/// What a checkpoint calls an expert's projections.
struct Names {
    gate: &'static str,
    up: &'static str,
    down: &'static str,
}

const PROJ: Names = Names {
    gate: "gate_proj.weight",
    up: "up_proj.weight",
    down: "down_proj.weight",
};
const W123: Names = Names {
    gate: "w1.weight",
    up: "w3.weight",
    down: "w2.weight",
};

/// How experts are stored.
#[derive(Clone, Copy, Debug)]
enum Experts {
    /// Tensor by tensor.
    OneByOne,
    /// Packed, with rows for substituted experts that hold NaN.
    PackedAll,
    /// Packed, retained experts only.
    PackedRetained,
}

/// How the output head is stored.
#[derive(Clone, Copy, Debug)]
enum Head {
    Untied,
    /// Tied, and no tensor of its own.
    Tied,
    /// Tied, with a tensor that is left over.
    TiedWithLeftover,
}

/// What a checkpoint calls its output head; that and its embedding.
fn head_and_embedding(model: &EditedModel) -> [&'static str; 2] {
    if model.tensors.contains_key("head.weight") {
        ["head.weight", "embed.weight"]
    } else {
        ["lm_head.weight", "model.embed_tokens.weight"]
    }
}

/// The tensors that are weights, and not ids.
fn weights(model: &mut EditedModel) -> impl Iterator<Item = &mut StoredTensor> {
    let tensors = model.tensors.values_mut();
    tensors.filter(|tensor| tensor.dtype == Dtype::F32)
}

/// A fixture whose head is its embedding, and whose weights bf16 and f16 both hold exactly.
fn rounded(name: &str) -> EditedModel {
    let mut model = EditedModel::of_fixture(name);
    for tensor in weights(&mut model) {
        let exact = tensor.elements().into_iter().map(|element| {
            let rounded = bf16::from_f32(element).to_f32();
            // Too small for f16: zero in both.
            if f16::from_f32(rounded).to_f32() == rounded {
                rounded
            } else {
                0.0
            }
        });
        *tensor = tensor.with_elements(exact.collect::<Vec<_>>());
    }
    let [head, embedding] = head_and_embedding(&model);
    let embedding = model.tensors[embedding].clone();
    model.tensors.insert(head.into(), embedding);
    model
}

fn in_dtype(tensor: &StoredTensor, dtype: Dtype) -> StoredTensor {
    let narrow = |element: f32| match dtype {
        Dtype::BF16 => bf16::from_f32(element).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(element).to_le_bytes().to_vec(),
        _ => element.to_le_bytes().to_vec(),
    };
    StoredTensor {
        dtype,
        shape: tensor.shape.clone(),
        bytes: tensor.elements().into_iter().flat_map(narrow).collect(),
    }
}

/// Packs the experts of every layer.
fn packed(model: &mut EditedModel, names: &Names, all: bool) {
    // Prefix of a layer's experts, to expert, to part.
    let mut layers: BTreeMap<String, BTreeMap<usize, BTreeMap<String, StoredTensor>>> =
        BTreeMap::new();
    model.tensors.retain(|name, tensor| {
        let Some((prefix, rest)) = name.split_once(".experts.") else {
            return true;
        };
        let (expert, part) = rest.split_once('.').unwrap();
        if part == "approx_value" {
            return true;
        }
        let experts = layers.entry(format!("{prefix}.experts")).or_default();
        let parts = experts.entry(expert.parse().unwrap()).or_default();
        parts.insert(part.into(), tensor.clone());
        false
    });
    for (prefix, experts) in layers {
        let example = experts.values().next().unwrap().clone();
        let ids: Vec<usize> = if all {
            (0..8).collect()
        } else {
            experts.keys().copied().collect()
        };
        for (packed, parts) in [
            ("gate_up_proj", vec![names.gate, names.up]),
            ("down_proj", vec![names.down]),
        ] {
            let mut elements = Vec::new();
            for id in &ids {
                for part in &parts {
                    match experts.get(id) {
                        Some(expert) => elements.extend(expert[*part].elements()),
                        None => elements.extend(example[*part].elements().iter().map(|_| f32::NAN)),
                    }
                }
            }
            let [rows, columns] = example[parts[0]].shape[..] else {
                panic!("an expert's part is a matrix");
            };
            let tensor = StoredTensor {
                shape: vec![ids.len(), parts.len() * rows, columns],
                ..example[parts[0]].clone()
            };
            let name = format!("{prefix}.{packed}");
            model.tensors.insert(name, tensor.with_elements(elements));
        }
    }
}

/// Writes a model in shards of about equal numbers of tensors, with their index.
fn write_shards(model: &EditedModel, directory: &Path, shards: usize) {
    std::fs::write(
        directory.join("config.json"),
        serde_json::to_vec(&model.config).unwrap(),
    )
    .unwrap();
    let mut map = serde_json::Map::new();
    for shard in 0..shards {
        let file = format!("model-{:05}-of-{shards:05}.safetensors", shard + 1);
        let tensors = model.tensors.iter().enumerate();
        let tensors = tensors.filter(|(index, _)| index % shards == shard);
        let views = tensors.map(|(_, (name, tensor))| {
            map.insert(name.clone(), json!(file));
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
            (name.as_str(), view.unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        std::fs::write(directory.join(&file), bytes).unwrap();
    }
    let index = serde_json::to_vec(&json!({ "weight_map": map })).unwrap();
    std::fs::write(directory.join("model.safetensors.index.json"), index).unwrap();
}

fn loaded(model: &EditedModel, shards: usize) -> Model {
    let directory = tempfile::TempDir::new().unwrap();
    if shards == 1 {
        model.write_to(directory.path());
    } else {
        write_shards(model, directory.path(), shards);
    }
    let files = ModelFiles::open(directory.path()).unwrap();
    let mut model = Model::plan(&files, &LoadOptions::default()).unwrap();
    model.load(|_| {}).unwrap();
    model
}

#[test]
fn every_form_of_the_same_weights_is_the_same_model() {
    for (name, names) in [
        ("olmoe/approx", PROJ),
        ("qwen2_moe/approx", PROJ),
        ("mixtral/base", W123),
        ("deepseek_v3/explicit", PROJ),
        ("deepseek_v4/approx", W123),
    ] {
        let ids = Reference::open(&fixture(name)).rows("input_ids");
        let original = rounded(name);
        let expected = full_logits(&loaded(&original, 1), &ids);
        for experts in [
            Experts::OneByOne,
            Experts::PackedAll,
            Experts::PackedRetained,
        ] {
            for head in [Head::Untied, Head::Tied, Head::TiedWithLeftover] {
                for (dtype, torch) in [
                    (Dtype::F32, "float32"),
                    (Dtype::F16, "float16"),
                    (Dtype::BF16, "bfloat16"),
                ] {
                    let mut model = original.clone();
                    match experts {
                        Experts::OneByOne => {}
                        Experts::PackedAll => packed(&mut model, &names, true),
                        Experts::PackedRetained => packed(&mut model, &names, false),
                    }
                    if !matches!(head, Head::Untied) {
                        model.config["tie_word_embeddings"] = json!(true);
                    }
                    if matches!(head, Head::Tied) {
                        let [head, _] = head_and_embedding(&model);
                        model.tensors.remove(head);
                    }
                    for tensor in weights(&mut model) {
                        *tensor = in_dtype(tensor, dtype);
                    }
                    model.config["torch_dtype"] = json!(torch);
                    for shards in [1, 3] {
                        let found = full_logits(&loaded(&model, shards), &ids);
                        assert!(
                            found == expected,
                            "{name}: {experts:?}, {head:?}, {dtype:?}, {shards} files"
                        );
                    }
                }
            }
        }
    }
}
