//! The new `config.json`: the old one, in its order, with another declaration of constants.

use locum_substitution::ConfigFormat;
use serde_json::{Map, Value, json};

use super::tensors::Declared;

const APPROXIMATE: &str = "approximate_experts";
/// Beside `approximate_experts` in checkpoints of the authors' code: a number per constant that only
/// that code's calibration reads. It would not fit the new lists.
const INIT_TOKENS: &str = "approximate_expert_init_tokens";
const TEXT: &str = "text_config";
const COMPRESSION: &str = "compression_config";
const TRANSFORM: &str = "transform_config";
const SUBSTITUTION: &str = "expert_substitution";

/// The configuration with nothing else declared than `declared`.
///
/// `approximate_experts` goes into `text_config` where there is one, for there it is looked up first;
/// `compression_config` goes to the top, where vLLM looks for it. Keys that are there keep their
/// places; new ones come last.
pub(super) fn edited(config: &Value, declared: &Declared, format: ConfigFormat) -> Value {
    let mut config = config.clone();
    let Some(top) = config.as_object_mut() else {
        return config;
    };
    // Of a declaration in the other format, or in the other place, nothing may be left.
    let in_text = top.get(TEXT).is_some_and(Value::is_object);
    if let Some(text) = top.get_mut(TEXT).and_then(Value::as_object_mut) {
        remove_substitution(text);
        remove_approximate(text, format == ConfigFormat::ExpertSubstitution);
    }
    match format {
        ConfigFormat::ApproximateExperts => {
            remove_substitution(top);
            remove_approximate(top, in_text);
            let place = match top.get_mut(TEXT).and_then(Value::as_object_mut) {
                Some(text) => text,
                None => top,
            };
            place.insert(APPROXIMATE.into(), approximate(declared));
        }
        ConfigFormat::ExpertSubstitution => {
            remove_approximate(top, true);
            let mut compression = object(top, COMPRESSION);
            let mut transforms = object(&compression, TRANSFORM);
            // Inserting what is there already leaves it in its place.
            transforms.insert(SUBSTITUTION.into(), substitution(declared));
            compression.insert(TRANSFORM.into(), Value::Object(transforms));
            top.insert(COMPRESSION.into(), Value::Object(compression));
        }
    }
    config
}

/// Removes what declares approximate experts; the list itself stays, to be replaced where it is,
/// unless `all`.
fn remove_approximate(place: &mut Map<String, Value>, all: bool) {
    place.shift_remove(INIT_TOKENS);
    if all {
        place.shift_remove(APPROXIMATE);
    }
}

/// Removes the explicit declaration, and the objects around it that have nothing else in them.
fn remove_substitution(place: &mut Map<String, Value>) {
    let Some(compression) = place.get_mut(COMPRESSION).and_then(Value::as_object_mut) else {
        return;
    };
    let Some(transforms) = compression
        .get_mut(TRANSFORM)
        .and_then(Value::as_object_mut)
    else {
        return;
    };
    if transforms.shift_remove(SUBSTITUTION).is_none() || !transforms.is_empty() {
        return;
    }
    compression.shift_remove(TRANSFORM);
    if compression.is_empty() {
        place.shift_remove(COMPRESSION);
    }
}

/// The object of a key, or an empty one where it is none.
fn object(place: &Map<String, Value>, key: &str) -> Map<String, Value> {
    let found = place.get(key).and_then(Value::as_object);
    found.cloned().unwrap_or_default()
}

fn approximate(declared: &Declared) -> Value {
    let layers = declared.layers.iter().map(|(layer, of_layer)| {
        let ids: Vec<u32> = of_layer.constants.keys().copied().collect();
        (layer.to_string(), json!(ids))
    });
    Value::Object(layers.collect())
}

fn substitution(declared: &Declared) -> Value {
    let targets = declared.layers.values().map(|layer| {
        let replacements = layer.constants.iter().map(|(expert, constant)| {
            let replacement = json!({
                "format": "constant-v1",
                "tensors": { "value": constant.tensor },
            });
            (expert.to_string(), replacement)
        });
        let target = json!({
            "num_logical_experts": layer.num_logical_experts,
            "weight_layout": "compact_retained_experts",
            "replacements": Value::Object(replacements.collect()),
        });
        (layer.prefix.clone(), target)
    });
    json!({
        "version": 1,
        "router_semantics": {
            "preserve_logical_expert_ids": true,
            "preserve_router_weights": true,
            "renormalize_after_substitution": false,
        },
        "targets": Value::Object(targets.collect()),
    })
}
