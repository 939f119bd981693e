//! Fields that say which layers are what.

use serde_json::Value;

use super::{Fields, log};
use crate::ModelError;

/// More layers than any model has: a number beyond is a mistake, and would be memory without end.
const MOST_LAYERS: usize = 10_000;

impl Fields<'_> {
    /// `num_hidden_layers`, or the family's default.
    pub(crate) fn layer_count(&self, default: usize) -> Result<usize, ModelError> {
        const LAYERS: &str = "num_hidden_layers";
        let layers = self.size_or(LAYERS, default)?;
        if layers > MOST_LAYERS {
            return Err(ModelError::field(
                LAYERS,
                format!("is {layers}, but must be at most {MOST_LAYERS}"),
            ));
        }
        Ok(layers)
    }

    /// Which layers have experts: every `decoder_sparse_step`-th one that is not among
    /// `mlp_only_layers`.
    pub(crate) fn sparse_layers(&self, layers: usize) -> Result<Vec<bool>, ModelError> {
        const DENSE: &str = "mlp_only_layers";
        let step = self.size_or("decoder_sparse_step", 1)?;
        let dense: Vec<u64> = match self.get(DENSE) {
            None => Vec::new(),
            Some(value) => value
                .as_array()
                .and_then(|list| list.iter().map(Value::as_u64).collect())
                .ok_or_else(|| {
                    ModelError::field(DENSE, format!("must be a list of layers, found {value}"))
                })?,
        };
        Ok((0..layers)
            .map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&(layer as u64)))
            .collect())
    }

    /// Refuses attention that sees less than the whole sequence: `sliding_window`, where `enabled`
    /// says that it applies and it is shorter than the context, and other `layer_types`.
    pub(crate) fn refuse_sliding_window(
        &self,
        enabled: bool,
        default: Option<u64>,
        max_positions: usize,
    ) -> Result<(), ModelError> {
        const WINDOW: &str = "sliding_window";
        const TYPES: &str = "layer_types";
        log::restricted(WINDOW);
        log::restricted(TYPES);
        if let Some(types) = self.get(TYPES) {
            let full = |kind: &Value| kind.as_str() == Some("full_attention");
            if !types.as_array().is_some_and(|types| types.iter().all(full)) {
                return Err(ModelError::field(
                    TYPES,
                    "must be full_attention in all layers: others are not supported",
                ));
            }
        }
        if !enabled {
            return Ok(());
        }
        let window = match self.declared(WINDOW) {
            None => default,
            Some(Value::Null) => None,
            Some(value) => Some(value.as_u64().ok_or_else(|| {
                ModelError::field(WINDOW, format!("must be a number of tokens, found {value}"))
            })?),
        };
        match window.filter(|&window| window < max_positions as u64) {
            None => Ok(()),
            Some(window) => Err(ModelError::field(
                WINDOW,
                format!(
                    "{window} is not supported: with `max_position_embeddings` {window} (now \
                     {max_positions}) the window would hide nothing"
                ),
            )),
        }
    }
}
