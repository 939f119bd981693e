//! Causal attention of one sequence, without its scores ever being in memory as a whole.
//!
//! Keys and values are read once per block of queries; a block of queries keeps the largest score, the
//! sum of exponentials and the weighted values of the keys so far, and rescales them as larger scores
//! come (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135).
#![allow(unsafe_code)]

use half::bf16;

use crate::activation::exp;
use crate::arch::{self, Ahead, Loads, Machine, Next, Terms};
use crate::operand::Element;
use crate::shared::Shared;
use crate::units::Units;
use crate::{Activations, KernelError, tasks};

/// Queries, keys or values: `[heads, tokens, elements]`, each head's elements side by side.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The numbers, from those of the first token of the first head on.
    pub values: Activations<'a>,
    /// From a head to the next, in elements.
    pub head_stride: usize,
    /// From a token to the next, in elements.
    pub token_stride: usize,
}

/// Attention of the last tokens of a sequence to all of it; each sees those up to itself.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; each serves `heads / kv_heads` query heads that follow each other.
    pub kv_heads: usize,
    /// Queries per head.
    pub tokens: usize,
    /// Keys and values per head.
    pub seen: usize,
    /// Elements of a query and of a key.
    pub head: usize,
    /// Elements of a value.
    pub size: usize,
    /// What scores are multiplied by.
    pub scale: f32,
    /// `[heads, tokens, head]`
    pub queries: Heads<'a>,
    /// `[kv_heads, seen, head]`
    pub keys: Heads<'a>,
    /// `[kv_heads, seen, size]`
    pub values: Heads<'a>,
}

impl Heads<'_> {
    fn check(&self, what: &'static str, shape: [usize; 3]) -> Result<(), KernelError> {
        let [heads, tokens, elements] = shape;
        if heads == 0 || tokens == 0 || elements == 0 {
            return Ok(());
        }
        let of = |count: usize, stride: usize| (count - 1).checked_mul(stride);
        let needed = of(heads, self.head_stride)
            .and_then(|last| last.checked_add(of(tokens, self.token_stride)?))
            .and_then(|last| last.checked_add(elements))
            .ok_or(KernelError::Size { what })?;
        if self.values.len() < needed {
            return Err(KernelError::Length {
                what,
                expected: needed,
                found: self.values.len(),
            });
        }
        Ok(())
    }
}

/// Keys that a block of queries looks at before it rescales.
const KEYS: usize = 128;
/// Panels of a block of queries.
const PANELS: usize = 4;

impl Attention<'_> {
    pub(crate) fn check(&self, out: &[f32]) -> Result<(), KernelError> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        if kv_heads == 0 || heads % kv_heads != 0 || self.tokens > self.seen {
            return Err(KernelError::Attention {
                heads,
                kv_heads,
                tokens: self.tokens,
                seen: self.seen,
            });
        }
        self.queries
            .check("queries", [heads, self.tokens, self.head])?;
        self.keys.check("keys", [kv_heads, self.seen, self.head])?;
        self.values
            .check("values", [kv_heads, self.seen, self.size])?;
        crate::error::check_length("out", &[self.tokens, heads, self.size], out.len())
    }

    /// With exact products, of a machine whose units are elements.
    pub(crate) fn exact<M>(&self, machine: M, out: &mut [f32])
    where
        M: Machine + Loads<f32> + Loads<bf16>,
    {
        if out.is_empty() {
            return;
        }
        let rows = self.heads / self.kv_heads * self.tokens;
        let blocks = rows.div_ceil(PANELS * M::OUTER_TOKENS);
        // Keys and values come from memory: for one token that takes longer than to multiply them.
        let memory = self.kv_heads * self.seen * (self.head + self.size) * 4;
        let work = memory.max(self.heads * self.tokens * self.seen * (self.head + self.size));
        let out = Shared::new(out);
        tasks::run(
            self.kv_heads * blocks,
            work,
            |scratch: &mut Scratch, task| {
                let block = Block::new::<M>(self, task / blocks, task % blocks);
                block.run(machine, scratch, out);
            },
        );
    }
}

/// A thread's memory.
#[derive(Default)]
struct Scratch {
    /// `[panel][head][query]`
    queries: Units,
    /// `[head][2 · LANES keys]`
    keys: Units,
    /// `[query][KEYS]`
    scores: Vec<f32>,
    /// `[panel][key][query]`
    weights: Units,
    /// `[key][2 · LANES]`
    values: Units,
    left: Vec<f32>,
    right: Vec<f32>,
    /// Weighted values so far, `[query][size]`, whole tiles.
    sums: Vec<f32>,
    /// Of each query.
    running: Vec<Running>,
}

/// Of one query, over the keys so far.
#[derive(Clone, Copy)]
struct Running {
    largest: f32,
    /// Σ of the exponentials.
    total: f32,
    /// What the sums from before the last keys are multiplied by.
    factor: f32,
}

/// Some queries of one key head. Row `r` of a key head is token `r / group` of its query head
/// `r % group`, so that the rows of a block see about the same keys.
struct Block<'a> {
    of: &'a Attention<'a>,
    kv_head: usize,
    group: usize,
    first: usize,
    rows: usize,
    /// Queries of a panel, all but the last one.
    panel: usize,
    /// So few queries over keys that follow each other that packing the keys would not pay: a token
    /// that is generated.
    direct: bool,
}

impl<'a> Block<'a> {
    fn new<M: Machine>(of: &'a Attention<'a>, kv_head: usize, block: usize) -> Self {
        let group = of.heads / of.kv_heads;
        let first = block * PANELS * M::OUTER_TOKENS;
        let rows = (group * of.tokens - first).min(PANELS * M::OUTER_TOKENS);
        Self {
            of,
            kv_head,
            group,
            first,
            rows,
            panel: M::OUTER_TOKENS,
            direct: rows <= M::DOT_TOKENS && of.keys.token_stride == of.head,
        }
    }

    fn token(&self, row: usize) -> usize {
        (self.first + row) / self.group
    }

    fn head(&self, row: usize) -> usize {
        self.kv_head * self.group + (self.first + row) % self.group
    }

    /// Keys that a row sees.
    fn sees(&self, row: usize) -> usize {
        self.of.seen - self.of.tokens + self.token(row) + 1
    }

    /// The rows of each panel.
    fn panels(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (rows, panel) = (self.rows, self.panel);
        (0..rows)
            .step_by(panel)
            .map(move |start| start..rows.min(start + panel))
    }

    fn run<M>(&self, machine: M, scratch: &mut Scratch, out: Shared<'_, f32>)
    where
        M: Machine + Loads<f32> + Loads<bf16>,
    {
        let of = self.of;
        let width = 2 * M::LANES;
        let padded = of.size.next_multiple_of(width);
        let panel_units = arch::panel_units::<M>(M::OUTER_TOKENS, of.head);
        resize(&mut scratch.scores, self.rows * KEYS);
        if self.direct {
            scratch.weights.grow(self.rows * KEYS);
            self.pack_dot(machine, &mut scratch.queries);
        } else {
            scratch.queries.grow(PANELS * panel_units);
            scratch.keys.grow(arch::padded_units::<M>(of.head) * width);
            scratch.weights.grow(PANELS * KEYS * M::OUTER_TOKENS);
            scratch.values.grow(KEYS * width);
            resize(&mut scratch.left, M::OUTER_TOKENS * M::LANES);
            resize(&mut scratch.right, M::OUTER_TOKENS * M::LANES);
        }
        scratch.sums.clear();
        scratch.sums.resize(self.rows * padded, 0.0);
        scratch.running.clear();
        let before = Running {
            largest: f32::NEG_INFINITY,
            total: 0.0,
            factor: 0.0,
        };
        scratch.running.resize(self.rows, before);

        for (panel, rows) in self.panels().enumerate().filter(|_| !self.direct) {
            let stride = rows.len();
            let places = rows.map(|row| (self.head(row), self.token(row)));
            let packed = &mut scratch.queries[panel * panel_units..][..panel_units];
            pack(machine, of.queries, places, of.head, packed, stride);
        }
        let last = self.sees(self.rows - 1);
        for start in (0..last).step_by(KEYS) {
            let count = KEYS.min(last - start);
            if self.direct {
                self.direct_scores(machine, scratch, start, count);
            } else {
                self.scores(machine, scratch, start, count);
            }
            self.weigh(machine, scratch, start, count);
            if self.direct {
                self.add_values_directly(machine, scratch, start, count);
            } else {
                self.add_values(machine, scratch, start, count);
            }
        }
        for row in 0..self.rows {
            let place = (self.token(row) * of.heads + self.head(row)) * of.size;
            let total = scratch.running[row].total;
            let sums = &scratch.sums[row * padded..][..of.size];
            // SAFETY: a row is of one block, and each has a place of its own.
            let out = unsafe { out.part(place..place + of.size) };
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = sum / total;
            }
        }
    }

    /// Packs all queries for [`arch::dot`].
    fn pack_dot<M>(&self, machine: M, panel: &mut Units)
    where
        M: Machine + Loads<f32> + Loads<bf16>,
    {
        let of = self.of;
        panel.grow(arch::panel_units::<M>(self.rows, of.head));
        let starts = (0..self.rows).map(|row| {
            self.head(row) * of.queries.head_stride + self.token(row) * of.queries.token_stride
        });
        match of.queries.values {
            Activations::F32(values) => {
                let rows: Vec<_> = starts.map(|s| &values[s..s + of.head]).collect();
                arch::pack_dot(machine, &rows, panel);
            }
            Activations::Bf16(values) => {
                let rows: Vec<_> = starts.map(|s| &values[s..s + of.head]).collect();
                arch::pack_dot(machine, &rows, panel);
            }
        }
    }

    /// Products of few queries with some keys, straight from where they are.
    fn direct_scores<M>(&self, machine: M, scratch: &mut Scratch, start: usize, count: usize)
    where
        M: Machine + Loads<f32> + Loads<bf16>,
    {
        let of = self.of;
        let first = self.kv_head * of.keys.head_stride + start * of.head;
        let last = first + count * of.head;
        resize(&mut scratch.left, self.rows * count);
        let out = &mut scratch.left[..self.rows * count];
        let more = start + count < of.seen;
        let queries = &scratch.queries[..];
        match of.keys.values {
            Activations::F32(keys) => {
                let after = more.then_some(&keys[last..]);
                let keys = &keys[first..last];
                arch::dot(
                    machine,
                    queries,
                    self.rows,
                    keys,
                    of.head,
                    Next::of(after),
                    out,
                );
            }
            Activations::Bf16(keys) => {
                let after = more.then_some(&keys[last..]);
                let keys = &keys[first..last];
                arch::dot(
                    machine,
                    queries,
                    self.rows,
                    keys,
                    of.head,
                    Next::of(after),
                    out,
                );
            }
        }
        for (row, scores) in out.chunks_exact(count).enumerate() {
            scratch.scores[row * KEYS..][..count].copy_from_slice(scores);
        }
    }

    /// Products of all queries with some keys.
    fn scores<M>(&self, machine: M, scratch: &mut Scratch, start: usize, count: usize)
    where
        M: Machine + Loads<f32> + Loads<bf16>,
    {
        let of = self.of;
        let width = 2 * M::LANES;
        let panel_units = arch::panel_units::<M>(M::OUTER_TOKENS, of.head);
        for tile in (0..count).step_by(width) {
            for side in 0..2 {
                let keys = (tile + side * M::LANES)..count.min(tile + (side + 1) * M::LANES);
                // A side without keys keeps old ones, whose products nobody reads.
                let places = keys.map(|key| (self.kv_head, start + key));
                let packed = &mut scratch.keys[side * M::LANES..];
                pack(machine, of.keys, places, of.head, packed, width);
            }
            for (panel, rows) in self.panels().enumerate() {
                let (left, right) = (&mut scratch.left[..], &mut scratch.right[..]);
                arch::outer(
                    machine,
                    &scratch.queries[panel * panel_units..],
                    rows.len(),
                    &scratch.keys,
                    Terms::InLanes {
                        units: arch::padded_units::<M>(of.head),
                    },
                    [&mut *left, &mut *right],
                    Ahead::new::<u32>(&[], 0, 0),
                );
                for (index, row) in rows.enumerate() {
                    let scores = &mut scratch.scores[row * KEYS + tile..][..width];
                    let lanes = index * M::LANES..(index + 1) * M::LANES;
                    scores[..M::LANES].copy_from_slice(&left[lanes.clone()]);
                    scores[M::LANES..].copy_from_slice(&right[lanes]);
                }
            }
        }
    }

    /// Scores to weights, relative to the largest score so far.
    fn weigh<M: Machine>(&self, machine: M, scratch: &mut Scratch, start: usize, count: usize) {
        for row in 0..self.rows {
            let scores = &mut scratch.scores[row * KEYS..][..count];
            let (seen, unseen) =
                scores.split_at_mut(count.min(self.sees(row).saturating_sub(start)));
            let running = &mut scratch.running[row];
            let before = running.largest;
            let sum = arch::weigh(machine, seen, self.of.scale, &mut running.largest);
            running.factor = if seen.is_empty() {
                1.0
            } else {
                exp(before - running.largest)
            };
            running.total = running.total * running.factor + sum;
            unseen.fill(0.0);
        }
        for (panel, rows) in self.panels().enumerate() {
            let (tokens, first) = (rows.len(), rows.start);
            let weights = &mut scratch.weights[panel * KEYS * M::OUTER_TOKENS..];
            for (key, weights) in weights.chunks_exact_mut(tokens).take(count).enumerate() {
                for (token, weight) in weights.iter_mut().enumerate() {
                    *weight = scratch.scores[(first + token) * KEYS + key].to_bits();
                }
            }
        }
    }

    /// Adds the weighted values of some keys, straight from where they are.
    fn add_values_directly<M>(&self, machine: M, scratch: &mut Scratch, start: usize, count: usize)
    where
        M: Machine + Loads<f32> + Loads<bf16>,
    {
        let of = self.of;
        let padded = of.size.next_multiple_of(2 * M::LANES);
        let (rows, stride) = (self.rows, of.values.token_stride);
        let first = self.kv_head * of.values.head_stride + start * stride;
        let sizes = [count, of.size, stride];
        resize(&mut scratch.left, rows * padded);
        let (weights, out) = (&scratch.weights[..], &mut scratch.left[..]);
        match of.values.values {
            Activations::F32(values) => {
                arch::weighted(machine, weights, rows, &values[first..], sizes, out, padded);
            }
            Activations::Bf16(values) => {
                arch::weighted(machine, weights, rows, &values[first..], sizes, out, padded);
            }
        }
        for row in 0..rows {
            let factor = scratch.running[row].factor;
            let range = row * padded..row * padded + of.size;
            let sums = &mut scratch.sums[range.clone()];
            arch::rescale(machine, factor, sums, &scratch.left[range]);
        }
    }

    /// Adds the weighted values of some keys.
    fn add_values<M>(&self, machine: M, scratch: &mut Scratch, start: usize, count: usize)
    where
        M: Machine + Loads<f32> + Loads<bf16>,
    {
        let of = self.of;
        let width = 2 * M::LANES;
        let padded = of.size.next_multiple_of(width);
        for column in (0..of.size).step_by(width) {
            let columns = column..of.size.min(column + width);
            for (key, values) in scratch
                .values
                .chunks_exact_mut(width)
                .take(count)
                .enumerate()
            {
                widen(
                    machine,
                    of.values,
                    (self.kv_head, start + key),
                    columns.clone(),
                    values,
                );
            }
            for (panel, rows) in self.panels().enumerate() {
                let (left, right) = (&mut scratch.left[..], &mut scratch.right[..]);
                arch::outer(
                    machine,
                    &scratch.weights[panel * KEYS * M::OUTER_TOKENS..],
                    rows.len(),
                    &scratch.values,
                    Terms::InTurn { units: count },
                    [&mut *left, &mut *right],
                    Ahead::new::<u32>(&[], 0, 0),
                );
                for (index, row) in rows.enumerate() {
                    let factor = scratch.running[row].factor;
                    let sums = &mut scratch.sums[row * padded + column..][..width];
                    let lanes = index * M::LANES..(index + 1) * M::LANES;
                    let (first, second) = sums.split_at_mut(M::LANES);
                    arch::rescale(machine, factor, first, &left[lanes.clone()]);
                    arch::rescale(machine, factor, second, &right[lanes]);
                }
            }
        }
    }
}

fn resize<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) {
    if buffer.len() < length {
        buffer.resize(length, T::default());
    }
}

/// Packs some tokens' elements for [`arch::outer`], at most a vector of them.
fn pack<M>(
    machine: M,
    from: Heads<'_>,
    places: impl Iterator<Item = (usize, usize)>,
    elements: usize,
    out: &mut [u32],
    stride: usize,
) where
    M: Machine + Loads<f32> + Loads<bf16>,
{
    fn rows<M: Machine + Loads<T>, T: Element>(
        machine: M,
        values: &[T],
        starts: impl Iterator<Item = usize>,
        elements: usize,
        out: &mut [u32],
        stride: usize,
    ) {
        let mut rows: [&[T]; 16] = [&[]; 16];
        let mut count = 0;
        for (row, start) in rows.iter_mut().zip(starts) {
            *row = &values[start..start + elements];
            count += 1;
        }
        if count > 0 {
            arch::pack_outer(machine, &rows[..count], out, stride);
        }
    }
    let starts = places.map(|(head, token)| head * from.head_stride + token * from.token_stride);
    match from.values {
        Activations::F32(values) => rows(machine, values, starts, elements, out, stride),
        Activations::Bf16(values) => rows(machine, values, starts, elements, out, stride),
    }
}

/// Copies some elements of a token, and zeros after them.
fn widen<M: Machine>(
    machine: M,
    from: Heads<'_>,
    (head, token): (usize, usize),
    elements: std::ops::Range<usize>,
    out: &mut [u32],
) {
    let start = head * from.head_stride + token * from.token_stride;
    let range = start + elements.start..start + elements.end;
    let mut row = [0.0; 32];
    let wide = &mut row[..elements.len()];
    match from.values {
        Activations::F32(values) => wide.copy_from_slice(&values[range]),
        Activations::Bf16(values) => arch::widen(machine, &values[range], wide),
    }
    // A unit is a number, for these machines.
    for (out, value) in out.iter_mut().zip(row) {
        *out = value.to_bits();
    }
}
