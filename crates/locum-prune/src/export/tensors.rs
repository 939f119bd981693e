//! Which tensors the new checkpoint has.

use std::collections::{BTreeMap, HashMap, HashSet};

use locum_checkpoint::{NewTensor, StoredBytes};
use locum_substitution::name::{APPROX_VALUE, ExpertsName, LayerName};
use locum_substitution::{ConfigFormat, LayerExpert, TensorInfo};

use crate::replacement::stored;
use crate::{Constants, Plan, PruneError, Subject};

/// What the new `config.json` declares, by layer, those of multi-token prediction included.
pub(super) struct Declared {
    pub(super) layers: BTreeMap<u32, DeclaredLayer>,
    /// Tensors of the old checkpoint that are constants.
    old_names: HashSet<String>,
}

/// A layer with constants.
pub(super) struct DeclaredLayer {
    /// Where its experts are, as the checkpoint spells it.
    pub(super) prefix: String,
    pub(super) num_logical_experts: u32,
    /// By logical id.
    pub(super) constants: BTreeMap<u32, DeclaredConstant>,
}

pub(super) struct DeclaredConstant {
    /// The tensor's name in the new checkpoint.
    pub(super) tensor: String,
    source: ConstantSource,
}

enum ConstantSource {
    /// The plan.
    New,
    /// A tensor of the old checkpoint.
    Old(String),
    /// Nothing: another expert's tensor is this one's as well, or the old checkpoint has none, its
    /// layer being one that is not run.
    None,
}

impl Declared {
    /// The constants of the old checkpoint and those of the plan.
    pub(super) fn new(subject: &Subject, plan: &Plan, format: ConfigFormat) -> Self {
        let old = old_constants(subject);
        let mut declared = Self {
            layers: BTreeMap::new(),
            old_names: old.values().flatten().cloned().collect(),
        };
        // In the explicit format, experts that shared a tensor go on sharing it.
        let mut shared: HashMap<String, String> = HashMap::new();
        for (key, source) in old {
            let layer = declared.layer(subject, key.layer, source.as_deref());
            let own = format!("{}.{}.{APPROX_VALUE}", layer.prefix, key.expert);
            let first = match (&source, format) {
                (Some(source), ConfigFormat::ExpertSubstitution) => shared
                    .entry(source.clone())
                    .or_insert_with(|| own.clone())
                    .clone(),
                _ => own.clone(),
            };
            let source = match source {
                Some(source) if first == own => ConstantSource::Old(source),
                _ => ConstantSource::None,
            };
            layer.constants.insert(
                key.expert,
                DeclaredConstant {
                    tensor: first,
                    source,
                },
            );
        }
        for planned in &plan.layers {
            for expert in planned.ids() {
                let layer = declared.layer(subject, planned.layer, None);
                let tensor = format!("{}.{expert}.{APPROX_VALUE}", layer.prefix);
                layer.constants.insert(
                    expert,
                    DeclaredConstant {
                        tensor,
                        source: ConstantSource::New,
                    },
                );
            }
        }
        declared
    }

    fn layer(
        &mut self,
        subject: &Subject,
        number: u32,
        tensor: Option<&str>,
    ) -> &mut DeclaredLayer {
        self.layers.entry(number).or_insert_with(|| {
            let known = subject.layers().iter().find(|l| l.info.layer == number);
            let (prefix, num_logical_experts) = match known {
                Some(known) => (known.prefix.clone(), known.info.num_logical_experts),
                None => elsewhere(subject, number, tensor),
            };
            DeclaredLayer {
                prefix,
                num_logical_experts,
                constants: BTreeMap::new(),
            }
        })
    }

    fn of(&self, layer: u32, expert: u32) -> Option<&DeclaredConstant> {
        self.layers.get(&layer)?.constants.get(&expert)
    }
}

/// Every declared constant, and its tensor, where the checkpoint has it.
fn old_constants(subject: &Subject) -> BTreeMap<LayerExpert, Option<String>> {
    let spec = subject.spec();
    let mut constants: BTreeMap<LayerExpert, Option<String>> = spec
        .layers()
        .flat_map(|(layer, declared)| {
            let experts = declared.experts.iter();
            experts.map(move |&expert| (LayerExpert { layer, expert }, None))
        })
        .collect();
    let checkpoint = subject.checkpoint();
    for (name, experts) in spec.value_names() {
        for expert in experts {
            if checkpoint.info(name).is_some() {
                constants.insert(*expert, Some(name.to_owned()));
            }
        }
    }
    for info in checkpoint.infos() {
        let Some(name) = ExpertsName::parse(&info.name).filter(ExpertsName::is_approx_value) else {
            continue;
        };
        let key = name.expert.map(|expert| LayerExpert {
            layer: name.layer,
            expert,
        });
        // Declared by name in the explicit format, it has been found.
        if let Some(found @ None) = key.and_then(|key| constants.get_mut(&key)) {
            *found = Some(info.name.clone());
        }
    }
    constants
}

/// Where the experts of a layer are that is not built (multi-token prediction), and how many: as its
/// declaration or its tensors say, or else like those of the other layers.
fn elsewhere(subject: &Subject, number: u32, tensor: Option<&str>) -> (String, u32) {
    let other = &subject.layers()[subject.layers().len() - 1];
    let target = subject
        .spec()
        .layers()
        .find(|(layer, _)| *layer == number)
        .and_then(|(_, declared)| declared.target.as_ref());
    if let Some(target) = target {
        return (target.path.clone(), target.num_logical_experts);
    }
    let experts = other.info.num_logical_experts;
    let suffix = |name: &str| {
        let parsed = ExpertsName::parse(name)?;
        let below = format!(".{}.{}", parsed.expert?, parsed.part);
        Some(name.strip_suffix(below.as_str())?.to_owned())
    };
    if let Some(prefix) = tensor.and_then(suffix) {
        return (prefix, experts);
    }
    let prefix = LayerName::parse(&other.prefix).map_or_else(
        || other.prefix.clone(),
        |name| {
            let numbered = format!("{}.{}", name.layer, name.rest);
            let stack = other.prefix.strip_suffix(numbered.as_str());
            format!("{}{number}.{}", stack.unwrap_or_default(), name.rest)
        },
    );
    (prefix, experts)
}

/// The tensors of the new checkpoint, in the order of the old one; the constants of a layer come where
/// the first tensor of its experts was.
pub(super) fn new_tensors(
    subject: &Subject,
    constants: &Constants,
    declared: &Declared,
) -> Result<Vec<NewTensor>, PruneError> {
    let mut by_layer = constant_tensors(subject, constants, declared)?;
    let checkpoint = subject.checkpoint();
    let mut tensors = Vec::with_capacity(checkpoint.len());
    for info in checkpoint.infos() {
        let expert = subject.expert_tensor(&info.name);
        if let Some(expert) = &expert {
            let layer = subject.layers()[expert.layer].info.layer;
            tensors.extend(by_layer.remove(&layer).into_iter().flatten());
        }
        if declared.old_names.contains(&info.name) {
            continue;
        }
        let Some(bytes) = checkpoint.stored(&info.name) else {
            continue;
        };
        let Some(expert) = expert else {
            tensors.push(NewTensor::new(info.clone(), vec![bytes])?);
            continue;
        };
        let layer = subject.layers()[expert.layer].info.layer;
        if let Some(rows) = subject.packed_rows(&expert, info) {
            let kept: Vec<StoredBytes> = rows
                .places
                .iter()
                .filter(|(id, _)| declared.of(layer, *id).is_none())
                .map(|(_, row)| rows.row(&bytes, *row))
                .collect();
            let mut shape = info.shape.clone();
            shape[0] = kept.len();
            let info = TensorInfo::new(info.name.clone(), info.dtype.clone(), shape);
            tensors.push(NewTensor::new(info, kept)?);
        } else if expert
            .expert
            .is_none_or(|id| declared.of(layer, id).is_none())
        {
            tensors.push(NewTensor::new(info.clone(), vec![bytes])?);
        }
    }
    tensors.extend(by_layer.into_values().flatten());
    Ok(tensors)
}

/// The tensors of the constants, by layer.
fn constant_tensors(
    subject: &Subject,
    constants: &Constants,
    declared: &Declared,
) -> Result<BTreeMap<u32, Vec<NewTensor>>, PruneError> {
    let checkpoint = subject.checkpoint();
    let mut by_layer: BTreeMap<u32, Vec<NewTensor>> = BTreeMap::new();
    for (&layer, of_layer) in &declared.layers {
        let known = subject.layers().iter().find(|l| l.info.layer == layer);
        for (&expert, constant) in &of_layer.constants {
            let key = LayerExpert { layer, expert };
            let (dtype, shape, bytes) = match (&constant.source, known) {
                (ConstantSource::Old(name), _) => {
                    let (Some(info), Some(bytes)) =
                        (checkpoint.info(name), checkpoint.stored(name))
                    else {
                        continue;
                    };
                    (info.dtype.clone(), info.shape.clone(), bytes)
                }
                (ConstantSource::New, Some(known)) => {
                    let value = constants.values.get(&key);
                    let value = value.filter(|value| value.len() == known.info.hidden_size);
                    let value = value.ok_or_else(|| PruneError::Plan {
                        reason: format!(
                            "layer {layer}, expert {expert} has no constant of {} elements",
                            known.info.hidden_size
                        ),
                    })?;
                    let bytes = stored(key, value, &known.dtype)?;
                    (known.dtype.clone(), vec![value.len()], bytes.into())
                }
                _ => continue,
            };
            let info = TensorInfo::new(constant.tensor.clone(), dtype, shape);
            let tensor = NewTensor::new(info, vec![bytes])?;
            by_layer.entry(layer).or_default().push(tensor);
        }
    }
    Ok(by_layer)
}
