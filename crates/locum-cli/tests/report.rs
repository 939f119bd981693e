//! `locum report`, from outside: what it writes, and what it refuses.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{TestModel, fixture, path, refused, stdout};
use roxmltree::{Document, ParsingOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

fn model(name: &str) -> String {
    fixture(name).to_str().unwrap().to_owned()
}

/// A folder to write reports to.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// With `stats.safetensors` of tiny-olmoe on a short text.
    fn calibrated() -> Self {
        let folder = Self::new();
        let text: String = std::fs::read_to_string(fixture("heldout.txt"))
            .unwrap()
            .chars()
            .take(6000)
            .collect();
        std::fs::write(folder.0.path().join("text.txt"), text).unwrap();
        stdout(&[
            "calibrate",
            &model("tiny-olmoe"),
            "--text",
            &folder.place("text.txt"),
            "--length",
            "64",
            "--out",
            &folder.place("stats.safetensors"),
        ]);
        folder
    }

    fn place(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Reports, and reads the page.
    fn report(&self, arguments: &[&str]) -> String {
        let out = self.place("report.html");
        let all = [&["report"][..], arguments, &["--out", &out]].concat();
        assert_eq!(stdout(&all), "");
        self.read("report.html")
    }
}

/// Layers and experts of the cells that are marked, picture by picture.
fn marked(markup: &str) -> Vec<(u32, u32)> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(markup, options).unwrap();
    let cells = document.descendants().filter(|node| {
        let class = node.attribute("class").unwrap_or_default();
        class.split(' ').any(|class| class == "cell") && class.ends_with(" marked")
    });
    cells
        .map(|cell| {
            let said = cell.first_element_child().unwrap().text().unwrap();
            let said = said.strip_prefix("layer ").unwrap();
            let (layer, said) = said.split_once(", expert ").unwrap();
            let digits = said.chars().take_while(char::is_ascii_digit);
            (
                layer.parse().unwrap(),
                digits.collect::<String>().parse().unwrap(),
            )
        })
        .collect()
}

/// The substituted experts of a fixture, by its config.
fn declared(name: &str) -> Vec<(u32, u32)> {
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let layers = config["approximate_experts"].as_object().unwrap();
    let mut experts: Vec<(u32, u32)> = layers
        .iter()
        .flat_map(|(layer, ids)| {
            let ids = ids.as_array().unwrap().iter();
            ids.map(move |id| (layer.parse().unwrap(), id.as_u64().unwrap() as u32))
        })
        .collect();
    experts.sort_unstable();
    experts
}

#[test]
fn model_alone_shows_its_constants() {
    let folder = Folder::new();
    let svg = folder.place("experts.svg");
    let page = folder.report(&[&model("tiny-olmoe-mone50"), "--svg", &svg]);
    assert_eq!(folder.names(), ["experts.svg", "report.html"]);
    let picture = folder.read("experts.svg");
    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    let expected = declared("tiny-olmoe-mone50");
    assert_eq!(expected.len(), 32);
    for markup in [&page, &picture] {
        assert_eq!(marked(markup), expected);
    }
    for part in [
        "<h1>Experts of tiny-olmoe-mone50</h1>",
        "32 of 64 experts in 4 layers are constants, which saves 3.14 MB.",
        "<dt>weights in memory</dt><dd>4.75 MB</dd>",
        "<title>layer 0: 8 of 16 experts retained</title>",
        "<td class=\"ids\">0 2 5 9 10 12 14 15</td>",
    ] {
        assert!(page.contains(part), "{part:?} is not in the page");
    }
    assert!(!page.contains("Error per layer"));
}

#[test]
fn norms_are_those_of_the_stored_constants() {
    let mut model = TestModel::of_fixture("olmoe/approx");
    let name = "model.layers.1.mlp.experts.6.approx_value";
    let constant = model.tensors.get_mut(name).unwrap();
    // 3, 4 and zeros: norm 5.
    constant.bytes.fill(0);
    constant.bytes[..4].copy_from_slice(&3f32.to_le_bytes());
    constant.bytes[4..8].copy_from_slice(&4f32.to_le_bytes());
    let directory = model.write();
    let page = Folder::new().report(&[path(&directory)]);
    assert!(
        page.contains("layer 1, expert 6: 5.00 norm of the constant, substituted"),
        "{page}"
    );
}

#[test]
fn explicit_constants_that_share_a_tensor_are_shown() {
    let page = Folder::new().report(&[&model("olmoe/explicit")]);
    let layer_1 = marked(&page).into_iter().filter(|(layer, _)| *layer == 1);
    let ids: Vec<u32> = layer_1.map(|(_, id)| id).collect();
    assert_eq!(ids, [0, 1, 5, 6, 7]);
}

#[test]
fn unpruned_model_has_nothing_marked() {
    let page = Folder::new().report(&[&model("tiny-olmoe")]);
    assert!(marked(&page).is_empty());
    assert!(page.contains("All 64 experts in 4 layers are retained."));
    assert!(!page.contains("class=\"mark\""));
}

#[test]
fn statistics_with_a_model_mark_and_measure_its_constants() {
    let folder = Folder::calibrated();
    let stats = folder.place("stats.safetensors");
    let alone = folder.report(&[&stats]);
    assert!(marked(&alone).is_empty());
    assert!(alone.contains("each of 64 tokens, in the order of the text"));
    assert!(!alone.contains("Error per layer"));

    let pruned = model("tiny-olmoe-mone50");
    let page = folder.report(&[&stats, "--model", &pruned]);
    // Once by score, once by frequency.
    let expected = declared("tiny-olmoe-mone50");
    assert_eq!(marked(&page), [&expected[..], &expected[..]].concat());
    assert!(page.contains("Error per layer") && page.contains("<th scope=\"col\">error %</th>"));
    // 8 × (3 × 128 × 128 − 128) bf16 elements.
    assert!(page.contains("<td>784 kB</td>") && page.contains("<td>3.14 MB</td>"));
}

#[test]
fn plan_is_marked_and_its_constants_err_less_than_zeros() {
    let folder = Folder::calibrated();
    let (stats, plan) = (folder.place("stats.safetensors"), folder.place("plan.json"));
    let unpruned = model("tiny-olmoe");
    stdout(&[
        "prune",
        &unpruned,
        "--stats",
        &stats,
        "--ratio",
        "0.25",
        "--dry-run",
        "--plan-out",
        &plan,
    ]);
    let planned: Value = serde_json::from_str(&folder.read("plan.json")).unwrap();
    let mut expected: Vec<(u32, u32)> = Vec::new();
    for layer in planned["layers"].as_array().unwrap() {
        let number = layer["layer"].as_u64().unwrap() as u32;
        for expert in layer["substituted"].as_array().unwrap() {
            expected.push((number, expert["expert"].as_u64().unwrap() as u32));
        }
    }
    assert_eq!(expected.len(), 16);
    let errors = |replace: &str| -> Vec<f64> {
        let page = folder.report(&[&stats, "--plan", &plan, "--replace", replace]);
        assert_eq!(marked(&page), [&expected[..], &expected[..]].concat());
        assert!(page.contains(", replaced by the plan</title>"));
        let bars = page.split("<rect class=\"bar loss\"").skip(1);
        bars.map(|bar| {
            let (_, said) = bar.split_once(": ").unwrap();
            said.split_once(" %").unwrap().0.parse().unwrap()
        })
        .collect()
    };
    let (least, mean, zero) = (errors("least-squares"), errors("mean"), errors("zero"));
    assert_eq!(least.len(), 4);
    for ((least, mean), zero) in least.iter().zip(&mean).zip(&zero) {
        // Least squares is the minimum.
        assert!(*least > 0.0 && least <= mean && least <= zero && *zero < 100.0);
    }
}

#[test]
fn same_report_is_the_same_bytes() {
    let folder = Folder::new();
    let pruned = model("tiny-olmoe-mone50");
    assert_eq!(folder.report(&[&pruned]), folder.report(&[&pruned]));
}

#[test]
fn name_of_a_model_is_text() {
    let folder = Folder::new();
    let hostile = folder.0.path().join("<img src=x onerror=alert(1)>&\"");
    std::fs::create_dir(&hostile).unwrap();
    TestModel::of_fixture("olmoe/approx").write_to(&hostile);
    let page = folder.report(&[hostile.to_str().unwrap()]);
    assert!(!page.contains("<img"));
    assert!(page.contains("<h1>Experts of &lt;img src=x onerror=alert(1)&gt;&amp;&quot;</h1>"));
}

/// Refuses, and writes nothing.
#[track_caller]
fn refused_report(folder: &Folder, arguments: &[&str], parts: &[&str]) {
    let before = folder.names();
    refused(&[&["report"][..], arguments].concat(), parts);
    assert_eq!(folder.names(), before);
}

#[test]
fn subjects_that_cannot_be_read() {
    let folder = Folder::new();
    let out = folder.place("report.html");
    let no_stats = folder.place("text.txt");
    std::fs::write(&no_stats, "no statistics").unwrap();
    let weights = fixture("olmoe/base/model.safetensors");
    let refuse = |subject: &str, parts: &[&str]| {
        refused_report(&folder, &[subject, "--out", &out], parts);
    };
    refuse("/no/such/stats", &["/no/such/stats"]);
    refuse(&no_stats, &["text.txt", "is not a statistics file"]);
    refuse(weights.to_str().unwrap(), &["is not a statistics file"]);
    refuse(
        folder.0.path().to_str().unwrap(),
        &["it is, or is part of,"],
    );
    let empty = TempDir::new().unwrap();
    refuse(path(&empty), &["config.json not found"]);
}

#[test]
fn models_and_plans_that_do_not_fit() {
    let folder = Folder::calibrated();
    let (stats, out) = (
        folder.place("stats.safetensors"),
        folder.place("report.html"),
    );
    let plan = folder.place("plan.json");
    let with = |arguments: &[&str], parts: &[&str]| {
        let all = [&[&*stats, "--out", &out][..], arguments].concat();
        refused_report(&folder, &all, parts);
    };
    with(
        &["--model", &model("olmoe/approx")],
        &["olmoe/approx", "of 4 MoE layers, the model has 3"],
    );
    with(&["--model", "/no/such/model"], &["no such directory"]);
    let layer = |layer: u32, experts: u32, gone: &[u32]| {
        let gone: Vec<Value> = gone.iter().map(|id| json!({ "expert": id })).collect();
        json!({ "layer": layer, "num_logical_experts": experts, "substituted": gone })
    };
    let write = |layers: &[Value]| {
        let file = json!({ "version": 1, "settings": null, "layers": layers });
        std::fs::write(&plan, file.to_string()).unwrap();
    };
    for (layers, part) in [
        (vec![layer(0, 16, &[1])], "of 4 MoE layers, the plan has 1"),
        (
            [0, 1, 2, 3].map(|number| layer(number, 8, &[1])).to_vec(),
            "of 16 experts in layer 0, the plan has 8 in layer 0",
        ),
        (
            [0, 1, 2, 3].map(|number| layer(number, 16, &[16])).to_vec(),
            "replaces expert 16 of layer 0, which has 16",
        ),
        (
            [0, 1, 2, 3]
                .map(|number| layer(number, 16, &[1, 1]))
                .to_vec(),
            "the plan's layer 0: ",
        ),
        (
            [0, 1, 2, 3]
                .map(|number| layer(number, 16, &(0..16).collect::<Vec<_>>()))
                .to_vec(),
            "the plan's layer 0: ",
        ),
    ] {
        write(&layers);
        with(&["--plan", &plan], &["plan.json", part]);
    }
    std::fs::write(&plan, "{").unwrap();
    with(&["--plan", &plan], &["plan.json"]);
    with(&["--plan", "/no/such/plan"], &["/no/such/plan"]);
    refused_report(
        &folder,
        &[&model("tiny-olmoe"), "--plan", &plan, "--out", &out],
        &["--model and --plan go with statistics"],
    );
}

#[test]
fn places_that_cannot_be_written() {
    let folder = Folder::new();
    let directory = TestModel::of_fixture("olmoe/approx").write();
    let subject = path(&directory);
    let inside = directory.path().join("report.html");
    let inside = inside.to_str().unwrap();
    let out = folder.place("report.html");
    refused_report(
        &folder,
        &[subject, "--out", inside],
        &["report.html", "is part of"],
    );
    refused_report(
        &folder,
        &[subject, "--out", &out, "--svg", inside],
        &["is part of"],
    );
    assert!(!Path::new(inside).exists());
    refused_report(
        &folder,
        &[subject, "--out", "/no/such/folder/report.html"],
        &["cannot write /no/such/folder/report.html"],
    );
    let folder_path = folder.0.path().to_str().unwrap();
    refused_report(
        &folder,
        &[subject, "--out", folder_path],
        &["it is a directory"],
    );
    refused_report(
        &folder,
        &[subject, "--out", &out, "--svg", &out],
        &["--out and --svg both name"],
    );
    // Nothing is written where one of both cannot be.
    refused_report(
        &folder,
        &[
            subject,
            "--out",
            &out,
            "--svg",
            "/no/such/folder/experts.svg",
        ],
        &["/no/such/folder/experts.svg"],
    );
    // Statistics are not written over.
    let stats = folder.place("stats.safetensors");
    std::fs::write(&stats, "precious").unwrap();
    refused_report(&folder, &[&stats, "--out", &stats], &["which is read"]);
    assert_eq!(folder.read("stats.safetensors"), "precious");
}

/// Nobody may write there, whoever it is.
#[cfg(target_os = "linux")]
#[test]
fn read_only_place() {
    let folder = Folder::new();
    refused_report(
        &folder,
        &[&model("olmoe/approx"), "--out", "/proc/report.html"],
        &["cannot write /proc/report.html"],
    );
}

#[test]
fn files_of_another_kind_and_models_of_other_statistics_stay_apart() {
    let folder = Folder::calibrated();
    let (stats, model) = (folder.place("stats.safetensors"), model("tiny-olmoe"));
    let text = folder.place("text.txt");
    refused(
        &["report", &model, "--out", &text],
        &["text.txt", "is no HTML page"],
    );
    let page = folder.place("page.html");
    refused(
        &["report", &model, "--out", &page, "--svg", &text],
        &["text.txt", "is no SVG picture"],
    );
    refused(
        &["logits", "--input-ids", "1", "--out", &stats],
        &["stats.safetensors", "is no file of logits"],
    );
    // What it wrote itself, it writes again.
    for _ in 0..2 {
        stdout(&["report", &stats, "--model", &model, "--out", &page]);
    }
    let pruned = folder.place("pruned");
    stdout(&[
        "prune", &model, "--stats", &stats, "--ratio", "0.25", "--out", &pruned,
    ]);
    stdout(&["report", &stats, "--model", &pruned, "--out", &page]);
    let mut other = TestModel::of_fixture("tiny-olmoe");
    let router = other.tensors.get_mut("model.layers.0.mlp.gate.weight");
    router.unwrap().bytes[0] ^= 1;
    let other = other.write();
    refused(
        &["report", &stats, "--model", path(&other), "--out", &page],
        &["neither the model that the statistics are of nor made from it"],
    );
    // Of the pruned model, statistics are not those of the one that it was made from.
    let of_pruned = folder.place("pruned.safetensors");
    stdout(&[
        "calibrate",
        &pruned,
        "--text",
        &text,
        "--length",
        "64",
        "--out",
        &of_pruned,
    ]);
    refused(
        &["report", &of_pruned, "--model", &model, "--out", &page],
        &["neither the model"],
    );

    let mut bytes = std::fs::read(&stats).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&stats, bytes).unwrap();
    for line in [
        &["report", &stats, "--out", &page][..],
        &[
            "prune",
            &model,
            "--stats",
            &stats,
            "--keep",
            "8",
            "--dry-run",
        ],
        &["merge-stats", &stats, "--out", &of_pruned],
    ] {
        refused(line, &["stats.safetensors", "checksum"]);
    }
}
