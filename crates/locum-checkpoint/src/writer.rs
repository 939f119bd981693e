//! A new checkpoint: safetensors files of a bounded size, and their index.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;

use locum_substitution::TensorInfo;
use serde_json::{Map, Value, json};

use crate::directory::{INDEX, SINGLE};
use crate::header::{self, LENGTH, LIMIT};
use crate::stored::{OpenFile, StoredBytes};
use crate::{CheckpointError, files};

/// A tensor that is to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    info: TensorInfo,
    bits: usize,
    /// One after another.
    parts: Vec<StoredBytes>,
}

impl NewTensor {
    /// A tensor whose bytes are these parts, one after another: little-endian, row-major.
    ///
    /// # Errors
    ///
    /// A type that safetensors files do not have, or bytes that are not as many as type and shape
    /// ask for.
    pub fn new(info: TensorInfo, parts: Vec<StoredBytes>) -> Result<Self, CheckpointError> {
        let found = parts.iter().map(StoredBytes::len).sum();
        let bits = header::bits(&info.dtype);
        let expected = bits.and_then(|bits| header::size(&info.shape, bits));
        match (bits, expected) {
            (Some(bits), Some(expected)) if expected as u64 == found => {
                Ok(Self { info, bits, parts })
            }
            _ => Err(CheckpointError::NewTensorSize {
                tensor: info.name,
                dtype: info.dtype,
                shape: info.shape,
                expected: expected.map(|bytes| bytes as u64),
                found,
            }),
        }
    }

    /// Its name, type and shape.
    #[must_use]
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// How many bytes it takes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.parts.iter().map(StoredBytes::len).sum()
    }

    /// Whether it takes none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What is to be written, divided into files: `model.safetensors` alone, or
/// `model-00001-of-00002.safetensors` and so on with `model.safetensors.index.json`, as
/// `save_pretrained` of Hugging Face transformers names them.
///
/// Within a file, tensors of wide types come first: so each is aligned to its type, as the
/// `safetensors` crate writes them.
#[derive(Clone, Debug)]
pub struct NewCheckpoint {
    files: Vec<NewFile>,
}

#[derive(Clone, Debug)]
struct NewFile {
    name: String,
    header: Vec<u8>,
    tensors: Vec<NewTensor>,
}

impl NewCheckpoint {
    /// Divides tensors, in the given order, into files of at most `max_shard_bytes` of tensors each,
    /// headers not counted. A tensor that is larger has a file of its own.
    ///
    /// # Errors
    ///
    /// Two tensors of one name, or a header that would be beyond the format's limit.
    pub fn new(tensors: Vec<NewTensor>, max_shard_bytes: u64) -> Result<Self, CheckpointError> {
        let mut names = HashSet::new();
        if let Some(twice) = tensors
            .iter()
            .find(|tensor| !names.insert(tensor.info.name.as_str()))
        {
            return Err(CheckpointError::DuplicateTensor {
                tensor: twice.info.name.clone(),
                first: SINGLE.into(),
                second: SINGLE.into(),
            });
        }
        drop(names);
        let mut shards: Vec<Vec<NewTensor>> = vec![Vec::new()];
        let mut filled = 0;
        for tensor in tensors {
            let length = tensor.len();
            match shards.last_mut() {
                Some(shard) if shard.is_empty() || filled + length <= max_shard_bytes => {
                    filled += length;
                    shard.push(tensor);
                }
                _ => {
                    filled = length;
                    shards.push(vec![tensor]);
                }
            }
        }
        let count = shards.len();
        let files = shards.into_iter().enumerate().map(|(shard, tensors)| {
            let name = match count {
                1 => SINGLE.to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
            };
            NewFile::new(name, tensors)
        });
        Ok(Self {
            files: files.collect::<Result<_, _>>()?,
        })
    }

    /// The bytes of all tensors.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.tensors().map(NewTensor::len).sum()
    }

    /// The bytes of all files, headers included.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        let headers: usize = self.files.iter().map(|file| file.header.len()).sum();
        self.total_bytes() + headers as u64
    }

    /// How many files of tensors there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.files.len()
    }

    /// The tensors, file after file.
    pub fn tensors(&self) -> impl Iterator<Item = &NewTensor> {
        self.files.iter().flat_map(|file| &file.tensors)
    }

    /// Writes the files into a directory; messages call it `shown`. `progress` gets numbers of bytes as
    /// they are written.
    ///
    /// # Errors
    ///
    /// A file that cannot be written, or one that tensors come from that cannot be read.
    pub fn write(
        &self,
        directory: &Path,
        shown: &Path,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CheckpointError> {
        let mut source = None;
        for file in &self.files {
            let shown = shown.join(&file.name);
            file.write(directory, &shown, &mut source, progress)?;
        }
        if self.files.len() > 1 {
            let index = format!("{:#}\n", self.index());
            files::write(&directory.join(INDEX), &shown.join(INDEX), index.as_bytes())?;
        }
        Ok(())
    }

    fn index(&self) -> Value {
        let places: BTreeMap<&str, &str> = self
            .files
            .iter()
            .flat_map(|file| file.tensors.iter().map(move |tensor| (file, tensor)))
            .map(|(file, tensor)| (tensor.info.name.as_str(), file.name.as_str()))
            .collect();
        json!({
            "metadata": { "total_size": self.total_bytes() },
            "weight_map": places,
        })
    }
}

impl NewFile {
    fn new(name: String, mut tensors: Vec<NewTensor>) -> Result<Self, CheckpointError> {
        // Stable: what followed in the source follows here, and is copied at once.
        tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.bits));
        let header = header(&tensors);
        if header.len() as u64 > LIMIT {
            return Err(CheckpointError::HeaderTooLarge {
                file: name.into(),
                found: header.len() as u64,
                limit: LIMIT,
            });
        }
        Ok(Self {
            name,
            header,
            tensors,
        })
    }

    fn write(
        &self,
        directory: &Path,
        shown: &Path,
        source: &mut Option<OpenFile>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CheckpointError> {
        let path = directory.join(&self.name);
        let mut output = File::create_new(&path).map_err(files::io_error("create", shown))?;
        output
            .write_all(&self.header)
            .map_err(files::io_error("write", shown))?;
        let mut pending: Option<StoredBytes> = None;
        for part in self.tensors.iter().flat_map(|tensor| &tensor.parts) {
            if pending.as_mut().is_some_and(|run| run.join(part)) {
                continue;
            }
            if let Some(run) = pending.replace(part.clone()) {
                run.append_to(&mut output, shown, source, progress)?;
            }
        }
        if let Some(run) = pending {
            run.append_to(&mut output, shown, source, progress)?;
        }
        drop(output);
        let tensors: u64 = self.tensors.iter().map(NewTensor::len).sum();
        files::check_length(&path, shown, self.header.len() as u64 + tensors)
    }
}

/// Length and JSON, padded with spaces: to eight bytes, and in large files so that the operating system
/// copies whole pages.
fn header(tensors: &[NewTensor]) -> Vec<u8> {
    let mut entries = Map::new();
    // Some readers ask which framework's layout it is, and know this one.
    entries.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.len();
        entries.insert(
            tensor.info.name.clone(),
            json!({
                "dtype": header::name(&tensor.info.dtype),
                "shape": tensor.info.shape,
                "data_offsets": [start, end],
            }),
        );
        start = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let padding = page_padding((LENGTH + text.len()) as u64, tensors);
    text.resize(text.len() + padding, b' ');
    let length = text.len() as u64;
    [&length.to_le_bytes()[..], &text].concat()
}

/// How much longer a header of `length` bytes must be for most of the tensors' bytes to lie in their
/// pages as they lie in those of the file that they are from. Copying takes up to half as long then:
/// no page is put together from two.
fn page_padding(length: u64, tensors: &[NewTensor]) -> usize {
    const PAGE: u64 = 4096;
    /// So large that a page more or less does not matter.
    const LARGE: u64 = 16 << 20;
    let mut starts: BTreeMap<u64, u64> = BTreeMap::new();
    let mut place = 0;
    for part in tensors.iter().flat_map(|tensor| &tensor.parts) {
        if let Some(offset) = part.offset() {
            let start = (offset % PAGE + PAGE - place % PAGE) % PAGE;
            *starts.entry(start).or_default() += part.len();
        }
        place += part.len();
    }
    let aligned = starts.into_iter().filter(|(start, _)| start % 8 == 0);
    match aligned.max_by_key(|(_, bytes)| *bytes) {
        Some((start, _)) if place >= LARGE => ((start + PAGE - length % PAGE) % PAGE) as usize,
        _ => 0,
    }
}
