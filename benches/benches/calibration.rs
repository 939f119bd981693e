//! Time of calibration beside that of the same forward pass with nobody looking on.
//!
//! `cargo bench -p locum-benches --bench calibration`; `-- --quick` takes a tenth of the time, and
//! `-- --tiny` leaves out the large model, whose checkpoint (3.8 GB, random bf16) is written below the
//! target folder at the first run and kept. The two are measured in turns; neither computes logits.
//! The output is Markdown.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;
use std::time::Instant;

use locum::models::{LoadOptions, Logits, Model, ModelFiles};
use locum::nn::DType;
use locum::prune::{Calibration, Selection, Sequences, Statistics};
use locum_benches::{Effort, machine, olmoe};

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let effort = Effort::from_arguments();
    println!("## calibration\n\n{}\n", machine());
    println!(
        "| model | activations | sequences at once | forward | calibration | ratio (target 1.15) | statistics in memory |\n|---|---|---|---|---|---|---|"
    );
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-olmoe");
    for activations in [DType::F32, DType::BF16] {
        measure(effort, "tiny-olmoe", &tiny, activations, [4, 4, 256]);
    }
    if std::env::args().any(|argument| argument == "--tiny") {
        return;
    }
    let large = olmoe::directory("olmoe-4-layers");
    olmoe::write(&large).unwrap();
    let name = format!("OLMoE-1B-7B's shape, {} layers", olmoe::LAYERS);
    for activations in [DType::F32, DType::BF16] {
        measure(effort, &name, &large, activations, [1, 2, 512]);
    }
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
    let [forward, calibrated] = effort.rates([
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
            let statistics: Statistics = calibration.collect(&model, |_| {}).unwrap();
            let rate = tokens / start.elapsed().as_secs_f64();
            assert!(statistics.origin.is_complete());
            rate
        },
    ]);
    println!(
        "| {name} | {activations:?} | {batch} × {length} | {forward:.0} tokens/s | {calibrated:.0} tokens/s | {:.3} | {:.1} MB |",
        forward / calibrated,
        calibration.bytes(&model) as f64 / 1e6
    );
}
