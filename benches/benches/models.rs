//! Time of the tiny model.
//!
//! `cargo bench -p locum-benches --bench models`; `-- --quick` takes less time. The
//! output is Markdown.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;

use locum::models::{LoadOptions, Logits, Model, ModelFiles};
use locum::nn::DType;
use locum_benches::{Effort, machine};

fn main() {
    let effort = Effort::from_arguments();
    println!("## models\n\n{}\n", machine());
    tiny_model(effort);
}

fn tiny_model(effort: Effort) {
    let directory =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/locum-cli/assets/tiny-olmoe-mone25");
    println!("tiny-olmoe-mone25, weights bf16, decode after 64 tokens\n");
    println!("| activations | prefill 256 tokens | decode |\n|---|---|---|");
    for activations in [DType::F32, DType::BF16] {
        let options = LoadOptions {
            activations,
            ..LoadOptions::default()
        };
        let files = ModelFiles::open(&directory).unwrap();
        let mut model = Model::plan(&files, &options).unwrap();
        model.load(|_| {}).unwrap();
        let ids: Vec<i64> = (0..256).map(|i| (i * 37) % 2048).collect();
        let prefill = effort.median(|| {
            let mut caches = [model.new_cache()];
            model
                .logits(std::slice::from_ref(&ids), &mut caches, Logits::Last)
                .unwrap()
        });
        let mut prefix = [model.new_cache()];
        model
            .logits(&[ids[..64].to_vec()], &mut prefix, Logits::Last)
            .unwrap();
        let decode = effort.median(|| {
            let mut caches = prefix.clone();
            for &id in &ids[..32] {
                model
                    .logits(&[vec![id]], &mut caches, Logits::Last)
                    .unwrap();
            }
        });
        println!(
            "| {activations:?} | {:.0} tokens/s | {:.0} tokens/s |",
            256.0 / prefill,
            32.0 / decode
        );
    }
    println!();
}
