//! A model that is ready to run.

use std::ops::Deref;
use std::sync::Arc;

use burn::tensor::{DType, Device};
use locum_checkpoint::Checkpoint;
use locum_nn::{ExpertObserver, KvCache};
use locum_substitution::{
    LoadWeights, Loaded, MoeLayerInfo, NamedTensor, ProcessWeightsAfterLoading, RouteTable,
    SubstitutionError, SubstitutionSpec,
};

use crate::awake::awake;
use crate::language_model::{CausalLm, Limits, Logits};
use crate::progress::{Progress, reporting};
use crate::registry::Architecture;
use crate::{MemoryPlan, ModelError, ModelFiles};

/// So many tokens of a step that its products are long enough to wake threads for each.
const FEW_TOKENS: usize = 16;

/// How a model is built.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The type to compute in. Weights stay as they are stored.
    pub activations: DType,
    /// Where.
    pub device: Device,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            activations: DType::F32,
            device: Device::flex(),
        }
    }
}

/// A wrapped architecture, as `#[expert_substitution]` generates it.
pub(crate) trait SubstitutedModel:
    LoadWeights + ProcessWeightsAfterLoading + Send + Sync
{
    fn language_model(&self) -> &dyn CausalLm;
}

impl<W> SubstitutedModel for W
where
    W: LoadWeights + ProcessWeightsAfterLoading + Deref + Send + Sync,
    W::Target: CausalLm + Sized,
{
    fn language_model(&self) -> &dyn CausalLm {
        &**self
    }
}

/// A model of any architecture, first without weights, then with them.
///
/// ```no_run
/// use locum_models::{LoadOptions, Model, ModelFiles};
///
/// let files = ModelFiles::open("OLMoE-1B-7B-MoNE")?;
/// let mut model = Model::plan(&files, &LoadOptions::default())?;
/// println!("{} bytes", model.memory().weights);
/// model.load(|_| {})?;
/// # Ok::<(), locum_models::ModelError>(())
/// ```
pub struct Model {
    model: Box<dyn SubstitutedModel>,
    moe_layers: Vec<(MoeLayerInfo, RouteTable)>,
    spec: SubstitutionSpec,
    architecture: &'static Architecture,
    checkpoint: Checkpoint,
    memory: MemoryPlan,
    device: Device,
}

impl Model {
    /// Builds a model, and checks by the headers of its files that they hold all of its weights:
    /// nothing is read yet.
    ///
    /// # Errors
    ///
    /// An architecture, a field or a declaration that is not supported; tensors that are missing,
    /// unexpected, or of a wrong shape or type.
    pub fn plan(files: &ModelFiles, options: &LoadOptions) -> Result<Self, ModelError> {
        locum_nn::cpu_variant().map_err(|error| ModelError::Kernels(error.to_string()))?;
        let config = files.config();
        let in_config = |error| files.in_config(error);
        let architecture = Architecture::of_config(config).map_err(in_config)?;
        let spec = SubstitutionSpec::from_config(config)
            .map_err(|error| in_config(ModelError::from(error)))?;
        let built = architecture
            .build(config, &spec, options.activations, &options.device)
            .map_err(in_config)?;
        let checkpoint = files.checkpoint()?;
        built
            .model
            .check_weights(&mut checkpoint.infos().cloned())
            .map_err(|error| ModelError::from(error).in_file(checkpoint.path()))?;
        let limits = built.model.language_model().limits();
        let memory = MemoryPlan::new(checkpoint.infos(), &built.moe_layers, &spec, &limits);
        Ok(Self {
            model: built.model,
            moe_layers: built.moe_layers,
            spec,
            architecture,
            checkpoint,
            memory,
            device: options.device.clone(),
        })
    }

    /// Loads the weights, on all cores; `progress` gets bytes as they are done with, from any of them.
    ///
    /// # Errors
    ///
    /// A tensor that cannot be read, or a constant that the model's type cannot hold.
    pub fn load(
        &mut self,
        progress: impl Fn(u64) + Send + Sync + 'static,
    ) -> Result<Loaded, ModelError> {
        let progress: Progress = Arc::new(progress);
        let mut weights = self
            .checkpoint
            .weights()
            .map(|tensor| tensor.and_then(|tensor| reporting(tensor, &progress)));
        let weights: &mut dyn Iterator<Item = Result<NamedTensor, SubstitutionError>> =
            &mut weights;
        let loaded = self.model.load_weights(weights);
        loaded
            .and_then(|loaded| {
                self.model.process_weights_after_loading()?;
                Ok(loaded)
            })
            .map_err(|error| ModelError::from(error).in_file(self.checkpoint.path()))
    }

    /// What the model takes in memory.
    #[must_use]
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// What is substituted.
    #[must_use]
    pub fn spec(&self) -> &SubstitutionSpec {
        &self.spec
    }

    /// The architecture.
    #[must_use]
    pub fn architecture(&self) -> &'static Architecture {
        self.architecture
    }

    /// The MoE layers, with their routes.
    #[must_use]
    pub fn moe_layers(&self) -> &[(MoeLayerInfo, RouteTable)] {
        &self.moe_layers
    }

    /// The open files.
    #[must_use]
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Where the model computes.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The type that it computes in.
    #[must_use]
    pub fn activations(&self) -> DType {
        self.model.language_model().activations()
    }

    /// What can be asked of it.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.model.language_model().limits()
    }

    /// An empty cache for one sequence.
    #[must_use]
    pub fn new_cache(&self) -> KvCache {
        self.model.language_model().new_cache()
    }

    /// Continues the sequence of each cache by some tokens, of which there may be a different number
    /// in each, and gives logits. A batch gives what its sequences give one by one: bit by bit on a CPU,
    /// but for DeepSeek-V4, some of whose products are not by kernels.
    ///
    /// # Shapes
    ///
    /// Gives `[all tokens, vocabulary]`, row-major, sequence after sequence, or
    /// `[sequences, vocabulary]` where the last tokens' are wanted, or nothing where none are.
    ///
    /// # Errors
    ///
    /// No token, a number of caches other than of sequences, tokens that the model does not have, or
    /// more than its context holds.
    pub fn logits(
        &self,
        ids: &[Vec<i64>],
        caches: &mut [KvCache],
        wanted: Logits,
    ) -> Result<Vec<f32>, ModelError> {
        self.logits_observed(ids, caches, wanted, None)
    }

    /// [`logits`](Self::logits), while somebody may look on at the experts of each MoE layer.
    ///
    /// # Shapes
    ///
    /// Those of [`logits`](Self::logits). The tokens of an observation are those of `ids`, sequence
    /// after sequence.
    ///
    /// # Errors
    ///
    /// Those of [`logits`](Self::logits).
    pub fn logits_observed(
        &self,
        ids: &[Vec<i64>],
        caches: &mut [KvCache],
        wanted: Logits,
        observer: Option<&mut dyn ExpertObserver>,
    ) -> Result<Vec<f32>, ModelError> {
        let before: Vec<usize> = caches.iter().map(KvCache::tokens).collect();
        self.check_ids(ids, &before)?;
        let model = self.model.language_model();
        let compute = || {
            let logits = model.forward_observed(ids, caches, wanted, observer);
            // Of the right type, they are not copied.
            let data = logits.into_data();
            match data.dtype() {
                DType::F32 => data.try_into_vec().unwrap_or_default(),
                _ => data.iter::<f32>().collect(),
            }
        };
        let tokens: usize = ids.iter().map(Vec::len).sum();
        Ok(if tokens <= FEW_TOKENS {
            awake(compute)
        } else {
            // As one of the pool's threads: one outside would sleep during each product.
            rayon::scope(|_| compute())
        })
    }

    /// Checks that sequences, each after `before` tokens, can be computed: some tokens in each, all
    /// of them the model's, and no more than its context holds. Needs no weights.
    ///
    /// # Errors
    ///
    /// What [`Model::logits`] would refuse.
    pub fn check_ids(&self, ids: &[Vec<i64>], before: &[usize]) -> Result<(), ModelError> {
        let limits = self.limits();
        if ids.is_empty() || ids.iter().any(Vec::is_empty) {
            return Err(ModelError::EmptyPrompt);
        }
        if ids.len() != before.len() {
            return Err(ModelError::field(
                "caches",
                format!("are {}, for {} sequences", before.len(), ids.len()),
            ));
        }
        for (ids, before) in ids.iter().zip(before) {
            let tokens = before + ids.len();
            if tokens > limits.max_positions {
                return Err(ModelError::TooLong {
                    what: "the input",
                    tokens,
                    limit: limits.max_positions,
                });
            }
            let unknown =
                |id: &&i64| usize::try_from(**id).map_or(true, |id| id >= limits.vocabulary);
            if let Some(&id) = ids.iter().find(unknown) {
                return Err(ModelError::UnknownToken {
                    id,
                    vocabulary: limits.vocabulary,
                });
            }
        }
        Ok(())
    }
}
