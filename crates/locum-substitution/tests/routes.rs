//! Routes: logical ids to retained rows, constants, or nothing.

mod common;

use common::assert_says;
use locum_substitution::{ConstantRoute, Route, RouteTable, SubstitutionError, TokenWeight};
use proptest::prelude::*;

type Outcome = Result<(), SubstitutionError>;

fn token(token: usize, weight: f32) -> TokenWeight {
    TokenWeight { token, weight }
}

fn constant(token: usize, row: usize, weight: f32) -> ConstantRoute {
    ConstantRoute { token, row, weight }
}

/// The constants' part of the output: sums in f64, as the CPU does, rounded once.
fn constant_part(routes: &[ConstantRoute], values: &[[f32; 2]], tokens: usize) -> Vec<[f32; 2]> {
    let mut sums = vec![[0f64; 2]; tokens];
    for route in routes {
        for (sum, value) in sums[route.token].iter_mut().zip(values[route.row]) {
            *sum += f64::from(route.weight) * f64::from(value);
        }
    }
    sums.iter().map(|sum| sum.map(|s| s as f32)).collect()
}

#[test]
fn rows_follow_logical_ids() -> Outcome {
    let table = RouteTable::new(5, &[3, 1])?;
    let routes: Vec<Route> = (0..5).map(|id| table.route(id)).collect();
    assert_eq!(
        routes,
        [
            Route::Retained(0),
            Route::Substituted(0),
            Route::Retained(1),
            Route::Substituted(1),
            Route::Retained(2),
        ]
    );
    assert_eq!(table.retained(), [0, 2, 4]);
    assert_eq!(table.substituted(), [1, 3]);
    assert_eq!(table.num_logical(), 5);
    Ok(())
}

#[test]
fn ids_out_of_range_lead_nowhere() -> Outcome {
    let table = RouteTable::new(5, &[1, 3])?;
    for id in [-1, 5, 99, i64::MIN, i64::MAX, 1 << 32, (1 << 32) + 1] {
        assert_eq!(table.route(id), Route::Invalid, "{id}");
    }
    Ok(())
}

#[test]
fn dispatch_parts_constants_from_experts() -> Outcome {
    let table = RouteTable::new(5, &[1, 3])?;
    let dispatch = table.dispatch(&[1, 2, 4, 3, 99, -1], &[0.25, 0.75, 0.6, 0.4, 0.5, 0.5], 2);
    assert_eq!(
        dispatch.retained,
        [vec![], vec![token(0, 0.75)], vec![token(1, 0.6)]]
    );
    assert_eq!(
        dispatch.substituted,
        [constant(0, 0, 0.25), constant(1, 1, 0.4)]
    );
    assert_eq!(
        constant_part(&dispatch.substituted, &[[10.0, 20.0], [30.0, 40.0]], 3),
        [[2.5, 5.0], [12.0, 16.0], [0.0, 0.0]]
    );
    Ok(())
}

#[test]
fn any_number_of_tokens_is_dispatched_alike() -> Outcome {
    let table = RouteTable::new(5, &[1, 3])?;
    for tokens in [0, 1, 3, 7] {
        let dispatch = table.dispatch(&[1, 2].repeat(tokens), &[0.25, 0.75].repeat(tokens), 2);
        let all: Vec<_> = (0..tokens).map(|t| token(t, 0.75)).collect();
        assert_eq!(dispatch.retained, [vec![], all, vec![]]);
        let all: Vec<_> = (0..tokens).map(|t| constant(t, 0, 0.25)).collect();
        assert_eq!(dispatch.substituted, all);
    }
    Ok(())
}

#[test]
fn nan_weight_stays_with_its_token() -> Outcome {
    let table = RouteTable::new(5, &[1, 3])?;
    let clean = table.dispatch(&[1, 2, 3, 2, 1, 0], &[0.5, 0.5, 0.25, 0.75, 0.4, 0.6], 2);
    let dirty = table.dispatch(
        &[1, 2, 3, 2, 1, 0],
        &[0.5, 0.5, f32::NAN, f32::NAN, 0.4, 0.6],
        2,
    );
    let other = |routes: &[TokenWeight]| -> Vec<_> {
        routes.iter().filter(|t| t.token != 1).copied().collect()
    };
    for (row, routes) in dirty.retained.iter().enumerate() {
        assert_eq!(other(routes), other(&clean.retained[row]));
    }
    assert!(dirty.retained[1][1].weight.is_nan());
    assert!(dirty.substituted[1].weight.is_nan());
    assert_eq!(dirty.substituted[0], constant(0, 0, 0.5));
    assert_eq!(dirty.substituted[2], constant(2, 0, 0.4));
    Ok(())
}

#[test]
fn nan_weight_of_an_invalid_id_leads_nowhere() -> Outcome {
    let dispatch = RouteTable::new(5, &[1, 3])?.dispatch(&[-1, 1], &[f32::NAN, 1.0], 2);
    assert_eq!(dispatch.retained, [vec![], vec![], vec![]]);
    assert_eq!(dispatch.substituted, [constant(0, 0, 1.0)]);
    Ok(())
}

#[test]
fn token_of_constants_only_schedules_no_expert() -> Outcome {
    let table = RouteTable::new(5, &[1, 3])?;
    let dispatch = table.dispatch(&[1, 3, 3, 1], &[0.5, 0.5, 1.0, 0.0], 2);
    assert_eq!(dispatch.retained, [vec![], vec![], vec![]]);
    assert_eq!(
        constant_part(&dispatch.substituted, &[[10.0, 20.0], [30.0, 40.0]], 2),
        [[20.0, 30.0], [30.0, 40.0]]
    );
    Ok(())
}

#[test]
fn expert_without_a_route_has_no_tokens() -> Outcome {
    // Row 0 may overflow as it likes: no token of this batch reaches it.
    let dispatch = RouteTable::new(5, &[1, 3])?.dispatch(&[2, 4], &[0.5, 0.5], 2);
    assert_eq!(dispatch.retained[0], []);
    Ok(())
}

#[test]
fn more_choices_than_retained_experts_work() -> Outcome {
    let table = RouteTable::new(5, &[0, 1, 2, 4])?;
    let dispatch = table.dispatch(&[0, 1, 3, 4], &[0.1, 0.2, 0.3, 0.4], 4);
    assert_eq!(dispatch.retained, [vec![token(0, 0.3)]]);
    assert_eq!(
        dispatch.substituted,
        [
            constant(0, 0, 0.1),
            constant(0, 1, 0.2),
            constant(0, 3, 0.4)
        ]
    );
    Ok(())
}

#[test]
fn odd_lengths_give_whole_tokens_only() -> Outcome {
    let table = RouteTable::new(5, &[1, 3])?;
    assert_eq!(
        table.dispatch(&[2, 2, 2], &[0.1, 0.2, 0.3], 2).retained[1].len(),
        2
    );
    assert_eq!(table.dispatch(&[2, 2], &[0.1], 2).retained[1], []);
    assert_eq!(table.dispatch(&[2, 2], &[0.1, 0.2], 0).retained[1], []);
    Ok(())
}

#[test]
fn list_that_fits_no_layer_is_refused() {
    assert_says(
        RouteTable::new(5, &[4, 1, 4]),
        &["expert 4 is listed twice"],
    );
    assert_says(RouteTable::new(5, &[1, 5, 9]), &["[5, 9]", "has 5"]);
    assert_says(RouteTable::new(3, &[2, 1, 0]), &["all 3 experts"]);
    assert_says(RouteTable::new(0, &[0]), &["[0]", "has 0"]);
    assert_eq!(
        RouteTable::new(0, &[]).map(|t| t.num_logical()).ok(),
        Some(0)
    );
}

#[test]
fn table_of_no_substitution_retains_every_expert() -> Outcome {
    assert_eq!(RouteTable::new(4, &[])?, RouteTable::all_retained(4));
    assert_eq!(RouteTable::all_retained(4).route(3), Route::Retained(3));
    Ok(())
}

proptest! {
    #![proptest_config(common::cases(512))]

    #[test]
    fn every_valid_route_is_dispatched_once(
        (logical, substituted, routes, top_k) in (1u32..40).prop_flat_map(|logical| (
            Just(logical),
            prop::collection::btree_set(0..logical, 0..logical as usize),
            prop::collection::vec((-3i64..45, 0f32..1.0), 0..60),
            1usize..9,
        )),
    ) {
        let substituted: Vec<u32> = substituted.into_iter().collect();
        let table = RouteTable::new(logical, &substituted)?;
        let (ids, weights): (Vec<i64>, Vec<f32>) = routes.iter().copied().unzip();
        let dispatch = table.dispatch(&ids, &weights, top_k);

        let retained = dispatch.retained.iter().enumerate().flat_map(|(row, tokens)| {
            let id = i64::from(table.retained()[row]);
            tokens.iter().map(move |t| (t.token, id, t.weight.to_bits()))
        });
        let constants = dispatch.substituted.iter().map(|c| {
            (c.token, i64::from(substituted[c.row]), c.weight.to_bits())
        });
        let mut found: Vec<_> = retained.chain(constants).collect();
        let mut expected: Vec<_> = routes[..routes.len() / top_k * top_k]
            .iter()
            .enumerate()
            .filter(|(_, (id, _))| (0..i64::from(logical)).contains(id))
            .map(|(position, (id, weight))| (position / top_k, *id, weight.to_bits()))
            .collect();
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }
}
