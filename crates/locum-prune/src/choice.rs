//! Which experts go: the ones of the smallest value, so many in each layer or in the whole model.

use serde::{Deserialize, Serialize};

use crate::metric::{chance, weight_norms};
use crate::plan::{LayerPlan, Plan, PlannedExpert};
use crate::{Metric, PruneError, Statistics, Subject};

/// How many experts are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// This part of the experts that have weights. Where every layer is to lose that part, it must be
    /// a whole number of each layer's experts.
    Ratio(f64),
    /// All but so many in each layer, or but so many per layer on average where they are ranked over
    /// the whole model.
    Keep(u32),
}

/// Among which experts one is ranked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Those of its layer: each layer loses the same part.
    #[default]
    Layer,
    /// Those of the whole model: layers that are needed less lose more.
    Model,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// What they are ranked by.
    pub metric: Metric,
    /// Among which.
    pub scope: Scope,
    /// How many go.
    pub amount: Amount,
    /// Experts with weights that every layer keeps at least; 1 or more.
    pub min_per_layer: u32,
    /// For [`Metric::Random`].
    pub seed: u64,
}

/// The experts of a layer that have weights, each with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedLayer {
    /// The global decoder layer.
    pub layer: u32,
    /// How many experts its router chooses from.
    pub num_logical_experts: u32,
    /// Those with weights, ascending by id.
    pub experts: Vec<RankedExpert>,
}

/// An expert and what it is ranked by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankedExpert {
    /// Its logical id.
    pub expert: u32,
    /// What the metric says.
    pub value: f64,
    /// Tokens of the calibration text that were routed to it, where there was one.
    pub tokens: Option<u64>,
}

impl Settings {
    /// Chooses experts of a model.
    ///
    /// # Errors
    ///
    /// A metric that needs statistics where there are none, a value that is not finite, or an amount
    /// that cannot be.
    pub fn plan(
        &self,
        subject: &Subject,
        statistics: Option<&Statistics>,
    ) -> Result<Plan, PruneError> {
        self.check()?;
        self.choose(&rank(subject, statistics, self.metric, self.seed)?)
    }

    /// Chooses among experts whose values are known.
    ///
    /// Smaller values go first; of equal values the one of the lower layer, and then of the lower id.
    ///
    /// # Errors
    ///
    /// A value that is not finite, or an amount that cannot be.
    pub fn choose(&self, layers: &[RankedLayer]) -> Result<Plan, PruneError> {
        self.check()?;
        for layer in layers {
            if let Some(found) = layer.experts.iter().find(|found| !found.value.is_finite()) {
                return Err(PruneError::Value {
                    metric: self.metric.name(),
                    value: found.value,
                    layer: layer.layer,
                    expert: found.expert,
                });
            }
        }
        let chosen = match self.scope {
            Scope::Layer => {
                let mut chosen = Vec::with_capacity(layers.len());
                for layer in layers {
                    let count = self.of_layer(layer)?;
                    let ranked = ranked(std::slice::from_ref(layer));
                    let first = ranked.len() - count;
                    chosen.push(planned(&ranked, |rank, _| rank > first));
                }
                chosen
            }
            Scope::Model => self.of_model(layers)?,
        };
        let layers = layers
            .iter()
            .zip(chosen)
            .map(|(layer, substituted)| LayerPlan {
                layer: layer.layer,
                num_logical_experts: layer.num_logical_experts,
                substituted,
            });
        Ok(Plan {
            settings: Some(*self),
            layers: layers.collect(),
        })
    }

    fn check(&self) -> Result<(), PruneError> {
        if let Amount::Ratio(ratio) = self.amount
            && !(ratio > 0.0 && ratio < 1.0)
        {
            return Err(PruneError::setting(
                "ratio",
                format!("{ratio} must be greater than 0 and less than 1"),
            ));
        }
        if self.min_per_layer == 0 {
            return Err(PruneError::setting(
                "min-per-layer",
                "0 would let a layer lose all its experts: give at least 1",
            ));
        }
        if let Amount::Keep(0) = self.amount {
            return Err(PruneError::setting(
                "keep",
                "0 would leave layers without experts: give at least 1",
            ));
        }
        Ok(())
    }

    /// How many experts a layer loses.
    fn of_layer(&self, layer: &RankedLayer) -> Result<usize, PruneError> {
        let (number, here) = (layer.layer, layer.experts.len());
        let least = self.min_per_layer as usize;
        if here < 2 {
            let (setting, given) = match self.amount {
                Amount::Keep(keep) => ("keep", keep.to_string()),
                Amount::Ratio(ratio) => ("ratio", ratio.to_string()),
            };
            let reason = format!(
                "{given} cannot be in layer {number}, which must keep the one expert with weights that \
                 it has: choose with --scope model, or list what goes with --experts"
            );
            return Err(PruneError::setting(setting, reason));
        }
        let count = match self.amount {
            Amount::Keep(keep) if keep as usize >= here => {
                return Err(PruneError::setting(
                    "keep",
                    format!(
                        "{keep} must be less than the {here} experts with weights of layer {number}: \
                         none would be replaced"
                    ),
                ));
            }
            Amount::Keep(keep) => here - keep as usize,
            Amount::Ratio(ratio) => {
                let exact = ratio * here as f64;
                let count = exact.round();
                if (exact - count).abs() > 1e-6 || count < 1.0 || count >= here as f64 {
                    return Err(PruneError::setting(
                        "ratio",
                        unreachable(ratio, number, here),
                    ));
                }
                count as usize
            }
        };
        if here - count < least {
            return Err(PruneError::setting(
                "min-per-layer",
                format!(
                    "{least} is more than the {} experts that layer {number} would keep",
                    here - count
                ),
            ));
        }
        Ok(count)
    }

    /// The experts that go, by layer, where all of the model are ranked together.
    fn of_model(&self, layers: &[RankedLayer]) -> Result<Vec<Vec<PlannedExpert>>, PruneError> {
        let total: usize = layers.iter().map(|layer| layer.experts.len()).sum();
        let least = self.min_per_layer as usize;
        let (option, count) = match self.amount {
            Amount::Ratio(ratio) => ("ratio", (ratio * total as f64).round() as usize),
            Amount::Keep(keep) => {
                let kept = (keep as usize).saturating_mul(layers.len());
                ("keep", total.saturating_sub(kept))
            }
        };
        if count == 0 {
            return Err(PruneError::setting(
                option,
                format!("comes to none of the model's {total} experts with weights"),
            ));
        }
        let spare = |layer: &RankedLayer| layer.experts.len().saturating_sub(least);
        let most: usize = layers.iter().map(spare).sum();
        if count > most {
            return Err(PruneError::setting(
                option,
                format!(
                    "comes to {count} of the model's {total} experts with weights, but only {most} \
                     can go where every layer keeps {least}"
                ),
            ));
        }
        let ranked = ranked(layers);
        let mut spare: Vec<usize> = layers.iter().map(spare).collect();
        let mut left = count;
        let mut chosen: Vec<Vec<PlannedExpert>> = vec![Vec::new(); layers.len()];
        // From the least needed on; a layer that has no more to spare is passed over.
        for (place, (layer, found)) in ranked.iter().enumerate().rev() {
            if left > 0 && spare[*layer] > 0 {
                left -= 1;
                spare[*layer] -= 1;
                chosen[*layer].push(found.planned(place + 1));
            }
        }
        for experts in &mut chosen {
            experts.sort_by_key(|planned| planned.expert);
        }
        Ok(chosen)
    }
}

/// What an unreachable ratio comes to, and what is near it.
fn unreachable(ratio: f64, layer: u32, here: usize) -> String {
    let exact = ratio * here as f64;
    let rounded = exact.round();
    let near = rounded.clamp(1.0, (here - 1) as f64);
    format!(
        "{ratio} of the {here} experts with weights of layer {layer} is {exact:.3}, no whole number \
         that leaves one; it rounds to {rounded}; keep {} of them, or give a ratio of {}",
        here as f64 - near,
        near / here as f64
    )
}

/// Experts from the most needed to the least: the greatest value first, and of equal values the one
/// of the greatest layer and id, for the lower ones go first.
fn ranked(layers: &[RankedLayer]) -> Vec<(usize, RankedExpert)> {
    let mut ranked: Vec<(usize, RankedExpert)> = layers
        .iter()
        .enumerate()
        .flat_map(|(place, layer)| layer.experts.iter().map(move |expert| (place, *expert)))
        .collect();
    ranked.sort_by(|(one, a), (other, b)| {
        let by_value = b.value.total_cmp(&a.value);
        by_value.then_with(|| (*other, b.expert).cmp(&(*one, a.expert)))
    });
    ranked
}

/// Those of one layer that go, ascending by id.
fn planned(
    ranked: &[(usize, RankedExpert)],
    goes: impl Fn(usize, &RankedExpert) -> bool,
) -> Vec<PlannedExpert> {
    let mut experts: Vec<PlannedExpert> = ranked
        .iter()
        .enumerate()
        .filter(|(place, (_, found))| goes(place + 1, found))
        .map(|(place, (_, found))| found.planned(place + 1))
        .collect();
    experts.sort_by_key(|planned| planned.expert);
    experts
}

impl RankedExpert {
    fn planned(&self, rank: usize) -> PlannedExpert {
        PlannedExpert {
            expert: self.expert,
            value: Some(self.value),
            rank: Some(rank as u32),
            tokens: self.tokens,
        }
    }
}

/// The experts of a model that have weights, with their values.
///
/// # Errors
///
/// A metric that needs statistics where there are none, statistics of another model, or weights that
/// cannot be read.
pub fn rank(
    subject: &Subject,
    statistics: Option<&Statistics>,
    metric: Metric,
    seed: u64,
) -> Result<Vec<RankedLayer>, PruneError> {
    if let Some(statistics) = statistics {
        crate::replacement::same_shape(subject, statistics)?;
    } else if metric.needs_statistics() {
        return Err(PruneError::NoStatistics {
            what: format!("metric {metric}"),
        });
    }
    let norms = match metric {
        Metric::Weights => Some(weight_norms(subject)?),
        _ => None,
    };
    let layer = |(place, layer): (usize, &crate::SubjectLayer)| {
        let counted = statistics.map(|statistics| &statistics.layers[place]);
        let number = layer.info.layer;
        let expert = |(row, &expert): (usize, &u32)| {
            let of_expert = counted.map(|counted| (counted, &counted.experts[expert as usize]));
            let value = match (&norms, of_expert) {
                (Some(norms), _) => norms[place][row],
                (None, Some((layer, found))) => metric
                    .of_statistics(layer, found)
                    .unwrap_or_else(|| chance(seed, number, expert)),
                (None, None) => chance(seed, number, expert),
            };
            RankedExpert {
                expert,
                value,
                tokens: of_expert.map(|(_, found)| found.tokens),
            }
        };
        RankedLayer {
            layer: number,
            num_logical_experts: layer.info.num_logical_experts,
            experts: layer
                .table
                .retained()
                .iter()
                .enumerate()
                .map(expert)
                .collect(),
        }
    };
    Ok(subject.layers().iter().enumerate().map(layer).collect())
}
