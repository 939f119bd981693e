//! Products of packed tokens with rows of weights.

use std::ops::Range;

use crate::arch::{self, Ahead, Loads, Machine, Next, Terms};
use crate::operand::Element;
use crate::panels::{Form, Panels};
use crate::units::Units;

/// Rows of weights that [`arch::dot`] gets at a time: with tiles, those that come next wait beside them in
/// the second cache.
const fn dot_rows<M: Machine>() -> usize {
    if M::TILES { 64 } else { 128 }
}

/// A thread's memory, kept from task to task.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Packed weights.
    weights: Units,
    left: Vec<f32>,
    right: Vec<f32>,
}

impl Scratch {
    /// Both, with room for `length` values.
    fn sides(&mut self, length: usize) {
        if self.left.len() < length {
            self.left.resize(length, 0.0);
            self.right.resize(length, 0.0);
        }
    }
}

/// What a product gives at a time: some tokens by some columns, `[tokens, columns]`.
pub(crate) struct Tile<'a> {
    /// Among the tokens that were packed.
    pub(crate) tokens: Range<usize>,
    pub(crate) columns: Range<usize>,
    /// Between a token's values and the next one's.
    pub(crate) stride: usize,
    pub(crate) left: &'a mut [f32],
    pub(crate) right: &'a mut [f32],
}

/// Products of packed tokens with two matrices at once, `[columns, elements]` each. What the thread
/// reads next of both is at `after`, if that is known.
pub(crate) fn pairs<M: Machine + Loads<W>, W: Element>(
    machine: M,
    panels: &Panels,
    units: &[u32],
    [left, right]: [&[W]; 2],
    after: Option<[&[W]; 2]>,
    scratch: &mut Scratch,
    mut emit: impl FnMut(Tile<'_>),
) {
    let k = panels.elements;
    let columns = left.len().checked_div(k).unwrap_or(0);
    if panels.form == Form::Dot {
        for columns in blocks(columns, dot_rows::<M>()) {
            let range = columns.start * k..columns.end * k;
            let later = if range.end < left.len() {
                Some([left, right].map(|side| &side[range.end..]))
            } else {
                after
            };
            for (index, panel) in panels.iter::<M>().enumerate() {
                let tokens = panel.tokens.len();
                let length = tokens * columns.len();
                scratch.sides(length);
                let units = &units[panel.units];
                let outs = [&mut scratch.left, &mut scratch.right];
                let after = [Some(&right[range.start..]), later.map(|later| later[0])];
                for (side, out) in outs.into_iter().enumerate() {
                    let next = Next {
                        after: after[side],
                        later: later.map(|later| later[side]),
                        panel: [index, panels.len()],
                    };
                    let weights = &[left, right][side][range.clone()];
                    arch::dot(machine, units, tokens, weights, k, next, &mut out[..length]);
                }
                emit(Tile {
                    tokens: panel.tokens,
                    columns: columns.clone(),
                    stride: columns.len(),
                    left: &mut scratch.left[..length],
                    right: &mut scratch.right[..length],
                });
            }
        }
        return;
    }
    for columns in blocks(columns, M::LANES) {
        let range = columns.start * k..columns.end * k;
        let next = range.end..left.len().min(range.end + M::LANES * k);
        tile_columns(
            machine,
            panels,
            units,
            [&left[range.clone()], &right[range]],
            [&left[next.clone()], &right[next]],
            scratch,
            |tokens, left, right| {
                emit(Tile {
                    tokens,
                    columns: columns.clone(),
                    stride: M::LANES,
                    left,
                    right,
                });
            },
        );
    }
}

/// Products of packed tokens with one matrix, `[columns, elements]`: for each token its values from
/// some column on. What the thread reads next is at `after`, if that is known.
pub(crate) fn single<M: Machine + Loads<W>, W: Element>(
    machine: M,
    panels: &Panels,
    units: &[u32],
    weights: &[W],
    after: Option<&[W]>,
    scratch: &mut Scratch,
    mut emit: impl FnMut(usize, usize, &[f32]),
) {
    let k = panels.elements;
    let columns = weights.len().checked_div(k).unwrap_or(0);
    if panels.form == Form::Dot {
        for columns in blocks(columns, dot_rows::<M>()) {
            let (weights, next) = weights[columns.start * k..].split_at(columns.len() * k);
            let after = Some(next).filter(|next| !next.is_empty()).or(after);
            for (index, panel) in panels.iter::<M>().enumerate() {
                let next = Next {
                    after,
                    later: after,
                    panel: [index, panels.len()],
                };
                let length = panel.tokens.len() * columns.len();
                scratch.sides(length);
                let out = &mut scratch.left[..length];
                let units = &units[panel.units];
                arch::dot(machine, units, panel.tokens.len(), weights, k, next, out);
                for (token, values) in panel.tokens.zip(out.chunks_exact(columns.len())) {
                    emit(token, columns.start, values);
                }
            }
        }
        return;
    }
    for columns in blocks(columns, 2 * M::LANES) {
        let middle = columns.end.min(columns.start + M::LANES);
        let next = (columns.end + M::LANES).min(weights.len() / k);
        let after = (columns.end + 2 * M::LANES).min(weights.len() / k);
        let rows = |range: Range<usize>| &weights[range.start * k..range.end * k];
        tile_columns(
            machine,
            panels,
            units,
            [rows(columns.start..middle), rows(middle..columns.end)],
            [rows(columns.end..next), rows(next..after)],
            scratch,
            |tokens, left, right| {
                for (index, token) in tokens.enumerate() {
                    let from = index * M::LANES;
                    emit(
                        token,
                        columns.start,
                        &left[from..][..middle - columns.start],
                    );
                    emit(token, middle, &right[from..][..columns.end - middle]);
                }
            },
        );
    }
}

/// All tokens by up to one vector of rows on either side.
fn tile_columns<M: Machine + Loads<W>, W: Element>(
    machine: M,
    panels: &Panels,
    units: &[u32],
    sides: [&[W]; 2],
    next: [&[W]; 2],
    scratch: &mut Scratch,
    mut emit: impl FnMut(Range<usize>, &mut [f32], &mut [f32]),
) {
    let k = panels.elements;
    let units_of_row = arch::padded_units::<M>(k);
    let width = 2 * M::LANES;
    scratch.weights.grow(units_of_row * width);
    scratch.sides(M::OUTER_TOKENS * M::LANES);
    for (side, weights) in sides.into_iter().enumerate() {
        let mut rows: [&[W]; 16] = [&[]; 16];
        let mut count = 0;
        for (row, weights) in rows.iter_mut().zip(weights.chunks_exact(k)) {
            *row = weights;
            count += 1;
        }
        // A side without rows keeps old weights, whose products nobody reads.
        let packed = &mut scratch.weights[side * M::LANES..];
        arch::pack_outer(machine, &rows[..count], packed, width);
    }
    let half = panels.len().div_ceil(2);
    for (index, panel) in panels.iter::<M>().enumerate() {
        let ahead = Ahead::new(
            next[index / half],
            index % half * units_of_row,
            units_of_row,
        );
        let (left, right) = (&mut scratch.left[..], &mut scratch.right[..]);
        arch::outer(
            machine,
            &units[panel.units],
            panel.tokens.len(),
            &scratch.weights,
            Terms::InLanes {
                units: units_of_row,
            },
            [&mut *left, &mut *right],
            ahead,
        );
        let length = panel.tokens.len() * M::LANES;
        emit(panel.tokens, &mut left[..length], &mut right[..length]);
    }
}

/// `0..length` in blocks.
fn blocks(length: usize, block: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length)
        .step_by(block)
        .map(move |start| start..length.min(start + block))
}
