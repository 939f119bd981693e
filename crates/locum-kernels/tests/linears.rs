//! Several layers at once, and rotary positions.
#![allow(clippy::unwrap_used)]

use half::{bf16, f16};
use locum_kernels::{Activations, ActivationsMut, KernelError, Linear, Rotary, Variant, Weights};

fn numbers(seed: u32, length: usize) -> Vec<f32> {
    let mut state = seed;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        })
        .collect()
}

#[test]
fn layers_at_once_give_what_each_gives() {
    let (inputs, outputs) = (70, [300, 1, 2100]);
    let weights = [1, 2, 3].map(|seed| numbers(seed, inputs * outputs[seed as usize - 1]));
    let narrow: Vec<Vec<bf16>> = weights
        .iter()
        .map(|w| w.iter().copied().map(bf16::from_f32).collect())
        .collect();
    let half: Vec<f16> = weights[1].iter().copied().map(f16::from_f32).collect();
    let layer = |index: usize, weights| Linear {
        inputs,
        outputs: outputs[index],
        weights,
    };
    let same = [0, 1, 2].map(|i| layer(i, Weights::Bf16(&narrow[i])));
    let mut mixed = same;
    mixed[1] = layer(1, Weights::F16(&half));
    for tokens in [0, 1, 3, 40] {
        let x = numbers(9, tokens * inputs);
        let x16: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();
        for variant in Variant::available() {
            for layers in [same, mixed] {
                for x in [Activations::F32(&x), Activations::Bf16(&x16)] {
                    let mut outs = outputs.map(|outputs| vec![f32::NAN; tokens * outputs]);
                    let mut slices = outs.each_mut().map(Vec::as_mut_slice);
                    variant.linears(&layers, x, &mut slices).unwrap();
                    for (layer, found) in layers.iter().zip(&outs) {
                        let mut alone = vec![f32::NAN; found.len()];
                        variant.linear(layer, x, &mut alone).unwrap();
                        // Where types are mixed, each is computed as it would be alone.
                        assert_eq!(*found, alone, "{} {tokens}", variant.name());
                    }
                }
            }
        }
    }
}

#[test]
fn layers_with_other_inputs_are_refused() {
    let weights = [1.0f32; 12];
    let layer = |inputs, outputs| Linear {
        inputs,
        outputs,
        weights: Weights::F32(&weights[..inputs * outputs]),
    };
    let variant = Variant::detect().unwrap();
    let x = Activations::F32(&[1.0; 3]);
    let run = |layers: &[Linear<'_>], lengths: &[usize]| {
        let mut outs: Vec<Vec<f32>> = lengths.iter().map(|&l| vec![0.0; l]).collect();
        let mut outs: Vec<&mut [f32]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        variant.linears(layers, x, &mut outs)
    };
    let refused = |what, expected, found| {
        Err(KernelError::Length {
            what,
            expected,
            found,
        })
    };
    assert_eq!(run(&[layer(3, 4), layer(3, 2)], &[4, 2]), Ok(()));
    assert_eq!(
        run(&[layer(3, 4), layer(4, 2)], &[4, 2]),
        refused("x", 4, 3)
    );
    assert_eq!(run(&[layer(3, 4)], &[4, 2]), refused("outs", 1, 2));
}

#[test]
fn pairs_turn_by_their_angle_and_the_rest_stays() {
    let (tokens, heads, head, angles) = (5, 3, 20, 7);
    let x = numbers(1, tokens * heads * head);
    let turns = numbers(2, tokens * angles);
    let cos: Vec<f32> = turns.iter().map(|a| a.cos()).collect();
    let sin: Vec<f32> = turns.iter().map(|a| a.sin()).collect();
    for interleaved in [false, true] {
        let rotary = Rotary {
            head,
            angles,
            cos: &cos,
            sin: &sin,
            interleaved,
        };
        let mut expected = Vec::new();
        for (row, x) in x.chunks_exact(head).enumerate() {
            let mut rotated = x.to_vec();
            for i in 0..angles {
                // As complex numbers.
                let (re, im) = if interleaved {
                    (x[2 * i], x[2 * i + 1])
                } else {
                    (x[i], x[i + angles])
                };
                let turn = f64::from(turns[row / heads * angles + i]);
                let size = f64::from(re).hypot(im.into());
                let angle = f64::from(im).atan2(re.into()) + turn;
                rotated[i] = (size * angle.cos()) as f32;
                rotated[i + angles] = (size * angle.sin()) as f32;
            }
            expected.extend(rotated);
        }
        let x16: Vec<bf16> = x.iter().copied().map(bf16::from_f32).collect();
        for variant in Variant::available() {
            let mut out = vec![f32::NAN; x.len()];
            variant
                .rotary(&rotary, Activations::F32(&x), ActivationsMut::F32(&mut out))
                .unwrap();
            for (found, expected) in out.iter().zip(&expected) {
                assert!((found - expected).abs() < 1e-6, "{found} {expected}");
            }
            let mut out16 = vec![bf16::NAN; x.len()];
            let out = ActivationsMut::Bf16(&mut out16);
            variant
                .rotary(&rotary, Activations::Bf16(&x16), out)
                .unwrap();
            for (found, expected) in out16.iter().zip(&expected) {
                assert!((found.to_f32() - expected).abs() < 5e-3);
            }
        }
    }
}

#[test]
fn rotations_of_other_tokens_or_of_more_than_a_head_are_refused() {
    let variant = Variant::detect().unwrap();
    let run = |head, angles, table: &[f32], length: usize| {
        let rotary = Rotary {
            head,
            angles,
            cos: table,
            sin: table,
            interleaved: false,
        };
        let (x, mut out) = (vec![1.0; length], vec![0.0; length]);
        variant.rotary(&rotary, Activations::F32(&x), ActivationsMut::F32(&mut out))
    };
    assert_eq!(run(4, 2, &[1.0; 4], 16), Ok(()));
    assert_eq!(
        run(4, 2, &[1.0; 4], 14),
        Err(KernelError::Length {
            what: "x",
            expected: 8,
            found: 14
        })
    );
    assert_eq!(
        run(4, 3, &[1.0; 6], 16),
        Err(KernelError::Length {
            what: "cos",
            expected: 4,
            found: 6
        })
    );
}
