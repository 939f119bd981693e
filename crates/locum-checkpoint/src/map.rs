//! Memory maps of files, views of them that let go of what was read, and reading past the map.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use locum_substitution::TensorBytes;
use memmap2::Mmap;

use crate::{CheckpointError, files};

/// The largest page that a file is commonly mapped in, where its size is not asked for.
const PAGE: usize = 64 << 10;

/// A whole file in memory. Nothing of it is read until it is looked at.
///
/// As with [`Checkpoint::open`](crate::Checkpoint::open), nobody may write into the file or cut it short
/// meanwhile; that another one takes its name is no harm.
#[derive(Clone, Debug)]
pub struct FileMap(Arc<MappedFile>);

#[derive(Debug)]
struct MappedFile {
    map: Mmap,
    /// To read what is copied anyway.
    #[cfg_attr(not(unix), expect(dead_code))]
    file: File,
    #[cfg_attr(not(unix), expect(dead_code))]
    path: PathBuf,
}

impl FileMap {
    /// Maps a file; as [`read_file`](crate::read_file), but nothing is read yet.
    ///
    /// # Errors
    ///
    /// Those of [`read_file`](crate::read_file).
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let map = files::map(path)?;
        files::readable(path, map.bytes())?;
        Ok(map)
    }

    pub(crate) fn new(file: File, path: &Path) -> io::Result<Self> {
        // SAFETY: the map is private to its `Mmap`, read-only, and lives as long as what it hands
        // out, so within this process nothing writes to it. What cannot be promised is that no
        // other process changes the file: its bytes could then change under a `&[u8]`, and a file
        // that is cut short ends this process by a signal when the lost part is read. That is the
        // price of not copying weights twice, and `Checkpoint::open` says so.
        let map = unsafe { Mmap::map(&file) }?;
        let path = path.into();
        Ok(Self(Arc::new(MappedFile { map, file, path })))
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0.map
    }

    /// A part of the file. When the last copy of it is dropped, its pages leave the process: they
    /// stay in the system's page cache, from where they come back if they are looked at again.
    ///
    /// # Panics
    ///
    /// Once it is looked at, if `range` is not within the file.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(View {
            map: self.clone(),
            range,
        })
    }

    /// A [view](Self::view) whose bytes can also be read from the file, where the system reads at any place.
    ///
    /// # Panics
    ///
    /// As [`view`](Self::view).
    pub(crate) fn tensor(&self, range: Range<usize>) -> TensorBytes {
        #[cfg(unix)]
        {
            let start = range.start as u64;
            TensorBytes::in_file(self.view(range), Arc::<MappedFile>::clone(&self.0), start)
        }
        #[cfg(not(unix))]
        TensorBytes::from(self.view(range))
    }

    /// Lets all pages leave the process, from wherever in the file. As with those of a
    /// [view](Self::view), they come back if they are looked at again. It is for who reads small parts:
    /// a system may map megabytes around a byte that is looked at.
    pub fn release(&self) {
        self.forget(0, self.0.map.len());
    }

    /// Forgets which pages are mapped; `start` is the first byte of one.
    #[cfg(unix)]
    fn forget(&self, start: usize, end: usize) {
        if start < end {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: on a map of a file that nobody writes to, this only forgets which pages are
            // mapped; who looks again gets the same bytes from the file. A failure keeps them.
            let _ = unsafe {
                self.0
                    .map
                    .unchecked_advise_range(advice, start, end - start)
            };
        }
    }

    #[cfg(not(unix))]
    fn forget(&self, _start: usize, _end: usize) {}
}

#[cfg(unix)]
impl locum_substitution::ReadAt for MappedFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), locum_substitution::BoxError> {
        let read = std::os::unix::fs::FileExt::read_exact_at(&self.file, out, offset);
        Ok(read.map_err(files::io_error("read", &self.path))?)
    }
}

struct View {
    map: FileMap,
    range: Range<usize>,
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        &self.map.bytes()[self.range.clone()]
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // Pages that a view shares with its neighbours stay.
        let start = self.range.start.next_multiple_of(PAGE);
        self.map.forget(start, self.range.end / PAGE * PAGE);
    }
}
