//! Counting while a model computes.
//!
//! Within a sequence sums are `f64`, in the order of its tokens; each sequence's are then rounded
//! once and added exactly. Experts are counted side by side, each by one thread: nothing depends on
//! how many threads there are.

use locum_kernels::{Moments, Variant};
use locum_models::ModelError;
use locum_nn::{ExpertObserver, ExpertOutputs, Observation};
use locum_substitution::{Route, TokenWeight};
use rayon::prelude::*;

use crate::PruneError;
use crate::fixed::{self, Unusable};
use crate::sums::{ExpertSums, LayerSums, SCALARS, Sums};

/// Counts the sequences of one step.
#[derive(Debug)]
pub(crate) struct Collector<'s> {
    sums: &'s mut Sums,
    /// Tokens of each sequence.
    length: usize,
    /// The number of the step's first sequence.
    first: usize,
    /// Memory for outputs, kept from step to step.
    outputs: &'s mut Vec<f32>,
    /// The first thing that went wrong; nothing is counted after it.
    failed: Option<PruneError>,
}

impl<'s> Collector<'s> {
    pub(crate) fn new(
        sums: &'s mut Sums,
        outputs: &'s mut Vec<f32>,
        length: usize,
        first: usize,
    ) -> Self {
        Self {
            sums,
            outputs,
            length,
            first,
            failed: None,
        }
    }

    /// What went wrong, if anything did.
    pub(crate) fn finish(self) -> Result<(), PruneError> {
        self.failed.map_or(Ok(()), Err)
    }

    fn count(&mut self, observation: &Observation<'_>) -> Result<(), PruneError> {
        let number = observation.layer;
        let place = self.sums.layers.iter().position(|l| l.layer == number);
        let Some(layer) = place.map(|place| &mut self.sums.layers[place]) else {
            return Ok(());
        };
        let (length, first) = (self.length, self.first);
        let variant = Variant::detect().map_err(|error| ModelError::Kernels(error.to_string()))?;
        let hidden = layer.hidden;
        let constants = ConstantRoutes::of(observation, layer);
        layer.tokens += constants.tokens as u64;
        let counted: Vec<Result<(), (usize, Unusable)>> = layer
            .experts
            .par_iter_mut()
            .enumerate()
            .map_init(
                || SequenceSums::new(hidden),
                |sums, (expert, total)| {
                    let outputs = observation.outputs.as_ref();
                    match outputs.and_then(|outputs| outputs.of_expert(expert as u32)) {
                        Some(outputs) => count_retained(total, outputs, length, sums, variant),
                        None => constants.count(expert, total, length),
                    }
                },
            )
            .collect();
        for (expert, counted) in counted.into_iter().enumerate() {
            counted.map_err(|(sequence, unusable)| match unusable {
                Unusable::NotFinite => PruneError::NotFinite {
                    layer: number,
                    expert,
                    sequence: first + sequence,
                },
                Unusable::TooLarge => PruneError::TooLarge {
                    layer: number,
                    expert,
                },
            })?;
        }
        Ok(())
    }
}

impl ExpertObserver for Collector<'_> {
    fn wants_outputs(&self) -> bool {
        self.failed.is_none()
    }

    fn scratch(&mut self) -> Option<&mut Vec<f32>> {
        Some(self.outputs)
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        if self.failed.is_none() {
            self.failed = self.count(observation).err();
        }
    }
}

/// The routes to constants.
struct ConstantRoutes {
    tokens: usize,
    /// By logical id: token and weight.
    of_experts: Vec<Vec<(usize, f32)>>,
}

impl ConstantRoutes {
    fn of(observation: &Observation<'_>, layer: &LayerSums) -> Self {
        let routes = observation.routes;
        let top_k = routes.top_k.max(1);
        let mut of_experts = vec![Vec::new(); layer.experts.len()];
        if !layer.substituted.is_empty() {
            for (place, (&id, &weight)) in routes.ids.iter().zip(&routes.weights).enumerate() {
                if let Route::Substituted(_) = observation.table.route(id) {
                    of_experts[id as usize].push((place / top_k, weight));
                }
            }
        }
        Self {
            tokens: routes.ids.len() / top_k,
            of_experts,
        }
    }

    fn count(
        &self,
        expert: usize,
        total: &mut ExpertSums,
        length: usize,
    ) -> Result<(), (usize, Unusable)> {
        for routes in self.of_experts[expert].chunk_by(|a, b| a.0 / length == b.0 / length) {
            let score = routes.iter().map(|&(_, weight)| f64::from(weight)).sum();
            total.tokens += routes.len() as u64;
            fixed::add(&mut total.scalars[0], score)
                .map_err(|unusable| (routes[0].0 / length, unusable))?;
        }
        Ok(())
    }
}

fn count_retained(
    total: &mut ExpertSums,
    outputs: ExpertOutputs<'_>,
    length: usize,
    sums: &mut SequenceSums,
    variant: Variant,
) -> Result<(), (usize, Unusable)> {
    let hidden = sums.output.len();
    let mut values = outputs.values;
    for routes in (outputs.routes).chunk_by(|a, b| a.token / length == b.token / length) {
        sums.clear();
        let (of_sequence, rest) = values.split_at(routes.len() * hidden);
        values = rest;
        sums.add(variant, routes, of_sequence);
        total.tokens += routes.len() as u64;
        sums.add_to(total)
            .map_err(|unusable| (routes[0].token / length, unusable))?;
    }
    Ok(())
}

/// The sums of one expert in one sequence.
struct SequenceSums {
    scalars: [f64; SCALARS],
    output: Vec<f64>,
    weighted_output: Vec<f64>,
    /// Of the routes that are added.
    squared_weights: Vec<f64>,
    squared_norms: Vec<f64>,
}

impl SequenceSums {
    fn new(hidden: usize) -> Self {
        Self {
            scalars: [0.0; SCALARS],
            output: vec![0.0; hidden],
            weighted_output: vec![0.0; hidden],
            squared_weights: Vec::new(),
            squared_norms: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.scalars = [0.0; SCALARS];
        self.output.fill(0.0);
        self.weighted_output.fill(0.0);
    }

    /// Adds those of some routes, one after the other.
    fn add(&mut self, variant: Variant, routes: &[TokenWeight], outputs: &[f32]) {
        let weight_of = |route: &TokenWeight| f64::from(route.weight);
        let squared = |weight: f64| weight * weight;
        self.squared_weights.clear();
        let weights = routes.iter().map(weight_of);
        self.squared_weights.extend(weights.map(squared));
        self.squared_norms.resize(routes.len(), 0.0);
        let moments = Moments {
            sums: &mut self.output,
            weighted_sums: &mut self.weighted_output,
            squared_norms: &mut self.squared_norms,
        };
        variant.add_moments(moments, &self.squared_weights, outputs);
        for (route, &squared_norm) in routes.iter().zip(&self.squared_norms) {
            let weight = weight_of(route);
            let norm = squared_norm.sqrt();
            let terms = [
                weight,
                squared(weight),
                norm,
                weight * norm,
                squared_norm,
                squared(weight) * squared_norm,
            ];
            for (sum, term) in self.scalars.iter_mut().zip(terms) {
                *sum += term;
            }
        }
    }

    fn add_to(&self, total: &mut ExpertSums) -> Result<(), Unusable> {
        fixed::add_all(&mut total.scalars, &self.scalars)?;
        fixed::add_all(&mut total.output, &self.output)?;
        fixed::add_all(&mut total.weighted_output, &self.weighted_output)
    }
}
