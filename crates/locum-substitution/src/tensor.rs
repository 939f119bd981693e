//! Named tensors as they travel from a checkpoint to a model: owned, sendable views of bytes.

use std::borrow::Cow;
use std::fmt;

use crate::{SubstitutionError, TensorBytes};

/// Element type of a stored tensor.
///
/// Weights and constants are `f32`, `f16` or `bf16`, tables of ids `i64` or `i32`; everything else a
/// file may hold is [`Dtype::Other`], which keeps the name for messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 single precision, 4 bytes.
    F32,
    /// IEEE 754 half precision, 2 bytes.
    F16,
    /// The upper half of an `f32`, 2 bytes.
    Bf16,
    /// A signed integer, 8 bytes.
    I64,
    /// A signed integer, 4 bytes.
    I32,
    /// A type that nothing is stored in here, by the name its file gives it.
    Other(Cow<'static, str>),
}

impl Dtype {
    /// Bytes per element; `None` for a type that is not supported.
    #[must_use]
    pub fn size(&self) -> Option<usize> {
        match self {
            Self::I64 => Some(8),
            Self::F32 | Self::I32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            Self::Other(_) => None,
        }
    }

    /// Whether it is a type that weights and constants may have.
    #[must_use]
    pub fn is_float(&self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The type that a `config.json` names in `torch_dtype` or `dtype` (`"bfloat16"`, …).
    #[must_use]
    pub fn from_torch_name(name: &str) -> Option<Self> {
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float32" | "float" => Some(Self::F32),
            "float16" | "half" => Some(Self::F16),
            "bfloat16" => Some(Self::Bf16),
            _ => None,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::Other(name) => name,
        })
    }
}

/// What a checkpoint's header says about one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the checkpoint.
    pub name: String,
    /// The element type.
    pub dtype: Dtype,
    /// The dimensions, row-major.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Describes a tensor.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        Self {
            name: name.into(),
            dtype,
            shape: shape.into(),
        }
    }

    /// Number of elements, or `None` where the product overflows.
    #[must_use]
    pub fn num_elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }
}

/// A tensor of a checkpoint: its description and its bytes, little-endian and row-major.
///
/// Cloning is cheap, and a tensor that comes from a memory map reads nothing until its bytes are
/// looked at.
#[derive(Clone)]
pub struct NamedTensor {
    info: TensorInfo,
    bytes: TensorBytes,
}

impl NamedTensor {
    /// Joins a description with its bytes.
    ///
    /// # Errors
    ///
    /// [`SubstitutionError::ByteLength`] where the bytes of a tensor of a supported type are not
    /// as many as its shape asks for.
    pub fn new(info: TensorInfo, bytes: impl Into<TensorBytes>) -> Result<Self, SubstitutionError> {
        let bytes = bytes.into();
        if let Some(size) = info.dtype.size() {
            let expected = info.num_elements().and_then(|n| n.checked_mul(size));
            if expected != Some(bytes.len()) {
                return Err(SubstitutionError::ByteLength {
                    tensor: info.name,
                    dtype: info.dtype,
                    shape: info.shape,
                    found: bytes.len(),
                });
            }
        }
        Ok(Self { info, bytes })
    }

    /// A tensor of `f32` values.
    ///
    /// # Errors
    ///
    /// As [`NamedTensor::new`].
    pub fn from_f32(
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        values: &[f32],
    ) -> Result<Self, SubstitutionError> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(TensorInfo::new(name, Dtype::F32, shape), bytes)
    }

    /// The description.
    #[must_use]
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// The name in the checkpoint.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// The element type.
    #[must_use]
    pub fn dtype(&self) -> &Dtype {
        &self.info.dtype
    }

    /// The dimensions, row-major.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.info.shape
    }

    /// The elements, little-endian and row-major.
    #[must_use]
    pub fn bytes(&self) -> &TensorBytes {
        &self.bytes
    }

    /// The elements as `f32`, or `None` where the type is not a supported float.
    #[must_use]
    pub fn to_f32(&self) -> Option<Vec<f32>> {
        let pair = |b: &[u8]| [b[0], b[1]];
        Some(match self.info.dtype {
            Dtype::F32 => self
                .bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Dtype::F16 => self
                .bytes
                .chunks_exact(2)
                .map(|b| half::f16::from_le_bytes(pair(b)).to_f32())
                .collect(),
            Dtype::Bf16 => self
                .bytes
                .chunks_exact(2)
                .map(|b| half::bf16::from_le_bytes(pair(b)).to_f32())
                .collect(),
            _ => return None,
        })
    }

    /// Takes the tensor apart.
    #[must_use]
    pub fn into_parts(self) -> (TensorInfo, TensorBytes) {
        (self.info, self.bytes)
    }
}

impl fmt::Debug for NamedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedTensor")
            .field("name", &self.info.name)
            .field("dtype", &self.info.dtype)
            .field("shape", &self.info.shape)
            .finish_non_exhaustive()
    }
}
