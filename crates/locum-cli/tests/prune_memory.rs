//! A checkpoint may be larger than memory.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::io::Write;
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
    let mut child = locum(&[&arguments[..], &options].concat())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(peak(child.id()).unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(child.wait().unwrap().success());
    let written = std::fs::metadata(out.join("model.safetensors"))
        .unwrap()
        .len();
    assert!(written > 390_000_000);
    assert!(most > 0 && most < 64 << 20, "{most} bytes of memory");
}
