//! Fields of DeepSeek-V4's attention: two kinds of positions, and what each layer sees and routes by.

use locum_nn::{RotaryConfig, RotaryOrder};
use serde_json::{Map, Value};

use super::Fields;
use crate::ModelError;

const THETA: &str = "rope_theta";
const FACTOR: &str = "partial_rotary_factor";
const ATTENTION_FACTOR: &str = "attention_factor";

/// What a layer's attention sees beyond its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Nothing: `sliding_attention`.
    Window,
    /// Some blocks: `compressed_sparse_attention`.
    SomeBlocks,
    /// All blocks: `heavily_compressed_attention`.
    AllBlocks,
}

/// Positions, as transformers' `DeepseekV4Config` reads them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RotaryPair {
    /// Of layers that see their window only.
    pub(crate) main: RotaryConfig,
    /// Of layers with compressed blocks.
    pub(crate) compress: RotaryConfig,
}

impl Fields<'_> {
    /// Positions: `rope_parameters` with `main` and `compress`, as transformers 5 writes them, or
    /// `rope_theta`, `compress_rope_theta` and scaling for the latter.
    pub(crate) fn rotary_pair(
        &self,
        head: usize,
        max_positions: usize,
    ) -> Result<RotaryPair, ModelError> {
        let declared = self.declared_rope()?;
        if let Some((place, parameters)) = declared {
            let nested = ["main", "compress"].map(|key| parameters.get(key));
            if let [Some(main), Some(compress)] = nested {
                let read = |key: &str, value: &Value| {
                    let place = format!("{place}.{key}");
                    let parameters = value.as_object().ok_or_else(|| {
                        ModelError::field(&place, format!("must be an object, found {value}"))
                    })?;
                    self.nested_rotary(&place, parameters, head, max_positions)
                };
                return Ok(RotaryPair {
                    main: read("main", main)?,
                    compress: read("compress", compress)?,
                });
            }
        }
        let dimensions = self.rotary_dimensions(head)?;
        let theta = self.positive_or(THETA, 10_000.0)?;
        let main = interleaved(dimensions, theta);
        let compress = interleaved(
            dimensions,
            self.positive_or("compress_rope_theta", 160_000.0)?,
        );
        let Some((place, parameters)) = declared else {
            return Ok(RotaryPair { main, compress });
        };
        // transformers reads the base beside the object, and not the one within.
        let within = parameters.get(THETA).filter(|value| !value.is_null());
        if let Some(value) = within.filter(|value| value.as_f64() != Some(theta)) {
            return Err(ModelError::field(
                format!("{place}.{THETA}"),
                format!("{value} is not supported where `{THETA}` is {theta}"),
            ));
        }
        let mut compress = self.scaled(compress, place, parameters, max_positions)?;
        if let Some(yarn) = &mut compress.yarn
            && !parameters.contains_key(ATTENTION_FACTOR)
        {
            yarn.attention_factor = Some(1.0);
        }
        Ok(RotaryPair { main, compress })
    }

    fn nested_rotary(
        &self,
        place: &str,
        parameters: &Map<String, Value>,
        head: usize,
        max_positions: usize,
    ) -> Result<RotaryConfig, ModelError> {
        let positive = |key: &str| {
            let field = || format!("{place}.{key}");
            let value = parameters.get(key).filter(|value| !value.is_null());
            let value = value.ok_or_else(|| ModelError::field(field(), "is missing"))?;
            value
                .as_f64()
                .filter(|n| n.is_finite() && *n > 0.0)
                .ok_or_else(|| {
                    ModelError::field(field(), format!("must be a positive number, found {value}"))
                })
        };
        let dimensions = rotated(head, positive(FACTOR)?, &format!("{place}.{FACTOR}"))?;
        let mut scaling = parameters.clone();
        scaling.remove(FACTOR);
        let rotary = interleaved(dimensions, positive(THETA)?);
        self.scaled(rotary, place, &scaling, max_positions)
    }

    /// Elements of a head that rotate: `partial_rotary_factor` of them, or `qk_rope_head_dim`.
    fn rotary_dimensions(&self, head: usize) -> Result<usize, ModelError> {
        const DIMENSIONS: &str = "qk_rope_head_dim";
        if let Some(factor) = self.optional_number(FACTOR)? {
            return rotated(head, factor, FACTOR);
        }
        match self.optional_size(DIMENSIONS)? {
            // By way of the factor, as transformers does, which rounds down.
            Some(size) => rotated(head, size as f64 / head as f64, DIMENSIONS),
            None => rotated(head, 64.0 / 512.0, "head_dim"),
        }
    }

    pub(crate) fn positive_or(&self, field: &str, default: f64) -> Result<f64, ModelError> {
        let number = self.number_or(field, default)?;
        if number > 0.0 {
            return Ok(number);
        }
        Err(ModelError::field(
            field,
            format!("must be a positive number, found {number}"),
        ))
    }

    /// What each layer sees: `layer_types`, or else `compress_ratios`, or else the family's pattern.
    pub(crate) fn sights(&self, layers: usize) -> Result<Vec<Sight>, ModelError> {
        const TYPES: &str = "layer_types";
        const RATIOS: &str = "compress_ratios";
        if self.get(TYPES).is_some() {
            return self.by_layer(TYPES, layers, |value| match value.as_str()? {
                "sliding_attention" => Some(Sight::Window),
                "compressed_sparse_attention" => Some(Sight::SomeBlocks),
                "heavily_compressed_attention" => Some(Sight::AllBlocks),
                _ => None,
            });
        }
        if self.get(RATIOS).is_some() {
            return self.by_layer(RATIOS, layers, |value| match value.as_u64()? {
                0 => Some(Sight::Window),
                4 => Some(Sight::SomeBlocks),
                128 => Some(Sight::AllBlocks),
                _ => None,
            });
        }
        let sight = |layer: usize| match layer {
            0 | 1 => Sight::AllBlocks,
            _ if layer.is_multiple_of(2) => Sight::AllBlocks,
            _ => Sight::SomeBlocks,
        };
        Ok((0..layers).map(sight).collect())
    }

    /// Whether each layer's experts are chosen by token: `mlp_layer_types`, or else the first
    /// `num_hash_layers`.
    pub(crate) fn routed_by_token(&self, layers: usize) -> Result<Vec<bool>, ModelError> {
        const TYPES: &str = "mlp_layer_types";
        if self.get(TYPES).is_some() {
            return self.by_layer(TYPES, layers, |value| match value.as_str()? {
                "hash_moe" => Some(true),
                "moe" => Some(false),
                _ => None,
            });
        }
        let first = self.count_or("num_hash_layers", 3)? as usize;
        Ok((0..layers).map(|layer| layer < first).collect())
    }

    /// A list with a value per layer, and maybe more: those of multi-token prediction.
    fn by_layer<T>(
        &self,
        field: &str,
        layers: usize,
        parse: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, ModelError> {
        let list = self.get(field).and_then(Value::as_array);
        let list = list.filter(|list| list.len() >= layers).ok_or_else(|| {
            ModelError::field(field, format!("must be a list of {layers} layers"))
        })?;
        let of_layer = |(layer, value): (usize, &Value)| {
            parse(value).ok_or_else(|| {
                ModelError::field(field, format!("{value} is not supported (layer {layer})"))
            })
        };
        list.iter().take(layers).enumerate().map(of_layer).collect()
    }

    /// Tokens of a block, in layers that see some blocks, and in layers that see all:
    /// `compress_rates`, or fields of their own.
    pub(crate) fn blocks(&self) -> Result<[usize; 2], ModelError> {
        const RATES: &str = "compress_rates";
        let rates = self.get(RATES);
        let rate = |own: &str, key: &str, default: usize| {
            if let Some(rate) = self.optional_size(own)? {
                return Ok(rate);
            }
            let Some(rates) = rates else {
                return Ok(default);
            };
            let rate = rates.get(key).and_then(Value::as_u64);
            rate.and_then(|rate| usize::try_from(rate).ok())
                .filter(|rate| (1..=u32::MAX as usize).contains(rate))
                .ok_or_else(|| {
                    ModelError::field(format!("{RATES}.{key}"), "must be a positive number")
                })
        };
        Ok([
            rate("compress_rate_csa", "compressed_sparse_attention", 4)?,
            rate("compress_rate_hca", "heavily_compressed_attention", 128)?,
        ])
    }
}

fn interleaved(dimensions: usize, theta: f64) -> RotaryConfig {
    RotaryConfig {
        order: RotaryOrder::Interleaved,
        ..RotaryConfig::new(dimensions, theta)
    }
}

/// Elements of a head that rotate, a positive even number of them.
fn rotated(head: usize, factor: f64, field: &str) -> Result<usize, ModelError> {
    let dimensions = (head as f64 * factor) as usize;
    if (2..=head).contains(&dimensions) && dimensions.is_multiple_of(2) {
        return Ok(dimensions);
    }
    Err(ModelError::field(
        field,
        format!(
            "makes {dimensions} of the {head} elements of a head rotate: must be an even number \
             from 2 to {head}"
        ),
    ))
}
