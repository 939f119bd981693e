//! A whole model at OLMoE-1B-7B's shape with 4 of its 16 layers: loading, memory, prefill, decode.
//!
//! `cargo bench -p locum-benches --bench whole_model`; `-- --quick` takes less time. The checkpoint
//! (3.8 GB, random bf16) is written below the target folder at the first run and kept. What needs a
//! fresh process (loading, memory, time to the first token) runs this program again with `--child`.
//! The output is Markdown.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use locum::models::{LoadOptions, Logits, Model, ModelFiles};
use locum::nn::DType;
use locum_benches::{Effort, machine, olmoe, read_bandwidth_once};
use locum_kernels::Variant;
use rayon::prelude::*;

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROMPT: usize = 512;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(place) = arguments.iter().position(|a| a == "--child") {
        return child(&arguments[place + 1], Path::new(&arguments[place + 2]));
    }
    let effort = Effort::from_arguments();
    println!("## whole_model\n\n{}\n", machine());
    println!(
        "OLMoE-1B-7B's shape, {} of 16 layers, random bf16 weights, {} MB of them active for a token.\n",
        olmoe::LAYERS,
        olmoe::active_bytes(olmoe::TOP_K) / 1_000_000
    );
    let whole = olmoe::directory("olmoe-4-layers");
    let pruned = olmoe::directory("olmoe-4-layers-25");
    olmoe::write(&whole).unwrap();
    olmoe::write_substituted(&pruned, &whole, olmoe::EXPERTS / 4).unwrap();
    loading(effort, &whole, &pruned);
    speed(effort, &whole, &pruned);
}

fn loading(effort: Effort, whole: &Path, pruned: &Path) {
    println!(
        "Loading, in fresh processes, files in the page cache; MB over the retained weights' bytes.\n"
    );
    println!(
        "| checkpoint | load | GB/s | pread of the same bytes into fresh memory | ratio (target 0.8) \
         | resident after, MB over (target 150) | anonymous at most, MB over (target 150 + a tensor) \
         | start to first token, 512 tokens, bf16 (target 1.9 s) |\n|---|---|---|---|---|---|---|---|"
    );
    let rounds = if effort.is_quick() { 1 } else { 5 };
    for (name, directory) in [("all retained", whole), ("25 % substituted", pruned)] {
        let mut figures: [Vec<f64>; 7] = Default::default();
        run("first-token", directory);
        for _ in 0..rounds {
            let load = run("load", directory);
            let pread = run("pread", directory);
            let start = Instant::now();
            run("first-token", directory);
            let first = start.elapsed().as_secs_f64();
            let rates = [load[1] / load[0], pread[1] / pread[0]];
            let over = |bytes: f64| (bytes - load[1]) / 1e6;
            let row = [
                load[0],
                rates[0] / 1e9,
                rates[1] / 1e9,
                rates[0] / rates[1],
                over(load[2]),
                over(load[3]),
                first,
            ];
            for (figures, value) in figures.iter_mut().zip(row) {
                figures.push(value);
            }
        }
        let [load, rate, pread, ratio, resident, anonymous, first] = figures.map(median);
        println!(
            "| {name} | {load:.2} s | {rate:.1} | {pread:.1} | {ratio:.2} | {resident:.0} \
             | {anonymous:.0} | {first:.2} s |"
        );
    }
    println!();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The numbers that a child prints.
fn run(what: &str, directory: &Path) -> Vec<f64> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--child", what])
        .arg(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect()
}

fn child(what: &str, directory: &Path) {
    match what {
        "load" => {
            let peak = Arc::new(AtomicU64::new(0));
            let done = Arc::new(AtomicBool::new(false));
            let watch = std::thread::spawn({
                let (peak, done) = (Arc::clone(&peak), Arc::clone(&done));
                move || {
                    while !done.load(Ordering::Relaxed) {
                        peak.fetch_max(status("RssAnon:"), Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
            });
            let start = Instant::now();
            let model = load(directory, DType::F32);
            let time = start.elapsed().as_secs_f64();
            let resident = status("VmRSS:");
            done.store(true, Ordering::Relaxed);
            watch.join().unwrap();
            let weights = model.memory().weights;
            let peak = peak.load(Ordering::Relaxed).max(status("RssAnon:"));
            println!("{time} {weights} {resident} {peak}");
        }
        "pread" => pread(directory),
        // For a profiler: `perf record target/release/deps/whole_model-… --child decode DIR`.
        "decode" | "prefill" => {
            let dtype = if what == "decode" {
                DType::F32
            } else {
                DType::BF16
            };
            let model = load(directory, dtype);
            let mut caches = [model.new_cache()];
            let steps: i64 = std::env::var("STEPS").map_or(8, |s| s.parse().unwrap());
            for step in 0..steps {
                let next = if what == "decode" {
                    vec![step * 31 % 50304]
                } else {
                    caches = [model.new_cache()];
                    ids(PROMPT)
                };
                model.logits(&[next], &mut caches, Logits::Last).unwrap();
            }
        }
        _ => {
            let model = load(directory, DType::BF16);
            let mut caches = [model.new_cache()];
            model
                .logits(&[ids(PROMPT)], &mut caches, Logits::Last)
                .unwrap();
        }
    }
}

/// Reads as many bytes as the model has, on all threads.
fn pread(directory: &Path) {
    const CHUNK: usize = 4 << 20;
    let files = ModelFiles::open(directory).unwrap();
    let wanted = Model::plan(&files, &LoadOptions::default())
        .unwrap()
        .memory()
        .weights as usize;
    let start = Instant::now();
    let mut left = wanted;
    let paths: Vec<PathBuf> = files
        .checkpoint()
        .unwrap()
        .files()
        .map(Into::into)
        .collect();
    let mut kept = Vec::new();
    for path in paths {
        let file = std::fs::File::open(path).unwrap();
        let length = left.min(file.metadata().unwrap().len() as usize);
        left -= length;
        let mut memory = vec![0u8; length];
        memory
            .par_chunks_mut(CHUNK)
            .enumerate()
            .for_each(|(chunk, memory)| {
                file.read_exact_at(memory, (chunk * CHUNK) as u64).unwrap();
            });
        kept.push(memory);
    }
    println!("{} {}", start.elapsed().as_secs_f64(), wanted - left);
}

fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(field)).unwrap();
    1024 * line
        .split_whitespace()
        .next()
        .unwrap()
        .parse::<u64>()
        .unwrap()
}

fn load(directory: &Path, activations: DType) -> Model {
    let options = LoadOptions {
        activations,
        ..LoadOptions::default()
    };
    let files = ModelFiles::open(directory).unwrap();
    let mut model = Model::plan(&files, &options).unwrap();
    model.load(|_| {}).unwrap();
    model
}

fn ids(tokens: usize) -> Vec<i64> {
    (0..tokens as i64).map(|i| i * 7919 % 50304).collect()
}

fn speed(effort: Effort, whole: &Path, pruned: &Path) {
    println!(
        "Prefill of {PROMPT} tokens and decode of 64 tokens after 32; limits measured in turns with them.\n"
    );
    println!(
        "| checkpoint | activations | prefill | GFLOP/s | of peak | decode, tokens/s | of bandwidth \
         / active bytes | bandwidth, GB/s |\n|---|---|---|---|---|---|---|---|"
    );
    let variant = Variant::detect().unwrap();
    for (name, directory, activations) in [
        ("all retained", whole, DType::F32),
        ("all retained", whole, DType::BF16),
        ("25 % substituted", pruned, DType::F32),
        ("25 % substituted", pruned, DType::BF16),
    ] {
        let model = load(directory, activations);
        let bf16 = activations == DType::BF16;
        let mut prefill = || {
            let start = Instant::now();
            let mut caches = [model.new_cache()];
            model
                .logits(&[ids(PROMPT)], &mut caches, Logits::Last)
                .unwrap();
            1.0 / start.elapsed().as_secs_f64()
        };
        let [prefills, peak] =
            effort.rates([&mut prefill, &mut || locum_benches::peak(variant, bf16)]);
        let mut prefix = [model.new_cache()];
        model.logits(&[ids(32)], &mut prefix, Logits::Last).unwrap();
        let mut caches = prefix.clone();
        let mut next = 0;
        let mut decode = || {
            let start = Instant::now();
            for _ in 0..8 {
                if next % 64 == 0 {
                    caches = prefix.clone();
                }
                next += 1;
                model
                    .logits(&[vec![next * 31 % 50304]], &mut caches, Logits::Last)
                    .unwrap();
            }
            8.0 / start.elapsed().as_secs_f64()
        };
        let [tokens, bandwidth] = effort.rates([&mut decode, &mut read_bandwidth_once()]);
        let operations = olmoe::operations(PROMPT) as f64;
        if directory == whole {
            println!(
                "| {name} | {activations:?} | {:.2} s | {:.0} | {:.2} | {tokens:.1} | {:.2} | {:.1} |",
                1.0 / prefills,
                operations * prefills / 1e9,
                operations * prefills / peak,
                tokens * olmoe::active_bytes(olmoe::TOP_K) as f64 / bandwidth,
                bandwidth / 1e9,
            );
        } else {
            println!(
                "| {name} | {activations:?} | {:.2} s | | | {tokens:.1} | | {:.1} |",
                1.0 / prefills,
                bandwidth / 1e9,
            );
        }
    }
    println!();
}
