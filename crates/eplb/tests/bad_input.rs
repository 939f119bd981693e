//! Every wrong input is an error that says what to do; nothing panics.
#![allow(clippy::unwrap_used)]

use eplb::{
    Cluster, Error, Geometry, Greedy, HiddenLayers, LayerPlacement, Loads, Placement, Planner,
    Problem, Recorder, Refined, RetainedExpert, Scope, Slots, Summary, hash_routed_load,
};

fn loads(window: &[&[f64]]) -> Result<Loads, Error> {
    Loads::new(window.iter().map(|layer| layer.to_vec()).collect())
}

fn text(result: Result<impl std::fmt::Debug, Error>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn nan_infinite_and_negative_loads() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -1e-300] {
        let message = text(loads(&[&[1.0, 2.0], &[3.0, bad]]));
        assert!(
            message.starts_with("window 0, layer 1, expert 1: load "),
            "{message}"
        );
        assert!(message.contains("finite number of at least 0"), "{message}");
    }
    // Minus zero is zero.
    assert!(loads(&[&[-0.0, 1.0]]).is_ok());
}

#[test]
fn minus_zero_is_planned_like_zero() {
    let problem = Problem::builder(
        loads(&[&[-0.0, 1.0, 0.0]]).unwrap(),
        Cluster::new(2, 1).unwrap(),
        Slots::Same(4),
    );
    let problem = problem.build().unwrap();
    for planner in [&Greedy as &dyn Planner, &Refined] {
        assert_eq!(
            planner.plan(&problem).unwrap().placement.logical_count(),
            [[1, 2, 1]]
        );
    }
}

#[test]
fn empty_loads() {
    assert_eq!(
        text(Loads::from_windows(vec![])),
        "load windows: expected at least one, found none"
    );
    assert_eq!(
        text(loads(&[&[1.0], &[]])),
        "experts of layer 1: expected at least one, found none"
    );
}

#[test]
fn windows_of_different_shape() {
    let layers = Loads::from_windows(vec![vec![vec![1.0]], vec![vec![1.0], vec![1.0]]]);
    assert_eq!(
        text(layers),
        "window 1: expected 1 layer, as in window 0, found 2"
    );
    let experts = Loads::from_windows(vec![vec![vec![1.0, 2.0]], vec![vec![1.0]]]);
    assert_eq!(
        text(experts),
        "window 1, layer 0: expected 2 experts, as in window 0, found 1"
    );
}

#[test]
fn counts_above_two_to_the_53() {
    let limit = 1_u64 << 53;
    assert!(Loads::from_counts(&[vec![vec![limit, 0]]]).is_ok());
    // As a float the first integer above would round down to the limit.
    let message = text(Loads::from_counts(&[vec![vec![0, limit + 1]]]));
    assert!(
        message.starts_with("window 0, layer 0, expert 1: load 9007199254740993 is above 2^53"),
        "{message}"
    );
    assert!(matches!(loads(&[&[1e17]]), Err(Error::LoadTooLarge { .. })));
    assert!(matches!(
        loads(&[&[f64::MAX]]),
        Err(Error::LoadTooLarge { .. })
    ));
}

#[test]
fn numbers_of_many_digits_are_shown_short() {
    let messages = [
        text(loads(&[&[1e300]])),
        text(loads(&[&[-1e300]])),
        text(Cluster::new(1, 1).unwrap().with_speeds(vec![1e-320])),
        text(
            loads(&[&[1.0]])
                .unwrap()
                .summarize(Summary::MeanPlusDeviation { z: 1e308 }),
        ),
    ];
    let expected = [
        "window 0, layer 0, expert 0: load 1e300 is above 2^53",
        "window 0, layer 0, expert 0: load -1e300 is not a finite number",
        "speed of rank 0: 1e-320 is outside 1e-9 to 1e9",
        "z: 1e308 is not a number from 0 to 1e6",
    ];
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn the_largest_counts_are_planned() {
    let window = vec![vec![(1_u64 << 53).to_string().parse::<f64>().unwrap(); 8]];
    let problem = Problem::builder(
        Loads::new(window).unwrap(),
        Cluster::new(4, 1).unwrap(),
        Slots::Same(12),
    );
    let plan = Refined.plan(&problem.build().unwrap()).unwrap();
    assert!(plan.gap.is_finite() && plan.balancedness > 0.5);
}

#[test]
fn fewer_slots_than_experts() {
    let problem = Problem::builder(
        loads(&[&[1.0; 9]]).unwrap(),
        Cluster::new(4, 1).unwrap(),
        Slots::Same(8),
    );
    assert_eq!(
        text(problem.build()),
        "layer 0: 8 slots on live ranks cannot hold 9 experts; use at least 9 slots on live ranks"
    );
    let cluster = Cluster::new(4, 1)
        .unwrap()
        .with_live(vec![true, true, true, false])
        .unwrap();
    let problem = Problem::builder(loads(&[&[1.0; 8]]).unwrap(), cluster, Slots::Same(8)).build();
    assert_eq!(
        problem.unwrap_err(),
        Error::TooFewSlots {
            layer: 0,
            slots: 6,
            experts: 8
        }
    );
}

#[test]
fn slots_that_are_not_a_multiple_of_the_ranks() {
    let build = |slots: usize, uneven: bool| {
        Problem::builder(
            loads(&[&[1.0; 256]]).unwrap(),
            Cluster::new(32, 1).unwrap(),
            Slots::Same(slots),
        )
        .uneven(uneven)
        .build()
    };
    assert_eq!(
        text(build(290, false)),
        "layer 0: 290 slots are not a multiple of 32 ranks; use 288 or 320 slots, or allow uneven slots"
    );
    // The multiple below would not hold the experts.
    let few = Problem::builder(
        loads(&[&[1.0; 9]]).unwrap(),
        Cluster::new(4, 1).unwrap(),
        Slots::Same(11),
    )
    .build();
    assert!(text(few).contains("use 12 slots"));
    assert!(build(290, true).is_ok());
}

#[test]
fn groups_that_do_not_divide_the_experts() {
    let builder = Problem::builder(
        loads(&[&[1.0; 10]]).unwrap(),
        Cluster::new(2, 1).unwrap(),
        Slots::Same(12),
    );
    assert_eq!(
        text(builder.groups(4).build()),
        "layer 0: 10 experts cannot be divided into 4 groups; use a divisor of 10, or 1"
    );
}

#[test]
fn a_current_placement_of_another_shape() {
    let input = || {
        Problem::builder(
            loads(&[&[1.0; 4]]).unwrap(),
            Cluster::new(2, 1).unwrap(),
            Slots::Same(6),
        )
    };
    let map = |experts: &[u32]| {
        vec![
            experts
                .iter()
                .map(|expert| Some(RetainedExpert(*expert)))
                .collect::<Vec<_>>(),
        ]
    };
    let good = Placement::from_physical_to_logical(&map(&[0, 1, 2, 3, 0, 1]), &[4], 2).unwrap();
    assert!(input().current(good.clone()).build().is_ok());
    let wrong = [
        Placement::from_physical_to_logical(&map(&[0, 1, 2, 3]), &[4], 2).unwrap(),
        Placement::from_physical_to_logical(&map(&[0, 1, 2, 3, 0, 1]), &[5], 2).unwrap(),
        Placement::from_physical_to_logical(&map(&[0, 1, 2, 3, 0, 1]), &[4], 3).unwrap(),
        Placement::new([good.layers(), good.layers()].concat()),
        Placement::default(),
    ];
    for placement in wrong {
        let message = text(input().current(placement).build());
        assert!(message.contains("current placement"), "{message}");
    }
    let other = Placement::from_physical_to_logical(&map(&[0, 1, 2, 3]), &[4], 2).unwrap();
    assert_eq!(
        text(input().current(other).build()),
        "layer 0 of the current placement: expected 4 experts in 6 slots on 2 ranks, found 4 experts in 4 slots on 2 ranks"
    );
}

#[test]
fn impossible_clusters() {
    assert!(matches!(Cluster::new(0, 1), Err(Error::Empty { .. })));
    assert!(matches!(Cluster::new(4, 0), Err(Error::Empty { .. })));
    assert_eq!(
        text(Cluster::new(10, 4)),
        "nodes: 10 ranks cannot be divided among 4 nodes; use nodes with the same number of ranks, or 1 node"
    );
    assert!(matches!(
        Cluster::new(usize::MAX, 1),
        Err(Error::Limit { .. })
    ));
    let cluster = || Cluster::new(2, 1).unwrap();
    for speeds in [
        vec![1.0],
        vec![1.0, 0.0],
        vec![1.0, -1.0],
        vec![1.0, f64::NAN],
        vec![f64::INFINITY, 1.0],
        vec![1e-300, 1.0],
    ] {
        assert!(cluster().with_speeds(speeds).is_err());
    }
    assert!(cluster().with_live(vec![false, false]).is_err());
    assert!(cluster().with_live(vec![true]).is_err());
}

#[test]
fn lists_per_layer_of_another_length() {
    let input = || {
        Problem::builder(
            loads(&[&[1.0; 4], &[1.0; 4]]).unwrap(),
            Cluster::new(2, 1).unwrap(),
            Slots::PerLayer(vec![4]),
        )
    };
    assert_eq!(
        text(input().build()),
        "slots: expected 2 entries, one per layer, found 1"
    );
    let input = Problem::builder(
        loads(&[&[1.0; 4]]).unwrap(),
        Cluster::new(2, 1).unwrap(),
        Slots::Same(4),
    );
    let message = text(input.expert_bytes_per_layer(vec![1, 2]).build());
    assert_eq!(
        message,
        "expert bytes: expected 1 entry, one per layer, found 2"
    );
}

#[test]
fn deviations_that_are_no_number() {
    for z in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
        let builder = Problem::builder(
            loads(&[&[1.0; 4]]).unwrap(),
            Cluster::new(2, 1).unwrap(),
            Slots::Same(4),
        );
        assert!(text(builder.summary(Summary::MeanPlusDeviation { z }).build()).starts_with("z: "));
    }
}

#[test]
fn sizes_beyond_any_model_are_refused_before_memory_is_asked_for() {
    let builder = |slots| {
        Problem::builder(
            loads(&[&[1.0; 4]]).unwrap(),
            Cluster::new(2, 1).unwrap(),
            Slots::Same(slots),
        )
    };
    for slots in [usize::MAX, usize::MAX - 1, 1 << 40] {
        assert!(matches!(builder(slots).build(), Err(Error::Limit { .. })));
    }
    assert!(Geometry::new(usize::MAX, 0, usize::MAX, 2).is_err());
    let limit = |error| matches!(error, Err(Error::Limit { .. }));
    assert!(limit(
        Recorder::new(Scope::Global, &[usize::MAX], 1, 1).map(|_| ())
    ));
    assert!(limit(
        hash_routed_load(&[1], &[0], 1, usize::MAX).map(|_| ())
    ));
    assert!(limit(
        LayerPlacement::new(0, &[], usize::MAX, 1).map(|_| ())
    ));
    assert!(limit(
        LayerPlacement::new(0, &[], 1, usize::MAX).map(|_| ())
    ));
    let hidden = HiddenLayers {
        count: usize::MAX,
        moe: vec![],
    };
    assert!(limit(Placement::default().to_sglang(&hidden).map(|_| ())));
}

#[test]
fn hash_tables_that_do_not_fit() {
    assert!(matches!(
        hash_routed_load(&[1, 1], &[0, 1, 2], 2, 4),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        hash_routed_load(&[1], &[], 0, 4),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        hash_routed_load(&[1], &[0], 1, 0),
        Err(Error::Empty { .. })
    ));
    assert_eq!(
        text(hash_routed_load(&[1, 1], &[0, 1, 2, 4], 2, 4)),
        "tid2eid, token 1: expert 4 is not one of the layer's 4"
    );
    assert_eq!(
        text(hash_routed_load(&[1], &[-1], 1, 4)),
        "tid2eid, token 0: expert -1 is not one of the layer's 4"
    );
    assert!(matches!(
        hash_routed_load(&[u64::MAX, u64::MAX], &[0, 0], 1, 1),
        Err(Error::LoadTooLarge { .. })
    ));
    assert!(hash_routed_load(&[1], &[0, 0], usize::MAX, 1).is_err());
}

#[test]
fn one_expert_one_slot_one_rank() {
    let problem = Problem::builder(
        loads(&[&[3.0]]).unwrap(),
        Cluster::new(1, 1).unwrap(),
        Slots::Same(1),
    )
    .build()
    .unwrap();
    for planner in [
        &Greedy as &dyn Planner,
        &Refined,
        &eplb::DeepSeek,
        &eplb::Incremental::default(),
    ] {
        let plan = planner.plan(&problem).unwrap();
        assert_eq!(
            (plan.placement.physical_to_logical_map(), plan.balancedness),
            (vec![vec![0]], 1.0)
        );
    }
}
