//! Hyper-connections: several residual streams in place of one.

use burn::module::Param;
use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{DType, Device, Tensor};

use crate::linear::product;
use crate::norm::normalized;
use crate::parameter::unloaded;

/// What differs between checkpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HyperOptions {
    /// Residual streams (`hc_mult`).
    pub streams: usize,
    /// Times that rows and columns of the mixing matrix are normalised (`hc_sinkhorn_iters`).
    pub iterations: usize,
    /// ε of those normalisations, and of the weights that collapse streams (`hc_eps`).
    pub epsilon: f64,
    /// ε of the normalisation before the projection (`rms_norm_eps`).
    pub norm_epsilon: f64,
}

/// The parameters of a connection, whose names are the layer's to give: a projection of all streams,
/// and the base and scale of what it gives.
pub type HyperParameters = (Param<Tensor<2>>, Param<Tensor<1>>, Param<Tensor<1>>);

impl HyperOptions {
    /// Parameters of a connection around a block of a layer, to be loaded: `[(2 + n)·n, n·hidden]`,
    /// `[(2 + n)·n]`, `[3]`.
    #[must_use]
    pub fn parameters(&self, hidden: usize, device: &Device) -> HyperParameters {
        let n = self.streams;
        let weights = (2 + n) * n;
        (
            unloaded([weights, n.saturating_mul(hidden)], device),
            unloaded([weights], device),
            unloaded([3], device),
        )
    }

    /// Parameters of the collapse after the last layer, to be loaded: `[n, n·hidden]`, `[n]`, `[1]`.
    #[must_use]
    pub fn collapse_parameters(&self, hidden: usize, device: &Device) -> HyperParameters {
        let n = self.streams;
        (
            unloaded([n, n.saturating_mul(hidden)], device),
            unloaded([n], device),
            unloaded([1], device),
        )
    }
}

/// A manifold-constrained hyper-connection (mHC: arXiv 2512.24880; transformers'
/// `DeepseekV4HyperConnection`).
///
/// Around a block `f`, the streams `x` become `post ⊗ f(Σ pre_i·x_i) + combᵀ·x`. The weights follow
/// from all streams of a token, and `comb` is nearly doubly stochastic (Sinkhorn and Knopp): what
/// passes by the block neither grows nor vanishes. All of it is `f32`; the streams are rounded once,
/// after a block.
#[derive(Clone, Debug)]
pub struct HyperConnection {
    projection: Tensor<2>,
    base: Tensor<1>,
    scale: Tensor<1>,
    options: HyperOptions,
}

/// How a block's result joins the streams.
#[derive(Clone, Debug)]
pub struct StreamMixing {
    /// `[tokens, n]`
    post: Tensor<2>,
    /// `[tokens, n, n]`
    comb: Tensor<3>,
}

impl HyperConnection {
    /// A connection with these parameters.
    #[must_use]
    pub fn new(
        options: HyperOptions,
        projection: &Param<Tensor<2>>,
        base: &Param<Tensor<1>>,
        scale: &Param<Tensor<1>>,
    ) -> Self {
        Self {
            projection: projection.val(),
            base: base.val().cast(DType::F32),
            scale: scale.val().cast(DType::F32),
            options,
        }
    }

    /// Collapses the streams to the input of a block, and says how its result joins them.
    ///
    /// # Shapes
    ///
    /// `[tokens, n, hidden]` to `[tokens, hidden]`, `f32`: it is normalised next.
    #[must_use]
    pub fn enter(&self, streams: &Tensor<3>) -> (Tensor<2>, StreamMixing) {
        let HyperOptions {
            streams: n,
            iterations,
            epsilon,
            ..
        } = self.options;
        let [tokens, ..] = streams.dims();
        let weights = self.weights(streams);
        let part = |index: usize, from: usize, to: usize| {
            let scale = self.scale.clone().slice_dim(0, index..index + 1);
            let base = self.base.clone().slice_dim(0, from..to);
            weights.clone().slice_dim(1, from..to) * scale.unsqueeze() + base.unsqueeze()
        };
        let pre = sigmoid(part(0, 0, n)) + epsilon;
        let post = sigmoid(part(1, n, 2 * n)) * 2.0;
        let comb = part(2, 2 * n, 2 * n + n * n).reshape([tokens, n, n]);
        let mut comb = softmax(comb, 2) + epsilon;
        let normalized_over = |comb: Tensor<3>, dim: usize| {
            let sum = comb.clone().sum_dim(dim) + epsilon;
            comb / sum
        };
        comb = normalized_over(comb, 1);
        for _ in 1..iterations {
            comb = normalized_over(normalized_over(comb, 2), 1);
        }
        (weighted_sum(pre, streams), StreamMixing { post, comb })
    }

    /// Collapses the streams after the last layer (transformers' `DeepseekV4HyperHead`).
    ///
    /// # Shapes
    ///
    /// `[tokens, n, hidden]` to `[tokens, hidden]`, `f32`.
    #[must_use]
    pub fn collapse(&self, streams: &Tensor<3>) -> Tensor<2> {
        let weights = self.weights(streams);
        let pre = weights * self.scale.clone().unsqueeze() + self.base.clone().unsqueeze();
        weighted_sum(sigmoid(pre) + self.options.epsilon, streams)
    }

    /// What the projection makes of all of a token's streams, side by side and normalised.
    fn weights(&self, streams: &Tensor<3>) -> Tensor<2> {
        let [tokens, n, hidden] = streams.dims();
        let flat: Tensor<2> = streams.clone().reshape([tokens, n * hidden]);
        let flat = normalized(flat, self.options.norm_epsilon);
        product(flat, self.projection.clone().cast(DType::F32))
    }
}

impl StreamMixing {
    /// The streams after a block that gave `y`.
    ///
    /// # Shapes
    ///
    /// Streams `[tokens, n, hidden]` to the same, `y` `[tokens, hidden]`.
    #[must_use]
    pub fn leave(self, streams: Tensor<3>, y: Tensor<2>) -> Tensor<3> {
        let dtype = streams.dtype();
        let y: Tensor<3> = y.cast(DType::F32).unsqueeze_dim(1);
        let post: Tensor<3> = self.post.unsqueeze_dim(2);
        let passed = self.comb.swap_dims(1, 2).matmul(streams.cast(DType::F32));
        (post * y + passed).cast(dtype)
    }
}

/// `Σ w_i·x_i` over the streams, in `f32`.
fn weighted_sum(weights: Tensor<2>, streams: &Tensor<3>) -> Tensor<2> {
    let weights: Tensor<3> = weights.unsqueeze_dim(2);
    let sum = (streams.clone().cast(DType::F32) * weights).sum_dim(1);
    sum.squeeze_dim(1)
}

#[cfg(test)]
mod tests {
    use burn::module::ParamId;
    use burn::tensor::TensorData;

    use super::*;

    fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(
            TensorData::new(values, shape),
            (&Device::flex(), DType::F32),
        )
    }

    #[test]
    fn mixing_is_doubly_stochastic_and_passes_equal_streams_by() {
        let (n, hidden) = (2, 3);
        let options = HyperOptions {
            streams: n,
            iterations: 20,
            epsilon: 1e-6,
            norm_epsilon: 1e-6,
        };
        let projection = (0..8 * 6).map(|i| (i as f32 * 0.7).sin()).collect();
        let param2 = Param::initialized(ParamId::new(), tensor(projection, [8, n * hidden]));
        let base = Param::initialized(
            ParamId::new(),
            tensor(vec![0.0, 0.0, 0.0, 0.0, 0.3, -0.2, 0.9, 0.1], [8]),
        );
        let scale = Param::initialized(ParamId::new(), tensor(vec![0.0, 0.0, 1.0], [3]));
        let connection = HyperConnection::new(options, &param2, &base, &scale);
        let token = [1.0, -2.0, 4.0];
        let streams = tensor([token, token].concat(), [1, n, hidden]);
        let (input, mixing) = connection.enter(&streams);
        // Without scale and base, each stream counts half, and a result counts once.
        let sums: Vec<f32> = mixing.comb.clone().sum_dim(1).into_data().iter().collect();
        for sum in sums {
            assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        }
        let out = mixing.leave(streams, input);
        let found: Vec<f32> = out.into_data().iter::<f32>().collect();
        for (found, expected) in found.iter().zip([token, token].concat()) {
            assert!((found - 2.0 * expected).abs() < 1e-3, "{found} {expected}");
        }
    }
}
