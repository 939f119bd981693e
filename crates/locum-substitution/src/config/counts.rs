//! Expert counts: one number, or a dictionary by layer.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{kind, quoted};
use crate::SubstitutionError;
use crate::name::parse_id;

/// A count that a config gives once for all layers, or per layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpertCounts {
    /// The same in every layer.
    Uniform(u32),
    /// By layer.
    PerLayer(BTreeMap<u32, u32>),
}

impl ExpertCounts {
    /// Reads a count from the first of `keys` that the config holds; `None` where it holds none.
    ///
    /// # Errors
    ///
    /// A value that is neither a number nor a dictionary from layers to numbers.
    pub fn from_config(
        config: &Map<String, Value>,
        keys: &[&str],
    ) -> Result<Option<Self>, SubstitutionError> {
        let Some((key, value)) = keys
            .iter()
            .find_map(|key| Some((*key, config.get(*key).filter(|value| !value.is_null())?)))
        else {
            return Ok(None);
        };
        let number = |value: &Value, field: &str| {
            value
                .as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| {
                    SubstitutionError::config(
                        field,
                        format!("must be a number of experts, found {}", kind(value)),
                    )
                })
        };
        let Some(map) = value.as_object() else {
            return Ok(Some(Self::Uniform(number(value, key)?)));
        };
        if map.is_empty() {
            return Err(SubstitutionError::config(key, "has no layer"));
        }
        let mut layers = BTreeMap::new();
        for (layer, value) in map {
            let index = parse_id(layer).ok_or_else(|| {
                SubstitutionError::config(
                    key,
                    format!("key {} is not a layer number", quoted(layer)),
                )
            })?;
            layers.insert(index, number(value, &format!("{key}.{index}"))?);
        }
        Ok(Some(Self::PerLayer(layers)))
    }

    /// Checks the dictionaries among some counts against each other.
    ///
    /// # Errors
    ///
    /// Dictionaries of different length, naming both fields and their lengths, or of different
    /// layers, naming one.
    pub fn check_lengths(counts: &[(&str, &Self)]) -> Result<(), SubstitutionError> {
        let mut dictionaries = counts.iter().filter_map(|(field, counts)| match counts {
            Self::PerLayer(layers) => Some((*field, layers)),
            Self::Uniform(_) => None,
        });
        let Some((first, expected)) = dictionaries.next() else {
            return Ok(());
        };
        for (field, layers) in dictionaries {
            if layers.len() != expected.len() {
                return Err(SubstitutionError::config(
                    field,
                    format!(
                        "has {} layers, but `{first}` has {}",
                        layers.len(),
                        expected.len()
                    ),
                ));
            }
            if let Some(layer) = layers.keys().find(|layer| !expected.contains_key(layer)) {
                return Err(SubstitutionError::config(
                    field,
                    format!("has layer {layer}, but `{first}` has not"),
                ));
            }
        }
        Ok(())
    }

    /// The count of a layer.
    #[must_use]
    pub fn of_layer(&self, layer: u32) -> Option<u32> {
        match self {
            Self::Uniform(count) => Some(*count),
            Self::PerLayer(layers) => layers.get(&layer).copied(),
        }
    }
}
