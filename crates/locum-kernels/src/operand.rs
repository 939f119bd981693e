//! Slices of the types that weights and activations have.

use half::{bf16, f16};

/// Weights, in the type that they are stored in.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half precision.
    F16(&'a [f16]),
    /// The upper halves of 32-bit floats.
    Bf16(&'a [bf16]),
}

impl Weights<'_> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(slice) => slice.len(),
            Self::F16(slice) => slice.len(),
            Self::Bf16(slice) => slice.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Activations: their type chooses between exact products (`F32`) and, where the weights are `bf16`
/// too and the machine has them, `bf16` dot products.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// The upper halves of 32-bit floats.
    Bf16(&'a [bf16]),
}

impl Activations<'_> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(slice) => slice.len(),
            Self::Bf16(slice) => slice.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A type of number that is stored.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;

    /// Widened, which is exact.
    fn widen(self) -> f32;
}

impl Element for f32 {
    const ZERO: Self = 0.0;

    fn widen(self) -> f32 {
        self
    }
}

impl Element for f16 {
    const ZERO: Self = Self::ZERO;

    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for bf16 {
    const ZERO: Self = Self::ZERO;

    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}
