//! The retained experts of a layer: gate and up, activation, down, and the weighted sum.
#![allow(unsafe_code)]

use half::{bf16, f16};

use crate::arch::{self, Loads, Machine};
use crate::error::check_length;
use crate::kept::Kept;
use crate::operand::Element;
use crate::panels::{Panel, Panels};
use crate::product::{self, Scratch};
use crate::routes::Active;
use crate::shared::Shared;
use crate::units::Units;
use crate::{Activation, Activations, KernelError, Routes, Weights, tasks};

/// The packed weights of experts, in the layout that records have.
#[derive(Clone, Copy, Debug)]
pub struct GatedMlp<'a> {
    /// The size of a token.
    pub hidden: usize,
    /// The size of an expert between its projections.
    pub intermediate: usize,
    /// What is between them.
    pub activation: Activation,
    /// `[rows, 2·intermediate, hidden]`, the gate above the up projection.
    pub gate_up: Weights<'a>,
    /// `[rows, hidden, intermediate]`
    pub down: Weights<'a>,
}

/// Where a call's results go.
pub(crate) struct Results<'a> {
    /// `[tokens, hidden]`, weighted and summed.
    pub(crate) out: &'a mut [f32],
    /// `[routes, hidden]`, before they are weighted, where somebody wants them.
    pub(crate) outputs: Option<&'a mut [f32]>,
}

impl GatedMlp<'_> {
    pub(crate) fn check(
        &self,
        x: Activations<'_>,
        routes: &Routes,
        results: &Results<'_>,
    ) -> Result<(), KernelError> {
        let (hidden, intermediate, rows) = (self.hidden, self.intermediate, routes.rows());
        let Results { out, outputs } = results;
        let tokens = out.len().checked_div(hidden).unwrap_or(0);
        if let Some(outputs) = outputs {
            check_length("outputs", &[routes.len(), hidden], outputs.len())?;
        }
        check_length("out", &[tokens, hidden], out.len())?;
        check_length("x", &[tokens, hidden], x.len())?;
        let gate_up = [rows, 2, intermediate, hidden];
        check_length("gate_up", &gate_up, self.gate_up.len())?;
        check_length("down", &[rows, hidden, intermediate], self.down.len())?;
        // Without a size, tokens cannot be told from `out`, and there is nothing to do.
        if hidden == 0 {
            return Ok(());
        }
        routes.check(tokens)
    }

    /// With exact products.
    pub(crate) fn exact<M>(
        &self,
        machine: M,
        x: Activations<'_>,
        routes: &Routes,
        results: Results<'_>,
    ) where
        M: Machine + Loads<f32> + Loads<f16> + Loads<bf16>,
    {
        match x {
            Activations::F32(x) => self.exact_of(machine, x, routes, results),
            Activations::Bf16(x) => self.exact_of(machine, x, routes, results),
        }
    }

    fn exact_of<M, A: Element>(&self, machine: M, x: &[A], routes: &Routes, results: Results<'_>)
    where
        M: Machine + Loads<f32> + Loads<f16> + Loads<bf16> + Loads<A>,
    {
        let from = match self.down {
            Weights::F32(_) => Loads::<f32>::pack_from(machine),
            Weights::F16(_) => Loads::<f16>::pack_from(machine),
            Weights::Bf16(_) => Loads::<bf16>::pack_from(machine),
        };
        let hidden = match self.gate_up {
            Weights::F32(gate_up) => self.gate_up(machine, x, gate_up, from, routes),
            Weights::F16(gate_up) => self.gate_up(machine, x, gate_up, from, routes),
            Weights::Bf16(gate_up) => self.gate_up(machine, x, gate_up, from, routes),
        };
        match self.down {
            Weights::F32(down) => self.down(machine, &hidden, down, results),
            Weights::F16(down) => self.down(machine, &hidden, down, results),
            Weights::Bf16(down) => self.down(machine, &hidden, down, results),
        }
    }

    /// In one type: [`Machine`]s whose products round to it.
    pub(crate) fn in_type<M: Machine + Loads<T>, T: Element>(
        &self,
        machine: M,
        x: &[T],
        [gate_up, down]: [&[T]; 2],
        routes: &Routes,
        results: Results<'_>,
    ) {
        let hidden = self.gate_up(machine, x, gate_up, Loads::<T>::pack_from(machine), routes);
        self.down(machine, &hidden, down, results);
    }

    /// `activation(gate·x) ⊙ up·x` for each route, packed for the down projection, whose weights are packed
    /// from so many tokens on.
    fn gate_up<'r, M, A, W>(
        &self,
        machine: M,
        x: &[A],
        gate_up: &[W],
        pack_down_from: usize,
        routes: &'r Routes,
    ) -> Intermediate<'r>
    where
        A: Element,
        W: Element,
        M: Machine + Loads<A> + Loads<W>,
    {
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        let mut of_experts = Intermediate::new::<M>(routes, intermediate, pack_down_from);
        if hidden == 0 || intermediate == 0 {
            of_experts.experts.clear();
            return of_experts;
        }
        // Whole units, and whole vectors of columns.
        let block = if of_experts.streams() {
            tasks::columns_that_stream(intermediate, 2 * hidden * size_of::<W>(), 2 * M::LANES)
        } else {
            tasks::columns_per_task(intermediate, 4, 8 * M::LANES)
        };
        let block = block.min(256);
        let blocks = intermediate.div_ceil(block);
        let experts = &of_experts.experts;
        let values = Shared::new(&mut of_experts.values);
        let work = routes.len() * 2 * intermediate * hidden;
        let place = |task| (task / blocks, task % blocks * block);
        tasks::run_ahead(experts.len() * blocks, work, |own: &mut Own, task, next| {
            let (index, column) = place(task);
            let expert = &experts[index];
            let after = next.map(|next| {
                let (index, column) = place(next);
                let row = experts[index].active.row * 2 * intermediate + column;
                [row, row + intermediate].map(|row| &gate_up[row * hidden..])
            });
            let last = intermediate.min(column + block);
            let panels = Panels::new::<M>(
                expert.active.tokens.len(),
                hidden,
                Loads::<W>::pack_from(machine),
            );
            own.pack(machine, index, &panels, expert.active.tokens, x);
            let matrices = &gate_up[expert.active.row * 2 * intermediate * hidden..];
            let sides = [0, intermediate]
                .map(|first| &matrices[(first + column) * hidden..(first + last) * hidden]);
            let emit = |tile: product::Tile<'_>| {
                arch::activate(machine, self.activation, tile.left, tile.right);
                let width = tile.columns.len();
                for (index, token) in tile.tokens.enumerate() {
                    let row = &tile.left[index * tile.stride..][..width];
                    // The panels of the other projection may be others: its weights have their own type.
                    let panel = &expert.panel_places[expert.panels.of_token(token)];
                    let (token, tokens) = (token - panel.tokens.start, panel.tokens.len());
                    for (pair, columns) in row.chunks(M::UNIT).enumerate() {
                        let second = columns.get(1).copied().unwrap_or(0.0);
                        let unit = (column + tile.columns.start) / M::UNIT + pair;
                        let place = expert.panels.place::<M>(tokens, token, unit);
                        let place = expert.start + panel.units.start + place;
                        // SAFETY: tasks have columns of their own, in whole units.
                        unsafe { values.write(place, M::unit([columns[0], second])) };
                    }
                }
            };
            product::pairs(
                machine,
                &panels,
                &own.units,
                sides,
                after,
                &mut own.scratch,
                emit,
            );
        });
        of_experts
    }

    /// `outputs[route] = down·h`, where it is wanted, and `out[token] = Σ w · down·h`, in the order of
    /// rows.
    fn down<M: Machine + Loads<W>, W: Element>(
        &self,
        machine: M,
        of_experts: &Intermediate<'_>,
        down: &[W],
        Results { out, outputs }: Results<'_>,
    ) {
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        out.fill(0.0);
        if of_experts.experts.is_empty() {
            outputs.into_iter().for_each(|outputs| outputs.fill(0.0));
            return;
        }
        let block = if of_experts.streams() {
            let bytes = of_experts.experts.len() * intermediate * size_of::<W>();
            tasks::columns_that_stream(hidden, bytes, 2 * M::LANES)
        } else {
            tasks::columns_per_task(hidden, 4, 2 * M::LANES)
        };
        let work = of_experts.routes * hidden * intermediate;
        let out = Shared::new(out);
        let outputs = outputs.map(Shared::new);
        let experts = &of_experts.experts;
        let rows_of = |expert: &Expert<'_>, task| {
            &down[(expert.active.row * hidden + task * block) * intermediate..]
        };
        tasks::run_ahead(
            hidden.div_ceil(block),
            work,
            |scratch: &mut Scratch, task, next| {
                let columns = task * block..hidden.min((task + 1) * block);
                for (place, expert) in experts.iter().enumerate() {
                    let weights = &rows_of(expert, task)[..columns.len() * intermediate];
                    let after = match experts.get(place + 1) {
                        Some(expert) => Some(rows_of(expert, task)),
                        None => next.map(|next| rows_of(&experts[0], next)),
                    };
                    let units = &of_experts.values[expert.start..];
                    product::single(
                        machine,
                        &expert.panels,
                        units,
                        weights,
                        after,
                        scratch,
                        |index, column, values| {
                            let token = expert.active.tokens[index];
                            let from = token * hidden + columns.start + column;
                            // SAFETY: tasks have columns of their own.
                            let sums = unsafe { out.part(from..from + values.len()) };
                            arch::accumulate(machine, expert.active.weights[index], values, sums);
                            if let Some(outputs) = outputs {
                                let route = expert.active.first + index;
                                let from = route * hidden + columns.start + column;
                                // SAFETY: as above.
                                unsafe { outputs.part(from..from + values.len()) }
                                    .copy_from_slice(values);
                            }
                        },
                    );
                }
            },
        );
    }
}

/// The experts' activations between their projections.
struct Intermediate<'r> {
    experts: Vec<Expert<'r>>,
    /// Each expert's panels.
    values: Kept,
    routes: usize,
}

struct Expert<'r> {
    active: Active<'r>,
    panels: Panels,
    panel_places: Vec<Panel>,
    /// Where its panels are.
    start: usize,
}

impl<'r> Intermediate<'r> {
    /// Whether most weights are read for so few tokens that reading them is what takes time.
    fn streams(&self) -> bool {
        let panels: usize = self.experts.iter().map(|expert| expert.panels.len()).sum();
        panels < 2 * self.experts.len()
    }

    fn new<M: Machine>(routes: &'r Routes, intermediate: usize, pack_from: usize) -> Self {
        let mut length = 0;
        let experts = routes
            .active()
            .map(|active| {
                let panels = Panels::new::<M>(active.tokens.len(), intermediate, pack_from);
                let start = length;
                length += panels.units::<M>();
                Expert {
                    active,
                    panel_places: panels.iter::<M>().collect(),
                    panels,
                    start,
                }
            })
            .collect();
        let mut values = Kept::new(length);
        // What tokens are padded with is not written to.
        if arch::padded_units::<M>(intermediate) * M::UNIT != intermediate {
            values[..length].fill(0);
        }
        Self {
            experts,
            values,
            routes: routes.len(),
        }
    }
}

/// A thread's memory: the tokens of the expert that it is at, packed.
#[derive(Default)]
struct Own {
    scratch: Scratch,
    packed: Option<usize>,
    units: Units,
}

impl Own {
    fn pack<M: Machine + Loads<A>, A: Element>(
        &mut self,
        machine: M,
        expert: usize,
        panels: &Panels,
        tokens: &[usize],
        x: &[A],
    ) {
        if self.packed.replace(expert) == Some(expert) {
            return;
        }
        let elements = panels.elements;
        self.units.grow(panels.units::<M>());
        for panel in panels.iter::<M>() {
            let mut rows: [&[A]; 32] = [&[]; 32];
            let tokens = &tokens[panel.tokens];
            for (row, &token) in rows.iter_mut().zip(tokens) {
                *row = &x[token * elements..][..elements];
            }
            panels.pack(machine, &rows[..tokens.len()], &mut self.units[panel.units]);
        }
    }
}
