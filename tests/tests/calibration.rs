//! What calibration counts, against transformers and NumPy, and against plain sums over all tokens.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use locum::models::{Logits, Model, ModelFiles};
use locum::nn::{DType, ExpertObserver, Observation};
use locum::prune::{ExpertStatistics, LayerStatistics, Sequences};
use locum_tests::calibrating::{of_fixture, of_text, selection};
use locum_tests::{EditedModel, cases, fixture, load, tiny_olmoe};
use safetensors::SafeTensors;
use serde_json::Value;

fn in_pool<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().unwrap().install(work)
}

fn relative(found: f64, expected: f64) -> f64 {
    (found / expected - 1.0).abs()
}

/// The largest difference in any channel, by the size of what is expected.
fn vector_distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().map(|v| v * v).sum::<f64>().sqrt();
    let differences = found.iter().zip(expected).map(|(f, e)| (f - e).abs());
    differences.fold(0.0, f64::max) / size
}

#[test]
fn statistics_are_those_of_transformers_and_numpy() {
    let directory = fixture("tiny-olmoe");
    let model = load(&directory, DType::F32);
    let calibration = of_text(&directory, &model, selection(256, None));
    let statistics = calibration.collect(&model, |_| {}).unwrap();
    assert_eq!(statistics.origin.counted(), 604);
    assert!(statistics.origin.is_complete());

    let reference = std::fs::read(fixture("mone/mone_stats.json")).unwrap();
    let reference: Value = serde_json::from_slice(&reference).unwrap();
    let means = std::fs::read(fixture("mone/mone_means.safetensors")).unwrap();
    let means = SafeTensors::deserialize(&means).unwrap();
    assert_eq!(statistics.layers.len(), 4);
    for layer in &statistics.layers {
        let expected = &reference["layers"][layer.layer.to_string()];
        assert_eq!(Some(layer.tokens), expected["tokens"].as_u64());
        let means = means
            .tensor(&format!("layers.{}.mean", layer.layer))
            .unwrap();
        let (means, _) = means.data().as_chunks::<4>();
        let means = means
            .iter()
            .map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        let means: Vec<f64> = means.collect();
        for (id, expert) in layer.experts.iter().enumerate() {
            let what = format!("layer {}, expert {id}", layer.layer);
            let count = expected["count"][id].as_u64().unwrap();
            assert!(
                expert.tokens.abs_diff(count) <= 2,
                "{what}: {}",
                expert.tokens
            );
            if count < 1000 {
                continue;
            }
            let score = expert.score_sum / layer.tokens as f64;
            let mean = expert.mean();
            let mean_norm = mean.iter().map(|v| v * v).sum::<f64>().sqrt();
            for (name, found) in [
                ("score", score),
                ("out_fluctuation", expert.std_norm()),
                ("fusion", expert.std_norm() * score / 4.0),
                ("mean_norm", mean_norm),
            ] {
                let off = relative(found, expected[name][id].as_f64().unwrap());
                assert!(off <= 1e-4, "{what}: {name} {found} is off by {off:e}");
            }
            let off = vector_distance(&mean, &means[id * 128..][..128]);
            assert!(off <= 1e-4, "{what}: the mean is off by {off:e}");
        }
    }
}

/// Sums of all tokens, by the definitions, one after the other.
struct PlainSums {
    layers: Vec<LayerStatistics>,
}

impl ExpertObserver for PlainSums {
    fn wants_outputs(&self) -> bool {
        true
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let routes = observation.routes;
        let layer = self
            .layers
            .iter_mut()
            .find(|l| l.layer == observation.layer);
        let layer = layer.unwrap();
        layer.tokens += (routes.ids.len() / routes.top_k) as u64;
        for (place, (&id, &weight)) in routes.ids.iter().zip(&routes.weights).enumerate() {
            let weight = f64::from(weight);
            let expert = &mut layer.experts[id as usize];
            expert.tokens += 1;
            expert.score_sum += weight;
            let outputs = observation.outputs.as_ref().unwrap();
            let Some(y) = outputs.of_token(place / routes.top_k, id as u32) else {
                continue;
            };
            let squared: f64 = y.iter().map(|&y| f64::from(y) * f64::from(y)).sum();
            expert.squared_score_sum += weight * weight;
            expert.norm_sum += squared.sqrt();
            expert.weighted_norm_sum += weight * squared.sqrt();
            expert.squared_norm_sum += squared;
            expert.weighted_squared_norm_sum += weight * weight * squared;
            for (sums, factor) in [
                (&mut expert.output_sum, 1.0),
                (&mut expert.weighted_output_sum, weight * weight),
            ] {
                let added = sums.read().into_owned().into_iter().zip(y);
                *sums = added.map(|(sum, &y)| sum + factor * f64::from(y)).collect();
            }
        }
    }
}

fn scalars(expert: &ExpertStatistics) -> [f64; 6] {
    [
        expert.score_sum,
        expert.squared_score_sum,
        expert.norm_sum,
        expert.weighted_norm_sum,
        expert.squared_norm_sum,
        expert.weighted_squared_norm_sum,
    ]
}

#[test]
fn sums_are_those_of_the_definitions_in_every_architecture() {
    for case in cases() {
        let model = load(&fixture(case.name), DType::F32);
        let (calibration, rows) = of_fixture(case.name, &model);
        let statistics = calibration.collect(&model, |_| {}).unwrap();
        let mut plain = PlainSums {
            layers: statistics.layers.clone(),
        };
        for layer in &mut plain.layers {
            layer.tokens = 0;
            for expert in &mut layer.experts {
                *expert = ExpertStatistics {
                    output_sum: vec![0.0; layer.hidden].into(),
                    weighted_output_sum: vec![0.0; layer.hidden].into(),
                    ..ExpertStatistics::default()
                };
            }
        }
        let mut caches = vec![model.new_cache(); rows.len()];
        let observer: Option<&mut dyn ExpertObserver> = Some(&mut plain);
        let none = model.logits_observed(&rows, &mut caches, Logits::None, observer);
        assert!(none.unwrap().is_empty(), "{}", case.name);

        let tables: Vec<Vec<u32>> = model
            .moe_layers()
            .iter()
            .map(|(_, t)| t.substituted().to_vec())
            .collect();
        for ((layer, expected), substituted) in
            statistics.layers.iter().zip(&plain.layers).zip(tables)
        {
            let what = format!("{}, layer {}", case.name, layer.layer);
            assert_eq!(layer.substituted, substituted, "{what}");
            assert_eq!(layer.tokens, expected.tokens, "{what}");
            let routes: u64 = layer.experts.iter().map(|expert| expert.tokens).sum();
            assert!(
                routes > 0 && routes.is_multiple_of(layer.tokens),
                "{what}: {routes}"
            );
            for (id, (expert, expected)) in layer.experts.iter().zip(&expected.experts).enumerate()
            {
                assert_eq!(expert.tokens, expected.tokens, "{what}, expert {id}");
                for (found, expected) in scalars(expert).into_iter().zip(scalars(expected)) {
                    assert!(
                        (found - expected).abs() <= 1e-12 * expected,
                        "{what}, expert {id}"
                    );
                }
                for (found, expected) in [
                    (&expert.output_sum, &expected.output_sum),
                    (&expert.weighted_output_sum, &expected.weighted_output_sum),
                ] {
                    for (found, expected) in found.read().iter().zip(expected.read().iter()) {
                        let bound = 1e-12 * (1.0 + expert.norm_sum);
                        assert!((found - expected).abs() <= bound, "{what}, expert {id}");
                    }
                }
            }
        }
    }
}

#[test]
fn texts_are_tokenized_one_by_one_and_follow_each_other() {
    let directory = fixture("tiny-olmoe");
    let files = ModelFiles::open(&directory).unwrap();
    let model = Model::plan(&files, &Default::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = files.tokenizer().unwrap();
    let mut ids: Vec<i64> = Vec::new();
    // Joined, the two would meet in the middle of a word.
    let texts = [
        "Alice was beginn",
        "ing to get very tired of sitting by her sister",
    ];
    let paths: Vec<PathBuf> = (0..2).map(|i| folder.path().join(i.to_string())).collect();
    for (text, path) in texts.iter().zip(&paths) {
        std::fs::write(path, text).unwrap();
        let encoding = tokenizer.encode(*text, false).unwrap();
        ids.extend(encoding.get_ids().iter().map(|&id| i64::from(id)));
    }
    let joined = tokenizer.encode(texts.concat(), false).unwrap();
    assert_ne!(joined.get_ids().len(), ids.len());
    let limits = model.limits();
    let read = Sequences::read(&paths, &files, &limits, selection(1, None)).unwrap();
    assert_eq!(
        read,
        Sequences::from_ids(&ids, &limits, selection(1, None)).unwrap()
    );
    let backwards: Vec<PathBuf> = paths.into_iter().rev().collect();
    assert_ne!(
        read,
        Sequences::read(&backwards, &files, &limits, selection(1, None)).unwrap()
    );
}

#[test]
fn threads_do_not_change_a_bit() {
    let calibrate = || {
        let directory = fixture("tiny-olmoe");
        let model = load(&directory, DType::F32);
        let calibration = of_text(&directory, &model, selection(128, Some(10)));
        calibration.collect(&model, |_| {}).unwrap()
    };
    let [one, two, three] = [1, 2, 3].map(|threads| in_pool(threads, calibrate));
    assert_eq!(one, two);
    assert_eq!(one, three);
}

#[test]
fn batch_does_not_change_a_bit() {
    let directory = fixture("tiny-olmoe");
    let model = load(&directory, DType::F32);
    let calibration = of_text(&directory, &model, selection(256, Some(50)));
    let [alone, three, seven] = [1, 3, 7].map(|batch| {
        let calibration = calibration.clone().with_batch(batch);
        let statistics = calibration.collect(&model, |_| {}).unwrap();
        assert_eq!(statistics.origin.batch, batch);
        statistics.layers
    });
    assert_eq!(alone, three);
    assert_eq!(alone, seven);
}

#[test]
fn constants_of_a_pruned_model_are_counted_without_outputs() {
    let directory = tiny_olmoe("tiny-olmoe-mone25");
    let model = load(&directory, DType::F32);
    let calibration = of_text(&directory, &model, selection(128, Some(8)));
    let statistics = calibration.collect(&model, |_| {}).unwrap();
    for (layer, (_, table)) in statistics.layers.iter().zip(model.moe_layers()) {
        assert_eq!(layer.substituted, table.substituted());
        assert_eq!(layer.substituted.len(), 4);
        let routes: u64 = layer.experts.iter().map(|expert| expert.tokens).sum();
        assert_eq!((layer.tokens, routes), (8 * 128, 4 * 8 * 128));
        let constants = layer
            .substituted
            .iter()
            .map(|&id| &layer.experts[id as usize]);
        assert!(constants.clone().any(|expert| expert.tokens > 0));
        for expert in constants {
            assert_eq!(expert.score_sum > 0.0, expert.tokens > 0);
            let only_counted = ExpertStatistics {
                tokens: expert.tokens,
                score_sum: expert.score_sum,
                ..ExpertStatistics::default()
            };
            assert_eq!(expert, &only_counted);
        }
    }
}

/// Which sequence first has a token that goes to an expert.
struct FirstSequence {
    layer: u32,
    expert: i64,
    length: usize,
    found: Option<usize>,
}

impl ExpertObserver for FirstSequence {
    fn observe(&mut self, observation: &Observation<'_>) {
        if observation.layer == self.layer {
            let routes = observation.routes;
            let place = routes.ids.iter().position(|&id| id == self.expert);
            self.found = place.map(|place| place / routes.top_k / self.length);
        }
    }
}

#[test]
fn undefined_number_names_layer_expert_and_sequence() {
    let base = load(&fixture("olmoe/base"), DType::F32);
    let (calibration, rows) = of_fixture("olmoe/base", &base);
    let (layer, expert) = (1, 5);
    let mut first = FirstSequence {
        layer,
        expert,
        length: 20,
        found: None,
    };
    let mut caches = vec![base.new_cache(); rows.len()];
    let observer: Option<&mut dyn ExpertObserver> = Some(&mut first);
    base.logits_observed(&rows, &mut caches, Logits::None, observer)
        .unwrap();
    let sequence = first.found.unwrap();
    let name = format!("model.layers.{layer}.mlp.experts.{expert}.down_proj.weight");
    let edited = |factor: f32, last: Option<f32>| {
        let mut model = EditedModel::of_fixture("olmoe/base");
        let tensor = &model.tensors[&name];
        let mut elements: Vec<f32> = tensor.elements().iter().map(|v| v * factor).collect();
        if let (Some(value), Some(element)) = (last, elements.last_mut()) {
            *element = value;
        }
        let tensor = tensor.with_elements(elements);
        model.tensors.insert(name.clone(), tensor);
        model.load(&Default::default())
    };
    for value in [f32::NAN, f32::INFINITY] {
        let error = calibration
            .collect(&edited(1.0, Some(value)), |_| {})
            .unwrap_err();
        let expected =
            format!("expert {expert} in layer {layer} is NaN or infinite in sequence {sequence}");
        assert!(error.to_string().contains(&expected), "{error}");
    }
    let error = calibration
        .collect(&edited(1e14, None), |_| {})
        .unwrap_err();
    let expected = format!("expert {expert} of layer {layer} is beyond 2^54");
    assert!(error.to_string().contains(&expected), "{error}");
}
