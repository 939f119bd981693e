//! Rotary position embedding, half-split as in Hugging Face checkpoints.

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Cosines and sines of a range of positions (arXiv 2104.09864, section 3.4.2).
///
/// The pairs that are rotated are `(x_i, x_{i + d/2})`, not the neighbours of the paper: this is
/// the order in which Hugging Face checkpoints store their projections.
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    /// `[tokens, head/2]`
    cos: Tensor<2>,
    /// `[tokens, head/2]`
    sin: Tensor<2>,
}

impl RotaryEmbedding {
    /// The rotations of some positions: by `position · theta^(−2i/head)` for pair `i`.
    ///
    /// Frequencies and angles are `f32` whatever the weights' type: rounded to bf16, positions
    /// beyond a few hundred would coincide.
    #[must_use]
    pub fn new(head: usize, theta: f64, positions: Range<usize>, device: &Device) -> Self {
        let half = head / 2;
        let frequencies: Vec<f32> = (0..half)
            .map(|i| {
                // The exponent is rounded to f32 first, as the checkpoints' authors did.
                let exponent = (2 * i) as f32 / head as f32;
                1.0 / (theta as f32).powf(exponent)
            })
            .collect();
        let tokens = positions.len();
        let angles: Vec<f32> = positions
            .flat_map(|position| frequencies.iter().map(move |f| position as f32 * f))
            .collect();
        let table = |f: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().copied().map(f).collect();
            Tensor::from_data(
                TensorData::new(values, [tokens, half]),
                (device, DType::F32),
            )
        };
        Self {
            cos: table(f32::cos),
            sin: table(f32::sin),
        }
    }

    /// Rotates queries or keys, in `f32`, and rounds once to their type.
    ///
    /// # Shapes
    ///
    /// `[batch, heads, tokens, head]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let dtype = x.dtype();
        let half = x.dims()[3] / 2;
        let x = x.cast(DType::F32);
        let (first, second) = (
            x.clone().slice_dim(3, 0..half),
            x.slice_dim(3, half..2 * half),
        );
        let (cos, sin) = (
            self.cos.clone().unsqueeze::<4>(),
            self.sin.clone().unsqueeze::<4>(),
        );
        let rotated = vec![
            first.clone() * cos.clone() - second.clone() * sin.clone(),
            second * cos + first * sin,
        ];
        Tensor::cat(rotated, 3).cast(dtype)
    }
}
