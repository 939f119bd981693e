//! The kernels beside the machine's limits: OLMoE-1B-7B's block, with and without substitution.
//!
//! `cargo bench -p locum-benches --bench kernels`; `-- --quick` takes a tenth of the time. The
//! output is Markdown. A limit is measured in turns with what it limits, because both move while
//! others use the machine.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use half::bf16;
use locum_benches::{Effort, machine, peak, read_bandwidth_once};
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
    overhead(effort, &variants);
}

/// The weights and activations of a block.
struct Block {
    gate_up: Vec<bf16>,
    down: Vec<bf16>,
    x: Vec<bf16>,
}

/// The most tokens that a suite computes.
const MOST_TOKENS: usize = 1024;

impl Block {
    fn new() -> Self {
        let random = |length: usize, scale: f32| -> Vec<bf16> {
            let mut state = length as u32 | 1;
            (0..length)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    bf16::from_f32(((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * scale)
                })
                .collect()
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
fn chosen(tokens: usize) -> Vec<[usize; TOP_K]> {
    let mut state = 1u64;
    (0..tokens)
        .map(|_| {
            let mut experts: Vec<usize> = (0..EXPERTS).collect();
            std::array::from_fn(|i| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let left = EXPERTS - i;
                experts.swap_remove((state >> 33) as usize % left)
            })
        })
        .collect()
}

/// Routes to experts below `retained`, and those to the others, which are constants.
fn routes(tokens: usize, retained: usize) -> (Routes, Vec<ConstantRoute>) {
    let mut rows = vec![Vec::new(); retained];
    let mut constants = Vec::new();
    let weight = 1.0 / TOP_K as f32;
    for (token, experts) in chosen(tokens).into_iter().enumerate() {
        for expert in experts {
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
        "One block: hidden {HIDDEN}, intermediate {INTERMEDIATE}, {EXPERTS} experts, top {TOP_K}, \
         weights bf16, uniform routing.\nRoofline: the larger of active bytes / bandwidth and \
         operations / peak.\n"
    );
    println!(
        "| variant | activations | tokens | time | GFLOP/s | GB/s | of bandwidth | of peak | \
         of roofline | target |\n|---|---|---|---|---|---|---|---|---|---|"
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
                let (routes, _) = routes(tokens, EXPERTS);
                let active = chosen(tokens)
                    .into_iter()
                    .flatten()
                    .collect::<std::collections::BTreeSet<_>>();
                let flops = (2 * routes.len() * MATRICES) as f64;
                let bytes = (active.len() * MATRICES * 2) as f64;
                let x = if bf16 {
                    Activations::Bf16(&block.x[..tokens * HIDDEN])
                } else {
                    Activations::F32(&x32[..tokens * HIDDEN])
                };
                let mut out = vec![0.0; tokens * HIDDEN];
                let mlp = block.mlp(EXPERTS);
                let mut call = || {
                    let start = std::time::Instant::now();
                    variant.gated_mlp(&mlp, x, &routes, &mut out).unwrap();
                    1.0 / start.elapsed().as_secs_f64()
                };
                let [calls, bandwidth, peak] =
                    effort.rates([&mut call, &mut read_bandwidth_once(), &mut || {
                        peak(variant, bf16)
                    }]);
                let target = match (variant.name(), bf16, tokens) {
                    ("avx512", _, 1) => "0.9 of bandwidth (0.8 above 40 GB/s)",
                    ("avx512", false, 4 | 16) => "0.8 of roofline",
                    ("avx512", true, 64) => "0.6 of roofline",
                    ("avx512", true, 256) => "0.6 of peak",
                    ("avx512", true, 1024) => "0.78 of peak",
                    (_, false, 1024) => "0.75 of peak",
                    _ => "",
                };
                println!(
                    "| {} | {} | {tokens} | {:.2} ms | {:.0} | {:.1} | {:.2} | {:.2} | {:.2} | {target} |",
                    variant.name(),
                    if bf16 { "bf16" } else { "f32" },
                    1e3 / calls,
                    flops * calls / 1e9,
                    bytes * calls / 1e9,
                    bytes * calls / bandwidth,
                    flops * calls / peak,
                    calls * (bytes / bandwidth).max(flops / peak),
                );
            }
        }
    }
    println!();
}

fn substituted(effort: Effort, variant: Variant, block: &Block) {
    println!(
        "A part of the experts substituted, activations bf16; the target is 1.05 or less, and 0.02 \
         or less for the constants.\n"
    );
    println!(
        "| tokens | substituted | time | all retained | ratio / retained routes | constants / all \
         |\n|---|---|---|---|---|---|"
    );
    for tokens in [1, 16, 256, 1024] {
        let x = Activations::Bf16(&block.x[..tokens * HIDDEN]);
        let (all, _) = routes(tokens, EXPERTS);
        for retained in [48, 32] {
            let (routes, constants) = routes(tokens, retained);
            let values = Weights::Bf16(&block.down[..(EXPERTS - retained) * HIDDEN]);
            let mut out = vec![0.0; tokens * HIDDEN];
            let mut other = out.clone();
            let mut third = out.clone();
            let timed = |work: &mut dyn FnMut()| {
                let start = std::time::Instant::now();
                work();
                1.0 / start.elapsed().as_secs_f64()
            };
            let [with, without, only] = effort.rates([
                &mut || {
                    timed(&mut || {
                        let mlp = block.mlp(retained);
                        variant.gated_mlp(&mlp, x, &routes, &mut out).unwrap();
                        variant
                            .add_constants(&constants, values, HIDDEN, &mut out)
                            .unwrap();
                    })
                },
                &mut || {
                    timed(&mut || {
                        let mlp = block.mlp(EXPERTS);
                        variant.gated_mlp(&mlp, x, &all, &mut other).unwrap();
                    })
                },
                &mut || {
                    timed(&mut || {
                        variant
                            .add_constants(&constants, values, HIDDEN, &mut third)
                            .unwrap();
                    })
                },
            ]);
            let share = routes.len() as f64 / all.len() as f64;
            println!(
                "| {tokens} | {} % | {:.2} ms | {:.2} ms | {:.3} | {:.4} |",
                100 * (EXPERTS - retained) / EXPERTS,
                1e3 / with,
                1e3 / without,
                without / with / share,
                with / only,
            );
        }
    }
    println!();
}

fn linear(effort: Effort, variant: Variant, block: &Block) {
    println!("Linear layers, weights bf16.\n");
    println!(
        "| shape | activations | tokens | time | of bandwidth | of peak |\n|---|---|---|---|---|---|"
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
            let [calls, bandwidth, peak] =
                effort.rates([&mut call, &mut read_bandwidth_once(), &mut || {
                    peak(variant, bf16)
                }]);
            println!(
                "| {HIDDEN} × {outputs} | {} | {tokens} | {:.3} ms | {:.2} | {:.2} |",
                if bf16 { "bf16" } else { "f32" },
                1e3 / calls,
                (outputs * HIDDEN * 2) as f64 * calls / bandwidth,
                (2 * tokens * outputs * HIDDEN) as f64 * calls / peak,
            );
        }
    }
    println!();
}

/// A block so small that its arithmetic is nothing.
fn overhead(effort: Effort, variants: &[Variant]) {
    println!("Per call: hidden 16, intermediate 16, 8 experts, top 2, 1 token; target 15 µs.\n");
    println!("| variant | time |\n|---|---|");
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
        println!("| {} | {:.2} µs |", variant.name(), time * 1e4);
    }
    println!();
}
