//! What `locum prune` refuses: in one line, with exit code 2, and nothing is written.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{TestModel, fixture, text};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Workplace {
    directory: TempDir,
}

/// Options by which no statistics are needed.
const FREE: &str = "--metric weights --replace zero";

impl Workplace {
    fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command in this directory: words in braces are fixtures.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_locum"));
        command
            .current_dir(self.directory.path())
            .env_remove("LOCUM_MODEL");
        for word in line.split_whitespace() {
            match word
                .strip_prefix('{')
                .and_then(|word| word.strip_suffix('}'))
            {
                Some(name) => command.arg(fixture(name)),
                None => command.arg(word),
            };
        }
        command
    }

    fn runs(&self, line: &str) {
        let output = self.command(line).output().unwrap();
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    }

    /// All names below, to see that nothing was written.
    fn names(&self) -> Vec<PathBuf> {
        let mut names = Vec::new();
        list(self.directory.path(), &mut names);
        names
    }

    #[track_caller]
    fn refuses(&self, line: &str, parts: &[&str]) {
        self.refuses_command(&mut self.command(line), line, parts);
    }

    #[track_caller]
    fn refuses_command(&self, command: &mut Command, line: &str, parts: &[&str]) {
        let before = self.names();
        let output = command.output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert_eq!(text(&output.stdout), "", "{line}");
        assert_eq!(error.lines().count(), 1, "{line}: {error}");
        assert!(error.starts_with("error: "), "{line}: {error}");
        for part in parts {
            assert!(error.contains(part), "{line}: {part:?} is not in: {error}");
        }
        assert_eq!(self.names(), before, "{line}");
    }

    fn write(&self, name: &str, content: &Value) {
        std::fs::write(self.path(name), content.to_string()).unwrap();
    }

    /// A copy of a fixture, which may be changed.
    fn copy(&self, name: &str, to: &str) {
        std::fs::create_dir(self.path(to)).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(fixture(name).join(file), self.path(to).join(file)).unwrap();
        }
    }
}

fn list(directory: &Path, names: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            list(&path, names);
        }
        names.push(path);
    }
    names.sort();
}

#[test]
fn ratio_that_cannot_be() {
    let here = Workplace::new();
    for ratio in ["0", "1", "-0.25", "1.5", "NaN", "inf"] {
        here.refuses(
            &format!("prune {{tiny-olmoe}} {FREE} --ratio {ratio} --out out"),
            &["--ratio ", "must be greater than 0 and less than 1"],
        );
    }
    here.refuses(
        &format!("prune {{tiny-olmoe}} {FREE} --ratio 0.3 --out out"),
        &[
            "--ratio 0.3 of the 16 experts with weights of layer 0 is 4.800",
            "it rounds to 5; keep 11 of them, or give a ratio of 0.3125",
        ],
    );
    // All of them, or none.
    for (ratio, near) in [
        ("0.99", "rounds to 16; keep 1 of them,"),
        ("0.01", "rounds to 0; keep 15 of them,"),
    ] {
        let line = format!("prune {{tiny-olmoe}} {FREE} --ratio {ratio} --out out");
        here.refuses(&line, &["--ratio", near]);
    }
    here.refuses(
        &format!("prune {{tiny-olmoe}} {FREE} --scope model --ratio 0.99 --out out"),
        &[
            "--ratio comes to 63 of the model's 64",
            "only 60 can go where every layer keeps 1",
        ],
    );
}

#[test]
fn seed_of_what_is_not_left_to_chance() {
    let here = Workplace::new();
    here.refuses(
        &format!("prune {{tiny-olmoe}} {FREE} --keep 8 --seed 3 --out out"),
        &["--seed 3 is for --metric random alone"],
    );
}

#[test]
fn keep_that_cannot_be() {
    let here = Workplace::new();
    for (keep, part) in [
        ("0", "0 would leave layers without experts"),
        ("-3", "-3 must be a number of experts"),
        ("16", "must be less than the 16 experts"),
        ("17", "must be less than the 16 experts"),
        ("99999999999", "must be a number of experts"),
    ] {
        here.refuses(
            &format!("prune {{tiny-olmoe}} {FREE} --keep {keep} --out out"),
            &["--keep ", part],
        );
    }
    here.refuses(
        &format!("prune {{tiny-olmoe}} {FREE} --scope model --keep 16 --out out"),
        &["--keep comes to none of the model's 64 experts"],
    );
    here.refuses(
        &format!("prune {{tiny-olmoe}} {FREE} --keep 8 --min-per-layer 9 --out out"),
        &["--min-per-layer 9 is more than the 8"],
    );
    here.refuses(
        &format!("prune {{tiny-olmoe}} {FREE} --keep 8 --min-per-layer 0 --out out"),
        &["--min-per-layer 0"],
    );
    for size in ["0", "5XB", "big", "-1GB"] {
        here.refuses(
            &format!("prune {{tiny-olmoe}} {FREE} --keep 8 --out out --max-shard-size={size}"),
            &["--max-shard-size", size],
        );
    }
}

#[test]
fn experts_that_are_not_there() {
    let here = Workplace::new();
    let line = "prune {olmoe/base} --replace zero --experts ids --out out";
    for (content, parts) in [
        (
            json!({ "7": [0] }),
            vec!["layer 7 is no MoE layer", "[0, 1, 2]"],
        ),
        (
            json!({ "0": [8] }),
            vec!["layer 0", "[8] do not exist", "has 8"],
        ),
        (
            json!({ "1": [2, 3, 2] }),
            vec!["layer 1", "expert 2 is listed twice"],
        ),
        (
            json!({ "1": [0, 1, 2, 3, 4, 5, 6, 7] }),
            vec!["layer 1", "all 8"],
        ),
        (json!({ "01": [0] }), vec!["\"01\" is not a layer number"]),
        (json!({ "1": [-1] }), vec!["ids", "-1"]),
        (json!({ "1": "all" }), vec!["ids", "all"]),
        (
            json!([1, 2]),
            vec!["an object from layers to lists of expert ids"],
        ),
        (json!({ "1": [] }), vec!["names no expert"]),
        (json!({}), vec!["names no expert"]),
    ] {
        here.write("ids", &content);
        here.refuses(line, &parts);
    }
    std::fs::write(here.path("ids"), r#"{"1": [0], "1": [2]}"#).unwrap();
    here.refuses(line, &["layer 1 comes twice"]);
    std::fs::write(here.path("ids"), "{").unwrap();
    here.refuses(line, &["ids: EOF while parsing"]);
    std::fs::remove_file(here.path("ids")).unwrap();
    here.refuses(line, &["ids", "not found"]);
    // A constant already.
    here.write("ids", &json!({ "1": [5] }));
    here.refuses(
        "prune {olmoe/approx} --replace zero --experts ids --out out",
        &["expert 5 of layer 1 is a constant already"],
    );
}

#[test]
fn plan_of_another_shape_or_none() {
    let here = Workplace::new();
    here.runs(&format!(
        "prune {{olmoe/base}} {FREE} --keep 6 --dry-run --plan-out plan"
    ));
    let plan: Value = serde_json::from_slice(&std::fs::read(here.path("plan")).unwrap()).unwrap();
    let line = "prune {olmoe/base} --replace zero --plan changed --out out";
    here.refuses(
        "prune {tiny-olmoe} --replace zero --plan plan --out out",
        &[
            "the plan cannot be applied",
            "3 MoE layers, the model has 4",
        ],
    );
    here.refuses(
        "prune {qwen2_moe/base} --replace zero --plan plan --out out",
        &["the plan cannot be applied"],
    );
    let mut changed = plan.clone();
    changed["layers"][1]["num_logical_experts"] = json!(16);
    here.write("changed", &changed);
    here.refuses(line, &["it is for 16 experts in layer 1, the model has 8"]);
    let mut changed = plan.clone();
    changed["layers"][2]["layer"] = json!(5);
    here.write("changed", &changed);
    here.refuses(line, &["for layer 5 where the model has MoE layer 2"]);
    let mut changed = plan.clone();
    changed["layers"][0]["substituted"][0]["expert"] = json!(8);
    here.write("changed", &changed);
    here.refuses(line, &["layer 0", "do not exist"]);
    let mut changed = plan.clone();
    changed["version"] = json!(2);
    here.write("changed", &changed);
    here.refuses(
        line,
        &["changed is no plan: its version must be 1, found 2"],
    );
    let mut changed = plan.clone();
    changed["layers"][0]["strategy"] = json!("x");
    here.write("changed", &changed);
    here.refuses(line, &["changed is no plan: unknown field `strategy`"]);
    here.write("changed", &json!([]));
    here.refuses(
        line,
        &["changed is no plan: its version must be 1, found none"],
    );
    here.write(
        "changed",
        &json!({ "version": 1, "settings": null, "layers": [] }),
    );
    here.refuses(line, &["0 MoE layers"]);
}

#[test]
fn statistics_that_are_missing_or_of_another_model() {
    let here = Workplace::new();
    here.refuses(
        "prune {tiny-olmoe} --ratio 0.25 --out out",
        &[
            "metric fusion needs statistics: give --stats FILE",
            "locum calibrate",
        ],
    );
    here.refuses(
        "prune {tiny-olmoe} --metric weights --ratio 0.25 --out out",
        &["a constant that is a mean needs statistics"],
    );
    let words = std::fs::read(fixture("heldout.txt")).unwrap();
    std::fs::write(here.path("text"), &words[..5000]).unwrap();
    here.runs("calibrate {tiny-olmoe} --text text --length 64 --out stats");
    here.refuses(
        "prune {olmoe/base} --stats stats --ratio 0.25 --out out",
        &[
            "--stats stats: the statistics are of another model",
            "4 MoE layers, the model has 3",
        ],
    );
    // Of the same shape, with another router.
    here.copy("tiny-olmoe", "sibling");
    let path = here.path("sibling/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let router = file.tensor("model.layers.2.mlp.gate.weight").unwrap();
    let place = router.data().as_ptr() as usize - bytes.as_ptr() as usize;
    bytes[place] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    here.refuses(
        "prune sibling --stats stats --ratio 0.25 --out out",
        &["of another model: its fingerprint is"],
    );
    here.refuses(
        "prune {tiny-olmoe} --stats text --ratio 0.25 --out out",
        &["text"],
    );
    here.refuses(
        "prune {tiny-olmoe} --stats none --ratio 0.25 --out out",
        &["none", "not found"],
    );
}

#[test]
fn output_that_touches_the_model() {
    let here = Workplace::new();
    here.copy("olmoe/base", "model");
    let line = |out: &str| format!("prune model {FREE} --ratio 0.25 --force --out {out}");
    here.refuses(&line("model"), &["it is the model itself"]);
    here.refuses(&line("./model/."), &["it is the model itself"]);
    here.refuses(
        &line("model/pruned"),
        &["it is inside the model's directory model"],
    );
    here.refuses(&line("."), &["the model's directory model is inside it"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("model", here.path("link")).unwrap();
        here.refuses(&line("link"), &["it is the model itself"]);
        here.refuses(&line("link/pruned"), &["inside the model's directory"]);
        // A model whose files are links into what would be replaced.
        std::fs::create_dir(here.path("linked")).unwrap();
        for name in ["config.json", "model.safetensors"] {
            let target = Path::new("../model").join(name);
            std::os::unix::fs::symlink(target, here.path("linked").join(name)).unwrap();
        }
        here.refuses(
            &format!("prune linked {FREE} --ratio 0.25 --force --out model"),
            &["it holds what linked/model.safetensors is a link to"],
        );
    }
}

#[test]
fn output_that_is_there_or_cannot_be() {
    let here = Workplace::new();
    let line = |out: &str| format!("prune {{olmoe/base}} {FREE} --ratio 0.25 --out {out}");
    here.copy("olmoe/base", "there");
    here.refuses(
        &line("there"),
        &["there exists already: give another --out, or --force"],
    );
    here.refuses(
        &line("no/such/place"),
        &["cannot create `no/such/place`", "does not exist"],
    );
    std::fs::create_dir(here.path("thesis")).unwrap();
    std::fs::write(here.path("thesis/text.tex"), "").unwrap();
    let forced = line("thesis --force");
    here.refuses(&forced, &["`thesis` is not replaced", "no `config.json`"]);
    here.write("thesis/config.json", &json!({ "theme": "dark" }));
    here.refuses(&forced, &["neither `model_type` nor `architectures`"]);
    std::fs::write(here.path("file"), "").unwrap();
    here.refuses(&line("file"), &["file exists already"]);
    here.refuses(
        &line("file --force"),
        &["`file` is not replaced: it is not a directory"],
    );
    here.refuses(&line("file/out"), &["cannot create `file/out`"]);
}

#[test]
fn files_that_the_new_model_does_not_have() {
    let here = Workplace::new();
    let line = format!("prune {{olmoe/base}} {FREE} --keep 6 --force --out old");
    here.copy("olmoe/base", "old");
    for name in ["notes.txt", "mine.safetensors", "runs"] {
        let path = here.path("old").join(name);
        if name == "runs" {
            std::fs::create_dir(&path).unwrap();
        } else {
            std::fs::write(&path, "mine").unwrap();
        }
        here.refuses(&line, &[&format!("`{name}`"), "move it elsewhere"]);
        if path.is_dir() {
            std::fs::remove_dir(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    here.runs(&line);
    // A plan goes over a plan, and over nothing else.
    let line = format!("prune {{olmoe/base}} {FREE} --keep 6 --dry-run --plan-out");
    here.runs(&format!("{line} plan"));
    here.runs(&format!("{line} plan"));
    here.refuses(
        &format!("{line} old/config.json"),
        &["old/config.json", "is no plan"],
    );
}

#[test]
fn files_that_would_be_lost() {
    let here = Workplace::new();
    here.copy("olmoe/base", "old");
    here.write("old/ids", &json!({ "0": [1] }));
    here.refuses(
        "prune {olmoe/base} --replace zero --experts old/ids --force --out old",
        &["old/ids is in it: move that elsewhere"],
    );
    here.refuses(
        &format!("prune {{olmoe/base}} {FREE} --keep 6 --force --out old --plan-out old/plan"),
        &["cannot write old/plan: it is in old, which --out makes"],
    );
    for plan in ["out", "out/plan", "./out/."] {
        here.refuses(
            &format!("prune {{olmoe/base}} {FREE} --keep 6 --out out --plan-out {plan}"),
            &[&format!(
                "cannot write {plan}: it is in out, which --out makes"
            )],
        );
    }
    here.refuses(
        &format!("prune old {FREE} --keep 6 --out out --plan-out old/config.json"),
        &["cannot write old/config.json: it is, or is part of, old, which is read"],
    );
    here.write("ids", &json!({ "0": [1] }));
    here.refuses(
        "prune {olmoe/base} --replace zero --experts ids --plan-out ids --out out",
        &["cannot write ids: it is, or is part of, ids, which is read"],
    );
}

/// The statistics are not there; that is not said, for they are not looked for yet.
#[test]
fn places_are_tried_before_anything_is_read() {
    let here = Workplace::new();
    here.copy("olmoe/base", "model");
    here.copy("olmoe/base", "there");
    let line = |rest: &str| format!("prune model --stats none --ratio 0.25 {rest}");
    here.refuses(&line("--out there"), &["there exists already"]);
    here.refuses(&line("--out model/out"), &["inside the model's directory"]);
    here.refuses(&line("--out no/out"), &["cannot create `no/out`"]);
    here.refuses(
        &line("--out out --plan-out no/plan"),
        &["cannot write no/plan"],
    );
    here.refuses(&line("--out out --plan-out out"), &["which --out makes"]);
    #[cfg(target_os = "linux")]
    here.refuses(&line("--out /proc/out"), &["cannot create `/proc/out`"]);
    here.refuses(&line("--out out"), &["none", "not found"]);
}

/// A place that takes no directory, whoever asks.
#[cfg(target_os = "linux")]
#[test]
fn read_only_place() {
    let here = Workplace::new();
    here.refuses(
        &format!("prune {{olmoe/base}} {FREE} --ratio 0.25 --out /proc/out"),
        &["cannot create `/proc/out`: "],
    );
    here.refuses(
        &format!("prune {{olmoe/base}} {FREE} --ratio 0.25 --out out --plan-out /proc/plan"),
        &["cannot write /proc/plan: "],
    );
}

/// A disk that is full after so many bytes: the shell limits the size of files, and the process is
/// told by an error and not by a signal.
#[cfg(target_os = "linux")]
#[test]
fn full_disk() {
    let here = Workplace::new();
    here.copy("tiny-olmoe", "model");
    for (blocks, force) in [(8, ""), (900, ""), (4000, ""), (4000, "--force")] {
        if !force.is_empty() {
            here.copy("tiny-olmoe", "out");
        }
        let line = format!(
            "trap '' XFSZ; ulimit -f {blocks}; exec {} prune model {FREE} --ratio 0.25 --out out {force}",
            env!("CARGO_BIN_EXE_locum")
        );
        let mut command = Command::new("bash");
        command
            .args(["-c", &line])
            .current_dir(here.directory.path());
        here.refuses_command(
            &mut command,
            &line,
            &["cannot write `out/model.safetensors`: File too large"],
        );
    }
}

#[test]
fn model_without_experts_or_none() {
    let here = Workplace::new();
    std::fs::create_dir(here.path("empty")).unwrap();
    std::fs::create_dir(here.path("dense")).unwrap();
    TestModel::without_experts().write_to(&here.path("dense"));
    for (model, part) in [
        ("none", "no such directory: none"),
        ("empty", "config.json not found"),
        ("dense", "dense has no MoE layer"),
    ] {
        let line = format!("prune {model} {FREE} --ratio 0.25 --out out");
        here.refuses(&line, &[part]);
    }
}
