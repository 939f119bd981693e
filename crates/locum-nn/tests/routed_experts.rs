//! Routed experts, retained and substituted: what a token gets, and what it does not get.
#![allow(clippy::unwrap_used)]

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::{bf16, f16};
use locum_nn::{ExpertNames, ExpertsConfig, RoutedExperts, Routes};
use locum_substitution::{Constant, Dtype, MoeLayer, NamedTensor, RouteTable};

const HIDDEN: usize = 2;

/// Experts whose constants are held in a type; `retained` gives each retained expert's gate, up and
/// down weights, one intermediate element wide: `[gate; 2]`, `[up; 2]`, `[down; 2]`.
fn experts(
    logical: u32,
    constants: &[(u32, [f32; HIDDEN])],
    dtype: Dtype,
    retained: impl Fn(u32) -> [[f32; HIDDEN]; 3],
) -> RoutedExperts {
    let config = ExpertsConfig {
        layer: 0,
        prefix: "model.layers.0.mlp.experts".into(),
        num_logical_experts: logical,
        hidden: HIDDEN,
        intermediate: 1,
        names: ExpertNames::PROJ,
        constant_dtype: dtype.clone(),
    };
    let mut experts = RoutedExperts::new(config, &Device::flex());
    let substituted: Vec<u32> = constants.iter().map(|(expert, _)| *expert).collect();
    let table = RouteTable::new(logical, &substituted).unwrap();
    if !substituted.is_empty() {
        experts.substitute(&table).unwrap();
    }
    for &expert in table.retained() {
        let names = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"];
        for (name, values) in names.into_iter().zip(retained(expert)) {
            let shape = if name.starts_with("down") {
                [2, 1]
            } else {
                [1, 2]
            };
            let tensor = NamedTensor::from_f32(name, shape, &values).unwrap();
            let weights = experts.expert_weights().unwrap();
            weights.take(tensor, Some(expert), name).unwrap();
        }
    }
    let constants: Vec<Constant> = constants
        .iter()
        .enumerate()
        .map(|(row, (expert, value))| Constant {
            row,
            expert: *expert,
            value: value
                .iter()
                .flat_map(|&v| match dtype {
                    Dtype::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
                    Dtype::Bf16 => bf16::from_f32(v).to_le_bytes().to_vec(),
                    _ => v.to_le_bytes().to_vec(),
                })
                .collect::<Vec<u8>>()
                .into(),
        })
        .collect();
    if !constants.is_empty() {
        experts.load_constants(&constants).unwrap();
    }
    experts
}

fn zero(_: u32) -> [[f32; HIDDEN]; 3] {
    [[0.0; HIDDEN]; 3]
}

fn run(experts: &RoutedExperts, x: &[[f32; HIDDEN]], ids: &[i64], weights: &[f32]) -> Vec<f32> {
    let routes = Routes {
        top_k: ids.len() / x.len().max(1),
        ids: ids.to_vec(),
        weights: weights.to_vec(),
    };
    let x = Tensor::<2>::from_data(
        TensorData::new(x.concat(), [x.len(), HIDDEN]),
        (&Device::flex(), DType::F32),
    );
    experts
        .forward(x, &routes)
        .into_data()
        .iter::<f32>()
        .collect()
}

/// Expert `e` computes `e · silu(x₀) · x₀` in both elements.
fn scaled(expert: u32) -> [[f32; HIDDEN]; 3] {
    [[1.0, 0.0], [1.0, 0.0], [expert as f32; 2]]
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!(
            (f - e).abs() <= 1e-5 * e.abs().max(1.0),
            "{found:?}, expected {expected:?}"
        );
    }
}

#[test]
fn constants_are_summed_by_router_weight_and_invalid_routes_lead_nowhere() {
    let constants = [(1, [10.0, 20.0]), (3, [30.0, 40.0])];
    let ids = [1, 2, 4, 3, 99, -1];
    let weights = [0.25, 0.75, 0.6, 0.4, 0.5, 0.5];
    let token = [[1.0, 0.0]; 3];
    // Retained experts of zeros: the constants' part alone.
    let found = run(
        &experts(5, &constants, Dtype::F32, zero),
        &token,
        &ids,
        &weights,
    );
    assert_eq!(found, [2.5, 5.0, 12.0, 16.0, 0.0, 0.0]);
    // Retained experts 2 and 4 add 0.75 · 2 and 0.6 · 4 times silu(1).
    let found = run(
        &experts(5, &constants, Dtype::F32, scaled),
        &token,
        &ids,
        &weights,
    );
    let (second, fourth) = (1.5 * silu(1.0), 2.4 * silu(1.0));
    assert_close(
        &found,
        &[
            2.5 + second,
            5.0 + second,
            12.0 + fourth,
            16.0 + fourth,
            0.0,
            0.0,
        ],
    );
}

#[test]
fn no_token_one_and_several() {
    let experts = experts(
        5,
        &[(1, [10.0, 20.0]), (3, [30.0, 40.0])],
        Dtype::F32,
        scaled,
    );
    for tokens in [0, 1, 3, 7] {
        let x: Vec<[f32; 2]> = (0..tokens).map(|t| [t as f32, 0.0]).collect();
        let ids: Vec<i64> = (0..tokens).flat_map(|t| [1, 2 + (t % 2) as i64]).collect();
        let weights: Vec<f32> = (0..tokens).flat_map(|_| [0.25, 0.75]).collect();
        let expected: Vec<f32> = (0..tokens)
            .flat_map(|t| {
                let x = t as f32;
                let second = match t % 2 {
                    0 => [1.5 * silu(x) * x; 2],
                    _ => [22.5, 30.0],
                };
                [2.5 + second[0], 5.0 + second[1]]
            })
            .collect();
        assert_close(&run(&experts, &x, &ids, &weights), &expected);
    }
}

#[test]
fn half_precision_constants_are_summed_in_f64_and_rounded_once() {
    let weights = [0.5001f32, 0.4999];
    for (dtype, stored) in [
        (Dtype::F16, f16::from_f32(60000.0).to_f64()),
        (Dtype::Bf16, bf16::from_f32(60000.0).to_f64()),
        (Dtype::F32, 60000.0),
    ] {
        let constants = [(0, [60000.0, -60000.0]), (1, [-60000.0, 60000.0])];
        let found = run(
            &experts(3, &constants, dtype.clone(), zero),
            &[[1.0, 1.0]],
            &[0, 1],
            &weights,
        );
        let sum = f64::from(weights[0]) * stored - f64::from(weights[1]) * stored;
        assert_eq!(found, [sum as f32, -sum as f32], "{dtype}");
    }
}

#[test]
fn expert_that_overflows_stays_with_its_own_tokens() {
    let overflowing = |expert| match expert {
        0 => [[3e38, 0.0], [3e38, 0.0], [3e38; 2]],
        _ => scaled(expert),
    };
    let experts = experts(3, &[(2, [5.0, 6.0])], Dtype::F32, overflowing);
    let found = run(
        &experts,
        &[[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]],
        &[0, 1, 1, 2, 2, -1],
        &[0.5; 6],
    );
    assert!(!found[0].is_finite() && !found[1].is_finite());
    let one = 0.5 * silu(2.0) * 2.0;
    assert_close(&found[2..], &[2.5 + one, 3.0 + one, 2.5, 3.0]);
}

#[test]
fn nan_router_weight_stays_with_its_token() {
    let experts = experts(3, &[(2, [5.0, 6.0])], Dtype::F32, scaled);
    let x = [[2.0, 0.0]; 3];
    let ids = [1, 2, 1, 2, 1, 2];
    let clean = run(&experts, &x, &ids, &[0.5; 6]);
    let found = run(
        &experts,
        &x,
        &ids,
        &[0.5, 0.5, f32::NAN, f32::NAN, 0.5, 0.5],
    );
    assert!(found[2].is_nan() && found[3].is_nan());
    assert_eq!((&found[..2], &found[4..]), (&clean[..2], &clean[4..]));
}

#[test]
fn nan_weight_of_an_invalid_route_leads_nowhere() {
    let experts = experts(3, &[(2, [5.0, 6.0])], Dtype::F32, scaled);
    let found = run(&experts, &[[2.0, 0.0]], &[2, 7], &[1.0, f32::NAN]);
    assert_eq!(found, [5.0, 6.0]);
}

#[test]
fn tokens_whose_routes_are_all_substituted_get_exact_constants() {
    let experts = experts(3, &[(0, [1.5, -2.0]), (2, [0.25, 8.0])], Dtype::F32, scaled);
    // The second token alone; then every token, so that no expert runs at all.
    let found = run(
        &experts,
        &[[1.0, 0.0]; 2],
        &[1, 0, 2, 0],
        &[1.0, 0.0, 0.5, 0.5],
    );
    assert_close(&found[..2], &[silu(1.0); 2]);
    assert_eq!(found[2..], [0.875, 3.0]);
    let found = run(
        &experts,
        &[[1.0, 0.0]; 2],
        &[0, 2, 2, 0],
        &[0.5, 0.5, 1.0, 0.0],
    );
    assert_eq!(found, [0.875, 3.0, 0.25, 8.0]);
}

#[test]
fn top_k_larger_than_the_number_of_retained_experts() {
    let constants = [(0, [1.0, 1.0]), (1, [2.0, 2.0]), (3, [4.0, 4.0])];
    let experts = experts(4, &constants, Dtype::F32, scaled);
    let found = run(&experts, &[[1.0, 0.0]], &[3, 2, 1, 0], &[0.25; 4]);
    assert_close(&found, &[1.75 + 0.5 * silu(1.0); 2]);
}

#[test]
fn bf16_activations_round_the_sum_once() {
    let experts = experts(2, &[(0, [1.0, 3.0])], Dtype::F32, zero);
    let routes = Routes {
        ids: vec![0],
        weights: vec![0.333_333_34],
        top_k: 1,
    };
    let x = Tensor::<2>::zeros([1, 2], (&Device::flex(), DType::BF16));
    let y = experts.forward(x, &routes);
    assert_eq!(y.dtype(), DType::BF16);
    let expected = [0.333_333_34f32, 1.0].map(|v| bf16::from_f32(v).to_f32());
    assert_eq!(y.into_data().iter::<f32>().collect::<Vec<_>>(), expected);
}

#[test]
fn kernels_give_what_plain_tensor_operations_give() {
    let experts = experts(
        4,
        &[(1, [10.0, -20.0]), (3, [0.5, 40.0])],
        Dtype::Bf16,
        scaled,
    );
    let routes = Routes {
        ids: vec![0, 1, 3, 2, 2, 9, 1, 3],
        weights: vec![0.5, 0.25, 0.75, 0.125, 0.3, 0.6, 0.2, 0.1],
        top_k: 2,
    };
    let values = [0.5f32, -1.0, 2.0, 0.25, -0.75, 3.0, 1.5, 0.0];
    let x = Tensor::<2>::from_data(
        TensorData::new(values.to_vec(), [4, HIDDEN]),
        (&Device::flex(), DType::F32),
    );
    let numbers = |y: Tensor<2>| y.into_data().iter::<f32>().collect::<Vec<f32>>();
    let plain = numbers(experts.forward_plain(x.clone(), &routes));
    assert_close(&numbers(experts.forward(x, &routes)), &plain);
    assert!(plain.iter().any(|value| value.abs() > 1.0), "{plain:?}");
}
