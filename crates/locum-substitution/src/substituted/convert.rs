//! Constants in the type that their layer holds them in.

use bytes::Bytes;
use half::{bf16, f16};

use crate::{Dtype, NamedTensor, SubstitutionError};

/// Says that a constant holds NaN, which is data: once, however many experts it feeds.
pub(super) fn warn_of_nan(constant: &NamedTensor) {
    let values = constant.to_f32().unwrap_or_default();
    if let Some(index) = values.iter().position(|v| v.is_nan()) {
        tracing::warn!(
            "constant `{}` holds NaN, first at index {index}: tokens routed to it become NaN",
            constant.name()
        );
    }
}

/// Converts a constant; a finite value that the type cannot hold is refused, a NaN is data.
pub(super) fn convert(constant: &NamedTensor, dtype: &Dtype) -> Result<Bytes, SubstitutionError> {
    let Some(values) = constant.to_f32() else {
        return Err(SubstitutionError::Dtype {
            tensor: constant.name().to_owned(),
            found: constant.dtype().clone(),
        });
    };
    if constant.dtype() == dtype {
        return Ok(constant.bytes().view().clone());
    }
    let narrow: fn(f32) -> (bool, Vec<u8>) = match dtype {
        Dtype::F32 => |v| (true, v.to_le_bytes().to_vec()),
        Dtype::F16 => |v| {
            let narrowed = f16::from_f32(v);
            (narrowed.is_finite(), narrowed.to_le_bytes().to_vec())
        },
        Dtype::Bf16 => |v| {
            let narrowed = bf16::from_f32(v);
            (narrowed.is_finite(), narrowed.to_le_bytes().to_vec())
        },
        _ => {
            return Err(SubstitutionError::Dtype {
                tensor: constant.name().to_owned(),
                found: dtype.clone(),
            });
        }
    };
    let mut bytes = Vec::with_capacity(values.len() * dtype.size().unwrap_or(1));
    for value in values {
        let (fits, narrowed) = narrow(value);
        if value.is_finite() && !fits {
            return Err(SubstitutionError::ConstantOverflow {
                tensor: constant.name().to_owned(),
                value,
                dtype: dtype.clone(),
            });
        }
        bytes.extend_from_slice(&narrowed);
    }
    Ok(bytes.into())
}
