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
use locum_benches::{Effort, Target, machine, olmoe, read_bandwidth_once, vectors};
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
        "In fresh processes, files in the page cache, two threads. What is over: beyond the bytes of the\n\
         retained weights. The largest tensor has {LARGEST} MB.\n"
    );
    println!("| what | all retained | 25 % substituted | target | |\n|---|---|---|---|---|");
    let [all, part] = [whole, pruned].map(|directory| fresh(effort, directory));
    let line =
        |what: &str, unit: &str, digits: usize, figure: fn(&Fresh) -> f64, target: Target| {
            let figures = [figure(&all), figure(&part)];
            let worse = match target {
                Target::AtLeast(_) => figures[0].min(figures[1]),
                _ => figures[0].max(figures[1]),
            };
            let [all, part] = figures.map(|figure| format!("{figure:.digits$}{unit}"));
            println!("| {what} | {all} | {part} | {} |", target.columns(worse));
        };
    line("loading", " s", 2, |f| f.load, Target::None);
    line(
        "loading",
        " GB/s",
        1,
        |f| f.weights / f.load / 1e9,
        Target::None,
    );
    line(
        "`pread` into fresh memory",
        " GB/s",
        1,
        |f| f.pread / 1e9,
        Target::None,
    );
    line(
        "loading / `pread`",
        "",
        2,
        |f| f.weights / f.load / f.pread,
        Target::AtLeast(0.8),
    );
    line(
        "resident after loading, over",
        " MB",
        0,
        |f| (f.resident - f.weights) / 1e6,
        Target::AtMost(150.0),
    );
    line(
        "anonymous while loading, over",
        " MB",
        0,
        |f| (f.anonymous - f.weights) / 1e6,
        Target::AtMost(150.0 + LARGEST),
    );
    line(
        "start of the process to the first token after 512, bf16",
        " s",
        2,
        |f| f.first,
        Target::AtMost(1.9),
    );
    let falls = (all.resident - part.resident) / (all.weights - part.weights);
    println!(
        "| resident memory falls by, of the pruned bytes | | {falls:.2} | {} |\n",
        Target::AtLeast(0.95).columns(falls)
    );
}

/// MB of the embedding and of the head.
const LARGEST: f64 = (2 * olmoe::VOCABULARY * olmoe::HIDDEN / 1_000_000) as f64;

/// What fresh processes take: seconds, bytes, bytes per second.
struct Fresh {
    load: f64,
    weights: f64,
    resident: f64,
    anonymous: f64,
    pread: f64,
    first: f64,
}

fn fresh(effort: Effort, directory: &Path) -> Fresh {
    let rounds = if effort.is_quick() { 3 } else { 7 };
    // The files come into the page cache.
    let memory = run("memory", directory);
    let [weights, resident, anonymous] = memory[..] else {
        panic!("{memory:?}")
    };
    let mut figures: [Vec<f64>; 3] = Default::default();
    for _ in 0..rounds {
        let load = run("load", directory)[0];
        let pread = run("pread", directory);
        let start = Instant::now();
        run("first-token", directory);
        let first = start.elapsed().as_secs_f64();
        for (figures, value) in figures.iter_mut().zip([load, pread[1] / pread[0], first]) {
            figures.push(value);
        }
    }
    let [load, pread, first] = figures.map(median);
    Fresh {
        load,
        weights,
        resident,
        anonymous,
        pread,
        first,
    }
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
            let mut model = plan(directory, DType::F32);
            let start = Instant::now();
            model.load(|_| {}).unwrap();
            println!("{}", start.elapsed().as_secs_f64());
        }
        "memory" => memory(directory),
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

/// Loads under a watch, which takes time of the threads that load: not for timing.
fn memory(directory: &Path) {
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
    let model = load(directory, DType::F32);
    let resident = status("VmRSS:");
    done.store(true, Ordering::Relaxed);
    watch.join().unwrap();
    let weights = model.memory().weights;
    let peak = peak.load(Ordering::Relaxed).max(status("RssAnon:"));
    println!("{weights} {resident} {peak}");
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

fn plan(directory: &Path, activations: DType) -> Model {
    let options = LoadOptions {
        activations,
        ..LoadOptions::default()
    };
    let files = ModelFiles::open(directory).unwrap();
    Model::plan(&files, &options).unwrap()
}

fn load(directory: &Path, activations: DType) -> Model {
    let mut model = plan(directory, activations);
    model.load(|_| {}).unwrap();
    model
}

fn ids(tokens: usize) -> Vec<i64> {
    (0..tokens as i64).map(|i| i * 7919 % 50304).collect()
}

fn speed(effort: Effort, whole: &Path, pruned: &Path) {
    println!(
        "Prefill of {PROMPT} tokens and decode of 64 tokens after 32; limits measured in turns with them:\n\
         the peak of vector instructions, and bandwidth / active bytes.\n"
    );
    println!(
        "| checkpoint | activations | | time | of the limit | target | |\n|---|---|---|---|---|---|---|"
    );
    let variant = Variant::detect().unwrap();
    let models = [
        ("all retained", whole, DType::F32),
        ("all retained", whole, DType::BF16),
        ("25 % substituted", pruned, DType::BF16),
        ("25 % substituted", pruned, DType::F32),
    ];
    let few = if effort.is_quick() { 3 } else { models.len() };
    for (name, directory, activations) in models.into_iter().take(few) {
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
        let prefill = effort.turns([&mut prefill, &mut || {
            locum_benches::peak(vectors(variant), bf16)
        }]);
        let operations = olmoe::operations(PROMPT) as f64;
        let of_peak = prefill.median(|[prefills, peak]| operations * prefills / peak);
        let [prefills, _] = prefill.medians();
        let mut prefix = [model.new_cache()];
        model.logits(&[ids(32)], &mut prefix, Logits::Last).unwrap();
        let mut caches = prefix.clone();
        let mut next = 0;
        let mut decode = || {
            let start = Instant::now();
            for _ in 0..4 {
                if next % 64 == 0 {
                    caches = prefix.clone();
                }
                next += 1;
                model
                    .logits(&[vec![next * 31 % 50304]], &mut caches, Logits::Last)
                    .unwrap();
            }
            4.0 / start.elapsed().as_secs_f64()
        };
        let decode = effort.turns([&mut decode, &mut read_bandwidth_once()]);
        let [tokens, bandwidth] = decode.medians();
        let all = directory == whole;
        let type_name = if bf16 { "bf16" } else { "f32" };
        let target = if bf16 && all {
            Target::AtLeast(0.65)
        } else {
            Target::None
        };
        let limit = if all {
            format!("{of_peak:.2} ({:.0} GFLOP/s)", operations * prefills / 1e9)
        } else {
            String::new()
        };
        println!(
            "| {name} | {type_name} | prefill | {:.2} s | {limit} | {} |",
            1.0 / prefills,
            target.columns(of_peak)
        );
        let active = olmoe::active_bytes(olmoe::TOP_K) as f64;
        let share = decode.median(|[tokens, bandwidth]| active * tokens / bandwidth);
        let target = match (all, bandwidth > 40e9) {
            (false, _) => Target::None,
            (true, false) => Target::AtLeast(0.95),
            (true, true) => Target::AtLeast(0.85),
        };
        let limit = if all {
            format!("{share:.2} (of {:.1} GB/s)", bandwidth / 1e9)
        } else {
            String::new()
        };
        println!(
            "| {name} | {type_name} | decode | {tokens:.1} tokens/s | {limit} | {} |",
            target.columns(share)
        );
    }
    println!();
}
