//! A plain linear layer.
#![allow(unsafe_code)]

use half::{bf16, f16};

use crate::arch::{Loads, Machine};
use crate::error::check_length;
use crate::operand::Element;
use crate::panels::Panels;
use crate::product::{self, Scratch};
use crate::shared::Shared;
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

    /// With exact products.
    pub(crate) fn exact<M>(&self, machine: M, x: Activations<'_>, out: &mut [f32])
    where
        M: Machine + Loads<f32> + Loads<f16> + Loads<bf16>,
    {
        match x {
            Activations::F32(x) => self.exact_of(machine, x, out),
            Activations::Bf16(x) => self.exact_of(machine, x, out),
        }
    }

    fn exact_of<M, A: Element>(&self, machine: M, x: &[A], out: &mut [f32])
    where
        M: Machine + Loads<f32> + Loads<f16> + Loads<bf16> + Loads<A>,
    {
        match self.weights {
            Weights::F32(weights) => self.product(machine, x, weights, out),
            Weights::F16(weights) => self.product(machine, x, weights, out),
            Weights::Bf16(weights) => self.product(machine, x, weights, out),
        }
    }

    pub(crate) fn product<M, A, W>(&self, machine: M, x: &[A], weights: &[W], out: &mut [f32])
    where
        A: Element,
        W: Element,
        M: Machine + Loads<A> + Loads<W>,
    {
        let (inputs, outputs) = (self.inputs, self.outputs);
        if inputs == 0 || outputs == 0 {
            return out.fill(0.0);
        }
        let tokens = out.len() / outputs;
        let panels = Panels::new::<M>(tokens, inputs);
        let mut units = vec![0; panels.units::<M>()];
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
        let block = tasks::columns_per_task(outputs, 8, 2 * M::LANES).min(1024);
        let work = tokens * inputs * outputs;
        let out = Shared::new(out);
        tasks::run(
            outputs.div_ceil(block),
            work,
            |scratch: &mut Scratch, task| {
                let columns = task * block..outputs.min((task + 1) * block);
                let weights = &weights[columns.start * inputs..columns.end * inputs];
                product::single(
                    machine,
                    &panels,
                    &units,
                    weights,
                    scratch,
                    |token, column, values| {
                        let from = token * outputs + columns.start + column;
                        // SAFETY: tasks have columns of their own.
                        unsafe { out.part(from..from + values.len()) }.copy_from_slice(values);
                    },
                );
            },
        );
    }
}
