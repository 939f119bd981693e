//! Every variant that this machine has against straightforward sums in `f64`.
#![allow(clippy::unwrap_used)]

use half::{bf16, f16};
use locum_kernels::{
    Activation, Activations, ConstantRoute, GatedMlp, Linear, Moments, Routes, Variant, Weights,
};
use proptest::prelude::*;
use rayon::ThreadPoolBuilder;

/// Numbers around zero, the same for a seed.
fn numbers(seed: u64, length: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Numbers in one of the stored types, after some that are not theirs: at any alignment.
#[derive(Clone, Debug)]
enum Stored {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

/// How far slices start from where their allocation does.
const SHIFT: usize = 1;

impl Stored {
    fn new(kind: usize, values: &[f32]) -> Self {
        let shifted = || [f32::NAN; SHIFT].iter().chain(values).copied();
        match kind {
            0 => Self::F32(shifted().collect()),
            1 => Self::F16(shifted().map(f16::from_f32).collect()),
            _ => Self::Bf16(shifted().map(bf16::from_f32).collect()),
        }
    }

    fn weights(&self) -> Weights<'_> {
        match self {
            Self::F32(values) => Weights::F32(&values[SHIFT..]),
            Self::F16(values) => Weights::F16(&values[SHIFT..]),
            Self::Bf16(values) => Weights::Bf16(&values[SHIFT..]),
        }
    }

    fn activations(&self) -> Activations<'_> {
        match self {
            Self::F32(values) => Activations::F32(&values[SHIFT..]),
            Self::Bf16(values) => Activations::Bf16(&values[SHIFT..]),
            Self::F16(_) => unreachable!("activations are not f16"),
        }
    }

    fn values(&self) -> Vec<f64> {
        match self {
            Self::F32(values) => values[SHIFT..].iter().map(|&v| f64::from(v)).collect(),
            Self::F16(values) => values[SHIFT..].iter().map(|v| v.to_f64()).collect(),
            Self::Bf16(values) => values[SHIFT..].iter().map(|v| v.to_f64()).collect(),
        }
    }
}

/// A sum, and the sum of its terms' magnitudes: what errors are measured by.
#[derive(Clone, Copy, Debug, Default)]
struct Exact {
    value: f64,
    magnitude: f64,
}

fn dot(a: &[f64], b: &[f64]) -> Exact {
    a.iter().zip(b).fold(Exact::default(), |sum, (a, b)| Exact {
        value: sum.value + a * b,
        magnitude: sum.magnitude + (a * b).abs(),
    })
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh())
        }
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::ClampedSilu { limit } => activated(Activation::Silu, x.min(limit.into())),
    }
}

/// What the activated gate is multiplied by.
fn bounded(activation: Activation, up: f64) -> f64 {
    match activation {
        Activation::ClampedSilu { limit } => up.clamp(-f64::from(limit), limit.into()),
        _ => up,
    }
}

/// By its series near zero, by the continued fraction of its complement beyond.
fn erf(x: f64) -> f64 {
    let root = std::f64::consts::PI.sqrt();
    if x.abs() > 3.0 {
        let fraction = (1..=60)
            .rev()
            .fold(x.abs(), |f, n| x.abs() + f64::from(n) / 2.0 / f);
        return x.signum() * (1.0 - (-x * x).exp() / (root * fraction));
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / root
}

#[derive(Clone, Debug)]
struct Layer {
    hidden: usize,
    intermediate: usize,
    activation: Activation,
    gate_up: Stored,
    down: Stored,
}

impl Layer {
    fn new(rows: usize, [hidden, intermediate]: [usize; 2], kinds: [usize; 2], seed: u64) -> Self {
        let matrix = rows * hidden * intermediate;
        Self {
            hidden,
            intermediate,
            activation: Activation::Silu,
            gate_up: Stored::new(kinds[0], &numbers(seed + 1, 2 * matrix)),
            down: Stored::new(kinds[1], &numbers(seed + 2, matrix)),
        }
    }

    fn mlp(&self) -> GatedMlp<'_> {
        GatedMlp {
            hidden: self.hidden,
            intermediate: self.intermediate,
            activation: self.activation,
            gate_up: self.gate_up.weights(),
            down: self.down.weights(),
        }
    }

    fn run(&self, variant: Variant, x: &Stored, routes: &Routes, tokens: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; tokens * self.hidden];
        variant
            .gated_mlp(&self.mlp(), x.activations(), routes, &mut out)
            .unwrap();
        out
    }

    /// The sums, and each route's own output.
    fn run_with_outputs(
        &self,
        variant: Variant,
        x: &Stored,
        routes: &Routes,
        tokens: usize,
    ) -> [Vec<f32>; 2] {
        let mut out = vec![f32::NAN; tokens * self.hidden];
        let mut outputs = vec![f32::NAN; routes.len() * self.hidden];
        variant
            .gated_mlp_with_outputs(&self.mlp(), x.activations(), routes, &mut out, &mut outputs)
            .unwrap();
        [out, outputs]
    }

    fn exact(&self, x: &Stored, routes: &[Vec<(usize, f32)>], tokens: usize) -> Vec<Exact> {
        let (hidden, intermediate) = (self.hidden, self.intermediate);
        let (x, gate_up, down) = (x.values(), self.gate_up.values(), self.down.values());
        let mut out = vec![Exact::default(); tokens * hidden];
        for (row, routes) in routes.iter().enumerate() {
            let gate_up = &gate_up[row * 2 * intermediate * hidden..];
            let down = &down[row * hidden * intermediate..];
            for &(token, weight) in routes {
                let x = &x[token * hidden..][..hidden];
                let projected = |i: usize| dot(x, &gate_up[i * hidden..][..hidden]);
                let between: Vec<Exact> = (0..intermediate)
                    .map(|i| {
                        let (gate, up) = (projected(i), projected(intermediate + i));
                        Exact {
                            value: activated(self.activation, gate.value)
                                * bounded(self.activation, up.value),
                            // Each activation's slope is below 1.13.
                            magnitude: 1.13 * gate.magnitude * up.magnitude,
                        }
                    })
                    .collect();
                for (n, out) in out[token * hidden..][..hidden].iter_mut().enumerate() {
                    for (between, w) in between.iter().zip(&down[n * intermediate..]) {
                        let factor = f64::from(weight) * w;
                        out.value += factor * between.value;
                        out.magnitude += (factor * between.magnitude).abs();
                    }
                }
            }
        }
        out
    }
}

fn assert_close(found: &[f32], exact: &[Exact], epsilon: f64, what: &str) {
    assert_eq!(found.len(), exact.len());
    for (index, (&found, exact)) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(found) - exact.value).abs();
        assert!(
            error <= epsilon * exact.magnitude + 1e-30,
            "{what}, element {index}: {found}, exactly {exact:?}"
        );
    }
}

/// Some tokens for each row: none, all, or every other one from some token on.
fn some_routes(rows: usize, tokens: usize, seed: u64) -> Vec<Vec<(usize, f32)>> {
    (0..rows)
        .map(|row| match (row as u64 + seed) % 4 {
            0 => Vec::new(),
            1 => (0..tokens).map(|t| (t, 0.25 + t as f32 / 64.0)).collect(),
            _ => (row..tokens)
                .step_by(2)
                .map(|t| (t, 1.0 - t as f32 / 32.0))
                .collect(),
        })
        .collect()
}

fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(work)
}

/// A few, some, or so many that weights are packed.
fn tokens() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..=7, 0usize..=70, 129usize..=150]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn linear_layers_are_right_in_every_variant(
        tokens in tokens(), inputs in prop_oneof![0usize..=70, 200usize..=260], outputs in prop_oneof![0usize..=70, 130usize..=200],
        weights in 0usize..3, bf16_activations: bool, seed in 0u64..1000,
    ) {
        let x = Stored::new(2 * usize::from(bf16_activations), &numbers(seed, tokens * inputs));
        let weights = Stored::new(weights, &numbers(seed + 1, outputs * inputs));
        let linear = Linear { inputs, outputs, weights: weights.weights() };
        let (exact_x, exact_w) = (x.values(), weights.values());
        let exact: Vec<Exact> = (0..tokens * outputs)
            .map(|i| {
                let x = &exact_x[i / outputs * inputs..][..inputs];
                dot(x, &exact_w[i % outputs * inputs..][..inputs])
            })
            .collect();
        for variant in Variant::available() {
            let mut out = vec![f32::NAN; tokens * outputs];
            variant.linear(&linear, x.activations(), &mut out).unwrap();
            assert_close(&out, &exact, 1e-6, variant.name());
        }
    }

    #[test]
    fn experts_are_right_in_every_variant(
        tokens in tokens(), hidden in 0usize..=70, intermediate in 0usize..=70,
        rows in 0usize..5, gate_up in 0usize..3, down in 0usize..3, bf16_activations: bool,
        activation in 0usize..4, seed in 0u64..1000,
    ) {
        let x = Stored::new(2 * usize::from(bf16_activations), &numbers(seed, tokens * hidden));
        let mut layer = Layer::new(rows, [hidden, intermediate], [gate_up, down], seed);
        layer.activation = [
            Activation::Silu,
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::ClampedSilu { limit: 0.5 },
        ][activation];
        let routes = some_routes(rows, tokens, seed);
        let exact = layer.exact(&x, &routes, tokens);
        for variant in Variant::available() {
            let found = layer.run(variant, &x, &Routes::from_rows(routes.clone()), tokens);
            let rounds = variant.has_bf16_products() && bf16_activations && gate_up + down == 4;
            let epsilon = if rounds { 1.0 / 512.0 } else { 4e-6 };
            assert_close(&found, &exact, epsilon, variant.name());
        }
    }

    #[test]
    fn outputs_of_routes_are_right_in_every_variant(
        tokens in 0usize..=40, hidden in 0usize..=70, intermediate in 0usize..=40,
        rows in 0usize..5, kind in 0usize..3, bf16_activations: bool, seed in 0u64..1000,
    ) {
        let x = Stored::new(2 * usize::from(bf16_activations), &numbers(seed, tokens * hidden));
        let layer = Layer::new(rows, [hidden, intermediate], [kind; 2], seed);
        let routes = some_routes(rows, tokens, seed);
        // A route's own output is the sum of a layer that has this route alone, with weight 1.
        let exact: Vec<Exact> = (0..rows)
            .flat_map(|row| routes[row].iter().map(move |&(token, _)| (row, token)))
            .flat_map(|(row, token)| {
                let mut alone = vec![Vec::new(); rows];
                alone[row].push((token, 1.0));
                layer.exact(&x, &alone, tokens)[token * hidden..][..hidden].to_vec()
            })
            .collect();
        let routes = Routes::from_rows(routes);
        for variant in Variant::available() {
            let expected = layer.run(variant, &x, &routes, tokens);
            let [out, outputs] = layer.run_with_outputs(variant, &x, &routes, tokens);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&out), bits(&expected), "{}", variant.name());
            let rounds = variant.has_bf16_products() && bf16_activations && kind == 2;
            let epsilon = if rounds { 1.0 / 512.0 } else { 4e-6 };
            assert_close(&outputs, &exact, epsilon, variant.name());
        }
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads(
        tokens in prop_oneof![1usize..=40, 129usize..=150], kind in 0usize..3, bf16_activations: bool, seed in 0u64..1000,
    ) {
        // Large enough to be shared among threads.
        let x = Stored::new(2 * usize::from(bf16_activations), &numbers(seed, tokens * 270));
        let layer = Layer::new(4, [270, 530], [kind, kind], seed);
        let routes = Routes::from_rows(some_routes(4, tokens, seed));
        let weights = Stored::new(kind, &numbers(seed, 270 * 1500));
        let linear = Linear { inputs: 270, outputs: 1500, weights: weights.weights() };
        for variant in Variant::available() {
            let [one, two, three] = [1, 2, 3].map(|threads| in_pool(threads, || {
                let mut y = vec![0.0; tokens * 1500];
                variant.linear(&linear, x.activations(), &mut y).unwrap();
                y.extend(layer.run_with_outputs(variant, &x, &routes, tokens).concat());
                y.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
            }));
            prop_assert!(one == two, "{}", variant.name());
            prop_assert!(one == three, "{}", variant.name());
        }
    }

    #[test]
    fn results_of_a_token_do_not_depend_on_the_others(
        tokens in prop_oneof![2usize..=40, 129usize..=150], inner in 1usize..=300, kind in 0usize..3,
        bf16_activations: bool, seed in 0u64..1000,
    ) {
        let hidden = 150;
        let stored = |values: &[f32]| Stored::new(2 * usize::from(bf16_activations), values);
        let numbers_of_tokens = numbers(seed, tokens * hidden);
        let x = stored(&numbers_of_tokens);
        let layer = Layer::new(3, [hidden, inner], [kind; 2], seed);
        let routes = some_routes(3, tokens, seed);
        let weights = Stored::new(kind, &numbers(seed, hidden * inner));
        let linear = Linear { inputs: hidden, outputs: inner, weights: weights.weights() };
        for variant in Variant::available() {
            let compute = |x: &Stored, routes: &[Vec<(usize, f32)>], tokens| {
                let mut y = vec![0.0; tokens * inner];
                variant.linear(&linear, x.activations(), &mut y).unwrap();
                (y, layer.run(variant, x, &Routes::from_rows(routes.to_vec()), tokens))
            };
            let (y, out) = compute(&x, &routes, tokens);
            for token in [0, tokens / 2, tokens - 1] {
                let of_token = |values: &[f32], size| values[token * size..][..size].to_vec();
                let own: Vec<Vec<(usize, f32)>> = routes
                    .iter()
                    .map(|row| row.iter().filter(|r| r.0 == token).map(|r| (0, r.1)).collect())
                    .collect();
                let alone = compute(&stored(&of_token(&numbers_of_tokens, hidden)), &own, 1);
                let among = (of_token(&y, inner), of_token(&out, hidden));
                prop_assert!(alone == among, "token {token}, {}", variant.name());
            }
        }
    }

    #[test]
    fn moments_are_the_same_in_every_variant(
        channels in 0usize..=70, vectors in 0usize..=11, seed in 0u64..1000,
    ) {
        let y = numbers(seed, vectors * channels);
        let factors: Vec<f64> = (0..vectors).map(|v| 0.3 + v as f64 / 7.0).collect();
        // One vector after the other, and all of them at a time.
        let run = |variant: Variant, at_a_time: usize| {
            let (mut sums, mut weighted_sums) = (vec![0.0; channels], vec![0.0; channels]);
            let mut squared_norms = vec![f64::NAN; vectors];
            for start in (0..vectors).step_by(at_a_time) {
                let end = vectors.min(start + at_a_time);
                let moments = Moments {
                    sums: &mut sums,
                    weighted_sums: &mut weighted_sums,
                    squared_norms: &mut squared_norms[start..end],
                };
                let y = &y[start * channels..end * channels];
                variant.add_moments(moments, &factors[start..end], y);
            }
            [sums, weighted_sums, squared_norms]
        };
        let [portable, rest @ ..] = [1, 11].map(|n| run(Variant::named("portable").unwrap(), n));
        for (channel, (sum, weighted)) in portable[0].iter().zip(&portable[1]).enumerate() {
            let of_channel = || (0..vectors).map(|v| f64::from(y[v * channels + channel]));
            prop_assert_eq!(*sum, of_channel().fold(0.0, |sum, y| sum + y));
            let terms = of_channel().zip(&factors).map(|(y, factor)| factor * y);
            prop_assert_eq!(*weighted, terms.fold(0.0, |sum, term| sum + term));
        }
        for (squared, y) in portable[2].iter().zip(y.chunks(channels.max(1))) {
            let exact: f64 = y.iter().map(|&y| f64::from(y) * f64::from(y)).sum();
            prop_assert!((squared - exact).abs() <= 1e-14 * exact);
        }
        let all = Variant::available().into_iter();
        let all = all.flat_map(|variant| [run(variant, 1), run(variant, 11)]);
        for found in rest.into_iter().chain(all) {
            for (found, expected) in found.iter().zip(&portable) {
                let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(found), bits(expected));
            }
        }
    }

    #[test]
    fn constants_are_summed_in_f64(
        hidden in prop_oneof![1usize..=70, 2000usize..=2100], kind in 0usize..3,
        tokens in prop_oneof![1usize..=9, 70usize..=90], ordered: bool, seed in 0u64..1000,
    ) {
        let constants = Stored::new(kind, &numbers(seed, 3 * hidden));
        let routes: Vec<ConstantRoute> = (0..2 * tokens)
            .map(|i| ConstantRoute {
                token: if ordered { i / 2 } else { i % tokens },
                row: i % 3,
                weight: 1.0 / (i as f32 + 3.0),
            })
            .collect();
        let before = numbers(seed + 1, tokens * hidden);
        let (values, constants) = (constants.values(), constants.weights());
        for variant in Variant::available() {
            let mut out = before.clone();
            variant.add_constants(&routes, constants, hidden, &mut out).unwrap();
            for (i, (&found, &before)) in out.iter().zip(&before).enumerate() {
                let term = |route: &ConstantRoute| {
                    f64::from(route.weight) * values[route.row * hidden + i % hidden]
                };
                let of_token = routes.iter().filter(|route| route.token == i / hidden);
                let expected = if ordered || tokens == 1 {
                    (f64::from(before) + of_token.map(term).sum::<f64>()) as f32
                } else {
                    // Each route comes alone, and is rounded by itself.
                    of_token.fold(before, |sum, route| (f64::from(sum) + term(route)) as f32)
                };
                prop_assert_eq!(found, expected);
            }
        }
    }
}

#[test]
fn undefined_numbers_stay_with_their_token() {
    let routes: Vec<Vec<(usize, f32)>> = vec![
        (0..30).map(|t| (t, 0.5)).collect(),
        vec![(3, 0.5), (4, f32::NAN), (5, 0.5)],
    ];
    for (kind, activations) in [(0, 0), (1, 0), (2, 0), (2, 2)] {
        let layer = Layer::new(2, [37, 21], [kind, kind], 7);
        let mut values = numbers(8, 30 * 37);
        let clean = Stored::new(activations, &values);
        values[37 * 11 + 36] = f32::NAN;
        values[37 * 25] = f32::INFINITY;
        let spoilt = Stored::new(activations, &values);
        let defined = Routes::from_rows(routes.iter().map(|row| {
            row.iter()
                .map(|&(t, w)| (t, if w.is_nan() { 0.5 } else { w }))
        }));
        for variant in Variant::available() {
            let expected = layer.run(variant, &clean, &defined, 30);
            let found = layer.run(variant, &spoilt, &Routes::from_rows(routes.clone()), 30);
            for token in 0..30 {
                let range = token * 37..(token + 1) * 37;
                if [4, 11, 25].contains(&token) {
                    assert!(
                        found[range].iter().all(|v| !v.is_finite()),
                        "{}",
                        variant.name()
                    );
                } else {
                    assert_eq!(found[range.clone()], expected[range], "{}", variant.name());
                }
            }
        }
    }
}

#[test]
fn infinite_weights_spoil_only_their_rows() {
    let mut values = numbers(1, 40 * 19);
    values[19 * 5 + 18] = f32::INFINITY;
    let x = numbers(2, 20 * 19);
    for kind in 0..3 {
        let weights = Stored::new(kind, &values);
        let linear = Linear {
            inputs: 19,
            outputs: 40,
            weights: weights.weights(),
        };
        for variant in Variant::available() {
            for tokens in [1, 20] {
                let mut out = vec![0.0; tokens * 40];
                let x = Activations::F32(&x[..tokens * 19]);
                variant.linear(&linear, x, &mut out).unwrap();
                for (i, value) in out.iter().enumerate() {
                    assert_eq!(value.is_finite(), i % 40 != 5, "{}", variant.name());
                }
            }
        }
    }
}

#[test]
fn type_of_weights_does_not_change_results() {
    // All three types have these numbers; the sums are rounded, because activations are random.
    let values: Vec<f32> = (0..130 * 77)
        .map(|i| ((i * 7 % 33) as f32 - 16.0) / 16.0)
        .collect();
    let stored = [0, 1, 2].map(|kind| Stored::new(kind, &values));
    for tokens in [1, 3, 6, 9, 150] {
        let x = numbers(5, tokens * 77);
        for variant in Variant::available() {
            let [f32, f16, bf16] = [0, 1, 2].map(|kind| {
                let linear = Linear {
                    inputs: 77,
                    outputs: 130,
                    weights: stored[kind].weights(),
                };
                let mut out = vec![0.0; tokens * 130];
                variant
                    .linear(&linear, Activations::F32(&x), &mut out)
                    .unwrap();
                out
            });
            assert!(f32 == f16, "{}, {tokens} tokens", variant.name());
            assert!(f32 == bf16, "{}, {tokens} tokens", variant.name());
        }
    }
}

#[test]
fn long_sums_are_right_in_every_variant() {
    for (tokens, inputs, outputs) in [(33, 513, 70), (70, 1100, 33), (150, 1030, 17)] {
        for bf16_activations in [false, true] {
            let values = numbers(3, tokens * inputs);
            let stored = |values: &[f32]| Stored::new(2 * usize::from(bf16_activations), values);
            let x = stored(&values);
            let weights = Stored::new(2, &numbers(4, outputs * inputs));
            let linear = Linear {
                inputs,
                outputs,
                weights: weights.weights(),
            };
            let (exact_x, exact_w) = (x.values(), weights.values());
            let exact: Vec<Exact> = (0..tokens * outputs)
                .map(|i| {
                    let x = &exact_x[i / outputs * inputs..][..inputs];
                    dot(x, &exact_w[i % outputs * inputs..][..inputs])
                })
                .collect();
            let mut by_products = std::collections::BTreeMap::new();
            for variant in Variant::available() {
                let run = |x: &Stored, tokens| {
                    let mut out = vec![f32::NAN; tokens * outputs];
                    variant.linear(&linear, x.activations(), &mut out).unwrap();
                    out
                };
                let out = run(&x, tokens);
                assert_close(&out, &exact, 1e-6, variant.name());
                let last = run(&stored(&values[(tokens - 1) * inputs..]), 1);
                assert!(last == out[(tokens - 1) * outputs..], "{}", variant.name());
                // What multiplies alike gives the same, bit by bit.
                let products = variant.products(bf16_activations);
                let first = by_products.entry(products).or_insert_with(|| out.clone());
                assert!(*first == out, "{products}, {}", variant.name());
            }
        }
    }
}

#[test]
fn all_memory_is_read_by_every_variant() {
    // Whole numbers, which add up exactly in any order.
    let memory: Vec<f32> = (0..4096u16).map(|i| f32::from(i % 61)).collect();
    for variant in Variant::available() {
        let sum = variant.read(&memory);
        assert_eq!(sum, memory.iter().sum::<f32>(), "{}", variant.name());
    }
}
