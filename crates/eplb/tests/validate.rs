//! What `Placement::validate` rejects.
#![allow(clippy::unwrap_used)]

use eplb::{
    Cluster, Duplicate, Duplicates, Error, LayerPlacement, Loads, Placement, Problem,
    ProblemBuilder, RetainedExpert, Slot, Slots,
};

/// Four experts in six slots on three ranks.
fn builder() -> ProblemBuilder {
    let loads = Loads::new(vec![vec![4.0, 3.0, 2.0, 1.0]]).unwrap();
    Problem::builder(loads, Cluster::new(3, 1).unwrap(), Slots::Same(6))
}

fn experts(map: &[i64]) -> Vec<Option<RetainedExpert>> {
    map.iter()
        .map(|expert| u32::try_from(*expert).ok().map(RetainedExpert))
        .collect()
}

fn placement(map: &[i64]) -> Placement {
    Placement::from_physical_to_logical(&[experts(map)], &[4], 3).unwrap()
}

fn with_maps(map: &[i64], inverse: &[&[u32]]) -> Placement {
    let inverse: Vec<Vec<Slot>> = inverse
        .iter()
        .map(|slots| slots.iter().copied().map(Slot).collect())
        .collect();
    Placement::new(vec![
        LayerPlacement::from_maps(0, &experts(map), &inverse, 3).unwrap(),
    ])
}

fn refuse(placement: &Placement) -> Error {
    placement
        .validate(&builder().build().unwrap(), Duplicates::Refuse)
        .unwrap_err()
}

#[test]
fn a_valid_placement_passes() {
    let good = placement(&[0, 1, 2, 3, 0, 1]);
    assert_eq!(
        good.validate(&builder().build().unwrap(), Duplicates::Refuse),
        Ok(vec![])
    );
    assert_eq!(
        good,
        with_maps(&[0, 1, 2, 3, 0, 1], &[&[0, 4], &[1, 5], &[2], &[3]])
    );
}

#[test]
fn an_uncovered_expert() {
    assert_eq!(
        refuse(&placement(&[0, 1, 2, 0, 1, 2])),
        Error::Uncovered {
            layer: 0,
            expert: 3
        }
    );
}

#[test]
fn more_replicas_than_slots() {
    let wrong = with_maps(&[0, 1, 2, 3, 0, 1], &[&[0, 4, 4], &[1, 5], &[2], &[3]]);
    assert_eq!(
        refuse(&wrong),
        Error::TooManyReplicas {
            layer: 0,
            replicas: 7,
            slots: 6
        }
    );
}

#[test]
fn duplicates_on_a_rank_are_refused_or_reported() {
    let twice = placement(&[0, 0, 1, 2, 3, 1]);
    assert_eq!(
        refuse(&twice),
        Error::Duplicate {
            layer: 0,
            rank: 0,
            expert: 0,
            times: 2
        }
    );
    let reported = twice.validate(&builder().build().unwrap(), Duplicates::Report);
    assert_eq!(
        reported,
        Ok(vec![Duplicate {
            layer: 0,
            rank: 0,
            expert: 0,
            times: 2
        }])
    );
}

#[test]
fn a_move_without_a_source() {
    // Rank 0 died, and held the only replica of expert 0; rank 1 is to have it.
    let current = placement(&[0, 1, 1, 2, 3, 2]);
    let cluster = Cluster::new(3, 1)
        .unwrap()
        .with_live(vec![false, true, true])
        .unwrap();
    let loads = Loads::new(vec![vec![4.0, 3.0, 2.0, 1.0]]).unwrap();
    let builder = Problem::builder(loads, cluster, Slots::Same(6)).current(current);
    let next = placement(&[-1, -1, 0, 1, 2, 3]);
    let problem = builder.clone().build().unwrap();
    let expected = Error::NoSource {
        layer: 0,
        expert: 0,
        rank: 1,
    };
    assert_eq!(
        next.validate(&problem, Duplicates::Refuse),
        Err(expected.clone())
    );
    assert!(
        expected.to_string().contains("allow reloading"),
        "{expected}"
    );
    assert_eq!(
        next.validate(&builder.reload(true).build().unwrap(), Duplicates::Refuse),
        Ok(vec![])
    );
}

#[test]
fn maps_that_are_not_inverse_to_each_other() {
    let map = [0, 1, 2, 3, 0, 1];
    // A slot of another expert, a slot that does not exist, one listed twice, one not listed.
    let cases: [(&[&[u32]], usize, &str); 4] = [
        (&[&[0, 5], &[1, 4], &[2], &[3]], 5, "holds expert 1"),
        (&[&[0, 6], &[1, 5], &[2], &[3]], 6, "does not exist"),
        (&[&[0, 0], &[1, 5], &[2], &[3]], 0, "is listed twice"),
        (&[&[0], &[1, 5], &[2], &[3]], 4, "do not list it"),
    ];
    for (inverse, at, detail) in cases {
        match refuse(&with_maps(&map, inverse)) {
            Error::NotInverse {
                layer: 0,
                slot,
                detail: found,
            } => {
                assert_eq!(slot, at, "{found}");
                assert!(found.contains(detail), "{found}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn empty_slots_of_live_ranks_and_used_slots_of_dead_ones() {
    let wrong = refuse(&placement(&[0, 1, 2, 3, 0, -1]));
    assert!(
        matches!(
            wrong,
            Error::SlotUse {
                layer: 0,
                rank: 2,
                slot: 5,
                ..
            }
        ),
        "{wrong}"
    );
    let cluster = Cluster::new(3, 1)
        .unwrap()
        .with_live(vec![true, true, false])
        .unwrap();
    let loads = Loads::new(vec![vec![4.0, 3.0, 2.0, 1.0]]).unwrap();
    let problem = Problem::builder(loads, cluster, Slots::Same(6))
        .build()
        .unwrap();
    let wrong = placement(&[0, 1, 2, 3, 0, -1])
        .validate(&problem, Duplicates::Refuse)
        .unwrap_err();
    assert!(
        matches!(
            wrong,
            Error::SlotUse {
                layer: 0,
                rank: 2,
                slot: 4,
                ..
            }
        ),
        "{wrong}"
    );
    assert_eq!(
        placement(&[0, 1, 2, 3, -1, -1]).validate(&problem, Duplicates::Refuse),
        Ok(vec![])
    );
}

#[test]
fn another_shape() {
    let problem = builder().build().unwrap();
    let two_layers = Placement::new(
        [
            placement(&[0, 1, 2, 3, 0, 1]).layers(),
            placement(&[0, 1, 2, 3, 0, 1]).layers(),
        ]
        .concat(),
    );
    let fewer_slots = Placement::from_physical_to_logical(&[experts(&[0, 1, 2])], &[4], 3).unwrap();
    let more_ranks =
        Placement::from_physical_to_logical(&[experts(&[0, 1, 2, 3, 0, 1])], &[4], 6).unwrap();
    let more_experts =
        Placement::from_physical_to_logical(&[experts(&[0, 1, 2, 3, 0, 1])], &[5], 3).unwrap();
    for wrong in [
        two_layers,
        fewer_slots,
        more_ranks,
        more_experts,
        Placement::default(),
    ] {
        let error = wrong.validate(&problem, Duplicates::Report).unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{error}");
    }
}

#[test]
fn an_expert_that_does_not_exist() {
    let wrong = Placement::from_physical_to_logical(&[experts(&[0, 1, 2, 3, 4, 1])], &[4], 3);
    assert_eq!(
        wrong,
        Err(Error::UnknownExpert {
            layer: 0,
            slot: 4,
            expert: 4,
            experts: 4
        })
    );
    assert!(matches!(
        Placement::from_physical_to_logical(&[], &[4], 3),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        Placement::from_physical_to_logical(&[vec![]], &[4], 0),
        Err(Error::Empty { .. })
    ));
}

#[test]
fn a_placement_answers_for_its_slots() {
    let placement = placement(&[0, 1, 2, 3, 0, -1]);
    let layer = &placement.layers()[0];
    assert_eq!((layer.ranks(), layer.slots(), layer.experts()), (3, 6, 4));
    assert_eq!(layer.expert(Slot(4)), Some(RetainedExpert(0)));
    assert_eq!((layer.expert(Slot(5)), layer.expert(Slot(6))), (None, None));
    assert_eq!(
        (layer.rank_of(Slot(4)), layer.rank_of(Slot(6))),
        (Some(2), None)
    );
    assert_eq!(
        layer.replicas(RetainedExpert(0)).collect::<Vec<_>>(),
        [Slot(0), Slot(4)]
    );
    assert_eq!(
        (
            layer.count(RetainedExpert(3)),
            layer.count(RetainedExpert(9))
        ),
        (1, 0)
    );
    assert_eq!(
        layer.rank(2).collect::<Vec<_>>(),
        [Some(RetainedExpert(0)), None]
    );
    assert_eq!(layer.rank(3).count(), 0);
    assert_eq!(
        layer.logical_counts(0, &[1, 2, 3, 4, 5, 0]),
        Ok(vec![6, 2, 3, 4])
    );
    assert!(matches!(
        layer.logical_counts(0, &[1, 2]),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        layer.logical_counts(0, &[0, 0, 0, 0, 0, 1]),
        Err(Error::Setting { .. })
    ));
}

#[test]
fn maps_are_compact() {
    // 256 experts, one of them with 33 replicas: 288 entries, not 256 × 33.
    let map: Vec<i64> = (0..256).chain(std::iter::repeat_n(0, 32)).collect();
    let layer = LayerPlacement::new(0, &experts(&map), 256, 32).unwrap();
    let inverse = Placement::new(vec![layer]).logical_to_physical_map();
    assert_eq!(inverse[0].iter().map(Vec::len).sum::<usize>(), 288);
    assert_eq!((inverse[0][0].len(), inverse[0][1].len()), (33, 1));
}
