//! Everything that can be wrong with a checkpoint's files.

use std::io;
use std::path::PathBuf;

use locum_substitution::{Dtype, SubstitutionError};

/// What went wrong; the message names file, tensor, the expected and found values, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The directory is not there.
    #[error("`{}` does not exist: give a directory that holds `model.safetensors`", path.display())]
    NoSuchDirectory {
        /// What was given.
        path: PathBuf,
    },

    /// A file where a directory was expected.
    #[error("`{}` is not a directory: give the directory that holds the weights", path.display())]
    NotADirectory {
        /// What was given.
        path: PathBuf,
    },

    /// A directory that holds neither of the files a checkpoint starts from.
    #[error(
        "`{}` holds neither `model.safetensors` nor `model.safetensors.index.json`{hint}",
        directory.display()
    )]
    NoWeights {
        /// The directory.
        directory: PathBuf,
        /// What it holds instead, and what to do then; empty where nothing looks like weights.
        hint: String,
    },

    /// The file system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },

    /// A directory, a pipe or a device where a file was expected.
    #[error("`{}` is not a regular file", path.display())]
    NotAFile {
        /// What was found.
        path: PathBuf,
    },

    /// A symbolic link whose target is not there.
    #[error(
        "`{}` is a symbolic link to a file that does not exist: download the checkpoint again",
        path.display()
    )]
    BrokenLink {
        /// The link.
        path: PathBuf,
    },

    /// A file of zero bytes.
    #[error("`{}` is empty", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },

    /// What Git leaves in place of a large file that was not fetched.
    #[error(
        "`{}` is a Git LFS pointer, not the file itself: run `git lfs pull` in its directory",
        path.display()
    )]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },

    /// A file that is not JSON.
    #[error("`{}` is not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },

    /// A file that is no index.
    #[error("index `{}` is damaged: {reason}", index.display())]
    Index {
        /// The index.
        index: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// An index that names a shard outside its own directory.
    #[error(
        "index `{}` puts tensor `{tensor}` into `{shard}`: a shard must be a plain file name, in \
         the directory of the index",
        index.display()
    )]
    ShardName {
        /// The index.
        index: PathBuf,
        /// A tensor that the shard is named for.
        tensor: String,
        /// The shard as the index writes it.
        shard: String,
    },

    /// A shard that the index names is not there.
    #[error(
        "shard `{}` is missing: index `{}` puts tensor `{tensor}`{} there; download it",
        shard.display(), index.display(), and_more(*tensors)
    )]
    MissingShard {
        /// The index.
        index: PathBuf,
        /// The shard.
        shard: PathBuf,
        /// A tensor that is in it.
        tensor: String,
        /// How many are.
        tensors: usize,
    },

    /// The index names a tensor that its shard does not hold.
    #[error(
        "index `{}` puts tensor `{tensor}` into `{}`, which does not hold it{}: the index belongs \
         to other files",
        index.display(), shard.display(), but_found(found.as_ref())
    )]
    NotInShard {
        /// The index.
        index: PathBuf,
        /// The shard that should hold it.
        shard: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard that does.
        found: Option<PathBuf>,
    },

    /// A shard holds a tensor that the index does not name.
    #[error(
        "shard `{}` holds tensor `{tensor}`, which index `{}` does not name: the index belongs to \
         other files",
        shard.display(), index.display()
    )]
    NotInIndex {
        /// The index.
        index: PathBuf,
        /// The shard.
        shard: PathBuf,
        /// The tensor.
        tensor: String,
    },

    /// One name for two tensors.
    #[error("tensor `{tensor}` is named twice, {}", twice(first, second))]
    DuplicateTensor {
        /// The name.
        tensor: String,
        /// The file that names it first.
        first: PathBuf,
        /// The file that names it again; often the same.
        second: PathBuf,
    },

    /// A file that ends before its header does.
    #[error(
        "`{}` is truncated, or no safetensors file: its header takes {expected} bytes and the file \
         has {found}; download or copy it again",
        file.display()
    )]
    HeaderBeyondFile {
        /// The file.
        file: PathBuf,
        /// Bytes up to the end of the header.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },

    /// A header over the format's limit.
    #[error(
        "`{}` is no safetensors file: it declares a header of {found} bytes, the limit is {limit}",
        file.display()
    )]
    HeaderTooLarge {
        /// The file.
        file: PathBuf,
        /// The declared length.
        found: u64,
        /// The format's limit.
        limit: u64,
    },

    /// A header that is not what the format asks for.
    #[error("the header of `{}` is damaged: {reason}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    /// A file that ends before its tensors do.
    #[error(
        "`{}` is truncated, or its header lies: tensor `{tensor}` ends at byte {end} of the data \
         and the file holds {found}; download or copy it again",
        file.display()
    )]
    TensorBeyondFile {
        /// The file.
        file: PathBuf,
        /// The first tensor that is not whole.
        tensor: String,
        /// Where it ends, counted from the end of the header.
        end: u64,
        /// Bytes after the header.
        found: u64,
    },

    /// A tensor that overlaps the one before, or leaves a hole behind it.
    #[error(
        "the header of `{}` is damaged: tensor `{tensor}` is at bytes {begin}..{end} of the data \
         and should start at {expected}, where the one before ends",
        file.display()
    )]
    TensorOffsets {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its declared start.
        begin: u64,
        /// Its declared end.
        end: u64,
        /// Where it should start.
        expected: u64,
    },

    /// A tensor whose bytes are not as many as its type and shape ask for.
    #[error(
        "the header of `{}` is damaged: tensor `{tensor}` is {dtype} {shape:?}, which takes \
         {}, and has {found}",
        file.display(), bytes(*expected)
    )]
    TensorSize {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its declared type.
        dtype: Dtype,
        /// Its declared shape.
        shape: Vec<usize>,
        /// What type and shape ask for; `None` where it overflows or is no whole number.
        expected: Option<u64>,
        /// Its declared bytes.
        found: u64,
    },

    /// A file that goes on after its last tensor.
    #[error(
        "`{}` does not end where its tensors do: they take {expected} bytes and {found} are there",
        file.display()
    )]
    TrailingBytes {
        /// The file.
        file: PathBuf,
        /// Bytes of all tensors.
        expected: u64,
        /// Bytes after the header.
        found: u64,
    },

    /// A tensor was asked for that the checkpoint does not hold.
    #[error("no tensor `{tensor}` in `{}`", checkpoint.display())]
    NoSuchTensor {
        /// The name.
        tensor: String,
        /// The checkpoint.
        checkpoint: PathBuf,
    },

    /// A tensor to be written whose bytes are not as many as its type and shape ask for.
    #[error(
        "tensor `{tensor}` is to be written as {dtype} {shape:?}, which takes {}, and has {found}",
        bytes(*expected)
    )]
    NewTensorSize {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// What type and shape ask for; `None` where no file can hold it.
        expected: Option<u64>,
        /// Its bytes.
        found: u64,
    },

    /// A new directory whose name is taken.
    #[error("`{}` exists already: give another name, or say that it may be replaced", path.display())]
    Exists {
        /// The directory.
        path: PathBuf,
    },

    /// A directory that is not to be replaced, whatever was said.
    #[error("`{}` is not replaced: {reason}", path.display())]
    NotReplaced {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },

    /// A place where no directory can be.
    #[error("cannot create `{}`: {reason}", path.display())]
    NoPlace {
        /// What was given.
        path: PathBuf,
        /// Why.
        reason: &'static str,
    },

    /// A tensor that the consumers' type does not take.
    #[error("in `{}`: {source}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: SubstitutionError,
    },
}

impl From<CheckpointError> for SubstitutionError {
    fn from(error: CheckpointError) -> Self {
        Self::stream(error)
    }
}

fn bytes(expected: Option<u64>) -> String {
    expected.map_or_else(
        || "no possible number of bytes".into(),
        |bytes| format!("{bytes} bytes"),
    )
}

fn and_more(tensors: usize) -> String {
    match tensors.saturating_sub(1) {
        0 => String::new(),
        1 => " and 1 more".into(),
        more => format!(" and {more} more"),
    }
}

fn but_found(found: Option<&PathBuf>) -> String {
    found.map_or_else(String::new, |file| format!(" (`{}` does)", file.display()))
}

fn twice(first: &PathBuf, second: &PathBuf) -> String {
    if first == second {
        format!("both times in `{}`", first.display())
    } else {
        format!("in `{}` and in `{}`", first.display(), second.display())
    }
}
