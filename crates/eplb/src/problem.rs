//! What a planner is asked: loads, ranks, slots, groups, and the placement that is there now.

use std::sync::Arc;

use crate::bound::{LowerBound, Room, assign_groups};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::load::{Loads, Summary};
use crate::placement::{Placement, check_experts_limit, check_slots_limit, rank_offsets};
use crate::wording::{counted, shape};

/// How many slots the layers have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slots {
    /// Every layer has as many.
    Same(usize),
    /// A number for each layer.
    PerLayer(Vec<usize>),
}

/// One layer of a problem.
#[derive(Debug, Clone)]
pub(crate) struct LayerProblem {
    pub(crate) weights: Vec<f64>,
    /// First slot of each rank, and the end.
    pub(crate) offsets: Arc<[u32]>,
    pub(crate) bound: LowerBound,
    /// Node of each expert group, when groups are kept on nodes.
    pub(crate) group_nodes: Option<Vec<usize>>,
    /// Why groups that would divide by the nodes are not kept on nodes.
    pub(crate) not_hierarchical: Option<String>,
    pub(crate) zero: bool,
}

/// A checked input, the same for all planners.
#[derive(Debug, Clone)]
pub struct Problem {
    pub(crate) loads: Loads,
    pub(crate) cluster: Cluster,
    pub(crate) groups: usize,
    pub(crate) summary: Summary,
    pub(crate) current: Option<Placement>,
    pub(crate) expert_bytes: Vec<u64>,
    pub(crate) reload: bool,
    pub(crate) layers: Vec<LayerProblem>,
}

/// Collects the parts of a [`Problem`].
#[derive(Debug, Clone)]
pub struct ProblemBuilder {
    loads: Loads,
    cluster: Cluster,
    slots: Slots,
    groups: usize,
    uneven: bool,
    summary: Summary,
    current: Option<Placement>,
    expert_bytes: Vec<u64>,
    reload: bool,
}

impl ProblemBuilder {
    /// Expert groups: contiguous, equal parts of a layer's experts that group-limited routing keeps
    /// together. Where they divide by the nodes, each group stays on one node. 1 by default; 0
    /// means 1.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups.max(1);
        self
    }

    /// Allows slots that are not a multiple of the ranks: the first ranks get one more.
    #[must_use]
    pub fn uneven(mut self, uneven: bool) -> Self {
        self.uneven = uneven;
        self
    }

    /// How several windows become one load per expert.
    #[must_use]
    pub fn summary(mut self, summary: Summary) -> Self {
        self.summary = summary;
        self
    }

    /// The placement that is there now: moves are counted from it.
    #[must_use]
    pub fn current(mut self, placement: Placement) -> Self {
        self.current = Some(placement);
        self
    }

    /// Bytes of one expert, the same in every layer; 0 by default.
    #[must_use]
    pub fn expert_bytes(mut self, bytes: u64) -> Self {
        self.expert_bytes = vec![bytes; self.loads.layers()];
        self
    }

    /// Bytes of one expert of each layer.
    #[must_use]
    pub fn expert_bytes_per_layer(mut self, bytes: Vec<u64>) -> Self {
        self.expert_bytes = bytes;
        self
    }

    /// Allows experts that no live rank holds to come from the checkpoint. Off by default: such a
    /// move is an error.
    #[must_use]
    pub fn reload(mut self, reload: bool) -> Self {
        self.reload = reload;
        self
    }

    /// Checks the parts against each other.
    ///
    /// # Errors
    ///
    /// When slots, groups, bytes or the current placement do not fit the loads and ranks; see
    /// [`Error`].
    pub fn build(self) -> Result<Problem, Error> {
        let count = self.loads.layers();
        let slots = match self.slots {
            Slots::Same(slots) => vec![slots; count],
            Slots::PerLayer(slots) => slots,
        };
        for (what, found) in [
            ("slots", slots.len()),
            ("expert bytes", self.expert_bytes.len()),
        ] {
            if found != count {
                return Err(Error::Shape {
                    what: what.into(),
                    expected: format!("{}, one per layer", counted(count, "entry")),
                    found: found.to_string(),
                });
            }
        }
        if let Some(current) = self
            .current
            .as_ref()
            .filter(|current| current.layers().len() != count)
        {
            return Err(Error::CurrentShape {
                place: "current placement".into(),
                expected: format!("{}, as the loads", counted(count, "layer")),
                found: current.layers().len().to_string(),
            });
        }
        let weights = self.loads.summarize(self.summary)?;
        let mut layers = Vec::with_capacity(count);
        let mut offsets: Arc<[u32]> = Arc::new([]);
        for (layer, (weights, slots)) in weights.into_iter().zip(slots).enumerate() {
            check_slots(layer, weights.len(), slots, &self.cluster, self.uneven)?;
            // Layers of the same shape share their offsets.
            if offsets.last() != Some(&(slots as u32)) {
                offsets = rank_offsets(slots, self.cluster.ranks());
            }
            if !weights.len().is_multiple_of(self.groups) {
                return Err(Error::Groups {
                    layer,
                    experts: weights.len(),
                    groups: self.groups,
                });
            }
            if let Some(current) = &self.current {
                check_current(layer, current, &offsets, weights.len())?;
            }
            layers.push(layer_problem(weights, &offsets, self.groups, &self.cluster));
        }
        Ok(Problem {
            loads: self.loads,
            cluster: self.cluster,
            groups: self.groups,
            summary: self.summary,
            current: self.current,
            expert_bytes: self.expert_bytes,
            reload: self.reload,
            layers,
        })
    }
}

impl Problem {
    /// Starts a problem: which loads go on which ranks with how many slots.
    pub fn builder(loads: Loads, cluster: Cluster, slots: Slots) -> ProblemBuilder {
        let expert_bytes = vec![0; loads.layers()];
        ProblemBuilder {
            loads,
            cluster,
            slots,
            groups: 1,
            uneven: false,
            summary: Summary::Mean,
            current: None,
            expert_bytes,
            reload: false,
        }
    }

    /// The loads.
    pub fn loads(&self) -> &Loads {
        &self.loads
    }

    /// The ranks.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Expert groups.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// How windows become one load.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// The placement that is there now.
    pub fn current(&self) -> Option<&Placement> {
        self.current.as_ref()
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers.len()
    }

    /// The load of each expert of a layer that plans are made for, or `None` past the last layer.
    pub fn weights(&self, layer: usize) -> Option<&[f64]> {
        self.layers.get(layer).map(|layer| layer.weights.as_slice())
    }

    /// The lower bound of a layer, or `None` past the last layer.
    pub fn lower_bound(&self, layer: usize) -> Option<LowerBound> {
        self.layers.get(layer).map(|layer| layer.bound)
    }

    /// Whether a layer's expert groups are kept on nodes: there are several nodes, they divide the
    /// groups, and each has room.
    pub fn hierarchical(&self, layer: usize) -> bool {
        self.layers
            .get(layer)
            .is_some_and(|layer| layer.group_nodes.is_some())
    }

    /// Experts that a rank of this layer can choose from.
    pub(crate) fn choice(&self, layer: usize) -> usize {
        let experts = self.layers[layer].weights.len();
        if self.layers[layer].group_nodes.is_some() {
            experts / self.cluster.nodes()
        } else {
            experts
        }
    }

    /// Slots of a rank that can be used: none if it is dead.
    pub(crate) fn capacity(&self, layer: usize, rank: usize) -> usize {
        let offsets = &self.layers[layer].offsets;
        if self.cluster.live()[rank] {
            (offsets[rank + 1] - offsets[rank]) as usize
        } else {
            0
        }
    }

    pub(crate) fn current_layer(&self, layer: usize) -> Option<&crate::placement::LayerPlacement> {
        self.current
            .as_ref()
            .map(|current| &current.layers()[layer])
    }
}

fn check_slots(
    layer: usize,
    experts: usize,
    slots: usize,
    cluster: &Cluster,
    uneven: bool,
) -> Result<(), Error> {
    check_experts_limit(experts)?;
    check_slots_limit(slots)?;
    let ranks = cluster.ranks();
    if slots < experts {
        return Err(Error::TooFewSlots {
            layer,
            slots,
            experts,
        });
    }
    if !uneven && !slots.is_multiple_of(ranks) {
        let below = slots / ranks * ranks;
        let above = below + ranks;
        let nearest = if below >= experts.max(1) {
            format!("{below} or {above}")
        } else {
            above.to_string()
        };
        return Err(Error::UnevenSlots {
            layer,
            slots,
            ranks,
            nearest,
        });
    }
    let offsets = rank_offsets(slots, ranks);
    let live = (0..ranks)
        .filter(|rank| cluster.live()[*rank])
        .map(|rank| (offsets[rank + 1] - offsets[rank]) as usize)
        .sum::<usize>();
    if live < experts {
        return Err(Error::TooFewSlots {
            layer,
            slots: live,
            experts,
        });
    }
    Ok(())
}

fn check_current(
    layer: usize,
    current: &Placement,
    offsets: &[u32],
    experts: usize,
) -> Result<(), Error> {
    let found = &current.layers()[layer];
    if found.same_shape(offsets, experts) {
        return Ok(());
    }
    Err(Error::CurrentShape {
        place: format!("layer {layer} of the current placement"),
        expected: shape(
            experts,
            offsets[offsets.len() - 1] as usize,
            offsets.len() - 1,
        ),
        found: found.shape(),
    })
}

fn layer_problem(
    weights: Vec<f64>,
    offsets: &Arc<[u32]>,
    groups: usize,
    cluster: &Cluster,
) -> LayerProblem {
    let nodes = cluster.nodes();
    let per_node = cluster.ranks_per_node();
    let room = |ranks: std::ops::Range<usize>| {
        let mut room = Room {
            slots: 0,
            ranks: 0,
            speed: 0.0,
            fastest: 0.0,
        };
        for rank in ranks.filter(|rank| cluster.live()[*rank]) {
            let capacity = (offsets[rank + 1] - offsets[rank]) as usize;
            if capacity > 0 {
                room.slots += capacity;
                room.ranks += 1;
                room.speed += cluster.speeds()[rank];
                room.fastest = f64::max(room.fastest, cluster.speeds()[rank]);
            }
        }
        room
    };
    let mut not_hierarchical = None;
    let mut group_nodes = None;
    let mut bound = None;
    if nodes > 1 && groups > 1 {
        if !groups.is_multiple_of(nodes) {
            not_hierarchical = Some(format!(
                "{groups} expert groups do not divide by {nodes} nodes, so experts go to any node"
            ));
        } else {
            let rooms: Vec<Room> = (0..nodes)
                .map(|node| room(node * per_node..(node + 1) * per_node))
                .collect();
            let own = weights.len() / nodes;
            if let Some(node) = rooms.iter().position(|room| room.slots < own) {
                not_hierarchical = Some(format!(
                    "node {node} has {} for the {} of its groups, so experts go to any node",
                    counted(rooms[node].slots, "live slot"),
                    counted(own, "expert")
                ));
            } else {
                let (assignment, node_bound) = assign_groups(&weights, groups, &rooms);
                group_nodes = Some(assignment);
                bound = Some(node_bound);
            }
        }
    }
    let bound = bound.unwrap_or_else(|| room(0..cluster.ranks()).bound(&weights));
    let zero = weights.iter().all(|weight| *weight == 0.0);
    LayerProblem {
        weights,
        offsets: Arc::clone(offsets),
        bound,
        group_nodes,
        not_hierarchical,
        zero,
    }
}
