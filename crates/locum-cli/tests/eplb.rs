//! `locum eplb`, from outside: what it plans, writes and draws.
#![allow(clippy::unwrap_used)]

mod folder;

use std::process::Stdio;

use folder::{Folder, POPULAR, popular, read};
use serde_json::json;

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
