//! The checkpoint: tensors whose values say where they belong.

use locum_substitution::{Dtype, NamedTensor, TensorInfo};

use super::PARTS;

/// The part of a constant's name.
pub(crate) const CONSTANT: &str = "approx_value";

/// A tensor of f32.
pub(crate) fn tensor(name: &str, shape: &[usize], values: &[f32]) -> NamedTensor {
    NamedTensor::from_f32(name, shape, values).expect("as many values as the shape asks for")
}

/// A tensor of f16, from f32.
pub(crate) fn f16(name: &str, values: &[f32]) -> NamedTensor {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|v| half::f16::from_f32(*v).to_le_bytes())
        .collect();
    NamedTensor::new(TensorInfo::new(name, Dtype::F16, [values.len()]), bytes).expect("f16")
}

/// A tensor of bf16, from f32.
pub(crate) fn bf16(name: &str, values: &[f32]) -> NamedTensor {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
        .collect();
    NamedTensor::new(TensorInfo::new(name, Dtype::Bf16, [values.len()]), bytes).expect("bf16")
}

/// The constant of an expert: `[100 · layer + expert, −(100 · layer + expert)]`.
pub(crate) fn constant(layer: u32, expert: u32) -> NamedTensor {
    let value = (100 * layer + expert) as f32;
    tensor(
        &format!("model.layers.{layer}.mlp.experts.{expert}.{CONSTANT}"),
        &[2],
        &[value, -value],
    )
}

/// A part of an expert: six times `1000 · layer + 10 · expert + part`.
pub(crate) fn part(layer: u32, expert: u32, part: usize) -> NamedTensor {
    let shape = if part == 2 { [2, 3] } else { [3, 2] };
    tensor(
        &format!("model.layers.{layer}.mlp.experts.{expert}.{}", PARTS[part]),
        &shape,
        &[(1000 * layer + 10 * expert) as f32 + part as f32; 6],
    )
}

/// The three parts of an expert.
pub(crate) fn expert(layer: u32, expert: u32) -> Vec<NamedTensor> {
    (0..3).map(|p| part(layer, expert, p)).collect()
}

/// The same values as [`part`] gives, packed: `gate_up_proj` and `down_proj` of some experts.
pub(crate) fn packed(layer: u32, experts: &[u32]) -> Vec<NamedTensor> {
    let value = |expert: &u32, part: usize| (1000 * layer + 10 * expert) as f32 + part as f32;
    let gate_up: Vec<f32> = experts
        .iter()
        .flat_map(|e| [[value(e, 0); 6], [value(e, 1); 6]].concat())
        .collect();
    let down: Vec<f32> = experts.iter().flat_map(|e| [value(e, 2); 6]).collect();
    let name = |matrix: &str| format!("model.layers.{layer}.mlp.experts.{matrix}");
    vec![
        tensor(&name("gate_up_proj"), &[experts.len(), 6, 2], &gate_up),
        tensor(&name("down_proj"), &[experts.len(), 2, 3], &down),
    ]
}

/// The checkpoint of the decoder layers, in file order: layer 0 with some experts substituted,
/// layer 1 with some, and the dense layer 2.
pub(crate) fn checkpoint(layer_0: &[u32], layer_1: &[u32]) -> Vec<NamedTensor> {
    let mut tensors = vec![tensor("model.norm.weight", &[2], &[7.0, 8.0])];
    for (layer, substituted) in [(0, layer_0), (1, layer_1)] {
        for id in 0..5 {
            if substituted.contains(&id) {
                tensors.push(constant(layer, id));
            } else {
                tensors.extend(expert(layer, id));
            }
        }
    }
    tensors.push(tensor("model.layers.2.mlp.weight", &[2], &[5.0, 6.0]));
    tensors
}

/// Tensors but for those whose name ends in a text; there must be some.
pub(crate) fn without(tensors: Vec<NamedTensor>, end: &str) -> Vec<NamedTensor> {
    let count = tensors.len();
    let rest: Vec<_> = tensors
        .into_iter()
        .filter(|tensor| !tensor.name().ends_with(end))
        .collect();
    assert!(rest.len() < count, "no tensor ends in {end:?}");
    rest
}
