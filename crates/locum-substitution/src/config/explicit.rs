//! Form B: `compression_config.transform_config.expert_substitution`.
//!
//! Every key within is known or refused: one that is not understood could change what the
//! checkpoint means. The siblings of `transform_config` (producer, provenance) do not.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{LayerExpert, LayerSubstitution, Target, declared, kind, object, quoted};
use crate::SubstitutionError;
use crate::name::{LayerName, parse_id};

pub(super) const PATH: &str = "compression_config.transform_config.expert_substitution";

type Parsed = (
    BTreeMap<u32, LayerSubstitution>,
    BTreeMap<String, Vec<LayerExpert>>,
);

/// The declaration within a (text) config, if there is one.
///
/// Another transform beside it would change the weights in a way that nobody here applies.
pub(super) fn find(config: &Map<String, Value>) -> Result<Option<&Value>, SubstitutionError> {
    let Some(compression) = declared(config.get("compression_config")) else {
        return Ok(None);
    };
    let compression = object(compression, "compression_config")?;
    let Some(transform) = declared(compression.get("transform_config")) else {
        return Ok(None);
    };
    let transforms = object(transform, "compression_config.transform_config")?;
    let Some(found) = declared(transforms.get("expert_substitution")) else {
        return Ok(None);
    };
    for (key, value) in transforms {
        let empty = match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if key != "expert_substitution" && !empty {
            return Err(SubstitutionError::config(
                format!("compression_config.transform_config.{key}"),
                "is another transform beside expert_substitution, which is not supported",
            ));
        }
    }
    Ok(Some(found))
}

pub(super) fn parse(value: &Value) -> Result<Parsed, SubstitutionError> {
    let root = object(value, PATH)?;
    if root.is_empty() {
        return Ok(Parsed::default());
    }
    only_keys(root, PATH, &["version", "router_semantics", "targets"])?;
    let version = required(root, PATH, "version")?;
    // `true` is not a version, though Python would compare it equal to 1.
    if version.as_u64() != Some(1) {
        return Err(expected(PATH, "version", "1", version));
    }
    semantics(required(root, PATH, "router_semantics")?)?;

    let mut parsed = Parsed::default();
    // A target without replacements declares nothing, but it is a path for its layer all the same.
    let mut paths = BTreeMap::new();
    let field = format!("{PATH}.targets");
    for (path, target) in object(required(root, PATH, "targets")?, &field)? {
        let field = format!("{field}.{path}");
        let layer = layer_of_path(path, &field)?;
        if let Some(other) = paths.insert(layer, path) {
            return Err(SubstitutionError::config(
                field,
                format!("names layer {layer}, which `{other}` names already"),
            ));
        }
        target_of_layer(layer, path, target, &field, &mut parsed)?;
    }
    Ok(parsed)
}

fn semantics(value: &Value) -> Result<(), SubstitutionError> {
    const RULES: [(&str, bool); 3] = [
        ("preserve_logical_expert_ids", true),
        ("preserve_router_weights", true),
        ("renormalize_after_substitution", false),
    ];
    let field = format!("{PATH}.router_semantics");
    let map = object(value, &field)?;
    only_keys(map, &field, &RULES.map(|(key, _)| key))?;
    for (key, wanted) in RULES {
        let found = required(map, &field, key)?;
        if found.as_bool() != Some(wanted) {
            return Err(expected(&field, key, &wanted.to_string(), found));
        }
    }
    Ok(())
}

fn layer_of_path(path: &str, field: &str) -> Result<u32, SubstitutionError> {
    let Some(LayerName { layer, rest }) = LayerName::parse(path) else {
        return Err(SubstitutionError::config(
            field,
            "is not the path of a decoder layer's experts, such as model.layers.1.mlp.experts",
        ));
    };
    if rest != "experts" && !rest.ends_with(".experts") {
        return Err(SubstitutionError::config(
            field,
            format!("does not end in `experts`, found `{rest}` in layer {layer}"),
        ));
    }
    Ok(layer)
}

fn target_of_layer(
    layer: u32,
    path: &str,
    value: &Value,
    field: &str,
    (layers, value_names): &mut Parsed,
) -> Result<(), SubstitutionError> {
    let map = object(value, field)?;
    only_keys(
        map,
        field,
        &["num_logical_experts", "weight_layout", "replacements"],
    )?;
    let layout = required(map, field, "weight_layout")?;
    if layout.as_str() != Some("compact_retained_experts") {
        return Err(expected(
            field,
            "weight_layout",
            "\"compact_retained_experts\"",
            layout,
        ));
    }
    let count = required(map, field, "num_logical_experts")?;
    let Some(num_logical_experts) = count
        .as_u64()
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&n| n > 0)
    else {
        return Err(expected(
            field,
            "num_logical_experts",
            "a number of experts",
            count,
        ));
    };

    let mut experts = Vec::new();
    let replacements = required(map, field, "replacements")?;
    let field = format!("{field}.replacements");
    for (key, replacement) in object(replacements, &field)? {
        let Some(expert) = parse_id(key) else {
            return Err(SubstitutionError::config(
                &field,
                format!("key {} is not an expert id", quoted(key)),
            ));
        };
        let tensor = value_tensor(replacement, &format!("{field}.{key}"))?;
        value_names
            .entry(tensor)
            .or_default()
            .push(LayerExpert { layer, expert });
        experts.push(expert);
    }
    experts.sort_unstable();
    // Known here for layers of other stages as well, which no model checks.
    let outside: Vec<u32> = experts
        .iter()
        .copied()
        .filter(|&expert| expert >= num_logical_experts)
        .collect();
    if !outside.is_empty() {
        return Err(SubstitutionError::config(
            field,
            format!("names experts {outside:?}, but num_logical_experts is {num_logical_experts}"),
        ));
    }
    if experts.len() == num_logical_experts as usize {
        return Err(SubstitutionError::config(
            field,
            format!(
                "names all {num_logical_experts} experts of layer {layer}, at least one must be \
                 retained"
            ),
        ));
    }
    // As in form A, an empty list declares nothing.
    if !experts.is_empty() {
        layers.insert(
            layer,
            LayerSubstitution {
                experts,
                target: Some(Target {
                    path: path.to_owned(),
                    num_logical_experts,
                }),
            },
        );
    }
    Ok(())
}

/// The name of the tensor that holds a replacement's constant.
fn value_tensor(value: &Value, field: &str) -> Result<String, SubstitutionError> {
    let map = object(value, field)?;
    only_keys(map, field, &["format", "tensors"])?;
    let format = required(map, field, "format")?;
    if format.as_str() != Some("constant-v1") {
        return Err(expected(field, "format", "\"constant-v1\"", format));
    }
    let tensors = required(map, field, "tensors")?;
    let field = format!("{field}.tensors");
    let map = object(tensors, &field)?;
    only_keys(map, &field, &["value"])?;
    let name = required(map, &field, "value")?;
    match name.as_str() {
        Some(name) if !name.is_empty() => Ok(name.to_owned()),
        _ => Err(expected(&field, "value", "a tensor name", name)),
    }
}

fn required<'a>(
    map: &'a Map<String, Value>,
    field: &str,
    key: &str,
) -> Result<&'a Value, SubstitutionError> {
    map.get(key)
        .ok_or_else(|| SubstitutionError::config(format!("{field}.{key}"), "is missing"))
}

fn expected(field: &str, key: &str, wanted: &str, found: &Value) -> SubstitutionError {
    SubstitutionError::config(
        format!("{field}.{key}"),
        format!("must be {wanted}, found {}", kind(found)),
    )
}

fn only_keys(
    map: &Map<String, Value>,
    field: &str,
    known: &[&str],
) -> Result<(), SubstitutionError> {
    match map.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(SubstitutionError::config(
            format!("{field}.{key}"),
            format!("is not known here (known: {})", known.join(", ")),
        )),
        None => Ok(()),
    }
}
