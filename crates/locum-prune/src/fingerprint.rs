//! Which model statistics are of.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use locum_models::{Model, ModelFiles};
use locum_substitution::RouteTable;
use locum_substitution::name::LayerName;
use sha2::{Digest, Sha256};

use crate::save::failed;
use crate::{PruneError, Statistics};

/// Fields that say how weights are stored, not what is computed.
const STORAGE: [&str; 2] = ["torch_dtype", "dtype"];

/// A hash of what makes a model this one: the architecture, the values of the configuration's fields
/// that it uses, the experts that are constants, and the weights of its routers.
///
/// A copy in other shards has the same; a sibling whose routers were trained further has another, and so
/// has the model that is pruned next. The experts' own weights, which are most of a model, are not read.
///
/// # Errors
///
/// Files that cannot be read.
pub fn fingerprint(files: &ModelFiles, model: &Model) -> Result<String, PruneError> {
    fingerprint_with(files, model, |_, table| table.substituted())
}

impl Statistics {
    /// Whether a model is the one that these are of, or was made from it by putting constants in place of
    /// more experts.
    ///
    /// # Errors
    ///
    /// Files that cannot be read.
    pub fn are_of(&self, files: &ModelFiles, model: &Model) -> Result<bool, PruneError> {
        let before = |layer: u32| {
            let counted = self.layers.iter().find(|counted| counted.layer == layer);
            counted.map_or(&[][..], |counted| &counted.substituted)
        };
        let all_there = model.moe_layers().iter().all(|(info, table)| {
            let now = table.substituted();
            before(info.layer).iter().all(|expert| now.contains(expert))
        });
        let made_from = fingerprint_with(files, model, |layer, _| before(layer))?;
        Ok(all_there && made_from == self.origin.model)
    }
}

/// That of a model with other constants: `substituted` gives those of a layer.
fn fingerprint_with<'a>(
    files: &ModelFiles,
    model: &'a Model,
    substituted: impl Fn(u32, &'a RouteTable) -> &'a [u32],
) -> Result<String, PruneError> {
    let mut hash = Hash::new("locum model 1");
    let config = files.config();
    let architecture = model.architecture();
    hash.text(architecture.model_type);
    for field in architecture.fields(config).used {
        let maps = [config.get("text_config"), Some(config)];
        let value = maps.into_iter().flatten().find_map(|map| map.get(&field));
        if let Some(value) = value.filter(|_| !STORAGE.contains(&field.as_str())) {
            hash.text(&field);
            hash.text(&sorted(value).to_string());
        }
    }
    for (info, table) in model.moe_layers() {
        hash.number(info.layer.into());
        hash.number(table.num_logical() as u64);
        for &expert in substituted(info.layer, table) {
            hash.number(expert.into());
        }
    }
    let checkpoint = model.checkpoint();
    let mut routers: Vec<(LayerName<'_>, &str)> = checkpoint
        .infos()
        .filter_map(|info| {
            let name = LayerName::parse(&info.name)?;
            is_of_router(model, &name).then_some((name, info.name.as_str()))
        })
        .collect();
    routers.sort_by_key(|(name, _)| (name.layer, name.rest));
    for (name, tensor) in routers {
        let tensor = checkpoint.tensor(tensor)?;
        hash.number(name.layer.into());
        hash.text(name.rest);
        hash.text(&format!(
            "{} {:?}",
            tensor.info().dtype,
            tensor.info().shape
        ));
        hash.bytes(tensor.bytes());
    }
    Ok(hash.finish())
}

/// A hash of the names, sizes and times of a model's weight files: it is another one where they were
/// changed, and may be where they were copied.
pub(crate) fn state_of_weights(model: &Model) -> Result<String, PruneError> {
    let mut hash = Hash::new("locum weight files 1");
    for (file, size, modified) in weight_files(model)? {
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        hash.bytes(file.as_os_str().as_encoded_bytes());
        hash.number(size);
        hash.number(since.as_secs());
        hash.number(since.subsec_nanos().into());
    }
    Ok(hash.finish())
}

/// When a model's weight files were last written to; none of weights that are in no file.
pub(crate) fn last_change(model: &Model) -> Result<Option<SystemTime>, PruneError> {
    let files = weight_files(model)?;
    Ok(files.into_iter().map(|(_, _, modified)| modified).max())
}

/// The weight files with their sizes and times; those of a model in memory are none.
fn weight_files(model: &Model) -> Result<Vec<(&Path, u64, SystemTime)>, PruneError> {
    let files = model.checkpoint().files().filter(|file| file.exists());
    let look = |file| {
        let found = fs::metadata(file)?;
        Ok((file, found.len(), found.modified()?))
    };
    files
        .map(|file| look(file).map_err(failed("look at", file)))
        .collect()
}

/// Whether a tensor is of the router of an MoE layer, or corrects its choice.
fn is_of_router(model: &Model, tensor: &LayerName<'_>) -> bool {
    model.moe_layers().iter().any(|(info, _)| {
        LayerName::parse(&info.prefix)
            .filter(|experts| experts.layer == tensor.layer)
            .and_then(|experts| experts.rest.strip_suffix("experts"))
            .and_then(|module| tensor.rest.strip_prefix(module))
            .is_some_and(|part| part.starts_with("gate.") || part == "e_score_correction_bias")
    })
}

/// The same JSON with the keys of objects in order.
fn sorted(value: &serde_json::Value) -> serde_json::Value {
    let mut value = value.clone();
    value.sort_all_objects();
    value
}

/// A SHA-256 of parts, none of which runs into the next.
pub(crate) struct Hash(Sha256);

impl Hash {
    pub(crate) fn new(what: &str) -> Self {
        let mut hash = Self(Sha256::new());
        hash.text(what);
        hash
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// As hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let digest = self.0.finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
