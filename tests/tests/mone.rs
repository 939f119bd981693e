//! From a text to a pruned model, against the same done by transformers and NumPy.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::PathBuf;
use std::sync::LazyLock;

use locum::models::ModelFiles;
use locum::nn::DType;
use locum::prune::{
    Amount, Export, ExportOptions, Metric, Plan, Replacement, Scope, Settings, Statistics, Subject,
    Windows, evaluate,
};
use locum_tests::{calibrating, fixture, load, plan_of, tensors, tensors_of_one_file, tiny_olmoe};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokenizers::Encoding;

/// Statistics of the model on the reference's text, all windows of 256 tokens.
static STATISTICS: LazyLock<Statistics> = LazyLock::new(|| {
    let directory = fixture("tiny-olmoe");
    let model = load(&directory, DType::F32);
    let calibration = calibrating::of_text(&directory, &model, calibrating::selection(256, None));
    calibration.collect(&model, |_| {}).unwrap()
});

fn by_fusion(subject: &Subject, ratio: f64) -> Plan {
    let settings = Settings {
        metric: Metric::Fusion,
        scope: Scope::Layer,
        amount: Amount::Ratio(ratio),
        min_per_layer: 1,
        seed: 0,
    };
    settings.plan(subject, Some(&STATISTICS)).unwrap()
}

fn ids(plan: &Plan) -> Value {
    let layers = plan.layers.iter();
    let layers = layers.map(|layer| (layer.layer.to_string(), layer.ids().collect::<Value>()));
    Value::Object(layers.collect())
}

fn ids_of(text: &Encoding) -> Vec<i64> {
    text.get_ids().iter().map(|&id| i64::from(id)).collect()
}

struct Made<'a> {
    subject: &'a Subject,
    directory: TempDir,
    text: Windows,
}

impl Made<'_> {
    fn export(&self, plan: &Plan, replacement: Replacement, name: &str) -> PathBuf {
        let constants = replacement
            .constants(self.subject, plan, Some(&STATISTICS))
            .unwrap();
        let options = ExportOptions::default();
        let export = Export::new(self.subject, plan, &constants, &options).unwrap();
        let out = self.directory.path().join(name);
        export.write(&out, false, &mut |_| {}).unwrap();
        out
    }

    /// Held-out perplexity of the model that is made.
    fn perplexity(&self, plan: &Plan, replacement: Replacement, name: &str) -> f64 {
        let out = self.export(plan, replacement, name);
        let model = load(&out, DType::F32);
        let found = evaluate(&model, None, &self.text, |_| {}).unwrap();
        let found = found.model.perplexity();
        println!("{name}: {found:.3}");
        found
    }
}

#[test]
fn the_same_experts_go_and_cost_what_they_cost_there() {
    let source = fixture("tiny-olmoe");
    let subject = Subject::open(&source).unwrap();
    subject.check_statistics(&STATISTICS).unwrap();
    let reference = std::fs::read(fixture("mone/mone_stats.json")).unwrap();
    let reference: Value = serde_json::from_slice(&reference).unwrap();
    let held_out = std::fs::read_to_string(fixture("heldout.txt")).unwrap();
    let tokenizer = ModelFiles::open(&source).unwrap().tokenizer().unwrap();
    let text = tokenizer.encode(held_out, false).unwrap();
    let made = Made {
        subject: &subject,
        directory: TempDir::new().unwrap(),
        text: Windows::new(ids_of(&text), 256).unwrap(),
    };
    for (percent, ratio) in [("25", 0.25), ("50", 0.5)] {
        let plan = by_fusion(&subject, ratio);
        assert_eq!(ids(&plan), reference["pruned"][percent], "{percent} %");
        let random = &reference["pruned"][format!("{percent}_random_seed0")];
        let random = plan_of(&subject, |layer, expert| {
            let ids = random[layer.to_string()].as_array().unwrap();
            ids.contains(&json!(expert))
        });
        let mut found = Vec::new();
        for (plan, replacement, name) in [
            (&plan, Replacement::Mean, format!("mone-{percent}-mean")),
            (&plan, Replacement::Zero, format!("mone-{percent}-zero")),
            (&random, Replacement::Mean, format!("random-{percent}-mean")),
        ] {
            let perplexity = made.perplexity(plan, replacement, &name);
            let expected = reference["heldout"][&name]["ppl"].as_f64().unwrap();
            let off = (perplexity / expected - 1.0).abs();
            assert!(off <= 5e-3, "{name}: {perplexity} is not {expected}");
            found.push(perplexity);
        }
        assert!(found.is_sorted(), "mean beats zero beats chance: {found:?}");
        let name = format!("least-squares-{percent}");
        let least_squares = made.perplexity(&plan, Replacement::LeastSquares, &name);
        assert!(least_squares < found[1], "it beats zero");
    }
}

#[test]
fn pruned_model_is_the_one_that_was_made_there() {
    let source = fixture("tiny-olmoe");
    let subject = Subject::open(&source).unwrap();
    let made = Made {
        subject: &subject,
        directory: TempDir::new().unwrap(),
        text: Windows::new(vec![0, 0], 1).unwrap(),
    };
    for (name, ratio) in [("tiny-olmoe-mone25", 0.25), ("tiny-olmoe-mone50", 0.5)] {
        let plan = by_fusion(&subject, ratio);
        let out = made.export(&plan, Replacement::Mean, name);
        let (found, expected) = (tensors(&out), tensors_of_one_file(&tiny_olmoe(name)));
        assert!(found.keys().eq(expected.keys()));
        for (tensor, found) in found {
            let expected = &expected[&tensor];
            if !tensor.ends_with(".approx_value") {
                assert_eq!(found, *expected, "{tensor}");
                continue;
            }
            assert_eq!(
                (found.dtype, &found.shape),
                (expected.dtype, &expected.shape)
            );
            // A mean that differs in its last digits may round to the next bf16, and one token whose two
            // last scores are all but equal moves it by a step more.
            let pairs = found
                .widened()
                .elements()
                .into_iter()
                .zip(expected.widened().elements());
            let mut differ = 0;
            for (found, expected) in pairs {
                let off = (found - expected).abs();
                assert!(
                    off <= expected.abs() / 64.0 + 1e-6,
                    "{tensor}: {found} is not {expected}"
                );
                differ += usize::from(off > 0.0);
            }
            assert!(differ <= 4, "{tensor}: {differ} of 128 differ");
        }
    }
}
