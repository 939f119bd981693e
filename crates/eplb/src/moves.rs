//! What it takes to get from one placement of a layer to another.

use crate::placement::{EMPTY, LayerPlacement};

/// The difference of two placements of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Difference {
    /// Experts that arrive on a rank which did not hold them.
    pub(crate) moves: usize,
    /// Slots of each rank whose expert changes: they are staged before they are written.
    pub(crate) written: Vec<usize>,
}

pub(crate) fn difference(current: &LayerPlacement, next: &LayerPlacement) -> Difference {
    let mut out = Difference {
        moves: 0,
        written: vec![0; next.ranks()],
    };
    let mut held_by = vec![u32::MAX; next.experts()];
    for rank in 0..next.ranks() {
        let before = &current.raw()[current.range(rank)];
        let after = &next.raw()[next.range(rank)];
        if before == after {
            continue;
        }
        for &expert in before {
            if expert != EMPTY {
                held_by[expert as usize] = rank as u32;
            }
        }
        for (&before, &after) in before.iter().zip(after) {
            if after == EMPTY || after == before {
                continue;
            }
            out.written[rank] += 1;
            if held_by[after as usize] != rank as u32 {
                // A second replica of the same expert on this rank is a local copy of the first.
                held_by[after as usize] = rank as u32;
                out.moves += 1;
            }
        }
    }
    out
}
