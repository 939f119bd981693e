//! Fields of YaRN, which scales rotary positions.

use locum_nn::{RotaryConfig, Yarn};
use serde_json::{Map, Value};

use super::Fields;
use crate::ModelError;

/// What an object of YaRN may hold.
const KNOWN: [&str; 11] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "original_max_position_embeddings",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
];

impl Fields<'_> {
    /// Positions, scaled by YaRN where the configuration says so, of heads of which as many elements
    /// are rotated as `field` says.
    pub(crate) fn rotary_with_yarn(
        &self,
        (field, dimensions): (&str, usize),
        default_theta: f64,
        max_positions: usize,
    ) -> Result<RotaryConfig, ModelError> {
        // The field says how many: a factor of them would be another number.
        self.fixed("partial_rotary_factor", 1.into())?;
        let rotary = self.rotary_of(dimensions, field, default_theta)?;
        let Some((place, parameters)) = self.declared_rope()? else {
            return Ok(rotary);
        };
        if matches!(kind(parameters), None | Some((_, _, Some("default")))) {
            self.rotary(dimensions, default_theta)?;
        }
        self.scaled(rotary, place, parameters, max_positions)
    }

    /// Positions, scaled as an object of the configuration says.
    pub(super) fn scaled(
        &self,
        rotary: RotaryConfig,
        place: &str,
        parameters: &Map<String, Value>,
        max_positions: usize,
    ) -> Result<RotaryConfig, ModelError> {
        match kind(parameters) {
            None | Some((_, _, Some("default"))) => {
                let known = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
                refuse_others(place, parameters, &known)?;
                Ok(rotary)
            }
            Some((_, _, Some("yarn"))) => {
                if rotary.theta <= 1.0 {
                    return Err(ModelError::field(
                        "rope_theta",
                        format!("is {}, but yarn needs more than 1", rotary.theta),
                    ));
                }
                Ok(RotaryConfig {
                    yarn: Some(self.yarn(place, parameters, max_positions)?),
                    ..rotary
                })
            }
            Some((key, kind, _)) => Err(ModelError::field(
                format!("{place}.{key}"),
                format!("{kind} is not supported (supported: default, yarn)"),
            )),
        }
    }

    /// Absent fields as in transformers' `_compute_yarn_parameters`.
    fn yarn(
        &self,
        place: &str,
        parameters: &Map<String, Value>,
        max_positions: usize,
    ) -> Result<Yarn, ModelError> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        let error = |key: &str, reason: String| ModelError::field(format!("{place}.{key}"), reason);
        refuse_others(place, parameters, &KNOWN)?;
        let number = |key: &str| match parameters.get(key).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(error(key, format!("must be a number, found {value}"))),
            },
        };
        let positive = |key: &str| match number(key)? {
            Some(found) if found <= 0.0 => Err(error(
                key,
                format!("must be a positive number, found {found}"),
            )),
            found => Ok(found),
        };
        // Zero is as good as absent.
        let positive_or = |key: &str, default: f64| match number(key)? {
            Some(found) if found < 0.0 => Err(error(
                key,
                format!("must be a positive number, found {found}"),
            )),
            found => Ok(found.filter(|&found| found > 0.0).unwrap_or(default)),
        };
        let factor = positive("factor")?.ok_or_else(|| error("factor", "is missing".into()))?;
        // One outside the object takes precedence over one within it.
        let original = match self.optional_size(ORIGINAL)? {
            Some(original) => original as f64,
            None => positive(ORIGINAL)?.unwrap_or(max_positions as f64),
        };
        let truncate = match parameters.get("truncate") {
            None => true,
            Some(value) => value.as_bool().ok_or_else(|| {
                error("truncate", format!("must be true or false, found {value}"))
            })?,
        };
        Ok(Yarn {
            factor,
            original_positions: original,
            beta_fast: positive_or("beta_fast", 32.0)?,
            beta_slow: positive_or("beta_slow", 1.0)?,
            truncate,
            attention_factor: number("attention_factor")?,
            mscale: number("mscale")?,
            mscale_all_dim: number("mscale_all_dim")?,
        })
    }
}

/// What kind of positions an object says: its key, its value, and that as text.
fn kind(parameters: &Map<String, Value>) -> Option<(&'static str, &Value, Option<&str>)> {
    ["rope_type", "type"].into_iter().find_map(|key| {
        let kind = parameters.get(key).filter(|kind| !kind.is_null())?;
        Some((key, kind, kind.as_str()))
    })
}

/// Refuses what an object should not hold.
fn refuse_others(
    place: &str,
    parameters: &Map<String, Value>,
    known: &[&str],
) -> Result<(), ModelError> {
    let other = parameters
        .iter()
        .find(|(key, value)| !value.is_null() && !known.contains(&key.as_str()));
    match other {
        None => Ok(()),
        Some((key, value)) => Err(ModelError::field(
            format!("{place}.{key}"),
            format!("{value} is not supported"),
        )),
    }
}
