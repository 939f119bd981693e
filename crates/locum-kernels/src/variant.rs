//! The instruction sets, and which one is used.

use std::sync::OnceLock;

use crate::Rotary;
#[cfg(target_arch = "x86_64")]
use crate::arch::x86_64::{
    amx::{self, Amx},
    avx2::Avx2,
    avx512::{Avx512, Avx512Bf16},
};
use crate::arch::{self, portable::Portable};
use crate::gated_mlp::Results;
use crate::linear::Linears;
use crate::{
    Activations, ActivationsMut, Attention, ConstantRoute, GatedMlp, KernelError, Linear, Moments,
    Routes, Weights, constants, norm,
};

/// The environment variable that forces a variant.
const FORCE: &str = "LOCUM_CPU";

/// The kernels of one instruction set, which the CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Variant(Machine);

#[derive(Clone, Copy, Debug)]
enum Machine {
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512, Bf16Products),
}

/// What multiplies `bf16` by `bf16`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
enum Bf16Products {
    /// AVX-512, after widening both.
    Exact,
    Dot(Avx512Bf16),
    Tiles(Amx),
}

impl Variant {
    /// The variants that this machine has, those with the most instructions first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::found(true)
    }

    /// Looking for tiles asks the system to let this process use them.
    fn found(#[allow(unused)] tiles: bool) -> Vec<Self> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(exact) = Avx512::detect() {
                let tiles = tiles.then(Amx::detect).flatten().map(Bf16Products::Tiles);
                let dot = Avx512Bf16::detect().map_or(Bf16Products::Exact, Bf16Products::Dot);
                let avx512 = tiles.into_iter().chain([dot]);
                found.extend(avx512.map(|products| Self(Machine::Avx512(exact, products))));
            }
            found.extend(Avx2::detect().map(Machine::Avx2).map(Self));
        }
        found.push(Self(Machine::Portable(Portable)));
        found
    }

    /// The first of the [available](Self::available) variants, or the one that `LOCUM_CPU` names (`portable`, `avx2`, `avx512`, `amx`);
    /// decided once.
    ///
    /// # Errors
    ///
    /// [`KernelError::Variant`] where `LOCUM_CPU` names none that this machine has.
    pub fn detect() -> Result<Self, KernelError> {
        static CHOSEN: OnceLock<Result<Variant, KernelError>> = OnceLock::new();
        CHOSEN
            .get_or_init(
                || match std::env::var_os(FORCE).filter(|name| !name.is_empty()) {
                    None => Ok(Self::available()[0]),
                    Some(name) => Self::named(&name.to_string_lossy()),
                },
            )
            .clone()
    }

    /// The variant of a name.
    ///
    /// # Errors
    ///
    /// [`KernelError::Variant`] where this machine has none of that name.
    pub fn named(name: &str) -> Result<Self, KernelError> {
        Self::found(name == "amx")
            .into_iter()
            .find(|variant| variant.name() == name)
            .ok_or_else(|| KernelError::Variant {
                found: name.to_owned(),
                available: Self::available().iter().map(Self::name).collect(),
            })
    }

    /// `portable`, `avx2`, `avx512` or `amx`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self.0 {
            Machine::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(_, Bf16Products::Tiles(..)) => "amx",
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(..) => "avx512",
        }
    }

    /// Whether products of `bf16` with `bf16` are `bf16` dot products.
    #[must_use]
    pub fn has_bf16_products(&self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(_, products) => !matches!(products, Bf16Products::Exact),
            _ => false,
        }
    }

    /// What multiplies activations by `bf16` weights, with activations of `bf16` or of `f32`: where that is
    /// the same, so are results. (AMX has no products of `f32`.)
    #[must_use]
    pub fn products(&self, bf16: bool) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(_, Bf16Products::Dot(_)) if bf16 => "avx512 with bf16 products",
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(_, Bf16Products::Tiles(_)) if bf16 => "amx with bf16 products",
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(..) => "avx512",
            _ => self.name(),
        }
    }

    /// Multiplies and adds in registers only, and gives how many floating-point operations that
    /// was: what benchmarks measure products with `bf16` weights against, of `bf16` or of `f32` activations.
    #[must_use]
    pub fn peak(self, bf16: bool, rounds: usize) -> f64 {
        match self.0 {
            Machine::Portable(machine) => arch::peak(machine, rounds),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => arch::peak(machine, rounds),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(_, Bf16Products::Dot(dot)) if bf16 => arch::peak(dot, rounds),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(_, Bf16Products::Tiles(tiles)) if bf16 => amx::peak(tiles, rounds),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, _) => arch::peak(exact, rounds),
        }
    }

    /// Reads memory as fast as one thread can, and gives about what its numbers add up to: what benchmarks
    /// measure the other functions against.
    #[must_use]
    pub fn read(self, memory: &[f32]) -> f32 {
        match self.0 {
            Machine::Portable(machine) => arch::read(machine, memory),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => arch::read(machine, memory),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, _) => arch::read(exact, memory),
        }
    }

    /// `out[t] = Σ w · down(activation(gate·x[t]) ⊙ up·x[t])` over the routes of each token, summed
    /// in `f32` in the order of rows; zero for a token without routes.
    ///
    /// The result does not depend on the number of threads. A NaN or an infinity in a token or in
    /// its router weights stays with that token. Sums over `k` are `f32`; the rest is as described
    /// [above](crate#rounding).
    ///
    /// # Shapes
    ///
    /// `x` and `out` `[tokens, hidden]`; a row of `routes` for each row of the weights.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where a length is not what the sizes ask for, or a route is of no token.
    pub fn gated_mlp(
        self,
        mlp: &GatedMlp<'_>,
        x: Activations<'_>,
        routes: &Routes,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let outputs = None;
        self.run_gated_mlp(mlp, x, routes, Results { out, outputs })
    }

    /// [`gated_mlp`](Self::gated_mlp), which also gives what each route's expert gives before it is
    /// weighted. `out` is the same, bit by bit.
    ///
    /// # Shapes
    ///
    /// `outputs` `[routes, hidden]`, in the order of `routes`: row by row, in each row token by token.
    ///
    /// # Errors
    ///
    /// Those of [`gated_mlp`](Self::gated_mlp).
    pub fn gated_mlp_with_outputs(
        self,
        mlp: &GatedMlp<'_>,
        x: Activations<'_>,
        routes: &Routes,
        out: &mut [f32],
        outputs: &mut [f32],
    ) -> Result<(), KernelError> {
        let outputs = Some(outputs);
        self.run_gated_mlp(mlp, x, routes, Results { out, outputs })
    }

    fn run_gated_mlp(
        self,
        mlp: &GatedMlp<'_>,
        x: Activations<'_>,
        routes: &Routes,
        results: Results<'_>,
    ) -> Result<(), KernelError> {
        mlp.check(x, routes, &results)?;
        match self.0 {
            Machine::Portable(machine) => mlp.exact(machine, x, routes, results),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => mlp.exact(machine, x, routes, results),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, products) => match (products, x, mlp.gate_up, mlp.down) {
                (
                    Bf16Products::Dot(dot),
                    Activations::Bf16(x),
                    Weights::Bf16(gate_up),
                    Weights::Bf16(down),
                ) => mlp.in_type(dot, x, [gate_up, down], routes, results),
                (
                    Bf16Products::Tiles(tiles),
                    Activations::Bf16(x),
                    Weights::Bf16(gate_up),
                    Weights::Bf16(down),
                ) => mlp.in_type(tiles, x, [gate_up, down], routes, results),
                _ => mlp.exact(exact, x, routes, results),
            },
        }
        Ok(())
    }

    /// `out[t, h] = softmax(scale · q[h, t]·kᵀ)·v` over the keys up to the token's own, in `f32`,
    /// whatever the number of threads.
    ///
    /// A later token's key changes nothing. A value that is not finite may, as in a product of
    /// matrices: its weight is 0, and 0 · NaN is NaN.
    ///
    /// # Shapes
    ///
    /// `out` `[tokens, heads, size]`.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where a length is not what the sizes ask for, or key heads do not divide query
    /// heads, or there are more queries than keys.
    pub fn attention(self, attention: &Attention<'_>, out: &mut [f32]) -> Result<(), KernelError> {
        attention.check(out)?;
        match self.0 {
            Machine::Portable(machine) => attention.exact(machine, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => attention.exact(machine, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, _) => attention.exact(exact, out),
        }
        Ok(())
    }

    /// `out = x / √(mean(x²) + ε) · γ` over the last dimension, in `f32` and rounded once.
    ///
    /// # Shapes
    ///
    /// `x` and `out` `[rows, size]`, `weight` `[size]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where `x` is not whole rows, or `out` is not as long.
    pub fn rms_norm(
        self,
        x: Activations<'_>,
        weight: Weights<'_>,
        epsilon: f32,
        out: ActivationsMut<'_>,
    ) -> Result<(), KernelError> {
        match self.0 {
            Machine::Portable(machine) => norm::rms_norm(machine, x, weight, epsilon, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => norm::rms_norm(machine, x, weight, epsilon, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, _) => norm::rms_norm(exact, x, weight, epsilon, out),
        }
    }

    /// Rotates heads by their tokens' positions, in `f32` and rounded once.
    ///
    /// # Shapes
    ///
    /// `x` and `out` `[tokens, heads, head]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where a length is not what the sizes ask for, or more would be rotated
    /// than a head has.
    pub fn rotary(
        self,
        rotary: &Rotary<'_>,
        x: Activations<'_>,
        out: ActivationsMut<'_>,
    ) -> Result<(), KernelError> {
        match self.0 {
            Machine::Portable(machine) => rotary.run(machine, x, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => rotary.run(machine, x, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, _) => rotary.run(exact, x, out),
        }
    }

    /// Copies activations, and rounds them where they are to be of a smaller type.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where `out` is not as long as `x`.
    pub fn convert(self, x: Activations<'_>, out: ActivationsMut<'_>) -> Result<(), KernelError> {
        match self.0 {
            Machine::Portable(machine) => norm::convert(machine, x, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => norm::convert(machine, x, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, _) => norm::convert(exact, x, out),
        }
    }

    /// Adds vectors to sums by channel, and their multiples to others, one after the other, and gives their
    /// squared norms: as many of each as there are of the others. Results are the same in every variant, bit
    /// by bit, and however many vectors are added at a time.
    ///
    /// # Shapes
    ///
    /// Sums `[channels]`, `vectors` `[vectors, channels]`, a factor and a squared norm for each.
    pub fn add_moments(self, moments: Moments<'_>, factors: &[f64], vectors: &[f32]) {
        match self.0 {
            Machine::Portable(machine) => arch::add_moments(machine, moments, factors, vectors),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => arch::add_moments(machine, moments, factors, vectors),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, _) => arch::add_moments(exact, moments, factors, vectors),
        }
    }

    /// Adds `Σ w · c` over a token's routes to `out`: summed in `f64` in the order of the routes, to
    /// which `out`'s value is added last, and rounded once.
    ///
    /// Routes are ordered by token (else one thread adds them, as they come); only the tokens that
    /// have one are touched.
    ///
    /// # Shapes
    ///
    /// `constants` `[constants, hidden]`, `out` `[tokens, hidden]`.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where a length is no multiple of `hidden`, or a route leads outside.
    pub fn add_constants(
        self,
        routes: &[ConstantRoute],
        constants: Weights<'_>,
        hidden: usize,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        constants::check(routes, constants, hidden, out)?;
        match self.0 {
            Machine::Portable(machine) => constants::add(machine, routes, constants, hidden, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => constants::add(machine, routes, constants, hidden, out),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(machine, _) => constants::add(machine, routes, constants, hidden, out),
        }
        Ok(())
    }

    /// `out[t, n] = Σ_k x[t, k] · W[n, k]`, summed in `f32`, whatever the number of threads.
    ///
    /// # Shapes
    ///
    /// `x` `[tokens, inputs]`, `out` `[tokens, outputs]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where a length is not what the sizes ask for.
    pub fn linear(
        self,
        linear: &Linear<'_>,
        x: Activations<'_>,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        self.linears(std::slice::from_ref(linear), x, &mut [out])
    }

    /// [`linear`](Self::linear) of several layers that see the same tokens, in less time than one
    /// after the other, and with the same results.
    ///
    /// # Shapes
    ///
    /// `x` `[tokens, inputs]`, each of `outs` `[tokens, outputs]` of its layer.
    ///
    /// # Errors
    ///
    /// [`KernelError::Length`] where a length is not what the sizes ask for.
    pub fn linears(
        self,
        layers: &[Linear<'_>],
        x: Activations<'_>,
        outs: &mut [&mut [f32]],
    ) -> Result<(), KernelError> {
        let layers = Linears(layers);
        layers.check(x, outs)?;
        if !layers.one_type() {
            for (layer, out) in layers.0.iter().zip(outs) {
                self.linear(layer, x, out)?;
            }
            return Ok(());
        }
        match self.0 {
            Machine::Portable(machine) => layers.exact(machine, x, outs),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx2(machine) => layers.exact(machine, x, outs),
            #[cfg(target_arch = "x86_64")]
            Machine::Avx512(exact, products) => match (products, x, layers.bf16()) {
                (Bf16Products::Dot(dot), Activations::Bf16(x), Some(weights)) => {
                    layers.product(dot, x, &weights, outs);
                }
                (Bf16Products::Tiles(tiles), Activations::Bf16(x), Some(weights)) => {
                    layers.product(tiles, x, &weights, outs);
                }
                _ => layers.exact(exact, x, outs),
            },
        }
        Ok(())
    }
}
