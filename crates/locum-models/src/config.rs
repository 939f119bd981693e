//! Typed reading of a `config.json`: every error names its field.

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

    /// The base of rotary frequencies: `rope_theta`, or `rope_parameters.rope_theta` as transformers
    /// 5 writes it. Scaling is refused: it would change every position.
    pub(crate) fn rope_theta(&self, default: f64) -> Result<f64, ModelError> {
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
