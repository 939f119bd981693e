//! A checkpoint that is open: every header read and checked, no tensor read.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use locum_substitution::{NamedTensor, SubstitutionError, TensorBytes, TensorInfo};

use crate::directory::{Layout, layout};
use crate::index::ShardIndex;
use crate::map::FileMap;
use crate::stored::StoredBytes;
use crate::{CheckpointError, files, header};

/// What a checkpoint of bytes in the program is called in messages.
const EMBEDDED: &str = "embedded checkpoint";

/// Named tensors in one or several safetensors files, or in memory.
///
/// Opening reads and checks the headers only. Tensors are views of the memory map; a view keeps
/// its file mapped, so it outlives the checkpoint. When the last view of a tensor is dropped, its
/// pages leave the process: copying tensor by tensor never holds a file in memory beside its copy.
/// Cloning shares the maps.
#[derive(Clone)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<WeightFile>,
    tensors: Vec<StoredTensor>,
    /// Places in `tensors`, sorted by name.
    by_name: Vec<usize>,
}

#[derive(Clone)]
struct WeightFile {
    path: PathBuf,
    contents: Contents,
}

#[derive(Clone)]
enum Contents {
    Map(FileMap),
    Memory(Bytes),
}

impl Contents {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => map.bytes(),
            Self::Memory(bytes) => bytes,
        }
    }

    fn tensor(&self, range: Range<usize>) -> TensorBytes {
        match self {
            Self::Map(map) => map.tensor(range),
            Self::Memory(bytes) => bytes.slice(range).into(),
        }
    }
}

#[derive(Clone)]
struct StoredTensor {
    info: TensorInfo,
    file: usize,
    range: Range<usize>,
}

impl Checkpoint {
    /// Opens a directory with one `model.safetensors`, or with shards and their
    /// `model.safetensors.index.json`.
    ///
    /// Where both are there, `model.safetensors` is read and the index is not, as in
    /// `from_pretrained` of Hugging Face transformers. Shards come from the index's `weight_map`
    /// only; other files in the directory, and the index's `metadata`, are not looked at.
    ///
    /// The files are memory maps: **they must not change while a checkpoint or one of its tensors
    /// is in use.** The operating system does not prevent it. Other bytes would be read as
    /// weights, and a file that is cut short ends the process where its bytes are looked at; where they are
    /// [copied](locum_substitution::TensorBytes::copy_to), as large weights are, it is an error. Replacing a
    /// file by renaming another over it is safe.
    ///
    /// # Errors
    ///
    /// No such directory or no weights in it, a shard that is missing, an index that disagrees with
    /// a shard's header, a header that disagrees with its file, a name that two tensors share.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let directory = directory.as_ref();
        match layout(directory)? {
            Layout::Single(file) => {
                let map = Contents::Map(files::map(&file)?);
                Self::assemble(directory.into(), vec![(file, map)], None)
            }
            Layout::Sharded(index) => {
                let index = ShardIndex::read(&index)?;
                index.none_missing()?;
                let files = index
                    .shards
                    .iter()
                    .map(|shard| {
                        let map = Contents::Map(files::map(&shard.path)?);
                        Ok((shard.path.clone(), map))
                    })
                    .collect::<Result<_, CheckpointError>>()?;
                Self::assemble(directory.into(), files, Some(&index))
            }
        }
    }

    /// Opens the bytes of one safetensors file that is part of the program, without copying them.
    ///
    /// `include_bytes!` promises no alignment, and neither does the format for single tensors; see
    /// the [crate documentation](crate#alignment).
    ///
    /// # Errors
    ///
    /// A header that disagrees with its bytes.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, CheckpointError> {
        Self::from_bytes(EMBEDDED, bytes)
    }

    /// Opens the bytes of one safetensors file, without copying them. Messages call it `name`.
    ///
    /// # Errors
    ///
    /// A header that disagrees with its bytes.
    pub fn from_bytes(
        name: impl Into<PathBuf>,
        bytes: impl Into<Bytes>,
    ) -> Result<Self, CheckpointError> {
        let name = name.into();
        let contents = Contents::Memory(bytes.into());
        Self::assemble(name.clone(), vec![(name, contents)], None)
    }

    fn assemble(
        path: PathBuf,
        files: Vec<(PathBuf, Contents)>,
        index: Option<&ShardIndex>,
    ) -> Result<Self, CheckpointError> {
        let mut checkpoint = Self {
            path,
            files: Vec::with_capacity(files.len()),
            tensors: Vec::new(),
            by_name: Vec::new(),
        };
        for (path, contents) in files {
            let file = checkpoint.files.len();
            let entries = header::read(&path, contents.bytes())?;
            checkpoint
                .tensors
                .extend(entries.into_iter().map(|entry| StoredTensor {
                    info: entry.info,
                    file,
                    range: entry.range,
                }));
            checkpoint.files.push(WeightFile { path, contents });
        }
        checkpoint.sort_names()?;
        if let Some(index) = index {
            checkpoint.agrees_with(index)?;
        }
        Ok(checkpoint)
    }

    fn sort_names(&mut self) -> Result<(), CheckpointError> {
        let tensors = &self.tensors;
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        // Stable, so that of two equal names the one in the earlier file comes first.
        by_name.sort_by(|&a, &b| tensors[a].info.name.cmp(&tensors[b].info.name));
        for pair in by_name.windows(2) {
            let (first, second) = (&tensors[pair[0]], &tensors[pair[1]]);
            if first.info.name == second.info.name {
                return Err(CheckpointError::DuplicateTensor {
                    tensor: first.info.name.clone(),
                    first: self.files[first.file].path.clone(),
                    second: self.files[second.file].path.clone(),
                });
            }
        }
        self.by_name = by_name;
        Ok(())
    }

    fn agrees_with(&self, index: &ShardIndex) -> Result<(), CheckpointError> {
        for (tensor, shard) in &index.tensors {
            let found = self.find(tensor).map(|stored| stored.file);
            if found != Some(*shard) {
                return Err(CheckpointError::NotInShard {
                    index: index.path.clone(),
                    shard: index.shards[*shard].path.clone(),
                    tensor: tensor.clone(),
                    found: found.map(|file| self.files[file].path.clone()),
                });
            }
        }
        // Every name of the index was found, so equal numbers are equal names.
        if self.tensors.len() == index.tensors.len() {
            return Ok(());
        }
        let named: HashSet<&str> = index
            .tensors
            .iter()
            .map(|(tensor, _)| tensor.as_str())
            .collect();
        let unnamed = self
            .tensors
            .iter()
            .find(|stored| !named.contains(stored.info.name.as_str()));
        match unnamed {
            None => Ok(()),
            Some(stored) => Err(CheckpointError::NotInIndex {
                index: index.path.clone(),
                shard: self.files[stored.file].path.clone(),
                tensor: stored.info.name.clone(),
            }),
        }
    }

    /// The directory that was opened, or the name of the bytes.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files, in the order in which the index first names them.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// How many tensors there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The bytes of all tensors, headers not included.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.tensors
            .iter()
            .map(|stored| stored.range.len() as u64)
            .sum()
    }

    /// What the headers say about the tensors: file after file, and in each in the order of the
    /// bytes, so that reading in this order reads forward.
    pub fn infos(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.iter().map(|stored| &stored.info)
    }

    /// What the headers say about one tensor.
    #[must_use]
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        Some(&self.find(name)?.info)
    }

    /// The file that holds a tensor, for messages.
    #[must_use]
    pub fn file_of(&self, name: &str) -> Option<&Path> {
        Some(&self.files[self.find(name)?.file].path)
    }

    /// The tensors, in the order of [`infos`](Self::infos). Nothing is copied, and nothing read
    /// until the bytes are looked at.
    ///
    /// # Errors
    ///
    /// An item is an error where a tensor is not what [`NamedTensor`] takes.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Result<NamedTensor, CheckpointError>> {
        self.tensors.iter().map(|stored| self.view(stored))
    }

    /// The tensors as a model's loader takes them: [`tensors`](Self::tensors) with the error type
    /// of [`WeightStream`](locum_substitution::WeightStream).
    pub fn weights(&self) -> impl ExactSizeIterator<Item = Result<NamedTensor, SubstitutionError>> {
        self.tensors()
            .map(|tensor| tensor.map_err(SubstitutionError::from))
    }

    /// One tensor, without copying it.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NoSuchTensor`] where there is none of that name.
    pub fn tensor(&self, name: &str) -> Result<NamedTensor, CheckpointError> {
        let stored = self
            .find(name)
            .ok_or_else(|| CheckpointError::NoSuchTensor {
                tensor: name.into(),
                checkpoint: self.path.clone(),
            })?;
        self.view(stored)
    }

    /// The bytes of one tensor where they are, to be copied without being mapped.
    #[must_use]
    pub fn stored(&self, name: &str) -> Option<StoredBytes> {
        let stored = self.find(name)?;
        let file = &self.files[stored.file];
        let range = stored.range.clone();
        Some(match &file.contents {
            Contents::Map(_) => StoredBytes::in_file(
                file.path.as_path().into(),
                range.start as u64..range.end as u64,
            ),
            Contents::Memory(bytes) => bytes.slice(range).into(),
        })
    }

    fn find(&self, name: &str) -> Option<&StoredTensor> {
        let place = self
            .by_name
            .binary_search_by(|&place| self.tensors[place].info.name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[self.by_name[place]])
    }

    fn view(&self, stored: &StoredTensor) -> Result<NamedTensor, CheckpointError> {
        let file = &self.files[stored.file];
        let bytes = file.contents.tensor(stored.range.clone());
        NamedTensor::new(stored.info.clone(), bytes).map_err(|source| CheckpointError::Tensor {
            file: file.path.clone(),
            source,
        })
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.path)
            .field("files", &self.files.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}
