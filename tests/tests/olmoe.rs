//! OLMoE against transformers: tiny random checkpoints, unpruned and in both formats.

use locum::models::ModelFiles;
use locum::nn::DType;
use locum_tests::{Reference, cached_logits, distance, fixture, full_logits, load};

/// f32 evaluation order moves these logits by up to 2e-5; their standard deviation is about 2.
const TOLERANCE: f32 = 1e-4;

/// The directory, and the name of its logits in the reference.
const CASES: [(&str, &str); 3] = [
    ("olmoe/base", "full_logits"),
    ("olmoe/approx", "substituted_logits"),
    ("olmoe/explicit", "substituted_logits"),
];

#[test]
fn full_sequence_logits_agree() {
    for (name, logits) in CASES {
        let directory = fixture(name);
        let reference = Reference::open(&directory);
        let model = load(&directory, DType::F32);
        let found = full_logits(&model, &reference.rows("input_ids"));
        let (shape, expected) = reference.f32(logits);
        assert_eq!(shape, [2, 40, 160], "{name}");
        let distance = distance(&found, &expected);
        assert!(distance <= TOLERANCE, "{name}: off by {distance}");
    }
}

#[test]
fn cached_logits_agree_token_by_token_and_after_a_prefix() {
    for (name, logits) in CASES {
        let directory = fixture(name);
        let reference = Reference::open(&directory);
        let model = load(&directory, DType::F32);
        let (_, expected) = reference.f32(logits);
        for prefix in [1, 7, 39] {
            let found = cached_logits(&model, &reference.rows("input_ids"), prefix);
            let distance = distance(&found, &expected);
            assert!(
                distance <= TOLERANCE,
                "{name}, prefix {prefix}: off by {distance}"
            );
        }
    }
}

#[test]
fn substitution_changes_the_logits_that_are_compared() {
    let reference = Reference::open(&fixture("olmoe/approx"));
    let (_, full) = reference.f32("full_logits");
    let (_, substituted) = reference.f32("substituted_logits");
    assert!(distance(&full, &substituted) > 1.0);
}

#[test]
fn greedy_tokens_agree() {
    for (name, _) in CASES {
        let directory = fixture(name);
        let reference = Reference::open(&directory);
        let model = load(&directory, DType::F32);
        let expected = reference.rows("greedy_ids").concat();
        let mut ids = reference.rows("input_ids")[0][..12].to_vec();
        assert_eq!(ids, expected[..12], "{name}");
        while ids.len() < expected.len() {
            let logits = full_logits(&model, &[ids.clone()]);
            let last = &logits[logits.len() - 160..];
            let best = (0..160).max_by(|&a, &b| last[a].total_cmp(&last[b]));
            ids.push(best.map_or(-1, |best| best as i64));
        }
        assert_eq!(ids, expected, "{name}");
    }
}

#[test]
fn both_formats_are_told_apart() {
    let formats = CASES.map(|(name, _)| {
        let config = ModelFiles::open(fixture(name)).map(|files| files.config().clone());
        let config = config.unwrap_or_else(|error| panic!("{name}: {error}"));
        let spec = locum::SubstitutionSpec::from_config(&config);
        let spec = spec.unwrap_or_else(|error| panic!("{name}: {error}"));
        spec.format().map(|format| format.key())
    });
    assert_eq!(
        formats,
        [
            None,
            Some("approximate_experts"),
            Some("compression_config.transform_config.expert_substitution"),
        ]
    );
}
