//! A plain linear layer.
#![allow(unsafe_code)]

use half::{bf16, f16};

use crate::arch::{Loads, Machine};
use crate::error::check_length;
use crate::operand::Element;
use crate::panels::Panels;
use crate::product::{self, Scratch};
use crate::shared::Shared;
use crate::units::Units;
use crate::{Activations, KernelError, Weights, tasks};

/// A matrix in the checkpoint's layout.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// Its columns.
    pub inputs: usize,
    /// Its rows.
    pub outputs: usize,
    /// `[outputs, inputs]`
    pub weights: Weights<'a>,
}

impl Linear<'_> {
    pub(crate) fn check(&self, x: Activations<'_>, out: &[f32]) -> Result<(), KernelError> {
        let tokens = out.len().checked_div(self.outputs).unwrap_or(0);
        check_length("weights", &[self.outputs, self.inputs], self.weights.len())?;
        check_length("out", &[tokens, self.outputs], out.len())?;
        // Without outputs, tokens cannot be told from `out`, and there is nothing to do.
        if self.outputs > 0 {
            check_length("x", &[tokens, self.inputs], x.len())?;
        }
        Ok(())
    }
}

/// Linear layers of the same tokens: one division of work for all of them, because waking threads
/// takes as long as a small layer's product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linears<'a>(pub(crate) &'a [Linear<'a>]);

/// The slices of layers that have one type of weights.
macro_rules! of_type {
    ($layers:expr, $type:ident) => {
        $layers
            .iter()
            .map(|layer| match layer.weights {
                Weights::$type(weights) => Some(weights),
                _ => None,
            })
            .collect::<Option<Vec<_>>>()
    };
}

impl Linears<'_> {
    pub(crate) fn check(&self, x: Activations<'_>, outs: &[&mut [f32]]) -> Result<(), KernelError> {
        check_length("outs", &[self.0.len()], outs.len())?;
        for (layer, out) in self.0.iter().zip(outs) {
            layer.check(x, out)?;
        }
        Ok(())
    }

    /// Whether the layers' weights have one type.
    pub(crate) fn one_type(&self) -> bool {
        self.0.windows(2).all(|pair| {
            let [first, second] = [&pair[0].weights, &pair[1].weights].map(std::mem::discriminant);
            first == second
        })
    }

    /// The weights of all layers, where they are `bf16`.
    pub(crate) fn bf16(&self) -> Option<Vec<&[bf16]>> {
        of_type!(self.0, Bf16)
    }

    /// With exact products, of layers of [one type](Self::one_type).
    pub(crate) fn exact<M>(&self, machine: M, x: Activations<'_>, outs: &mut [&mut [f32]])
    where
        M: Machine + Loads<f32> + Loads<f16> + Loads<bf16>,
    {
        match x {
            Activations::F32(x) => self.exact_of(machine, x, outs),
            Activations::Bf16(x) => self.exact_of(machine, x, outs),
        }
    }

    fn exact_of<M, A: Element>(&self, machine: M, x: &[A], outs: &mut [&mut [f32]])
    where
        M: Machine + Loads<f32> + Loads<f16> + Loads<bf16> + Loads<A>,
    {
        if let Some(weights) = of_type!(self.0, F32) {
            self.product(machine, x, &weights, outs);
        } else if let Some(weights) = of_type!(self.0, F16) {
            self.product(machine, x, &weights, outs);
        } else if let Some(weights) = of_type!(self.0, Bf16) {
            self.product(machine, x, &weights, outs);
        }
    }

    pub(crate) fn product<M, A, W>(
        &self,
        machine: M,
        x: &[A],
        weights: &[&[W]],
        outs: &mut [&mut [f32]],
    ) where
        A: Element,
        W: Element,
        M: Machine + Loads<A> + Loads<W>,
    {
        let inputs = self.0.first().map_or(0, |layer| layer.inputs);
        let tokens = x.len().checked_div(inputs).unwrap_or(0);
        if tokens == 0 {
            return outs.iter_mut().for_each(|out| out.fill(0.0));
        }
        let panels = Panels::new::<M>(tokens, inputs, Loads::<W>::pack_from(machine));
        let mut units = Units::new(panels.units::<M>());
        let places: Vec<_> = panels.iter::<M>().collect();
        let shared = Shared::new(&mut units);
        tasks::run(places.len(), tokens * inputs, |(): &mut (), task| {
            let place = &places[task];
            let rows: Vec<&[A]> = x[place.tokens.start * inputs..place.tokens.end * inputs]
                .chunks_exact(inputs)
                .collect();
            // SAFETY: panels do not overlap, and each is a task.
            let panel = unsafe { shared.part(place.units.clone()) };
            panels.pack(machine, &rows, panel);
        });
        let all: usize = self.0.iter().map(|layer| layer.outputs).sum();
        let block = if panels.len() == 1 {
            tasks::columns_that_stream(all, inputs * size_of::<W>(), 2 * M::LANES)
        } else {
            tasks::columns_per_task(all, 8, 2 * M::LANES).clamp(1, 1024)
        };
        // For few tokens, to read weights takes longer than to multiply them.
        let work = inputs * all * tokens.max(2);
        let outs: Vec<_> = outs.iter_mut().map(|out| Shared::new(out)).collect();
        let parts: Vec<(usize, usize)> = self
            .0
            .iter()
            .enumerate()
            .flat_map(|(layer, of)| (0..of.outputs).step_by(block).map(move |c| (layer, c)))
            .collect();
        tasks::run_ahead(parts.len(), work, |scratch: &mut Scratch, task, next| {
            let (layer, start) = parts[task];
            let after = next.map(|next| &weights[parts[next].0][parts[next].1 * inputs..]);
            let outputs = self.0[layer].outputs;
            let columns = start..outputs.min(start + block);
            let weights = &weights[layer][columns.start * inputs..columns.end * inputs];
            product::single(
                machine,
                &panels,
                &units,
                weights,
                after,
                scratch,
                |token, column, values| {
                    let from = token * outputs + columns.start + column;
                    // SAFETY: tasks have columns of their own.
                    unsafe { outs[layer].part(from..from + values.len()) }.copy_from_slice(values);
                },
            );
        });
    }
}
