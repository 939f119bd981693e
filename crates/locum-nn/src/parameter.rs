//! Parameters that are nothing until a checkpoint fills them.

use burn::module::{Param, ParamId};
use burn::tensor::{Bytes as BurnBytes, DType, Device, Int, Shape, Tensor, TensorData};
use locum_substitution::{Dtype, NamedTensor, SubstitutionError};

use crate::memory::gather;

/// A parameter of a shape, to be loaded. Used before that, it is zero.
pub(crate) fn unloaded<const D: usize>(shape: [usize; D], device: &Device) -> Param<Tensor<D>> {
    Param::uninitialized(
        ParamId::new(),
        move |device, _| Tensor::zeros(shape, (device, DType::F32)),
        device.clone(),
        false,
        Shape::from(shape),
    )
}

/// A parameter that holds ids, to be loaded. Used before that, it is zero.
pub(crate) fn unloaded_ids<const D: usize>(
    shape: [usize; D],
    device: &Device,
) -> Param<Tensor<D, Int>> {
    Param::uninitialized(
        ParamId::new(),
        move |device, _| Tensor::zeros(shape, (device, DType::I64)),
        device.clone(),
        false,
        Shape::from(shape),
    )
}

/// A parameter's tensor from little-endian bytes, in the type that they are stored in.
///
/// They are a copy ([`gather`]): a checkpoint promises no alignment, and its file may go away.
pub(crate) fn tensor<const D: usize>(
    bytes: BurnBytes,
    shape: [usize; D],
    dtype: DType,
    device: &Device,
) -> Tensor<D> {
    Tensor::from_data(TensorData::from_bytes(bytes, shape, dtype), (device, dtype))
}

/// Burn's name for a stored type.
pub(crate) fn dtype(info: &locum_substitution::TensorInfo) -> Result<DType, SubstitutionError> {
    burn_dtype(&info.dtype).ok_or_else(|| SubstitutionError::Dtype {
        tensor: info.name.clone(),
        found: info.dtype.clone(),
    })
}

/// Burn's name for a stored type, if it is one that weights have.
pub(crate) fn burn_dtype(dtype: &Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::Bf16 => Some(DType::BF16),
        _ => None,
    }
}

/// Burn's name for a type that ids are stored in.
pub(crate) fn id_dtype(info: &locum_substitution::TensorInfo) -> Result<DType, SubstitutionError> {
    match info.dtype {
        Dtype::I64 => Ok(DType::I64),
        Dtype::I32 => Ok(DType::I32),
        _ => Err(SubstitutionError::model(format!(
            "tensor `{}` has dtype {}, expected i64 or i32",
            info.name, info.dtype
        ))),
    }
}

/// Checks the shape and type of a tensor of weights.
pub(crate) fn check_shape(
    info: &locum_substitution::TensorInfo,
    expected: &[usize],
) -> Result<(), SubstitutionError> {
    dtype(info)?;
    check_dimensions(info, expected)
}

/// Checks a tensor's shape.
pub(crate) fn check_dimensions(
    info: &locum_substitution::TensorInfo,
    expected: &[usize],
) -> Result<(), SubstitutionError> {
    if info.shape == expected {
        return Ok(());
    }
    Err(SubstitutionError::Shape {
        tensor: info.name.clone(),
        expected: expected.to_vec(),
        found: info.shape.clone(),
    })
}

/// The value of a parameter from a tensor of a checkpoint.
pub(crate) fn value<const D: usize>(
    tensor_of: NamedTensor,
    device: &Device,
) -> Result<Tensor<D>, SubstitutionError> {
    let (info, bytes) = tensor_of.into_parts();
    let dtype = dtype(&info)?;
    let shape = dimensions(info)?;
    Ok(tensor(gather([bytes])?, shape, dtype, device))
}

/// The value of a parameter that holds ids from a tensor of a checkpoint, in the type that they are
/// stored in.
pub(crate) fn ids<const D: usize>(
    tensor_of: NamedTensor,
    device: &Device,
) -> Result<Tensor<D, Int>, SubstitutionError> {
    let (info, bytes) = tensor_of.into_parts();
    let dtype = id_dtype(&info)?;
    let shape: [usize; D] = dimensions(info)?;
    Ok(Tensor::from_data(
        TensorData::from_bytes(gather([bytes])?, shape, dtype),
        (device, dtype),
    ))
}

/// A tensor's shape, which must have as many dimensions as its parameter.
fn dimensions<const D: usize>(
    info: locum_substitution::TensorInfo,
) -> Result<[usize; D], SubstitutionError> {
    info.shape
        .try_into()
        .map_err(|found| SubstitutionError::Shape {
            tensor: info.name,
            expected: vec![0; D],
            found,
        })
}
