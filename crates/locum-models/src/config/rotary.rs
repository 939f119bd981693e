//! Fields of rotary positions, as configurations before and since transformers 5 write them.

use locum_nn::RotaryConfig;
use serde_json::{Map, Value};

use super::{Fields, log};
use crate::ModelError;

const FACTOR: &str = "partial_rotary_factor";
const THETA: &str = "rope_theta";

/// An object with the field that it is the value of.
type NamedObject<'a> = (&'static str, &'a Map<String, Value>);

impl Fields<'_> {
    /// Positions of heads that are rotated whole.
    pub(crate) fn rotary(
        &self,
        head: usize,
        default_theta: f64,
    ) -> Result<RotaryConfig, ModelError> {
        match self.partial_rotary_factor()? {
            None => self.rotary_of(head, "head_dim", default_theta),
            Some((_, 1.0)) => self.rotary_of(head, "head_dim", default_theta),
            Some((field, factor)) => Err(ModelError::field(
                field,
                format!("{factor} is not supported (supported: 1)"),
            )),
        }
    }

    /// Positions of heads of which only the first elements are rotated: `partial_rotary_factor` of
    /// them, or `rotary_dim`, or else all.
    pub(crate) fn partial_rotary(
        &self,
        head: usize,
        default_theta: f64,
    ) -> Result<RotaryConfig, ModelError> {
        const DIMENSIONS: &str = "rotary_dim";
        let (field, dimensions) = match self.partial_rotary_factor()? {
            Some((field, factor)) => (field, (head as f64 * factor) as usize),
            None => match self.optional_size(DIMENSIONS)? {
                Some(dimensions) => (DIMENSIONS.to_owned(), dimensions),
                None => ("head_dim".to_owned(), head),
            },
        };
        if !(2..=head).contains(&dimensions) {
            return Err(ModelError::field(
                field,
                format!(
                    "makes {dimensions} of the {head} elements of a head rotate: must be 2 to {head}"
                ),
            ));
        }
        self.rotary_of(dimensions, &field, default_theta)
    }

    /// Positions of heads of which as many elements are rotated as `field` says.
    pub(super) fn rotary_of(
        &self,
        dimensions: usize,
        field: &str,
        default_theta: f64,
    ) -> Result<RotaryConfig, ModelError> {
        if !dimensions.is_multiple_of(2) {
            return Err(ModelError::field(
                field,
                format!("makes {dimensions} elements of a head rotate, but they rotate in pairs"),
            ));
        }
        Ok(RotaryConfig::new(
            dimensions,
            self.rope_theta(default_theta)?,
        ))
    }

    /// `partial_rotary_factor`, in either place, with its field.
    fn partial_rotary_factor(&self) -> Result<Option<(String, f64)>, ModelError> {
        let nested = match self.rope_parameters()? {
            Some((field, parameters)) => parameters
                .get(FACTOR)
                .map(|value| (format!("{field}.{FACTOR}"), value)),
            None => None,
        };
        nested
            .or_else(|| self.get(FACTOR).map(|value| (FACTOR.to_owned(), value)))
            .filter(|(_, value)| !value.is_null())
            .map(|(field, value)| match value.as_f64() {
                Some(factor) => Ok((field, factor)),
                None => Err(ModelError::field(
                    field,
                    format!("must be a number, found {value}"),
                )),
            })
            .transpose()
    }

    /// The base of rotary frequencies: `rope_parameters.rope_theta`, as transformers 5 writes it, or
    /// `rope_theta`.
    pub(super) fn rope_theta(&self, default: f64) -> Result<f64, ModelError> {
        let nested = match self.declared_rope()? {
            Some((field, parameters)) => parameters
                .get(THETA)
                .map(|value| (format!("{field}.{THETA}"), value)),
            None => None,
        };
        let declared = nested.or_else(|| self.get(THETA).map(|value| (THETA.to_owned(), value)));
        let Some((field, value)) = declared.filter(|(_, value)| !value.is_null()) else {
            return Ok(default);
        };
        value
            .as_f64()
            .filter(|theta| theta.is_finite() && *theta > 0.0)
            .ok_or_else(|| {
                ModelError::field(field, format!("must be a positive number, found {value}"))
            })
    }

    /// What `rope_scaling` or else `rope_parameters` holds, with its field.
    pub(super) fn declared_rope(&self) -> Result<Option<NamedObject<'_>>, ModelError> {
        for field in ["rope_scaling", "rope_parameters"] {
            let Some(value) = self.get(field) else {
                continue;
            };
            let parameters = value.as_object().ok_or_else(|| {
                ModelError::field(field, format!("must be an object, found {value}"))
            })?;
            if parameters.is_empty() {
                continue;
            }
            return Ok(Some((field, parameters)));
        }
        Ok(None)
    }

    /// The same, refused where it is scaling, which would change every position, or has fields that
    /// only scaling has, or positions that differ between layers.
    fn rope_parameters(&self) -> Result<Option<NamedObject<'_>>, ModelError> {
        log::restricted("rope_scaling");
        let Some((field, parameters)) = self.declared_rope()? else {
            return Ok(None);
        };
        let refuse =
            |key: &str, reason: String| Err(ModelError::field(format!("{field}.{key}"), reason));
        for key in ["rope_type", "type"] {
            match parameters.get(key) {
                Some(kind) if kind.as_str() != Some("default") => {
                    return refuse(key, format!("{kind} is not supported (supported: default)"));
                }
                _ => {}
            }
        }
        let known = ["rope_type", "type", THETA, FACTOR];
        let other = parameters
            .iter()
            .find(|(key, value)| !value.is_null() && !known.contains(&key.as_str()));
        if let Some((key, value)) = other {
            return refuse(key, format!("{value} is not supported"));
        }
        Ok(Some((field, parameters)))
    }
}
