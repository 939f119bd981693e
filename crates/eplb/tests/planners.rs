//! What all planners take and promise.
#![allow(clippy::unwrap_used)]

use eplb::synthetic::{Generator, Shape};
use eplb::{
    BoundKind, Cluster, DeepSeek, Greedy, Incremental, Loads, Plan, Planner, Problem, Refined,
    RetainedExpert, Slots, Summary, hash_routed_load,
};

fn all() -> [&'static dyn Planner; 4] {
    const INCREMENTAL: Incremental = Incremental {
        max_moves: None,
        max_bytes: None,
        costs: eplb::MoveCosts {
            cross_rank: 0.0,
            intra_node: 0.0,
            inter_node: 0.0,
        },
        minimum_gain: 0.01,
    };
    [&DeepSeek, &Greedy, &Refined, &INCREMENTAL]
}

fn loads(layers: &[&[f64]]) -> Loads {
    Loads::new(layers.iter().map(|layer| layer.to_vec()).collect()).unwrap()
}

fn simple(layers: &[&[f64]], slots: usize, ranks: usize) -> Problem {
    Problem::builder(
        loads(layers),
        Cluster::new(ranks, 1).unwrap(),
        Slots::Same(slots),
    )
    .build()
    .unwrap()
}

/// The largest rank load of a plan, from its public maps alone.
fn maximum(plan: &Plan, layer: usize, weights: &[f64], speeds: &[f64]) -> f64 {
    let map = &plan.placement.physical_to_logical_map()[layer];
    let mut counts = vec![0.0; weights.len()];
    for expert in map.iter().filter(|expert| **expert >= 0) {
        counts[*expert as usize] += 1.0;
    }
    let placed = &plan.placement.layers()[layer];
    (0..placed.ranks())
        .map(|rank| {
            placed
                .rank(rank)
                .flatten()
                .map(|e| weights[e.index()] / counts[e.index()])
                .sum::<f64>()
                / speeds[rank]
        })
        .fold(0.0, f64::max)
}

const TWO_POPULAR: [f64; 8] = [600.0, 560.0, 120.0, 120.0, 20.0, 10.0, 10.0, 10.0];

#[test]
fn refined_finds_the_optimum_that_greedy_misses() {
    let problem = simple(&[&TWO_POPULAR], 16, 8);
    let (greedy, refined) = (
        Greedy.plan(&problem).unwrap(),
        Refined.plan(&problem).unwrap(),
    );
    assert!((maximum(&greedy, 0, &TWO_POPULAR, &[1.0; 8]) - 232.0).abs() < 1e-9);
    assert!((maximum(&refined, 0, &TWO_POPULAR, &[1.0; 8]) - 590.0 / 3.0).abs() < 1e-9);
    assert!((refined.layers[0].maximum - 590.0 / 3.0).abs() < 1e-9);
}

/// Smallest largest rank load over all placements of distinct experts on ranks, by enumeration of
/// the ranks' contents.
fn exhaustive(weights: &[f64], per_rank: usize, ranks: usize) -> f64 {
    fn go(
        sets: &[u32],
        from: usize,
        ranks: usize,
        chosen: &mut Vec<u32>,
        weights: &[f64],
        best: &mut f64,
    ) {
        if ranks == 0 {
            let holders = |e: usize| chosen.iter().filter(|set| **set >> e & 1 == 1).count() as f64;
            let shares: Vec<f64> = weights
                .iter()
                .enumerate()
                .map(|(e, weight)| weight / holders(e))
                .collect();
            if shares.iter().all(|share| share.is_finite()) {
                let load = |set: &u32| {
                    (0..weights.len())
                        .filter(|e| set >> e & 1 == 1)
                        .map(|e| shares[e])
                        .sum()
                };
                *best = best.min(chosen.iter().map(load).fold(0.0, f64::max));
            }
            return;
        }
        for index in from..sets.len() {
            chosen.push(sets[index]);
            go(sets, index, ranks - 1, chosen, weights, best);
            chosen.pop();
        }
    }
    let sets: Vec<u32> = (0..1 << weights.len())
        .filter(|set: &u32| set.count_ones() as usize == per_rank)
        .collect();
    let mut best = f64::INFINITY;
    go(&sets, 0, ranks, &mut Vec::new(), weights, &mut best);
    best
}

#[test]
fn exhaustive_search_agrees_on_the_golden_optimum() {
    assert!((exhaustive(&TWO_POPULAR, 2, 8) - 590.0 / 3.0).abs() < 1e-9);
}

#[test]
fn refined_equals_exhaustive_search_on_small_layers() {
    let mut generator = Generator::new(3);
    for (experts, per_rank, ranks) in [
        (4, 2, 3),
        (5, 2, 4),
        (6, 3, 3),
        (6, 2, 5),
        (7, 3, 3),
        (8, 3, 4),
        (5, 1, 6),
    ] {
        for case in 0..12 {
            let shape = match case % 3 {
                0 => Shape::Lognormal { sigma: 1.0 },
                1 => Shape::Zipf { exponent: 1.2 },
                _ => Shape::Dirichlet { concentration: 0.3 },
            };
            let weights = generator.layer(experts, shape);
            let problem = simple(&[&weights], per_rank * ranks, ranks);
            let optimum = exhaustive(&weights, per_rank, ranks);
            let bound = problem.lower_bound(0).unwrap().value;
            assert!(
                bound <= optimum * (1.0 + 1e-12),
                "bound {bound} above the optimum {optimum}"
            );
            let refined = Refined.plan(&problem).unwrap();
            let found = maximum(&refined, 0, &weights, &vec![1.0; ranks]);
            // It stops early only within 0.1 % of the bound.
            let enough = (optimum * (1.0 + 1e-9)).max(bound * 1.001);
            assert!(
                found <= enough,
                "{experts} experts, {per_rank} slots on {ranks} ranks: {found}, optimum {optimum}"
            );
            let greedy = maximum(
                &Greedy.plan(&problem).unwrap(),
                0,
                &weights,
                &vec![1.0; ranks],
            );
            assert!(greedy >= optimum * (1.0 - 1e-9) && found <= greedy);
        }
    }
}

#[test]
fn the_bound_says_which_one_it_is() {
    // Σw/G = 25, and no expert is above that.
    assert_eq!(
        simple(&[&[25.0; 4]], 4, 4).lower_bound(0).unwrap().kind,
        BoundKind::MeanRankLoad
    );
    // One expert has 90 of 93 and one spare slot: 45 on some rank; the mean is 23.25.
    let bound = simple(&[&[90.0, 1.0, 1.0, 1.0]], 5, 5)
        .lower_bound(0)
        .unwrap();
    assert_eq!((bound.kind, bound.value), (BoundKind::LargestReplica, 45.0));
    // Two groups on two nodes, one of them with all load: its node's 2 ranks carry 40 of 40.
    let problem = Problem::builder(
        loads(&[&[20.0, 20.0, 0.0, 0.0]]),
        Cluster::new(4, 2).unwrap(),
        Slots::Same(8),
    );
    let bound = problem.groups(2).build().unwrap().lower_bound(0).unwrap();
    assert_eq!((bound.kind, bound.value), (BoundKind::NodeLimit, 20.0));
}

#[test]
fn a_plan_states_balancedness_bound_gap_and_reason() {
    // Two layers; ranks of the first carry 6 and 4, of the second 5 and 5.
    let problem = simple(&[&[6.0, 4.0], &[5.0, 5.0]], 2, 2);
    let plan = Refined.plan(&problem).unwrap();
    assert_eq!(plan.layers[0].rank_loads, [6.0, 4.0]);
    assert!((plan.balancedness - 10.0 / 11.0).abs() < 1e-12);
    let worst = plan.worst_layer.unwrap();
    assert_eq!(worst.layer, 0);
    assert!((worst.balancedness - 5.0 / 6.0).abs() < 1e-12);
    // The heaviest expert bounds the first layer.
    assert_eq!(
        (
            plan.layers[0].lower_bound.value,
            plan.layers[0].lower_bound.kind
        ),
        (6.0, BoundKind::LargestReplica)
    );
    assert_eq!(
        (plan.lower_bound, plan.gap, plan.moves, plan.bytes),
        (11.0, 0.0, 0, 0)
    );
    assert!(
        plan.reason
            .contains("mean rank load in 1, largest replica in 1 of 2 layers"),
        "{}",
        plan.reason
    );
}

#[test]
fn greedy_keeps_replicas_of_an_expert_on_different_ranks() {
    let mut generator = Generator::new(8);
    for _ in 0..20 {
        let weights = generator.layer(16, Shape::Zipf { exponent: 2.0 });
        let plan = Greedy.plan(&simple(&[&weights], 32, 8)).unwrap();
        for rank in 0..8 {
            let mut held: Vec<_> = plan.placement.layers()[0].rank(rank).flatten().collect();
            held.sort_unstable();
            held.dedup();
            assert_eq!(held.len(), 4);
        }
    }
}

#[test]
fn more_slots_than_distinct_experts_per_rank_are_filled() {
    // Two experts, three slots on each of two ranks: each rank must hold one of them twice.
    for planner in all() {
        let plan = planner.plan(&simple(&[&[8.0, 2.0]], 6, 2)).unwrap();
        assert_eq!(
            plan.placement.logical_count()[0].iter().sum::<usize>(),
            6,
            "{}",
            planner.name()
        );
    }
    let plan = Refined.plan(&simple(&[&[8.0, 2.0]], 6, 2)).unwrap();
    assert_eq!(plan.duplicates.len(), 2);
    assert_eq!(plan.layers[0].rank_loads, [5.0, 5.0]);
}

#[test]
fn several_windows_count_by_mean_and_deviation() {
    // Expert 0: 10 and 10. Expert 1: 0 and 16, mean 8, deviation 8.
    let windows = Loads::from_windows(vec![vec![vec![10.0, 0.0]], vec![vec![10.0, 16.0]]]).unwrap();
    let build = |summary| {
        Problem::builder(windows.clone(), Cluster::new(3, 1).unwrap(), Slots::Same(3))
            .summary(summary)
            .build()
            .unwrap()
    };
    let mean = build(Summary::Mean);
    assert_eq!(mean.weights(0).unwrap(), [10.0, 8.0]);
    let cautious = build(Summary::MeanPlusDeviation { z: 0.5 });
    assert_eq!(cautious.weights(0).unwrap(), [10.0, 12.0]);
    // The spare slot goes to the expert that counts for more.
    for planner in all() {
        assert_eq!(
            planner.plan(&mean).unwrap().placement.logical_count(),
            [[2, 1]],
            "{}",
            planner.name()
        );
        assert_eq!(
            planner.plan(&cautious).unwrap().placement.logical_count(),
            [[1, 2]],
            "{}",
            planner.name()
        );
    }
}

#[test]
fn zero_redundancy_is_a_permutation() {
    let mut generator = Generator::new(9);
    let weights = generator.layer(32, Shape::Lognormal { sigma: 1.0 });
    for planner in all() {
        let plan = planner.plan(&simple(&[&weights], 32, 8)).unwrap();
        let mut experts = plan.placement.physical_to_logical_map().remove(0);
        experts.sort_unstable();
        assert_eq!(experts, (0..32).collect::<Vec<_>>(), "{}", planner.name());
    }
}

#[test]
fn faster_ranks_carry_more() {
    let speeds = vec![1.0, 1.0, 2.0, 4.0];
    let mut generator = Generator::new(10);
    let weights = generator.layer(32, Shape::Lognormal { sigma: 0.5 });
    let cluster = Cluster::new(4, 1)
        .unwrap()
        .with_speeds(speeds.clone())
        .unwrap();
    let problem = Problem::builder(loads(&[&weights]), cluster, Slots::Same(48))
        .build()
        .unwrap();
    let mean = weights.iter().sum::<f64>() / 8.0;
    assert!((problem.lower_bound(0).unwrap().value - mean).abs() < 1e-12);
    for planner in all() {
        let plan = planner.plan(&problem).unwrap();
        let reported = plan.layers[0].maximum;
        assert!(
            (maximum(&plan, 0, &weights, &speeds) - reported).abs() < 1e-9,
            "{}",
            planner.name()
        );
        assert!(reported >= mean);
    }
    let refined = Refined.plan(&problem).unwrap();
    // Slots are equal, so the fastest rank cannot carry four times as much; it carries the most.
    let work: Vec<f64> = refined.layers[0]
        .rank_loads
        .iter()
        .zip(&speeds)
        .map(|(time, speed)| time * speed)
        .collect();
    assert!(
        work[3] > work[2] && work[2] > work[0] && work[2] > work[1],
        "{work:?}"
    );
    assert!(refined.layers[0].maximum < Greedy.plan(&problem).unwrap().layers[0].maximum);
}

#[test]
fn speeds_are_optimal_on_a_case_that_can_be_enumerated() {
    // Four experts on two ranks with two slots each; the second rank is three times as fast. Pairs
    // on the first rank: 3+2 is the lightest.
    let weights = [9.0, 7.0, 3.0, 2.0];
    let cluster = Cluster::new(2, 1)
        .unwrap()
        .with_speeds(vec![1.0, 3.0])
        .unwrap();
    let problem = Problem::builder(loads(&[&weights]), cluster, Slots::Same(4))
        .build()
        .unwrap();
    let plan = Refined.plan(&problem).unwrap();
    assert_eq!(plan.placement.physical_to_logical_map(), [[2, 3, 0, 1]]);
    assert!((plan.layers[0].maximum - 16.0 / 3.0).abs() < 1e-12);
}

#[test]
fn dead_ranks_hold_nothing_and_do_not_count() {
    let mut generator = Generator::new(13);
    let weights = generator.layer(16, Shape::Lognormal { sigma: 1.0 });
    let cluster = Cluster::new(4, 1)
        .unwrap()
        .with_live(vec![true, true, false, true])
        .unwrap();
    let problem = Problem::builder(loads(&[&weights]), cluster, Slots::Same(24))
        .build()
        .unwrap();
    for planner in all() {
        let plan = planner.plan(&problem).unwrap();
        assert_eq!(
            plan.placement.physical_to_logical_map()[0][12..18],
            [-1; 6],
            "{}",
            planner.name()
        );
        assert_eq!(plan.layers[0].rank_loads[2], 0.0);
        let mean = weights.iter().sum::<f64>() / 3.0;
        assert!((plan.layers[0].mean - mean).abs() < 1e-12);
    }
}

#[test]
fn uneven_slots_give_the_first_ranks_one_more() {
    let mut generator = Generator::new(14);
    let weights = generator.layer(10, Shape::Lognormal { sigma: 1.0 });
    let builder = Problem::builder(
        loads(&[&weights]),
        Cluster::new(4, 1).unwrap(),
        Slots::Same(14),
    )
    .uneven(true);
    let problem = builder.build().unwrap();
    for planner in all() {
        let plan = planner.plan(&problem).unwrap();
        let sizes: Vec<usize> = (0..4)
            .map(|rank| plan.placement.layers()[0].rank(rank).count())
            .collect();
        assert_eq!(sizes, [4, 4, 3, 3], "{}", planner.name());
    }
}

#[test]
fn layers_with_different_numbers_of_experts_and_slots() {
    let layers: [&[f64]; 3] = [
        &[9.0, 1.0, 1.0, 1.0],
        &[5.0, 4.0, 3.0, 2.0, 1.0, 1.0],
        &[7.0, 7.0],
    ];
    let slots = Slots::PerLayer(vec![6, 8, 4]);
    let problem = Problem::builder(loads(&layers), Cluster::new(2, 1).unwrap(), slots)
        .build()
        .unwrap();
    for planner in all() {
        let plan = planner.plan(&problem).unwrap();
        let counts = plan.placement.logical_count();
        let shape: Vec<(usize, usize)> = counts
            .iter()
            .map(|layer| (layer.len(), layer.iter().sum()))
            .collect();
        assert_eq!(shape, [(4, 6), (6, 8), (2, 4)], "{}", planner.name());
    }
}

#[test]
fn expert_groups_stay_on_nodes() {
    let mut generator = Generator::new(15);
    let weights = generator.layer(64, Shape::Lognormal { sigma: 1.0 });
    let builder = Problem::builder(
        loads(&[&weights]),
        Cluster::new(8, 4).unwrap(),
        Slots::Same(80),
    )
    .groups(8);
    let problem = builder.build().unwrap();
    assert!(problem.hierarchical(0));
    for planner in [&Greedy as &dyn Planner, &Refined, &DeepSeek] {
        let plan = planner.plan(&problem).unwrap();
        for group in 0..8 {
            let mut nodes: Vec<usize> = (0..8)
                .flat_map(|rank| {
                    plan.placement.layers()[0]
                        .rank(rank)
                        .flatten()
                        .map(move |e| (rank / 2, e.index() / 8))
                })
                .filter(|(_, of)| *of == group)
                .map(|(node, _)| node)
                .collect();
            nodes.dedup();
            assert_eq!(
                nodes.len(),
                1,
                "{}: group {group} is on nodes {nodes:?}",
                planner.name()
            );
        }
        assert!(
            plan.reason
                .contains("expert groups kept on nodes in 1 layer"),
            "{}",
            plan.reason
        );
    }
}

#[test]
fn groups_that_do_not_divide_by_nodes_go_anywhere_and_the_plan_says_so() {
    let builder = Problem::builder(
        loads(&[&[1.0; 12]]),
        Cluster::new(8, 4).unwrap(),
        Slots::Same(16),
    )
    .groups(6);
    let problem = builder.build().unwrap();
    assert!(!problem.hierarchical(0));
    let reason = Refined.plan(&problem).unwrap().reason;
    assert!(
        reason.contains("6 expert groups do not divide by 4 nodes"),
        "{reason}"
    );
}

#[test]
fn a_node_without_room_for_its_groups_opens_the_others() {
    let cluster = Cluster::new(4, 2)
        .unwrap()
        .with_live(vec![true, false, true, true])
        .unwrap();
    let builder = Problem::builder(loads(&[&[1.0; 8]]), cluster, Slots::Same(12)).groups(2);
    let problem = builder.build().unwrap();
    let reason = Greedy.plan(&problem).unwrap().reason;
    assert!(
        reason.contains("node 0 has 3 live slots for the 4 experts of its groups"),
        "{reason}"
    );
}

#[test]
fn without_load_replicas_are_even() {
    for planner in all() {
        let plan = planner.plan(&simple(&[&[0.0; 6]], 16, 8)).unwrap();
        let counts = plan.placement.logical_count().remove(0);
        assert!(
            counts.iter().all(|count| (2..=3).contains(count)),
            "{}: {counts:?}",
            planner.name()
        );
        assert_eq!((plan.balancedness, plan.gap), (1.0, 0.0));
        assert!(
            plan.reason
                .contains("1 layer without load given even replicas"),
            "{}",
            plan.reason
        );
    }
}

#[test]
fn without_load_the_current_placement_stays() {
    let current = Refined
        .plan(&simple(&[&[9.0, 5.0, 1.0, 1.0]], 8, 4))
        .unwrap()
        .placement;
    let builder = Problem::builder(
        loads(&[&[0.0; 4]]),
        Cluster::new(4, 1).unwrap(),
        Slots::Same(8),
    );
    let problem = builder.current(current.clone()).build().unwrap();
    for planner in all() {
        let plan = planner.plan(&problem).unwrap();
        assert_eq!(plan.placement, current, "{}", planner.name());
        assert_eq!(plan.moves, 0);
    }
}

#[test]
fn no_layers_is_a_valid_stage() {
    for planner in all() {
        let plan = planner.plan(&simple(&[], 8, 4)).unwrap();
        assert_eq!(
            (plan.layers.len(), plan.balancedness, plan.worst_layer),
            (0, 1.0, None)
        );
        assert!(plan.reason.contains("no MoE layers"), "{}", plan.reason);
    }
}

#[test]
fn hash_routed_layers_get_their_expected_load() {
    // Token 0 occurs 5 times and goes to experts 0 and 2; token 1, 7 times, to 2 twice; token 2
    // never occurs.
    let load = hash_routed_load(&[5, 7, 0], &[0, 2, 2, 2, 1, 3], 2, 4).unwrap();
    assert_eq!(load, [5.0, 0.0, 19.0, 0.0]);
    let plan = Refined.plan(&simple(&[&load], 6, 6)).unwrap();
    assert_eq!(plan.placement.logical_count(), [[1, 1, 3, 1]]);
}

#[test]
fn the_same_input_gives_the_same_plan() {
    let mut generator = Generator::new(16);
    let weights: Vec<Vec<f64>> = generator.window(4, 64, Shape::Zipf { exponent: 1.2 });
    let build = || {
        let loads = Loads::new(weights.clone()).unwrap();
        Problem::builder(loads, Cluster::new(16, 2).unwrap(), Slots::Same(80))
            .groups(4)
            .build()
            .unwrap()
    };
    for planner in all() {
        assert_eq!(
            planner.plan(&build()).unwrap(),
            planner.plan(&build()).unwrap(),
            "{}",
            planner.name()
        );
    }
}

#[test]
fn equal_loads_go_to_the_lowest_ids() {
    let plan = Greedy.plan(&simple(&[&[3.0; 4]], 6, 3)).unwrap();
    assert_eq!(plan.placement.logical_count(), [[2, 2, 1, 1]]);
}

#[test]
fn a_fresh_plan_keeps_what_it_can_of_the_current_one() {
    let mut generator = Generator::new(17);
    let before = generator.window(1, 64, Shape::Lognormal { sigma: 1.0 });
    let cluster = Cluster::new(8, 1).unwrap();
    let build = |loads: Vec<Vec<f64>>| {
        Problem::builder(Loads::new(loads).unwrap(), cluster.clone(), Slots::Same(80))
            .expert_bytes(1000)
    };
    let current = Refined
        .plan(&build(before.clone()).build().unwrap())
        .unwrap();
    // The same loads again: nothing moves, slot for slot.
    let again = Refined
        .plan(
            &build(before.clone())
                .current(current.placement.clone())
                .build()
                .unwrap(),
        )
        .unwrap();
    assert_eq!((again.moves, &again.placement), (0, &current.placement));
    // Other loads: contents go to the ranks that hold most of them, which is fewer moves than ranks
    // in planned order.
    let after = generator.drift(&before, 0.3);
    let aware = Refined
        .plan(
            &build(after.clone())
                .current(current.placement.clone())
                .build()
                .unwrap(),
        )
        .unwrap();
    let unaware = Refined.plan(&build(after).build().unwrap()).unwrap();
    let arrivals = |plan: &Plan| -> usize {
        (0..8)
            .map(|rank| {
                let held: Vec<_> = current.placement.layers()[0].rank(rank).collect();
                plan.placement.layers()[0]
                    .rank(rank)
                    .filter(|expert| !held.contains(expert))
                    .count()
            })
            .sum()
    };
    assert_eq!(aware.moves, arrivals(&aware));
    assert_eq!(aware.bytes, 1000 * aware.moves as u64);
    assert!(aware.moves < arrivals(&unaware));
    let (aware, unaware) = (aware.layers[0].maximum, unaware.layers[0].maximum);
    assert!((aware / unaware - 1.0).abs() < 1e-12);
}

#[test]
fn keeping_experts_in_place_costs_no_balance() {
    // Ranks differ in speed, in slots and in node, so contents cannot go to just any rank.
    let mut generator = Generator::new(18);
    let before = generator.window(3, 64, Shape::Lognormal { sigma: 1.0 });
    let after = generator.drift(&before, 0.5);
    let speeds = vec![1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 3.0, 1.0];
    for (nodes, groups, slots) in [(1, 1, 83), (2, 4, 83), (4, 8, 80)] {
        let build = |loads: &Vec<Vec<f64>>| {
            let cluster = Cluster::new(8, nodes)
                .unwrap()
                .with_speeds(speeds.clone())
                .unwrap();
            Problem::builder(
                Loads::new(loads.clone()).unwrap(),
                cluster,
                Slots::Same(slots),
            )
            .groups(groups)
            .uneven(true)
        };
        let current = Refined.plan(&build(&before).build().unwrap()).unwrap();
        let problem = build(&after).current(current.placement).build().unwrap();
        let aware = Refined.plan(&problem).unwrap();
        let unaware = Refined.plan(&build(&after).build().unwrap()).unwrap();
        for layer in aware.placement.layers() {
            let node = |slot| layer.rank_of(slot).unwrap() / (8 / nodes);
            for expert in 0..64 {
                let first = RetainedExpert((expert / (64 / groups) * (64 / groups)) as u32);
                let home = node(layer.replicas(first).next().unwrap());
                let mut replicas = layer.replicas(RetainedExpert(expert as u32));
                assert!(groups == 1 || replicas.all(|slot| node(slot) == home));
            }
        }
        for (aware, unaware) in aware.layers.iter().zip(&unaware.layers) {
            assert!((aware.maximum / unaware.maximum - 1.0).abs() < 1e-12);
        }
    }
}
