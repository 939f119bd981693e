//! The header of one safetensors file: `SafeTensors::read_metadata`, what it does not check, and
//! which tensor it means where it refuses.

use std::ops::Range;
use std::path::Path;

use locum_substitution::{Dtype, TensorInfo};
use safetensors::tensor::TensorInfo as Declared;
use safetensors::{SafeTensorError, SafeTensors};
use serde::de::{IgnoredAny, MapAccess};

use crate::object::{Member, Members};
use crate::{CheckpointError, files};

/// Bytes of the length that a file starts with.
pub(crate) const LENGTH: usize = size_of::<u64>();

/// The format's limit, which the `safetensors` crate keeps to itself.
pub(crate) const LIMIT: u64 = 100_000_000;

/// The one member of a header that is no tensor.
const METADATA: &str = "__metadata__";

/// A tensor of a file, and where its bytes are, counted from the start of the file.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) info: TensorInfo,
    pub(crate) range: Range<usize>,
}

/// Reads the header of a file. Entries come in the order of their bytes.
///
/// # Errors
///
/// A header that does not describe exactly the bytes that follow it.
pub(crate) fn read(file: &Path, bytes: &[u8]) -> Result<Vec<Entry>, CheckpointError> {
    files::readable(file, bytes)?;
    let (text, data) = frame(file, bytes)?;
    let declared = declared(file, text)?;
    within_file(file, &declared, data)?;
    let (length, metadata) = SafeTensors::read_metadata(bytes)
        .map_err(|error| explain(file, &declared, data.len(), error))?;

    let start = LENGTH + length;
    let mut tensors: Vec<_> = metadata.tensors().into_iter().collect();
    // The crate leaves open which of two empty tensors at one offset is first.
    tensors.sort_unstable_by(|(a, x), (b, y)| (x.data_offsets, a).cmp(&(y.data_offsets, b)));
    Ok(tensors
        .into_iter()
        .map(|(name, tensor)| Entry {
            range: start + tensor.data_offsets.0..start + tensor.data_offsets.1,
            info: TensorInfo::new(name, dtype(tensor.dtype), tensor.shape.as_slice()),
        })
        .collect())
}

/// A member of the header: a tensor, or `None` for the one that is none.
impl Member for Option<Declared> {
    fn read<'de, A: MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error> {
        if name == METADATA {
            map.next_value().map(|IgnoredAny| None)
        } else {
            map.next_value().map(Some)
        }
    }
}

/// Splits a file into its header and the bytes after it.
fn frame<'a>(file: &Path, bytes: &'a [u8]) -> Result<(&'a str, &'a [u8]), CheckpointError> {
    let beyond = |expected: u64| CheckpointError::HeaderBeyondFile {
        file: file.into(),
        expected,
        found: bytes.len() as u64,
    };
    let (length, rest) = bytes
        .split_first_chunk()
        .ok_or_else(|| beyond(LENGTH as u64))?;
    let length = u64::from_le_bytes(*length);
    if length > LIMIT {
        return Err(CheckpointError::HeaderTooLarge {
            file: file.into(),
            found: length,
            limit: LIMIT,
        });
    }
    let (header, data) = usize::try_from(length)
        .ok()
        .and_then(|length| rest.split_at_checked(length))
        .ok_or_else(|| beyond(LENGTH as u64 + length))?;
    let text = str::from_utf8(header).map_err(|error| CheckpointError::Header {
        file: file.into(),
        reason: error.to_string(),
    })?;
    Ok((text, data))
}

/// The tensors as the header lists them, by offset.
///
/// This second look at the JSON is for what `read_metadata` does not tell: a name that comes twice
/// (it keeps the last), and which tensor is wrong.
fn declared(file: &Path, text: &str) -> Result<Vec<(String, Declared)>, CheckpointError> {
    let members: Members<Option<Declared>> =
        serde_json::from_str(text).map_err(|error| CheckpointError::Header {
            file: file.into(),
            reason: error.to_string(),
        })?;
    if let Some(tensor) = members.duplicate() {
        return Err(CheckpointError::DuplicateTensor {
            tensor: tensor.into(),
            first: file.into(),
            second: file.into(),
        });
    }
    let mut declared: Vec<_> = members
        .0
        .into_iter()
        .filter_map(|(name, tensor)| Some((name, tensor?)))
        .collect();
    declared.sort_by_key(|(_, tensor)| tensor.data_offsets);
    Ok(declared)
}

/// Refuses tensors that go on after the end of the file: the file is named as truncated, and
/// `read_metadata`, which adds lengths up before it compares, has no sum that could overflow.
fn within_file(
    file: &Path,
    declared: &[(String, Declared)],
    data: &[u8],
) -> Result<(), CheckpointError> {
    let beyond = declared
        .iter()
        .find(|(_, tensor)| tensor.data_offsets.1 > data.len());
    match beyond {
        None => Ok(()),
        Some((name, tensor)) => Err(CheckpointError::TensorBeyondFile {
            file: file.into(),
            tensor: name.clone(),
            end: tensor.data_offsets.1 as u64,
            found: data.len() as u64,
        }),
    }
}

/// Finds the tensor that `read_metadata` refused, which it names in few of its errors.
fn explain(
    file: &Path,
    declared: &[(String, Declared)],
    data: usize,
    error: SafeTensorError,
) -> CheckpointError {
    let mut expected = 0;
    for (name, tensor) in declared {
        let (begin, end) = tensor.data_offsets;
        if begin != expected || end < begin {
            return CheckpointError::TensorOffsets {
                file: file.into(),
                tensor: name.clone(),
                begin: begin as u64,
                end: end as u64,
                expected: expected as u64,
            };
        }
        let size = size(&tensor.shape, tensor.dtype.bitsize());
        if size != Some(end - begin) {
            return CheckpointError::TensorSize {
                file: file.into(),
                tensor: name.clone(),
                dtype: dtype(tensor.dtype),
                shape: tensor.shape.clone(),
                expected: size.map(|bytes| bytes as u64),
                found: (end - begin) as u64,
            };
        }
        expected = end;
    }
    match error {
        SafeTensorError::MetadataIncompleteBuffer => CheckpointError::TrailingBytes {
            file: file.into(),
            expected: expected as u64,
            found: data as u64,
        },
        other => CheckpointError::Header {
            file: file.into(),
            reason: other.to_string(),
        },
    }
}

/// The bytes that shape and bits per element ask for; `None` where the number overflows or is not
/// whole.
pub(crate) fn size(shape: &[usize], bits: usize) -> Option<usize> {
    let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    let bits = elements.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Bits of an element; `None` for a type that the format does not have.
pub(crate) fn bits(dtype: &Dtype) -> Option<usize> {
    let name = serde_json::Value::from(name(dtype));
    let known: safetensors::Dtype = serde_json::from_value(name).ok()?;
    Some(known.bitsize())
}

/// What a header calls a type.
pub(crate) fn name(dtype: &Dtype) -> &str {
    match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Bf16 => "BF16",
        Dtype::I64 => "I64",
        Dtype::I32 => "I32",
        Dtype::Other(name) => name,
        // A type that this crate has not learnt to write: no header has it.
        _ => "",
    }
}

fn dtype(dtype: safetensors::Dtype) -> Dtype {
    match dtype {
        safetensors::Dtype::F32 => Dtype::F32,
        safetensors::Dtype::F16 => Dtype::F16,
        safetensors::Dtype::BF16 => Dtype::Bf16,
        safetensors::Dtype::I64 => Dtype::I64,
        safetensors::Dtype::I32 => Dtype::I32,
        other => Dtype::Other(other.to_string().into()),
    }
}
