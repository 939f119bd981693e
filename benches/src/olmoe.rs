//! A checkpoint of OLMoE-1B-7B's shape with few layers and random weights.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use half::bf16;

/// The size of a token.
pub const HIDDEN: usize = 2048;
/// The size of an expert between its projections.
pub const INTERMEDIATE: usize = 1024;
/// Experts per layer.
pub const EXPERTS: usize = 64;
/// Experts per token.
pub const TOP_K: usize = 8;
/// Number of tokens.
pub const VOCABULARY: usize = 50304;
/// Decoder layers; the published model has 16.
pub const LAYERS: usize = 4;

/// Elements of one expert.
pub const EXPERT: usize = 3 * HIDDEN * INTERMEDIATE;
/// Elements of the matrices that every token goes through.
pub const COMMON: usize = LAYERS * (4 * HIDDEN * HIDDEN + EXPERTS * HIDDEN) + VOCABULARY * HIDDEN;

/// Bytes of the weights that one token needs, of which `routes` lead to experts in each layer.
#[must_use]
pub fn active_bytes(routes: usize) -> usize {
    2 * (COMMON + LAYERS * routes * EXPERT)
}

/// Operations for some tokens' matrices; the head is computed for the last token only.
#[must_use]
pub fn operations(tokens: usize) -> usize {
    let of_each = LAYERS * (4 * HIDDEN * HIDDEN + EXPERTS * HIDDEN + TOP_K * EXPERT);
    2 * (tokens * of_each + VOCABULARY * HIDDEN)
}

/// Writes the checkpoint into `directory`, unless it is there.
///
/// # Errors
///
/// What the file system says.
pub fn write(directory: &Path) -> io::Result<()> {
    if directory.join("config.json").exists() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    let layers = |layers: std::ops::Range<usize>| layers.flat_map(layer_tensors);
    let mut first = vec![Tensor::matrix(
        "model.embed_tokens.weight",
        VOCABULARY,
        HIDDEN,
    )];
    first.extend(layers(0..LAYERS / 2));
    let mut second: Vec<Tensor> = layers(LAYERS / 2..LAYERS).collect();
    second.push(Tensor::norm("model.norm.weight".into()));
    second.push(Tensor::matrix("lm_head.weight", VOCABULARY, HIDDEN));
    write_shards(directory, &[(shard(1), first), (shard(2), second)], &[])?;
    // Last: with it, the directory is complete.
    fs::write(directory.join("config.json"), config(&[]))
}

/// Writes a checkpoint beside it in which the first `substituted` experts of every layer are
/// constants; the shards are links to the other's, so that it takes no room. Their tensors of the
/// substituted experts are leftovers, which no loader reads.
///
/// # Errors
///
/// What the file system says.
pub fn write_substituted(directory: &Path, of: &Path, substituted: usize) -> io::Result<()> {
    if directory.join("config.json").exists() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    let mut names = Vec::new();
    for number in [1, 2] {
        let (from, to) = (of.join(shard(number)), directory.join(shard(number)));
        if !to.exists() {
            fs::hard_link(from, to)?;
        }
    }
    let index: serde_json::Value =
        serde_json::from_slice(&fs::read(of.join("model.safetensors.index.json"))?)?;
    for (name, file) in index["weight_map"].as_object().into_iter().flatten() {
        names.push((name.clone(), file.as_str().unwrap_or_default().to_owned()));
    }
    let ids: Vec<usize> = (0..substituted).collect();
    let constants = (0..LAYERS)
        .flat_map(|layer| {
            ids.iter().map(move |expert| {
                Tensor::vector(format!(
                    "model.layers.{layer}.mlp.experts.{expert}.approx_value"
                ))
            })
        })
        .collect();
    write_shards(directory, &[(shard(3), constants)], &names)?;
    fs::write(directory.join("config.json"), config(&ids))
}

fn shard(number: usize) -> String {
    format!("model-{number:05}.safetensors")
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    norm: bool,
}

impl Tensor {
    fn matrix(name: impl Into<String>, rows: usize, columns: usize) -> Self {
        Self {
            name: name.into(),
            shape: vec![rows, columns],
            norm: false,
        }
    }

    fn vector(name: String) -> Self {
        Self {
            name,
            shape: vec![HIDDEN],
            norm: false,
        }
    }

    fn norm(name: String) -> Self {
        Self {
            norm: true,
            ..Self::vector(name)
        }
    }

    fn bytes(&self) -> usize {
        2 * self.shape.iter().product::<usize>()
    }
}

fn layer_tensors(layer: usize) -> Vec<Tensor> {
    let at = |name: &str| format!("model.layers.{layer}.{name}.weight");
    let mut tensors = vec![
        Tensor::norm(at("input_layernorm")),
        Tensor::norm(at("post_attention_layernorm")),
        Tensor::norm(at("self_attn.q_norm")),
        Tensor::norm(at("self_attn.k_norm")),
        Tensor::matrix(at("mlp.gate"), EXPERTS, HIDDEN),
    ];
    for part in ["q_proj", "k_proj", "v_proj", "o_proj"] {
        tensors.push(Tensor::matrix(
            at(&format!("self_attn.{part}")),
            HIDDEN,
            HIDDEN,
        ));
    }
    for expert in 0..EXPERTS {
        for (part, rows, columns) in [
            ("gate_proj", INTERMEDIATE, HIDDEN),
            ("up_proj", INTERMEDIATE, HIDDEN),
            ("down_proj", HIDDEN, INTERMEDIATE),
        ] {
            let name = at(&format!("mlp.experts.{expert}.{part}"));
            tensors.push(Tensor::matrix(name, rows, columns));
        }
    }
    tensors
}

fn write_shards(
    directory: &Path,
    shards: &[(String, Vec<Tensor>)],
    others: &[(String, String)],
) -> io::Result<()> {
    let pool = random_pool();
    let ones = [bf16::ONE; HIDDEN].map(bf16::to_le_bytes).concat();
    let mut weight_map: serde_json::Map<String, serde_json::Value> = others
        .iter()
        .map(|(name, file)| (name.clone(), file.as_str().into()))
        .collect();
    let mut start = 0;
    for (file, tensors) in shards {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for tensor in tensors {
            let offsets = [end, end + tensor.bytes()];
            end = offsets[1];
            header.insert(
                tensor.name.clone(),
                serde_json::json!({"dtype": "BF16", "shape": tensor.shape, "data_offsets": offsets}),
            );
            weight_map.insert(tensor.name.clone(), file.as_str().into());
        }
        let mut header = serde_json::to_vec(&header)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut out = BufWriter::with_capacity(1 << 20, File::create(directory.join(file))?);
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        for tensor in tensors {
            let mut left = tensor.bytes();
            if tensor.norm {
                out.write_all(&ones)?;
                continue;
            }
            while left > 0 {
                start = (start + 54_321 * 2) % pool.len();
                let part = left.min(pool.len() - start);
                out.write_all(&pool[start..start + part])?;
                start += part;
                left -= part;
            }
        }
        out.flush()?;
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
    fs::write(
        directory.join("model.safetensors.index.json"),
        serde_json::to_vec(&index)?,
    )
}

/// Weights with a standard deviation of about 0.02, as initialised models have.
fn random_pool() -> Vec<u8> {
    let mut state = 1u32;
    (0..(16 << 20) + 3)
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            bf16::from_f32(value * 0.07).to_le_bytes()
        })
        .collect()
}

fn config(substituted: &[usize]) -> String {
    let mut config = serde_json::json!({
        "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_experts": EXPERTS,
        "num_experts_per_tok": TOP_K, "num_hidden_layers": LAYERS, "num_attention_heads": 16,
        "num_key_value_heads": 16, "max_position_embeddings": 4096, "norm_topk_prob": false,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "vocab_size": VOCABULARY,
    });
    if !substituted.is_empty() {
        let layers = (0..LAYERS).map(|layer| (layer.to_string(), serde_json::json!(substituted)));
        config["approximate_experts"] = layers.collect::<serde_json::Map<_, _>>().into();
    }
    config.to_string()
}

/// Where the suites keep it.
#[must_use]
pub fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/tmp")
        .join(name)
}
