//! `locum prune`: from statistics to a model that runs.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{fixture, run, stdout, text};
use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = "tiny-olmoe";

struct Scratch {
    directory: TempDir,
}

impl Scratch {
    fn new() -> Self {
        Self {
            directory: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command whose words in braces are files here, and `{MODEL}` the model.
    fn arguments(&self, line: &str) -> Vec<String> {
        let word = |word: &str| match word.strip_prefix('{').and_then(|w| w.strip_suffix('}')) {
            Some(MODEL) => fixture(MODEL).display().to_string(),
            Some(name) => self.path(name).display().to_string(),
            None => word.to_owned(),
        };
        line.split_whitespace().map(word).collect()
    }

    fn locum(&self, line: &str) -> String {
        let arguments = self.arguments(line);
        stdout(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.locum(&format!("{line} --json"))).unwrap()
    }

    fn names(&self) -> Vec<String> {
        names(self.directory.path())
    }

    /// Statistics of the model on some of the held-out text.
    fn calibrate(&self) {
        let text = std::fs::read(fixture("heldout.txt")).unwrap();
        std::fs::write(self.path("text.txt"), &text[..20_000]).unwrap();
        self.locum("calibrate {tiny-olmoe} --text {text.txt} --length 128 --out {stats}");
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn statistics_become_a_model_that_runs() {
    let here = Scratch::new();
    here.calibrate();
    let report = here
        .json("prune {tiny-olmoe} --stats {stats} --ratio 0.25 --out {out} --plan-out {plan.json}");
    let config = read(&here.path("out/config.json"));
    let plan = read(&here.path("plan.json"));
    for (place, layer) in report["layers"].as_array().unwrap().iter().enumerate() {
        let ids = &layer["substituted"];
        assert_eq!(ids.as_array().unwrap().len(), 4);
        assert_eq!(
            (&layer["retained_before"], &layer["retained_after"]),
            (&json!(16), &json!(12))
        );
        assert_eq!(config["approximate_experts"][place.to_string()], *ids);
        let planned = plan["layers"][place]["substituted"].as_array().unwrap();
        assert_eq!(
            planned
                .iter()
                .map(|p| p["expert"].clone())
                .collect::<Value>(),
            *ids
        );
        // The least needed ones: ranks 13 to 16 of 16.
        let mut ranks: Vec<u64> = planned
            .iter()
            .map(|p| p["rank"].as_u64().unwrap())
            .collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [13, 14, 15, 16]);
        assert!(
            planned
                .iter()
                .all(|p| p["value"].is_f64() && p["tokens"].is_u64())
        );
    }
    assert_eq!(plan["version"], 1);
    assert_eq!(plan["settings"]["metric"], "fusion");
    // 16 experts of 3 · 128 · 128 elements go, 16 constants of 128 come.
    let saved = report["bytes_before"].as_u64().unwrap() - report["bytes_after"].as_u64().unwrap();
    assert_eq!(saved, 2 * 16 * (3 * 128 * 128 - 128));
    let inspected = here.json("inspect --model {out}");
    assert_eq!(inspected["weights_bytes"], report["bytes_after"]);
    let made = here.locum("generate --model {out} --prompt Emma --max-new-tokens 8");
    assert!(made.len() > "Emma".len());
    // Every other file as it was.
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "README.md",
    ] {
        let bytes = |directory: &Path| std::fs::read(directory.join(name)).unwrap();
        assert_eq!(bytes(&here.path("out")), bytes(&fixture(MODEL)), "{name}");
    }
    // Another checkpoint's tensors are not the pruned model's.
    assert_eq!(report["left_out"], json!(["reference.safetensors"]));
    assert_eq!(here.names(), ["out", "plan.json", "stats", "text.txt"]);
}

#[test]
fn plan_is_applied_as_it_was_made() {
    let here = Scratch::new();
    here.calibrate();
    here.locum(
        "prune {tiny-olmoe} --stats {stats} --scope model --ratio 0.3 --out {a} --plan-out {plan}",
    );
    here.locum("prune {tiny-olmoe} --stats {stats} --plan {plan} --out {b} --plan-out {again}");
    let file = |name: &str| std::fs::read(here.path(name)).unwrap();
    let chosen = |name: &str| {
        let plan = read(&here.path(name));
        let layers = plan["layers"].as_array().unwrap().clone();
        let experts = |layer: &Value| {
            let planned = layer["substituted"].as_array().unwrap().iter();
            planned
                .map(|p| [p["expert"].clone(), p["rank"].clone(), p["tokens"].clone()])
                .collect()
        };
        (
            plan["settings"].clone(),
            layers.iter().map(experts).collect::<Vec<Vec<_>>>(),
        )
    };
    assert_eq!(chosen("plan"), chosen("again"));
    assert_eq!(file("a/config.json"), file("b/config.json"));
    assert_eq!(file("a/model.safetensors"), file("b/model.safetensors"));
    // A list of the same ids, too.
    let ids = read(&here.path("a/config.json"))["approximate_experts"].clone();
    std::fs::write(here.path("ids"), ids.to_string()).unwrap();
    here.locum("prune {tiny-olmoe} --stats {stats} --experts {ids} --out {c}");
    assert_eq!(file("a/model.safetensors"), file("c/model.safetensors"));
}

#[test]
fn dry_run_says_what_would_be_done_and_does_nothing() {
    let here = Scratch::new();
    let line = "prune {tiny-olmoe} --metric weights --replace zero --keep 10";
    let said = here.locum(&format!("{line} --dry-run"));
    assert!(said.contains("    0       16      16     10  "), "{said}");
    assert!(
        said.contains("weights 7.89 MB before, 5.53 MB after (70.2 %), in 1 file"),
        "{said}"
    );
    assert!(
        said.contains("no model was written: this was a dry run"),
        "{said}"
    );
    assert_eq!(here.names(), Vec::<String>::new());
    // What it said is what comes of it.
    let dry = here.json(&format!(
        "{line} --dry-run --out {{out}} --max-shard-size 1MB"
    ));
    assert_eq!(dry["out"], Value::Null);
    let done = here.json(&format!("{line} --out {{out}} --max-shard-size 1MB"));
    for field in ["bytes_before", "bytes_after", "files", "layers"] {
        assert_eq!(dry[field], done[field], "{field}");
    }
    let shards = names(&here.path("out"));
    let shards = shards.iter().filter(|name| name.ends_with(".safetensors"));
    assert_eq!(done["files"], shards.count());
}

#[test]
fn weights_need_no_calibration_and_chance_is_repeatable() {
    let here = Scratch::new();
    let ids = |line: &str| {
        let report = here.json(&format!(
            "prune {{tiny-olmoe}} --replace zero --keep 12 --dry-run {line}"
        ));
        report["layers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["substituted"].clone())
            .collect()
    };
    let by_chance: Vec<Value> = ids("--metric random --seed 7");
    assert_eq!(by_chance, ids("--metric random --seed 7"));
    assert_ne!(by_chance, ids("--metric random --seed 8"));
    // The norms, computed here from the file.
    let bytes = std::fs::read(fixture(MODEL).join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut norms: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (name, view) in file.iter() {
        let parts: Vec<&str> = name.split('.').collect();
        if let ["model", "layers", layer, "mlp", "experts", expert, ..] = parts[..] {
            let (elements, _) = view.data().as_chunks::<2>();
            let squares = elements.iter().map(|element| {
                let element = f64::from(f32::from_le_bytes([0, 0, element[0], element[1]]));
                element * element
            });
            let key = (layer.parse().unwrap(), expert.parse().unwrap());
            *norms.entry(key).or_default() += squares.sum::<f64>();
        }
    }
    let smallest = |layer: usize| {
        let mut experts: Vec<usize> = (0..16).collect();
        experts.sort_by(|a, b| norms[&(layer, *a)].total_cmp(&norms[&(layer, *b)]));
        let mut four = experts[..4].to_vec();
        four.sort_unstable();
        json!(four)
    };
    assert_eq!(
        ids("--metric weights"),
        (0..4).map(smallest).collect::<Vec<_>>()
    );
}

#[test]
fn experts_without_a_token_get_zero_and_are_named() {
    let here = Scratch::new();
    std::fs::write(here.path("few.txt"), "The Lord said unto Moses, go.").unwrap();
    here.locum("calibrate {tiny-olmoe} --text {few.txt} --length 4 --sequences 1 --out {stats}");
    let line = "prune {tiny-olmoe} --stats {stats} --keep 2 --plan-out {plan}";
    let report = here.json(&format!("{line} --out {{out}}"));
    let never = report["never_routed"].as_array().unwrap();
    let plan = read(&here.path("plan"));
    let without = plan["layers"].as_array().unwrap().iter().flat_map(|layer| {
        let planned = layer["substituted"].as_array().unwrap().iter();
        let without = planned.filter(|planned| planned["tokens"] == 0);
        without.map(|planned| json!({ "layer": layer["layer"], "expert": planned["expert"] }))
    });
    assert_eq!(*never, without.collect::<Vec<_>>());
    assert!(never.len() > 10, "four tokens do not meet most experts");
    let bytes = std::fs::read(here.path("out/model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for key in never {
        let name = format!(
            "model.layers.{}.mlp.experts.{}.approx_value",
            key["layer"], key["expert"]
        );
        assert!(
            file.tensor(&name)
                .unwrap()
                .data()
                .iter()
                .all(|byte| *byte == 0),
            "{name}"
        );
    }
    let said = here.locum(&format!("{line} --dry-run"));
    let first = &never[0];
    let part = format!(
        "never routed in calibration, so their constants are zero: layer {} expert {}",
        first["layer"], first["expert"]
    );
    assert!(said.contains(&part), "{said}");
}

#[test]
fn pruned_model_is_pruned_further() {
    let here = Scratch::new();
    here.calibrate();
    here.locum("prune {tiny-olmoe} --stats {stats} --ratio 0.25 --out {first}");
    here.locum("calibrate {first} --text {text.txt} --length 128 --out {stats2}");
    let report =
        here.json("prune {first} --stats {stats2} --ratio 0.25 --format explicit --out {second}");
    assert_eq!(report["layers"][0]["retained_before"], 12);
    assert_eq!(report["layers"][0]["retained_after"], 9);
    let inspected = here.json("inspect --model {second}");
    assert_eq!(
        inspected["layers"][0]["substituted"]
            .as_array()
            .unwrap()
            .len(),
        7
    );
    // Statistics of the model that it was made from are another model's.
    let arguments = here.arguments("prune {first} --stats {stats} --ratio 0.25 --out {no}");
    let refused = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("of another model"));
}

#[test]
fn existing_directory_is_replaced_where_that_is_said() {
    let here = Scratch::new();
    let line = "prune {tiny-olmoe} --metric weights --replace zero --out {out}";
    here.locum(&format!("{line} --keep 12"));
    let extra = here.path("out/model-00002-of-00002.safetensors");
    std::fs::write(&extra, "of the old one").unwrap();
    here.locum(&format!("{line} --keep 8 --force"));
    let config = read(&here.path("out/config.json"));
    assert_eq!(
        config["approximate_experts"]["0"].as_array().unwrap().len(),
        8
    );
    assert!(!extra.exists());
    assert_eq!(here.names(), ["out"]);
}

/// The ids that the reference drew, from its file.
#[test]
fn given_experts_are_the_ones_that_go() {
    let here = Scratch::new();
    let reference = read(&fixture("mone/mone_stats.json"));
    for (name, count) in [("25_random_seed0", 4), ("50_random_seed0", 8)] {
        let ids = &reference["pruned"][name];
        assert_eq!(ids["3"].as_array().unwrap().len(), count);
        std::fs::write(here.path(name), ids.to_string()).unwrap();
        here.locum(&format!(
            "prune {{tiny-olmoe}} --experts {{{name}}} --replace zero --out {{out-{name}}} \
             --plan-out {{plan-{name}}}"
        ));
        let plan = read(&here.path(&format!("plan-{name}")));
        assert_eq!(plan["settings"], Value::Null);
        let layers = plan["layers"].as_array().unwrap().iter();
        let planned: serde_json::Map<String, Value> = layers
            .map(|layer| {
                assert_eq!(layer["num_logical_experts"], 16);
                let experts = layer["substituted"].as_array().unwrap().iter();
                let experts = experts.map(|planned| planned["expert"].clone());
                (layer["layer"].to_string(), experts.collect())
            })
            .collect();
        assert_eq!(Value::Object(planned), *ids);
        let config = read(&here.path(&format!("out-{name}")).join("config.json"));
        assert_eq!(config["approximate_experts"], *ids);
    }
}

/// Names of files are bytes, and JSON has text.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_text_are_shown() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let here = Scratch::new();
    let model = here.directory.path().join(OsStr::from_bytes(b"m\xff"));
    let out = here.directory.path().join(OsStr::from_bytes(b"out\xff"));
    std::fs::create_dir(&model).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture(MODEL).join(name), model.join(name)).unwrap();
    }
    std::fs::write(model.join(OsStr::from_bytes(b"w\xff.bin")), "").unwrap();
    let mut command = common::locum(&["prune", "--metric", "weights", "--replace", "zero"]);
    command.args(["--keep", "8", "--json", "--out"]);
    let output = command.arg(&out).arg(&model).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ends = |field: &str, end: &str| report[field].as_str().unwrap().ends_with(end);
    assert!(ends("model", "/m\u{fffd}") && ends("out", "/out\u{fffd}"));
    assert_eq!(report["left_out"], json!(["w\u{fffd}.bin"]));
    assert!(out.join("model.safetensors").is_file());
}

/// Files in directories, hidden ones, weights in other forms.
#[test]
fn other_files_are_copied_but_for_weights_hidden_ones_and_links() {
    let here = Scratch::new();
    let model = here.path("model");
    std::fs::create_dir_all(model.join("code/deep")).unwrap();
    std::fs::create_dir(model.join(".git")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture(MODEL).join(name), model.join(name)).unwrap();
    }
    let written = [
        (".git/config", "hidden"),
        (".gitattributes", "hidden"),
        ("LICENSE", "text"),
        ("chat_template.jinja", "{{ messages }}"),
        ("code/deep/modeling.py", "pass"),
        ("code/pytorch_model.bin", "weights"),
        ("model-Q4.GGUF", "weights"),
        ("model.safetensors.index.json", "{}"),
        ("pytorch_model.bin.index.json", "{}"),
    ];
    for (name, content) in written {
        std::fs::write(model.join(name), content).unwrap();
    }
    #[cfg(unix)]
    {
        // As the Hugging Face cache has its files.
        std::fs::write(here.path("blob"), "vocabulary").unwrap();
        for (to, name) in [
            ("../blob", "vocab.txt"),
            ("code", "link"),
            ("nothing", "merges.txt"),
        ] {
            std::os::unix::fs::symlink(to, model.join(name)).unwrap();
        }
    }
    let line = "prune {model} --metric weights --replace zero --keep 8 --out {out}";
    let said = here.locum(&format!("{line} --dry-run"));
    let report = here.json(line);
    let mut left_out = vec![
        ".git",
        ".gitattributes",
        "code/pytorch_model.bin",
        "model-Q4.GGUF",
        "model.safetensors.index.json",
        "pytorch_model.bin.index.json",
    ];
    let first = "not copied: .git (hidden), .gitattributes (hidden), code/pytorch_model.bin (weights that \
                 are not read), ";
    assert!(said.contains(first), "{said}");
    if cfg!(unix) {
        left_out.extend(["link", "merges.txt"]);
        left_out.sort_unstable();
        let links = "link (a link to a directory), merges.txt (a link to nothing), ";
        assert!(said.contains(links), "{said}");
    }
    assert_eq!(report["left_out"], json!(left_out));
    let mut expected = vec![
        "LICENSE",
        "chat_template.jinja",
        "code",
        "config.json",
        "model.safetensors",
    ];
    if cfg!(unix) {
        expected.push("vocab.txt");
        let vocabulary = here.path("out/vocab.txt");
        assert!(!std::fs::symlink_metadata(&vocabulary).unwrap().is_symlink());
        assert_eq!(std::fs::read_to_string(vocabulary).unwrap(), "vocabulary");
    }
    assert_eq!(names(&here.path("out")), expected);
    let code = std::fs::read_to_string(here.path("out/code/deep/modeling.py")).unwrap();
    assert_eq!(code, "pass");
    assert_eq!(names(&here.path("out/code")), ["deep"]);
}
