//! Rotary position embedding, half-split as in Hugging Face checkpoints.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// How positions become angles.
#[derive(Clone, Debug, PartialEq)]
pub struct RotaryConfig {
    /// Elements of a head that are rotated: its first ones.
    pub dimensions: usize,
    /// The base of the frequencies.
    pub theta: f64,
}

impl RotaryConfig {
    /// `theta^(−2i/dimensions)` for pair `i` (arXiv 2104.09864, section 3.4.2).
    ///
    /// Frequencies and angles are `f32` whatever the weights' type: rounded to bf16, positions
    /// beyond a few hundred would coincide.
    fn frequencies(&self) -> Vec<f32> {
        (0..self.dimensions / 2)
            .map(|i| {
                // The exponent is rounded to f32 first, as the checkpoints' authors did.
                let exponent = (2 * i) as f32 / self.dimensions as f32;
                1.0 / (self.theta as f32).powf(exponent)
            })
            .collect()
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
        let table = |f: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().copied().map(f).collect();
            Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
        };
        RotaryEmbedding {
            cos: table(f32::cos),
            sin: table(f32::sin),
        }
    }
}

/// Cosines and sines of some tokens' positions.
///
/// The pairs that are rotated are `(x_i, x_{i + d/2})`, not neighbours as in the paper: this is the
/// order in which Hugging Face checkpoints store their projections.
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    /// `[tokens, dimensions/2]`
    cos: Tensor<2>,
    /// `[tokens, dimensions/2]`
    sin: Tensor<2>,
}

impl RotaryEmbedding {
    /// Rotates the first elements of queries or keys, in `f32`, and rounds once to their type; the
    /// elements after them stay.
    ///
    /// # Shapes
    ///
    /// `[tokens, heads, head]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let dtype = x.dtype();
        let (head, half) = (x.dims()[2], self.cos.dims()[1]);
        let x = x.cast(DType::F32);
        let (first, second) = (
            x.clone().slice_dim(2, 0..half),
            x.clone().slice_dim(2, half..2 * half),
        );
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
}
