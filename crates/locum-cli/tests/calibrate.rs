//! `locum calibrate` and `locum merge-stats`: what they write, and what they refuse.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{TestModel, fixture, locum, refused, run, text};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// A model, a text of 70 sequences of 16 tokens and more, and a place for files.
struct Bench {
    model: String,
    text: String,
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let text = fs::read_to_string(fixture("mone/calib.txt")).unwrap();
        let path = folder.path().join("calib.txt");
        fs::write(&path, &text[..text.floor_char_boundary(5000)]).unwrap();
        Self {
            model: argument(&fixture("tiny-olmoe")),
            text: argument(&path),
            folder,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn arguments<'a>(&'a self, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["calibrate", &self.model, "--text", &self.text];
        all.extend(["--length", "16", "--batch", "2", "--out", out]);
        all.extend(more);
        all
    }

    /// Calibrates, and gives the file.
    fn calibrated(&self, name: &str, more: &[&str]) -> PathBuf {
        let out = self.file(name);
        let output = run(&self.arguments(&argument(&out), more));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), "");
        out
    }
}

fn argument(path: &Path) -> String {
    path.to_str().unwrap().into()
}

#[test]
fn shards_merge_to_the_bytes_of_the_whole() {
    let bench = Bench::new();
    let whole = bench.calibrated("whole", &[]);
    let parts: Vec<String> = (1..=3)
        .map(|index| {
            let shard = format!("{index}/3");
            argument(&bench.calibrated(&format!("part{index}"), &["--shard", &shard]))
        })
        .collect();
    let out = argument(&bench.file("merged"));
    let output = run(&[
        "merge-stats",
        &parts[2],
        &parts[0],
        &parts[1],
        "--out",
        &out,
    ]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(" sequences; wrote "), "{said}");
    assert!(fs::read(&whole).unwrap() == fs::read(&out).unwrap());
    let output = run(&["merge-stats", &parts[2], &parts[0], "--out", &out]);
    let said = text(&output.stderr);
    assert!(said.contains("are in no file; wrote"), "{said}");
    refused(
        &["merge-stats", &parts[0], &parts[0], "--out", &out],
        &["part1", "counted in an earlier file"],
    );
    let four = argument(&bench.calibrated("four", &["--sequences", "4"]));
    refused(
        &["merge-stats", &parts[0], &four, "--out", &out],
        &["part1", "four", "numbers of sequences differ"],
    );
}

#[test]
fn threads_make_no_difference() {
    let bench = Bench::new();
    let one = bench.calibrated("one", &["--threads", "1"]);
    let two = bench.calibrated("two", &["--threads", "2"]);
    assert!(fs::read(&one).unwrap() == fs::read(&two).unwrap());
}

#[test]
fn other_kernels_are_not_merged() {
    let bench = Bench::new();
    let first = argument(&bench.calibrated("first", &["--shard", "1/2", "--dtype", "bf16"]));
    let out = argument(&bench.file("second"));
    let output = locum(&bench.arguments(&out, &["--shard", "2/2", "--dtype", "bf16"]))
        .env("LOCUM_CPU", "portable")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let kernels = |path: &str| {
        let bytes = fs::read(path).unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (_, rest) = text.split_once("\\\"kernels\\\":\\\"").unwrap();
        rest.split_once('\\').unwrap().0.to_owned()
    };
    let merged = argument(&bench.file("merged"));
    assert!(kernels(&out).starts_with("portable, "), "{}", kernels(&out));
    if kernels(&first) != kernels(&out) {
        refused(
            &["merge-stats", &first, &out, "--out", &merged],
            &["kernels differ", "portable"],
        );
    }
    // Whatever this machine has: kernels of the same name whose sums have another order.
    let bytes = fs::read(&out).unwrap();
    let order = b"order of sums ";
    let place = bytes.windows(order.len()).position(|w| w == order);
    let mut other = bytes.clone();
    other[place.unwrap() + order.len()] = b'x';
    let checksum = other.len() - 32;
    let digest = Sha256::digest(&other[..checksum]);
    other[checksum..].copy_from_slice(&digest);
    let changed = argument(&bench.file("changed"));
    fs::write(&changed, other).unwrap();
    refused(
        &["merge-stats", &out, &changed, "--out", &merged],
        &["kernels differ", "order of sums x"],
    );
    assert!(!Path::new(&merged).exists());
}

#[test]
fn only_statistics_are_replaced() {
    let bench = Bench::new();
    let weights = bench.file("other.safetensors");
    fs::copy(fixture("tiny-olmoe/model.safetensors"), &weights).unwrap();
    let before = fs::read(&weights).unwrap();
    let text_before = fs::read(&bench.text).unwrap();
    let no_statistics = &["exists and is no statistics file", "--out"];
    refused(&bench.arguments(&argument(&weights), &[]), no_statistics);
    refused(
        &bench.arguments(&bench.text, &[]),
        &["calib.txt is read and written at once", "--out"],
    );
    let part = argument(&bench.calibrated("part", &["--shard", "1/2"]));
    let counted = fs::read(&part).unwrap();
    refused(
        &["merge-stats", &part, "--out", &argument(&weights)],
        no_statistics,
    );
    refused(
        &["merge-stats", &part, "--out", &part],
        &["part is read and written at once"],
    );
    assert!(fs::read(&weights).unwrap() == before);
    assert!(fs::read(&bench.text).unwrap() == text_before);
    assert!(fs::read(&part).unwrap() == counted);
    // Statistics of something else are.
    let part = bench.calibrated("part", &["--shard", "2/2"]);
    assert!(fs::read(part).unwrap() != counted);
    let left = fs::read_dir(bench.folder.path()).unwrap();
    assert_eq!(left.count(), 3, "the text, the weights and the statistics");
}

#[test]
fn what_is_counted_is_not_counted_again() {
    let bench = Bench::new();
    let model = bench.file("model");
    copy_model(&model);
    let mut arguments = bench.arguments("", &["--shard", "2/2"]);
    let (model_argument, out) = (argument(&model), bench.file("out"));
    let out_argument = argument(&out);
    let place = arguments.iter().position(|a| a.is_empty()).unwrap();
    (arguments[1], arguments[place]) = (&model_argument, &out_argument);
    let calibrate = || {
        let output = run(&arguments);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{said}");
        let already = said.contains("already counted");
        // 2 sequences of 16 tokens, 4 experts each, 128 channels of 4 bytes.
        assert_ne!(
            already,
            said.contains("outputs of experts 65.5 kB"),
            "{said}"
        );
        already
    };
    assert!(!calibrate());
    let before = (
        fs::read(&out).unwrap(),
        fs::metadata(&out).unwrap().modified().unwrap(),
    );
    assert!(calibrate());
    let after = (
        fs::read(&out).unwrap(),
        fs::metadata(&out).unwrap().modified().unwrap(),
    );
    assert!(before == after);
    // A damaged one is, and so is one that is older than the weights.
    fs::write(&out, &before.0[..before.0.len() - 1]).unwrap();
    assert!(!calibrate());
    assert!(calibrate());
    let weights = fs::File::options()
        .write(true)
        .open(model.join("model.safetensors"));
    weights
        .unwrap()
        .set_modified(std::time::SystemTime::now())
        .unwrap();
    assert!(!calibrate());
    assert!(fs::read(&out).unwrap() == before.0);
}

#[cfg(unix)]
#[test]
fn link_is_followed() {
    let bench = Bench::new();
    let first = bench.calibrated("first", &["--shard", "1/2"]);
    let second = bench.calibrated("second", &["--shard", "2/2"]);
    let link = bench.file("link");
    std::os::unix::fs::symlink(&second, &link).unwrap();
    bench.calibrated("link", &["--shard", "1/2"]);
    assert_eq!(fs::read_link(&link).unwrap(), second);
    assert!(fs::read(&first).unwrap() == fs::read(&second).unwrap());
    let link = argument(&link);
    refused(
        &["merge-stats", &argument(&second), "--out", &link],
        &["link is read and written at once"],
    );
}

fn copy_model(to: &Path) {
    fs::create_dir(to).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("tiny-olmoe").join(file), to.join(file)).unwrap();
    }
}

#[test]
fn text_that_makes_no_sequence() {
    let bench = Bench::new();
    let out = argument(&bench.file("out"));
    let short = argument(&bench.file("short.txt"));
    fs::write(&short, "Alice was beginning to get very tired.").unwrap();
    let with_text = |text: &str, parts: &[&str]| {
        refused(
            &["calibrate", &bench.model, "--text", text, "--out", &out],
            parts,
        );
    };
    with_text(&short, &["fewer than one sequence of 512", "--length"]);
    let latin = argument(&bench.file("latin.txt"));
    fs::write(&latin, b"caf\xe9").unwrap();
    with_text(&latin, &["latin.txt", "utf-8"]);
    with_text(&argument(&bench.file("nowhere.txt")), &["nowhere.txt"]);
    let empty = argument(&bench.file("empty.txt"));
    fs::write(&empty, "").unwrap();
    with_text(&empty, &["empty.txt", "empty"]);
    refused(
        &bench.arguments(&out, &["--sequences", "5000"]),
        &["5000 sequences were asked for", "--sequences between 1 and"],
    );
    refused(
        &bench.arguments(&out, &["--shard", "900/1000"]),
        &["shard 900/1000 has no sequence", "at most"],
    );
    let mut long = bench.arguments(&out, &[]);
    let place = long.iter().position(|a| *a == "16").unwrap();
    long[place] = "513";
    refused(&long, &["513", "context of 512"]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn place_that_cannot_be_written_to() {
    let bench = Bench::new();
    let model = TestModel::of_fixture("tiny-olmoe").write();
    let inside = argument(&model.path().join("stats.safetensors"));
    let of_model = |out: &str, parts: &[&str]| {
        let mut arguments = bench.arguments(out, &[]);
        arguments[1] = common::path(&model);
        refused(&arguments, parts);
    };
    of_model(
        &inside,
        &["stats.safetensors", "inside the model's directory"],
    );
    assert_eq!(fs::read_dir(model.path()).unwrap().count(), 3);
    of_model(
        &argument(&bench.file("no/such/folder/out")),
        &["no/such/folder/out"],
    );
    of_model(&argument(bench.folder.path()), &["directory"]);
    if cfg!(target_os = "linux") {
        // Nobody may make files there, whoever runs this.
        of_model("/proc/stats.safetensors", &["/proc/stats.safetensors"]);
        of_model("/dev/full", &["/dev/full", "not a regular file"]);
    }
}

/// A limit on the size of files stands for a disk that is full.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_leaves_nothing_half_written() {
    let bench = Bench::new();
    let out = argument(&bench.file("out"));
    let program = env!("CARGO_BIN_EXE_locum");
    let arguments = bench.arguments(&out, &[]).join(" ");
    let script = format!("trap '' XFSZ; ulimit -f 16; exec {program} {arguments}");
    let output = std::process::Command::new("sh")
        .args(["-c", &script])
        .output();
    let output = output.unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let error = said.lines().last().unwrap();
    assert!(
        error.starts_with("error: cannot write ") && error.contains("out"),
        "{said}"
    );
    let left: Vec<_> = fs::read_dir(bench.folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "only the text is left: {left:?}");
}

#[test]
fn model_without_experts() {
    let model = TestModel::without_experts();
    // The tokenizer is of a larger vocabulary, so the text must not have reached the model.
    let (bench, model) = (Bench::new(), model.write());
    let out = argument(&bench.file("out"));
    let mut arguments = bench.arguments(&out, &[]);
    arguments[1] = common::path(&model);
    refused(&arguments, &["has no MoE layer"]);
}

#[test]
fn seed_needs_a_number_of_sequences() {
    let bench = Bench::new();
    let out = argument(&bench.file("out"));
    let output = run(&bench.arguments(&out, &["--seed", "1"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--sequences"));
    let drawn = |name, seed| {
        let path = bench.calibrated(name, &["--sequences", "9", "--seed", seed]);
        fs::read(path).unwrap()
    };
    assert!(drawn("a", "1") == drawn("b", "1"));
    assert!(drawn("a", "1") != drawn("c", "2"));
}
