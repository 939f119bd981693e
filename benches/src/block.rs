//! One MoE block at OLMoE-1B-7B's sizes, with random weights, as models use it.

use half::bf16;
use locum::burn::module::Param;
use locum::burn::tensor::{Tensor, TensorData};
use locum::nn::{DType, Device, ExpertNames, ExpertsConfig, RoutingRule, SparseMoe};
use locum::substitution::{BoxError, Constant, Dtype, RouteTable, TensorInfo};
use locum::{MoeLayer, NamedTensor};

/// Sizes of a block.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The size of a token.
    pub hidden: usize,
    /// The size of an expert between its projections.
    pub intermediate: usize,
    /// Experts.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
}

impl Sizes {
    /// OLMoE-1B-7B's.
    pub const OLMOE: Self = Self {
        hidden: crate::olmoe::HIDDEN,
        intermediate: crate::olmoe::INTERMEDIATE,
        experts: crate::olmoe::EXPERTS,
        top_k: crate::olmoe::TOP_K,
    };

    /// Bytes of one expert's weights.
    #[must_use]
    pub fn expert_bytes(&self) -> f64 {
        (2 * 3 * self.hidden * self.intermediate) as f64
    }

    /// Operations of some routes through experts, and of the router for some tokens.
    #[must_use]
    pub fn operations(&self, routes: usize, tokens: usize) -> f64 {
        let experts = routes * 3 * self.hidden * self.intermediate;
        (2 * (experts + tokens * self.experts * self.hidden)) as f64
    }

    /// The router's rule, OLMoE's.
    #[must_use]
    pub fn rule(&self) -> RoutingRule {
        RoutingRule::softmax(self.top_k, false)
    }
}

/// Random-looking numbers in bf16, around zero.
#[must_use]
pub fn numbers(length: usize, seed: usize, scale: f32) -> Vec<bf16> {
    let mut state = (seed as u32).wrapping_mul(2_654_435_761) | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bf16::from_f32(((state >> 8) as f32 / (1 << 24) as f32 - 0.5) * scale)
        })
        .collect()
}

/// Tokens, in a type.
#[must_use]
pub fn tokens(tokens: usize, hidden: usize, dtype: DType) -> Tensor<2> {
    let values = numbers(tokens * hidden, 1, 3.0);
    let tensor: Tensor<2> = Tensor::from_data(
        TensorData::new(values, [tokens, hidden]),
        (&Device::flex(), DType::BF16),
    );
    tensor.cast(dtype)
}

/// A block of which the last `substituted` experts are constants. Its weights are bf16.
///
/// # Errors
///
/// What loading says.
pub fn moe(sizes: Sizes, substituted: usize) -> Result<SparseMoe, BoxError> {
    let Sizes {
        hidden,
        intermediate,
        experts,
        ..
    } = sizes;
    let config = ExpertsConfig {
        layer: 0,
        prefix: "model.layers.0.mlp.experts".into(),
        num_logical_experts: experts as u32,
        hidden,
        intermediate,
        names: ExpertNames::PROJ,
        constant_dtype: Dtype::Bf16,
    };
    let device = Device::flex();
    let mut moe: SparseMoe = SparseMoe::new(config, sizes.rule(), &device);
    let router = TensorData::new(numbers(experts * hidden, 2, 0.2), [experts, hidden]);
    moe.gate.weight = Param::from_tensor(Tensor::from_data(router, (&device, DType::BF16)));
    let retained = (experts - substituted) as u32;
    let constants: Vec<u32> = (retained..experts as u32).collect();
    if substituted > 0 {
        moe.experts
            .substitute(&RouteTable::new(experts as u32, &constants)?)?;
    }
    // One expert's values for all: time does not depend on them, and making them takes long.
    let values = bytes(numbers(hidden * intermediate, 3, 0.07));
    for expert in 0..retained {
        for name in ["gate_proj.weight", "up_proj.weight", "down_proj.weight"] {
            let shape = match name {
                "down_proj.weight" => [hidden, intermediate],
                _ => [intermediate, hidden],
            };
            let info = TensorInfo::new(name, Dtype::Bf16, shape);
            let tensor = NamedTensor::new(info, values.clone())?;
            let weights = moe.experts.expert_weights().ok_or("experts have weights")?;
            weights.take(tensor, Some(expert), name)?;
        }
    }
    let constants: Vec<Constant> = constants
        .into_iter()
        .enumerate()
        .map(|(row, expert)| Constant {
            row,
            expert,
            value: bytes(numbers(hidden, row + 4, 1.0)).into(),
        })
        .collect();
    if substituted > 0 {
        moe.experts.load_constants(&constants)?;
    }
    Ok(moe)
}

fn bytes(values: Vec<bf16>) -> Vec<u8> {
    values.into_iter().flat_map(bf16::to_le_bytes).collect()
}
