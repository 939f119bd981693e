//! What is computed element by element: the function between an expert's gate and its product with
//! the up projection, the weights of attention, normalisation, rounding.

use half::bf16;

use crate::operand::Element;

/// The activation of a gated MLP.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// `x · σ(x)`
    #[default]
    Silu,
    /// `x · Φ(x)`, with the error function.
    Gelu,
    /// `x · σ(2 √(2/π) (x + 0.044715 x³))`, which is the approximation with the hyperbolic tangent
    /// (Hendrycks and Gimpel, arXiv 1606.08415, section 2).
    GeluTanh,
    /// `x · σ(x)` of a gate of at most `limit`, times an up projection at most as far from zero
    /// (DeepSeek-V4's clamped SwiGLU).
    ClampedSilu {
        /// Positive.
        limit: f32,
    },
}

/// `gate ← activation(gate) · up`, rounded to `bf16` where the machine's products are.
#[inline(always)]
pub(crate) fn activate(activation: Activation, round: bool, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => each(round, gate, up, silu, |up| up),
        Activation::Gelu => each(round, gate, up, gelu, |up| up),
        Activation::GeluTanh => each(round, gate, up, gelu_tanh, |up| up),
        Activation::ClampedSilu { limit } => each(
            round,
            gate,
            up,
            |x| silu(bounded(x, f32::NEG_INFINITY, limit)),
            |up| bounded(up, -limit, limit),
        ),
    }
}

/// A NaN stays one.
#[inline(always)]
fn bounded(x: f32, least: f32, most: f32) -> f32 {
    let x = if x > most { most } else { x };
    if x < least { least } else { x }
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769_2;
    x / (1.0 + exp(-TWICE_SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
}

/// `x ← exp(scale·x − largest)`, where the largest is that of these and of the ones before; gives the
/// sum of the exponentials. Sums go by lanes, so that they vectorise.
#[inline(always)]
pub(crate) fn weigh(scores: &mut [f32], scale: f32, largest: &mut f32) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [*largest; LANES];
    for scores in scores.chunks_mut(LANES) {
        for (score, lane) in scores.iter_mut().zip(&mut lanes) {
            *score *= scale;
            // A NaN is never larger: it stays a score, and becomes its row's weight.
            *lane = if *score > *lane { *score } else { *lane };
        }
    }
    *largest = lanes.into_iter().fold(*largest, f32::max);
    let mut sums = [0.0f32; LANES];
    for scores in scores.chunks_mut(LANES) {
        for (score, sum) in scores.iter_mut().zip(&mut sums) {
            *score = exp(*score - *largest);
            *sum += *score;
        }
    }
    sums.into_iter().sum()
}

/// Rounds to `bf16`.
#[inline(always)]
pub(crate) fn round(from: &[f32], to: &mut [bf16]) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to = bf16::from_bits((round_to_bf16(from).to_bits() >> 16) as u16);
    }
}

/// `out = x / √(mean(x²) + ε) · weight`. Squares are summed by lanes, so that they vectorise.
#[inline(always)]
pub(crate) fn normalize<T: Element>(x: &[T], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    const LANES: usize = 16;
    for (out, x) in out.iter_mut().zip(x) {
        *out = x.widen();
    }
    let mut sums = [0.0f32; LANES];
    for values in out.chunks(LANES) {
        for (value, sum) in values.iter().zip(&mut sums) {
            *sum += value * value;
        }
    }
    let mean = sums.into_iter().sum::<f32>() / out.len() as f32;
    let scale = 1.0 / (mean + epsilon).sqrt();
    for (out, weight) in out.iter_mut().zip(weight) {
        *out = *out * scale * weight;
    }
}

#[inline(always)]
fn each(
    round: bool,
    gate: &mut [f32],
    up: &[f32],
    of_gate: impl Fn(f32) -> f32,
    of_up: impl Fn(f32) -> f32,
) {
    if round {
        for (gate, &up) in gate.iter_mut().zip(up) {
            *gate = round_to_bf16(of_gate(*gate) * of_up(up));
        }
    } else {
        for (gate, &up) in gate.iter_mut().zip(up) {
            *gate = of_gate(*gate) * of_up(up);
        }
    }
}

/// The nearest number that `bf16` has, ties to even; without branches, so that it vectorises.
#[inline(always)]
pub(crate) fn round_to_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // A NaN could carry into infinity or zero: it becomes the quiet one.
    let bits = if x.is_nan() { 0x7fc0_0000 } else { rounded };
    f32::from_bits(bits & 0xffff_0000)
}

/// `eˣ` to about 1e-7, by a polynomial on `[-ln 2 / 2, ln 2 / 2]` (Cephes' `expf`); beyond ±87 that
/// of ±87, which the callers divide by. Without branches, so that it vectorises.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding this leaves the nearest integer in the mantissa's low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let power = shifted - ROUND;
    let r = x - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        0.166_666_65,
        0.5,
    ] {
        p = p * r + coefficient;
    }
    let two_to_power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    (p * r * r + r + 1.0) * two_to_power
}

/// With `erfc` to 1.2e-7 by a Chebyshev fit (Press et al., *Numerical Recipes*, section 6.2).
fn gelu(x: f32) -> f32 {
    const FIT: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let x = f64::from(x);
    let z = x.abs() * std::f64::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let fit = FIT.iter().rev().fold(0.0, |sum, c| sum * t + c);
    let erfc = t * (fit - z * z).exp();
    let twice_phi = if x < 0.0 { erfc } else { 2.0 - erfc };
    (0.5 * x * twice_phi) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(activation: Activation, x: f32) -> f64 {
        let mut value = [x];
        activate(activation, false, &mut value, &[1.0]);
        f64::from(value[0])
    }

    #[test]
    fn silu_and_gelu_tanh_are_right_to_a_few_ulps() {
        for i in -4000..4000 {
            let x = i as f32 / 100.0;
            let exact = f64::from(x);
            let silu = exact / (1.0 + (-exact).exp());
            assert!(
                (of(Activation::Silu, x) - silu).abs() <= 4e-7 * silu.abs() + 1e-30,
                "{x}"
            );
            let u = (2.0 / std::f64::consts::PI).sqrt() * (exact + 0.044_715 * exact.powi(3));
            let gelu = 0.5 * exact * (1.0 + u.tanh());
            assert!(
                (of(Activation::GeluTanh, x) - gelu).abs() <= 1e-6 * exact.abs(),
                "{x}"
            );
        }
    }

    #[test]
    fn gelu_is_right_at_known_points() {
        // x, Φ(x) from tables.
        for (x, phi) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (-1.0, 0.158_655_253_931_457_05),
            (2.5, 0.993_790_334_674_224),
            (-3.0, 0.001_349_898_031_630_094_6),
        ] {
            let exact = f64::from(x) * phi;
            assert!(
                (of(Activation::Gelu, x) - exact).abs() <= 3e-7 * exact.abs(),
                "{x}"
            );
        }
    }

    #[test]
    fn large_and_undefined_inputs_keep_their_kind() {
        let clamped = Activation::ClampedSilu { limit: 7.0 };
        assert_eq!(of(clamped, 1e20), of(Activation::Silu, 7.0));
        assert!(of(clamped, f32::NAN).is_nan());
        let mut value = [1.0, 1.0, 1.0];
        activate(clamped, false, &mut value, &[9.0, -9.0, f32::NAN]);
        let silu = of(Activation::Silu, 1.0) as f32;
        assert_eq!(value[..2], [7.0 * silu, -7.0 * silu]);
        assert!(value[2].is_nan());
        for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh] {
            assert_eq!(of(activation, 1e20), f64::from(1e20f32));
            assert!(of(activation, -1e4).abs() < 1e-30, "{activation:?}");
            assert!(of(activation, f32::NAN).is_nan());
        }
    }

    #[test]
    fn rounding_is_that_of_bf16() {
        for bits in (0..u32::MAX).step_by(65_521) {
            let x = f32::from_bits(bits);
            let expected = half::bf16::from_f32(x).to_f32();
            assert!(round_to_bf16(x) == expected || (x.is_nan() && round_to_bf16(x).is_nan()));
        }
    }
}
