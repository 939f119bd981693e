//! The routed experts of one layer: retained ones packed, substituted ones as constants.

mod compute;
mod constants;
mod packing;

use burn::module::{Module, Param};
use burn::tensor::{Bytes, DType, Device, Tensor};
use locum_substitution::{
    BoxError, Constant, Dtype, ExpertWeights, MoeLayer, MoeLayerInfo, PackedPart, RouteTable,
};

use crate::extension;
use crate::observer::{ExpertObserver, Observation, OutputBuffer, RouteOutputs};
use crate::parameter::{burn_dtype, tensor, unloaded};
use packing::Packing;

/// What a checkpoint calls the three projections of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// `gate`, `up` and `down`, in this order.
    parts: [&'static str; 3],
}

impl ExpertNames {
    /// `gate_proj.weight`, `up_proj.weight`, `down_proj.weight`.
    pub const PROJ: Self = Self {
        parts: ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
    };
    /// `w1.weight`, `w3.weight`, `w2.weight`: Mixtral, MiniMax.
    pub const W123: Self = Self {
        parts: ["w1.weight", "w3.weight", "w2.weight"],
    };
}

/// The packed tensors that hold all experts of a layer at once, and what is in them.
fn packed_parts(names: ExpertNames) -> Vec<PackedPart> {
    let [gate_up, down]: [&'static [&'static str]; 2] = match names {
        ExpertNames::W123 => [&["w1.weight", "w3.weight"], &["w2.weight"]],
        _ => [
            &["gate_proj.weight", "up_proj.weight"],
            &["down_proj.weight"],
        ],
    };
    vec![
        PackedPart {
            name: packing::GATE_UP,
            parts: gate_up,
        },
        PackedPart {
            name: packing::DOWN,
            parts: down,
        },
    ]
}

/// What is known of a layer's experts before any weight is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// The global decoder layer.
    pub layer: u32,
    /// Where a checkpoint has the experts: `model.layers.3.mlp.experts`.
    pub prefix: String,
    /// How many experts the router chooses from.
    pub num_logical_experts: u32,
    /// The size of a token.
    pub hidden: usize,
    /// The size of an expert between its projections.
    pub intermediate: usize,
    /// What a checkpoint calls an expert's projections.
    pub names: ExpertNames,
    /// The type that constants are held in: the model's.
    pub constant_dtype: Dtype,
}

/// Chosen experts: logical ids with their router weights, on the CPU, where they are scheduled.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    /// `[tokens, top_k]`, row-major; an id that is no expert leads nowhere.
    pub ids: Vec<i64>,
    /// `[tokens, top_k]`, row-major.
    pub weights: Vec<f32>,
    /// Experts per token.
    pub top_k: usize,
}

/// `y = Σ w_e · down_e(silu(gate_e·x) ⊙ up_e·x)` over the retained experts of a token's routes, plus
/// `Σ w_e · c_e` over the substituted ones.
///
/// Retained experts keep their logical order in packed rows; a substituted or invalid route is never
/// scheduled as a matrix product.
#[derive(Module, Debug)]
pub struct RoutedExperts {
    /// `[retained, 2·intermediate, hidden]`, the gate above the up projection.
    pub gate_up_proj: Param<Tensor<3>>,
    /// `[retained, hidden, intermediate]`
    pub down_proj: Param<Tensor<3>>,
    /// Constants, `[substituted, hidden]`; none where every expert is retained.
    pub values: Option<Param<Tensor<2>>>,
    #[module(skip)]
    config: ExpertsConfig,
    #[module(skip)]
    table: RouteTable,
    #[module(skip)]
    packing: Packing,
    /// Bound on what an expert's gate and up projections give.
    #[module(skip)]
    limit: Option<f64>,
}

impl RoutedExperts {
    /// Experts that are all retained, to be loaded.
    #[must_use]
    pub fn new(config: ExpertsConfig, device: &Device) -> Self {
        let table = RouteTable::all_retained(config.num_logical_experts);
        Self::with_table(config, table, device)
    }

    /// The same with `gate·x` of at most `limit`, and `up·x` at most as far from zero (DeepSeek-V4).
    #[must_use]
    pub fn clamped(self, limit: f64) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    fn with_table(config: ExpertsConfig, table: RouteTable, device: &Device) -> Self {
        let (retained, substituted) = (table.retained().len(), table.substituted().len());
        let (hidden, intermediate) = (config.hidden, config.intermediate);
        Self {
            gate_up_proj: unloaded([retained, 2 * intermediate, hidden], device),
            down_proj: unloaded([retained, hidden, intermediate], device),
            values: (substituted > 0).then(|| unloaded([substituted, hidden], device)),
            packing: Packing::new(&config, &table),
            config,
            table,
            limit: None,
        }
    }

    /// The route of every logical expert.
    #[must_use]
    pub fn table(&self) -> &RouteTable {
        &self.table
    }

    /// Computes some tokens.
    ///
    /// The retained experts' sum is `f32`. On the CPU it is added to the constants' sum in `f64`, which
    /// is rounded to `f32` once; elsewhere that is `f32` throughout. The result is rounded to the type
    /// of `x`.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>, routes: &Routes) -> Tensor<2> {
        self.forward_observed(x, routes, None)
    }

    /// [`forward`](Self::forward), while somebody may look on; the result is the same, bit by bit.
    ///
    /// # Shapes
    ///
    /// `[tokens, hidden]` to the same.
    #[must_use]
    pub fn forward_observed(
        &self,
        x: Tensor<2>,
        routes: &Routes,
        mut observer: Option<&mut dyn ExpertObserver>,
    ) -> Tensor<2> {
        let [tokens, hidden] = x.dims();
        let dtype = x.dtype();
        let device = x.device();
        if tokens == 0 {
            return x;
        }
        let dispatch = self
            .table
            .dispatch(&routes.ids, &routes.weights, routes.top_k);

        let outputs = match &mut observer {
            Some(observer) => OutputBuffer::of(&mut **observer),
            None => None,
        };
        let retained = compute::retained_experts(
            x,
            &dispatch.retained,
            &self.gate_up_proj,
            &self.down_proj,
            self.limit,
            outputs.as_ref(),
        );
        if let Some(observer) = observer {
            let values = outputs.map(|buffer| match retained {
                Some(_) => buffer.take(),
                None => Vec::new(),
            });
            observer.observe(&Observation {
                layer: self.config.layer,
                table: &self.table,
                routes,
                outputs: values.as_ref().map(|values| {
                    RouteOutputs::new(&self.table, &dispatch.retained, hidden, values)
                }),
            });
            if let (Some(scratch), Some(values)) = (observer.scratch(), values) {
                *scratch = values;
            }
        }
        let sum = match &self.values {
            Some(values) => constants::add(retained, &dispatch.substituted, &values.val(), tokens),
            None => retained,
        };
        let sum = sum.unwrap_or_else(|| Tensor::zeros([tokens, hidden], (&device, DType::F32)));
        extension::cast(sum, dtype)
    }

    /// The same by tensor operations alone: what kernels are compared with.
    #[doc(hidden)]
    #[must_use]
    pub fn forward_plain(&self, x: Tensor<2>, routes: &Routes) -> Tensor<2> {
        let (dtype, tokens) = (x.dtype(), x.dims()[0]);
        let dispatch = self
            .table
            .dispatch(&routes.ids, &routes.weights, routes.top_k);
        let retained = compute::plain(
            x,
            &dispatch.retained,
            &self.gate_up_proj.val(),
            &self.down_proj.val(),
            self.limit,
            None,
        );
        let sum = match &self.values {
            Some(values) if !dispatch.substituted.is_empty() => {
                constants::add_plainly(Some(retained), &dispatch.substituted, &values.val(), tokens)
            }
            _ => retained,
        };
        sum.cast(dtype)
    }
}

impl MoeLayer for RoutedExperts {
    fn info(&self) -> MoeLayerInfo {
        MoeLayerInfo {
            layer: self.config.layer,
            prefix: self.config.prefix.clone(),
            num_logical_experts: self.config.num_logical_experts,
            hidden_size: self.config.hidden,
            expert_parts: self.config.names.parts.to_vec(),
            packed_parts: packed_parts(self.config.names),
            constant_dtype: self.config.constant_dtype.clone(),
            constants_parameter: "values",
        }
    }

    fn substitute(&mut self, table: &RouteTable) -> Result<(), BoxError> {
        let device = self.down_proj.lazy_device();
        *self = Self {
            limit: self.limit,
            ..Self::with_table(self.config.clone(), table.clone(), &device)
        };
        Ok(())
    }

    fn load_constants(&mut self, constants: &[Constant]) -> Result<(), BoxError> {
        let Some(values) = &mut self.values else {
            return Err("this layer has no constants".into());
        };
        let dtype = burn_dtype(&self.config.constant_dtype)
            .ok_or_else(|| format!("constants cannot be {}", self.config.constant_dtype))?;
        let shape: [usize; 2] = [self.table.substituted().len(), self.config.hidden];
        let row_bytes = shape[1] * dtype.size();
        let mut bytes = if values.is_initialized() {
            values.val().cast(dtype).into_data().as_bytes().to_vec()
        } else {
            vec![0; shape[0] * row_bytes]
        };
        for constant in constants {
            let row = bytes
                .get_mut(constant.row * row_bytes..(constant.row + 1) * row_bytes)
                .filter(|row| row.len() == constant.value.len())
                .ok_or_else(|| format!("no row for the constant of expert {}", constant.expert))?;
            row.copy_from_slice(&constant.value);
        }
        let device = values.lazy_device();
        let loaded = tensor(Bytes::from_bytes_vec(bytes), shape, dtype, &device);
        *values = Param::initialized(values.id, loaded);
        Ok(())
    }

    fn expert_weights(&mut self) -> Option<&mut dyn ExpertWeights> {
        Some(self)
    }
}
