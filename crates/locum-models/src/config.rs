//! Typed reading of a `config.json`: every error names its field.

use locum_nn::{AttentionShape, RotaryConfig};
use locum_substitution::{Dtype, ExpertCounts};
use serde_json::{Map, Value};

use crate::ModelError;

/// A `config.json`, or the `text_config` within it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a> {
    text: &'a Map<String, Value>,
    top: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The fields of the text model: its own first, then those at the top.
    pub(crate) fn of_text_model(config: &'a Value) -> Result<Self, ModelError> {
        let top = config
            .as_object()
            .ok_or_else(|| ModelError::field("config", "must be a JSON object"))?;
        let text = top
            .get("text_config")
            .and_then(Value::as_object)
            .unwrap_or(top);
        Ok(Self { text, top })
    }

    /// The text model's fields as a map.
    pub(crate) fn map(&self) -> &'a Map<String, Value> {
        self.text
    }

    /// A field, unless absent or null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        [self.text, self.top]
            .into_iter()
            .find_map(|map| map.get(field))
            .filter(|value| !value.is_null())
    }

    /// A size that has no default: positive.
    pub(crate) fn size(&self, field: &str) -> Result<usize, ModelError> {
        self.optional_size(field)?
            .ok_or_else(|| ModelError::field(field, "is missing"))
    }

    /// A positive size, if it is there.
    pub(crate) fn optional_size(&self, field: &str) -> Result<Option<usize>, ModelError> {
        self.get(field)
            .map(|value| {
                value
                    .as_u64()
                    .and_then(|n| usize::try_from(n).ok())
                    .filter(|&n| n > 0 && n <= u32::MAX as usize)
                    .ok_or_else(|| {
                        ModelError::field(
                            field,
                            format!("must be a positive number, found {value}"),
                        )
                    })
            })
            .transpose()
    }

    /// A finite number, if it is there.
    pub(crate) fn optional_number(&self, field: &str) -> Result<Option<f64>, ModelError> {
        self.get(field)
            .map(|value| {
                value.as_f64().filter(|n| n.is_finite()).ok_or_else(|| {
                    ModelError::field(field, format!("must be a number, found {value}"))
                })
            })
            .transpose()
    }

    /// A yes or no, or the family's default.
    pub(crate) fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        self.get(field).map_or(Ok(default), |value| {
            value.as_bool().ok_or_else(|| {
                ModelError::field(field, format!("must be true or false, found {value}"))
            })
        })
    }

    /// Refuses a field that would change the result in a way that is not supported.
    pub(crate) fn only(&self, field: &str, supported: &[&str]) -> Result<(), ModelError> {
        match self.get(field) {
            None => Ok(()),
            Some(value) if value.as_str().is_some_and(|s| supported.contains(&s)) => Ok(()),
            Some(value) => Err(ModelError::field(
                field,
                format!(
                    "{value} is not supported (supported: {})",
                    supported.join(", ")
                ),
            )),
        }
    }

    /// Refuses a field unless it is absent, null, false or empty.
    pub(crate) fn refuse(&self, field: &str) -> Result<(), ModelError> {
        let harmless = self.get(field).is_none_or(|value| match value {
            Value::Bool(value) => !value,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        });
        if harmless {
            return Ok(());
        }
        Err(ModelError::field(field, "is not supported"))
    }

    /// Heads; their size is `head_dim`, or else `hidden_size` divided by their number.
    pub(crate) fn attention_shape(&self) -> Result<AttentionShape, ModelError> {
        let hidden = self.size("hidden_size")?;
        let heads = self.size("num_attention_heads")?;
        let kv_heads = self.optional_size("num_key_value_heads")?.unwrap_or(heads);
        let head = match self.optional_size("head_dim")? {
            Some(head) => head,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                return Err(ModelError::field(
                    "num_attention_heads",
                    format!("{heads} does not divide hidden_size {hidden}"),
                ));
            }
        };
        if !heads.is_multiple_of(kv_heads) {
            return Err(ModelError::field(
                "num_key_value_heads",
                format!("{kv_heads} does not divide num_attention_heads {heads}"),
            ));
        }
        Ok(AttentionShape {
            heads,
            kv_heads,
            head,
        })
    }

    /// The experts of each layer, and how many a token goes to; each field with its default.
    pub(crate) fn expert_counts(
        &self,
        (experts, default_experts): (&str, u32),
        (chosen, default_chosen): (&str, u32),
        layers: usize,
    ) -> Result<(Vec<u32>, usize), ModelError> {
        let counts = ExpertCounts::from_config(self.map(), &[experts])?
            .unwrap_or(ExpertCounts::Uniform(default_experts));
        let chosen_counts = ExpertCounts::from_config(self.map(), &[chosen])?
            .unwrap_or(ExpertCounts::Uniform(default_chosen));
        ExpertCounts::check_lengths(&[(experts, &counts), (chosen, &chosen_counts)])?;
        let of_layers = |counts: &ExpertCounts, field: &str| -> Result<Vec<u32>, ModelError> {
            (0..layers as u32)
                .map(|layer| {
                    counts
                        .of_layer(layer)
                        .ok_or_else(|| ModelError::field(field, format!("lacks layer {layer}")))
                })
                .collect()
        };
        let counts = of_layers(&counts, experts)?;
        let chosen_counts = of_layers(&chosen_counts, chosen)?;
        let top_k = chosen_counts.first().copied().unwrap_or(default_chosen);
        if let Some(layer) = chosen_counts.iter().position(|&k| k != top_k) {
            return Err(ModelError::field(
                chosen,
                format!(
                    "is {} in layer {layer} but {top_k} in layer 0: it must be the same in all",
                    chosen_counts[layer]
                ),
            ));
        }
        if let Some(layer) = counts.iter().position(|&e| e < top_k || top_k == 0) {
            return Err(ModelError::field(
                chosen,
                format!(
                    "is {top_k}, but layer {layer} has {} experts",
                    counts[layer]
                ),
            ));
        }
        Ok((counts, top_k as usize))
    }

    /// The type of the weights, as declared; `f32` where nothing is.
    pub(crate) fn dtype(&self) -> Result<Dtype, ModelError> {
        let declared = ["torch_dtype", "dtype"]
            .into_iter()
            .find_map(|field| self.get(field).map(|value| (field, value)));
        let Some((field, value)) = declared else {
            return Ok(Dtype::F32);
        };
        value
            .as_str()
            .and_then(Dtype::from_torch_name)
            .ok_or_else(|| {
                ModelError::field(
                    field,
                    format!("{value} is not supported (supported: float32, float16, bfloat16)"),
                )
            })
    }

    /// Positions of heads whose first `dimensions` elements are rotated.
    pub(crate) fn rotary(
        &self,
        dimensions: usize,
        default_theta: f64,
    ) -> Result<RotaryConfig, ModelError> {
        if !dimensions.is_multiple_of(2) {
            return Err(ModelError::field(
                "head_dim",
                format!("{dimensions} is odd, but rotary embedding needs pairs"),
            ));
        }
        Ok(RotaryConfig {
            dimensions,
            theta: self.rope_theta(default_theta)?,
        })
    }

    /// The base of rotary frequencies: `rope_theta`, or `rope_parameters.rope_theta` as transformers
    /// 5 writes it. Scaling is refused: it would change every position.
    fn rope_theta(&self, default: f64) -> Result<f64, ModelError> {
        for field in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.get(field) else {
                continue;
            };
            let kind = ["rope_type", "type"]
                .into_iter()
                .find_map(|key| value.get(key));
            if let Some(kind) = kind
                && kind.as_str() != Some("default")
            {
                return Err(ModelError::field(
                    format!("{field}.rope_type"),
                    format!("{kind} is not supported (supported: default)"),
                ));
            }
            if let Some(theta) = value.get("rope_theta").and_then(Value::as_f64) {
                return Ok(theta);
            }
        }
        Ok(self.optional_number("rope_theta")?.unwrap_or(default))
    }
}
