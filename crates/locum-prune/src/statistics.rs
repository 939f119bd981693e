//! What calibration knows of a model's experts.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ChannelSums;

/// Statistics of a whole model, in a file that was opened or just made.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// What they were made of.
    pub origin: Origin,
    /// The MoE layers that have retained experts, in order.
    pub layers: Vec<LayerStatistics>,
}

/// What statistics were made of. Statistics that are merged agree in all of it but
/// [`covered`](Self::covered).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// The model: a hash of its configuration, its substituted experts and its router weights.
    pub model: String,
    /// The kernels that computed: sums depend on them.
    pub kernels: String,
    /// The type of activations.
    pub activations: String,
    /// The text: a hash of its tokens.
    pub text: String,
    /// Tokens of a sequence.
    pub length: usize,
    /// Sequences that were computed at once.
    pub batch: usize,
    /// Sequences of the whole calibration.
    pub sequences: usize,
    /// The seed that sequences were drawn by; none where they are the first ones of the text.
    pub seed: Option<u64>,
    /// Which of the sequences were counted: ranges, in order, that do not touch.
    pub covered: Vec<Range<usize>>,
}

impl Origin {
    /// How many sequences were counted.
    #[must_use]
    pub fn counted(&self) -> usize {
        self.covered.iter().map(Range::len).sum()
    }

    /// Whether all sequences were counted: a shard's statistics are of some of them.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.counted() == self.sequences
    }

    /// What cannot be so of any calibration, which a file may say all the same.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut end = None;
        for range in &self.covered {
            let follows = end.is_none_or(|end| range.start > end);
            if !follows || range.is_empty() || range.end > self.sequences {
                return Err(format!(
                    "its sequences {range:?} of {} are not ranges in order",
                    self.sequences
                ));
            }
            end = Some(range.end);
        }
        Ok(())
    }

    /// The first thing but coverage that two differ in, with what it is in each.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let of = |origin: &Self| {
            let seed = (origin.seed).map_or_else(|| "none".into(), |seed| seed.to_string());
            [
                ("models", origin.model.clone()),
                ("kernels", origin.kernels.clone()),
                ("activations", origin.activations.clone()),
                ("lengths", origin.length.to_string()),
                ("batches", origin.batch.to_string()),
                ("numbers of sequences", origin.sequences.to_string()),
                ("seeds", seed),
                ("texts", origin.text.clone()),
            ]
        };
        let pairs = of(self).into_iter().zip(of(other));
        pairs
            .map(|((what, found), (_, expected))| (what, found, expected))
            .find(|(_, found, expected)| found != expected)
    }
}

/// One MoE layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerStatistics {
    /// The global decoder layer.
    pub layer: u32,
    /// Where a checkpoint has the experts: `model.layers.3.mlp.experts`.
    pub prefix: String,
    /// The size of a token.
    pub hidden: usize,
    /// All tokens that the layer saw, whatever their experts.
    pub tokens: u64,
    /// Logical ids of the experts that are constants already, in order.
    pub substituted: Vec<u32>,
    /// By logical id, all experts that the router chooses from. Of an expert that is a constant already,
    /// only `tokens` and `score_sum` are counted.
    pub experts: Vec<ExpertStatistics>,
}

/// Sums over the tokens that were routed to an expert: `w` is the router weight of the forward pass, `y`
/// the expert's output before it is weighted. Only the scalars are in memory: sums by channel are
/// [read](ChannelSums::read) from the statistics file by who asks for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertStatistics {
    /// Routed tokens.
    pub tokens: u64,
    /// `Σ w`
    pub score_sum: f64,
    /// `Σ w²`
    pub squared_score_sum: f64,
    /// `Σ ‖y‖`
    pub norm_sum: f64,
    /// `Σ w·‖y‖`
    pub weighted_norm_sum: f64,
    /// `Σ ‖y‖²`
    pub squared_norm_sum: f64,
    /// `Σ w²·‖y‖²`
    pub weighted_squared_norm_sum: f64,
    /// `Σ y`, `[hidden]`; empty where the expert was a constant already.
    pub output_sum: ChannelSums,
    /// `Σ w²·y`, the same.
    pub weighted_output_sum: ChannelSums,
}

impl ExpertStatistics {
    /// `E y` over the routed tokens, `[hidden]`: the constant of MoNE (arXiv 2507.00390, section 3).
    /// Zeros where no token was routed.
    #[must_use]
    pub fn mean(&self) -> Vec<f64> {
        let tokens = self.tokens.max(1) as f64;
        let sums = self.output_sum.read();
        sums.iter().map(|sum| sum / tokens).collect()
    }

    /// `‖std y‖₂ = √(E‖y‖² − ‖E y‖²)`, the root of the variances' sum over channels. Zero where no
    /// token was routed.
    #[must_use]
    pub fn std_norm(&self) -> f64 {
        let mean_square = self.squared_norm_sum / self.tokens.max(1) as f64;
        let square_of_mean: f64 = self.mean().iter().map(|mean| mean * mean).sum();
        (mean_square - square_of_mean).max(0.0).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the outputs (1, 5), (3, 5) and (2, 8).
    fn of_three() -> ExpertStatistics {
        ExpertStatistics {
            tokens: 3,
            output_sum: vec![6.0, 18.0].into(),
            squared_norm_sum: 26.0 + 34.0 + 68.0,
            ..ExpertStatistics::default()
        }
    }

    #[test]
    fn mean_and_deviation_are_those_of_the_outputs() {
        let expert = of_three();
        assert_eq!(expert.mean(), [2.0, 6.0]);
        // Variances (1 + 1 + 0) / 3 and (1 + 1 + 4) / 3.
        assert!((expert.std_norm() - (8.0f64 / 3.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn expert_without_tokens_is_zero() {
        let expert = ExpertStatistics {
            output_sum: vec![0.0; 2].into(),
            ..ExpertStatistics::default()
        };
        assert_eq!((expert.mean(), expert.std_norm()), (vec![0.0; 2], 0.0));
    }
}
