//! `locum eplb` on wrong input: one line that names the file or the option, and nothing written.
#![allow(clippy::unwrap_used)]

mod folder;

use std::process::Command;

use folder::{Folder, popular};
use serde_json::json;

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
        ("k.csv", "", "`k.csv` is empty"),
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
        ("empty.json", "`empty.json` is empty"),
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
