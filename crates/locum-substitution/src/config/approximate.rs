//! Form A: `{"approximate_experts": {"<layer>": [logical ids]}}`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{LayerSubstitution, kind, object, quoted};
use crate::SubstitutionError;
use crate::name::parse_id;

pub(super) const KEY: &str = "approximate_experts";

pub(super) fn parse(value: &Value) -> Result<BTreeMap<u32, LayerSubstitution>, SubstitutionError> {
    let mut layers = BTreeMap::new();
    for (key, ids) in object(value, KEY)? {
        let Some(layer) = parse_id(key) else {
            return Err(SubstitutionError::config(
                KEY,
                format!("key {} is not a layer number", quoted(key)),
            ));
        };
        let field = format!("{KEY}.{layer}");
        let experts = experts(ids, &field)?;
        // An empty list declares nothing.
        if !experts.is_empty() {
            layers.insert(
                layer,
                LayerSubstitution {
                    experts,
                    target: None,
                },
            );
        }
    }
    Ok(layers)
}

/// The ids of a layer, ascending.
fn experts(value: &Value, field: &str) -> Result<Vec<u32>, SubstitutionError> {
    let Some(list) = value.as_array() else {
        return Err(SubstitutionError::config(
            field,
            format!("must be a list of expert ids, found {}", kind(value)),
        ));
    };
    let mut experts = Vec::with_capacity(list.len());
    for id in list {
        match id.as_u64().map(u32::try_from) {
            Some(Ok(id)) => experts.push(id),
            _ => {
                return Err(SubstitutionError::config(
                    field,
                    format!("{} is not an expert id", kind(id)),
                ));
            }
        }
    }
    experts.sort_unstable();
    if let Some(pair) = experts.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(SubstitutionError::config(
            field,
            format!("expert {} is listed twice", pair[0]),
        ));
    }
    Ok(experts)
}
