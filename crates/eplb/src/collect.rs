//! Finding a model's MoE layers, and what is known about them.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::index::{LogicalExpert, RetainedExpert};
use crate::load::Loads;
use crate::wording::counted;

/// What a decoder layer does after attention.
#[derive(Debug)]
pub enum FeedForward<'a, B: ?Sized> {
    /// The layer belongs to another pipeline stage; nothing of it is here.
    Placeholder,
    /// One dense feed-forward network, without experts.
    Dense,
    /// A mixture of experts.
    Moe(&'a B),
}

/// A decoder layer, as far as balancing is concerned. A model crate implements it.
pub trait DecoderLayer {
    /// The layer's MoE block.
    type Moe: MoeBlock;

    /// The feed-forward part.
    fn feed_forward(&self) -> FeedForward<'_, Self::Moe>;
}

/// An MoE block: router, experts, and shared experts if there are any.
pub trait MoeBlock {
    /// The module that holds the routed experts' weights.
    type Experts;

    /// The routed experts.
    fn experts(&self) -> &Self::Experts;

    /// The block's numbers of experts.
    fn geometry(&self) -> Geometry;

    /// The experts that have weights, ascending, where a checkpoint substitutes some; `None` if all
    /// have.
    fn retained_experts(&self) -> Option<Vec<LogicalExpert>> {
        None
    }
}

/// The numbers of experts of one MoE layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Geometry {
    /// Experts that the router chooses from.
    pub routed: usize,
    /// Experts that every token goes to; they are not placed.
    pub shared: usize,
    /// Logical experts: the ids that the router uses.
    pub logical: usize,
    /// Logical experts that have weights. Only these are placed.
    pub retained: usize,
    /// Physical slots over all ranks.
    pub physical: usize,
    /// Physical slots of one rank.
    pub local_physical: usize,
    /// Slots beyond one per retained expert.
    pub redundant: usize,
}

impl Geometry {
    /// A layer whose experts all have weights, on `ranks` ranks.
    ///
    /// # Errors
    ///
    /// As [`Geometry::with_retained`].
    pub fn new(
        routed: usize,
        shared: usize,
        redundant: usize,
        ranks: usize,
    ) -> Result<Self, Error> {
        Self::with_retained(routed, routed, shared, redundant, ranks)
    }

    /// A layer with weights for `retained` of its `routed` experts, on `ranks` ranks.
    ///
    /// # Errors
    ///
    /// When there are no ranks, more experts are retained than routed, or the slots do not divide
    /// among the ranks.
    pub fn with_retained(
        routed: usize,
        retained: usize,
        shared: usize,
        redundant: usize,
        ranks: usize,
    ) -> Result<Self, Error> {
        if ranks == 0 {
            return Err(Error::Empty {
                what: "ranks".into(),
            });
        }
        if retained > routed {
            return Err(Error::Setting {
                what: "retained experts".into(),
                found: format!("{retained} of {routed} routed experts"),
                remedy: "retained experts are a part of the routed ones".into(),
            });
        }
        let physical = retained.saturating_add(redundant);
        if !physical.is_multiple_of(ranks) {
            let above = physical.checked_next_multiple_of(ranks).unwrap_or(physical);
            return Err(Error::Setting {
                what: "redundant experts".into(),
                found: format!(
                    "{retained} experts and {redundant} redundant ones do not divide among {ranks} ranks"
                ),
                remedy: format!("use {} redundant experts", above - retained),
            });
        }
        Ok(Self {
            routed,
            shared,
            logical: routed,
            retained,
            physical,
            local_physical: physical / ranks,
            redundant,
        })
    }
}

/// What is known of one MoE layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerGeometry {
    /// Index of the layer in the whole model.
    pub layer: usize,
    /// Its numbers of experts.
    pub geometry: Geometry,
    /// The logical id of each retained expert; `None` if all experts are retained.
    pub retained: Option<Vec<LogicalExpert>>,
}

impl LayerGeometry {
    /// The router's id of a retained expert; `None` if there is no such expert.
    pub fn logical(&self, expert: RetainedExpert) -> Option<LogicalExpert> {
        match &self.retained {
            Some(retained) => retained.get(expert.index()).copied(),
            None => (expert.index() < self.geometry.retained).then_some(LogicalExpert(expert.0)),
        }
    }
}

/// What is known of all MoE layers of a stage: the part of [`MoeLayers`] that does not borrow the
/// model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelGeometry {
    /// Expert groups of group-limited routing; 0 for a stage without MoE layers.
    pub num_expert_groups: usize,
    /// The MoE layers in order.
    pub layers: Vec<LayerGeometry>,
}

impl ModelGeometry {
    /// The numbers that all layers have; all 0 for a stage without MoE layers.
    ///
    /// # Errors
    ///
    /// [`Error::NotUniform`] names the layers that differ from the first.
    pub fn uniform(&self) -> Result<Geometry, Error> {
        let Some(first) = self.layers.first() else {
            return Ok(Geometry::default());
        };
        let differing: Vec<usize> = self
            .layers
            .iter()
            .filter(|layer| layer.geometry != first.geometry)
            .map(|layer| layer.layer)
            .collect();
        if differing.is_empty() {
            Ok(first.geometry)
        } else {
            Err(Error::NotUniform {
                first: first.layer,
                differing,
            })
        }
    }

    /// Takes note of a new number of slots, after ranks came or went. Nothing is changed unless all
    /// layers can have it; a stage without MoE layers stays as it is.
    ///
    /// # Errors
    ///
    /// When a layer has more retained experts than `physical`, or `local_physical` is 0 or does not
    /// divide `physical`.
    pub fn update_physical_experts(
        &mut self,
        physical: usize,
        local_physical: usize,
    ) -> Result<(), Error> {
        if self.layers.is_empty() {
            return Ok(());
        }
        if local_physical == 0 || !physical.is_multiple_of(local_physical) {
            return Err(Error::Setting {
                what: "local physical experts".into(),
                found: format!("{local_physical} per rank of {physical}"),
                remedy: "every rank has the same number of slots, at least 1".into(),
            });
        }
        for layer in &self.layers {
            if physical < layer.geometry.retained {
                return Err(Error::TooFewSlots {
                    layer: layer.layer,
                    slots: physical,
                    experts: layer.geometry.retained,
                });
            }
        }
        for layer in &mut self.layers {
            layer.geometry.physical = physical;
            layer.geometry.local_physical = local_physical;
            layer.geometry.redundant = physical - layer.geometry.retained;
        }
        Ok(())
    }

    /// Loads of the retained experts, from loads of all logical ones: what substituted experts
    /// receive needs no slot.
    ///
    /// # Errors
    ///
    /// When the loads have another number of layers or of logical experts.
    pub fn retained_loads(&self, logical: &Loads) -> Result<Loads, Error> {
        if logical.layers() != self.layers.len() {
            return Err(Error::Shape {
                what: "loads".into(),
                expected: counted(self.layers.len(), "layer"),
                found: logical.layers().to_string(),
            });
        }
        let mut windows = Vec::with_capacity(logical.windows().len());
        for window in logical.windows() {
            let mut layers = Vec::with_capacity(window.len());
            for (known, loads) in self.layers.iter().zip(window) {
                if loads.len() != known.geometry.logical {
                    return Err(Error::Shape {
                        what: format!("layer {}: loads", known.layer),
                        expected: format!("{} logical experts", known.geometry.logical),
                        found: loads.len().to_string(),
                    });
                }
                let retained = (0..known.geometry.retained as u32).map(RetainedExpert);
                let load = |expert| {
                    known
                        .logical(expert)
                        .and_then(|expert| loads.get(expert.index()).copied())
                };
                layers.push(retained.filter_map(load).collect());
            }
            windows.push(layers);
        }
        Ok(Loads::from_windows(windows)?.with_scope(logical.scope()))
    }
}

/// The MoE layers of a stage, in order.
#[derive(Debug)]
pub struct MoeLayers<'a, B: MoeBlock> {
    /// The MoE blocks.
    pub moe_mlp_layers: Vec<&'a B>,
    /// The experts of each block.
    pub moe_layers: Vec<&'a B::Experts>,
    /// Groups, global layer indices and numbers of experts.
    pub geometry: ModelGeometry,
}

impl<B: MoeBlock> MoeLayers<'_, B> {
    /// Number of MoE layers.
    pub fn num_moe_layers(&self) -> usize {
        self.moe_layers.len()
    }
}

/// Collects the MoE layers among `layers`, skipping dense ones and placeholders.
///
/// Works for a target's backbone and for the shorter list of a draft. `first_layer` is the global
/// index of the first element of `layers`: 0 for a backbone (placeholders count), the number of
/// backbone layers for a DSpark draft that continues it. `n_group` is the config's entry; absent
/// (`None`) and 0 mean 1.
///
/// A stage without MoE layers is valid: every count is 0, the number of expert groups too.
///
/// ```
/// use eplb::{DecoderLayer, FeedForward, Geometry, MoeBlock, collect_moe_layers};
///
/// struct Block { experts: Vec<f32>, geometry: Geometry }
/// impl MoeBlock for Block {
///     type Experts = Vec<f32>;
///     fn experts(&self) -> &Vec<f32> { &self.experts }
///     fn geometry(&self) -> Geometry { self.geometry }
/// }
/// enum Layer { Elsewhere, Dense, Sparse(Block) }
/// impl DecoderLayer for Layer {
///     type Moe = Block;
///     fn feed_forward(&self) -> FeedForward<'_, Block> {
///         match self {
///             Layer::Elsewhere => FeedForward::Placeholder,
///             Layer::Dense => FeedForward::Dense,
///             Layer::Sparse(block) => FeedForward::Moe(block),
///         }
///     }
/// }
///
/// let block = Block { experts: vec![], geometry: Geometry::new(256, 1, 32, 32)? };
/// let layers = [Layer::Elsewhere, Layer::Dense, Layer::Sparse(block)];
/// let collected = collect_moe_layers(&layers, 0, Some(8));
/// assert_eq!(collected.geometry.layers[0].layer, 2);
/// assert_eq!(collected.geometry.uniform()?.local_physical, 9);
/// # Ok::<(), eplb::Error>(())
/// ```
pub fn collect_moe_layers<'a, L: DecoderLayer + 'a>(
    layers: impl IntoIterator<Item = &'a L>,
    first_layer: usize,
    n_group: Option<usize>,
) -> MoeLayers<'a, L::Moe> {
    let mut collected = MoeLayers {
        moe_mlp_layers: Vec::new(),
        moe_layers: Vec::new(),
        geometry: ModelGeometry::default(),
    };
    for (index, layer) in layers.into_iter().enumerate() {
        let FeedForward::Moe(block) = layer.feed_forward() else {
            continue;
        };
        collected.moe_mlp_layers.push(block);
        collected.moe_layers.push(block.experts());
        collected.geometry.layers.push(LayerGeometry {
            layer: first_layer + index,
            geometry: block.geometry(),
            retained: block.retained_experts(),
        });
    }
    if !collected.moe_layers.is_empty() {
        collected.geometry.num_expert_groups = n_group.unwrap_or(1).max(1);
    }
    collected
}

/// The `n_group` of a `config.json`: absent, null and 0 mean 1.
///
/// # Errors
///
/// When it is there and is not a number of groups.
pub fn expert_groups(config: &serde_json::Value) -> Result<usize, Error> {
    match config.get("n_group") {
        None | Some(serde_json::Value::Null) => Ok(1),
        Some(value) => {
            let groups = value
                .as_u64()
                .and_then(|groups| usize::try_from(groups).ok());
            groups
                .map(|groups| groups.max(1))
                .ok_or_else(|| Error::Format {
                    field: "n_group".into(),
                    problem: format!("expected a number of expert groups, found {value}"),
                })
        }
    }
}
