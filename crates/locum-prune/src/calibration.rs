//! Calibration: a model computes a text, and its experts are counted.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use locum_models::{Logits, Model, ModelFiles};

use crate::collect::Collector;
use crate::fingerprint::fingerprint;
use crate::save::{beside, check_place, failed, save, sync_directory};
use crate::sequences::Sequences;
use crate::statistics::{Origin, Statistics};
use crate::sums::{self, Sums};
use crate::{PruneError, file};

/// About how many tokens are computed at once where nothing is said.
const TOKENS_AT_ONCE: usize = 1024;

/// How much longer than making progress durable the computation of that progress has to take.
const DURABLE_FROM: u32 = 100;

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
/// Sequences are computed some at a time, in *chunks*: `batch` of them, by their numbers. Sums of the
/// kernels depend on how many tokens are computed at once, so that the batch is part of what
/// statistics were made of; a shard is a range of whole chunks. So what is counted is the same, bit
/// by bit, however it is sharded, on however many threads, and however often it was interrupted.
#[derive(Clone, Debug)]
pub struct Calibration {
    model: PathBuf,
    sequences: Sequences,
    origin: Origin,
    shard: Range<usize>,
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

    /// How many sequences are computed at once.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.origin.batch
    }

    /// Starts, or resumes, a run that leaves its statistics in a file; `model` without weights.
    ///
    /// # Errors
    ///
    /// A place that cannot be written to or is among the model's files; progress of another
    /// calibration.
    pub fn start(&self, model: &Model, out: &Path) -> Result<Run<'_>, PruneError> {
        check_place(out, &self.model)?;
        let partial = beside(out, ".partial");
        let mut run = Run {
            sums: Sums::of_model(model),
            next: self.shard.start,
            out: out.into(),
            calibration: self,
        };
        if fs::symlink_metadata(&partial).is_ok() {
            let (origin, sums) = file::read(&partial)?;
            self.check_progress(&partial, &origin)?;
            if !sums.are_of_the_same(&run.sums) {
                return Err(PruneError::OtherLayers);
            }
            run.sums = sums;
            run.next = origin.covered[0].end;
        }
        Ok(run)
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
/// After each chunk the sums are written beside the file, as `….partial`: a process that is killed
/// loses the chunk that it was at, and nothing else. So that it costs at most a hundredth of the time, a
/// chunk's file is forced to the disk only where what was computed since the last one took a hundred
/// times as long as that takes: what a power failure leaves of those between is up to the file system.
/// In the end the file is forced to the disk, and gets its final name.
#[derive(Debug)]
pub struct Run<'c> {
    calibration: &'c Calibration,
    out: PathBuf,
    sums: Sums,
    /// The first sequence that is not counted.
    next: usize,
}

impl Run<'_> {
    /// How far it is: more than nothing where it was resumed.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.calibration.progress(self.next)
    }

    /// Counts the sequences that are left, and writes the file.
    ///
    /// # Errors
    ///
    /// NaN or an infinity among activations, sums that are too large, a file that cannot be written.
    /// What was counted until then is kept beside the file.
    pub fn finish(
        mut self,
        model: &Model,
        mut progress: impl FnMut(Progress),
    ) -> Result<(), PruneError> {
        let calibration = self.calibration;
        let partial = beside(&self.out, ".partial");
        let end = calibration.shard.end;
        let (mut computed, mut durable) = (Duration::ZERO, Duration::ZERO);
        let mut outputs = Vec::new();
        progress(self.progress());
        while self.next < end {
            let start = Instant::now();
            self.next = calibration.count_chunk(model, &mut self.sums, &mut outputs, self.next)?;
            computed += start.elapsed();
            if self.next < end {
                let start = Instant::now();
                let to_disk = computed >= durable * DURABLE_FROM;
                self.save(&partial, to_disk)?;
                if to_disk {
                    (computed, durable) = (Duration::ZERO, start.elapsed());
                }
            }
            progress(self.progress());
        }
        self.save(&partial, true)?;
        fs::rename(&partial, &self.out).map_err(failed("write", &self.out))?;
        sync_directory(&self.out);
        Ok(())
    }

    fn save(&self, path: &Path, durable: bool) -> Result<(), PruneError> {
        let origin = self.calibration.origin(self.next);
        save(path, durable, |out| file::write(&self.sums, &origin, out))
    }
}

/// Puts the statistics of parts of a calibration together: what is written is the same, bit by bit, in
/// whatever parts and order, and that of all parts is what a calibration without parts writes.
///
/// # Errors
///
/// Files that cannot be read, that were not made in the same way, or that count a sequence twice; a
/// place that cannot be written to.
pub fn merge(parts: &[PathBuf], out: &Path) -> Result<Origin, PruneError> {
    let (first, rest) = parts.split_first().ok_or(PruneError::NothingToMerge)?;
    check_place(out, Path::new(""))?;
    let (mut origin, mut sums) = file::read(first)?;
    for path in rest {
        let (other, other_sums) = file::read(path)?;
        if let Some((what, first_value, second)) = origin.difference(&other) {
            return Err(PruneError::Differ {
                paths: [first.clone(), path.clone()],
                what,
                first: first_value,
                second,
            });
        }
        origin.covered.extend(other.covered);
        origin.covered = sums::join(&origin.covered).map_err(|sequences| PruneError::Overlap {
            path: path.clone(),
            sequences,
        })?;
        sums.add(&other_sums)?;
    }
    save(out, true, |out| file::write(&sums, &origin, out))?;
    Ok(origin)
}
