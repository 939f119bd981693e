//! How well a model predicts a text, and how far it is from another: what pruning cost.

mod distribution;
mod encounters;
mod windows;

use std::time::{Duration, Instant};

use locum_models::{Logits, Model};
use locum_nn::{ExpertObserver, KvCache, Observation};
use locum_substitution::{MoeLayerInfo, RouteTable};
use rayon::prelude::*;

use crate::PruneError;
use distribution::Distribution;

pub use encounters::Encounters;
pub use windows::{Steps, Windows};

/// What a text says about a model, and about how it differs from another.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// Windows of the text.
    pub windows: usize,
    /// Predictions in all windows.
    pub predictions: usize,
    /// The model.
    pub model: ModelEvaluation,
    /// The one that it was compared with.
    pub comparison: Option<Comparison>,
}

/// How well a model predicts a text.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelEvaluation {
    /// Mean of `−ln p(token)` over all predictions, in nats.
    pub negative_log_likelihood: f64,
    /// Time in the model alone.
    pub time: Duration,
    /// Tokens that the model computed in this time.
    pub tokens: usize,
    /// What each of the model's MoE layers met, in order.
    pub layers: Vec<Encounters>,
}

/// How a model differs from another, which it is meant to stand in for.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The other model.
    pub other: ModelEvaluation,
    /// Share of the positions at which both have the same most likely token (of equally likely ones,
    /// that with the lowest id).
    pub token_agreement: f64,
    /// Mean of `KL(p_other‖p_model) = Σ p_other·ln(p_other / p_model)` over all positions, in nats: what
    /// is lost by predicting with the model in place of the other.
    pub kl_divergence: f64,
}

impl ModelEvaluation {
    /// `exp` of the mean negative log likelihood.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.negative_log_likelihood.exp()
    }

    /// Tokens per second.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.time.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Checks that a model can read the windows of a text. Needs no weights.
///
/// # Errors
///
/// Windows beyond its context, or tokens that it does not have.
pub fn check_windows(model: &Model, windows: &Windows) -> Result<(), PruneError> {
    for window in 0..windows.count() {
        model.check_ids(&[windows.inputs(window).to_vec()], &[0])?;
        model.check_ids(&[windows.targets(window).to_vec()], &[0])?;
    }
    Ok(())
}

/// Checks that two models can be compared. Needs no weights.
///
/// # Errors
///
/// Vocabularies of different size.
pub fn check_vocabularies(model: &Model, other: &Model) -> Result<(), PruneError> {
    let [found, expected] = [model, other].map(|model| model.limits().vocabulary);
    if found != expected {
        return Err(PruneError::OtherVocabulary { found, expected });
    }
    Ok(())
}

/// Predicts all windows with a model, and with another if one is given; `progress` gets the number of
/// predictions after each step.
///
/// Sums go in the order of the text and in `f64`, so the result does not depend on the number of
/// threads. What is in memory beside the models are the logits of one step.
///
/// # Errors
///
/// What [`check_windows`] and [`check_vocabularies`] refuse, and logits that are no distribution.
pub fn evaluate(
    model: &Model,
    other: Option<&Model>,
    windows: &Windows,
    mut progress: impl FnMut(usize),
) -> Result<Evaluation, PruneError> {
    check_windows(model, windows)?;
    if let Some(other) = other {
        check_vocabularies(model, other)?;
        check_windows(other, windows)?;
    }
    let mut run = Run::new(model);
    let mut other_run = other.map(Run::new);
    let (mut agreed, mut divergence) = (0usize, 0.0f64);
    let vocabulary = model.limits().vocabulary;
    let Steps {
        windows: batch,
        tokens: piece,
    } = windows.steps(vocabulary);

    let all: Vec<usize> = (0..windows.count()).collect();
    for batch in all.chunks(batch) {
        run.start(batch.len());
        if let Some(other) = &mut other_run {
            other.start(batch.len());
        }
        for start in (0..windows.length()).step_by(piece) {
            let end = (start + piece).min(windows.length());
            let ids: Vec<Vec<i64>> = batch
                .iter()
                .map(|&window| windows.inputs(window)[start..end].to_vec())
                .collect();
            let targets: Vec<usize> = batch
                .iter()
                .flat_map(|&window| &windows.targets(window)[start..end])
                .map(|&id| id as usize)
                .collect();
            let logits = run.logits(&ids)?;
            let other_logits = match &mut other_run {
                Some(other) => Some(other.logits(&ids)?),
                None => None,
            };
            let others = |row: usize| {
                let logits = other_logits.as_ref()?;
                Some(&logits[row * vocabulary..][..vocabulary])
            };
            let positions: Vec<Result<Position, Which>> = logits
                .par_chunks(vocabulary)
                .zip(&targets)
                .enumerate()
                .map(|(row, (logits, &target))| Position::of(logits, others(row), target))
                .collect();
            for (row, position) in positions.into_iter().enumerate() {
                let position = position.map_err(|which| PruneError::NoDistribution {
                    model: match (which, other) {
                        (Which::Other, Some(other)) => other.checkpoint().path().into(),
                        _ => model.checkpoint().path().into(),
                    },
                    window: batch[row / (end - start)],
                    token: start + row % (end - start),
                })?;
                run.surprise += position.surprise;
                if let (Some(other), Some(compared)) = (&mut other_run, position.compared) {
                    other.surprise += compared.surprise;
                    agreed += usize::from(compared.agrees);
                    divergence += compared.divergence;
                }
            }
            progress(targets.len());
        }
    }

    let predictions = windows.count() * windows.length();
    let mean = |sum: f64| sum / predictions as f64;
    Ok(Evaluation {
        windows: windows.count(),
        predictions,
        model: run.finish(predictions),
        comparison: other_run.map(|other| Comparison {
            other: other.finish(predictions),
            token_agreement: mean(agreed as f64),
            kl_divergence: mean(divergence),
        }),
    })
}

/// What one position's logits give.
struct Position {
    /// `−ln p(target)`
    surprise: f64,
    compared: Option<Compared>,
}

struct Compared {
    /// `−ln p(target)` of the other model.
    surprise: f64,
    agrees: bool,
    divergence: f64,
}

/// Which model's logits are no distribution.
enum Which {
    Model,
    Other,
}

impl Position {
    fn of(logits: &[f32], other: Option<&[f32]>, target: usize) -> Result<Self, Which> {
        let here = Distribution::new(logits).ok_or(Which::Model)?;
        let compared = match other {
            None => None,
            Some(other) => {
                let other = Distribution::new(other).ok_or(Which::Other)?;
                Some(Compared {
                    surprise: -other.log_probability(target),
                    agrees: other.best() == here.best(),
                    divergence: other.divergence_from(&here),
                })
            }
        };
        Ok(Self {
            surprise: -here.log_probability(target),
            compared,
        })
    }
}

/// One model on its way through the text.
struct Run<'m> {
    model: &'m Model,
    caches: Vec<KvCache>,
    surprise: f64,
    time: Duration,
    tokens: usize,
    layers: Vec<Encounters>,
}

impl<'m> Run<'m> {
    fn new(model: &'m Model) -> Self {
        Self {
            model,
            caches: Vec::new(),
            surprise: 0.0,
            time: Duration::ZERO,
            tokens: 0,
            layers: vec![Encounters::default(); model.moe_layers().len()],
        }
    }

    /// Begins some windows.
    fn start(&mut self, windows: usize) {
        self.caches = vec![self.model.new_cache(); windows];
    }

    /// Continues the windows; `[all tokens, vocabulary]`.
    fn logits(&mut self, ids: &[Vec<i64>]) -> Result<Vec<f32>, PruneError> {
        let start = Instant::now();
        let logits = self.model.logits_observed(
            ids,
            &mut self.caches,
            Logits::All,
            Some(&mut Counter {
                layers: self.model.moe_layers(),
                counts: &mut self.layers,
            }),
        )?;
        self.time += start.elapsed();
        self.tokens += ids.iter().map(Vec::len).sum::<usize>();
        Ok(logits)
    }

    fn finish(self, predictions: usize) -> ModelEvaluation {
        ModelEvaluation {
            negative_log_likelihood: self.surprise / predictions as f64,
            time: self.time,
            tokens: self.tokens,
            layers: self.layers,
        }
    }
}

/// Counts what each MoE layer meets.
struct Counter<'a> {
    layers: &'a [(MoeLayerInfo, RouteTable)],
    counts: &'a mut [Encounters],
}

impl ExpertObserver for Counter<'_> {
    fn observe(&mut self, observation: &Observation<'_>) {
        let mut layers = self.layers.iter().zip(self.counts.iter_mut());
        if let Some((_, counts)) = layers.find(|((info, _), _)| info.layer == observation.layer) {
            *counts += Encounters::of(observation.routes, observation.table);
        }
    }
}
