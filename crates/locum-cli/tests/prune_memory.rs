//! A checkpoint may be larger than memory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;

use common::{TestModel, locum};
use serde_json::{Map, json};

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

#[test]
fn memory_does_not_grow_with_the_checkpoint() {
    let here = tempfile::tempdir().unwrap();
    let model = here.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let mut small = TestModel::of_fixture("olmoe/base");
    // Zeros that take no place on the disk: a vocabulary by which the file has 400 MB.
    let vocabulary = 780_000;
    small.config["vocab_size"] = json!(vocabulary);
    std::fs::write(model.join("config.json"), small.config.to_string()).unwrap();
    let mut header = Map::new();
    let mut end = 0;
    for (name, tensor) in &small.tensors {
        let mut shape = tensor.shape.clone();
        if shape[0] == 160 {
            shape[0] = vocabulary;
        }
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] });
        header.insert(name.clone(), entry);
    }
    assert!(end > 390_000_000);
    let header = serde_json::Value::Object(header).to_string();
    let mut file = File::create(model.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len((8 + header.len() + end) as u64).unwrap();
    drop(file);

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

/// Statistics of 32 layers of 64 experts, 134 MB of zeros that take no place on the disk.
fn statistics(path: &Path, covered: Range<usize>) -> u64 {
    let (layers, experts, hidden) = (0..32, 64, 2048);
    let origin = json!({
        "model": "", "kernels": "", "activations": "", "text": "", "length": 1, "batch": 1,
        "sequences": 2, "seed": null, "covered": [covered],
    });
    let of_layer = |layer| {
        json!({
            "layer": layer, "prefix": format!("model.layers.{layer}.mlp.experts"),
            "hidden": hidden, "tokens": 1, "experts": experts, "substituted": [],
        })
    };
    let said: Vec<_> = layers.clone().map(of_layer).collect();
    let said = json!({ "version": 1, "origin": origin, "layers": said }).to_string();
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "locum_statistics": said }));
    let mut end = 0;
    for layer in layers {
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
    let header = serde_json::Value::Object(header).to_string();
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let size = (8 + header.len() + end) as u64;
    file.set_len(size).unwrap();
    size
}

#[test]
fn statistics_are_merged_and_read_layer_by_layer() {
    let here = tempfile::tempdir().unwrap();
    let path = |name: &str| here.path().join(name);
    let [a, b, out, page] = ["a", "b", "out", "page.html"].map(path);
    let size = statistics(&a, 0..1);
    statistics(&b, 1..2);
    let [a, b, out, page] = [&a, &b, &out, &page].map(|path| path.to_str().unwrap());
    let merging = peak_of(&["merge-stats", a, b, "--out", out]);
    assert!(std::fs::metadata(out).unwrap().len() >= 134_000_000);
    assert!(
        merging > 0 && merging < 48 << 20,
        "{merging} bytes of memory"
    );
    // As `f64`, sums are half of the file.
    let reading = peak_of(&["report", out, "--out", page]);
    let most = size / 2 + (48 << 20);
    assert!(
        reading > size / 2 && reading < most,
        "{reading} bytes of memory"
    );
}
