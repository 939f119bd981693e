//! The exact sums that calibration keeps: see [`fixed`](crate::fixed) for why they do not depend on order.

use std::ops::Range;

use locum_models::Model;

use crate::PruneError;
use crate::fixed;
use crate::statistics::{ExpertStatistics, LayerStatistics, Origin, Statistics};

/// How many scalars an expert has: those of [`ExpertStatistics`] that are not whole numbers, in its
/// order.
pub(crate) const SCALARS: usize = 6;

/// The sums of a model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sums {
    pub(crate) layers: Vec<LayerSums>,
}

/// The sums of one MoE layer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerSums {
    pub(crate) layer: u32,
    pub(crate) prefix: String,
    pub(crate) hidden: usize,
    pub(crate) tokens: u64,
    /// Logical ids of constants, in order.
    pub(crate) substituted: Vec<u32>,
    /// By logical id.
    pub(crate) experts: Vec<ExpertSums>,
}

/// The sums of one expert.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ExpertSums {
    pub(crate) tokens: u64,
    pub(crate) scalars: [i128; SCALARS],
    /// `[hidden]`; empty where the expert is a constant.
    pub(crate) output: Vec<i128>,
    /// The same.
    pub(crate) weighted_output: Vec<i128>,
}

impl Sums {
    /// Of nothing yet, for the MoE layers of a model.
    pub(crate) fn of_model(model: &Model) -> Self {
        let layers = model.moe_layers().iter().map(|(info, table)| {
            LayerSums::new(
                info.layer,
                info.prefix.clone(),
                info.hidden_size,
                table.num_logical(),
                table.substituted().to_vec(),
            )
        });
        Self {
            layers: layers.collect(),
        }
    }

    /// What the sums of a model take in memory, and, but for a header, as a file.
    pub(crate) fn bytes(model: &Model) -> u64 {
        let layers = model.moe_layers().iter().map(|(info, table)| {
            let channels = 2 * table.retained().len() * info.hidden_size;
            let scalars = (SCALARS + 1) * table.num_logical();
            (size_of::<i128>() * (channels + scalars)) as u64
        });
        layers.sum()
    }

    /// Whether they are of the same layers and experts.
    pub(crate) fn are_of_the_same(&self, other: &Self) -> bool {
        let mut pairs = self.layers.iter().zip(&other.layers);
        self.layers.len() == other.layers.len() && pairs.all(|(a, b)| a.is_of_the_same(b))
    }

    /// As numbers.
    pub(crate) fn statistics(&self, origin: Origin) -> Statistics {
        Statistics {
            origin,
            layers: self.layers.iter().map(LayerSums::statistics).collect(),
        }
    }
}

impl LayerSums {
    pub(crate) fn new(
        layer: u32,
        prefix: String,
        hidden: usize,
        experts: usize,
        substituted: Vec<u32>,
    ) -> Self {
        let mut sums = Self::without_channels(layer, prefix, hidden, experts, substituted);
        sums.add_channels();
        sums
    }

    /// With scalars only.
    pub(crate) fn without_channels(
        layer: u32,
        prefix: String,
        hidden: usize,
        experts: usize,
        substituted: Vec<u32>,
    ) -> Self {
        Self {
            experts: vec![ExpertSums::default(); experts],
            layer,
            prefix,
            hidden,
            tokens: 0,
            substituted,
        }
    }

    /// Gives sums by channel to those that had none yet.
    pub(crate) fn add_channels(&mut self) {
        for (id, expert) in (0..).zip(&mut self.experts) {
            if self.substituted.binary_search(&id).is_err() {
                expert.output = vec![0; self.hidden];
                expert.weighted_output = vec![0; self.hidden];
            }
        }
    }

    fn is_of_the_same(&self, other: &Self) -> bool {
        let of = |sums: &Self| (sums.layer, sums.hidden, sums.experts.len());
        of(self) == of(other)
            && (&self.prefix, &self.substituted) == (&other.prefix, &other.substituted)
    }

    /// Adds the sums of other sequences of the same layer.
    pub(crate) fn add(&mut self, other: &Self) -> Result<(), PruneError> {
        if !self.is_of_the_same(other) {
            return Err(PruneError::OtherLayers);
        }
        let layer = self.layer;
        let tokens = self.tokens.checked_add(other.tokens);
        self.tokens = tokens.ok_or(PruneError::TooManyTokens { layer })?;
        for (expert, (sums, other)) in self.experts.iter_mut().zip(&other.experts).enumerate() {
            let added = sums.add(other);
            added.ok_or(PruneError::TooLarge { layer, expert })?;
        }
        Ok(())
    }

    /// As numbers.
    pub(crate) fn statistics(&self) -> LayerStatistics {
        LayerStatistics {
            layer: self.layer,
            prefix: self.prefix.clone(),
            hidden: self.hidden,
            tokens: self.tokens,
            substituted: self.substituted.clone(),
            experts: (self.experts.iter()).map(ExpertSums::statistics).collect(),
        }
    }
}

impl ExpertSums {
    fn add(&mut self, other: &Self) -> Option<()> {
        self.tokens = self.tokens.checked_add(other.tokens)?;
        let pairs = [
            (&mut self.scalars[..], &other.scalars[..]),
            (&mut self.output, &other.output),
            (&mut self.weighted_output, &other.weighted_output),
        ];
        for (sums, others) in pairs {
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum = sum.checked_add(*other)?;
            }
        }
        Some(())
    }

    fn statistics(&self) -> ExpertStatistics {
        let [
            score,
            squared_score,
            norm,
            weighted_norm,
            squared_norm,
            weighted_squared_norm,
        ] = self.scalars.map(fixed::to_f64);
        let channels = |sums: &[i128]| sums.iter().copied().map(fixed::to_f64).collect();
        ExpertStatistics {
            tokens: self.tokens,
            score_sum: score,
            squared_score_sum: squared_score,
            norm_sum: norm,
            weighted_norm_sum: weighted_norm,
            squared_norm_sum: squared_norm,
            weighted_squared_norm_sum: weighted_squared_norm,
            output_sum: channels(&self.output),
            weighted_output_sum: channels(&self.weighted_output),
        }
    }
}

/// Joins ranges of sequences; the first that is counted twice is an error.
pub(crate) fn join(ranges: &[Range<usize>]) -> Result<Vec<Range<usize>>, Range<usize>> {
    let mut sorted: Vec<Range<usize>> = ranges.iter().filter(|r| !r.is_empty()).cloned().collect();
    sorted.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start < last.end => {
                return Err(range.start..range.end.min(last.end));
            }
            Some(last) if range.start == last.end => last.end = range.end,
            _ => joined.push(range),
        }
    }
    Ok(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        assert_eq!(join(&[4..8, 12..16, 0..4]), Ok(vec![0..8, 12..16]));
        assert_eq!(join(&[6..7, 0..4, 4..4]), Ok(vec![0..4, 6..7]));
    }

    #[test]
    fn sequences_counted_twice_are_named() {
        assert_eq!(join(&[8..16, 0..10]), Err(8..10));
        assert_eq!(join(&[0..16, 4..6]), Err(4..6));
    }

    #[test]
    fn constants_have_no_outputs() {
        let layer = LayerSums::new(2, "model.layers.2.mlp.experts".into(), 3, 4, vec![1, 3]);
        let channels: Vec<usize> = layer.experts.iter().map(|e| e.output.len()).collect();
        assert_eq!(channels, [3, 0, 3, 0]);
        let statistics = layer.statistics();
        let channels = statistics.experts.iter().map(|e| e.output_sum.len());
        assert_eq!(channels.collect::<Vec<_>>(), [3, 0, 3, 0]);
    }

    #[test]
    fn sum_beyond_the_largest_names_layer_and_expert() {
        let mut sums = LayerSums::new(5, "p".into(), 1, 2, Vec::new());
        sums.tokens = u64::MAX;
        let error = sums.clone().add(&sums).map_err(|error| error.to_string());
        assert!(error.expect_err("overflow").contains("layer 5"));
        sums.tokens = 1;
        sums.experts[1].output[0] = i128::MAX - 1;
        let other = sums.clone();
        let error = sums.add(&other).map_err(|error| error.to_string());
        let error = error.expect_err("overflow");
        assert!(error.contains("expert 1 of layer 5"), "{error}");
    }
}
