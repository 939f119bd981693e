//! `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use serde::de::{IgnoredAny, MapAccess};

use crate::object::{Member, Members};
use crate::{CheckpointError, files};

const WEIGHT_MAP: &str = "weight_map";

/// An index whose shard names were checked, and not yet the shards.
#[derive(Debug)]
pub(crate) struct ShardIndex {
    pub(crate) path: PathBuf,
    /// The shards, in the order in which the index first names them.
    pub(crate) shards: Vec<NamedShard>,
    /// Each tensor and the place of its shard in `shards`, in the order of the index.
    pub(crate) tensors: Vec<(String, usize)>,
}

/// A shard that an index names.
#[derive(Debug)]
pub(crate) struct NamedShard {
    pub(crate) path: PathBuf,
    /// The first tensor that the index puts there.
    pub(crate) tensor: String,
    /// How many it puts there.
    pub(crate) tensors: usize,
}

/// A member of the index's outermost object: the weight map, or nothing that matters.
struct Field(Option<Members<String>>);

impl Member for Field {
    fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error> {
        if name == WEIGHT_MAP {
            map.next_value().map(|members| Self(Some(members)))
        } else {
            map.next_value().map(|IgnoredAny| Self(None))
        }
    }
}

impl ShardIndex {
    /// Reads an index.
    ///
    /// # Errors
    ///
    /// A file that is no index, or one that names shards outside its own directory.
    pub(crate) fn read(path: &Path) -> Result<Self, CheckpointError> {
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut shards: Vec<NamedShard> = Vec::new();
        let mut places = HashMap::new();
        let mut tensors = Vec::new();
        for (tensor, name) in weight_map(path)? {
            if !is_plain_file_name(&name) {
                return Err(CheckpointError::ShardName {
                    index: path.into(),
                    tensor,
                    shard: name,
                });
            }
            let place = *places.entry(name).or_insert_with_key(|name| {
                shards.push(NamedShard {
                    path: directory.join(name),
                    tensor: tensor.clone(),
                    tensors: 0,
                });
                shards.len() - 1
            });
            shards[place].tensors += 1;
            tensors.push((tensor, place));
        }
        Ok(Self {
            path: path.into(),
            shards,
            tensors,
        })
    }

    /// Checks that every shard is there, before any is opened.
    ///
    /// # Errors
    ///
    /// The first shard that is not.
    pub(crate) fn none_missing(&self) -> Result<(), CheckpointError> {
        for shard in &self.shards {
            if files::metadata(&shard.path)?.is_none() {
                return Err(CheckpointError::MissingShard {
                    index: self.path.clone(),
                    shard: shard.path.clone(),
                    tensor: shard.tensor.clone(),
                    tensors: shard.tensors,
                });
            }
        }
        Ok(())
    }
}

fn weight_map(path: &Path) -> Result<Vec<(String, String)>, CheckpointError> {
    let damaged = |reason: String| CheckpointError::Index {
        index: path.into(),
        reason,
    };
    let fields: Members<Field> = match files::parse_json(path) {
        Err(CheckpointError::Json { source, .. }) => return Err(damaged(source.to_string())),
        other => other?,
    };
    let mut weight_maps = fields.0.into_iter().filter_map(|(_, field)| field.0);
    let members = weight_maps.next().ok_or_else(|| {
        damaged(format!(
            "it has no `{WEIGHT_MAP}`, which says where each tensor is"
        ))
    })?;
    if weight_maps.next().is_some() {
        return Err(damaged(format!("it has more than one `{WEIGHT_MAP}`")));
    }
    if let Some(tensor) = members.duplicate() {
        return Err(CheckpointError::DuplicateTensor {
            tensor: tensor.into(),
            first: path.into(),
            second: path.into(),
        });
    }
    Ok(members.0)
}

/// Whether a name stays in its directory on every platform.
///
/// It is the name that is checked, not where it leads: the Hugging Face cache keeps each shard as
/// a symbolic link to a file elsewhere.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    !name.contains(['/', '\\', '\0'])
        && matches!(components.next(), Some(Component::Normal(_)))
        && components.next().is_none()
}
