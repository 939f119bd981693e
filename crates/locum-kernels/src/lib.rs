//! CPU kernels for mixture-of-experts layers: the retained experts of a layer in one call, plain
//! linear layers, weighted sums of constants, causal attention,
//! and normalisation.
//!
//! ```
//! use locum_kernels::{Activation, Activations, GatedMlp, Routes, Variant, Weights};
//!
//! // One expert: hidden size 2, intermediate size 1.
//! let mlp = GatedMlp {
//!     hidden: 2,
//!     intermediate: 1,
//!     activation: Activation::Silu,
//!     gate_up: Weights::F32(&[1.0, 0.0, 0.0, 1.0]),
//!     down: Weights::F32(&[2.0, 0.0]),
//! };
//! let routes = Routes::from_rows([vec![(0, 0.5)]]);
//! let mut y = [0.0; 4];
//! Variant::detect()?.gated_mlp(&mlp, Activations::F32(&[3.0, 4.0, 5.0, 6.0]), &routes, &mut y)?;
//!
//! let silu = 3.0 / (1.0 + (-3.0f32).exp());
//! assert!((y[0] - 0.5 * 2.0 * silu * 4.0).abs() < 1e-5);
//! assert_eq!(y[1..], [0.0, 0.0, 0.0]);
//! # Ok::<(), locum_kernels::KernelError>(())
//! ```
//!
//! # Rounding
//!
//! `f32` activations are exact: weights are widened, products and sums are `f32`.
//!
//! `bf16` activations with `bf16` weights use the CPU's `bf16` dot products where it has them, in vectors
//! (AVX-512) or, many times faster, in tiles (AMX, on Linux). Inputs
//! are exact then too, but the activations between an expert's projections are rounded to `bf16`: each
//! by a relative error of at most 2⁻⁹, so that a result moves by at most 2⁻⁹ of the sum of its
//! products' magnitudes, and by about √k of the terms' 2⁻⁹ in practice. The instructions take
//! subnormal numbers as zero, and round each sum to the nearest.
//! Variants without those dot products keep these activations in `f32`.
//!
//! Linux lets a process use AMX's tiles when it asks: [`Variant::available`] does, and [`Variant::detect`] unless
//! `LOCUM_CPU` names another variant. Where the system refuses, there is no such variant. From then on, alternate
//! signal stacks of its threads need room for tiles (11 KiB).
//!
//! # Order of sums
//!
//! Work is divided among the threads of the current rayon pool by columns of the output, never
//! within a sum: results do not depend on the number of threads. Nor do a token's results depend on
//! which and how many other tokens are computed with it: dot products, for few, and outer products,
//! for many (where weights are packed for them), add up in one order. They do depend on the variant.
#![deny(missing_docs)]

mod activation;
mod arch;
mod attention;
mod constants;
mod error;
mod gated_mlp;
mod kept;
mod linear;
mod moments;
mod norm;
mod operand;
mod panels;
mod product;
mod rotary;
mod routes;
mod shared;
mod tasks;
mod units;
mod variant;

/// Which order sums have: raised with every change after which a kernel of the same variant adds up the same
/// numbers in another order, or rounds between them. What was computed with one and what was computed with
/// another differ in their last digits.
pub const ORDER_OF_SUMS: u32 = 2;

pub use activation::Activation;
pub use attention::{Attention, Heads};
pub use constants::ConstantRoute;
pub use error::KernelError;
pub use gated_mlp::GatedMlp;
pub use linear::Linear;
pub use moments::Moments;
pub use norm::ActivationsMut;
pub use operand::{Activations, Weights};
pub use rotary::Rotary;
pub use routes::Routes;
pub use variant::Variant;
