//! Statistics of shards, put together; and of which model they are.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use locum::models::{Model, ModelFiles};
use locum::nn::DType;
use locum::prune::{Calibration, PruneError, Selection, Shard, Statistics};
use locum_tests::calibrating::{of_text, selection, written};
use locum_tests::{EditedModel, fixture, load, tiny_olmoe};

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
