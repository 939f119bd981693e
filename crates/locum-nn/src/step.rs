//! One step of a model: some tokens of some sequences, side by side.
//!
//! Sequences of different length are not padded. What works token by token (projections, norms,
//! experts) sees all tokens of the step as one matrix; what looks at other tokens (attention) goes
//! sequence by sequence, each with its own cache. So a batch gives what its sequences give one by
//! one.

use burn::tensor::{Device, Tensor};

use crate::{ExpertObserver, KvCache, LayerCache, RotaryConfig, RotaryEmbedding};

/// The sequences of a step, with their caches and positions.
#[derive(Debug)]
pub struct Step<'c> {
    lengths: Vec<usize>,
    caches: &'c mut [KvCache],
    positions: Vec<usize>,
    /// What has been asked for so far, the model's own first.
    rotary: Vec<(RotaryConfig, RotaryEmbedding)>,
    device: Device,
    observer: Option<&'c mut dyn ExpertObserver>,
}

impl<'c> Step<'c> {
    /// A step that continues the sequence of each cache by a number of tokens.
    ///
    /// Where there are more of the one than of the other, the rest is left alone.
    #[must_use]
    pub fn new(
        lengths: &[usize],
        caches: &'c mut [KvCache],
        rotary: &RotaryConfig,
        device: &Device,
    ) -> Self {
        let positions: Vec<usize> = lengths
            .iter()
            .zip(caches.iter())
            .flat_map(|(&length, cache)| cache.tokens()..cache.tokens() + length)
            .collect();
        let embedding = rotary.embedding(positions.iter().copied(), device);
        Self {
            rotary: vec![(rotary.clone(), embedding)],
            positions,
            device: device.clone(),
            lengths: lengths[..lengths.len().min(caches.len())].to_vec(),
            caches,
            observer: None,
        }
    }

    /// The same step with somebody who looks on.
    #[must_use]
    pub fn observed<'o: 'c>(mut self, observer: Option<&'o mut (dyn ExpertObserver + 'o)>) -> Self {
        self.observer = observer.map(|observer| observer as &mut dyn ExpertObserver);
        self
    }

    /// Who looks on, if anybody does.
    pub fn observer(&mut self) -> Option<&mut dyn ExpertObserver> {
        let observer = self.observer.as_mut()?;
        Some(&mut **observer)
    }

    /// The rotations of the step's tokens.
    #[must_use]
    pub fn rotary(&self) -> &RotaryEmbedding {
        &self.rotary[0].1
    }

    /// The rotations of the step's tokens in layers that have positions of their own; computed once
    /// per step.
    #[must_use]
    pub fn rotary_of(&mut self, config: &RotaryConfig) -> RotaryEmbedding {
        let known = self.rotary.iter().find(|(known, _)| known == config);
        if let Some((_, embedding)) = known {
            return embedding.clone();
        }
        let embedding = config.embedding(self.positions.iter().copied(), &self.device);
        self.rotary.push((config.clone(), embedding.clone()));
        embedding
    }

    /// Positions of the sequences' last tokens within the step.
    pub fn last_tokens(&self) -> impl Iterator<Item = usize> {
        self.lengths.iter().scan(0, |end, &length| {
            *end += length;
            Some(usize::saturating_sub(*end, 1))
        })
    }

    /// Computes each sequence on its own: `attend` gets the first row and the number of rows of its
    /// tokens, and its cache for a layer.
    ///
    /// # Shapes
    ///
    /// `attend` gives `[tokens of the sequence, size]`; gives `[tokens, size]`.
    pub fn by_sequence(
        &mut self,
        layer: usize,
        mut attend: impl FnMut(usize, usize, &mut LayerCache) -> Tensor<2>,
    ) -> Tensor<2> {
        let mut start = 0;
        let mut parts = Vec::with_capacity(self.lengths.len());
        for (&length, cache) in self.lengths.iter().zip(self.caches.iter_mut()) {
            parts.push(attend(start, length, cache.layer(layer)));
            start += length;
        }
        match parts.len() {
            1 => parts.swap_remove(0),
            _ => Tensor::cat(parts, 0),
        }
    }

    /// Ends the step: its tokens are part of their sequences from now on.
    pub fn finish(self) {
        for (&length, cache) in self.lengths.iter().zip(self.caches.iter_mut()) {
            cache.advance(length);
        }
    }
}
