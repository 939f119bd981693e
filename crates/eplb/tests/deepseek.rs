//! The published DeepSeek algorithm, slot for slot.
#![allow(clippy::unwrap_used)]

use eplb::{
    Cluster, DeepSeek, Duplicates, Greedy, Loads, Placement, Planner, Problem, RetainedExpert,
    Slots,
};

fn problem(loads: &[&[f64]], slots: usize, groups: usize, nodes: usize, ranks: usize) -> Problem {
    let loads = Loads::new(loads.iter().map(|layer| layer.to_vec()).collect()).unwrap();
    Problem::builder(
        loads,
        Cluster::new(ranks, nodes).unwrap(),
        Slots::Same(slots),
    )
    .groups(groups)
    .build()
    .unwrap()
}

#[test]
fn published_example_slot_for_slot() {
    let first = [
        90.0, 132.0, 40.0, 61.0, 104.0, 165.0, 39.0, 4.0, 73.0, 56.0, 183.0, 86.0,
    ];
    let second = [
        20.0, 107.0, 104.0, 64.0, 19.0, 197.0, 187.0, 157.0, 172.0, 86.0, 16.0, 27.0,
    ];
    let plan = DeepSeek
        .plan(&problem(&[&first, &second], 16, 4, 2, 8))
        .unwrap();
    assert_eq!(
        plan.placement.physical_to_logical_map(),
        [
            [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
            [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
        ]
    );
}

/// Values computed by an array implementation of the published algorithm (float32, stable sorts)
/// that shares no code with this crate. Loads have no ties, where the published sort leaves the
/// order open.
#[test]
fn other_shapes_slot_for_slot() {
    type Case = (
        &'static str,
        &'static [f64],
        usize,
        usize,
        usize,
        usize,
        &'static [i64],
    );
    #[rustfmt::skip]
    let cases: [Case; 6] = [
        ("hierarchical", &[44.85, 26.6, 78.01, 152.26, 311.44, 111.6, 57.54, 45.62, 211.43, 512.83, 131.36, 29.13, 38.36, 495.31, 122.49, 17.69], 24, 8, 2, 4, &[3, 9, 9, 8, 0, 11, 10, 9, 9, 8, 2, 1, 4, 13, 13, 14, 7, 12, 4, 13, 13, 5, 6, 15]),
        ("global because groups do not divide by nodes", &[91.97, 31.25, 53.3, 61.38, 49.0, 173.91, 93.89, 55.46, 150.63, 229.3, 19.34, 77.36], 16, 3, 2, 8, &[6, 10, 0, 1, 5, 2, 5, 4, 11, 7, 9, 8, 9, 8, 9, 3]),
        ("one slot per rank", &[37.5, 84.1, 27.54, 102.09, 96.28, 73.76], 8, 1, 1, 8, &[0, 1, 2, 3, 4, 5, 3, 4]),
        ("groups on one node", &[35.07, 67.29, 33.58, 25.79, 125.21, 32.98, 322.29, 204.74, 13.56, 131.28, 33.23, 103.36, 104.46, 13.69, 79.18, 77.43], 20, 8, 1, 4, &[4, 7, 9, 10, 13, 6, 12, 1, 9, 8, 6, 11, 15, 0, 3, 6, 7, 14, 2, 5]),
        ("one group per node", &[261.69, 30.68, 209.18, 33.32, 71.8, 43.15, 425.77, 176.51, 1137.86, 190.01, 232.8, 231.79], 16, 2, 2, 4, &[0, 2, 4, 1, 0, 2, 5, 3, 6, 8, 11, 7, 8, 8, 10, 9]),
        ("no redundancy", &[54.52, 93.24, 385.89, 67.26, 120.78, 97.9, 183.9, 69.43, 85.87, 127.43, 110.85, 42.11], 12, 1, 1, 4, &[2, 0, 11, 6, 1, 3, 9, 5, 8, 4, 10, 7]),
    ];
    for (name, loads, slots, groups, nodes, ranks, expected) in cases {
        let plan = DeepSeek
            .plan(&problem(&[loads], slots, groups, nodes, ranks))
            .unwrap();
        assert_eq!(
            plan.placement.physical_to_logical_map(),
            [expected],
            "{name}"
        );
    }
}

#[test]
fn an_expert_twice_on_a_rank_is_reported_not_refused() {
    // One expert with nearly all load: its replicas fill both slots of some ranks.
    let input = problem(&[&[1000.0, 1.0, 1.0, 1.0]], 12, 1, 1, 4);
    let plan = DeepSeek.plan(&input).unwrap();
    assert!(!plan.duplicates.is_empty());
    for duplicate in &plan.duplicates {
        let held: Vec<_> = plan.placement.layers()[0]
            .rank(duplicate.rank)
            .flatten()
            .collect();
        let times = held
            .iter()
            .filter(|expert| expert.index() == duplicate.expert)
            .count();
        assert_eq!(times, duplicate.times);
        assert!(times > 1);
    }
    assert!(
        plan.reason.contains("more than once on a rank"),
        "{}",
        plan.reason
    );
    assert!(plan.placement.validate(&input, Duplicates::Refuse).is_err());
    assert!(Greedy.plan(&input).unwrap().duplicates.is_empty());
}

#[test]
fn equal_loads_are_placed_by_id() {
    let plan = DeepSeek.plan(&problem(&[&[5.0; 4]], 8, 1, 1, 4)).unwrap();
    // All spare slots go to the first of the largest shares, in turn: one more for each expert.
    assert_eq!(plan.placement.logical_count(), [[2, 2, 2, 2]]);
    assert_eq!(plan.placement.physical_to_logical_map()[0][..2], [0, 0]);
}

#[test]
fn dead_ranks_uneven_slots_and_speeds_are_extensions() {
    let loads = Loads::new(vec![vec![9.0, 7.0, 5.0, 3.0]]).unwrap();
    let cluster = Cluster::new(3, 1)
        .unwrap()
        .with_live(vec![true, false, true])
        .unwrap();
    let input = Problem::builder(loads.clone(), cluster, Slots::Same(9))
        .build()
        .unwrap();
    let map = DeepSeek
        .plan(&input)
        .unwrap()
        .placement
        .physical_to_logical_map();
    assert_eq!(map[0][3..6], [-1, -1, -1]);
    // Four experts on 5 slots: shares 4.5, 4.5, 7, 5, 3. Ranks have 3 and 2.
    let input = Problem::builder(loads.clone(), Cluster::new(2, 1).unwrap(), Slots::Same(5))
        .uneven(true)
        .build()
        .unwrap();
    let plan = DeepSeek.plan(&input).unwrap();
    assert_eq!(plan.placement.physical_to_logical_map(), [[1, 0, 3, 2, 0]]);
    // A rank ten times as fast takes the heaviest until it is later than the other.
    let cluster = Cluster::new(2, 1)
        .unwrap()
        .with_speeds(vec![1.0, 10.0])
        .unwrap();
    let input = Problem::builder(loads, cluster, Slots::Same(4))
        .build()
        .unwrap();
    let plan = DeepSeek.plan(&input).unwrap();
    assert_eq!(plan.placement.physical_to_logical_map(), [[0, 3, 1, 2]]);
}

#[test]
fn validate_accepts_the_published_maps_of_a_given_placement() {
    let input = problem(&[&[4.0, 3.0, 2.0, 1.0]], 4, 1, 1, 2);
    let map = vec![
        [0, 3, 1, 2]
            .map(|expert| Some(RetainedExpert(expert)))
            .to_vec(),
    ];
    let placement = Placement::from_physical_to_logical(&map, &[4], 2).unwrap();
    assert_eq!(placement.validate(&input, Duplicates::Refuse), Ok(vec![]));
    assert_eq!(DeepSeek.plan(&input).unwrap().placement, placement);
}
