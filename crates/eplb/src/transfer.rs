//! From one placement to the next: who copies what from whom, and when.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::placement::{EMPTY, LayerPlacement, Placement};
use crate::wording::counted;

/// A copy within a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalCopy {
    /// The expert.
    pub expert: usize,
    /// The rank.
    pub rank: usize,
    /// The slot that holds it before.
    pub from_slot: usize,
    /// The slot that holds it after.
    pub to_slot: usize,
}

/// A copy from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The expert.
    pub expert: usize,
    /// The rank that sends.
    pub from_rank: usize,
    /// The slot that it sends from.
    pub from_slot: usize,
    /// The rank that receives.
    pub to_rank: usize,
    /// The slots that it goes to: one, or more where a placement has an expert more than once on a
    /// rank.
    pub to_slots: Vec<usize>,
}

/// An expert that no live rank holds: it is read from the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reload {
    /// The expert.
    pub expert: usize,
    /// The rank that reads it.
    pub rank: usize,
    /// The slots that it goes to.
    pub to_slots: Vec<usize>,
}

/// One layer's exchange.
///
/// Everything is read from the slots as they were *before* the exchange and staged, and written
/// when all batches are through: a slot may be overwritten whose expert a later batch still sends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerSchedule {
    /// Copies within ranks; they come first and need no network.
    pub local: Vec<LocalCopy>,
    /// Transfers between ranks; in each batch, every rank talks to at most one peer.
    pub batches: Vec<Vec<Transfer>>,
    /// Experts from the checkpoint.
    pub reloads: Vec<Reload>,
}

/// The exchange of every layer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Schedule {
    /// One per layer, also where nothing is exchanged.
    pub layers: Vec<LayerSchedule>,
}

impl Schedule {
    /// Plans the exchange from `current` to `next`. Experts that no live rank holds are reloaded if
    /// `reload` allows it.
    ///
    /// The source of a transfer is a live rank that holds the expert: on the same node if there is
    /// one, then the one that sends least in this layer so far, then the lowest.
    ///
    /// # Errors
    ///
    /// When the placements differ in shape, or are not of these ranks, or an expert has no source
    /// and reloading is not allowed.
    pub fn new(
        current: &Placement,
        next: &Placement,
        cluster: &Cluster,
        reload: bool,
    ) -> Result<Self, Error> {
        if current.layers().len() != next.layers().len() {
            return Err(Error::Shape {
                what: "next placement".into(),
                expected: format!(
                    "{}, as the current one",
                    counted(current.layers().len(), "layer")
                ),
                found: next.layers().len().to_string(),
            });
        }
        let mut layers = Vec::with_capacity(next.layers().len());
        for (layer, (current, next)) in current.layers().iter().zip(next.layers()).enumerate() {
            if current.shape() != next.shape() || next.ranks() != cluster.ranks() {
                return Err(Error::Shape {
                    what: format!(
                        "layer {layer} of the next placement, on {}",
                        counted(cluster.ranks(), "rank")
                    ),
                    expected: current.shape(),
                    found: next.shape(),
                });
            }
            layers.push(schedule(layer, current, next, cluster, reload)?);
        }
        Ok(Self { layers })
    }

    /// Number of transfers between ranks.
    pub fn transfers(&self) -> usize {
        self.layers
            .iter()
            .flat_map(|layer| &layer.batches)
            .map(Vec::len)
            .sum()
    }
}

fn schedule(
    layer: usize,
    current: &LayerPlacement,
    next: &LayerPlacement,
    cluster: &Cluster,
    reload: bool,
) -> Result<LayerSchedule, Error> {
    let mut out = LayerSchedule::default();
    let mut sends = vec![0_usize; next.ranks()];
    let mut transfers = Vec::new();
    for rank in 0..next.ranks() {
        let before = &current.raw()[current.range(rank)];
        let usable = cluster.live()[rank];
        // Slots of this rank that each arriving expert goes to, by expert.
        let mut arriving: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, slot) in next.range(rank).enumerate() {
            let expert = next.raw()[slot];
            if expert == EMPTY || before[place] == expert {
                continue;
            }
            match before
                .iter()
                .position(|held| *held == expert)
                .filter(|_| usable)
            {
                Some(from) => out.local.push(LocalCopy {
                    expert: expert as usize,
                    rank,
                    from_slot: current.range(rank).start + from,
                    to_slot: slot,
                }),
                None => arriving.entry(expert).or_default().push(slot),
            }
        }
        for (expert, to_slots) in arriving {
            let holders = current
                .replica_slots(expert as usize)
                .iter()
                .filter_map(|slot| {
                    let holder = current.rank_of(crate::index::Slot(*slot))?;
                    (cluster.live()[holder] && holder != rank).then_some((holder, *slot as usize))
                });
            let source = holders.min_by_key(|(holder, slot)| {
                (
                    cluster.node_of(*holder) != cluster.node_of(rank),
                    sends[*holder],
                    *holder,
                    *slot,
                )
            });
            let expert = expert as usize;
            match source {
                Some((from_rank, from_slot)) => {
                    sends[from_rank] += 1;
                    transfers.push(Transfer {
                        expert,
                        from_rank,
                        from_slot,
                        to_rank: rank,
                        to_slots,
                    });
                }
                None if reload => out.reloads.push(Reload {
                    expert,
                    rank,
                    to_slots,
                }),
                None => {
                    return Err(Error::NoSource {
                        layer,
                        expert,
                        rank,
                    });
                }
            }
        }
    }
    out.batches = batches(transfers, next.ranks());
    Ok(out)
}

/// Colours the graph of pairs that talk, the pair with most transfers first: each colour is a
/// batch. (Any greedy colouring needs fewer than twice as many batches as the busiest rank has
/// peers.)
fn batches(transfers: Vec<Transfer>, ranks: usize) -> Vec<Vec<Transfer>> {
    let mut pairs: BTreeMap<(usize, usize), Vec<Transfer>> = BTreeMap::new();
    for transfer in transfers {
        let pair = (
            transfer.from_rank.min(transfer.to_rank),
            transfer.from_rank.max(transfer.to_rank),
        );
        pairs.entry(pair).or_default().push(transfer);
    }
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by_key(|(pair, transfers)| (std::cmp::Reverse(transfers.len()), *pair));
    let mut busy: Vec<Vec<bool>> = Vec::new();
    let mut out: Vec<Vec<Transfer>> = Vec::new();
    for ((left, right), transfers) in pairs {
        let free = busy.iter().position(|busy| !busy[left] && !busy[right]);
        let batch = free.unwrap_or_else(|| {
            busy.push(vec![false; ranks]);
            out.push(Vec::new());
            out.len() - 1
        });
        busy[batch][left] = true;
        busy[batch][right] = true;
        out[batch].extend(transfers);
    }
    out
}
