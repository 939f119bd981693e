//! Attention of every variant that this machine has against straightforward sums in `f64`.
#![allow(clippy::unwrap_used)]

use half::bf16;
use locum_kernels::{Activations, Attention, Heads, KernelError, Variant};
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
            let value = (state >> 40) as f32 / (1 << 23) as f32 - 1.0;
            // Both types hold it.
            bf16::from_f32(2.0 * value).to_f32()
        })
        .collect()
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    kv_heads: usize,
    group: usize,
    tokens: usize,
    before: usize,
    head: usize,
    size: usize,
    /// Elements between rows that are nobody's.
    gap: usize,
    bf16: bool,
}

/// Rows with gaps between them, in either type.
struct Rows {
    f32: Vec<f32>,
    bf16: Vec<bf16>,
    tokens: usize,
    stride: usize,
}

impl Rows {
    fn new(seed: u64, heads: usize, tokens: usize, elements: usize, gap: usize) -> Self {
        let stride = elements + gap;
        let mut f32 = numbers(seed, heads * tokens * stride);
        for row in f32.chunks_mut(stride.max(1)) {
            row[elements..].fill(f32::NAN);
        }
        Self {
            bf16: f32.iter().copied().map(bf16::from_f32).collect(),
            f32,
            tokens,
            stride,
        }
    }

    fn heads(&self, bf16: bool) -> Heads<'_> {
        Heads {
            values: if bf16 {
                Activations::Bf16(&self.bf16)
            } else {
                Activations::F32(&self.f32)
            },
            head_stride: self.tokens * self.stride,
            token_stride: self.stride,
        }
    }

    /// Without the first tokens of each head.
    fn from(&self, token: usize, bf16: bool) -> Heads<'_> {
        let start = token * self.stride;
        Heads {
            values: if bf16 {
                Activations::Bf16(&self.bf16[start..])
            } else {
                Activations::F32(&self.f32[start..])
            },
            ..self.heads(bf16)
        }
    }

    fn row(&self, head: usize, token: usize, elements: usize) -> impl Iterator<Item = f64> {
        let start = (head * self.tokens + token) * self.stride;
        self.f32[start..start + elements]
            .iter()
            .map(|&x| f64::from(x))
    }
}

fn compare(sizes: Sizes) {
    let heads = sizes.kv_heads * sizes.group;
    let seen = sizes.before + sizes.tokens;
    let queries = Rows::new(1, heads, sizes.tokens, sizes.head, sizes.gap);
    let keys = Rows::new(2, sizes.kv_heads, seen, sizes.head, sizes.gap);
    let values = Rows::new(3, sizes.kv_heads, seen, sizes.size, sizes.gap);
    let attention = Attention {
        heads,
        kv_heads: sizes.kv_heads,
        tokens: sizes.tokens,
        seen,
        head: sizes.head,
        size: sizes.size,
        scale: 0.25,
        queries: queries.heads(sizes.bf16),
        keys: keys.heads(sizes.bf16),
        values: values.heads(sizes.bf16),
    };
    let mut expected = Vec::new();
    for token in 0..sizes.tokens {
        for head in 0..heads {
            let kv_head = head / sizes.group;
            let weights: Vec<f64> = (0..=sizes.before + token)
                .map(|key| {
                    let query = queries.row(head, token, sizes.head);
                    let key = keys.row(kv_head, key, sizes.head);
                    (0.25 * query.zip(key).map(|(q, k)| q * k).sum::<f64>()).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0.0; sizes.size];
            for (key, weight) in weights.iter().enumerate() {
                let value = values.row(kv_head, key, sizes.size);
                for (sum, value) in sums.iter_mut().zip(value) {
                    *sum += weight / total * value;
                }
            }
            expected.extend(sums);
        }
    }
    for variant in Variant::available() {
        let run = |threads| {
            let mut out = vec![f32::NAN; expected.len()];
            let pool = ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| variant.attention(&attention, &mut out))
                .unwrap();
            out
        };
        let found = run(1);
        assert_eq!(found, run(3), "{} {sizes:?}: threads", variant.name());
        for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = (f64::from(*found) - expected).abs();
            // Values are at most 2; a score's error moves its weight.
            assert!(off < 4e-6, "{} {sizes:?} {place}: {off}", variant.name());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_variants_agree_with_sums_in_f64(
        (kv_heads, group) in (1..4usize, 1..5usize),
        (tokens, before) in (1..71usize, prop_oneof![0..4usize, 60..200usize]),
        (head, size) in (1..71usize, 1..71usize),
        (gap, bf16) in (0..3usize, any::<bool>()),
    ) {
        let sizes = Sizes { kv_heads, group, tokens, before, head, size, gap, bf16 };
        compare(sizes);
    }
}

#[test]
fn results_of_a_token_do_not_depend_on_the_others() {
    let (kv_heads, head, size, seen) = (2, 70, 40, 200);
    for (group, bf16) in [(1, false), (3, true)] {
        let heads = kv_heads * group;
        let queries = Rows::new(1, heads, seen, head, 0);
        let keys = Rows::new(2, kv_heads, seen, head, 0);
        let values = Rows::new(3, kv_heads, seen, size, 0);
        for variant in Variant::available() {
            // The tokens from one on, which see all before them.
            let run = |first: usize, tokens: usize| {
                let attention = Attention {
                    heads,
                    kv_heads,
                    tokens,
                    seen: first + tokens,
                    head,
                    size,
                    scale: 0.25,
                    queries: queries.from(first, bf16),
                    keys: keys.heads(bf16),
                    values: values.heads(bf16),
                };
                let mut out = vec![f32::NAN; tokens * heads * size];
                variant.attention(&attention, &mut out).unwrap();
                out
            };
            let all = run(0, seen);
            for (first, tokens) in [(0, 1), (57, 1), (127, 2), (128, 1), (150, 50), (199, 1)] {
                let among = &all[first * heads * size..][..tokens * heads * size];
                assert!(run(first, tokens) == among, "{} {first}", variant.name());
            }
        }
    }
}

#[test]
fn one_token_sees_a_long_context() {
    compare(Sizes {
        kv_heads: 4,
        group: 2,
        tokens: 1,
        before: 1000,
        head: 128,
        size: 128,
        gap: 0,
        bf16: false,
    });
}

#[test]
fn large_scores_do_not_overflow_and_a_nan_stays_in_its_row() {
    let mut queries = vec![100.0f32; 2 * 4];
    queries[0] = f32::NAN;
    let keys: Vec<f32> = (0..8).map(|i| if i < 4 { 100.0 } else { 101.0 }).collect();
    let values = [1.0, 2.0, 3.0, 4.0f32];
    let rows = |values, stride| Heads {
        values: Activations::F32(values),
        head_stride: 0,
        token_stride: stride,
    };
    for variant in Variant::available() {
        let mut out = [0.0; 4];
        let attention = Attention {
            heads: 1,
            kv_heads: 1,
            tokens: 2,
            seen: 2,
            head: 4,
            size: 2,
            scale: 1.0,
            queries: rows(&queries, 4),
            keys: rows(&keys, 4),
            values: rows(&values, 2),
        };
        variant.attention(&attention, &mut out).unwrap();
        assert!(out[..2].iter().all(|x| x.is_nan()), "{}", variant.name());
        // e^−400 is nothing beside 1.
        assert_eq!(out[2..], [3.0, 4.0], "{}", variant.name());
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let values = [0.0f32; 16];
    let rows = Heads {
        values: Activations::F32(&values),
        head_stride: 8,
        token_stride: 4,
    };
    let fits = Attention {
        heads: 2,
        kv_heads: 2,
        tokens: 2,
        seen: 2,
        head: 4,
        size: 4,
        scale: 1.0,
        queries: rows,
        keys: rows,
        values: rows,
    };
    let variant = Variant::detect().unwrap();
    let run = |attention: Attention<'_>| variant.attention(&attention, &mut [0.0; 16]);
    assert_eq!(run(fits), Ok(()));
    let refused = |heads, kv_heads, tokens, seen| KernelError::Attention {
        heads,
        kv_heads,
        tokens,
        seen,
    };
    assert_eq!(
        run(Attention {
            kv_heads: 0,
            ..fits
        }),
        Err(refused(2, 0, 2, 2))
    );
    assert_eq!(
        run(Attention { heads: 3, ..fits }),
        Err(refused(3, 2, 2, 2))
    );
    assert_eq!(run(Attention { seen: 1, ..fits }), Err(refused(2, 2, 2, 1)));
    assert_eq!(
        run(Attention { head: 5, ..fits }),
        Err(KernelError::Length {
            what: "queries",
            expected: 17,
            found: 16
        })
    );
    assert_eq!(
        run(Attention { size: 3, ..fits }),
        Err(KernelError::Length {
            what: "out",
            expected: 12,
            found: 16
        })
    );
}
