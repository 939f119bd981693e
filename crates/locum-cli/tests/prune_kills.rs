//! A process that is killed leaves no half of a model.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{fixture, locum};

/// A directory's files.
fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap();
    let files = entries.map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    });
    files.collect()
}

/// Kills in all.
const KILLS: usize = 50;

/// Whether a hidden directory that is being written has a file in it; what there is of them goes.
fn take_partial(parent: &Path) -> bool {
    let entries = std::fs::read_dir(parent).unwrap();
    let partial = entries.map(|entry| entry.unwrap()).filter(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.starts_with(".out.locum-partial-")
    });
    let mut begun = false;
    for entry in partial {
        let files = contents(&entry.path());
        begun |= files.keys().any(|name| name.ends_with(".safetensors"));
        std::fs::remove_dir_all(entry.path()).unwrap();
    }
    begun
}

#[test]
fn killed_at_any_moment_the_output_is_absent_or_complete() {
    let here = tempfile::tempdir().unwrap();
    let model = fixture("tiny-olmoe");
    let command = |keep: &str, out: &Path, force: bool| {
        let mut arguments = vec![
            "prune",
            model.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
        ];
        arguments.extend(["--metric", "random", "--replace", "zero", "--keep", keep]);
        // Many files, so that there are many moments.
        arguments.extend(["--max-shard-size", "200KB"]);
        arguments.extend(force.then_some("--force"));
        let mut command = locum(&arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let whole = |keep: &str| {
        let out = here.path().join(format!("whole-{keep}"));
        let start = Instant::now();
        assert!(command(keep, &out, false).status().unwrap().success());
        (contents(&out), start.elapsed())
    };
    let (first, _) = whole("12");
    let (second, time) = whole("8");
    let out = here.path().join("out");
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let (mut during, mut complete) = (0, 0);
    for kill in 0..KILLS {
        // Every other time there is a model already, which is to be replaced.
        let replace = kill % 2 == 1;
        let _ = std::fs::remove_dir_all(&out);
        if replace {
            assert!(command("12", &out, false).status().unwrap().success());
        }
        let mut child = command("8", &out, replace).spawn().unwrap();
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let part = (seed >> 33) as f64 / f64::from(1u32 << 31);
        std::thread::sleep(Duration::from_secs_f64(1.1 * part * time.as_secs_f64()));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = out.exists().then(|| contents(&out));
        match &found {
            Some(found) if *found == second => complete += 1,
            Some(found) => assert!(replace && *found == first, "kill {kill}: half a model"),
            None => assert!(!replace, "kill {kill}: what was there is gone"),
        }
        // The last one's is left for the next run to remove. Where the new model has taken the place
        // of the old one, the old one is what has the hidden name.
        if kill + 1 < KILLS {
            let replaced = found.as_ref() == Some(&second);
            during += usize::from(take_partial(here.path()) && !replaced);
        }
    }
    // The times of kills are by chance, but some are while tensors are written.
    assert!(during > 0, "{complete} of {KILLS} were too late");

    // What killed processes left is hidden, and goes with the next run.
    let _ = std::fs::remove_dir_all(&out);
    let left = here.path().join(".out.locum-partial-killed");
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join("model.safetensors"), "half").unwrap();
    assert!(command("8", &out, false).status().unwrap().success());
    assert_eq!(contents(&out), second);
    let mut names: Vec<String> = std::fs::read_dir(here.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["out", "whole-12", "whole-8"]);
}
