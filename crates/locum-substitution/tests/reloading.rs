//! Several calls: a first load in pieces, updates, reloads, and calls that fail.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{
    Loader, Model, Outcome, approximate, assert_says, checkpoint, constant, expert, load, loaded,
    part, tensor,
};
use locum_substitution::{
    LoadWeights, NamedTensor, ProcessWeightsAfterLoading, Substituted, SubstitutionError,
};
use serde_json::json;

/// A complete model: layer 0 with expert 2 substituted, layer 1 with experts 1 and 3.
fn complete() -> Result<Substituted<Model>, SubstitutionError> {
    let spec = approximate(json!({ "0": [2], "1": [3, 1] }));
    let mut model = loaded(Model::whole(), &spec, checkpoint(&[2], &[1, 3]))?;
    model.process_weights_after_loading()?;
    Ok(model)
}

/// The same model with another loader, from before any weight.
fn with_loader(loader: Loader) -> Result<Substituted<Model>, SubstitutionError> {
    let spec = approximate(json!({ "0": [2], "1": [3, 1] }));
    Substituted::try_new(Model::whole().with_loader(loader), &spec)
}

/// A tensor with each value raised by a half.
fn raised(tensor: NamedTensor) -> NamedTensor {
    let values = tensor.to_f32().expect("a float");
    let values: Vec<f32> = values.iter().map(|v| v + 0.5).collect();
    common::tensor(tensor.name(), tensor.shape(), &values)
}

/// All of layer 1, raised.
fn layer_1() -> Vec<NamedTensor> {
    let retained = [0, 2, 4].map(|id| expert(1, id)).concat();
    let all = retained.into_iter().chain([constant(1, 1), constant(1, 3)]);
    all.map(raised).collect()
}

/// Asserts that a call is refused, and that it changed nothing.
#[track_caller]
fn assert_refused(
    model: &mut Substituted<Model>,
    stream: impl IntoIterator<Item = Result<NamedTensor, SubstitutionError>>,
    expected: &[&str],
) {
    let before = (**model).clone();
    assert_says(model.load_weights(&mut stream.into_iter()), expected);
    assert_eq!(**model, before);
}

#[test]
fn first_load_accumulates_over_calls() -> Outcome {
    let whole = complete()?;
    for loader in [Loader::Normal, Loader::WaitsForWholeExperts] {
        let mut model = with_loader(loader)?;
        for piece in checkpoint(&[2], &[1, 3]).chunks(4) {
            assert!(model.process_weights_after_loading().is_err());
            load(&mut model, piece.to_vec())?;
        }
        model.process_weights_after_loading()?;
        assert_eq!(model.layers, whole.layers);
    }
    Ok(())
}

#[test]
fn call_may_repeat_what_came_before_the_model_was_complete() -> Outcome {
    // A caller that begins again, piece by piece, after something else failed.
    let mut model = with_loader(Loader::Normal)?;
    load(&mut model, checkpoint(&[2], &[1, 3]).into_iter().take(9))?;
    for piece in checkpoint(&[2], &[1, 3]).chunks(4) {
        load(&mut model, piece.to_vec())?;
    }
    model.process_weights_after_loading()?;
    assert_eq!(model.layers, complete()?.layers);
    Ok(())
}

#[test]
fn constant_alone_changes_that_constant_only() -> Outcome {
    let mut model = complete()?;
    let before = (*model).clone();
    load(&mut model, [raised(constant(1, 3))])?;
    assert_eq!(model.experts(1).constant(1), [103.5, -102.5]);
    assert_eq!(model.experts(1).constant(0), [101.0, -101.0]);
    assert_eq!(model.experts(1).rows, before.experts(1).rows);
    assert_eq!(model.experts(0), before.experts(0));
    assert_eq!(model.norm, before.norm);
    model.process_weights_after_loading()
}

#[test]
fn whole_layer_replaces_the_old_one() -> Outcome {
    let mut model = complete()?;
    let before = (*model).clone();
    let report = load(&mut model, layer_1())?;
    assert_eq!(
        report.parameters.map(Vec::from_iter),
        Some(vec![
            "layers.1.mlp.experts.down_proj".to_owned(),
            "layers.1.mlp.experts.gate_up_proj".to_owned(),
            "layers.1.mlp.experts.values".to_owned(),
        ])
    );
    let gates: Vec<f32> = (0..3)
        .map(|row| model.experts(1).weight(row, 0)[5])
        .collect();
    assert_eq!(gates, [1000.5, 1020.5, 1040.5]);
    assert_eq!(model.experts(1).constant(0), [101.5, -100.5]);
    assert_eq!(model.experts(0), before.experts(0));
    model.process_weights_after_loading()
}

#[test]
fn part_of_a_layer_is_refused_once_the_model_is_complete() -> Outcome {
    let mut model = complete()?;
    let mut lacks_part = layer_1();
    lacks_part.retain(|t| !t.name().ends_with("4.down_proj.weight"));
    assert_refused(
        &mut model,
        lacks_part.into_iter().map(Ok),
        &[
            "layer 1",
            "`model.layers.1.mlp.experts.4.down_proj.weight` (layer 1, expert 4)",
        ],
    );
    let mut lacks_constant = layer_1();
    lacks_constant.retain(|t| !t.name().ends_with("1.approx_value"));
    assert_refused(
        &mut model,
        lacks_constant.into_iter().map(Ok),
        &[
            "layer 1",
            "`model.layers.1.mlp.experts.1.approx_value` (layer 1, expert 1)",
        ],
    );
    assert_refused(
        &mut model,
        [Ok(raised(part(1, 0, 0)))],
        &[
            "layer 1",
            "1.mlp.experts.0.up_proj.weight",
            "and 2 more (10 in all)",
        ],
    );
    // The next call is judged by itself.
    load(&mut model, layer_1())?;
    model.process_weights_after_loading()
}

#[test]
fn layer_without_constants_reloads_with_its_experts() -> Outcome {
    let mut model = loaded(
        Model::whole(),
        &approximate(json!({ "1": [3, 1] })),
        checkpoint(&[], &[1, 3]),
    )?;
    let experts: Vec<_> = (0..5).flat_map(|id| expert(0, id)).map(raised).collect();
    assert_refused(
        &mut model,
        experts[1..].iter().cloned().map(Ok),
        &[
            "layer 0",
            "`model.layers.0.mlp.experts.0.gate_proj.weight` (layer 0, expert 0)",
        ],
    );
    load(&mut model, experts)?;
    assert_eq!(model.experts(0).weight(4, 2)[0], 42.5);
    Ok(())
}

#[test]
fn dense_weights_reload_by_themselves() -> Outcome {
    let mut model = complete()?;
    load(&mut model, [tensor("model.norm.weight", &[2], &[1.0, 2.0])])?;
    assert_eq!(model.norm, Some(vec![0, 0, 0x80, 0x3F, 0, 0, 0, 0x40]));
    model.process_weights_after_loading()
}

#[test]
fn reload_with_a_wrong_shape_changes_nothing() -> Outcome {
    let mut model = complete()?;
    let mut tensors: Vec<_> = checkpoint(&[2], &[1, 3]).into_iter().map(raised).collect();
    let last = tensors.len() - 2;
    let name = tensors[last].name().to_owned();
    tensors[last] = tensor(&name, &[2, 4], &[0.0; 8]);
    assert_refused(
        &mut model,
        tensors.into_iter().map(Ok),
        &[&name, "shape [2, 4], expected [2, 3]"],
    );
    model.process_weights_after_loading()
}

#[test]
fn stream_that_fails_halfway_changes_nothing() -> Outcome {
    let broken = || {
        let tensors = checkpoint(&[2], &[1, 3]).into_iter().map(raised).map(Ok);
        tensors
            .take(12)
            .chain([Err(SubstitutionError::stream("disk on fire"))])
    };
    let mut model = complete()?;
    assert_refused(&mut model, broken(), &["disk on fire"]);
    model.process_weights_after_loading()?;

    let mut fresh = with_loader(Loader::Normal)?;
    assert_refused(&mut fresh, broken(), &["disk on fire"]);
    load(&mut fresh, checkpoint(&[2], &[1, 3]))?;
    assert_eq!(
        *fresh,
        Model {
            processed: 0,
            ..(*complete()?).clone()
        }
    );
    Ok(())
}

#[test]
fn error_that_the_loader_takes_for_the_end_stands() -> Outcome {
    let mut model = with_loader(Loader::SwallowsErrors)?;
    let broken = [
        Ok(constant(0, 2)),
        Err(SubstitutionError::stream("disk on fire")),
    ];
    assert_refused(&mut model, broken, &["disk on fire"]);
    // An error of ours likewise: an undeclared constant in the middle.
    assert_refused(
        &mut model,
        [Ok(constant(0, 2)), Ok(constant(0, 4)), Ok(part(0, 0, 0))],
        &["expert 4 of layer 0"],
    );
    Ok(())
}

#[test]
fn error_of_the_loader_itself_is_not_hidden_by_what_follows() -> Outcome {
    let mut model = with_loader(Loader::FailsAfter(3))?;
    let tensors = checkpoint(&[2], &[1, 3]).into_iter().map(Ok);
    let stream = tensors.chain([Err(SubstitutionError::stream("disk on fire"))]);
    assert_refused(&mut model, stream, &["failed after 3"]);
    Ok(())
}

#[test]
fn panic_in_the_loader_changes_nothing() -> Outcome {
    let mut model = with_loader(Loader::PanicsAfter(7))?;
    load(&mut model, [constant(1, 3), part(1, 0, 0)]).expect("no panic yet");
    let before = (*model).clone();
    let result = catch_unwind(AssertUnwindSafe(|| {
        load(&mut model, checkpoint(&[2], &[1, 3]))
    }));
    assert!(result.is_err());
    assert_eq!(*model, before);
    // Usable: three calls of six tensors each bring the rest.
    for piece in checkpoint(&[2], &[1, 3]).chunks(6) {
        load(&mut model, piece.to_vec())?;
    }
    model.process_weights_after_loading()?;
    assert_eq!(model.layers, complete()?.layers);
    Ok(())
}

#[test]
fn panic_in_the_stream_changes_nothing() -> Outcome {
    let mut model = complete()?;
    let before = (*model).clone();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let stream = layer_1().into_iter().map(Ok).take(9);
        model.load_weights(&mut stream.chain(std::iter::from_fn(|| panic!("unmapped"))))
    }));
    assert!(result.is_err());
    assert_eq!(*model, before);
    load(&mut model, layer_1())?;
    model.process_weights_after_loading()
}

#[test]
fn stream_is_not_asked_on_after_its_end() -> Outcome {
    for loader in [Loader::Normal, Loader::AsksAgain] {
        let mut model = with_loader(loader)?;
        let mut tensors = checkpoint(&[2], &[1, 3]).into_iter();
        let mut ended = false;
        model.load_weights(&mut std::iter::from_fn(|| {
            assert!(!ended, "asked after its end");
            let next = tensors.next();
            ended = next.is_none();
            next.map(Ok)
        }))?;
        model.process_weights_after_loading()?;
    }
    Ok(())
}

#[test]
fn clone_of_a_model_loads_by_itself() -> Outcome {
    let mut model = with_loader(Loader::Normal)?;
    load(&mut model, checkpoint(&[2], &[1, 3]).into_iter().take(9))?;
    let mut copy = model.clone();
    load(&mut copy, checkpoint(&[2], &[1, 3]).into_iter().skip(9))?;
    copy.process_weights_after_loading()?;
    assert!(model.process_weights_after_loading().is_err());
    Ok(())
}
