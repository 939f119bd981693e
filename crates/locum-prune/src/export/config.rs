//! The new `config.json`: the old one, in its order, with another declaration of constants.

use locum_substitution::ConfigFormat;
use serde_json::{Value, json};

use super::tensors::Declared;
use super::verbatim::{Verbatim, text_of};

const APPROXIMATE: &str = "approximate_experts";
/// Beside `approximate_experts` in checkpoints of the authors' code: a number per constant that only
/// that code's calibration reads. It would not fit the new lists.
const INIT_TOKENS: &str = "approximate_expert_init_tokens";
const TEXT: &str = "text_config";
const COMPRESSION: &str = "compression_config";
const TRANSFORM: &str = "transform_config";
const SUBSTITUTION: &str = "expert_substitution";

/// The text of a configuration with nothing else declared than `declared`; `None` where it is no
/// object.
///
/// `approximate_experts` goes into `text_config` where there is one, for there it is looked up first;
/// `compression_config` goes to the top, where vLLM looks for it. What is there keeps its place and
/// its spelling; what is new comes last.
pub(super) fn edited(config: &str, declared: &Declared, format: ConfigFormat) -> Option<String> {
    let mut top = Verbatim::parse(config)?;
    let mut text = top.object(TEXT);
    // Of a declaration in the other format, or in the other place, nothing may be left.
    if let Some(text) = &mut text {
        remove_substitution(text, 1);
    }
    for place in text.iter_mut().chain([&mut top]) {
        place.remove(INIT_TOKENS);
    }
    match format {
        ConfigFormat::ApproximateExperts => {
            remove_substitution(&mut top, 0);
            match &mut text {
                Some(text) => {
                    top.remove(APPROXIMATE);
                    text.set(APPROXIMATE, text_of(&approximate(declared), 2));
                }
                None => top.set(APPROXIMATE, text_of(&approximate(declared), 1)),
            }
        }
        ConfigFormat::ExpertSubstitution => {
            for place in text.iter_mut().chain([&mut top]) {
                place.remove(APPROXIMATE);
            }
            let mut compression = top.object(COMPRESSION).unwrap_or_default();
            let mut transforms = compression.object(TRANSFORM).unwrap_or_default();
            transforms.set(SUBSTITUTION, text_of(&substitution(declared), 3));
            compression.set(TRANSFORM, transforms.text(2));
            top.set(COMPRESSION, compression.text(1));
        }
    }
    if let Some(text) = text {
        top.set(TEXT, text.text(1));
    }
    Some(format!("{}\n", top.text(0)))
}

/// Removes the explicit declaration, and the objects around it that have nothing else in them.
fn remove_substitution(place: &mut Verbatim, depth: usize) {
    let Some(mut compression) = place.object(COMPRESSION) else {
        return;
    };
    let Some(mut transforms) = compression.object(TRANSFORM) else {
        return;
    };
    if !transforms.remove(SUBSTITUTION) {
        return;
    }
    if transforms.is_empty() {
        compression.remove(TRANSFORM);
    } else {
        compression.set(TRANSFORM, transforms.text(depth + 2));
    }
    if compression.is_empty() {
        place.remove(COMPRESSION);
    } else {
        place.set(COMPRESSION, compression.text(depth + 1));
    }
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
