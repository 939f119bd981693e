//! The bytes of a tensor, which a file may have.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytes::Bytes;

use crate::{BoxError, SubstitutionError};

/// What bytes can be read from at any place, by several threads at a time: a file.
pub trait ReadAt: Send + Sync {
    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// An operating system that cannot read them, and a file that ends before.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), BoxError>;
}

/// Bytes of a tensor: in memory, or in a file, where they are mapped and can be read as well.
///
/// They dereference to a slice, which suits small tensors. Large ones are better off with
/// [`copy_to`](Self::copy_to): for a map the system has to put in page by page what it copies at once when
/// it is asked to read. Cloning is cheap.
#[derive(Clone)]
pub struct TensorBytes {
    view: Bytes,
    /// The file, and where in it the view starts.
    file: Option<(Arc<dyn ReadAt>, u64)>,
}

impl TensorBytes {
    /// Bytes that can also be read from a file, from `offset` on.
    #[must_use]
    pub fn in_file(view: Bytes, file: Arc<dyn ReadAt>, offset: u64) -> Self {
        Self {
            view,
            file: Some((file, offset)),
        }
    }

    /// The bytes in memory.
    #[must_use]
    pub fn view(&self) -> &Bytes {
        &self.view
    }

    /// The same bytes with another owner of the view, such as one that tells when it is dropped. What
    /// `own` gives back should be what it gets.
    #[must_use]
    pub fn owned_by(self, own: impl FnOnce(Bytes) -> Bytes) -> Self {
        Self {
            view: own(self.view),
            file: self.file,
        }
    }

    /// Some of the bytes. What of `range` is beyond them is left out.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let end = range.end.min(self.view.len());
        let start = range.start.min(end);
        let file = self.file.as_ref();
        Self {
            view: self.view.slice(start..end),
            file: file.map(|(file, offset)| (Arc::clone(file), offset + start as u64)),
        }
    }

    /// Copies all of them to memory of the same length.
    ///
    /// # Errors
    ///
    /// [`SubstitutionError::Stream`] where they cannot be read, and where `out` has another length.
    pub fn copy_to(&self, out: &mut [u8]) -> Result<(), SubstitutionError> {
        if out.len() != self.len() {
            let (found, expected) = (out.len(), self.len());
            let error = format!("cannot copy {expected} bytes to {found}");
            return Err(SubstitutionError::stream(error));
        }
        match &self.file {
            Some((file, offset)) => file
                .read_at(*offset, out)
                .map_err(SubstitutionError::stream),
            None => {
                out.copy_from_slice(self);
                Ok(())
            }
        }
    }
}

impl Deref for TensorBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.view
    }
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Bytes> for TensorBytes {
    fn from(view: Bytes) -> Self {
        Self { view, file: None }
    }
}

impl From<Vec<u8>> for TensorBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl fmt::Debug for TensorBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorBytes")
            .field("len", &self.view.len())
            .field("in_file", &self.file.is_some())
            .finish_non_exhaustive()
    }
}
