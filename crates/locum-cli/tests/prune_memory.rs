//! A checkpoint may be larger than memory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;

use common::{TestModel, locum};
use locum::models::{LoadOptions, Model, ModelFiles};
use locum::prune::fingerprint;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The most memory that a process has had so far, in bytes; none once it is gone.
fn peak(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// The most memory that a command takes, which must succeed.
fn peak_of(arguments: &[&str]) -> u64 {
    let mut child = locum(arguments).stdout(Stdio::null()).spawn().unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(peak(child.id()).unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(child.wait().unwrap().success());
    most
}

/// A safetensors file of zeros, which take no place on the disk; it is where they start.
fn zeros(path: &Path, header: Map<String, Value>, bytes: usize) -> File {
    let header = Value::Object(header).to_string();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + bytes) as u64).unwrap();
    file
}

/// A model of zeros, and how many bytes of them there are.
fn write_zeros(
    model: &Path,
    config: &Value,
    tensors: impl IntoIterator<Item = (String, Vec<usize>)>,
) -> usize {
    std::fs::create_dir(model).unwrap();
    std::fs::write(model.join("config.json"), config.to_string()).unwrap();
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
        header.insert(name, entry);
    }
    zeros(&model.join("model.safetensors"), header, end);
    end
}

#[test]
fn memory_does_not_grow_with_the_checkpoint() {
    let here = tempfile::tempdir().unwrap();
    let model = here.path().join("model");
    let mut small = TestModel::of_fixture("olmoe/base");
    // Zeros that take no place on the disk: a vocabulary by which the file has 400 MB.
    let vocabulary = 780_000;
    small.config["vocab_size"] = json!(vocabulary);
    let shapes = small.tensors.iter().map(|(name, tensor)| {
        let mut shape = tensor.shape.clone();
        if shape[0] == 160 {
            shape[0] = vocabulary;
        }
        (name.clone(), shape)
    });
    let written = write_zeros(&model, &small.config, shapes);
    assert!(written > 390_000_000);

    let out = here.path().join("out");
    let arguments = [
        "prune",
        model.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
    ];
    let options = ["--metric", "weights", "--replace", "zero", "--ratio", "0.5"];
    let most = peak_of(&[&arguments[..], &options].concat());
    let written = std::fs::metadata(out.join("model.safetensors"))
        .unwrap()
        .len();
    assert!(written > 390_000_000);
    assert!(most > 0 && most < 64 << 20, "{most} bytes of memory");
}

/// MoE layers that statistics are of.
struct Counted {
    model: String,
    layers: u32,
    experts: usize,
    hidden: usize,
}

/// Statistics of one token a sequence, by which each expert got it and gave zeros, which take no place on
/// the disk.
fn statistics(path: &Path, counted: &Counted, covered: Range<usize>) -> u64 {
    let (experts, hidden) = (counted.experts, counted.hidden);
    let origin = json!({
        "model": counted.model, "kernels": "", "activations": "", "text": "", "length": 1,
        "batch": 1, "sequences": 2, "seed": null, "covered": [covered],
    });
    let of_layer = |layer| {
        json!({
            "layer": layer, "prefix": format!("model.layers.{layer}.mlp.experts"),
            "hidden": hidden, "tokens": 1, "experts": experts, "substituted": [],
        })
    };
    let said: Vec<_> = (0..counted.layers).map(of_layer).collect();
    let said = json!({ "version": 2, "origin": origin, "layers": said }).to_string();
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "locum_statistics": said }));
    let (mut end, mut tokens) = (0, Vec::new());
    for layer in 0..counted.layers {
        tokens.push(end);
        for (part, shape) in [
            ("tokens", vec![experts]),
            ("scalar_sums", vec![experts, 6, 2]),
            ("output_sum", vec![experts, hidden, 2]),
            ("weighted_output_sum", vec![experts, hidden, 2]),
        ] {
            let start = end;
            end += 8 * shape.iter().product::<usize>();
            let entry = json!({ "dtype": "U64", "shape": shape, "data_offsets": [start, end] });
            header.insert(format!("layers.{layer}.{part}"), entry);
        }
    }
    let checksum = json!({ "dtype": "U8", "shape": [32], "data_offsets": [end, end + 32] });
    header.insert("checksum".into(), checksum);
    let mut file = zeros(path, header, end + 32);
    let data = file.stream_position().unwrap();
    for start in tokens {
        file.seek(SeekFrom::Start(data + start as u64)).unwrap();
        file.write_all(&1u64.to_le_bytes().repeat(experts)).unwrap();
    }
    let mut hash = Sha256::new();
    let mut before = std::fs::File::open(path).unwrap().take(data + end as u64);
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = before.read(&mut piece).unwrap();
        if read == 0 {
            break;
        }
        hash.update(&piece[..read]);
    }
    file.seek(SeekFrom::Start(data + end as u64)).unwrap();
    file.write_all(&hash.finalize()).unwrap();
    data + end as u64
}

#[test]
fn statistics_are_merged_and_read_layer_by_layer() {
    let here = tempfile::tempdir().unwrap();
    let path = |name: &str| here.path().join(name);
    let [a, b, out, page] = ["a", "b", "out", "page.html"].map(path);
    let counted = Counted {
        model: String::new(),
        layers: 32,
        experts: 64,
        hidden: 2048,
    };
    statistics(&a, &counted, 0..1);
    statistics(&b, &counted, 1..2);
    let [a, b, out, page] = [&a, &b, &out, &page].map(|path| path.to_str().unwrap());
    let merging = peak_of(&["merge-stats", a, b, "--out", out]);
    assert!(std::fs::metadata(out).unwrap().len() >= 134_000_000);
    let reading = peak_of(&["report", out, "--out", page]);
    for most in [merging, reading] {
        assert!(most > 0 && most < 48 << 20, "{most} bytes of memory");
    }
}

/// Sums by channel are 200 MB, which would be 100 MB in memory.
#[test]
fn sums_by_channel_of_what_is_kept_are_not_in_memory() {
    let here = tempfile::tempdir().unwrap();
    let path = |name: &str| here.path().join(name);
    let [model, file, out, plan, page] = ["model", "stats", "out", "plan", "page.html"].map(path);
    let (layers, experts, hidden) = (3, 256, 8192);
    let mut config = TestModel::of_fixture("qwen3_moe/base").config;
    config["hidden_size"] = json!(hidden);
    config["num_experts"] = json!(experts);
    config["moe_intermediate_size"] = json!(1);
    let mut shapes = vec![
        ("lm_head".to_owned(), vec![160, hidden]),
        ("model.embed_tokens".to_owned(), vec![160, hidden]),
        ("model.norm".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        let mut add = |part: &str, shape: &[usize]| {
            shapes.push((format!("model.layers.{layer}.{part}"), shape.to_vec()));
        };
        add("input_layernorm", &[hidden]);
        add("post_attention_layernorm", &[hidden]);
        add("self_attn.q_proj", &[128, hidden]);
        add("self_attn.k_proj", &[64, hidden]);
        add("self_attn.v_proj", &[64, hidden]);
        add("self_attn.o_proj", &[hidden, 128]);
        add("self_attn.q_norm", &[32]);
        add("self_attn.k_norm", &[32]);
        add("mlp.gate", &[experts, hidden]);
        for expert in 0..experts {
            add(&format!("mlp.experts.{expert}.gate_proj"), &[1, hidden]);
            add(&format!("mlp.experts.{expert}.up_proj"), &[1, hidden]);
            add(&format!("mlp.experts.{expert}.down_proj"), &[hidden, 1]);
        }
    }
    let shapes = shapes
        .into_iter()
        .map(|(module, shape)| (format!("{module}.weight"), shape));
    write_zeros(&model, &config, shapes);
    let files = ModelFiles::open(&model).unwrap();
    let planned = Model::plan(&files, &LoadOptions::default()).unwrap();
    let counted = Counted {
        model: fingerprint(&files, &planned).unwrap(),
        layers,
        experts,
        hidden,
    };
    let size = statistics(&file, &counted, 0..2);
    assert!(size > 200_000_000);
    let [model, file, out, plan, page] =
        [&model, &file, &out, &plan, &page].map(|path| path.to_str().unwrap());
    for replacement in ["mean", "least-squares"] {
        let line = ["prune", model, "--stats", file, "--keep", "250", "--force"];
        let outputs = ["--replace", replacement, "--out", out, "--plan-out", plan];
        let pruning = peak_of(&[&line[..], &outputs].concat());
        let line = ["report", file, "--plan", plan, "--replace", replacement];
        let reading = peak_of(&[&line[..], &["--out", page]].concat());
        for most in [pruning, reading] {
            assert!(most > 0 && most < 64 << 20, "{most} bytes of memory");
        }
    }
    let written = Model::plan(&ModelFiles::open(out).unwrap(), &LoadOptions::default()).unwrap();
    for (_, table) in written.moe_layers() {
        assert_eq!(table.substituted(), [0, 1, 2, 3, 4, 5]);
    }
}
