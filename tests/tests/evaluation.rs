//! What evaluation says of a model, and of its difference from another.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use locum::models::{Model, ModelFiles};
use locum::nn::DType;
use locum::prune::{Encounters, Evaluation, PruneError, Steps, Windows, evaluate};
use locum_tests::{Reference, fixture, full_logits, load, tiny_olmoe};

/// The first tokens of the held-out text.
fn held_out(tokens: usize) -> Vec<i64> {
    let text = std::fs::read_to_string(fixture("heldout.txt")).unwrap();
    let files = ModelFiles::open(tiny_olmoe("tiny-olmoe")).unwrap();
    let encoding = files.tokenizer().unwrap().encode(text, false).unwrap();
    let ids = encoding.get_ids().iter().take(tokens);
    ids.map(|&id| id.into()).collect()
}

fn evaluated(model: &Model, other: Option<&Model>, ids: &[i64], length: usize) -> Evaluation {
    let windows = Windows::new(ids.to_vec(), length).unwrap();
    let mut predictions = 0;
    let found = evaluate(model, other, &windows, |more| predictions += more).unwrap();
    assert_eq!(predictions, found.predictions);
    found
}

/// `p` of each token after each of the inputs, the plain way.
fn probabilities(model: &Model, inputs: &[i64]) -> Vec<Vec<f64>> {
    let logits = full_logits(model, &[inputs.to_vec()]);
    logits
        .chunks(model.limits().vocabulary)
        .map(|row| {
            let exponentials: Vec<f64> = row.iter().map(|&x| f64::from(x).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            exponentials.into_iter().map(|x| x / sum).collect()
        })
        .collect()
}

fn likeliest(probabilities: &[f64]) -> usize {
    let largest = probabilities.iter().copied().fold(0.0, f64::max);
    probabilities.iter().position(|&p| p == largest).unwrap()
}

#[test]
fn difference_from_another_model_is_that_of_the_definitions() {
    const LENGTH: usize = 24;
    let ids = held_out(4 * LENGTH + 1);
    let model = load(&tiny_olmoe("tiny-olmoe-mone50"), DType::F32);
    let other = load(&tiny_olmoe("tiny-olmoe"), DType::F32);
    let found = evaluated(&model, Some(&other), &ids, LENGTH);
    assert_eq!((found.windows, found.predictions), (4, 4 * LENGTH));
    let comparison = found.comparison.unwrap();

    let (mut surprise, mut others, mut agreed, mut divergence) = (0.0, 0.0, 0, 0.0);
    for window in 0..4 {
        let inputs = &ids[window * LENGTH..][..LENGTH];
        let targets = &ids[window * LENGTH + 1..][..LENGTH];
        let here = probabilities(&model, inputs);
        let there = probabilities(&other, inputs);
        for ((here, there), &target) in here.iter().zip(&there).zip(targets) {
            surprise -= here[target as usize].ln();
            others -= there[target as usize].ln();
            agreed += usize::from(likeliest(here) == likeliest(there));
            let terms = there.iter().zip(here);
            divergence += terms.map(|(q, p)| q * (q / p).ln()).sum::<f64>();
        }
    }
    let mean = |sum: f64| sum / (4 * LENGTH) as f64;
    for (what, found, expected) in [
        (
            "likelihood",
            found.model.negative_log_likelihood,
            mean(surprise),
        ),
        (
            "other likelihood",
            comparison.other.negative_log_likelihood,
            mean(others),
        ),
        ("divergence", comparison.kl_divergence, mean(divergence)),
    ] {
        // Batches round otherwise than sequences one by one.
        let off = (found - expected).abs();
        assert!(off < 1e-5, "{what}: {found}, expected {expected}");
    }
    assert_eq!(comparison.token_agreement, mean(agreed as f64));
    assert!(agreed > 0 && agreed < 4 * LENGTH && divergence > 0.1);
}

#[test]
fn model_against_itself_loses_nothing() {
    let ids = held_out(200);
    let [model, same] = [(); 2].map(|()| load(&tiny_olmoe("tiny-olmoe-mone25"), DType::F32));
    let found = evaluated(&model, Some(&same), &ids, 64);
    let comparison = found.comparison.unwrap();
    assert_eq!(comparison.token_agreement, 1.0);
    assert_eq!(comparison.kl_divergence, 0.0);
    assert_eq!(
        comparison.other.negative_log_likelihood,
        found.model.negative_log_likelihood
    );
    assert_eq!(comparison.other.layers, found.model.layers);
    // 199 tokens after the first are three windows and seven tokens.
    assert_eq!((found.windows, found.model.tokens), (3, 192));
}

/// Where the logits of a window would take too much memory, it is read piece by piece.
#[test]
fn windows_in_pieces_say_the_same() {
    let ids = held_out(150);
    let model = load(&tiny_olmoe("tiny-olmoe-mone50"), DType::F32);
    let other = load(&tiny_olmoe("tiny-olmoe"), DType::F32);
    let whole = evaluated(&model, Some(&other), &ids, 48);
    let steps = Steps {
        windows: 2,
        tokens: 20,
    };
    let windows = Windows::new(ids, 48).unwrap().with_steps(steps);
    let mut made = Vec::new();
    let pieces = evaluate(&model, Some(&other), &windows, |more| made.push(more)).unwrap();
    // Two windows of 20, 20 and 8 tokens, then the third one.
    assert_eq!(made, [40, 40, 16, 20, 20, 8]);
    assert_eq!(pieces.model.tokens, 3 * 48);
    let [pieces_of, whole_of] = [&pieces, &whole].map(|found| found.comparison.as_ref().unwrap());
    assert_eq!(pieces_of.token_agreement, whole_of.token_agreement);
    for (found, expected) in [
        (
            pieces.model.negative_log_likelihood,
            whole.model.negative_log_likelihood,
        ),
        (
            pieces_of.other.negative_log_likelihood,
            whole_of.other.negative_log_likelihood,
        ),
        (pieces_of.kl_divergence, whole_of.kl_divergence),
    ] {
        assert!((found - expected).abs() < 1e-5, "{found} and {expected}");
    }
    for (found, expected) in pieces.model.layers.iter().zip(&whole.model.layers) {
        assert_eq!(found.routes, expected.routes);
        assert_eq!(found.routes_substituted, expected.routes_substituted);
    }
}

/// Routes as transformers chose them, of the pruned olmoe fixture.
#[test]
fn met_constants_are_those_of_the_routes_of_transformers() {
    let directory = fixture("olmoe/approx");
    let reference = Reference::open(&directory);
    let model = load(&directory, DType::F32);
    let rows = reference.rows("input_ids");
    // One window per row: its last token is predicted and not read.
    for (index, row) in rows.iter().enumerate() {
        let tokens = row.len() - 1;
        let found = evaluated(&model, None, row, tokens);
        for ((info, table), met) in model.moe_layers().iter().zip(&found.model.layers) {
            let name = |what| format!("debug.{}.{what}", info.layer);
            let (shape, ids) = reference.i64(&name("top_k_index"));
            let (_, weights) = reference.f32(&name("top_k_weights"));
            let top_k = shape[1];
            let start = index * row.len() * top_k;
            let ids = &ids[start..][..tokens * top_k];
            let weights = &weights[start..][..tokens * top_k];
            let gone = |id: &i64| table.substituted().iter().any(|&e| i64::from(e) == *id);
            let sum = |wanted: &dyn Fn(&i64) -> bool| -> f64 {
                let chosen = ids.iter().zip(weights).filter(|(id, _)| wanted(id));
                chosen.map(|(_, &weight)| f64::from(weight)).sum()
            };
            let expected = Encounters {
                tokens: tokens as u64,
                tokens_substituted: ids.chunks(top_k).filter(|ids| ids.iter().any(gone)).count()
                    as u64,
                routes: (tokens * top_k) as u64,
                routes_substituted: ids.iter().filter(|id| gone(id)).count() as u64,
                weight: met.weight,
                weight_substituted: met.weight_substituted,
            };
            assert_eq!(*met, expected, "layer {}", info.layer);
            assert!((met.weight - sum(&|_| true)).abs() < 1e-3);
            assert!((met.weight_substituted - sum(&gone)).abs() < 1e-3);
        }
    }
    assert!(
        model
            .moe_layers()
            .iter()
            .any(|(_, table)| !table.substituted().is_empty())
    );
}

#[test]
fn models_with_other_vocabularies_are_not_compared() {
    let model = load(&tiny_olmoe("tiny-olmoe"), DType::F32);
    let other = load(&fixture("olmoe/base"), DType::F32);
    let windows = Windows::new(vec![1; 9], 4).unwrap();
    let error = evaluate(&model, Some(&other), &windows, |_| {}).unwrap_err();
    assert!(
        error.to_string().contains("tokens in the vocabulary"),
        "{error}"
    );
}

#[test]
fn windows_beyond_the_context_are_refused() {
    let model = load(Path::new(&tiny_olmoe("tiny-olmoe")), DType::F32);
    let context = model.limits().max_positions;
    let windows = Windows::new(vec![1; context + 2], context + 1).unwrap();
    let error = evaluate(&model, None, &windows, |_| {}).unwrap_err();
    assert!(matches!(error, PruneError::Model(_)), "{error}");
    assert!(error.to_string().contains("max_position_embeddings"));
}
