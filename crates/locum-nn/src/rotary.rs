//! Rotary position embedding, in the orders of Hugging Face checkpoints.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::{Yarn, extension};

/// How positions become angles.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryConfig {
    /// Elements of a head that are rotated: its first ones.
    pub dimensions: usize,
    /// The base of the frequencies.
    pub theta: f64,
    /// Which of those elements are pairs.
    pub order: RotaryOrder,
    /// Scaling to contexts longer than those trained on.
    pub yarn: Option<Yarn>,
}

/// Which elements are rotated together, of a head whose first `d` are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryOrder {
    /// `x_i` and `x_{i + d/2}`, as most Hugging Face checkpoints store their projections.
    Halves,
    /// `x_{2i}` and `x_{2i + 1}`, as in the paper: DeepSeek's checkpoints.
    Interleaved,
}

impl RotaryConfig {
    /// Pairs of halves, without scaling.
    #[must_use]
    pub fn new(dimensions: usize, theta: f64) -> Self {
        Self {
            dimensions,
            theta,
            order: RotaryOrder::Halves,
            yarn: None,
        }
    }

    /// `theta^(−2i/dimensions)` for pair `i` (arXiv 2104.09864, section 3.4.2), or what YaRN makes of
    /// it.
    ///
    /// Frequencies and angles are `f32` whatever the weights' type: rounded to bf16, positions
    /// beyond a few hundred would coincide.
    pub(crate) fn frequencies(&self) -> Vec<f32> {
        let powers = (0..self.dimensions / 2).map(|i| {
            // The exponent is rounded to f32 first, as the checkpoints' authors did.
            let exponent = (2 * i) as f32 / self.dimensions as f32;
            (self.theta as f32).powf(exponent)
        });
        match &self.yarn {
            Some(yarn) => yarn.frequencies(powers, self.dimensions, self.theta),
            None => powers.map(|power| 1.0 / power).collect(),
        }
    }

    /// The rotations of some positions.
    #[must_use]
    pub fn embedding(
        &self,
        positions: impl Iterator<Item = usize>,
        device: &Device,
    ) -> RotaryEmbedding {
        let frequencies = self.frequencies();
        let angles: Vec<f32> = positions
            .flat_map(|position| frequencies.iter().map(move |f| position as f32 * f))
            .collect();
        let half = frequencies.len();
        let shape = [angles.len() / half.max(1), half];
        let factor = self.yarn.map_or(1.0, |yarn| yarn.attention_factor() as f32);
        let table = |f: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().map(|&angle| f(angle) * factor).collect();
            Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
        };
        RotaryEmbedding {
            cos: table(f32::cos),
            sin: table(f32::sin),
            order: self.order,
        }
    }
}

/// Cosines and sines of some tokens' positions.
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    /// `[tokens, dimensions/2]`
    cos: Tensor<2>,
    /// `[tokens, dimensions/2]`
    sin: Tensor<2>,
    order: RotaryOrder,
}

impl RotaryEmbedding {
    /// Rotates the first elements of queries or keys, in `f32`, and rounds once to their type; the
    /// elements after them stay.
    ///
    /// Pairs come out as halves, whichever order they had: queries and keys that are both rotated
    /// here have the same products in any.
    ///
    /// # Shapes
    ///
    /// `[tokens, heads, head]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let dtype = x.dtype();
        if let Some(variant) = extension::variant(&x.device(), dtype, &[]) {
            let interleaved = self.order == RotaryOrder::Interleaved;
            return extension::rotary(x, self.cos.clone(), self.sin.clone(), interleaved, variant);
        }
        self.plain(x)
    }

    /// The same by tensor operations.
    fn plain(&self, x: Tensor<3>) -> Tensor<3> {
        let dtype = x.dtype();
        let ([tokens, heads, head], half) = (x.dims(), self.cos.dims()[1]);
        let x = x.cast(DType::F32);
        let (first, second) = match self.order {
            RotaryOrder::Halves => (
                x.clone().slice_dim(2, 0..half),
                x.clone().slice_dim(2, half..2 * half),
            ),
            RotaryOrder::Interleaved => {
                let pairs = x
                    .clone()
                    .slice_dim(2, 0..2 * half)
                    .reshape([tokens, heads, half, 2]);
                let of_pairs = |side| pairs.clone().slice_dim(3, side..side + 1).squeeze_dim(3);
                (of_pairs(0), of_pairs(1))
            }
        };
        let (cos, sin) = (
            self.cos.clone().unsqueeze_dim::<3>(1),
            self.sin.clone().unsqueeze_dim::<3>(1),
        );
        let mut parts = vec![
            first.clone() * cos.clone() - second.clone() * sin.clone(),
            second * cos + first * sin,
        ];
        if 2 * half < head {
            parts.push(x.slice_dim(2, 2 * half..head));
        }
        Tensor::cat(parts, 2).cast(dtype)
    }

    /// Rotates the last elements of queries or keys, whose pairs are neighbours, in `f32`, and rounds
    /// once to their type; the elements before them stay, and so does the order (DeepSeek-V4,
    /// transformers' `apply_rotary_pos_emb` there).
    ///
    /// # Shapes
    ///
    /// `[tokens, heads, head]` to the same.
    #[must_use]
    pub fn rotate_last(&self, x: Tensor<3>) -> Tensor<3> {
        self.turn_last(x, self.sin.clone())
    }

    /// Undoes [`rotate_last`](Self::rotate_last).
    ///
    /// # Shapes
    ///
    /// `[tokens, heads, head]` to the same.
    #[must_use]
    pub fn unrotate_last(&self, x: Tensor<3>) -> Tensor<3> {
        self.turn_last(x, self.sin.clone().neg())
    }

    fn turn_last(&self, x: Tensor<3>, sin: Tensor<2>) -> Tensor<3> {
        let dtype = x.dtype();
        let ([tokens, heads, head], half) = (x.dims(), self.cos.dims()[1]);
        let still = head - 2 * half;
        let x = x.cast(DType::F32);
        let pairs = x
            .clone()
            .slice_dim(2, still..head)
            .reshape([tokens, heads, half, 2]);
        let of_pairs =
            |side| -> Tensor<3> { pairs.clone().slice_dim(3, side..side + 1).squeeze_dim(3) };
        let (first, second) = (of_pairs(0), of_pairs(1));
        let (cos, sin) = (
            self.cos.clone().unsqueeze_dim::<3>(1),
            sin.unsqueeze_dim::<3>(1),
        );
        let turned: Tensor<4> = Tensor::stack(
            vec![
                first.clone() * cos.clone() - second.clone() * sin.clone(),
                second * cos + first * sin,
            ],
            3,
        );
        let turned = turned.reshape([tokens, heads, 2 * half]);
        let x = if still == 0 {
            turned
        } else {
            Tensor::cat(vec![x.slice_dim(2, 0..still), turned], 2)
        };
        x.cast(dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head `x` after `position` tokens.
    fn rotated(config: &RotaryConfig, position: usize, x: [f32; 6]) -> Vec<f32> {
        let device = Device::flex();
        let x = Tensor::from_data(
            TensorData::new(x.to_vec(), [1, 1, 6]),
            (&device, DType::F32),
        );
        let embedding = config.embedding(std::iter::once(position), &device);
        embedding.forward(x).into_data().iter::<f32>().collect()
    }

    #[test]
    fn pair_turns_by_position_times_frequency() {
        let config = RotaryConfig::new(4, 100.0);
        let (sin, cos) = 3.0f32.sin_cos();
        let (slow_sin, slow_cos) = 0.3f32.sin_cos();
        let found = rotated(&config, 3, [1.0, 1.0, 0.0, 0.0, 7.0, 8.0]);
        for (found, expected) in found.iter().zip([cos, slow_cos, sin, slow_sin, 7.0, 8.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn kernel_agrees_with_plain_operations() {
        let device = Device::flex();
        let values: Vec<f32> = (0..3 * 2 * 10).map(|i| (i as f32).sin()).collect();
        let data = TensorData::new(values, [3, 2, 10]);
        let x = Tensor::<3>::from_data(data, (&device, DType::F32));
        for order in [RotaryOrder::Halves, RotaryOrder::Interleaved] {
            let config = RotaryConfig {
                order,
                ..RotaryConfig::new(6, 1e4)
            };
            let embedding = config.embedding(5..8, &device);
            for dtype in [DType::F32, DType::BF16] {
                let x = x.clone().cast(dtype);
                let plain = embedding.plain(x.clone());
                assert_eq!(embedding.forward(x).into_data(), plain.into_data());
            }
        }
    }

    #[test]
    fn interleaved_pairs_turn_like_halves_in_another_order() {
        let halves = RotaryConfig::new(6, 1e4);
        let interleaved = RotaryConfig {
            order: RotaryOrder::Interleaved,
            ..halves.clone()
        };
        let expected = rotated(&halves, 5, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let found = rotated(&interleaved, 5, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!(found, expected);
    }

    #[test]
    fn last_elements_turn_in_place_and_back() {
        let device = Device::flex();
        let data = TensorData::new(vec![7.0f32, 8.0, 1.0, 2.0, 3.0, 4.0], [1, 1, 6]);
        let x = Tensor::<3>::from_data(data, (&device, DType::F32));
        let config = RotaryConfig::new(4, 100.0);
        let embedding = config.embedding(std::iter::once(3), &device);
        let turned = embedding.rotate_last(x.clone());
        let (sin, cos) = 3.0f32.sin_cos();
        let found: Vec<f32> = turned.clone().into_data().iter::<f32>().collect();
        let expected = [7.0, 8.0, cos - 2.0 * sin, 2.0 * cos + sin];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        let off: f32 = (embedding.unrotate_last(turned) - x)
            .abs()
            .max()
            .into_scalar();
        assert!(off < 1e-6, "off by {off}");
    }

    #[test]
    fn yarn_scales_what_is_rotated_and_leaves_the_rest() {
        let config = RotaryConfig {
            yarn: Some(Yarn {
                attention_factor: Some(2.0),
                ..Yarn::new(1.0, 64.0)
            }),
            ..RotaryConfig::new(4, 1e4)
        };
        let found = rotated(&config, 0, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(found, [2.0, 4.0, 6.0, 8.0, 5.0, 6.0]);
    }
}
