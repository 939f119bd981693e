//! What calibration counts, against transformers and NumPy, and against plain sums over all tokens.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use locum::models::{Logits, Model, ModelFiles};
use locum::nn::{DType, ExpertObserver, Observation};
use locum::prune::{
    Calibration, ExpertStatistics, LayerStatistics, PruneError, Selection, Sequences, Shard,
    Statistics,
};
use locum_tests::{EditedModel, Reference, cases, fixture, load, tiny_olmoe};
use safetensors::SafeTensors;
use serde_json::Value;

fn selection(length: usize, sequences: Option<usize>) -> Selection {
    Selection {
        length: Some(length),
        sequences,
        seed: None,
    }
}

/// The calibration text of the reference, on a model that has a tokenizer.
fn of_text(directory: &Path, model: &Model, selection: Selection) -> Calibration {
    let files = ModelFiles::open(directory).unwrap();
    let texts = [fixture("mone/calib.txt")];
    let sequences = Sequences::read(&texts, &files, &model.limits(), selection).unwrap();
    Calibration::new(&files, model, sequences).unwrap()
}

/// The token ids of an architecture's fixture, in sequences of 20.
fn of_fixture(name: &str, model: &Model) -> (Calibration, Vec<Vec<i64>>) {
    let base = format!("{}/base", name.split_once('/').unwrap().0);
    let ids = Reference::open(&fixture(&base)).rows("input_ids").concat();
    let sequences = Sequences::from_ids(&ids, &model.limits(), selection(20, None)).unwrap();
    let files = ModelFiles::open(fixture(name)).unwrap();
    let calibration = Calibration::new(&files, model, sequences).unwrap();
    let rows = ids.chunks_exact(20).map(<[i64]>::to_vec).collect();
    (calibration, rows)
}

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
    assert_eq!(statistics.origin.covered, [0..604]);

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
            for (channel, &y) in y.iter().enumerate() {
                expert.output_sum[channel] += f64::from(y);
                expert.weighted_output_sum[channel] += weight * weight * f64::from(y);
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
                    output_sum: vec![0.0; layer.hidden],
                    weighted_output_sum: vec![0.0; layer.hidden],
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
                    for (found, expected) in found.iter().zip(expected) {
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
fn batch_changes_next_to_nothing() {
    let directory = fixture("tiny-olmoe");
    let model = load(&directory, DType::F32);
    let calibration = of_text(&directory, &model, selection(256, Some(24)));
    let [alone, together] = [1, 4].map(|batch| {
        let calibration = calibration.clone().with_batch(batch);
        let statistics = calibration.collect(&model, |_| {}).unwrap();
        assert_eq!(statistics.origin.batch, batch);
        statistics
    });
    for (layer, other) in alone.layers.iter().zip(&together.layers) {
        for (id, (expert, other)) in layer.experts.iter().zip(&other.experts).enumerate() {
            let what = format!("layer {}, expert {id}", layer.layer);
            assert_eq!(expert.tokens, other.tokens, "{what}");
            if expert.tokens == 0 {
                continue;
            }
            for (found, expected) in scalars(expert).into_iter().zip(scalars(other)) {
                assert!(relative(found, expected) <= 1e-5, "{what}");
            }
            assert!(
                vector_distance(&expert.mean(), &other.mean()) <= 1e-5,
                "{what}"
            );
        }
    }
}

/// Writes a calibration's statistics to a file.
fn written(calibration: &Calibration, model: &Model, out: PathBuf) -> PathBuf {
    let run = calibration.start(model, &out).unwrap();
    run.finish(model, |_| {}).unwrap();
    out
}

#[test]
fn shards_merge_to_the_same_bytes_in_any_order() {
    let directory = fixture("tiny-olmoe");
    let model = load(&directory, DType::F32);
    let folder = tempfile::tempdir().unwrap();
    // A last chunk that is not whole.
    let calibration = of_text(&directory, &model, selection(64, Some(23))).with_batch(3);
    let whole = written(&calibration, &model, folder.path().join("whole"));
    let expected = std::fs::read(&whole).unwrap();
    let parts = |count: usize| -> Vec<PathBuf> {
        (1..=count)
            .map(|index| {
                let shard = calibration.clone().with_shard(Shard { index, count });
                let out = folder.path().join(format!("{index}-of-{count}"));
                written(&shard.unwrap(), &model, out)
            })
            .collect()
    };
    for (count, order) in [
        (2, vec![1, 0]),
        (5, vec![3, 0, 4, 2, 1]),
        (8, vec![7, 2, 5, 0, 1, 6, 3, 4]),
    ] {
        let parts = parts(count);
        let shuffled: Vec<PathBuf> = order
            .iter()
            .map(|&part: &usize| parts[part].clone())
            .collect();
        let out = folder.path().join("merged");
        let origin = locum::prune::merge(&shuffled, &out).unwrap();
        assert!(origin.is_complete());
        assert!(std::fs::read(&out).unwrap() == expected, "{count} shards");
        // Some of them first, then the others.
        let (some, others) = shuffled.split_at(count / 2);
        let half = folder.path().join("half");
        let origin = locum::prune::merge(some, &half).unwrap();
        assert!(!origin.is_complete());
        let rest = [others, &[half]].concat();
        locum::prune::merge(&rest, &out).unwrap();
        assert!(
            std::fs::read(&out).unwrap() == expected,
            "{count} shards in two steps"
        );
    }
    let statistics = Statistics::open(&whole).unwrap();
    assert_eq!(statistics, calibration.collect(&model, |_| {}).unwrap());
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1 + 2 + 5 + 8 + 2, "nothing temporary is left");
}

#[test]
fn statistics_that_were_not_made_alike_do_not_merge() {
    let directory = fixture("tiny-olmoe");
    let model = load(&directory, DType::F32);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    let selected =
        |sequences| of_text(&directory, &model, selection(32, Some(sequences))).with_batch(1);
    let shard = |calibration: Calibration, index, count, name: &str| {
        let calibration = calibration.with_shard(Shard { index, count }).unwrap();
        written(&calibration, &model, folder.path().join(name))
    };
    let first = shard(selected(6), 1, 2, "first");
    let refused = |second: &PathBuf, parts: &[&str]| {
        let error = locum::prune::merge(&[first.clone(), second.clone()], &out);
        let error = error.unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
        assert!(!out.exists());
    };
    refused(&first, &["sequences 0 to 2", "first"]);
    refused(&shard(selected(6), 1, 3, "third"), &["sequences 0 to 1"]);
    refused(
        &shard(selected(6).with_batch(3), 2, 2, "batch"),
        &["batches differ: 1 and 3"],
    );
    refused(
        &shard(selected(7), 2, 2, "more"),
        &["numbers of sequences differ: 6 and 7"],
    );
    let longer = of_text(&directory, &model, selection(33, Some(6))).with_batch(1);
    refused(
        &shard(longer, 2, 2, "longer"),
        &["lengths differ: 32 and 33"],
    );
    let drawn = Selection {
        seed: Some(3),
        ..selection(32, Some(6))
    };
    let drawn = of_text(&directory, &model, drawn).with_batch(1);
    refused(&shard(drawn, 2, 2, "drawn"), &["seeds differ: none and 3"]);

    let bf16 = load(&directory, DType::BF16);
    let rounded = of_text(&directory, &bf16, selection(32, Some(6))).with_batch(1);
    let rounded = rounded.with_shard(Shard { index: 2, count: 2 }).unwrap();
    let rounded = written(&rounded, &bf16, folder.path().join("bf16"));
    refused(&rounded, &["differ"]);

    let pruned = tiny_olmoe("tiny-olmoe-mone25");
    let pruned_model = load(&pruned, DType::F32);
    let other = of_text(&pruned, &pruned_model, selection(32, Some(6))).with_batch(1);
    let other = other.with_shard(Shard { index: 2, count: 2 }).unwrap();
    let other = written(&other, &pruned_model, folder.path().join("pruned"));
    refused(&other, &["models differ"]);

    std::fs::write(folder.path().join("text"), "not statistics").unwrap();
    refused(
        &folder.path().join("text"),
        &["text is not a statistics file"],
    );
    refused(&folder.path().join("nowhere"), &["nowhere"]);
    assert!(matches!(
        locum::prune::merge(&[], &out),
        Err(PruneError::NothingToMerge)
    ));
}

#[test]
fn sibling_with_other_routers_is_another_model() {
    let fingerprint = |model: &EditedModel| {
        let folder = tempfile::tempdir().unwrap();
        model.write_to(folder.path());
        let files = ModelFiles::open(folder.path()).unwrap();
        let planned = Model::plan(&files, &Default::default()).unwrap();
        locum::prune::fingerprint(&files, &planned).unwrap()
    };
    let base = EditedModel::of_fixture("deepseek_v3/base");
    let expected = fingerprint(&base);
    let mut same = base.clone();
    same.config["transformers_version"] = "9.9.9".into();
    same.config["architectures"] = serde_json::json!(["Other"]);
    assert_eq!(fingerprint(&same), expected);
    let router = "model.layers.1.mlp.gate.weight";
    for name in [router, "model.layers.1.mlp.gate.e_score_correction_bias"] {
        let mut sibling = base.clone();
        let tensor = &base.tensors[name];
        let mut elements = tensor.elements();
        elements[0] += 1e-3;
        sibling
            .tensors
            .insert(name.into(), tensor.with_elements(elements));
        assert_ne!(fingerprint(&sibling), expected, "{name}");
    }
    let mut sibling = base.clone();
    sibling.config["routed_scaling_factor"] = 1.25.into();
    assert_ne!(fingerprint(&sibling), expected);
    let approx = fingerprint(&EditedModel::of_fixture("deepseek_v3/approx"));
    assert_ne!(approx, expected);
    assert_eq!(
        fingerprint(&EditedModel::of_fixture("deepseek_v3/explicit")),
        approx,
        "the format does not matter"
    );
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
                output_sum: vec![0.0; layer.hidden],
                weighted_output_sum: vec![0.0; layer.hidden],
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
