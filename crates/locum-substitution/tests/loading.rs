//! Where each tensor of a stream goes, and which of them are refused.

mod common;

use std::collections::BTreeMap;

use common::{
    Loader, Model, Outcome, approximate, assert_says, checkpoint, constant, expert, explicit, load,
    loaded, logged, part, target, tensor, without,
};
use locum_substitution::{
    Loaded, NamedTensor, ProcessWeightsAfterLoading, SkipRule, Substituted, SubstitutionSpec,
};
use serde_json::json;

/// Layer 0 with expert 2 substituted, layer 1 with experts 1 and 3.
fn spec() -> SubstitutionSpec {
    approximate(json!({ "0": [2], "1": [3, 1] }))
}

/// The same in the explicit format, with names of their own.
fn named() -> SubstitutionSpec {
    SubstitutionSpec::from_config(&explicit(json!({
        "model.layers.0.mlp.experts": target(&[(2, "a")]),
        "model.layers.1.mlp.experts": target(&[(3, "b.approx_value"), (1, "c")]),
    })))
    .expect("a well-formed declaration")
}

/// The checkpoint of [`spec`], or of [`named`].
fn stored(names: bool) -> Vec<NamedTensor> {
    let mut tensors = checkpoint(&[2], &[1, 3]);
    if names {
        tensors = without(tensors, ".approx_value");
        tensors.push(tensor("a", &[2], &[2.0, -2.0]));
        tensors.push(tensor("b.approx_value", &[2], &[103.0, -103.0]));
        tensors.push(tensor("c", &[2], &[101.0, -101.0]));
    }
    tensors
}

fn report(parameters: &[&str], skipped: &[(SkipRule, usize)]) -> Loaded {
    Loaded {
        parameters: Some(parameters.iter().map(|p| (*p).to_owned()).collect()),
        skipped: skipped.iter().copied().collect(),
    }
}

/// A fresh model with experts 1 and 3 of layer 1 substituted.
fn fresh() -> Substituted<Model> {
    Substituted::try_new(Model::whole(), &approximate(json!({ "1": [3, 1] })))
        .expect("a declaration that fits")
}

#[test]
fn whole_model_loads_every_constant_and_reports_every_parameter() -> Outcome {
    for (spec, names) in [(spec(), false), (named(), true)] {
        let mut model = Substituted::try_new(Model::whole(), &spec)?;
        assert_eq!(
            load(&mut model, stored(names))?,
            report(
                &[
                    "norm.weight",
                    "layers.0.mlp.experts.gate_up_proj",
                    "layers.0.mlp.experts.down_proj",
                    "layers.0.mlp.experts.values",
                    "layers.1.mlp.experts.gate_up_proj",
                    "layers.1.mlp.experts.down_proj",
                    "layers.1.mlp.experts.values",
                    "layers.2.mlp.weight",
                ],
                &[]
            )
        );
        assert_eq!(model.experts(0).constant(0), [2.0, -2.0]);
        assert_eq!(model.experts(1).constant(0), [101.0, -101.0]);
        assert_eq!(model.experts(1).constant(1), [103.0, -103.0]);
        // Retained experts 0, 2 and 4 of layer 1, in packed rows.
        let up: Vec<f32> = (0..3)
            .map(|row| model.experts(1).weight(row, 1)[0])
            .collect();
        assert_eq!(up, [1001.0, 1021.0, 1041.0]);
        model.process_weights_after_loading()?;
        assert_eq!(model.processed, 1);
    }
    Ok(())
}

#[test]
fn stage_loads_its_constants_and_leaves_those_of_others() -> Outcome {
    let experts = [
        "norm.weight",
        "layers.0.mlp.experts.gate_up_proj",
        "layers.0.mlp.experts.down_proj",
        "layers.0.mlp.experts.values",
    ];
    // Layer 0 stores 13 tensors, layer 1 stores 11 and layer 2 one.
    for (built, parameters, elsewhere) in [
        (0..1, &experts[..], 12),
        (1..2, &experts[..], 14),
        (3..4, &experts[..1], 25),
    ] {
        for (spec, names) in [(spec(), false), (named(), true)] {
            let mut model = Substituted::try_new(Model::stage(built.clone()), &spec)?;
            assert_eq!(
                load(&mut model, stored(names))?,
                report(parameters, &[(SkipRule::LayerOfAnotherStage, elsewhere)]),
                "{built:?}"
            );
        }
    }
    let mut second = Substituted::try_new(Model::stage(1..2), &spec())?;
    load(&mut second, stored(false))?;
    assert_eq!(second.experts(1).constant(1), [103.0, -103.0]);
    second.process_weights_after_loading()
}

#[test]
fn constant_of_another_stage_passes_through() -> Outcome {
    // Undeclared there, and of a wrong shape: not ours to judge.
    let mut model = Substituted::try_new(Model::stage(0..1), &spec())?;
    let name = "model.layers.1.mlp.experts.4.approx_value";
    assert_eq!(
        load(
            &mut model,
            [tensor(name, &[1, 3], &[0.0; 3]), constant(3, 0)]
        )?
        .skipped,
        BTreeMap::from([
            (SkipRule::LayerOfAnotherStage, 1),
            (SkipRule::MultiTokenPrediction, 1),
        ])
    );
    Ok(())
}

#[test]
fn loader_that_reports_nothing_stays_silent() -> Outcome {
    let silent = Model::whole().with_loader(Loader::ReportsNothing);
    let mut model = Substituted::try_new(silent, &spec())?;
    assert_eq!(load(&mut model, stored(false))?, Loaded::default());
    assert_eq!(model.experts(0).constant(0), [2.0, -2.0]);
    model.process_weights_after_loading()
}

#[test]
fn loader_that_stops_early_loses_no_constant() -> Outcome {
    for read in [0, 1, 5] {
        let mut model = Substituted::try_new(
            Model::whole().with_loader(Loader::StopsAfter(read)),
            &spec(),
        )?;
        let found = load(&mut model, stored(false))?;
        // 23 tensors are the loader's: norm, dense layer, and seven experts of three parts.
        assert_eq!(
            found.skipped,
            BTreeMap::from([(SkipRule::Unread, 23 - read)])
        );
        assert_eq!(model.experts(0).constant(0), [2.0, -2.0]);
        assert_eq!(model.experts(1).constant(0), [101.0, -101.0]);
        assert_eq!(model.experts(1).constant(1), [103.0, -103.0]);
        // What was not read did not arrive.
        assert!(model.process_weights_after_loading().is_err());
    }
    Ok(())
}

#[test]
fn wrong_constant_behind_where_the_loader_stops_is_an_error() -> Outcome {
    let mut model =
        Substituted::try_new(Model::whole().with_loader(Loader::StopsAfter(1)), &spec())?;
    let mut tensors = stored(false);
    tensors.push(constant(1, 4));
    assert_says(
        load(&mut model, tensors),
        &["expert 4 of layer 1", "declared: [1, 3]"],
    );
    Ok(())
}

#[test]
fn value_name_goes_before_what_it_reads_like() -> Outcome {
    let (one, three) = (
        "model.layers.1.mlp.experts.1.approx_value",
        "model.layers.1.mlp.experts.3.approx_value",
    );
    let swapped = SubstitutionSpec::from_config(&explicit(json!({
        "model.layers.1.mlp.experts": target(&[(3, one), (1, three)]),
    })))?;
    let mut model = Substituted::try_new(Model::whole(), &swapped)?;
    load(&mut model, [constant(1, 1), constant(1, 3)])?;
    assert_eq!(model.experts(1).constant(0), [103.0, -103.0]);
    assert_eq!(model.experts(1).constant(1), [101.0, -101.0]);
    Ok(())
}

#[test]
fn unnamed_constant_of_the_explicit_format_loads_by_its_name() -> Outcome {
    let mut model = Substituted::try_new(Model::whole(), &named())?;
    load(&mut model, [constant(1, 3), tensor("c", &[2], &[5.0, 6.0])])?;
    assert_eq!(model.experts(1).constant(0), [5.0, 6.0]);
    assert_eq!(model.experts(1).constant(1), [103.0, -103.0]);
    Ok(())
}

#[test]
fn two_constants_for_one_expert_are_an_error_in_either_order() -> Outcome {
    let by_name = tensor("c", &[2], &[5.0, 6.0]);
    for pair in [[constant(1, 1), by_name.clone()], [by_name, constant(1, 1)]] {
        let mut model = Substituted::try_new(Model::whole(), &named())?;
        let second = pair[1].name().to_owned();
        assert_says(
            load(&mut model, pair),
            &[
                &format!("`{second}`"),
                "constant of expert 1 of layer 1",
                "already",
            ],
        );
    }
    Ok(())
}

#[test]
fn constant_of_a_layer_that_declares_nothing_is_unexpected() {
    assert_says(
        load(&mut fresh(), [constant(0, 2)]),
        &[
            "1 tensor is unexpected",
            "model.layers.0.mlp.experts.2.approx_value",
        ],
    );
}

#[test]
fn unexpected_tensors_are_listed_to_the_eighth_and_counted() {
    let strangers = (0..11).map(|n| tensor(&format!("stranger.{n}"), &[1], &[0.0]));
    let error = load(&mut fresh(), strangers)
        .expect_err("nobody takes them")
        .to_string();
    assert_eq!(
        error,
        "11 tensors are unexpected in this model: stranger.0, stranger.1, stranger.2, stranger.3, \
         stranger.4, stranger.5, stranger.6, stranger.7 and 3 more (11 in all)"
    );
}

#[test]
fn expert_that_does_not_exist_is_unexpected() {
    let name = "model.layers.1.mlp.experts.5.up_proj.weight";
    assert_says(
        load(&mut fresh(), [part(1, 5, 1)]),
        &["1 tensor is unexpected", name],
    );
}

#[test]
fn missing_constant_fails_after_loading() -> Outcome {
    let tensors = without(checkpoint(&[], &[1, 3]), "1.mlp.experts.3.approx_value");
    let mut model = loaded(
        Model::whole(),
        &approximate(json!({ "1": [3, 1] })),
        tensors,
    )?;
    let error = model
        .process_weights_after_loading()
        .expect_err("one is missing");
    assert_eq!(
        error.to_string(),
        "1 constant missing: `model.layers.1.mlp.experts.3.approx_value` (layer 1, expert 3)"
    );
    // The model's own hook is not for a model that is not whole.
    assert_eq!(model.processed, 0);
    Ok(())
}

#[test]
fn missing_constant_of_the_explicit_format_is_called_by_its_name() -> Outcome {
    let tensors = without(stored(true), "b.approx_value");
    let mut model = loaded(Model::whole(), &named(), tensors)?;
    assert_says(
        model.process_weights_after_loading(),
        &["1 constant missing: `b.approx_value` (layer 1, expert 3)"],
    );
    Ok(())
}

#[test]
fn missing_part_of_a_retained_expert_fails_after_loading() -> Outcome {
    let name = "model.layers.1.mlp.experts.2.up_proj.weight";
    let tensors = without(checkpoint(&[], &[1, 3]), name);
    let mut model = loaded(
        Model::whole(),
        &approximate(json!({ "1": [3, 1] })),
        tensors,
    )?;
    assert_says(
        model.process_weights_after_loading(),
        &[&format!("1 weight missing: `{name}` (layer 1, expert 2)")],
    );
    Ok(())
}

#[test]
fn missing_expert_fails_after_loading_also_where_nothing_is_substituted() -> Outcome {
    let mut tensors = checkpoint(&[], &[1, 3]);
    tensors.retain(|t| !t.name().contains("layers.0.mlp.experts.4."));
    let mut model = loaded(
        Model::whole(),
        &approximate(json!({ "1": [3, 1] })),
        tensors,
    )?;
    assert_says(
        model.process_weights_after_loading(),
        &[
            "3 weights missing",
            "`model.layers.0.mlp.experts.4.gate_proj.weight` (layer 0, expert 4)",
            "`model.layers.0.mlp.experts.4.up_proj.weight` (layer 0, expert 4)",
            "`model.layers.0.mlp.experts.4.down_proj.weight` (layer 0, expert 4)",
        ],
    );
    Ok(())
}

#[test]
fn missing_tensors_are_listed_to_the_eighth_and_counted() {
    let mut model = fresh();
    let message = model
        .process_weights_after_loading()
        .expect_err("nothing came")
        .to_string();
    assert!(message.starts_with(
        "2 constants missing: `model.layers.1.mlp.experts.1.approx_value` (layer 1, expert 1), \
         `model.layers.1.mlp.experts.3.approx_value` (layer 1, expert 3); 24 weights missing: "
    ));
    assert!(message.ends_with(
        "`model.layers.0.mlp.experts.2.up_proj.weight` (layer 0, expert 2) and 16 more (24 in all)"
    ));
}

#[test]
fn same_tensor_twice_in_a_stream_is_an_error() {
    for twice in [
        constant(1, 3),
        part(1, 2, 0),
        tensor("model.norm.weight", &[2], &[0.0; 2]),
    ] {
        let name = format!("tensor `{}` comes twice", twice.name());
        assert_says(load(&mut fresh(), [twice.clone(), twice]), &[&name]);
    }
}

#[test]
fn leftovers_of_substituted_experts_are_skipped_counted_and_reported_once() -> Outcome {
    let mut model = fresh();
    let ((), lines) = logged(|| {
        let mut first = checkpoint(&[], &[1, 3]);
        first.extend(expert(1, 3));
        let found = load(&mut model, first).expect("leftovers are skipped");
        assert_eq!(
            found.skipped,
            BTreeMap::from([(SkipRule::SubstitutedExpert, 3)])
        );
        // Whatever their shape: they are never read.
        let odd = tensor(
            "model.layers.1.mlp.experts.1.up_proj.weight",
            &[4],
            &[0.0; 4],
        );
        let found = load(&mut model, [odd]).expect("leftovers are skipped");
        assert_eq!(
            found.skipped,
            BTreeMap::from([(SkipRule::SubstitutedExpert, 1)])
        );
        model.process_weights_after_loading().expect("complete");
        model.process_weights_after_loading().expect("complete");
    });
    assert_eq!(
        lines,
        ["INFO the checkpoint still holds 4 tensors of substituted experts, which were not read"]
    );
    Ok(())
}
