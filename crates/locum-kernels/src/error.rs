//! What can be wrong with a call.

use std::fmt;

/// An error of this crate.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelError {
    /// A slice does not have the length that the sizes ask for.
    Length {
        /// Which slice.
        what: &'static str,
        /// Its length by the sizes, in elements.
        expected: usize,
        /// Its length.
        found: usize,
    },
    /// The product of sizes is larger than any slice.
    Size {
        /// Which slice.
        what: &'static str,
    },
    /// A route names a token that is not there.
    Token {
        /// The physical row that the route leads to.
        row: usize,
        /// The token.
        token: usize,
        /// How many tokens there are.
        tokens: usize,
    },
    /// A route names a constant that is not there.
    Constant {
        /// The row among the constants.
        row: usize,
        /// How many constants there are.
        constants: usize,
    },
    /// Heads that no key head serves, or queries that come after the last key.
    Attention {
        /// Query heads.
        heads: usize,
        /// Key and value heads.
        kv_heads: usize,
        /// Queries per head.
        tokens: usize,
        /// Keys per head.
        seen: usize,
    },
    /// `LOCUM_CPU` names no variant that this machine has.
    Variant {
        /// Its value.
        found: String,
        /// The variants that this machine has.
        available: Vec<&'static str>,
    },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length {
                what,
                expected,
                found,
            } => write!(
                f,
                "{what} has {found} elements, the sizes ask for {expected}"
            ),
            Self::Size { what } => write!(f, "the sizes of {what} overflow"),
            Self::Token { row, token, tokens } => write!(
                f,
                "a route to row {row} is of token {token}, there are {tokens} tokens"
            ),
            Self::Constant { row, constants } => {
                write!(f, "a route leads to constant {row}, there are {constants}")
            }
            Self::Attention {
                heads,
                kv_heads,
                tokens,
                seen,
            } => write!(
                f,
                "{heads} query heads over {kv_heads} key heads, {tokens} queries over {seen} keys: \
                 key heads must divide query heads, and each query must be one of the keys' tokens"
            ),
            Self::Variant { found, available } => write!(
                f,
                "LOCUM_CPU is `{found}`, this machine has {}: name one of them, or unset it",
                available.join(", ")
            ),
        }
    }
}

impl std::error::Error for KernelError {}

/// Checks the length of a slice that has `factors` multiplied together as its size.
pub(crate) fn check_length(
    what: &'static str,
    factors: &[usize],
    found: usize,
) -> Result<(), KernelError> {
    let expected = factors
        .iter()
        .try_fold(1usize, |product, &factor| product.checked_mul(factor))
        .ok_or(KernelError::Size { what })?;
    if expected == found {
        return Ok(());
    }
    Err(KernelError::Length {
        what,
        expected,
        found,
    })
}
