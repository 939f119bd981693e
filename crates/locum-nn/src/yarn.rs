//! YaRN: rotary frequencies for contexts longer than those trained on.

use std::f64::consts::TAU;

/// YaRN (arXiv 2309.00071), as in the code that its authors published and checkpoints were made
/// with.
///
/// Of the frequencies `θ_i`, those that turn often within the original context stay, those that
/// hardly turn are divided by the factor, and those between are blended (section 3.2, "NTK-by-parts").
/// Where the paper's ramp is linear in the number of turns, the code's is linear in `i`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// How many times longer the context became, `s` in the paper (`factor`).
    pub factor: f64,
    /// The context that was trained on, `L` (`original_max_position_embeddings`).
    pub original_positions: f64,
    /// Frequencies that turn more often than this within `L` stay (`β`).
    pub beta_fast: f64,
    /// Frequencies that turn less often than this are divided by the factor (`α`).
    pub beta_slow: f64,
    /// Whether the ramp starts and ends at whole `i`.
    pub truncate: bool,
    /// What cosines and sines are multiplied by; follows from the others where it is not given.
    pub attention_factor: Option<f64>,
    /// The slope of that multiplier's numerator (DeepSeek's `mscale`).
    pub mscale: Option<f64>,
    /// The slope of its denominator, and of [`softmax_factor`](Self::softmax_factor) (DeepSeek's
    /// `mscale_all_dim`).
    pub mscale_all_dim: Option<f64>,
}

impl Yarn {
    /// A context `factor` times longer than the original one, the rest as the paper suggests.
    #[must_use]
    pub fn new(factor: f64, original_positions: f64) -> Self {
        Self {
            factor,
            original_positions,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: None,
            mscale: None,
            mscale_all_dim: None,
        }
    }

    /// The blended frequencies, of the powers `1/θ_i` of the base: `θ_i/s` where the ramp is 1, `θ_i`
    /// where it is 0.
    ///
    /// In `f32`, in the order of operations of the code that checkpoints were made with.
    pub(crate) fn frequencies(
        &self,
        powers: impl Iterator<Item = f32>,
        dimensions: usize,
        theta: f64,
    ) -> Vec<f32> {
        let factor = self.factor as f32;
        powers
            .zip(self.ramp(dimensions, theta))
            .map(|(power, ramp)| {
                let kept = 1.0 - ramp;
                1.0 / (factor * power) * (1.0 - kept) + 1.0 / power * kept
            })
            .collect()
    }

    /// How far each frequency is divided: from 0, not at all, to 1, wholly.
    fn ramp(&self, dimensions: usize, theta: f64) -> impl Iterator<Item = f32> {
        // The `i` whose frequency turns this often within the original context.
        let index_of = |turns: f64| {
            let positions_per_radian = (self.original_positions / (turns * TAU)).ln();
            dimensions as f64 * positions_per_radian / (2.0 * theta.ln())
        };
        let (low, high) = (index_of(self.beta_fast), index_of(self.beta_slow));
        let (low, high) = if self.truncate {
            (low.floor(), high.ceil())
        } else {
            (low, high)
        };
        let (low, mut high) = (low.max(0.0), high.min(dimensions as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        (0..dimensions / 2).map(move |i| {
            let ramp = (i as f32 - low as f32) / (high - low) as f32;
            ramp.clamp(0.0, 1.0)
        })
    }

    /// What cosines and sines are multiplied by, and so, squared, the scores of rotated elements:
    /// `√(1/t)` of section 3.4, or a quotient of two such where both slopes are given.
    #[must_use]
    pub fn attention_factor(&self) -> f64 {
        let slope = |given: Option<f64>| given.filter(|&slope| slope != 0.0);
        match (
            self.attention_factor,
            slope(self.mscale),
            slope(self.mscale_all_dim),
        ) {
            (Some(factor), _, _) => factor,
            (None, Some(mscale), Some(all)) => self.temper(mscale) / self.temper(all),
            (None, _, _) => self.temper(1.0),
        }
    }

    /// What DeepSeek multiplies all scores by: `(0.1 · mscale_all_dim · ln s + 1)²`, or 1 where that
    /// slope is absent or zero (arXiv 2405.04434, section 3.1.4).
    #[must_use]
    pub fn softmax_factor(&self) -> f64 {
        match self.mscale_all_dim {
            Some(slope) if slope != 0.0 => self.temper(slope).powi(2),
            _ => 1.0,
        }
    }

    /// `√(1/t) = 0.1 · slope · ln s + 1` (section 3.4), 1 where the context is not longer.
    fn temper(&self, slope: f64) -> f64 {
        if self.factor <= 1.0 {
            1.0
        } else {
            0.1 * slope * self.factor.ln() + 1.0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RotaryConfig;

    /// Frequencies of transformers 5.24's `_compute_yarn_parameters`, in f32.
    #[track_caller]
    fn assert_frequencies(dimensions: usize, theta: f64, yarn: Yarn, expected: &[f32]) {
        let config = RotaryConfig {
            yarn: Some(yarn),
            ..RotaryConfig::new(dimensions, theta)
        };
        let found = config.frequencies();
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = (found / expected - 1.0).abs();
            assert!(off < 1e-6, "θ_{i} is {found}, expected {expected}");
        }
    }

    #[track_caller]
    fn assert_close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{found} {expected}");
    }

    #[test]
    fn deepseek_v3() {
        let yarn = Yarn {
            mscale: Some(1.0),
            mscale_all_dim: Some(1.0),
            ..Yarn::new(40.0, 4096.0)
        };
        let expected = [
            1.0,
            0.7498942,
            0.56234133,
            0.4216965,
            0.31622776,
            0.23713739,
            0.17782794,
            0.13335215,
            0.1,
            0.074989416,
            0.05623413,
            0.039006926,
            0.02687936,
            0.018378144,
            0.012447956,
            0.008334509,
            0.0055000004,
            0.0035619973,
            0.0022493652,
            0.0013705135,
            0.0007905694,
            0.0004149904,
            0.00017782794,
            3.3338034e-5,
            2.5e-5,
            1.8747354e-5,
            1.40585325e-5,
            1.0542414e-5,
            7.9056945e-6,
            5.9284343e-6,
            4.4456983e-6,
            3.3338035e-6,
        ];
        assert_frequencies(64, 1e4, yarn, &expected);
        assert_close(yarn.attention_factor(), 1.0);
        assert_close(yarn.softmax_factor(), 1.8738542070926265);
    }

    #[test]
    fn short_heads_with_slopes_below_one() {
        let yarn = Yarn {
            mscale: Some(0.707),
            mscale_all_dim: Some(0.707),
            ..Yarn::new(40.0, 64.0)
        };
        assert_frequencies(8, 1e4, yarn, &[1.0, 0.05125, 0.00025, 2.5e-5]);
        assert_close(yarn.attention_factor(), 1.0);
        assert_close(yarn.softmax_factor(), 1.5896261651208736);
    }

    #[test]
    fn without_slopes_the_factor_is_the_papers_and_the_softmax_is_left_alone() {
        let yarn = Yarn::new(4.0, 32_768.0);
        let expected = [
            1.0,
            0.17782794,
            0.03162278,
            0.00421756,
            0.0005,
            4.4456985e-5,
            7.905694e-6,
            1.4058534e-6,
        ];
        assert_frequencies(16, 1e6, yarn, &expected);
        assert_close(yarn.attention_factor(), 1.138629436111989);
        assert_close(yarn.softmax_factor(), 1.0);
    }

    #[test]
    fn ramp_between_fractions_and_slopes_that_differ() {
        let yarn = Yarn {
            truncate: false,
            mscale: Some(1.2),
            mscale_all_dim: Some(0.8),
            ..Yarn::new(4.0, 32_768.0)
        };
        let expected = [
            1.0,
            0.17782794,
            0.03162278,
            0.0055172704,
            0.000607408,
            4.4456985e-5,
            7.905694e-6,
            1.4058534e-6,
        ];
        assert_frequencies(16, 1e6, yarn, &expected);
        assert_close(yarn.attention_factor(), 1.0499159215939338);
        assert_close(yarn.softmax_factor(), 1.2341066949354886);
    }

    #[test]
    fn given_attention_factor_is_taken() {
        let yarn = Yarn {
            attention_factor: Some(1.5),
            mscale: Some(1.0),
            mscale_all_dim: Some(1.0),
            ..Yarn::new(40.0, 4096.0)
        };
        assert_close(yarn.attention_factor(), 1.5);
    }

    #[test]
    fn context_that_is_not_longer_changes_nothing() {
        let yarn = Yarn {
            mscale_all_dim: Some(1.0),
            ..Yarn::new(1.0, 4096.0)
        };
        let unscaled = RotaryConfig::new(64, 1e4).frequencies();
        assert_frequencies(64, 1e4, yarn, &unscaled);
        assert_close(yarn.attention_factor(), 1.0);
        assert_close(yarn.softmax_factor(), 1.0);
    }
}
