//! Bytes that tell when they are done with.

use std::sync::Arc;

use bytes::Bytes;
use locum_substitution::{NamedTensor, SubstitutionError};

/// Gets the number of bytes that are done with since it was called last; from any thread.
pub(crate) type Progress = Arc<dyn Fn(u64) + Send + Sync>;

/// The same tensor, which reports its bytes when its last view is dropped: a loader drops a tensor
/// when it has copied it, in whatever order and on whatever thread.
pub(crate) fn reporting(
    tensor: NamedTensor,
    progress: &Progress,
) -> Result<NamedTensor, SubstitutionError> {
    let (info, bytes) = tensor.into_parts();
    let reporting = |bytes| {
        let progress = Arc::clone(progress);
        Bytes::from_owner(Reporting { bytes, progress })
    };
    NamedTensor::new(info, bytes.owned_by(reporting))
}

struct Reporting {
    bytes: Bytes,
    progress: Progress,
}

impl AsRef<[u8]> for Reporting {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        (self.progress)(self.bytes.len() as u64);
    }
}
