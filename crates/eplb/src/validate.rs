//! The checks that every placement passes before it leaves this crate.

use crate::error::Error;
use crate::placement::{EMPTY, LayerPlacement, Placement};
use crate::problem::Problem;
use crate::wording::{counted, shape};
use serde::{Deserialize, Serialize};

/// What to do about an expert that is twice on a rank although the rank's slots could be filled
/// without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Duplicates {
    /// It is an error.
    Refuse,
    /// It is listed. For the published DeepSeek algorithm, which may do it.
    Report,
}

/// An expert that a rank holds more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Duplicate {
    /// The layer.
    pub layer: usize,
    /// The rank.
    pub rank: usize,
    /// The expert.
    pub expert: usize,
    /// How often the rank holds it.
    pub times: usize,
}

impl Placement {
    /// Checks this placement as an answer to `problem`, and lists the experts that are more than
    /// once on a rank.
    ///
    /// Duplicates are only refused where they can be avoided: not on a rank with more slots than
    /// there are experts for it.
    ///
    /// # Errors
    ///
    /// When the shape is not the problem's; a live slot is empty or a dead one used; there are more
    /// replicas than slots; the two maps are not inverse to each other; an expert has no replica; a
    /// rank holds an expert twice (with [`Duplicates::Refuse`]); or an expert arrives on a rank
    /// while no live rank holds it now (unless reloading is allowed).
    pub fn validate(
        &self,
        problem: &Problem,
        duplicates: Duplicates,
    ) -> Result<Vec<Duplicate>, Error> {
        if self.layers().len() != problem.layers() {
            return Err(Error::Shape {
                what: "placement".into(),
                expected: counted(problem.layers(), "layer"),
                found: self.layers().len().to_string(),
            });
        }
        let mut found = Vec::new();
        for (layer, placement) in self.layers().iter().enumerate() {
            check_shape(problem, layer, placement)?;
            check_maps(layer, placement)?;
            check_covered(layer, placement)?;
            check_duplicates(problem, layer, placement, duplicates, &mut found)?;
            check_sources(problem, layer, placement)?;
        }
        Ok(found)
    }

    /// Checks that the two maps are inverse to each other, whatever the problem. A placement that
    /// is in use may be wrong in other ways: ranks have died, experts are gone with them.
    ///
    /// # Errors
    ///
    /// When more replicas are listed than there are slots, or a slot and the list of its expert
    /// disagree.
    pub fn check_maps(&self) -> Result<(), Error> {
        let mut layers = self.layers().iter().enumerate();
        layers.try_for_each(|(layer, placement)| check_maps(layer, placement))
    }
}

fn check_shape(problem: &Problem, layer: usize, placement: &LayerPlacement) -> Result<(), Error> {
    let expected = &problem.layers[layer];
    if !placement.same_shape(&expected.offsets, expected.weights.len()) {
        return Err(Error::Shape {
            what: format!("layer {layer} of the placement"),
            expected: shape(
                expected.weights.len(),
                expected.offsets[expected.offsets.len() - 1] as usize,
                expected.offsets.len() - 1,
            ),
            found: placement.shape(),
        });
    }
    for (rank, &live) in problem.cluster.live().iter().enumerate() {
        for slot in placement.range(rank) {
            if live == (placement.raw()[slot] == EMPTY) {
                let (found, expected) = if live {
                    ("is empty", "every slot of a live rank holds an expert")
                } else {
                    (
                        "holds an expert",
                        "the slots of a rank that is not live stay empty",
                    )
                };
                return Err(Error::SlotUse {
                    layer,
                    rank,
                    slot,
                    found,
                    expected,
                });
            }
        }
    }
    Ok(())
}

fn check_maps(layer: usize, placement: &LayerPlacement) -> Result<(), Error> {
    let slots = placement.raw();
    if placement.listed_replicas() > slots.len() {
        return Err(Error::TooManyReplicas {
            layer,
            replicas: placement.listed_replicas(),
            slots: slots.len(),
        });
    }
    let mut listed = vec![EMPTY; slots.len()];
    for expert in 0..placement.experts() {
        for &slot in placement.replica_slots(expert) {
            let slot = slot as usize;
            let held = slots.get(slot).copied();
            if held != Some(expert as u32) || listed[slot] != EMPTY {
                let holds = match held {
                    None => "does not exist".into(),
                    Some(EMPTY) => "is empty".to_owned(),
                    Some(held) if held == expert as u32 => "is listed twice".into(),
                    Some(held) => format!("holds expert {held}"),
                };
                return Err(Error::NotInverse {
                    layer,
                    slot,
                    detail: format!("expert {expert} is listed in the slot, which {holds}"),
                });
            }
            listed[slot] = expert as u32;
        }
    }
    if let Some(slot) = (0..slots.len()).find(|slot| listed[*slot] != slots[*slot]) {
        return Err(Error::NotInverse {
            layer,
            slot,
            detail: format!(
                "the slot holds expert {}, whose replicas do not list it",
                slots[slot]
            ),
        });
    }
    Ok(())
}

fn check_covered(layer: usize, placement: &LayerPlacement) -> Result<(), Error> {
    let uncovered =
        (0..placement.experts()).find(|expert| placement.replica_slots(*expert).is_empty());
    match uncovered {
        Some(expert) => Err(Error::Uncovered { layer, expert }),
        None => Ok(()),
    }
}

fn check_duplicates(
    problem: &Problem,
    layer: usize,
    placement: &LayerPlacement,
    duplicates: Duplicates,
    found: &mut Vec<Duplicate>,
) -> Result<(), Error> {
    // The last rank that each expert was seen on, and seen twice on.
    let mut seen_on = vec![u32::MAX; placement.experts()];
    let mut twice_on = seen_on.clone();
    for rank in 0..placement.ranks() {
        let slots = &placement.raw()[placement.range(rank)];
        for &expert in slots.iter().filter(|expert| **expert != EMPTY) {
            let index = expert as usize;
            if seen_on[index] != rank as u32 {
                seen_on[index] = rank as u32;
                continue;
            }
            if twice_on[index] == rank as u32 {
                continue;
            }
            twice_on[index] = rank as u32;
            let times = slots.iter().filter(|other| **other == expert).count();
            if duplicates == Duplicates::Refuse && slots.len() <= problem.choice(layer) {
                return Err(Error::Duplicate {
                    layer,
                    rank,
                    expert: index,
                    times,
                });
            }
            found.push(Duplicate {
                layer,
                rank,
                expert: index,
                times,
            });
        }
    }
    Ok(())
}

fn check_sources(problem: &Problem, layer: usize, placement: &LayerPlacement) -> Result<(), Error> {
    let Some(current) = problem.current_layer(layer).filter(|_| !problem.reload) else {
        return Ok(());
    };
    let live = problem.cluster.live();
    let mut held = vec![false; placement.experts()];
    for rank in (0..current.ranks()).filter(|rank| live[*rank]) {
        for &expert in &current.raw()[current.range(rank)] {
            if expert != EMPTY {
                held[expert as usize] = true;
            }
        }
    }
    let Some(expert) = held.iter().position(|held| !held) else {
        return Ok(());
    };
    let rank = (0..placement.ranks())
        .find(|rank| placement.raw()[placement.range(*rank)].contains(&(expert as u32)));
    Err(Error::NoSource {
        layer,
        expert,
        rank: rank.unwrap_or(0),
    })
}
