//! Time of the tiny model, and of the experts of one MoE block at OLMoE-1B-7B's size.
//!
//! `cargo bench -p locum-benches --bench models`; `-- --quick` takes a tenth of the time. The
//! output is Markdown.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;

use half::bf16;
use locum::burn::tensor::{Tensor, TensorData};
use locum::models::{LoadOptions, Logits, Model, ModelFiles};
use locum::nn::{DType, Device, ExpertNames, ExpertsConfig, RoutedExperts, Routes};
use locum::substitution::{Dtype, TensorInfo};
use locum::{MoeLayer, NamedTensor};
use locum_benches::{Effort, machine, read_bandwidth};

const HIDDEN: usize = 2048;
const INTERMEDIATE: usize = 1024;
const EXPERTS: usize = 64;
const TOP_K: usize = 8;

fn main() {
    let effort = Effort::from_arguments();
    println!("## models\n\n{}\n", machine());
    tiny_model(effort);
    block(effort);
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

/// Random-looking weights; their values do not matter for time.
fn weights(name: &str, shape: [usize; 2], seed: usize) -> NamedTensor {
    let mut state = seed as u32 | 1;
    let bytes: Vec<u8> = (0..shape[0] * shape[1])
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
            bf16::from_f32(value * 0.04).to_le_bytes()
        })
        .collect();
    NamedTensor::new(TensorInfo::new(name, Dtype::Bf16, shape), bytes).unwrap()
}

fn block(effort: Effort) {
    let config = ExpertsConfig {
        layer: 0,
        prefix: "model.layers.0.mlp.experts".into(),
        num_logical_experts: EXPERTS as u32,
        hidden: HIDDEN,
        intermediate: INTERMEDIATE,
        names: ExpertNames::PROJ,
        constant_dtype: Dtype::Bf16,
    };
    let mut experts = RoutedExperts::new(config, &Device::flex());
    for expert in 0..EXPERTS {
        for (part, name) in ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]
            .into_iter()
            .enumerate()
        {
            let shape = if part == 2 {
                [HIDDEN, INTERMEDIATE]
            } else {
                [INTERMEDIATE, HIDDEN]
            };
            let tensor = weights(name, shape, expert * 3 + part);
            let taken = experts.expert_weights().unwrap();
            taken.take(tensor, Some(expert as u32), name).unwrap();
        }
    }
    let bandwidth = read_bandwidth(effort);
    println!(
        "One MoE block: hidden {HIDDEN}, intermediate {INTERMEDIATE}, {EXPERTS} experts, top {TOP_K}, weights bf16,\n\
         activations f32, router excluded. Memory was read at {:.1} GB/s before it, in the same run.\n",
        bandwidth / 1e9
    );
    println!(
        "| tokens | time | GFLOP/s | active expert bytes / time / bandwidth |\n|---|---|---|---|"
    );
    for tokens in [1, 16, 256] {
        let x = Tensor::<2>::from_data(
            TensorData::new(vec![0.1f32; tokens * HIDDEN], [tokens, HIDDEN]),
            (&Device::flex(), DType::F32),
        );
        let ids: Vec<i64> = (0..tokens * TOP_K)
            .map(|i| (i * 29 % EXPERTS) as i64)
            .collect();
        let active = ids.iter().collect::<std::collections::BTreeSet<_>>().len();
        let routes = Routes {
            ids,
            weights: vec![0.125; tokens * TOP_K],
            top_k: TOP_K,
        };
        let time = effort.median(|| experts.forward(x.clone(), &routes).into_data());
        let flops = (2 * tokens * TOP_K * 3 * HIDDEN * INTERMEDIATE) as f64;
        let bytes = (active * 3 * HIDDEN * INTERMEDIATE * 2) as f64;
        println!(
            "| {tokens} | {:.1} ms | {:.1} | {:.3} |",
            time * 1e3,
            flops / time / 1e9,
            bytes / time / bandwidth
        );
    }
    println!();
}
