//! Packed three-dimensional tensors, which hold many experts at once.

mod common;

use common::{
    Model, Outcome, approximate, assert_says, checkpoint, constant, expert, load, packed, part,
    tensor,
};
use locum_substitution::{
    LoadWeights, NamedTensor, ProcessWeightsAfterLoading, Substituted, SubstitutionError,
    TensorInfo,
};
use serde_json::json;

fn fresh() -> Result<Substituted<Model>, SubstitutionError> {
    Substituted::try_new(Model::whole(), &approximate(json!({ "1": [3, 1] })))
}

/// The checkpoint with layer 1 replaced by packed tensors, and its constants.
fn stored(layer_1: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let mut tensors = checkpoint(&[], &[1, 3]);
    tensors.retain(|t| !t.name().contains("layers.1."));
    tensors.extend(layer_1);
    tensors.extend([constant(1, 1), constant(1, 3)]);
    tensors
}

#[test]
fn retained_rows_are_picked_out_of_all_experts() -> Outcome {
    let mut apart = fresh()?;
    load(&mut apart, checkpoint(&[], &[1, 3]))?;
    // Substituted rows are NaN here, so that a copied one would show.
    let mut all = packed(1, &[0, 1, 2, 3, 4]);
    for tensor in &mut all {
        let size = tensor.shape()[1] * tensor.shape()[2];
        let mut values = tensor.to_f32().expect("f32");
        for id in [1, 3] {
            values[id * size..(id + 1) * size].fill(f32::NAN);
        }
        *tensor = common::tensor(tensor.name(), tensor.shape(), &values);
    }
    let mut model = fresh()?;
    load(&mut model, stored(all))?;
    model.process_weights_after_loading()?;
    assert_eq!(model.experts(1).weight(1, 1), [1021.0; 6]);
    assert_eq!(model.experts(1).weight(2, 2), [1042.0; 6]);
    assert_eq!(model.layers, apart.layers);
    Ok(())
}

#[test]
fn packed_tensor_of_retained_experts_only_is_accepted() -> Outcome {
    let mut apart = fresh()?;
    load(&mut apart, checkpoint(&[], &[1, 3]))?;
    let mut model = fresh()?;
    load(&mut model, stored(packed(1, &[0, 2, 4])))?;
    model.process_weights_after_loading()?;
    assert_eq!(
        *model,
        Model {
            processed: 1,
            ..(*apart).clone()
        }
    );
    Ok(())
}

#[test]
fn packed_tensor_of_another_number_of_experts_is_refused() -> Outcome {
    for ids in [&[0, 2][..], &[0, 1, 2, 4], &[0, 1, 2, 3, 4, 4], &[]] {
        let shape = format!("shape [{}, 6, 2]", ids.len());
        assert_says(
            load(&mut fresh()?, packed(1, ids)),
            &[
                "model.layers.1.mlp.experts.gate_up_proj",
                &shape,
                "5 experts or the 3 retained ones of layer 1",
            ],
        );
        let infos = packed(1, ids).into_iter().map(|t| t.into_parts().0);
        assert_says(fresh()?.check_weights(&mut { infos }), &[&shape]);
    }
    let scalar = TensorInfo::new(
        "model.layers.1.mlp.experts.gate_up_proj",
        locum_substitution::Dtype::F32,
        [],
    );
    assert_says(
        fresh()?.check_weights(&mut [scalar].into_iter()),
        &["shape []"],
    );
    Ok(())
}

#[test]
fn missing_packed_tensor_misses_its_part_of_every_retained_expert() -> Outcome {
    let mut model = fresh()?;
    load(
        &mut model,
        stored(packed(1, &[0, 1, 2, 3, 4]).into_iter().take(1).collect()),
    )?;
    assert_says(
        model.process_weights_after_loading(),
        &[
            "3 weights missing",
            "`model.layers.1.mlp.experts.0.down_proj.weight` (layer 1, expert 0)",
            "`model.layers.1.mlp.experts.2.down_proj.weight` (layer 1, expert 2)",
            "`model.layers.1.mlp.experts.4.down_proj.weight` (layer 1, expert 4)",
        ],
    );
    Ok(())
}

#[test]
fn packed_tensor_beside_one_of_a_single_expert_is_an_error_in_either_order() -> Outcome {
    let packed = || packed(1, &[0, 1, 2, 3, 4]);
    let single = || vec![part(1, 2, 1)];
    for (stream, second) in [
        (
            [packed(), single()].concat(),
            "model.layers.1.mlp.experts.2.up_proj.weight",
        ),
        (
            [single(), packed()].concat(),
            "model.layers.1.mlp.experts.gate_up_proj",
        ),
    ] {
        assert_says(
            load(&mut fresh()?, stream),
            &[
                &format!("`{second}`"),
                "brings the up_proj.weight of expert 2 of layer 1",
                "already",
            ],
        );
    }
    // A substituted expert's is no second one: it is never read.
    load(&mut fresh()?, [packed(), expert(1, 3)].concat()).map(|_| ())
}

#[test]
fn packed_and_single_tensors_of_different_parts_go_together() -> Outcome {
    let mut model = fresh()?;
    let mut layer_1 = vec![packed(1, &[0, 2, 4]).remove(0)];
    layer_1.extend([0, 2, 4].map(|id| part(1, id, 2)));
    load(&mut model, stored(layer_1))?;
    model.process_weights_after_loading()
}

#[test]
fn unknown_packed_tensor_is_unexpected() -> Outcome {
    let name = "model.layers.1.mlp.experts.gate_up_proj_blocks";
    assert_says(
        load(&mut fresh()?, [tensor(name, &[5, 6, 2], &[0.0; 60])]),
        &[name, "1 tensor is unexpected"],
    );
    Ok(())
}
