//! What can go wrong in making a checkpoint.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use locum_checkpoint::CheckpointError;
use locum_models::ModelError;
use locum_substitution::Dtype;

/// What can go wrong in making a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PruneError {
    /// Of the model.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// Of its files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),

    /// A call to the file system.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },

    /// A model whose layers are all dense.
    #[error("{} has no MoE layer: there is no expert to calibrate or to replace", .0.display())]
    NoMoeLayer(PathBuf),

    /// Sequences longer than the model's context, or without a token.
    #[error("a length of {length} tokens is not between 1 and the model's context of {most}")]
    Length {
        /// What was asked for.
        length: usize,
        /// The model's context.
        most: usize,
    },

    /// A text that makes no sequence, or no window: one of `n` predictions takes `n + 1` tokens.
    #[error(
        "the text has {tokens} tokens, fewer than one sequence of {length}: give more text, or a \
         shorter --length"
    )]
    TextTooShort {
        /// The text's tokens.
        tokens: usize,
        /// Those of a sequence.
        length: usize,
    },

    /// A text that makes too few sequences.
    #[error(
        "{wanted} sequences were asked for, but the text has {found} of {length} tokens: give more \
         text, or --sequences between 1 and {found}"
    )]
    TooFewSequences {
        /// How many were asked for.
        wanted: usize,
        /// How many there are.
        found: usize,
        /// Tokens of each.
        length: usize,
    },

    /// A shard that is none of so many, or that has nothing to do.
    #[error(
        "shard {index}/{count} has no sequence: {sequences} sequences, {batch} at a time, make at \
         most {most} shards, from 1/{most} to {most}/{most}"
    )]
    Shard {
        /// Its number, from 1.
        index: usize,
        /// How many shards there are.
        count: usize,
        /// All sequences.
        sequences: usize,
        /// How many are computed at once.
        batch: usize,
        /// The most shards that there can be.
        most: usize,
    },

    /// A file that would be written among those of the model.
    #[error(
        "{} is inside the model's directory {}: write it somewhere else", path.display(),
        model.display()
    )]
    InsideModel {
        /// The file.
        path: PathBuf,
        /// The model.
        model: PathBuf,
    },

    /// A file that would be replaced by statistics and is none.
    #[error(
        "{} exists and is no statistics file: give another --out", path.display()
    )]
    NotReplaced {
        /// The file.
        path: PathBuf,
    },

    /// A file that would be replaced by what is made from it.
    #[error("{} is read and written at once: give another --out", path.display())]
    OutputIsInput {
        /// The file.
        path: PathBuf,
    },

    /// A place that another process writes to.
    #[error(
        "another process is calibrating into {}: wait for it, or give another --out",
        path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },

    /// Progress of the same calibration, whose weights have changed since.
    #[error(
        "{} was counted with other weights: the files of the model have changed since; delete {}",
        path.display(), path.display()
    )]
    OtherWeights {
        /// The file.
        path: PathBuf,
    },

    /// Activations that cannot be counted.
    #[error(
        "the output or the router weight of expert {expert} in layer {layer} is NaN or infinite in \
         sequence {sequence}: the weights, or their dtype, are unusable for this text"
    )]
    NotFinite {
        /// The global decoder layer.
        layer: u32,
        /// The logical expert.
        expert: usize,
        /// The sequence, from 0.
        sequence: usize,
    },

    /// Sums beyond what an exact sum holds.
    #[error(
        "a sum of expert {expert} of layer {layer} is beyond 2^54: calibrate on less text, or \
         check the weights"
    )]
    TooLarge {
        /// The global decoder layer.
        layer: u32,
        /// The logical expert.
        expert: usize,
    },

    /// A file that is no statistics file.
    #[error(
        "{} is not a statistics file of `locum calibrate`: {reason}", path.display()
    )]
    NotStatistics {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },

    /// Progress of a calibration that is not this one.
    #[error(
        "{} is the progress of another calibration: its {what} {found}, here {expected}; delete it, \
         or give another --out", path.display()
    )]
    OtherProgress {
        /// The file.
        path: PathBuf,
        /// In what they differ.
        what: &'static str,
        /// What the file says.
        found: String,
        /// What was asked for.
        expected: String,
    },

    /// Nothing to merge.
    #[error("no statistics to merge: give at least one file")]
    NothingToMerge,

    /// Statistics that were not made in the same way.
    #[error(
        "cannot merge {} and {}: their {what} differ: {first} and {second}", paths[0].display(),
        paths[1].display()
    )]
    Differ {
        /// The files.
        paths: [PathBuf; 2],
        /// In what they differ.
        what: &'static str,
        /// What the first one has.
        first: String,
        /// What the second one has.
        second: String,
    },

    /// Sequences that two statistics count.
    #[error(
        "cannot merge {}: sequences {} to {} are counted in an earlier file too", path.display(),
        sequences.start, sequences.end - 1
    )]
    Overlap {
        /// The second file that counts them.
        path: PathBuf,
        /// The sequences.
        sequences: Range<usize>,
    },

    /// Statistics of one model with different layers.
    #[error("statistics of the same model have different layers: one of the files is damaged")]
    OtherLayers,

    /// More tokens than there can be.
    #[error("the files count more than 2^64 tokens in layer {layer}: one of them is damaged")]
    TooManyTokens {
        /// The global decoder layer.
        layer: u32,
    },

    /// A setting that cannot be.
    #[error("{setting} {reason}")]
    Setting {
        /// Its name.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },

    /// Something that is computed from statistics where there are none.
    #[error("{what} needs statistics: calibrate the model first, and give their file")]
    NoStatistics {
        /// What it is.
        what: String,
    },

    /// Statistics of another model.
    #[error("the statistics are of another model: {reason}")]
    OtherModel {
        /// What differs.
        reason: String,
    },

    /// A metric that says nothing.
    #[error("{metric} of layer {layer}, expert {expert} is {value}: nothing can be ranked by it")]
    Value {
        /// The metric.
        metric: &'static str,
        /// What it is.
        value: f64,
        /// The layer.
        layer: u32,
        /// The expert.
        expert: u32,
    },

    /// A constant that cannot be stored.
    #[error(
        "the constant of layer {layer}, expert {expert} has an element {value:e}, which {dtype} \
         cannot hold"
    )]
    Constant {
        /// The layer.
        layer: u32,
        /// The expert.
        expert: u32,
        /// The element.
        value: f32,
        /// The type of the layer's experts.
        dtype: Dtype,
    },

    /// A stored constant that cannot be read as numbers.
    #[error(
        "the constant `{tensor}` is of type {dtype}, expected F32, F16 or BF16: export it again"
    )]
    ConstantType {
        /// Its name.
        tensor: String,
        /// Its type.
        dtype: Dtype,
    },

    /// A constant that does not fit what calibration counted.
    #[error(
        "the constant of layer {layer}, expert {expert} has {found} elements, the statistics {expected}: \
         they are of different models"
    )]
    ConstantSize {
        /// The layer.
        layer: u32,
        /// The expert.
        expert: u32,
        /// Elements of the outputs that were counted.
        expected: usize,
        /// Elements of the constant.
        found: usize,
    },

    /// A constant of an expert that calibration did not see.
    #[error(
        "there is a constant of layer {layer}, expert {expert}, where the statistics have {experts} \
         experts: they are of different models"
    )]
    ConstantOfNone {
        /// The layer.
        layer: u32,
        /// The expert.
        expert: u32,
        /// How many experts were counted.
        experts: usize,
    },

    /// A plan that is not for the model.
    #[error("the plan cannot be applied: {reason}")]
    Plan {
        /// What is wrong.
        reason: String,
    },

    /// A file that is no plan.
    #[error("{} is no plan: {reason}", file.display())]
    PlanFile {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// A list of experts that does not fit the model, or is none.
    #[error("{}: {reason}", file.display())]
    ExpertList {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },

    /// An output that would change what it is made from.
    #[error("cannot write to {}: {reason}", out.display())]
    Output {
        /// The output directory.
        out: PathBuf,
        /// Why.
        reason: String,
    },

    /// Windows of nothing.
    #[error("the window length is 0: give at least 1")]
    NoWindowLength,

    /// Models that do not have the same tokens.
    #[error(
        "the models cannot be compared: {found} tokens in the vocabulary of the one, {expected} in \
         that of the other"
    )]
    OtherVocabulary {
        /// Those of the model.
        found: usize,
        /// Those of the one that it is compared with.
        expected: usize,
    },

    /// Logits that are NaN or infinite.
    #[error(
        "{}: the logits of token {token} of window {window} are no distribution (NaN or infinite): \
         the model's weights, or their dtype, are unusable", model.display()
    )]
    NoDistribution {
        /// Whose.
        model: PathBuf,
        /// The window, from 0.
        window: usize,
        /// The token in it, from 0.
        token: usize,
    },
}

impl PruneError {
    pub(crate) fn setting(setting: &'static str, reason: impl Into<String>) -> Self {
        Self::Setting {
            setting,
            reason: reason.into(),
        }
    }
}
