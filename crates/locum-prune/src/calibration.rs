//! Calibration: a model computes a text, and its experts are counted.

use std::borrow::Cow;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use locum_models::{Logits, Model, ModelFiles};
use serde_json::Value;

use crate::collect::Collector;
use crate::file::{LayerHeader, StatisticsFile};
use crate::fingerprint::{fingerprint, last_change, state_of_weights};
use crate::rhythm::Rhythm;
use crate::save::{Place, failed};
use crate::sequences::Sequences;
use crate::statistics::{Origin, Statistics};
use crate::sums::Sums;
use crate::{PruneError, file};

/// About how many tokens are computed at once where nothing is said.
const TOKENS_AT_ONCE: usize = 1024;

/// A part of a calibration, for one of several machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its number, from 1.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

/// How far a calibration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Sequences of this shard that are counted.
    pub done: usize,
    /// Sequences of this shard.
    pub total: usize,
}

/// What is to be calibrated, on what, and how.
///
/// Sequences are computed some at a time, in *chunks*: `batch` of them, by their numbers. What the CPU
/// kernels give a token does not depend on which others are computed with it; other devices' sums
/// may, so that the batch is part of what statistics were made of, and a shard is a range of whole chunks. So what is counted is the same, bit
/// by bit, however it is sharded, on however many threads, and however often it was interrupted.
#[derive(Clone, Debug)]
pub struct Calibration {
    model: PathBuf,
    sequences: Sequences,
    origin: Origin,
    shard: Range<usize>,
    experts_per_token: usize,
}

impl Calibration {
    /// A calibration of all sequences. The model needs no weights yet.
    ///
    /// # Errors
    ///
    /// A model without MoE layers, tokens that it does not have, or files that cannot be read.
    pub fn new(
        files: &ModelFiles,
        model: &Model,
        sequences: Sequences,
    ) -> Result<Self, PruneError> {
        if model.moe_layers().is_empty() {
            return Err(PruneError::NoMoeLayer(files.name().into()));
        }
        for number in 0..sequences.count() {
            model.check_ids(&[sequences.sequence(number).to_vec()], &[0])?;
        }
        let origin = Origin {
            model: fingerprint(files, model)?,
            kernels: locum_nn::kernels(model.device(), model.activations()),
            activations: format!("{:?}", model.activations()).to_lowercase(),
            text: sequences.hash(),
            length: sequences.length(),
            batch: (TOKENS_AT_ONCE / sequences.length()).max(1),
            sequences: sequences.count(),
            seed: sequences.seed(),
            covered: Vec::new(),
        };
        Ok(Self {
            model: files.name().into(),
            shard: 0..sequences.count(),
            sequences,
            origin,
            experts_per_token: experts_per_token(files.config(), model),
        })
    }

    /// The same of all sequences with another number of them that are computed at once; at least one.
    /// About 1024 tokens are, where nothing is said.
    #[must_use]
    pub fn with_batch(mut self, batch: usize) -> Self {
        self.origin.batch = batch.max(1);
        // Shards are of whole chunks.
        self.shard = 0..self.sequences.count();
        self
    }

    /// A part of it, by the batch that was said before.
    ///
    /// # Errors
    ///
    /// A shard that is none of so many, or that has no sequence.
    pub fn with_shard(mut self, Shard { index, count }: Shard) -> Result<Self, PruneError> {
        let (sequences, batch) = (self.sequences.count(), self.origin.batch);
        let chunks = sequences.div_ceil(batch);
        if index == 0 || index > count || count > chunks {
            return Err(PruneError::Shard {
                index,
                count,
                sequences,
                batch,
                most: chunks,
            });
        }
        let start = |shard: usize| (chunks * shard / count * batch).min(sequences);
        self.shard = start(index - 1)..start(index);
        Ok(self)
    }

    /// The sequences of this shard, by their numbers.
    #[must_use]
    pub fn shard(&self) -> Range<usize> {
        self.shard.clone()
    }

    /// Tokens of a sequence.
    #[must_use]
    pub fn length(&self) -> usize {
        self.origin.length
    }

    /// What the statistics take, in memory and as a file.
    #[must_use]
    pub fn bytes(&self, model: &Model) -> u64 {
        Sums::bytes(model)
    }

    /// What the outputs of a layer's experts take while a chunk is counted: those of one layer at a time
    /// are in memory.
    #[must_use]
    pub fn outputs_bytes(&self, model: &Model) -> u64 {
        let tokens = self.origin.batch.min(self.shard.len()) * self.origin.length;
        let of_layer = |hidden: usize| (tokens * self.experts_per_token * hidden) as u64;
        let hidden = model.moe_layers().iter().map(|(info, _)| info.hidden_size);
        size_of::<f32>() as u64 * of_layer(hidden.max().unwrap_or(0))
    }

    /// How many sequences are computed at once.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.origin.batch
    }

    /// Starts, or resumes, a run that leaves its statistics in a file; `model` without weights. Where the
    /// file is there already, and is what this would write, nothing is left to do.
    ///
    /// # Errors
    ///
    /// A place that cannot be written to, is among the model's files, is one of the texts, holds what is
    /// no statistics file, or that another process writes to; progress of another calibration.
    pub fn start(&self, model: &Model, out: &Path) -> Result<Run<'_>, PruneError> {
        let place = Place::take(out, Some(&self.model), self.sequences.texts())?;
        let mut run = Run {
            sums: Sums::of_model(model),
            next: self.shard.start,
            weights: state_of_weights(model)?,
            already: false,
            out: out.into(),
            place,
            calibration: self,
        };
        if self.is_counted(model, &run)? {
            run.already = true;
            run.next = self.shard.end;
        } else if fs::symlink_metadata(run.place.progress()).is_ok() {
            let partial = run.place.progress();
            let file = StatisticsFile::open(&partial)?;
            self.check_progress(&partial, file.origin())?;
            if file.weights() != Some(&run.weights) {
                return Err(PruneError::OtherWeights { path: partial });
            }
            let sums = file.sums()?;
            if !sums.are_of_the_same(&run.sums) {
                return Err(PruneError::OtherLayers);
            }
            run.next = file.origin().covered[0].end;
            run.sums = sums;
        }
        Ok(run)
    }

    /// Whether a run's file is what it would write: of this calibration, and newer than the weights, of
    /// which statistics know the routers only.
    fn is_counted(&self, model: &Model, run: &Run<'_>) -> Result<bool, PruneError> {
        let target = run.place.target();
        // What cannot be read, of an older version say, is replaced.
        let Ok(file) = StatisticsFile::open(target) else {
            return Ok(false);
        };
        let made = fs::metadata(target).and_then(|found| found.modified());
        let made = made.map_err(failed("look at", &run.out))?;
        let of_this = file.origin().difference(&self.origin).is_none();
        Ok(of_this
            && last_change(model)?.is_none_or(|changed| changed < made)
            && file.weights().is_none()
            && file.origin().covered.as_slice() == std::slice::from_ref(&self.shard))
    }

    /// Calibrates in memory.
    ///
    /// # Errors
    ///
    /// NaN or an infinity among activations, sums that are too large.
    pub fn collect(
        &self,
        model: &Model,
        mut progress: impl FnMut(Progress),
    ) -> Result<Statistics, PruneError> {
        let mut sums = Sums::of_model(model);
        let (mut next, mut outputs) = (self.shard.start, Vec::new());
        while next < self.shard.end {
            progress(self.progress(next));
            next = self.count_chunk(model, &mut sums, &mut outputs, next)?;
        }
        progress(self.progress(next));
        Ok(sums.statistics(self.origin(next)))
    }

    fn progress(&self, next: usize) -> Progress {
        Progress {
            done: next - self.shard.start,
            total: self.shard.len(),
        }
    }

    /// Counts the chunk that starts with a sequence, and gives the first one after it.
    fn count_chunk(
        &self,
        model: &Model,
        sums: &mut Sums,
        outputs: &mut Vec<f32>,
        first: usize,
    ) -> Result<usize, PruneError> {
        let end = self.shard.end.min(first + self.origin.batch);
        let ids: Vec<Vec<i64>> = (first..end)
            .map(|number| self.sequences.sequence(number).to_vec())
            .collect();
        let mut caches = vec![model.new_cache(); ids.len()];
        let mut collector = Collector::new(sums, outputs, self.sequences.length(), first);
        model.logits_observed(&ids, &mut caches, Logits::None, Some(&mut collector))?;
        collector.finish()?;
        Ok(end)
    }

    /// With the sequences before one counted.
    fn origin(&self, next: usize) -> Origin {
        Origin {
            covered: std::iter::once(self.shard.start..next).collect(),
            ..self.origin.clone()
        }
    }

    fn check_progress(&self, partial: &Path, found: &Origin) -> Result<(), PruneError> {
        let other = |(what, found, expected)| PruneError::OtherProgress {
            path: partial.into(),
            what,
            found,
            expected,
        };
        if let Some(difference) = found.difference(&self.origin) {
            return Err(other(difference));
        }
        let shard = &self.shard;
        match found.covered.as_slice() {
            [covered] if covered.start == shard.start && covered.end <= shard.end => Ok(()),
            covered => Err(other((
                "sequences are",
                format!("{covered:?}"),
                format!("those of {shard:?}"),
            ))),
        }
    }
}

/// A calibration whose statistics go to a file.
///
/// The sums are written beside the file, as `….partial`, after the first chunk and then as soon as what was
/// computed since took twenty times as long as writing them did. So writing takes at most a twentieth of
/// the time, and a process that is killed loses what it computed in at most twenty times the time of one
/// writing, and the chunk that it was at: that chunk alone, where it takes longer than that.
///
/// That is for processes. A file is forced to the disk only where what was computed since the last one was
/// took a hundred times as long as that takes: what a power failure leaves of those between is up to the
/// file system. In the end the file is forced to the disk, and gets its name.
///
/// Nobody else may start a run of the same file until this is dropped.
#[derive(Debug)]
pub struct Run<'c> {
    calibration: &'c Calibration,
    place: Place,
    /// As it was given, for messages.
    out: PathBuf,
    sums: Sums,
    /// The state of the model's weights, for progress.
    weights: String,
    /// The first sequence that is not counted.
    next: usize,
    /// Whether the file was there.
    already: bool,
}

impl Run<'_> {
    /// How far it is: more than nothing where it was resumed.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.calibration.progress(self.next)
    }

    /// Whether the file is there already: no weights are needed to finish.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.already
    }

    /// Counts the sequences that are left, and writes the file.
    ///
    /// # Errors
    ///
    /// NaN or an infinity among activations, sums that are too large, a file that cannot be written.
    /// What was written until then is kept beside the file.
    pub fn finish(
        mut self,
        model: &Model,
        mut progress: impl FnMut(Progress),
    ) -> Result<(), PruneError> {
        let calibration = self.calibration;
        let end = calibration.shard.end;
        let mut rhythm = Rhythm::default();
        let mut outputs = Vec::new();
        progress(self.progress());
        while self.next < end {
            let start = Instant::now();
            self.next = calibration.count_chunk(model, &mut self.sums, &mut outputs, self.next)?;
            rhythm.computed(start.elapsed());
            if self.next < end
                && let Some(durable) = rhythm.due()
            {
                let start = Instant::now();
                self.save_progress(durable)?;
                rhythm.saved(start.elapsed(), durable);
            }
            progress(self.progress());
        }
        if !self.already {
            let target = self.place.target();
            self.save(target, None, true)?;
        }
        self.remove_progress();
        Ok(())
    }

    fn save_progress(&self, durable: bool) -> Result<(), PruneError> {
        self.save(&self.place.progress(), Some(&self.weights), durable)
    }

    fn save(&self, path: &Path, weights: Option<&str>, durable: bool) -> Result<(), PruneError> {
        let origin = self.calibration.origin(self.next);
        let layers: Vec<LayerHeader> = self.sums.layers.iter().map(LayerHeader::of).collect();
        let sums = |place: usize| Ok(Cow::Borrowed(&self.sums.layers[place]));
        self.place.save(path, durable, |to| {
            file::write(&origin, weights, &layers, sums, &self.out, to)
        })
    }

    /// Removes the progress of this calibration, which the file makes needless; what is none stays.
    fn remove_progress(&self) {
        let path = self.place.progress();
        let of_this = |file: StatisticsFile| {
            file.weights().is_some()
                && (self.calibration.check_progress(&path, file.origin())).is_ok()
        };
        if StatisticsFile::open(&path).is_ok_and(of_this) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// How many experts a token is routed to, for what memory is needed: all of them where it is not known.
fn experts_per_token(config: &Value, model: &Model) -> usize {
    let maps = [config.get("text_config"), Some(config)]
        .into_iter()
        .flatten();
    let said = maps.filter_map(|map| map.get("num_experts_per_tok")?.as_u64());
    let tables = model
        .moe_layers()
        .iter()
        .map(|(_, table)| table.num_logical());
    let most = tables.max().unwrap_or(0);
    said.map(|said| said as usize)
        .next()
        .unwrap_or(most)
        .min(most)
}
