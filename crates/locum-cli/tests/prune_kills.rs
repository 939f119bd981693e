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
    let complete = |keep: &str| {
        let out = here.path().join(format!("whole-{keep}"));
        let start = Instant::now();
        assert!(command(keep, &out, false).status().unwrap().success());
        (contents(&out), start.elapsed())
    };
    let (first, _) = complete("12");
    let (second, time) = complete("8");
    let out = here.path().join("out");
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let (mut absent, mut present, mut old) = (0, 0, 0);
    for kill in 0..30 {
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
        if !out.exists() {
            assert!(!replace, "what was there is gone");
            absent += 1;
            continue;
        }
        let found = contents(&out);
        if found == second {
            present += 1;
        } else {
            assert!(replace && found == first, "kill {kill}: half a model");
            old += 1;
        }
    }
    // The times of kills are by chance, but not so that all are too late or too early.
    assert!(
        absent + old > 0 && present + absent + old == 30,
        "{absent} {present} {old}"
    );

    // What killed processes left is hidden, and goes with the next run.
    let _ = std::fs::remove_dir_all(&out);
    assert!(command("8", &out, false).status().unwrap().success());
    assert_eq!(contents(&out), second);
    let mut names: Vec<String> = std::fs::read_dir(here.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["out", "whole-12", "whole-8"]);
}
