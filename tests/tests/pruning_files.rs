//! What exported directories hold: files, tensors, types.
#![allow(clippy::unwrap_used)]

use locum::prune::{ExportOptions, Subject};
use locum_tests::{
    ByExpert, EditedModel, FORMATS, constants_of, contents, export, export_means, fixture, options,
    pairs, plan_of, statistics_with_means, tensors,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

#[test]
fn constants_have_the_type_of_the_experts_and_are_rounded_once() {
    let mut model = EditedModel::of_fixture("olmoe/base");
    for tensor in model.tensors.values_mut() {
        *tensor = tensor.to_bf16();
    }
    model.config["torch_dtype"] = json!("bfloat16");
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("bf16");
    std::fs::create_dir(&source).unwrap();
    model.write_to(&source);
    // Between two neighbours of bf16, which are 2⁻⁷ apart: to the nearer one, a tie to the even one.
    let between = [
        1.0 + 0.3 / 128.0,
        1.0 + 0.7 / 128.0,
        1.0 + 0.5 / 128.0,
        1.0 + 1.5 / 128.0,
    ];
    let means = ByExpert::from([((0, 3), between.repeat(16))]);
    let out = export_means(&source, &means, FORMATS[0], &directory, "out");
    let constant = &tensors(&out)["model.layers.0.mlp.experts.3.approx_value"];
    let expected = [1.0f32, 1.0 + 1.0 / 128.0, 1.0, 1.0 + 2.0 / 128.0].repeat(16);
    assert_eq!(constant.widened().elements(), expected);
}

#[test]
fn shards_hold_what_they_may_and_their_index_names_them() {
    let means = constants_of("qwen2_moe/approx");
    let subject = Subject::open(fixture("qwen2_moe/base")).unwrap();
    let plan = plan_of(&subject, |layer, expert| {
        means.contains_key(&(layer, expert))
    });
    let statistics = statistics_with_means(&subject, &means);
    let directory = TempDir::new().unwrap();
    let whole = export(
        &subject,
        &plan,
        &statistics,
        &options(FORMATS[0]),
        &directory,
        "whole",
    );
    let mut counts = Vec::new();
    for limit in [1, 20_000, 100_000, 10_000_000] {
        let options = ExportOptions {
            max_shard_bytes: limit,
            ..options(FORMATS[0])
        };
        let out = export(
            &subject,
            &plan,
            &statistics,
            &options,
            &directory,
            &limit.to_string(),
        );
        assert_eq!(tensors(&out), tensors(&whole));
        let files = contents(&out);
        let shards: Vec<&String> = files
            .keys()
            .filter(|n| n.ends_with(".safetensors"))
            .collect();
        counts.push(shards.len());
        if shards.len() == 1 {
            assert_eq!(shards, ["model.safetensors"]);
            assert!(!files.contains_key("model.safetensors.index.json"));
            continue;
        }
        let index: Value = serde_json::from_slice(&files["model.safetensors.index.json"]).unwrap();
        let mut total = 0;
        for (number, shard) in shards.iter().enumerate() {
            assert_eq!(
                **shard,
                format!("model-{:05}-of-{:05}.safetensors", number + 1, shards.len())
            );
            let file = SafeTensors::deserialize(&files[*shard]).unwrap();
            let size: usize = file.iter().map(|(_, view)| view.data().len()).sum();
            assert!(
                size <= limit as usize || file.len() == 1,
                "{shard} holds {size}"
            );
            total += size;
            for name in file.names() {
                assert_eq!(index["weight_map"][name], json!(shard));
            }
        }
        assert_eq!(index["metadata"], json!({ "total_size": total }));
        assert_eq!(
            index["weight_map"].as_object().unwrap().len(),
            tensors(&whole).len()
        );
    }
    // Each tensor alone, some, few, one.
    assert_eq!(counts[0], tensors(&whole).len());
    assert!(
        counts[1] > counts[2] && counts[2] > 1 && counts[3] == 1,
        "{counts:?}"
    );
}

/// Names, types and shapes, and the configuration: as text, to be compared with one that a person has
/// looked at. `LOCUM_BLESS=1` writes it anew.
#[test]
fn exported_files_are_listed() {
    let mut families = 0;
    for (base, pruned, _) in pairs() {
        families += 1;
        let family = base.trim_end_matches("/base");
        let means = constants_of(&pruned);
        let directory = TempDir::new().unwrap();
        let mut listing = String::new();
        for format in FORMATS {
            let out = export_means(&fixture(base), &means, format, &directory, format.key());
            let config = std::fs::read_to_string(out.join("config.json")).unwrap();
            let files: Vec<String> = contents(&out).into_keys().collect();
            listing += &format!("# {format}\n\nfiles: {}\n\n{config}\n", files.join(" "));
            for (name, tensor) in tensors(&out) {
                listing += &format!("{name} {} {:?}\n", tensor.dtype, tensor.shape);
            }
            listing.push('\n');
        }
        let path = fixture("pruned").join(format!("{family}.txt"));
        if std::env::var_os("LOCUM_BLESS").is_some() {
            std::fs::write(&path, &listing).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap();
        assert!(
            listing == expected,
            "{}: differs, LOCUM_BLESS=1 shows how",
            path.display()
        );
    }
    assert_eq!(families, 10);
}
