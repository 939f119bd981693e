//! `locum eplb`, from outside.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// A folder with load files.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.path(name), contents).unwrap();
        self
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_locum"));
        command
            .arg("eplb")
            .args(arguments.split_whitespace())
            .current_dir(self.0.path());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Standard output of a run that must succeed, without a word on standard error.
    fn succeeds(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments}: {errors}");
        assert_eq!(errors, "", "{arguments}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line of a run that must fail: exit code 2, nothing on standard output, nothing
    /// written.
    fn fails(&self, arguments: &str) -> String {
        let before = self.names();
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments}");
        assert_eq!(self.names(), before, "{arguments}");
        let line = errors
            .strip_suffix('\n')
            .unwrap_or_else(|| panic!("{arguments}: {errors:?}"));
        assert!(!line.contains('\n'), "{arguments}: {line}");
        line.strip_prefix("error: ")
            .unwrap_or_else(|| panic!("{arguments}: {line}"))
            .to_owned()
    }

    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.succeeds(arguments)).unwrap()
    }
}

const POPULAR: &str = "[[600, 560, 120, 120, 20, 10, 10, 10]]";

fn popular() -> Folder {
    let folder = Folder::new();
    folder.write("loads.json", POPULAR);
    folder
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_table_per_layer_and_totals() {
    let text = popular().succeeds("plan --load loads.json --ranks 8 --slots 16");
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        lines[0],
        [
            "layer", "experts", "slots", "replicas", "mean", "load", "maximum", "bound", "gap",
            "%", "balance"
        ]
    );
    assert_eq!(
        lines[1],
        [
            "0", "8", "16", "1–5", "181.2", "196.7", "181.2", "8.506", "0.9216"
        ]
    );
    assert!(text.contains("\nbalancedness  0.9216\n"), "{text}");
    assert!(
        text.contains("above the lower bound (mean rank load in 1 of 1 layer)"),
        "{text}"
    );
}

#[test]
fn json_has_the_plans_fields() {
    let folder = popular();
    let plan = folder.json("plan --load loads.json --ranks 8 --slots 16 --json");
    assert_eq!(plan["logical_count"], json!([[5, 3, 2, 2, 1, 1, 1, 1]]));
    assert_eq!(
        plan["physical_to_logical_map"][0].as_array().unwrap().len(),
        16
    );
    assert!((plan["balancedness"].as_f64().unwrap() - 181.25 * 3.0 / 590.0).abs() < 1e-12);
    assert_eq!(
        (
            plan["lower_bound"].as_f64(),
            plan["moves"].as_u64(),
            plan["bytes"].as_u64()
        ),
        (Some(181.25), Some(0), Some(0))
    );
    assert!(
        plan["gap"].as_f64().unwrap() > 0.08
            && plan["reason"].is_string()
            && plan["logical_to_physical_map"].is_array()
    );
}

#[test]
fn all_load_files_give_the_same_plan() {
    let folder = popular();
    folder.write("loads.csv", "# one layer\n600,560,120,120,20,10,10,10\n");
    let loads: Vec<u8> = [600.0_f32, 560.0, 120.0, 120.0, 20.0, 10.0, 10.0, 10.0]
        .iter()
        .flat_map(|load| load.to_le_bytes())
        .collect();
    let counts: Vec<u8> = [600_i64, 560, 120, 120, 20, 10, 10, 10]
        .iter()
        .flat_map(|load| load.to_le_bytes())
        .collect();
    let view =
        |dtype, bytes| safetensors::tensor::TensorView::new(dtype, vec![1, 8], bytes).unwrap();
    let float = view(safetensors::Dtype::F32, &loads);
    let integer = view(safetensors::Dtype::I64, &counts);
    folder.write(
        "one.safetensors",
        safetensors::serialize([("loads", &float)], None).unwrap(),
    );
    folder.write(
        "two.safetensors",
        safetensors::serialize([("loads", &float), ("counts", &integer)], None).unwrap(),
    );
    let expected = folder.json("plan --load loads.json --ranks 8 --slots 16 --json");
    for load in [
        "loads.csv",
        "one.safetensors",
        "two.safetensors --tensor counts",
    ] {
        assert_eq!(
            folder.json(&format!("plan --load {load} --ranks 8 --slots 16 --json")),
            expected,
            "{load}"
        );
    }
    let message = folder.fails("plan --load two.safetensors --ranks 8 --slots 16");
    assert_eq!(
        message,
        "two.safetensors: there are 2 tensors (counts, loads); choose one with --tensor"
    );
    let message = folder.fails("plan --load two.safetensors --tensor none --ranks 8 --slots 16");
    assert_eq!(
        message,
        "two.safetensors: there is no tensor none; there are counts, loads"
    );
}

#[test]
fn every_planner_can_be_chosen() {
    let folder = popular();
    let most = |planner: &str| {
        let plan = folder.json(&format!(
            "plan --load loads.json --ranks 8 --slots 16 --planner {planner} --json"
        ));
        assert_eq!(plan["planner"], planner);
        plan["layers"][0]["maximum"].as_f64().unwrap()
    };
    assert!((most("greedy") - 232.0).abs() < 1e-9);
    assert!((most("deepseek") - 232.0).abs() < 1e-3);
    assert!((most("refined") - 590.0 / 3.0).abs() < 1e-9);
    assert!((most("incremental") - 590.0 / 3.0).abs() < 1e-9);
}

#[test]
fn a_plan_is_written_and_planned_from() {
    let folder = popular();
    folder.write("later.json", "[[300, 560, 120, 120, 320, 10, 10, 10]]");
    let printed = folder.json("plan --load loads.json --ranks 8 --slots 16 --out plan.json --json");
    assert_eq!(read(&folder.path("plan.json")), printed);
    let text = folder.succeeds("plan --load later.json --ranks 8 --slots 16 --current plan.json --max-moves 3 --expert-bytes 1000");
    assert!(text.contains("planner       incremental"), "{text}");
    let plan = folder.json("plan --load later.json --ranks 8 --slots 16 --current plan.json --max-moves 3 --expert-bytes 1000 --json");
    let moves = plan["moves"].as_u64().unwrap();
    assert!(moves > 0 && moves <= 3 && plan["bytes"] == 1000 * moves);
    assert!(plan["balancedness"].as_f64() > plan["balancedness_before"].as_f64());
    let by_bytes = folder.json("plan --load later.json --ranks 8 --slots 16 --current plan.json --max-bytes 2000 --expert-bytes 1000 --json");
    assert!(by_bytes["bytes"].as_u64().unwrap() <= 2000);
    // The same loads again: no move pays.
    let same = folder.json("plan --load loads.json --ranks 8 --slots 16 --current plan.json --planner incremental --json");
    assert_eq!(
        (same["moves"].as_u64(), &same["physical_to_logical_map"]),
        (Some(0), &printed["physical_to_logical_map"])
    );
}

#[test]
fn engine_formats_are_written_and_read() {
    let folder = popular();
    for format in ["sglang", "vllm", "vllm-ascend"] {
        let out = format!(
            "plan --load loads.json --ranks 8 --slots 16 --out {format}.json --format {format}"
        );
        folder.succeeds(&out);
        let again = folder.json(&format!(
            "plan --load loads.json --ranks 8 --slots 16 --current {format}.json --json"
        ));
        assert_eq!(again["moves"], 0, "{format}");
    }
    assert!(read(&folder.path("vllm.json")).is_array());
    folder.succeeds(
        "plan --load loads.json --ranks 8 --slots 16 --out all.json --format sglang --hidden-layers 3 --first-moe-layer 2",
    );
    let rows = read(&folder.path("all.json"));
    assert_eq!(rows.as_object().unwrap().len(), 1);
    assert_eq!(rows["physical_to_logical_map"].as_array().unwrap().len(), 3);
    let again = folder.json(
        "plan --load loads.json --ranks 8 --slots 16 --current all.json --hidden-layers 3 --first-moe-layer 2 --json",
    );
    assert_eq!(again["moves"], 0);
}

#[test]
fn the_picture_shows_before_after_axes_and_mean() {
    let folder = popular();
    folder.succeeds("plan --load loads.json --ranks 8 --slots 16 --svg first.svg --out plan.json");
    folder.succeeds(
        "plan --load loads.json --ranks 8 --slots 16 --current plan.json --svg second.svg",
    );
    for (name, before) in [
        ("first.svg", "Experts in order"),
        ("second.svg", "Current placement"),
    ] {
        let svg = std::fs::read_to_string(folder.path(name)).unwrap();
        for part in [
            before,
            "Plan",
            "mean",
            "rank",
            "load relative to the mean",
            "balancedness 0.9216",
            "stroke-dasharray",
        ] {
            assert!(svg.contains(part), "{name}: {part}");
        }
        // One bar per rank and panel, and nothing from elsewhere.
        assert_eq!(svg.matches("<title>rank ").count(), 16);
        assert!(
            svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")
                && svg.ends_with("</svg>\n")
        );
        assert!(!svg.contains("href") && !svg.contains("url(") && svg.matches("http").count() == 1);
    }
}

#[test]
fn windows_uneven_slots_speeds_groups_and_dead_ranks() {
    let folder = Folder::new();
    folder.write(
        "windows.json",
        "[[[4, 4, 2, 2], [1, 2]], [[4, 4, 2, 2], [3, 2]]]",
    );
    let plan = folder.json("plan --load windows.json --ranks 2 --slots 5,3 --uneven --z 0 --json");
    assert_eq!(plan["logical_count"][0].as_array().unwrap().len(), 4);
    assert_eq!(
        plan["physical_to_logical_map"][1].as_array().unwrap().len(),
        3
    );
    let plan = folder.json(
        "plan --load windows.json --ranks 4 --nodes 2 --groups 2 --slots 8 --dead-ranks 3 --json",
    );
    assert_eq!(plan["physical_to_logical_map"][0][6], -1);
    let plan = folder.json("plan --load windows.json --ranks 2 --slots 4 --speeds 1,3 --json");
    assert_eq!(plan["layers"][0]["mean"], 3.0);
    folder.write("current.json", "[[0, 1, 2, 3, 0, 1], [0, 1, 0, 1, 0, 1]]");
    let message = folder.fails(
        "plan --load windows.json --ranks 3 --slots 6 --current current.json --dead-ranks 1",
    );
    assert!(
        message.ends_with("allow reloading from the checkpoint (--reload)"),
        "{message}"
    );
    let text = folder.succeeds(
        "plan --load windows.json --ranks 3 --slots 6 --current current.json --dead-ranks 1 --reload --svg lost.svg",
    );
    // Layer 0 lost experts 2 and 3, layer 1 none.
    let before = |line: usize| {
        text.lines()
            .nth(line)
            .unwrap()
            .split_whitespace()
            .nth(5)
            .unwrap()
    };
    assert_eq!((before(1), before(2)), ("–", "2.000"), "{text}");
    assert!(
        text.contains("some experts are on no live rank now"),
        "{text}"
    );
    let svg = std::fs::read_to_string(folder.path("lost.svg")).unwrap();
    assert!(svg.contains("Experts in order"));
}

#[test]
fn simulate_serves_each_window_with_the_plan_of_the_one_before() {
    let folder = Folder::new();
    // Two experts take turns at being popular: a plan on one window is wrong for the next.
    folder.write(
        "windows.json",
        "[[[9, 1, 1, 1]], [[1, 9, 1, 1]], [[9, 1, 1, 1]]]",
    );
    let report = folder.json("simulate --load windows.json --ranks 3 --slots 6 --json");
    let windows = report["windows"].as_array().unwrap();
    let numbers: Vec<_> = windows.iter().map(|window| &window["window"]).collect();
    assert_eq!(numbers, [1, 2]);
    for window in windows {
        // Three ranks with a third of the popular expert and one other: 4, 4 and 4. Served: 9 and a
        // third of 1 on some rank.
        assert_eq!(window["planned_balancedness"], 1.0);
        let served = window["served_balancedness"].as_f64().unwrap();
        assert!((served - 4.0 / (9.0 + 1.0 / 3.0)).abs() < 1e-12, "{served}");
    }
    // With both windows in the history, both popular experts have two replicas.
    let longer = folder.json("simulate --load windows.json --ranks 3 --slots 6 --history 2 --json");
    let served = longer["windows"][1]["served_balancedness"]
        .as_f64()
        .unwrap();
    assert!(served > 0.7, "{served}");
    let text = folder.succeeds("simulate --load windows.json --ranks 3 --slots 6 --max-moves 0");
    assert!(
        text.contains("planner   incremental") && text.contains("moves     0 in 2 plans"),
        "{text}"
    );
    let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[..3], ["1", "0", "–"]);
    let text = folder.succeeds(
        "simulate --load windows.json --ranks 3 --slots 6 --max-moves 0 --expert-bytes 8",
    );
    let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[..4], ["1", "0", "0", "B"]);
    folder.write("two.json", "[[[9, 1, 1, 1]], [[1, 9, 1, 1]]]");
    let text = folder.succeeds("simulate --load two.json --ranks 3 --slots 6 --max-moves 0");
    assert!(text.contains("moves     0 in 1 plan\n"), "{text}");
}

#[test]
fn wrong_loads_are_one_line_that_names_file_and_place() {
    let folder = Folder::new();
    for (name, contents, expected) in [
        (
            "a.json",
            "[[1, -2]]",
            "a.json: window 0, layer 0, expert 1: load -2 is not a finite number of at least 0; remove the window or record it again",
        ),
        (
            "b.json",
            "[[1, null]]",
            "b.json: loads[0][1]: expected a number, found null",
        ),
        (
            "c.json",
            "[[1, NaN]]",
            "c.json: not valid JSON: expected value at line 1 column 6",
        ),
        (
            "d.json",
            "[[1, 1e999]]",
            "d.json: not valid JSON: number out of range at line 1 column 10",
        ),
        (
            "e.json",
            "[]",
            "e.json: there are no layers; expected [layers][experts] or [windows][layers][experts] numbers",
        ),
        (
            "f.json",
            "[[]]",
            "f.json: experts of layer 0: expected at least one, found none",
        ),
        (
            "g.json",
            "[[[1, 2]], [[1]]]",
            "g.json: window 1, layer 0: expected 2 experts, as in window 0, found 1",
        ),
        (
            "g.json",
            "[[[1]], [[1], [1]]]",
            "g.json: window 1: expected 1 layer, as in window 0, found 2",
        ),
        (
            "h.json",
            "[[18446744073709551616]]",
            "h.json: window 0, layer 0, expert 0: load 1.8446744073709552e19 is above 2^53 and cannot be held exactly; record shorter windows or scale the loads down",
        ),
        (
            "h.csv",
            "1e300",
            "h.csv: window 0, layer 0, expert 0: load 1e300 is above 2^53 and cannot be held exactly; record shorter windows or scale the loads down",
        ),
        (
            "h.json",
            "[[9007199254740993]]",
            "h.json: loads[0][0]: load 9007199254740993 is above 2^53 and cannot be held exactly; record shorter windows or scale the loads down",
        ),
        (
            "i.csv",
            "1,inf\n",
            "i.csv: window 0, layer 0, expert 1: load inf is not a finite number of at least 0; remove the window or record it again",
        ),
        (
            "j.csv",
            "layer,load\n",
            "j.csv: line 1, column 1: expected a number, found \"layer\"; a line is a layer, a column an expert",
        ),
        ("k.csv", "", "`k.csv` is empty: download or copy it again"),
        (
            "k.csv",
            "# none",
            "k.csv: there are no layers; expected [layers][experts] or [windows][layers][experts] numbers",
        ),
        (
            "k.json",
            "version https://git-lfs.github.com/spec/v1\n",
            "`k.json` is a Git LFS pointer, not the file itself: run `git lfs pull` in its directory",
        ),
        (
            "l.safetensors",
            "x",
            "l.safetensors: not a safetensors file: ",
        ),
        (
            "m.txt",
            "1",
            "m.txt: the name of a load file ends with .json, .csv or .safetensors",
        ),
    ] {
        folder.write(name, contents);
        let message = folder.fails(&format!(
            "plan --load {name} --ranks 1 --slots 2 --out out.json --svg out.svg"
        ));
        assert!(message.starts_with(expected), "{message}");
    }
    for shape in ["[0,1099511627776,1099511627776]", "[0,0]", "[1,0,1]"] {
        let header =
            format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[0,0]}}}}");
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        folder.write("n.safetensors", file);
        let message = folder.fails("plan --load n.safetensors --ranks 1 --slots 2");
        assert!(
            message.starts_with("n.safetensors: tensor a: shape ["),
            "{message}"
        );
    }
    let message = folder.fails("plan --load missing.json --ranks 1 --slots 2");
    assert!(
        message.starts_with("cannot open `missing.json`: "),
        "{message}"
    );
}

#[test]
fn wrong_arguments_are_one_line_that_says_what_to_do() {
    let folder = popular();
    let base = "plan --load loads.json --out out.json --svg out.svg";
    for (arguments, expected) in [
        (
            "--ranks 8 --slots 7",
            "--slots: layer 0: 7 slots on live ranks cannot hold 8 experts; use at least 8 slots on live ranks",
        ),
        (
            "--ranks 8 --slots 18",
            "--slots: layer 0: 18 slots are not a multiple of 8 ranks; use 16 or 24 slots, or allow uneven slots (--uneven)",
        ),
        (
            "--ranks 8 --slots 16 --groups 3",
            "--groups: layer 0: 8 experts cannot be divided into 3 groups; use a divisor of 8, or 1",
        ),
        (
            "--ranks 8 --slots 16 --nodes 3",
            "--nodes: 8 ranks cannot be divided among 3 nodes; use nodes with the same number of ranks, or 1 node",
        ),
        (
            "--ranks 0 --slots 16",
            "--ranks: expected at least one, found none",
        ),
        (
            "--ranks 8 --slots 16,16",
            "--slots: expected 1 entry, one per layer, found 2",
        ),
        (
            "--ranks 8 --slots 16 --speeds 1,2",
            "--speeds: expected 8 entries, one per rank, found 2",
        ),
        (
            "--ranks 8 --slots 16 --dead-ranks 8",
            "--dead-ranks: there is no rank 8; ranks are 0 to 7",
        ),
        (
            "--ranks 8 --slots 16 --z -1",
            "--z: -1 is not a number from 0 to 1e6; use 0 for the mean alone",
        ),
        (
            "--ranks 8 --slots 16 --planner greedy --max-moves 3",
            "--max-moves is for --planner incremental; leave one of them out",
        ),
        (
            "--ranks 8 --slots 16 --max-bytes 3",
            "--max-bytes: give the bytes of one expert with --expert-bytes",
        ),
        (
            "--ranks 8 --slots 16 --tensor x",
            "loads.json: --tensor is for .safetensors files; leave it out",
        ),
        (
            "--ranks 8 --slots 16 --first-moe-layer 3",
            "--first-moe-layer: give the number of all layers with --hidden-layers",
        ),
        (
            "--ranks 8 --slots 16 --format sglang --hidden-layers 3 --first-moe-layer 3",
            "--hidden-layers: 3 hidden layers cannot hold 1 MoE layer from layer 3 on; layers count from 0",
        ),
        (
            "--ranks 8 --slots 18446744073709551615 --uneven",
            "--slots: slots of a layer: 18446744073709551615 is above the limit of 1048576",
        ),
        (
            "--ranks 8 --slots 18 --uneven --format vllm",
            "--format: layer 0: vLLM needs as many slots on every rank: 18 slots are not a multiple of 8 ranks",
        ),
    ] {
        assert_eq!(folder.fails(&format!("{base} {arguments}")), expected);
    }
    let message = folder.fails("simulate --load loads.json --ranks 8 --slots 16");
    assert_eq!(
        message,
        "loads.json: 1 window; a plan on one serves the next, so at least 2 are needed"
    );
    let message = folder.fails("simulate --load loads.json --ranks 8 --slots 16 --history 0");
    assert_eq!(message, "--history: 0 windows; use at least 1");
}

#[test]
fn numbers_out_of_range_are_one_line_that_names_the_option() {
    let folder = popular();
    folder.succeeds("plan --load loads.json --ranks 8 --slots 16 --out plan.json");
    let current = "--current plan.json --ranks 8 --slots 16";
    let below = |option: &str| format!("{option}: -1 is below 0; use a whole number of at least 0");
    for (arguments, expected) in [
        ("--ranks -1 --slots 16".into(), below("--ranks")),
        ("--ranks 8 --slots -1".into(), below("--slots")),
        ("--ranks 8 --slots 16 --nodes -1".into(), below("--nodes")),
        ("--ranks 8 --slots 16 --groups -1".into(), below("--groups")),
        (format!("{current} --max-moves -1"), below("--max-moves")),
        (
            format!("{current} --max-bytes -1 --expert-bytes 1"),
            below("--max-bytes"),
        ),
        (
            format!("{current} --expert-bytes -1"),
            below("--expert-bytes"),
        ),
        (
            "--ranks 8 --slots 16 --format sglang --hidden-layers -1".into(),
            below("--hidden-layers"),
        ),
        (
            format!("{current} --max-moves 36893488147419103232"),
            "--max-moves: 36893488147419103232 is above every possible number; use a smaller one"
                .into(),
        ),
        (
            format!("{current} --min-gain -1"),
            "--min-gain: -1 is not from 0 to 1; use 0.01 for 1 %".into(),
        ),
        (
            "--ranks 8 --slots 16 --z 1e308".into(),
            "--z: 1e308 is not a number from 0 to 1e6; use 0 for the mean alone".into(),
        ),
        (
            "--ranks 8 --slots 16 --groups 0".into(),
            "--groups: 0 groups; use 1 for a model without expert groups".into(),
        ),
        (
            "--ranks 8 --slots 16 --dead-ranks -1".into(),
            "--dead-ranks: there is no rank -1; ranks are 0 to 7".into(),
        ),
        (
            "--ranks 8 --slots 16 --dead-ranks 0,2,0".into(),
            "--dead-ranks: rank 0 is given twice; give each once".into(),
        ),
        (
            "--ranks 1 --slots 8 --speeds 1e-320".into(),
            "--speeds: speed of rank 0: 1e-320 is outside 1e-9 to 1e9; speeds are relative: scale them to about 1".into(),
        ),
        (
            "--ranks 1 --slots 8 --nodes 2".into(),
            "--nodes: 1 rank cannot be divided among 2 nodes; use nodes with the same number of ranks, or 1 node".into(),
        ),
    ] {
        let message = folder.fails(&format!(
            "plan --load loads.json --out out.json {arguments}"
        ));
        assert_eq!(message, expected, "{arguments}");
    }
    let message = folder.fails("simulate --load loads.json --ranks 8 --slots 16 --history -1");
    assert_eq!(message, below("--history"));
}

#[test]
fn budgets_that_are_too_small_name_the_option() {
    let folder = Folder::new();
    folder.write("loads.json", "[[4, 3, 2, 1]]");
    // Rank 1 alone has expert 3, and there is no room left for it without a move.
    folder.write("current.json", "[[0, 1, 2, 0, 3, 0, 1, 2, 0]]");
    let plan = "plan --load loads.json --ranks 3 --slots 9 --current current.json --dead-ranks 1 --reload --expert-bytes 5";
    assert_eq!(
        folder.fails(&format!("{plan} --max-moves 0")),
        "--max-moves: keeping every expert present takes 1 move, and the budget is 0; raise it"
    );
    assert_eq!(
        folder.fails(&format!("{plan} --max-bytes 4")),
        "--max-bytes: keeping every expert present takes 5 bytes, and the budget is 4; raise it"
    );
    let text = folder.succeeds(&format!("{plan} --max-moves 1"));
    assert!(text.contains("1 move keeps every expert present"), "{text}");
}

#[test]
fn options_that_would_change_nothing_are_refused() {
    let folder = popular();
    folder.succeeds("plan --load loads.json --ranks 8 --slots 16 --out plan.json");
    let unused_layers = "--hidden-layers is for --format sglang, and for a --current file of SGLang that has a row for each of these layers; leave it out";
    for (arguments, expected) in [
        (
            "--format vllm",
            "--format: the table has no other format; add --json or --out FILE",
        ),
        (
            "--max-moves 3",
            "--max-moves: moves are counted from the placement in use; give it with --current",
        ),
        (
            "--max-bytes 3 --expert-bytes 1",
            "--max-bytes: moves are counted from the placement in use; give it with --current",
        ),
        (
            "--min-gain 0.5",
            "--min-gain: moves are counted from the placement in use; give it with --current",
        ),
        (
            "--reload",
            "--reload: experts are lost from the placement in use; give it with --current",
        ),
        ("--hidden-layers 3", unused_layers),
        ("--hidden-layers 3 --format vllm --json", unused_layers),
        ("--hidden-layers 3 --current plan.json", unused_layers),
        (
            "--first-moe-layer 0",
            "--first-moe-layer: give the number of all layers with --hidden-layers",
        ),
    ] {
        let message = folder.fails(&format!(
            "plan --load loads.json --ranks 8 --slots 16 {arguments}"
        ));
        assert_eq!(message, expected, "{arguments}");
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_are_refused_without_being_read() {
    let folder = popular();
    let made = Command::new("mkfifo").arg(folder.path("pipe.csv")).status();
    assert!(made.unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", folder.path("zero.json")).unwrap();
    for (arguments, name) in [
        ("--load pipe.csv", "pipe.csv"),
        ("--load zero.json", "zero.json"),
        ("--load loads.json --current pipe.csv", "pipe.csv"),
        ("--load loads.json --current zero.json", "zero.json"),
    ] {
        assert_eq!(
            folder.fails(&format!("plan {arguments} --ranks 8 --slots 16")),
            format!("`{name}` is not a regular file")
        );
    }
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_that_is_read_is_no_output() {
    let folder = popular();
    std::os::unix::fs::symlink("loads.json", folder.path("link.json")).unwrap();
    for (load, out) in [("loads.json", "link.json"), ("link.json", "loads.json")] {
        assert_eq!(
            folder.fails(&format!(
                "plan --load {load} --ranks 8 --slots 16 --out {out}"
            )),
            format!("--out and --load both name {out}; name another file with --out")
        );
    }
}

#[test]
fn byte_order_marks_are_passed_over() {
    let folder = popular();
    let expected = folder.json("plan --load loads.json --ranks 8 --slots 16 --json");
    let marked = |text: &str| format!("\u{feff}{text}");
    folder.write("marked.json", marked(POPULAR));
    folder.write("marked.csv", marked("600,560,120,120,20,10,10,10\n"));
    folder.write("current.json", marked(&expected.to_string()));
    for load in ["marked.json", "marked.csv"] {
        let plan = folder.json(&format!("plan --load {load} --ranks 8 --slots 16 --json"));
        assert_eq!(plan, expected, "{load}");
    }
    let again =
        folder.json("plan --load marked.csv --ranks 8 --slots 16 --current current.json --json");
    assert_eq!(again["moves"], 0);
}

#[test]
fn help_has_examples_that_run_and_lines_that_fit() {
    let folder = Folder::new();
    for command in ["", "plan", "simulate"] {
        let text = folder.succeeds(&format!("{command} --help"));
        let (_, example) = text.split_once("\nExample:\n").unwrap();
        assert!(example.contains("  locum eplb "), "{text}");
        for line in example.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    let text = folder.succeeds("--help");
    let loads = text.split_once("printf '").unwrap().1;
    let (loads, rest) = loads.split_once("\\n' > loads.csv\n  locum eplb ").unwrap();
    folder.write("loads.csv", loads);
    assert!(
        folder
            .succeeds(rest.trim())
            .contains("balancedness  0.9216")
    );
}

#[test]
fn wrong_current_placements_are_one_line() {
    let folder = popular();
    let mut plan = folder.json("plan --load loads.json --ranks 8 --slots 16 --json");
    let mut counts = plan.clone();
    counts["logical_count"][0][7] = json!(3);
    folder.write("counts.json", counts.to_string());
    plan["logical_to_physical_map"][0][7] = json!([3]);
    folder.write("inverse.json", plan.to_string());
    folder.write("layers.json", "[[0, 1, 2, 3], [0, 1, 2, 3]]");
    folder.write("empty.json", "");
    folder.write("short.json", "[[0, 1, 2, 3, 4, 5, 6, 7]]");
    folder.write(
        "unknown.json",
        "[[0, 1, 2, 3, 4, 5, 6, 8, 0, 0, 0, 0, 0, 0, 0, 0]]",
    );
    folder.write("text.json", "plan");
    folder.write("other.json", "{}");
    for (name, expected) in [
        ("inverse.json", "inverse.json: layer 0, slot "),
        (
            "short.json",
            "short.json: layer 0 of the current placement: expected 8 experts in 16 slots on 8 ranks, found 8 experts in 8 slots on 8 ranks",
        ),
        (
            "unknown.json",
            "unknown.json: layer 0, slot 7: expert 8 is not one of the layer's 8",
        ),
        (
            "text.json",
            "text.json: not valid JSON: expected value at line 1 column 1",
        ),
        (
            "layers.json",
            "layers.json: physical_to_logical_map: expected 1 layer, found 2",
        ),
        (
            "counts.json",
            "counts.json: logical_count[0][7]: expected 1, as physical_to_logical_map has it, found 3",
        ),
        (
            "empty.json",
            "`empty.json` is empty: download or copy it again",
        ),
        ("other.json", "other.json: placement: expected an object"),
        ("missing.json", "cannot open `missing.json`: "),
        (
            "loads.json",
            "loads.json: layer 0, slot 0: expert 600 is not one of the layer's 8",
        ),
    ] {
        let message = folder.fails(&format!(
            "plan --load loads.json --ranks 8 --slots 16 --current {name} --out out.json"
        ));
        assert!(message.starts_with(expected), "{message}");
    }
    // Whatever else is wrong: the maps are compared although a dead rank holds experts.
    let message = folder
        .fails("plan --load loads.json --ranks 8 --slots 16 --current inverse.json --dead-ranks 7");
    assert!(
        message.starts_with("inverse.json: layer 0, slot "),
        "{message}"
    );
}

#[test]
fn nothing_is_written_when_one_file_cannot_be() {
    let folder = popular();
    folder.succeeds("plan --load loads.json --ranks 8 --slots 16 --out plan.json");
    for (arguments, expected) in [
        (
            "--out out.json --svg none/out.svg",
            "cannot write none/out.svg: ",
        ),
        (
            "--out none/out.json --svg out.svg",
            "cannot write none/out.json: ",
        ),
        ("--out .", "cannot write .: it is a directory; name a file"),
        (
            "--out same --svg same",
            "--out and --svg both name same; name another file with --out",
        ),
        (
            "--out same --svg ./same",
            "--out and --svg both name same; name another file with --out",
        ),
        (
            "--out loads.json",
            "--out and --load both name loads.json; name another file with --out",
        ),
        (
            "--svg ./loads.json",
            "--svg and --load both name ./loads.json; name another file with --svg",
        ),
        (
            "--current plan.json --out plan.json",
            "--out and --current both name plan.json; name another file with --out",
        ),
    ] {
        let message = folder.fails(&format!(
            "plan --load loads.json --ranks 8 --slots 16 {arguments}"
        ));
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let folder = Folder::new();
    // More output than a pipe holds.
    let layer: Vec<String> = (0..64).map(|expert| (expert % 7 + 1).to_string()).collect();
    let layers = vec![format!("[{}]", layer.join(",")); 100];
    folder.write("loads.json", format!("[{}]", layers.join(",")));
    let mut child = folder
        .command("plan --load loads.json --ranks 8 --slots 72 --json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
