//! A constant's shape, type and values.

mod common;

use common::{
    Model, Outcome, approximate, assert_says, bf16, constant, explicit, f16, load, logged, target,
    tensor,
};
use locum_substitution::{
    Dtype, LoadWeights, NamedTensor, ProcessWeightsAfterLoading, Substituted, SubstitutionError,
    SubstitutionSpec, TensorInfo,
};
use serde_json::json;

/// A fresh model with experts 1 and 3 of layer 1 substituted.
fn fresh() -> Substituted<Model> {
    Substituted::try_new(Model::whole(), &approximate(json!({ "1": [3, 1] })))
        .expect("a declaration that fits")
}

#[test]
fn wrong_constant_is_refused_before_the_next_tensor_is_read() {
    let name = "model.layers.1.mlp.experts.3.approx_value";
    let integers = NamedTensor::new(TensorInfo::new(name, Dtype::I32, [2]), vec![0; 8]);
    for (wrong, expected) in [
        (
            constant(1, 2),
            vec![
                "1.mlp.experts.2.approx_value",
                "expert 2 of layer 1",
                "[1, 3]",
            ],
        ),
        (
            constant(1, 9),
            vec![
                "1.mlp.experts.9.approx_value",
                "expert 9 of layer 1",
                "[1, 3]",
            ],
        ),
        (
            tensor(name, &[3], &[0.0; 3]),
            vec![name, "shape [3], expected [2]"],
        ),
        (
            tensor(name, &[1, 2], &[0.0; 2]),
            vec![name, "shape [1, 2], expected [2]"],
        ),
        (
            tensor(name, &[], &[0.0]),
            vec![name, "shape [], expected [2]"],
        ),
        (
            integers.expect("any bytes"),
            vec![name, "dtype i32, expected f32, f16 or bf16"],
        ),
    ] {
        let mut model = fresh();
        let mut rest = [Ok(wrong)]
            .into_iter()
            .chain(std::iter::from_fn(|| panic!("read on")));
        assert_says(model.load_weights(&mut rest), &expected);
    }
}

#[test]
fn constants_are_converted_to_the_type_of_the_model() -> Outcome {
    let name = "model.layers.1.mlp.experts.3.approx_value";
    let values = [1.5f32, -0.25];
    let (single, half, brain) = (
        tensor(name, &[2], &values),
        f16(name, &values),
        bf16(name, &values),
    );
    // 1.5 is 3FC0_0000, 3E00 and 3FC0; −0.25 is BE80_0000, B400 and BE80.
    for (dtype, bytes) in [
        (Dtype::F32, vec![0, 0, 0xC0, 0x3F, 0, 0, 0x80, 0xBE]),
        (Dtype::F16, vec![0, 0x3E, 0, 0xB4]),
        (Dtype::Bf16, vec![0xC0, 0x3F, 0x80, 0xBE]),
    ] {
        for stored in [&single, &half, &brain] {
            let mut model = Substituted::try_new(
                Model::whole().with_dtype(dtype.clone()),
                &approximate(json!({ "1": [3] })),
            )?;
            load(&mut model, [stored.clone()])?;
            assert_eq!(model.experts(1).constants, [Some(bytes.clone())], "{dtype}");
        }
    }
    Ok(())
}

#[test]
fn constant_that_overflows_the_type_of_the_model_is_an_error() -> Outcome {
    let name = "model.layers.1.mlp.experts.3.approx_value";
    let into = |dtype| {
        Substituted::try_new(
            Model::whole().with_dtype(dtype),
            &approximate(json!({ "1": [3] })),
        )
    };
    for stored in [
        tensor(name, &[2], &[1.0, 65520.0]),
        bf16(name, &[1.0, -70144.0]),
    ] {
        assert_says(
            load(&mut into(Dtype::F16)?, [stored.clone()]),
            &[
                name,
                "overflows the model's dtype f16",
                &stored.to_f32().unwrap_or_default()[1].to_string(),
            ],
        );
    }
    assert_says(
        load(
            &mut into(Dtype::Bf16)?,
            [tensor(name, &[2], &[f32::MAX, 0.0])],
        ),
        &[name, "overflows the model's dtype bf16"],
    );
    // The largest f16, what rounds to it, and an infinity, which is data.
    let mut model = into(Dtype::F16)?;
    load(&mut model, [tensor(name, &[2], &[65519.0, f32::INFINITY])])?;
    assert_eq!(
        model.experts(1).constants,
        [Some(vec![0xFF, 0x7B, 0x00, 0x7C])]
    );
    Ok(())
}

#[test]
fn stored_nan_is_data_and_warned_of_once() -> Outcome {
    let spec = SubstitutionSpec::from_config(&explicit(json!({
        "model.layers.0.mlp.experts": target(&[(2, "odd")]),
        "model.layers.1.mlp.experts": target(&[(3, "odd"), (1, "odd")]),
    })))?;
    let mut model = Substituted::try_new(Model::whole(), &spec)?;
    let (result, lines) = logged(|| load(&mut model, [tensor("odd", &[2], &[1.0, f32::NAN])]));
    result?;
    assert_eq!(
        lines,
        ["WARN constant `odd` holds NaN, first at index 1: tokens routed to it become NaN"]
    );
    for (layer, row) in [(0, 0), (1, 0), (1, 1)] {
        let bits = [1f32.to_le_bytes(), f32::NAN.to_le_bytes()].concat();
        assert_eq!(model.experts(layer).constants[row], Some(bits));
    }
    assert!(
        model
            .process_weights_after_loading()
            .is_err_and(|error| matches!(
                error,
                SubstitutionError::Missing { constants, .. } if constants.is_empty()
            ))
    );
    Ok(())
}
