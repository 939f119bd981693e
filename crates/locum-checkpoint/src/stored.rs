//! Bytes of a tensor where they are: in a file, or in memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::{CheckpointError, files};

/// Bytes that are copied or summed up, and not kept: part of a file, or bytes in memory.
///
/// Unlike the bytes of a [`NamedTensor`](locum_substitution::NamedTensor), those of a file are read
/// and not mapped, so that going through a whole checkpoint takes no more memory than a buffer.
#[derive(Clone, Debug)]
pub struct StoredBytes(Place);

#[derive(Clone, Debug)]
enum Place {
    File { path: Arc<Path>, range: Range<u64> },
    Memory(Bytes),
}

impl StoredBytes {
    pub(crate) fn in_file(path: Arc<Path>, range: Range<u64>) -> Self {
        Self(Place::File { path, range })
    }

    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Place::File { range, .. } => range.end - range.start,
            Place::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Some of the bytes. What of `range` is beyond them is left out.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        Self(match &self.0 {
            Place::File { path, range } => Place::File {
                path: path.clone(),
                range: range.start + start..range.start + end,
            },
            // In memory, so the length is a `usize`.
            Place::Memory(bytes) => Place::Memory(bytes.slice(start as usize..end as usize)),
        })
    }

    /// Reads the bytes, piece by piece.
    ///
    /// # Errors
    ///
    /// A file that is not there any more, cannot be read, or has become shorter.
    pub fn read(&self, mut take: impl FnMut(&[u8])) -> Result<(), CheckpointError> {
        const PIECE: usize = 1 << 20;
        match &self.0 {
            Place::Memory(bytes) => take(bytes),
            Place::File { path, range } => {
                let mut opened = OpenFile::open(path)?;
                let mut left = range.end - range.start;
                let mut source = opened.at(range.start)?;
                let mut buffer = vec![0; PIECE.min(left as usize)];
                while left > 0 {
                    let piece = &mut buffer[..PIECE.min(left as usize)];
                    source
                        .read_exact(piece)
                        .map_err(files::io_error("read", path))?;
                    take(piece);
                    left -= piece.len() as u64;
                }
            }
        }
        Ok(())
    }

    /// Where in its file it starts; none in memory.
    pub(crate) fn offset(&self) -> Option<u64> {
        match &self.0 {
            Place::File { range, .. } => Some(range.start),
            Place::Memory(_) => None,
        }
    }

    /// Joins bytes that follow in the same file.
    pub(crate) fn join(&mut self, next: &Self) -> bool {
        match (&mut self.0, &next.0) {
            (
                Place::File { path, range },
                Place::File {
                    path: other,
                    range: after,
                },
            ) if path == other && range.end == after.start => {
                range.end = after.end;
                true
            }
            _ => false,
        }
    }

    /// Appends the bytes to a file, which is called `shown` in messages. A file's bytes are copied
    /// within the operating system where it can do that. `source` keeps what was opened last.
    pub(crate) fn append_to(
        &self,
        output: &mut File,
        shown: &Path,
        source: &mut Option<OpenFile>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), CheckpointError> {
        /// So much between two reports of progress.
        const PIECE: u64 = 64 << 20;
        const BUFFER: u64 = 1 << 20;
        const PAGE: u64 = 4096;
        let written = |result: io::Result<u64>| result.map_err(files::io_error("write", shown));
        match &self.0 {
            Place::Memory(bytes) => {
                written(io::copy(&mut &bytes[..], output))?;
                progress(bytes.len() as u64);
            }
            Place::File { path, range } => {
                if source.as_ref().is_none_or(|opened| *opened.path != **path) {
                    *source = Some(OpenFile::open(path)?);
                }
                let Some(opened) = source else {
                    return Ok(());
                };
                let mut file = opened.at(range.start)?;
                let mut left = range.end - range.start;
                let place = output
                    .stream_position()
                    .map_err(files::io_error("write", shown))?;
                // Where pages do not match, the system would put each together from two: it is faster
                // to do that in a buffer here.
                let in_step = place % PAGE == range.start % PAGE;
                let mut buffer = vec![
                    0;
                    if in_step {
                        0
                    } else {
                        BUFFER.min(left) as usize
                    }
                ];
                while left > 0 && !in_step {
                    let piece = &mut buffer[..BUFFER.min(left) as usize];
                    file.read_exact(piece)
                        .map_err(files::io_error("read", path))?;
                    output
                        .write_all(piece)
                        .map_err(files::io_error("write", shown))?;
                    left -= piece.len() as u64;
                    progress(piece.len() as u64);
                }
                while left > 0 {
                    let copied = written(io::copy(&mut file.take(left.min(PIECE)), output))?;
                    if copied == 0 {
                        let short = io::ErrorKind::UnexpectedEof.into();
                        return Err(files::io_error("read", path)(short));
                    }
                    left -= copied;
                    progress(copied);
                }
            }
        }
        Ok(())
    }
}

impl From<Vec<u8>> for StoredBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Place::Memory(bytes.into()))
    }
}

impl From<Bytes> for StoredBytes {
    fn from(bytes: Bytes) -> Self {
        Self(Place::Memory(bytes))
    }
}

/// A file that is read from.
pub(crate) struct OpenFile {
    path: PathBuf,
    file: File,
}

impl OpenFile {
    fn open(path: &Path) -> Result<Self, CheckpointError> {
        Ok(Self {
            path: path.into(),
            file: File::open(path).map_err(files::io_error("open", path))?,
        })
    }

    fn at(&mut self, offset: u64) -> Result<&File, CheckpointError> {
        self.file
            .seek(SeekFrom::Start(offset))
            .map_err(files::io_error("read", &self.path))?;
        Ok(&self.file)
    }
}
