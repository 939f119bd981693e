//! `locum calibrate` that is killed, and goes on.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{fixture, locum, refused, run, text};
use safetensors::SafeTensors;
use tempfile::TempDir;

const KILLS: u32 = 25;

fn arguments<'a>(model: &'a str, text: &'a str, out: &'a str) -> Vec<&'a str> {
    vec![
        "calibrate",
        model,
        "--text",
        text,
        "--length",
        "64",
        "--batch",
        "2",
        "--threads",
        "1",
        "--out",
        out,
    ]
}

fn paths(folder: &TempDir) -> [String; 3] {
    let text = fs::read_to_string(fixture("mone/calib.txt")).unwrap();
    let path = folder.path().join("calib.txt");
    fs::write(&path, &text[..text.floor_char_boundary(20_000)]).unwrap();
    [fixture("tiny-olmoe"), path, folder.path().join("stats")].map(|p| p.to_str().unwrap().into())
}

/// The sequences that progress holds, if there is any.
fn counted(partial: &Path) -> usize {
    let Ok(bytes) = fs::read(partial) else {
        return 0;
    };
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a whole file");
    let header = &metadata.metadata().as_ref().unwrap()["locum_statistics"];
    let header: serde_json::Value = serde_json::from_str(header).unwrap();
    header["origin"]["covered"][0]["end"].as_u64().unwrap() as usize
}

#[test]
fn killed_at_any_moment_it_goes_on_and_writes_the_same_bytes() {
    let folder = TempDir::new().unwrap();
    let [model, text_file, out] = paths(&folder);
    let arguments = arguments(&model, &text_file, &out);
    let start = Instant::now();
    let output = run(&arguments);
    let takes = start.elapsed();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = fs::read(&out).unwrap();
    fs::remove_file(&out).unwrap();

    let partial = PathBuf::from(format!("{out}.partial"));
    let (mut before, mut interrupted, mut random) = (0, 0, 7u32);
    for _ in 0..KILLS {
        let mut process = locum(&arguments).stderr(Stdio::null()).spawn().unwrap();
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(takes.mul_f64(f64::from(random >> 8) / f64::from(1 << 24) * 0.8));
        process.kill().unwrap();
        let status = process.wait().unwrap();
        if Path::new(&out).exists() {
            assert!(fs::read(&out).unwrap() == expected);
            fs::remove_file(&out).unwrap();
            before = 0;
            continue;
        }
        assert!(!status.success());
        let now = counted(&partial);
        assert!(
            now >= before && now.is_multiple_of(2),
            "{before}, then {now}"
        );
        interrupted += usize::from(now > 0);
        before = now;
    }
    assert!(interrupted > 0, "no kill came while it was counting");
    let output = run(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read(&out).unwrap() == expected);
    let left = fs::read_dir(folder.path()).unwrap();
    assert_eq!(left.count(), 2, "the text and the statistics");
}

#[test]
fn progress_is_that_of_one_calibration_only() {
    let folder = TempDir::new().unwrap();
    let [fixture, text_file, out] = paths(&folder);
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(Path::new(&fixture).join(file), model.join(file)).unwrap();
    }
    let weights = model.join("model.safetensors");
    let model = model.to_str().unwrap();
    let arguments = arguments(model, &text_file, &out);
    let partial = PathBuf::from(format!("{out}.partial"));
    // Until it has counted something.
    let mut process = locum(&arguments).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while counted(&partial) == 0 && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    process.kill().unwrap();
    process.wait().unwrap();
    let progress = fs::read(&partial).unwrap();

    let other = |position: &str, value: &str, parts: &[&str]| {
        let mut arguments = arguments.clone();
        let place = arguments.iter().position(|a| *a == position).unwrap() + 1;
        arguments[place] = value;
        refused(&arguments, parts);
        assert!(fs::read(&partial).unwrap() == progress, "it is left alone");
    };
    other(
        "--length",
        "32",
        &["lengths 64, here 32", "delete it", "--out"],
    );
    other("--batch", "1", &["batches 2, here 1"]);
    let shard = [&arguments[..], &["--shard", "2/2"]].concat();
    refused(&shard, &["stats.partial", "sequences are"]);
    let fewer = [&arguments[..], &["--sequences", "8"]].concat();
    refused(&fewer, &["numbers of sequences"]);
    // Its experts may be others now.
    let weights = fs::File::options().write(true).open(weights).unwrap();
    let modified = weights.metadata().unwrap().modified().unwrap();
    weights
        .set_modified(modified + Duration::from_secs(9))
        .unwrap();
    refused(&arguments, &["other weights", "delete", "stats.partial"]);
    weights.set_modified(modified).unwrap();
    // While another process has the place.
    let lock = fs::File::create(folder.path().join(".stats.locum-lock")).unwrap();
    lock.lock().unwrap();
    refused(
        &arguments,
        &["another process is calibrating into", "stats"],
    );
    drop(lock);
    assert!(fs::read(&partial).unwrap() == progress, "it is left alone");

    let output = run(&arguments);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("resumed: "));
    assert!(!partial.exists(), "the file makes it needless");
    fs::remove_file(&out).unwrap();
    fs::write(&partial, &progress[..progress.len() / 2]).unwrap();
    refused(&arguments, &["stats.partial is not a statistics file"]);
}
