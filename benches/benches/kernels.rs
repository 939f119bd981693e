//! The kernels beside the machine's limits: OLMoE-1B-7B's experts, linear layers, and how cost grows.
//!
//! `cargo bench -p locum-benches --bench kernels`; `-- --quick` takes less time. The
//! output is Markdown. A limit is measured in turns with what it limits, because both move while
//! others use the machine.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::collections::BTreeSet;

use half::bf16;
use locum_benches::{
    Effort, Numbers, Target, bandwidth_target, calls, machine, peak, read_bandwidth_once, vectors,
};
use locum_kernels::{
    Activation, Activations, ConstantRoute, GatedMlp, Linear, Routes, Variant, Weights,
};

const HIDDEN: usize = 2048;
const INTERMEDIATE: usize = 1024;
const EXPERTS: usize = 64;
const TOP_K: usize = 8;
/// Multiplications of a route, two projections and one.
const MATRICES: usize = 3 * HIDDEN * INTERMEDIATE;

fn main() {
    let effort = Effort::from_arguments();
    let variants = Variant::available();
    println!("## kernels\n\n{}\n", machine());
    let block = Block::new();
    limits(effort, &variants);
    all_retained(effort, &variants, &block);
    substituted(effort, variants[0], &block);
    linear(effort, variants[0], &block);
    scaling(effort, variants[0], &block);
    overhead(effort, &variants);
}

/// The weights and activations of a block.
struct Block {
    gate_up: Numbers<bf16>,
    down: Numbers<bf16>,
    x: Numbers<bf16>,
}

/// The most tokens that a suite computes.
const MOST_TOKENS: usize = 1024;

impl Block {
    fn new() -> Self {
        let random = |length: usize, scale: f32| {
            let mut state = length as u32 | 1;
            Numbers::new(length, || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bf16::from_f32(((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * scale)
            })
        };
        Self {
            gate_up: random(EXPERTS * 2 * INTERMEDIATE * HIDDEN, 0.07),
            down: random(EXPERTS * HIDDEN * INTERMEDIATE, 0.07),
            x: random(MOST_TOKENS * HIDDEN, 3.0),
        }
    }

    fn mlp(&self, rows: usize) -> GatedMlp<'_> {
        GatedMlp {
            hidden: HIDDEN,
            intermediate: INTERMEDIATE,
            activation: Activation::Silu,
            gate_up: Weights::Bf16(&self.gate_up[..rows * 2 * INTERMEDIATE * HIDDEN]),
            down: Weights::Bf16(&self.down[..rows * HIDDEN * INTERMEDIATE]),
        }
    }
}

/// Distinct experts for each token, spread evenly: those of the first tokens are shuffled as those
/// of the last.
fn chosen(tokens: usize, experts: usize) -> Vec<[usize; TOP_K]> {
    let mut state = 1u64;
    (0..tokens)
        .map(|_| {
            let mut left: Vec<usize> = (0..experts).collect();
            std::array::from_fn(|i| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                left.swap_remove((state >> 33) as usize % (experts - i))
            })
        })
        .collect()
}

/// Routes to experts below `retained`, and those to the others, which are constants.
fn routes(tokens: usize, retained: usize, experts: usize) -> (Routes, Vec<ConstantRoute>) {
    routes_to(&chosen(tokens, experts), retained)
}

/// The same to chosen experts.
fn routes_to(chosen: &[[usize; TOP_K]], retained: usize) -> (Routes, Vec<ConstantRoute>) {
    let mut rows = vec![Vec::new(); retained];
    let mut constants = Vec::new();
    let weight = 1.0 / TOP_K as f32;
    for (token, chosen) in chosen.iter().enumerate() {
        for &expert in chosen {
            if let Some(row) = rows.get_mut(expert) {
                row.push((token, weight));
            } else {
                let row = expert - retained;
                constants.push(ConstantRoute { token, row, weight });
            }
        }
    }
    (Routes::from_rows(rows), constants)
}

fn limits(effort: Effort, variants: &[Variant]) {
    println!("| limit | |\n|---|---|");
    let [bandwidth] = effort.rates([&mut read_bandwidth_once()]);
    println!("| memory reads | {:.1} GB/s |", bandwidth / 1e9);
    for &variant in variants {
        let [f32, bf16] = effort.rates([&mut || peak(variant, false), &mut || peak(variant, true)]);
        println!("| {} f32 | {:.0} GFLOP/s |", variant.name(), f32 / 1e9);
        if variant.has_bf16_products() {
            println!("| {} bf16 | {:.0} GFLOP/s |", variant.name(), bf16 / 1e9);
        }
    }
    println!();
}

fn all_retained(effort: Effort, variants: &[Variant], block: &Block) {
    println!(
        "The experts of one block: hidden {HIDDEN}, intermediate {INTERMEDIATE}, {EXPERTS} experts, top \
         {TOP_K}, weights bf16, uniform routing.\nRoofline: the larger of active bytes / bandwidth and \
         operations / the peak of the instructions that are used. Peak: that of vector instructions.\n"
    );
    println!(
        "| variant | activations | tokens | time | GFLOP/s | GB/s | of bandwidth | of peak | \
         of roofline | target | |\n|---|---|---|---|---|---|---|---|---|---|---|"
    );
    let x32: Vec<f32> = block.x.iter().map(|x| x.to_f32()).collect();
    for &variant in variants
        .iter()
        .filter(|variant| variant.name() != "portable")
    {
        for bf16 in [true, false] {
            if bf16 && !variant.has_bf16_products() {
                continue;
            }
            for tokens in [1, 4, 16, 64, 256, 1024] {
                // Few tokens several times, with other experts each time: those would stay in a large cache.
                let count = (32 / tokens).max(1);
                let chosen = chosen(count * tokens, EXPERTS);
                let cases: Vec<Routes> = chosen
                    .chunks(tokens)
                    .map(|chosen| routes_to(chosen, EXPERTS).0)
                    .collect();
                let active: usize = chosen
                    .chunks(tokens)
                    .map(|chosen| chosen.as_flattened().iter().collect::<BTreeSet<_>>().len())
                    .sum();
                let flops = (2 * tokens * TOP_K * MATRICES) as f64;
                let bytes = (active * MATRICES * 2) as f64 / count as f64;
                let x = if bf16 {
                    Activations::Bf16(&block.x[..tokens * HIDDEN])
                } else {
                    Activations::F32(&x32[..tokens * HIDDEN])
                };
                let mut out = vec![0.0; tokens * HIDDEN];
                let mlp = block.mlp(EXPERTS);
                let mut call = || {
                    let start = std::time::Instant::now();
                    for routes in &cases {
                        variant.gated_mlp(&mlp, x, routes, &mut out).unwrap();
                    }
                    count as f64 / start.elapsed().as_secs_f64()
                };
                let turns = effort.turns([
                    &mut call,
                    &mut read_bandwidth_once(),
                    &mut || peak(variant, bf16),
                    &mut || peak(vectors(variant), bf16),
                ]);
                let [calls, bandwidth, ..] = turns.medians();
                let of_bandwidth = turns.median(|[calls, bandwidth, ..]| bytes * calls / bandwidth);
                let of_peak = turns.median(|[calls, .., vectors]| flops * calls / vectors);
                let of_roofline = turns.median(|[calls, bandwidth, peak, _]| {
                    calls * (bytes / bandwidth).max(flops / peak)
                });
                let target = match (variant.name(), bf16, tokens) {
                    ("amx" | "avx512", _, 1) => {
                        Target::AtLeast(bandwidth_target(bandwidth)).columns(of_bandwidth)
                    }
                    ("amx" | "avx512", false, 4 | 16) => Target::AtLeast(0.8).columns(of_roofline),
                    ("amx" | "avx512", true, 64) => Target::AtLeast(0.6).columns(of_roofline),
                    ("amx" | "avx512", true, 256) => Target::AtLeast(0.6).columns(of_peak),
                    ("amx" | "avx512", true, 1024) => Target::AtLeast(0.78).columns(of_peak),
                    (_, false, 1024) => Target::AtLeast(0.75).columns(of_peak),
                    _ => Target::None.columns(0.0),
                };
                println!(
                    "| {} | {} | {tokens} | {:.2} ms | {:.0} | {:.1} | {:.2} | {:.2} | {:.2} | {target} |",
                    variant.name(),
                    if bf16 { "bf16" } else { "f32" },
                    1e3 / calls,
                    flops * calls / 1e9,
                    bytes * calls / 1e9,
                    of_bandwidth,
                    of_peak,
                    of_roofline,
                );
            }
        }
    }
    println!();
}

fn substituted(effort: Effort, variant: Variant, block: &Block) {
    println!("The sum of constants beside all of the work, activations bf16.\n");
    println!(
        "| tokens | substituted | all | constants | constants / all | target | |\n\
         |---|---|---|---|---|---|---|"
    );
    for tokens in [1, 16, 256, 1024] {
        let x = Activations::Bf16(&block.x[..tokens * HIDDEN]);
        for retained in [48, 32] {
            let (routes, constants) = routes(tokens, retained, EXPERTS);
            let values = Weights::Bf16(&block.down[..(EXPERTS - retained) * HIDDEN]);
            let mut out = vec![0.0; tokens * HIDDEN];
            let mut other = out.clone();
            let mlp = block.mlp(retained);
            let add = |out: &mut [f32]| {
                variant
                    .add_constants(&constants, values, HIDDEN, out)
                    .unwrap();
            };
            let [all, only] = effort.rates([
                &mut calls(|| {
                    variant.gated_mlp(&mlp, x, &routes, &mut out).unwrap();
                    add(&mut out);
                }),
                &mut calls(|| add(&mut other)),
            ]);
            println!(
                "| {tokens} | {} % | {:.2} ms | {:.3} ms | {:.4} | {} |",
                100 * (EXPERTS - retained) / EXPERTS,
                1e3 / all,
                1e3 / only,
                all / only,
                Target::AtMost(0.02).columns(all / only),
            );
        }
    }
    println!();
}

fn linear(effort: Effort, variant: Variant, block: &Block) {
    println!("Linear layers, weights bf16.\n");
    println!(
        "| shape | activations | tokens | time | of bandwidth | of peak | of roofline |\n\
         |---|---|---|---|---|---|---|"
    );
    let x32: Vec<f32> = block.x.iter().map(|x| x.to_f32()).collect();
    for outputs in [2048, 50304] {
        for (bf16, tokens) in [
            (false, 1),
            (true, 1),
            (false, 16),
            (false, 512),
            (true, 512),
        ] {
            let layer = Linear {
                inputs: HIDDEN,
                outputs,
                weights: Weights::Bf16(&block.gate_up[..outputs * HIDDEN]),
            };
            let x = if bf16 {
                Activations::Bf16(&block.x[..tokens * HIDDEN])
            } else {
                Activations::F32(&x32[..tokens * HIDDEN])
            };
            let mut out = vec![0.0; tokens * outputs];
            let mut call = || {
                let start = std::time::Instant::now();
                variant.linear(&layer, x, &mut out).unwrap();
                1.0 / start.elapsed().as_secs_f64()
            };
            let turns = effort.turns([&mut call, &mut read_bandwidth_once(), &mut || {
                peak(variant, bf16)
            }]);
            let bytes = (outputs * HIDDEN * 2) as f64;
            let operations = (2 * tokens * outputs * HIDDEN) as f64;
            println!(
                "| {HIDDEN} × {outputs} | {} | {tokens} | {:.3} ms | {:.2} | {:.2} | {:.2} |",
                if bf16 { "bf16" } else { "f32" },
                1e3 / turns.median(|[calls, ..]| calls),
                turns.median(|[calls, bandwidth, _]| bytes * calls / bandwidth),
                turns.median(|[calls, _, peak]| operations * calls / peak),
                turns.median(|[calls, bandwidth, peak]| {
                    calls * (bytes / bandwidth).max(operations / peak)
                }),
            );
        }
    }
    println!();
}

/// How time grows with tokens and experts.
fn scaling(effort: Effort, variant: Variant, block: &Block) {
    const COUNTS: [usize; 6] = [8, 16, 32, 64, 128, 256];
    let [hidden, intermediate] = [512, 256];
    println!(
        "Time by tokens and experts: hidden {hidden}, intermediate {intermediate}, top {TOP_K}, \
         weights and activations bf16.\n"
    );
    let heads = COUNTS.map(|experts| format!("{experts} experts"));
    println!("| tokens | {} |", heads.join(" | "));
    println!("|---|{}", "---|".repeat(COUNTS.len()));
    let effort = effort.shared_by(4);
    let prepare = |tokens: usize, experts: usize| {
        let matrix = experts * hidden * intermediate;
        let mlp = GatedMlp {
            hidden,
            intermediate,
            activation: Activation::Silu,
            gate_up: Weights::Bf16(&block.gate_up[..2 * matrix]),
            down: Weights::Bf16(&block.down[..matrix]),
        };
        let (routes, _) = routes(tokens, experts, experts);
        let x = Activations::Bf16(&block.x[..tokens * hidden]);
        let mut out = vec![0.0; tokens * hidden];
        move || variant.gated_mlp(&mlp, x, &routes, &mut out).unwrap()
    };
    for tokens in [1, 4, 16, 64, 256, 1024, 4096] {
        let times = COUNTS.map(|experts| effort.median(prepare(tokens, experts)));
        let cells = times.map(|time| format!("{:.3} ms", time * 1e3));
        println!("| {tokens} | {} |", cells.join(" | "));
    }
    println!(
        "\nFrom 1024 to 4096 tokens, time grows so many times, measured in turns; linear growth is 4.\n"
    );
    println!("| experts | growth | target | |\n|---|---|---|---|");
    for experts in COUNTS {
        let turns = effort.turns([
            &mut calls(prepare(1024, experts)),
            &mut calls(prepare(4096, experts)),
        ]);
        let growth = turns.median(|[before, last]| before / last);
        let target = Target::AtMost(4.2).columns(growth);
        println!("| {experts} | {growth:.2} | {target} |");
    }
    println!();
}

/// A block so small that its arithmetic is nothing.
fn overhead(effort: Effort, variants: &[Variant]) {
    println!("Per call: hidden 16, intermediate 16, 8 experts, top 2, 1 token.\n");
    println!("| variant | time, µs | target | |\n|---|---|---|---|");
    let weights = vec![bf16::ONE; 8 * 2 * 16 * 16];
    let mlp = GatedMlp {
        hidden: 16,
        intermediate: 16,
        activation: Activation::Silu,
        gate_up: Weights::Bf16(&weights),
        down: Weights::Bf16(&weights[..8 * 16 * 16]),
    };
    let routes = Routes::from_rows((0..8).map(|row| {
        let chosen: &[(usize, f32)] = if row % 4 == 1 { &[(0, 0.5)] } else { &[] };
        chosen.iter().copied()
    }));
    let mut out = [0.0; 16];
    for &variant in variants {
        let time = effort.median(|| {
            for _ in 0..100 {
                let x = Activations::F32(&[1.0; 16]);
                variant.gated_mlp(&mlp, x, &routes, &mut out).unwrap();
            }
        });
        let microseconds = time * 1e4;
        println!(
            "| {} | {microseconds:.2} | {} |",
            variant.name(),
            Target::AtMost(15.0).columns(microseconds)
        );
    }
    println!();
}
