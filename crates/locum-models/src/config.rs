//! Typed reading of a `config.json`: every error names its field.

mod compressed;
mod layers;
mod log;
mod rotary;
mod yarn;

use locum_nn::AttentionShape;
use locum_substitution::{Dtype, ExpertCounts};
use serde_json::{Map, Value};

use crate::ModelError;

pub(crate) use compressed::{RotaryPair, Sight};
pub use log::FieldLog;
pub(crate) use log::logged;

/// More experts than any layer has: a number beyond is a mistake, and would be memory without end.
const MOST_EXPERTS: u32 = 100_000;

/// What a family's attention has where its configuration says nothing.
pub(crate) struct HeadDefaults {
    /// `num_attention_heads`
    pub(crate) heads: usize,
    /// `num_key_value_heads`; as many as query heads where there is none.
    pub(crate) kv_heads: Option<usize>,
    /// `head_dim`; the hidden size divided by the number of heads where there is none.
    pub(crate) head: Option<usize>,
}

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
        let text = match top.get("text_config").filter(|text| !text.is_null()) {
            None => top,
            Some(text) => text.as_object().ok_or_else(|| {
                ModelError::field("text_config", format!("must be an object, found {text}"))
            })?,
        };
        Ok(Self { text, top })
    }

    /// The map that holds a field: the text model's own, or else the one at the top.
    fn map_of(&self, field: &str) -> &'a Map<String, Value> {
        log::used(field);
        if self.text.contains_key(field) {
            self.text
        } else {
            self.top
        }
    }

    /// A field, unless absent or null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.declared(field).filter(|value| !value.is_null())
    }

    /// A field, null or not: in some families null means something else than nothing.
    pub(crate) fn declared(&self, field: &str) -> Option<&'a Value> {
        log::used(field);
        [self.text, self.top]
            .into_iter()
            .find_map(|map| map.get(field))
    }

    /// The one of a field's two names that is in use; the first where neither is.
    pub(crate) fn name_in_use(&self, names: [&'static str; 2]) -> Result<&'static str, ModelError> {
        match names.map(|name| self.get(name)) {
            [Some(first), Some(second)] if first != second => Err(ModelError::field(
                names[1],
                format!(
                    "is {second}, but `{}`, which means the same, is {first}",
                    names[0]
                ),
            )),
            [None, Some(_)] => Ok(names[1]),
            _ => Ok(names[0]),
        }
    }

    /// A size that has no default: positive.
    pub(crate) fn size(&self, field: &str) -> Result<usize, ModelError> {
        self.optional_size(field)?
            .ok_or_else(|| ModelError::field(field, "is missing"))
    }

    /// A positive size, or the family's default.
    pub(crate) fn size_or(&self, field: &str, default: usize) -> Result<usize, ModelError> {
        Ok(self.optional_size(field)?.unwrap_or(default))
    }

    /// A number that may be zero, or the family's default.
    pub(crate) fn count_or(&self, field: &str, default: u32) -> Result<u32, ModelError> {
        self.get(field).map_or(Ok(default), |value| {
            value
                .as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| {
                    ModelError::field(field, format!("must be a number from 0, found {value}"))
                })
        })
    }

    /// A finite number, or the family's default.
    pub(crate) fn number_or(&self, field: &str, default: f64) -> Result<f64, ModelError> {
        Ok(self.optional_number(field)?.unwrap_or(default))
    }

    /// `rms_norm_eps`, or the family's default: what keeps a normalisation from dividing by zero.
    pub(crate) fn epsilon(&self, default: f64) -> Result<f64, ModelError> {
        const FIELD: &str = "rms_norm_eps";
        let epsilon = self.number_or(FIELD, default)?;
        if (0.0..=1.0).contains(&epsilon) {
            return Ok(epsilon);
        }
        Err(ModelError::field(
            FIELD,
            format!("must be between 0 and 1, found {epsilon:e}"),
        ))
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

    /// The same where null is no, and not the default.
    pub(crate) fn nullable_flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        match self.declared(field) {
            Some(Value::Null) => Ok(false),
            _ => self.flag(field, default),
        }
    }

    /// Refuses a field that would change the result in a way that is not supported.
    pub(crate) fn only(&self, field: &str, supported: &[&str]) -> Result<(), ModelError> {
        log::restricted(field);
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
        log::restricted(field);
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

    /// Refuses quantised weights, saying how they are.
    pub(crate) fn refuse_quantization(&self) -> Result<(), ModelError> {
        const FIELD: &str = "quantization_config";
        log::restricted(FIELD);
        let Some(method) = self
            .get(FIELD)
            .and_then(|config| config.get("quant_method"))
        else {
            return self.refuse(FIELD);
        };
        Err(ModelError::field(
            FIELD,
            format!("is not supported ({method}): convert the weights to bfloat16, and remove it"),
        ))
    }

    /// Refuses every value of a field but the one that is supported.
    pub(crate) fn fixed(&self, field: &str, supported: Value) -> Result<(), ModelError> {
        log::restricted(field);
        match self.get(field) {
            None => Ok(()),
            Some(value) if *value == supported => Ok(()),
            // 1 is 1.0
            Some(value) if value.is_number() && value.as_f64() == supported.as_f64() => Ok(()),
            Some(value) => Err(ModelError::field(
                field,
                format!("{value} is not supported (supported: {supported})"),
            )),
        }
    }

    /// Refuses a list that holds anything but the one value that is supported.
    pub(crate) fn all(&self, field: &str, supported: &Value) -> Result<(), ModelError> {
        log::restricted(field);
        match self.get(field) {
            None => Ok(()),
            Some(Value::Array(list)) if list.iter().all(|value| value == supported) => Ok(()),
            Some(_) => Err(ModelError::field(
                field,
                format!("is not supported where it holds anything but {supported}"),
            )),
        }
    }

    /// Heads; what is absent is the family's default, and a number of key and value heads that is
    /// null is that of the query heads.
    pub(crate) fn attention_shape(
        &self,
        hidden: usize,
        defaults: &HeadDefaults,
    ) -> Result<AttentionShape, ModelError> {
        const KV_HEADS: &str = "num_key_value_heads";
        let heads = self.size_or("num_attention_heads", defaults.heads)?;
        let kv_heads = match self.declared(KV_HEADS) {
            None => defaults.kv_heads,
            Some(_) => self.optional_size(KV_HEADS)?,
        }
        .unwrap_or(heads);
        let head = match self.optional_size("head_dim")?.or(defaults.head) {
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
        experts: (&str, u32),
        chosen: (&str, u32),
        layers: usize,
    ) -> Result<(Vec<u32>, usize), ModelError> {
        self.sparse_expert_counts(experts, chosen, &vec![true; layers])
    }

    /// The same where some layers are dense, which have no experts.
    pub(crate) fn sparse_expert_counts(
        &self,
        (experts, default_experts): (&str, u32),
        (chosen, default_chosen): (&str, u32),
        sparse: &[bool],
    ) -> Result<(Vec<u32>, usize), ModelError> {
        let counts = ExpertCounts::from_config(self.map_of(experts), &[experts])?
            .unwrap_or(ExpertCounts::Uniform(default_experts));
        let chosen_counts = ExpertCounts::from_config(self.map_of(chosen), &[chosen])?
            .unwrap_or(ExpertCounts::Uniform(default_chosen));
        ExpertCounts::check_lengths(&[(experts, &counts), (chosen, &chosen_counts)])?;
        let mut experts_of_layers = vec![0; sparse.len()];
        let mut top_k = None;
        for (layer, _) in sparse.iter().enumerate().filter(|(_, sparse)| **sparse) {
            let of_layer = |counts: &ExpertCounts, field: &str| {
                counts
                    .of_layer(layer as u32)
                    .ok_or_else(|| ModelError::field(field, format!("lacks layer {layer}")))
            };
            let (count, chosen_count) = (
                of_layer(&counts, experts)?,
                of_layer(&chosen_counts, chosen)?,
            );
            let (first, top_k) = *top_k.get_or_insert((layer, chosen_count));
            if chosen_count != top_k {
                return Err(ModelError::field(
                    chosen,
                    format!(
                        "is {chosen_count} in layer {layer} but {top_k} in layer {first}: it must \
                         be the same in all"
                    ),
                ));
            }
            if count < top_k || top_k == 0 {
                return Err(ModelError::field(
                    chosen,
                    format!("is {top_k}, but layer {layer} has {count} experts"),
                ));
            }
            if count > MOST_EXPERTS {
                return Err(ModelError::field(
                    experts,
                    format!("is {count} in layer {layer}, but must be at most {MOST_EXPERTS}"),
                ));
            }
            experts_of_layers[layer] = count;
        }
        let top_k = top_k.map_or(default_chosen, |(_, top_k)| top_k);
        Ok((experts_of_layers, top_k as usize))
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
}
