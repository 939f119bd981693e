//! What does not fit is an error that says what.
#![allow(clippy::unwrap_used)]

use locum_kernels::{
    Activation, Activations, ConstantRoute, GatedMlp, KernelError, Linear, Routes, Variant, Weights,
};

const ZEROS: [f32; 64] = [0.0; 64];

fn run(lengths: [usize; 4], routes: &Routes) -> Result<(), KernelError> {
    let [x, gate_up, down, out] = lengths;
    let mlp = GatedMlp {
        hidden: 2,
        intermediate: 3,
        activation: Activation::Silu,
        gate_up: Weights::F32(&ZEROS[..gate_up]),
        down: Weights::F32(&ZEROS[..down]),
    };
    let x = Activations::F32(&ZEROS[..x]);
    Variant::detect()?.gated_mlp(&mlp, x, routes, &mut vec![1.0; out])
}

#[test]
fn length_that_does_not_fit_is_named() {
    let routes = Routes::from_rows([vec![(0, 1.0)], vec![]]);
    assert_eq!(run([8, 24, 12, 8], &routes), Ok(()));
    for (lengths, what, expected, found) in [
        ([8, 24, 12, 7], "out", 6, 7),
        ([9, 24, 12, 8], "x", 8, 9),
        ([8, 23, 12, 8], "gate_up", 24, 23),
        ([8, 24, 6, 8], "down", 12, 6),
    ] {
        let error = KernelError::Length {
            what,
            expected,
            found,
        };
        assert_eq!(run(lengths, &routes), Err(error));
    }
}

#[test]
fn length_of_outputs_is_that_of_the_routes() {
    let routes = Routes::from_rows([vec![(0, 1.0), (1, 1.0)], vec![(3, 1.0)]]);
    let mlp = GatedMlp {
        hidden: 2,
        intermediate: 3,
        activation: Activation::Silu,
        gate_up: Weights::F32(&ZEROS[..24]),
        down: Weights::F32(&ZEROS[..12]),
    };
    let run = |outputs: &mut [f32]| {
        let x = Activations::F32(&ZEROS[..8]);
        Variant::detect()?.gated_mlp_with_outputs(&mlp, x, &routes, &mut [1.0; 8], outputs)
    };
    assert_eq!(run(&mut [1.0; 6]), Ok(()));
    let error = KernelError::Length {
        what: "outputs",
        expected: 6,
        found: 8,
    };
    assert_eq!(run(&mut [1.0; 8]), Err(error));
}

#[test]
fn route_of_no_token_is_named() {
    let routes = Routes::from_rows([vec![(0, 1.0)], vec![(4, 1.0)]]);
    let error = KernelError::Token {
        row: 1,
        token: 4,
        tokens: 4,
    };
    assert_eq!(run([8, 24, 12, 8], &routes), Err(error));
}

#[test]
fn sizes_beyond_any_slice_are_an_error() {
    let linear = Linear {
        inputs: usize::MAX,
        outputs: 2,
        weights: Weights::F32(&ZEROS),
    };
    let result =
        Variant::detect()
            .unwrap()
            .linear(&linear, Activations::F32(&ZEROS), &mut [0.0; 2]);
    assert_eq!(result, Err(KernelError::Size { what: "weights" }));
}

#[test]
fn token_without_routes_is_zero() {
    let variant = Variant::detect().unwrap();
    let mlp = GatedMlp {
        hidden: 2,
        intermediate: 1,
        activation: Activation::Silu,
        gate_up: Weights::F32(&[1.0; 4]),
        down: Weights::F32(&[1.0; 2]),
    };
    let routes = Routes::from_rows([Vec::new()]);
    let mut out = [1.0; 4];
    variant
        .gated_mlp(&mlp, Activations::F32(&[1.0; 4]), &routes, &mut out)
        .unwrap();
    assert_eq!(out, [0.0; 4]);
}

#[test]
fn constant_that_is_not_there_is_named() {
    let route = |token, row| {
        [ConstantRoute {
            token,
            row,
            weight: 1.0,
        }]
    };
    let constants = Weights::F32(&ZEROS[..6]);
    let add = |route: [ConstantRoute; 1]| {
        Variant::available()[0].add_constants(&route, constants, 3, &mut [0.0; 6])
    };
    assert_eq!(add(route(1, 1)), Ok(()));
    assert_eq!(
        add(route(1, 2)),
        Err(KernelError::Constant {
            row: 2,
            constants: 2
        })
    );
    assert_eq!(
        add(route(2, 1)),
        Err(KernelError::Token {
            row: 1,
            token: 2,
            tokens: 2
        })
    );
}

#[test]
fn variant_that_is_not_there_lists_those_that_are() {
    let error = Variant::named("sparc").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("LOCUM_CPU is `sparc`, this machine has ")
    );
    assert!(error.to_string().contains("portable: name one of them"));
    for variant in Variant::available() {
        assert_eq!(
            Variant::named(variant.name()).unwrap().name(),
            variant.name()
        );
    }
}
