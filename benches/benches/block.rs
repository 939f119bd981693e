//! One MoE block as models use it, router included, at OLMoE-1B-7B's sizes: beside the machine's
//! limits, beside the same by plain tensor operations, with substituted experts, and beside
//! transformers.
//!
//! `cargo bench -p locum-benches --bench block`; `-- --quick` takes less time. `PYTHON`
//! names the Python that has PyTorch and transformers, else `python3` is tried. The output is
//! Markdown. What is compared is measured in turns.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use locum::burn::tensor::Tensor;
use locum::nn::{DType, Routes, SparseMoe};
use locum_benches::block::{Sizes, moe, tokens as input};
use locum_benches::peer::{IMPLEMENTATIONS, Peer};
use locum_benches::{
    Effort, Target, bandwidth_target, calls, machine, peak, read_bandwidth_once, vectors,
};
use locum_kernels::Variant;

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: Sizes = Sizes::OLMOE;

fn main() {
    // As one of the pool's threads, as a model computes.
    rayon::scope(|_| suite(Effort::from_arguments()));
}

fn suite(effort: Effort) {
    println!("## block\n\n{}\n", machine());
    println!(
        "One MoE block: hidden {}, intermediate {}, {} experts, top {}, weights bf16, random tokens,\n\
         router included.\n",
        SIZES.hidden, SIZES.intermediate, SIZES.experts, SIZES.top_k
    );
    let all = moe(SIZES, 0).unwrap();
    limits(effort, &all);
    plain(effort, &all);
    peer(effort, &all);
    let quarter = moe(SIZES, SIZES.experts / 4).unwrap();
    substituted(effort, &all, &quarter, SIZES.experts / 4);
    drop(quarter);
    let half = moe(SIZES, SIZES.experts / 2).unwrap();
    substituted(effort, &all, &half, SIZES.experts / 2);
    drop((all, half));
    overhead(effort);
}

fn name(activations: DType) -> &'static str {
    match activations {
        DType::BF16 => "bf16",
        _ => "f32",
    }
}

/// The activations that are used: exact where memory is what limits.
fn usual(tokens: usize) -> DType {
    if tokens > 16 { DType::BF16 } else { DType::F32 }
}

/// Few tokens several times, other ones each time: their experts would stay in a large cache.
fn inputs(tokens: usize, activations: DType) -> Vec<Tensor<2>> {
    let calls = (32 / tokens).max(1);
    input(calls * tokens, SIZES.hidden, activations).chunk(calls, 0)
}

fn limits(effort: Effort, all: &SparseMoe) {
    println!(
        "Roofline: the larger of active bytes / bandwidth and operations / the peak of the instructions\n\
         that are used, both measured in turns with the block. Peak: that of vector instructions.\n\
         Up to 16 tokens, calls of different tokens follow each other.\n"
    );
    println!(
        "| activations | tokens | time | GFLOP/s | GB/s | bandwidth | of bandwidth | of peak \
         | of roofline | target | |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let variant = Variant::detect().unwrap();
    for (activations, tokens) in [
        (DType::F32, 1),
        (DType::BF16, 1),
        (DType::F32, 4),
        (DType::F32, 16),
        (DType::BF16, 16),
        (DType::BF16, 64),
        (DType::BF16, 256),
        (DType::BF16, 1024),
        (DType::F32, 1024),
    ] {
        let inputs = inputs(tokens, activations);
        let active: usize = inputs
            .iter()
            .map(|x| all.gate.forward(x.clone(), &SIZES.rule()))
            .map(|routes| routes.ids.iter().collect::<BTreeSet<_>>().len())
            .sum();
        let operations = SIZES.operations(tokens * SIZES.top_k, tokens);
        let bytes = active as f64 * SIZES.expert_bytes() / inputs.len() as f64;
        let bf16 = activations == DType::BF16;
        let mut all_inputs = calls(|| {
            for x in &inputs {
                std::hint::black_box(all.forward(x.clone()));
            }
        });
        let turns = effort.turns([
            &mut || inputs.len() as f64 * all_inputs(),
            &mut read_bandwidth_once(),
            &mut || peak(variant, bf16),
            &mut || peak(vectors(variant), bf16),
        ]);
        let [calls, bandwidth, ..] = turns.medians();
        let of_bandwidth = turns.median(|[calls, bandwidth, ..]| bytes * calls / bandwidth);
        let of_peak = turns.median(|[calls, .., vectors]| operations * calls / vectors);
        let of_roofline = turns.median(|[calls, bandwidth, peak, _]| {
            calls * (bytes / bandwidth).max(operations / peak)
        });
        let verdict = match (bf16, tokens) {
            (_, 1) => Target::AtLeast(bandwidth_target(bandwidth)).columns(of_bandwidth),
            (_, 4 | 16) => Target::AtLeast(0.8).columns(of_roofline),
            (true, 64) => Target::AtLeast(0.6).columns(of_roofline),
            (true, 256) => Target::AtLeast(0.6).columns(of_peak),
            (true, 1024) => Target::AtLeast(0.78).columns(of_peak),
            (false, 1024) => Target::AtLeast(0.75).columns(of_peak),
            _ => Target::None.columns(0.0),
        };
        println!(
            "| {} | {tokens} | {:.2} ms | {:.0} | {:.1} | {:.1} | {of_bandwidth:.2} | {of_peak:.2} \
             | {of_roofline:.2} | {verdict} |",
            name(activations),
            1e3 / calls,
            operations * calls / 1e9,
            bytes * calls / 1e9,
            bandwidth / 1e9,
        );
    }
    println!();
}

fn plain(effort: Effort, all: &SparseMoe) {
    println!("The same experts by plain tensor operations of Burn, with the same router:\n");
    println!(
        "| activations | tokens | time | plain | ratio | target | |\n|---|---|---|---|---|---|---|"
    );
    for (activations, tokens, target) in [
        (DType::F32, 1, 15.0),
        (DType::BF16, 1, 15.0),
        (DType::BF16, 1024, 3.5),
    ] {
        let x = input(tokens, SIZES.hidden, activations);
        let turns = effort.turns([
            &mut calls(|| all.forward(x.clone())),
            &mut calls(|| {
                let routes = all.gate.forward(x.clone(), &SIZES.rule());
                all.experts.forward_plain(x.clone(), &routes)
            }),
        ]);
        let [ours, theirs] = turns.medians();
        let ratio = turns.median(|[ours, theirs]| ours / theirs);
        println!(
            "| {} | {tokens} | {:.2} ms | {:.2} ms | {ratio:.1} | {} |",
            name(activations),
            1e3 / ours,
            1e3 / theirs,
            Target::AtLeast(target).columns(ratio),
        );
    }
    println!();
}

/// How long a side computes before it is timed: it slept while the other one computed. Its threads may wake
/// on one processor, from which it takes the system some milliseconds to move one.
const WARM_UP: Duration = Duration::from_millis(50);

fn peer(effort: Effort, all: &SparseMoe) {
    let Some(mut peer) = Peer::start() else {
        println!(
            "Peer not present: no Python with PyTorch and transformers (`PYTHON` names one).\n"
        );
        return;
    };
    println!(
        "{}: the fastest of its implementations ({}), weights and activations bf16.\nBefore a call \
         is timed, each side calls for 50 ms without a clock.\n",
        peer.name,
        IMPLEMENTATIONS.join(", ")
    );
    println!(
        "| tokens | activations here | time | transformers | fastest | ratio | target | |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for tokens in [1, 16, 256, 1024] {
        let activations = usual(tokens);
        let x = input(tokens, SIZES.hidden, activations);
        // The last one gathers weights, which is slow even with one token.
        let [eager, grouped, _] = IMPLEMENTATIONS;
        let cell = std::cell::RefCell::new(&mut peer);
        let mut ours = calls(|| all.forward(x.clone()));
        let turns = effort.turns([
            &mut || {
                let start = Instant::now();
                while start.elapsed() < WARM_UP {
                    ours();
                }
                ours()
            },
            &mut || 1.0 / cell.borrow_mut().call(eager, tokens),
            &mut || 1.0 / cell.borrow_mut().call(grouped, tokens),
        ]);
        let [ours, first, second] = turns.medians();
        let mut best = if first > second {
            (first, eager)
        } else {
            (second, grouped)
        };
        if tokens == 1 {
            let third = 1.0 / cell.borrow_mut().call(IMPLEMENTATIONS[2], tokens);
            if third > best.0 {
                best = (third, IMPLEMENTATIONS[2]);
            }
        }
        let ratio = turns.median(|[ours, first, second]| ours / first.max(second));
        let ratio = ratio.min(ours / best.0);
        println!(
            "| {tokens} | {} | {:.2} ms | {:.2} ms | {} | {ratio:.2} | {} |",
            name(activations),
            1e3 / ours,
            1e3 / best.0,
            best.1,
            Target::AtLeast(1.0).columns(ratio),
        );
    }
    println!();
}

/// Routes as vLLM makes them for an expert without weights: to physical row 0, with weight 0.
fn to_row_0(routes: &Routes, retained: usize) -> Routes {
    let mut routes = routes.clone();
    for (id, weight) in routes.ids.iter_mut().zip(&mut routes.weights) {
        if *id >= retained as i64 {
            (*id, *weight) = (0, 0.0);
        }
    }
    routes
}

fn substituted(effort: Effort, all: &SparseMoe, pruned: &SparseMoe, count: usize) {
    let share = 100 * count / SIZES.experts;
    println!(
        "{share} % of the experts substituted; ratio: time / (retained routes / all routes × time with all\n\
         retained). Beside it vLLM's way: substituted routes lead to physical row 0 with weight 0, and are\n\
         computed; its sum of constants is left out.\n"
    );
    println!(
        "| activations | tokens | retained routes | time | all retained | ratio | target | \
         | vLLM's way | times slower | target | |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for tokens in [1, 16, 256, 1024] {
        let activations = usual(tokens);
        let x = input(tokens, SIZES.hidden, activations);
        let retained = SIZES.experts - count;
        let routes = all.gate.forward(x.clone(), &SIZES.rule());
        let kept = routes
            .ids
            .iter()
            .filter(|&&id| id < retained as i64)
            .count();
        let part = kept as f64 / routes.ids.len() as f64;
        let turns = effort.turns([
            &mut calls(|| pruned.forward(x.clone())),
            &mut calls(|| all.forward(x.clone())),
            &mut calls(|| {
                let routes = pruned.gate.forward(x.clone(), &SIZES.rule());
                pruned
                    .experts
                    .forward(x.clone(), &to_row_0(&routes, retained))
            }),
        ]);
        let [ours, whole, theirs] = turns.medians();
        let ratio = turns.median(|[ours, whole, _]| whole / ours / part);
        let slower = turns.median(|[ours, _, theirs]| ours / theirs);
        let target = match (tokens, share) {
            (1024, 25) => Target::AtLeast(1.2),
            (1024, 50) => Target::AtLeast(1.7),
            _ => Target::None,
        };
        println!(
            "| {} | {tokens} | {part:.2} | {:.2} ms | {:.2} ms | {ratio:.3} | {} | {:.2} ms \
             | {slower:.2} | {} |",
            name(activations),
            1e3 / ours,
            1e3 / whole,
            Target::AtMost(1.05).columns(ratio),
            1e3 / theirs,
            target.columns(slower),
        );
    }
    println!();
}

/// A block so small that its arithmetic is nothing.
fn overhead(effort: Effort) {
    let tiny = Sizes {
        hidden: 16,
        intermediate: 16,
        experts: 8,
        top_k: 2,
    };
    let moe = moe(tiny, 0).unwrap();
    let x = input(1, tiny.hidden, DType::F32);
    let time = effort.median(|| {
        for _ in 0..100 {
            std::hint::black_box(moe.forward(x.clone()));
        }
    });
    let microseconds = time * 1e4;
    println!(
        "Per call, beyond arithmetic (hidden 16, intermediate 16, 8 experts, top 2, 1 token):\n\n\
         | time, µs | target | |\n|---|---|---|\n| {microseconds:.1} | {} |\n",
        Target::AtMost(15.0).columns(microseconds)
    );
}
