//! What a model takes in memory, and what it would take unpruned, from headers alone.

use std::collections::BTreeMap;

use locum_substitution::name::{ExpertsName, canonical};
use locum_substitution::{MoeLayerInfo, Route, RouteTable, SubstitutionSpec, TensorInfo};

use crate::Limits;

/// One MoE layer: its experts and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerMemory {
    /// The global decoder layer.
    pub layer: u32,
    /// Logical experts.
    pub logical: usize,
    /// Logical ids of the retained experts.
    pub retained: Vec<u32>,
    /// Logical ids of the substituted experts.
    pub substituted: Vec<u32>,
    /// Bytes of the retained experts' weights.
    pub retained_bytes: u64,
    /// Bytes of the constants.
    pub constant_bytes: u64,
    /// Bytes that the substituted experts' weights would take, less their constants.
    pub saved_bytes: u64,
}

/// What a model takes in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes of all weights, constants included, as they are held.
    pub weights: u64,
    /// Bytes of the key-value cache, per token of one sequence.
    pub cache_per_token: u64,
    /// Bytes of the cache beside that, at most, per sequence.
    pub cache_per_sequence: u64,
    /// The MoE layers, in order.
    pub layers: Vec<LayerMemory>,
}

impl MemoryPlan {
    /// Bytes of the weights if no expert were substituted.
    #[must_use]
    pub fn unpruned_weights(&self) -> u64 {
        self.weights + self.saved_bytes()
    }

    /// Bytes that substitution saves.
    #[must_use]
    pub fn saved_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.saved_bytes).sum()
    }

    /// Bytes of weights and of the cache of one sequence of `tokens` tokens.
    #[must_use]
    pub fn total(&self, tokens: usize) -> u64 {
        self.weights + self.cache_per_sequence + self.cache_per_token * tokens as u64
    }

    pub(crate) fn new<'a>(
        tensors: impl Iterator<Item = &'a TensorInfo>,
        layers: &[(MoeLayerInfo, RouteTable)],
        spec: &SubstitutionSpec,
        limits: &Limits,
    ) -> Self {
        let by_prefix: BTreeMap<String, usize> = layers
            .iter()
            .enumerate()
            .map(|(index, (info, _))| (canonical(&info.prefix).into_owned(), index))
            .collect();
        let mut retained_bytes = vec![0u64; layers.len()];
        let mut others = 0u64;
        for info in tensors {
            if spec.experts_of_value(&info.name).is_some() {
                continue;
            }
            let name = canonical(&info.name);
            match of_experts(&name, &by_prefix) {
                None => others += bytes(info),
                Some((layer, None)) => {
                    // A packed tensor may hold the substituted experts as well.
                    let table = &layers[layer].1;
                    let stored = info.shape.first().copied().unwrap_or(1).max(1) as u64;
                    retained_bytes[layer] += bytes(info) / stored * table.retained().len() as u64;
                }
                Some((layer, Some(expert))) => {
                    if let Route::Retained(_) = layers[layer].1.route(expert.into()) {
                        retained_bytes[layer] += bytes(info);
                    }
                }
            }
        }
        let layers: Vec<LayerMemory> = layers
            .iter()
            .zip(retained_bytes)
            .map(|((info, table), retained_bytes)| {
                let (retained, substituted) = (table.retained(), table.substituted());
                let element = info.constant_dtype.size().unwrap_or(4);
                let constant_bytes = (substituted.len() * info.hidden_size * element) as u64;
                let expert_bytes = retained_bytes / (retained.len() as u64).max(1);
                LayerMemory {
                    layer: info.layer,
                    logical: table.num_logical(),
                    retained: retained.to_vec(),
                    substituted: substituted.to_vec(),
                    retained_bytes,
                    constant_bytes,
                    saved_bytes: (expert_bytes * substituted.len() as u64)
                        .saturating_sub(constant_bytes),
                }
            })
            .collect();
        Self {
            weights: others
                + layers
                    .iter()
                    .map(|layer| layer.retained_bytes + layer.constant_bytes)
                    .sum::<u64>(),
            cache_per_token: limits.cache_bytes_per_token as u64,
            cache_per_sequence: limits.cache_bytes_per_sequence as u64,
            layers,
        }
    }
}

/// The MoE layer and the expert that a canonical name belongs to.
fn of_experts(name: &str, by_prefix: &BTreeMap<String, usize>) -> Option<(usize, Option<u32>)> {
    let experts = ExpertsName::parse(name)?;
    let stem = name.strip_suffix(experts.part)?.strip_suffix('.')?;
    let prefix = match experts.expert {
        Some(_) => stem.rsplit_once('.')?.0,
        None => stem,
    };
    Some((*by_prefix.get(prefix)?, experts.expert))
}

fn bytes(info: &TensorInfo) -> u64 {
    let elements = info.num_elements().unwrap_or(0) as u64;
    elements * info.dtype.size().unwrap_or(1) as u64
}
