//! Which expert every slot holds, in both directions.

use std::sync::Arc;

use crate::error::Error;
use crate::index::{RetainedExpert, Slot};
use crate::wording::{counted, shape};

/// What a slot holds that holds nothing: a slot of a dead rank.
pub(crate) const EMPTY: u32 = u32::MAX;

/// Limits of a layer, far above any model. A typing error ends here, not in an allocation.
const MOST_SLOTS: usize = 1 << 20;
const MOST_EXPERTS: usize = 1 << 16;

/// First slot of each rank, and the end: with slots that do not divide, the first ranks have one
/// more.
pub(crate) fn rank_offsets(slots: usize, ranks: usize) -> Arc<[u32]> {
    let (each, more) = (slots / ranks, slots % ranks);
    (0..=ranks)
        .map(|rank| (rank * each + rank.min(more)) as u32)
        .collect()
}

/// The placement of one layer.
///
/// Both maps are kept, compactly: the logical-to-physical map is a list per expert that is as long
/// as the expert has replicas, never a table padded to the largest number of replicas.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerPlacement {
    offsets: Arc<[u32]>,
    slots: Vec<u32>,
    replica_offsets: Vec<u32>,
    replicas: Vec<u32>,
}

impl LayerPlacement {
    /// Takes the expert of each slot (`None` for the slots of dead ranks) and derives the other
    /// map.
    ///
    /// # Errors
    ///
    /// When there are no ranks, or a slot names an expert that is not below `experts`. Whether
    /// every expert has a replica is checked by [`Placement::validate`](Placement::validate).
    pub fn new(
        layer: usize,
        slots: &[Option<RetainedExpert>],
        experts: usize,
        ranks: usize,
    ) -> Result<Self, Error> {
        if ranks == 0 {
            return Err(Error::Empty {
                what: "ranks".into(),
            });
        }
        check_slots_limit(slots.len())?;
        check_experts_limit(experts)?;
        limit("ranks", ranks, MOST_SLOTS)?;
        for (slot, expert) in slots.iter().enumerate() {
            if let Some(expert) = expert.filter(|expert| expert.index() >= experts) {
                return Err(Error::UnknownExpert {
                    layer,
                    slot,
                    expert: expert.index(),
                    experts,
                });
            }
        }
        let slots: Vec<u32> = slots
            .iter()
            .map(|expert| expert.map_or(EMPTY, |expert| expert.0))
            .collect();
        Ok(Self::from_checked(
            rank_offsets(slots.len(), ranks),
            slots,
            experts,
        ))
    }

    /// Takes both maps as they are. They are compared by
    /// [`Placement::validate`](Placement::validate).
    ///
    /// # Errors
    ///
    /// As [`LayerPlacement::new`].
    pub fn from_maps(
        layer: usize,
        slots: &[Option<RetainedExpert>],
        replicas: &[Vec<Slot>],
        ranks: usize,
    ) -> Result<Self, Error> {
        let mut placement = Self::new(layer, slots, replicas.len(), ranks)?;
        limit(
            "replicas of a layer",
            replicas.iter().map(Vec::len).sum(),
            MOST_SLOTS,
        )?;
        placement.replicas.clear();
        placement.replica_offsets.clear();
        placement.replica_offsets.push(0);
        for slots in replicas {
            placement.replicas.extend(slots.iter().map(|slot| slot.0));
            placement
                .replica_offsets
                .push(placement.replicas.len() as u32);
        }
        Ok(placement)
    }

    /// Every entry must be `EMPTY` or below `experts`.
    pub(crate) fn from_checked(offsets: Arc<[u32]>, slots: Vec<u32>, experts: usize) -> Self {
        let mut replica_offsets = vec![0_u32; experts + 1];
        for expert in slots.iter().filter(|expert| **expert != EMPTY) {
            replica_offsets[*expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            replica_offsets[expert + 1] += replica_offsets[expert];
        }
        let mut next = replica_offsets.clone();
        let mut replicas = vec![0; replica_offsets[experts] as usize];
        for (slot, expert) in slots.iter().enumerate() {
            if *expert != EMPTY {
                let place = &mut next[*expert as usize];
                replicas[*place as usize] = slot as u32;
                *place += 1;
            }
        }
        Self {
            offsets,
            slots,
            replica_offsets,
            replicas,
        }
    }

    /// Number of ranks, dead ones included.
    pub fn ranks(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.replica_offsets.len() - 1
    }

    /// The expert of a slot; `None` for an empty slot or one that does not exist.
    pub fn expert(&self, slot: Slot) -> Option<RetainedExpert> {
        self.slots
            .get(slot.index())
            .filter(|expert| **expert != EMPTY)
            .map(|expert| RetainedExpert(*expert))
    }

    /// The experts of a rank's slots, `None` for empty ones. Nothing for a rank that does not
    /// exist.
    pub fn rank(&self, rank: usize) -> impl Iterator<Item = Option<RetainedExpert>> + '_ {
        let range = if rank < self.ranks() {
            self.range(rank)
        } else {
            0..0
        };
        self.slots[range]
            .iter()
            .map(|expert| (*expert != EMPTY).then_some(RetainedExpert(*expert)))
    }

    /// The slots of a rank, as a range.
    pub(crate) fn range(&self, rank: usize) -> std::ops::Range<usize> {
        self.offsets[rank] as usize..self.offsets[rank + 1] as usize
    }

    /// The rank that a slot belongs to; `None` for one that does not exist.
    pub fn rank_of(&self, slot: Slot) -> Option<usize> {
        (slot.index() < self.slots.len())
            .then(|| self.offsets.partition_point(|first| *first <= slot.0) - 1)
    }

    /// The slots that hold an expert, in ascending order. None for an expert that does not exist.
    pub fn replicas(&self, expert: RetainedExpert) -> impl ExactSizeIterator<Item = Slot> + '_ {
        self.replica_slots(expert.index())
            .iter()
            .map(|slot| Slot(*slot))
    }

    pub(crate) fn replica_slots(&self, expert: usize) -> &[u32] {
        if expert >= self.experts() {
            return &[];
        }
        let range =
            self.replica_offsets[expert] as usize..self.replica_offsets[expert + 1] as usize;
        self.replicas.get(range).unwrap_or(&[])
    }

    /// Number of replicas of an expert.
    pub fn count(&self, expert: RetainedExpert) -> usize {
        self.replica_slots(expert.index()).len()
    }

    pub(crate) fn raw(&self) -> &[u32] {
        &self.slots
    }

    pub(crate) fn listed_replicas(&self) -> usize {
        self.replicas.len()
    }

    /// What is left when the ranks that are not live are gone; `None` if an expert is not.
    pub(crate) fn survivors(&self, live: &[bool]) -> Option<Self> {
        let mut slots = self.slots.clone();
        for rank in (0..self.ranks()).filter(|rank| !live[*rank]) {
            slots[self.range(rank)].fill(EMPTY);
        }
        let left = Self::from_checked(Arc::clone(&self.offsets), slots, self.experts());
        (0..left.experts())
            .all(|expert| !left.replica_slots(expert).is_empty())
            .then_some(left)
    }

    /// Experts, slots and ranks, for messages.
    pub(crate) fn shape(&self) -> String {
        shape(self.experts(), self.slots(), self.ranks())
    }

    pub(crate) fn same_shape(&self, offsets: &[u32], experts: usize) -> bool {
        *self.offsets == *offsets && self.experts() == experts
    }

    /// Loads of the experts from loads counted per slot.
    ///
    /// # Errors
    ///
    /// When there is not one count per slot, or an empty slot has a count.
    pub fn logical_counts(&self, layer: usize, counts: &[u64]) -> Result<Vec<u64>, Error> {
        if counts.len() != self.slots() {
            return Err(Error::Shape {
                what: format!("layer {layer}: counts"),
                expected: format!("{}, one per slot", counted(self.slots(), "entry")),
                found: counts.len().to_string(),
            });
        }
        let mut out = vec![0_u64; self.experts()];
        for (slot, (expert, count)) in self.slots.iter().zip(counts).enumerate() {
            if *expert != EMPTY {
                out[*expert as usize] = out[*expert as usize].saturating_add(*count);
            } else if *count > 0 {
                return Err(Error::Setting {
                    what: format!("layer {layer}, slot {slot}"),
                    found: format!("an empty slot has a load of {count}"),
                    remedy: "use the placement that the load was counted with".into(),
                });
            }
        }
        Ok(out)
    }

    /// Time of each rank: the sum of `load / replicas` over its slots, divided by its speed. Shape
    /// `[ranks]`.
    pub(crate) fn rank_times(&self, weights: &[f64], speeds: &[f64]) -> Vec<f64> {
        let shares: Vec<f64> = weights
            .iter()
            .enumerate()
            .map(|(expert, weight)| weight / self.replica_slots(expert).len().max(1) as f64)
            .collect();
        (0..self.ranks())
            .map(|rank| {
                let slots = &self.slots[self.range(rank)];
                let load: f64 = slots
                    .iter()
                    .filter(|expert| **expert != EMPTY)
                    .map(|expert| shares[*expert as usize])
                    .sum();
                load / speeds[rank]
            })
            .collect()
    }
}

pub(crate) fn check_slots_limit(slots: usize) -> Result<(), Error> {
    limit("slots of a layer", slots, MOST_SLOTS)
}

pub(crate) fn check_experts_limit(experts: usize) -> Result<(), Error> {
    limit("experts of a layer", experts, MOST_EXPERTS)
}

fn limit(what: &'static str, value: usize, limit: usize) -> Result<(), Error> {
    if value > limit {
        return Err(Error::Limit { what, value, limit });
    }
    Ok(())
}

/// The placement of every layer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Placement {
    layers: Vec<LayerPlacement>,
}

impl Placement {
    /// Puts layers together.
    pub fn new(layers: Vec<LayerPlacement>) -> Self {
        Self { layers }
    }

    /// Takes the map from slots to experts of every layer, `[layers][slots]`.
    ///
    /// # Errors
    ///
    /// When there are no ranks, `experts` has not one entry per layer, or a slot names an expert
    /// that does not exist.
    pub fn from_physical_to_logical(
        map: &[Vec<Option<RetainedExpert>>],
        experts: &[usize],
        ranks: usize,
    ) -> Result<Self, Error> {
        if map.len() != experts.len() {
            return Err(Error::Shape {
                what: "physical_to_logical_map".into(),
                expected: counted(experts.len(), "layer"),
                found: map.len().to_string(),
            });
        }
        let layers = map.iter().zip(experts).enumerate();
        layers
            .map(|(layer, (slots, experts))| LayerPlacement::new(layer, slots, *experts, ranks))
            .collect::<Result<_, _>>()
            .map(Self::new)
    }

    /// The layers.
    pub fn layers(&self) -> &[LayerPlacement] {
        &self.layers
    }

    /// `[layers][slots]`, the expert of each slot, -1 for an empty one.
    pub fn physical_to_logical_map(&self) -> Vec<Vec<i64>> {
        let entry = |expert: &u32| {
            if *expert == EMPTY {
                -1
            } else {
                i64::from(*expert)
            }
        };
        self.layers
            .iter()
            .map(|layer| layer.slots.iter().map(entry).collect())
            .collect()
    }

    /// `[layers][experts][replicas]`, the slots of each expert.
    pub fn logical_to_physical_map(&self) -> Vec<Vec<Vec<u32>>> {
        self.layers
            .iter()
            .map(|layer| {
                (0..layer.experts())
                    .map(|expert| layer.replica_slots(expert).to_vec())
                    .collect()
            })
            .collect()
    }

    /// `[layers][experts]`, the number of replicas.
    pub fn logical_count(&self) -> Vec<Vec<usize>> {
        self.layers
            .iter()
            .map(|layer| {
                (0..layer.experts())
                    .map(|expert| layer.replica_slots(expert).len())
                    .collect()
            })
            .collect()
    }
}
