//! Trained models against transformers: logits, greedy text, perplexity on text never trained on.

use std::ops::ControlFlow;

use locum::models::{GenerateOptions, Generator, ModelFiles};
use locum::nn::DType;
use locum::prune::{Windows, evaluate};
use locum_tests::{Reference, cached_logits, distance, fixture, full_logits, load, tiny_olmoe};

/// Each model with its held-out perplexity as transformers computes it.
const MODELS: [(&str, f64); 3] = [
    ("tiny-olmoe", 33.252),
    ("tiny-olmoe-mone25", 35.254),
    ("tiny-olmoe-mone50", 42.532),
];

const TOLERANCE: f32 = 1e-3;

#[test]
fn logits_agree() {
    for (name, _) in MODELS {
        let reference = Reference::open(&fixture(name));
        let model = load(&tiny_olmoe(name), DType::F32);
        let (shape, expected) = reference.f32("logits");
        assert_eq!(shape, [1, 64, 2048], "{name}");
        let ids = reference.rows("input_ids");
        for (how, found) in [
            ("at once", full_logits(&model, &ids)),
            ("cached", cached_logits(&model, &ids, 1)),
        ] {
            let distance = distance(&found, &expected);
            assert!(distance <= TOLERANCE, "{name} {how}: off by {distance}");
        }
    }
}

/// The reference's greedy ids are the prompt "Emma was" and the 60 tokens after it.
#[test]
fn greedy_ids_agree() {
    for (name, _) in MODELS {
        let model = load(&tiny_olmoe(name), DType::F32);
        let tokenizer = ModelFiles::open(tiny_olmoe(name)).and_then(|files| files.tokenizer());
        let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{error}"));
        let options = GenerateOptions {
            max_new_tokens: 60,
            end_tokens: vec![0],
            ..GenerateOptions::default()
        };
        let mut text = String::new();
        let generated = Generator::new(&model, &tokenizer).generate("Emma was", &options, |new| {
            text.push_str(new);
            ControlFlow::Continue(())
        });
        let generated = generated.unwrap_or_else(|error| panic!("{error}"));
        let ids: Vec<i64> = generated
            .prompt
            .iter()
            .chain(&generated.tokens)
            .map(|&id| id.into())
            .collect();
        let expected = Reference::open(&fixture(name)).rows("greedy_ids").concat();
        assert_eq!(ids, expected, "{name}: {text}");
    }
}

#[test]
fn held_out_perplexity_agrees() {
    let text = std::fs::read_to_string(fixture("heldout.txt"));
    let text = text.unwrap_or_else(|error| panic!("{error}"));
    for (name, expected) in MODELS {
        let tokenizer = ModelFiles::open(tiny_olmoe(name)).and_then(|files| files.tokenizer());
        let tokenizer = tokenizer.unwrap_or_else(|error| panic!("{error}"));
        let encoding = tokenizer.encode(text.as_str(), false);
        let encoding = encoding.unwrap_or_else(|error| panic!("{error}"));
        let ids: Vec<i64> = encoding.get_ids().iter().map(|&id| id.into()).collect();
        let windows = Windows::new(ids, 256).unwrap_or_else(|error| panic!("{error}"));
        let model = load(&tiny_olmoe(name), DType::F32);
        let evaluation = evaluate(&model, None, &windows, |_| {});
        let evaluation = evaluation.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (evaluation.windows, evaluation.predictions),
            (244, 62_464),
            "{name}"
        );
        let found = evaluation.model.perplexity();
        let off = (found / expected - 1.0).abs();
        assert!(off <= 0.002, "{name}: {found:.3}, expected {expected}");
    }
}
