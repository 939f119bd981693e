//! What making a model costs: calibration beside the same forward pass with nobody looking on, and
//! export beside copying the same bytes.
//!
//! `cargo bench -p locum-benches --bench pruning`; `-- --quick` takes less time. The
//! checkpoint (3.8 GB, random bf16) is written below the target folder at the first run and kept. What
//! is compared is measured in turns. The output is Markdown.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use locum::models::{LoadOptions, Logits, Model, ModelFiles};
use locum::nn::DType;
use locum::prune::{
    Amount, Calibration, Export, ExportOptions, Metric, Replacement, Scope, Selection, Sequences,
    Settings, Subject,
};
use locum_benches::{Effort, Target, machine, olmoe};

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let effort = Effort::from_arguments();
    println!("## pruning\n\n{}\n", machine());
    println!(
        "Calibration, progress and statistics file included, beside the forward pass alone; neither\n\
         computes logits.\n"
    );
    println!(
        "| model | activations | sequences at once | forward | calibration | time / forward | target | \
         | statistics in memory |\n|---|---|---|---|---|---|---|---|---|"
    );
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-olmoe");
    for activations in [DType::F32, DType::BF16] {
        measure(effort, "tiny-olmoe", &tiny, activations, [16, 4, 256]);
    }
    let large = olmoe::directory("olmoe-4-layers");
    olmoe::write(&large).unwrap();
    let name = format!("OLMoE-1B-7B's shape, {} layers", olmoe::LAYERS);
    let of_large = if effort.is_quick() {
        &[DType::BF16][..]
    } else {
        &[DType::F32, DType::BF16]
    };
    for &activations in of_large {
        let [chunks, length] = if effort.is_quick() {
            [1, 256]
        } else {
            [4, 512]
        };
        measure(effort, &name, &large, activations, [chunks, 2, length]);
    }
    println!();
    export(effort, &large);
}

/// Writes a model with a quarter of the experts replaced, and copies the one that it is made from: bytes
/// come from the same files.
fn export(effort: Effort, model: &Path) {
    let subject = Subject::open(model).unwrap();
    let settings = Settings {
        metric: Metric::Random,
        scope: Scope::Layer,
        amount: Amount::Ratio(0.25),
        min_per_layer: 1,
        seed: 0,
    };
    let plan = settings.plan(&subject, None).unwrap();
    let constants = Replacement::Zero.constants(&subject, &plan, None).unwrap();
    let export = Export::new(&subject, &plan, &constants, &ExportOptions::default()).unwrap();
    let [out, copy] = ["olmoe-exported", "olmoe-copied"].map(olmoe::directory);
    // What is still to be written to the disk would slow down whoever writes next.
    let remove = |directory: &Path| {
        if directory.exists() {
            fs::remove_dir_all(directory).unwrap();
        }
        assert!(Command::new("sync").status().unwrap().success());
    };
    let bytes = export.bytes_after() as f64;
    let read = subject.checkpoint().total_bytes() as f64;
    let [written, copied] = effort.cold().rates([
        &mut || {
            remove(&out);
            let start = Instant::now();
            export.write(&out, false, &mut |_| {}).unwrap();
            bytes / start.elapsed().as_secs_f64()
        },
        &mut || {
            remove(&copy);
            let start = Instant::now();
            let cp = Command::new("cp").arg("-r").args([model, &copy]).status();
            assert!(cp.unwrap().success());
            read / start.elapsed().as_secs_f64()
        },
    ]);
    remove(&out);
    remove(&copy);
    println!(
        "Export of that checkpoint with a quarter of its experts replaced, {:.1} GB, from the page cache:\n",
        bytes / 1e9
    );
    println!("| export | `cp -r` of the checkpoint | ratio | target | |\n|---|---|---|---|---|");
    println!(
        "| {:.2} GB/s | {:.2} GB/s | {:.2} | {} |\n",
        written / 1e9,
        copied / 1e9,
        written / copied,
        Target::AtLeast(0.8).columns(written / copied)
    );
}

fn measure(
    effort: Effort,
    name: &str,
    directory: &Path,
    activations: DType,
    [chunks, batch, length]: [usize; 3],
) {
    let count = chunks * batch;
    let options = LoadOptions {
        activations,
        ..LoadOptions::default()
    };
    let files = ModelFiles::open(directory).unwrap();
    let mut model = Model::plan(&files, &options).unwrap();
    model.load(|_| {}).unwrap();
    let vocabulary = model.limits().vocabulary as i64;
    let ids: Vec<i64> = (0..(count * length) as i64)
        .map(|i| (i * 7919 + i * i % 613) % vocabulary)
        .collect();
    let selection = Selection {
        length: Some(length),
        ..Selection::default()
    };
    let sequences = Sequences::from_ids(&ids, &model.limits(), selection).unwrap();
    let calibration = Calibration::new(&files, &model, sequences).unwrap();
    let calibration = calibration.with_batch(batch);
    let rows: Vec<Vec<i64>> = ids.chunks(length).map(<[i64]>::to_vec).collect();
    let tokens = (count * length) as f64;
    let out = olmoe::directory("statistics.safetensors");
    let _ = fs::remove_file(&out);
    let turns = effort.turns([
        &mut || {
            let start = Instant::now();
            for rows in rows.chunks(batch) {
                let mut caches = vec![model.new_cache(); batch];
                model.logits(rows, &mut caches, Logits::None).unwrap();
            }
            tokens / start.elapsed().as_secs_f64()
        },
        &mut || {
            let start = Instant::now();
            let run = calibration.start(&model, &out).unwrap();
            run.finish(&model, |_| {}).unwrap();
            let rate = tokens / start.elapsed().as_secs_f64();
            fs::remove_file(&out).unwrap();
            rate
        },
    ]);
    let [forward, calibrated] = turns.medians();
    let ratio = turns.median(|[forward, calibrated]| forward / calibrated);
    println!(
        "| {name} | {} | {batch} × {length} | {forward:.0} tokens/s | {calibrated:.0} tokens/s | {ratio:.3} \
         | {} | {:.1} MB |",
        if activations == DType::BF16 {
            "bf16"
        } else {
            "f32"
        },
        Target::AtMost(1.15).columns(ratio),
        calibration.bytes(&model) as f64 / 1e6
    );
}
