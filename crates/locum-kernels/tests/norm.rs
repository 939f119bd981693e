//! Normalisation and rounding of every variant that this machine has.
#![allow(clippy::unwrap_used)]

use half::{bf16, f16};
use locum_kernels::{Activations, ActivationsMut, KernelError, Variant, Weights};
use proptest::prelude::*;
use rayon::ThreadPoolBuilder;

/// Numbers around zero, the same for a seed.
fn numbers(seed: u64, length: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let value = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            // All three types hold it.
            bf16::from_f32(value).to_f32()
        })
        .collect()
}

const EPSILON: f32 = 1e-3;

/// In `f64`.
fn expected(x: &[f32], weight: &[f32]) -> Vec<f64> {
    let rows = x.chunks_exact(weight.len());
    rows.flat_map(|row| {
        let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        let scale = (squares / row.len() as f64 + f64::from(EPSILON)).sqrt();
        row.iter()
            .zip(weight)
            .map(move |(&x, &w)| f64::from(x) / scale * f64::from(w))
            .collect::<Vec<_>>()
    })
    .collect()
}

fn compare(rows: usize, size: usize) {
    let (x, weight) = (numbers(1, rows * size), numbers(2, size));
    let expected = expected(&x, &weight);
    let x16: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();
    let weight_f16: Vec<f16> = weight.iter().copied().map(f16::from_f32).collect();
    let weight_bf16: Vec<bf16> = weight.iter().copied().map(bf16::from_f32).collect();
    let weights = [
        Weights::F32(&weight),
        Weights::F16(&weight_f16),
        Weights::Bf16(&weight_bf16),
    ];
    for variant in Variant::available() {
        for weight in weights {
            let run = |threads: usize| {
                let pool = ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                let mut out = vec![f32::NAN; x.len()];
                let mut out16 = vec![bf16::NAN; x.len()];
                pool.install(|| {
                    variant
                        .rms_norm(
                            Activations::F32(&x),
                            weight,
                            EPSILON,
                            ActivationsMut::F32(&mut out),
                        )
                        .unwrap();
                    variant
                        .rms_norm(
                            Activations::Bf16(&x16),
                            weight,
                            EPSILON,
                            ActivationsMut::Bf16(&mut out16),
                        )
                        .unwrap();
                });
                (out, out16)
            };
            let (found, found16) = run(1);
            assert_eq!((&found, &found16), (&run(3).0, &run(3).1), "threads");
            for ((found, found16), expected) in found.iter().zip(&found16).zip(&expected) {
                let off = (f64::from(*found) - expected).abs();
                assert!(off <= 1e-6 * expected.abs(), "{}: {off}", variant.name());
                assert_eq!(*found16, bf16::from_f32(*found), "{}", variant.name());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn rows_are_normalised_as_in_f64(rows in 0..71usize, size in 1..71usize) {
        compare(rows, size);
    }
}

#[test]
fn many_rows_are_normalised_as_in_f64() {
    compare(300, 500);
}

#[test]
fn conversion_is_that_of_the_types() {
    for length in [0, 1, 31, 1024, 5 * 1024 + 17, 200_000] {
        let mut x: Vec<f32> = numbers(3, length).iter().map(|x| x * 1.000_3).collect();
        for (place, special) in [f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45]
            .into_iter()
            .enumerate()
        {
            if let Some(x) = x.get_mut(7 * place) {
                *x = special;
            }
        }
        let expected: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();
        let back: Vec<f32> = expected.iter().map(|x| x.to_f32()).collect();
        for variant in Variant::available() {
            let mut rounded = vec![bf16::NAN; length];
            variant
                .convert(Activations::F32(&x), ActivationsMut::Bf16(&mut rounded))
                .unwrap();
            assert_eq!(rounded, expected, "{}", variant.name());
            let mut widened = vec![f32::NAN; length];
            variant
                .convert(
                    Activations::Bf16(&rounded),
                    ActivationsMut::F32(&mut widened),
                )
                .unwrap();
            assert_eq!(widened, back, "{}", variant.name());
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let variant = Variant::detect().unwrap();
    let norm = |x: &[f32], weight: &[f32], out: &mut [f32]| {
        variant.rms_norm(
            Activations::F32(x),
            Weights::F32(weight),
            EPSILON,
            ActivationsMut::F32(out),
        )
    };
    let refused = |what, expected, found| {
        Err(KernelError::Length {
            what,
            expected,
            found,
        })
    };
    assert_eq!(norm(&[1.0; 6], &[1.0; 3], &mut [0.0; 6]), Ok(()));
    assert_eq!(
        norm(&[1.0; 7], &[1.0; 3], &mut [0.0; 7]),
        refused("x", 6, 7)
    );
    assert_eq!(
        norm(&[1.0; 6], &[1.0; 3], &mut [0.0; 5]),
        refused("out", 6, 5)
    );
    assert_eq!(norm(&[], &[], &mut []), Ok(()));
    assert_eq!(
        variant.convert(
            Activations::F32(&[1.0; 3]),
            ActivationsMut::F32(&mut [0.0; 2])
        ),
        refused("out", 3, 2)
    );
}
