//! A model that is to be pruned: what its headers say, and what of it are experts.

use std::collections::HashMap;
use std::path::Path;

use locum_checkpoint::{Checkpoint, StoredBytes};
use locum_models::{LoadOptions, Model, ModelFiles};
use locum_substitution::name::{canonical, expert_and_part};
use locum_substitution::{Dtype, MoeLayerInfo, RouteTable, SubstitutionSpec, TensorInfo};

use crate::{PruneError, Statistics, fingerprint};

/// A model that is to be pruned. Its headers are read and checked; its weights are not.
pub struct Subject {
    files: ModelFiles,
    model: Model,
    layers: Vec<SubjectLayer>,
    /// By the canonical prefix of the experts.
    by_prefix: HashMap<String, usize>,
}

/// A MoE layer of it.
#[derive(Clone, Debug)]
pub struct SubjectLayer {
    /// What it is.
    pub info: MoeLayerInfo,
    /// Which of its experts are constants already.
    pub table: RouteTable,
    /// Where its experts are, as the checkpoint spells it: `model.language_model.layers.3.mlp.experts`.
    pub prefix: String,
    /// The type of the experts' weights, which new constants get.
    pub dtype: Dtype,
}

/// What a tensor is to the MoE layer that it is below.
pub(crate) struct ExpertTensor<'a> {
    /// The layer's place among the subject's.
    pub(crate) layer: usize,
    /// The logical expert; none for a packed tensor.
    pub(crate) expert: Option<u32>,
    /// What follows.
    pub(crate) part: &'a str,
}

impl Subject {
    /// Opens a model directory.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the model.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, PruneError> {
        let files = ModelFiles::open(directory.as_ref())?;
        let model = Model::plan(&files, &LoadOptions::default())?;
        if model.moe_layers().is_empty() {
            return Err(PruneError::NoMoeLayer(directory.as_ref().into()));
        }
        let layers: Vec<SubjectLayer> = model
            .moe_layers()
            .iter()
            .map(|(info, table)| SubjectLayer {
                prefix: info.prefix.clone(),
                dtype: info.constant_dtype.clone(),
                info: info.clone(),
                table: table.clone(),
            })
            .collect();
        let by_prefix = layers
            .iter()
            .enumerate()
            .map(|(place, layer)| (canonical(&layer.info.prefix).into_owned(), place))
            .collect();
        let mut subject = Self {
            files,
            model,
            layers,
            by_prefix,
        };
        subject.read_spelling();
        Ok(subject)
    }

    /// Takes prefixes and types from the tensors of retained experts, of which each layer has some.
    fn read_spelling(&mut self) {
        let mut found: Vec<Option<(String, Dtype)>> = vec![None; self.layers.len()];
        for info in self.checkpoint().infos() {
            let name = canonical(&info.name);
            let Some((layer, below)) = self.locate(&name) else {
                continue;
            };
            if found[layer].is_none() && self.is_weight(layer, below) {
                let prefix = info.name[..info.name.len() - below.len() - 1].to_owned();
                found[layer] = Some((prefix, info.dtype.clone()));
            }
        }
        for (layer, found) in self.layers.iter_mut().zip(found) {
            if let Some((prefix, dtype)) = found {
                (layer.prefix, layer.dtype) = (prefix, dtype);
            }
        }
    }

    fn is_weight(&self, layer: usize, below: &str) -> bool {
        let info = &self.layers[layer].info;
        match expert_and_part(below) {
            Some((Some(_), part)) => info.expert_parts.contains(&part),
            Some((None, part)) => info.packed_parts.iter().any(|packed| packed.name == part),
            None => false,
        }
    }

    /// The layer whose experts a canonical name is below, and what follows their prefix.
    fn locate<'n>(&self, name: &'n str) -> Option<(usize, &'n str)> {
        name.match_indices('.').find_map(|(dot, _)| {
            let layer = *self.by_prefix.get(&name[..dot])?;
            Some((layer, &name[dot + 1..]))
        })
    }

    /// What a tensor is among the experts; `None` where it is not of theirs.
    pub(crate) fn expert_tensor<'n>(&self, name: &'n str) -> Option<ExpertTensor<'n>> {
        let (layer, length) = {
            let canonical = canonical(name);
            let (layer, below) = self.locate(&canonical)?;
            (layer, below.len())
        };
        let (expert, part) = expert_and_part(&name[name.len() - length..])?;
        Some(ExpertTensor {
            layer,
            expert,
            part,
        })
    }

    /// The rows of a packed tensor by retained expert: all logical experts have one, or the retained
    /// ones. `None` where the tensor is not packed.
    pub(crate) fn packed_rows(
        &self,
        tensor: &ExpertTensor<'_>,
        info: &TensorInfo,
    ) -> Option<PackedRows> {
        let layer = &self.layers[tensor.layer];
        let packed = &layer.info.packed_parts;
        if tensor.expert.is_some() || !packed.iter().any(|packed| packed.name == tensor.part) {
            return None;
        }
        let retained = layer.table.retained();
        let rows = *info.shape.first()?;
        let places = retained.iter().enumerate().map(|(row, &expert)| {
            let compact = rows == retained.len();
            (expert, if compact { row } else { expert as usize } as u64)
        });
        Some(PackedRows {
            places: places.collect(),
            rows: rows as u64,
        })
    }

    /// Checks that statistics are of this model, by its fingerprint.
    ///
    /// # Errors
    ///
    /// Statistics of another model, or router weights that cannot be read.
    pub fn check_statistics(&self, statistics: &Statistics) -> Result<(), PruneError> {
        let expected = fingerprint(&self.files, &self.model)?;
        if statistics.origin.model == expected {
            return Ok(());
        }
        // What can be seen of it is said; of equal shape, a router or a setting differs.
        crate::replacement::same_shape(self, statistics)?;
        Err(PruneError::OtherModel {
            reason: format!(
                "its fingerprint is {}, that of {} is {expected}: calibrate this model",
                statistics.origin.model,
                self.directory().display()
            ),
        })
    }

    /// Its files.
    #[must_use]
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    /// Its directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.files.name()
    }

    /// The model, without weights.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Its weights.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        self.model.checkpoint()
    }

    /// What is substituted already.
    #[must_use]
    pub fn spec(&self) -> &SubstitutionSpec {
        self.model.spec()
    }

    /// Its MoE layers, in order. Those of multi-token prediction are not among them.
    #[must_use]
    pub fn layers(&self) -> &[SubjectLayer] {
        &self.layers
    }
}

/// Where a packed tensor has which expert.
pub(crate) struct PackedRows {
    /// Retained experts, each with its row.
    pub(crate) places: Vec<(u32, u64)>,
    rows: u64,
}

impl PackedRows {
    /// The bytes of a row.
    pub(crate) fn row(&self, bytes: &StoredBytes, row: u64) -> StoredBytes {
        let size = bytes.len() / self.rows.max(1);
        bytes.slice(row * size..(row + 1) * size)
    }
}
