//! Planning from the placement that is there.
#![allow(clippy::unwrap_used)]

use eplb::synthetic::{Generator, Shape};
use eplb::{
    Cluster, DeepSeek, Duplicates, Error, Incremental, Loads, MoveCosts, Placement, Plan, Planner,
    Problem, ProblemBuilder, Refined, RetainedExpert, Slots,
};

struct Drift {
    current: Plan,
    after: Vec<Vec<f64>>,
    cluster: Cluster,
}

fn drift(seed: u64, layers: usize) -> Drift {
    let mut generator = Generator::new(seed);
    let before = generator.window(layers, 64, Shape::Lognormal { sigma: 1.0 });
    let after = generator.drift(&before, 0.5);
    let cluster = Cluster::new(8, 2).unwrap();
    let loads = Loads::new(before).unwrap();
    let problem = Problem::builder(loads, cluster.clone(), Slots::Same(80))
        .build()
        .unwrap();
    Drift {
        current: Refined.plan(&problem).unwrap(),
        after,
        cluster,
    }
}

impl Drift {
    fn builder(&self) -> ProblemBuilder {
        Problem::builder(
            Loads::new(self.after.clone()).unwrap(),
            self.cluster.clone(),
            Slots::Same(80),
        )
        .current(self.current.placement.clone())
        .expert_bytes(10)
    }
}

fn with_moves(max_moves: usize) -> Incremental {
    Incremental {
        max_moves: Some(max_moves),
        ..Incremental::default()
    }
}

#[test]
fn budgets_of_moves_and_bytes_hold_and_more_buys_more() {
    let drift = drift(1, 6);
    let problem = drift.builder().build().unwrap();
    let mut last = f64::INFINITY;
    for budget in [0, 5, 20, 60, 200] {
        let plan = with_moves(budget).plan(&problem).unwrap();
        assert!(plan.moves <= budget);
        let total: f64 = plan.layers.iter().map(|layer| layer.maximum).sum();
        assert!(
            total <= last,
            "a budget of {budget} is worse than a smaller one"
        );
        last = total;
        let by_bytes = Incremental {
            max_bytes: Some(10 * budget as u64),
            ..Incremental::default()
        };
        let plan = by_bytes.plan(&problem).unwrap();
        assert!(plan.bytes <= 10 * budget as u64);
    }
    assert!(
        last < drift
            .builder()
            .build()
            .unwrap()
            .lower_bound(0)
            .unwrap()
            .value
            * 6.0
            * 1.5
    );
}

#[test]
fn no_move_at_all_unless_the_gain_pays() {
    let drift = drift(2, 3);
    let problem = drift.builder().build().unwrap();
    let greedy_for_gain = Incremental {
        minimum_gain: 0.9,
        ..Incremental::default()
    };
    let dear = Incremental {
        costs: MoveCosts {
            cross_rank: 1e6,
            ..MoveCosts::default()
        },
        minimum_gain: 0.0,
        ..Incremental::default()
    };
    for planner in [greedy_for_gain, dear, with_moves(0)] {
        let plan = planner.plan(&problem).unwrap();
        assert_eq!(plan.moves, 0);
        assert_eq!(plan.placement, drift.current.placement);
        assert!(plan.reason.contains("no change pays"), "{}", plan.reason);
    }
    assert!(Incremental::default().plan(&problem).unwrap().moves > 0);
}

#[test]
fn a_balanced_placement_stays_as_it_is() {
    let mut generator = Generator::new(3);
    let before = generator.window(2, 64, Shape::Lognormal { sigma: 1.0 });
    let cluster = Cluster::new(8, 1).unwrap();
    let build = || {
        Problem::builder(
            Loads::new(before.clone()).unwrap(),
            cluster.clone(),
            Slots::Same(80),
        )
    };
    let current = Refined.plan(&build().build().unwrap()).unwrap().placement;
    let plan = Incremental::default()
        .plan(&build().current(current.clone()).build().unwrap())
        .unwrap();
    assert_eq!(plan.placement, current);
}

#[test]
fn slots_that_need_not_move_are_kept() {
    let drift = drift(4, 4);
    let plan = with_moves(20)
        .plan(&drift.builder().build().unwrap())
        .unwrap();
    let changed: usize = plan
        .placement
        .physical_to_logical_map()
        .iter()
        .flatten()
        .zip(
            drift
                .current
                .placement
                .physical_to_logical_map()
                .iter()
                .flatten(),
        )
        .filter(|(after, before)| after != before)
        .count();
    assert_eq!(changed, plan.moves);
    assert!(changed > 0 && changed <= 20);
}

#[test]
fn moves_within_a_node_are_preferred_when_others_cost_more() {
    let drift = drift(5, 6);
    let problem = drift.builder().build().unwrap();
    let between_nodes = |plan: &Plan| -> usize {
        let holders = |layer: usize, expert: RetainedExpert, node: usize| {
            let placed = &drift.current.placement.layers()[layer];
            placed
                .replicas(expert)
                .any(|slot| placed.rank_of(slot).unwrap() / 4 == node)
        };
        plan.placement
            .layers()
            .iter()
            .enumerate()
            .map(|(layer, placed)| {
                let before = &drift.current.placement.layers()[layer];
                (0..8)
                    .flat_map(|rank| {
                        let held: Vec<_> = before.rank(rank).flatten().collect();
                        placed
                            .rank(rank)
                            .flatten()
                            .filter(move |e| !held.contains(e))
                            .map(move |e| (rank / 4, e))
                    })
                    .filter(|(node, expert)| !holders(layer, *expert, *node))
                    .count()
            })
            .sum()
    };
    let free = Incremental::default().plan(&problem).unwrap();
    let costs = MoveCosts {
        inter_node: 0.5,
        ..MoveCosts::default()
    };
    let near = Incremental {
        costs,
        ..Incremental::default()
    }
    .plan(&problem)
    .unwrap();
    assert!(near.moves > 0);
    assert!(
        between_nodes(&near) < between_nodes(&free),
        "{} and {}",
        between_nodes(&near),
        between_nodes(&free)
    );
}

#[test]
fn a_single_replacement_is_found() {
    // Expert 0 became heavy. Its second replica is worth the slot of expert 3's second one: 1 move,
    // 12+1 becomes 7.
    let map = [0, 1, 2, 3, 3, 1].map(|expert| Some(RetainedExpert(expert)));
    let current = Placement::from_physical_to_logical(&[map.to_vec()], &[4], 3).unwrap();
    let loads = Loads::new(vec![vec![12.0, 2.0, 4.0, 2.0]]).unwrap();
    let problem = Problem::builder(loads, Cluster::new(3, 1).unwrap(), Slots::Same(6))
        .current(current)
        .build()
        .unwrap();
    let plan = with_moves(1).plan(&problem).unwrap();
    assert_eq!(plan.layers[0].maximum_before, Some(13.0));
    assert_eq!((plan.moves, plan.layers[0].maximum), (1, 7.0));
    assert_eq!(
        plan.placement.physical_to_logical_map(),
        [[0, 1, 2, 3, 0, 1]]
    );
    assert_eq!(plan.peak_extra_bytes, [0, 0, 0]);
}

#[test]
fn a_dead_rank_is_emptied_and_its_experts_stay_present() {
    // Experts 2 and 3 are on rank 1 and elsewhere; rank 1 dies.
    let map = [0, 1, 2, 3, 2, 3].map(|expert| Some(RetainedExpert(expert)));
    let current = Placement::from_physical_to_logical(&[map.to_vec()], &[4], 3).unwrap();
    let build = |live: [bool; 3]| {
        let cluster = Cluster::new(3, 1)
            .unwrap()
            .with_live(live.to_vec())
            .unwrap();
        let loads = Loads::new(vec![vec![1.0, 1.0, 1.0, 1.0]]).unwrap();
        Problem::builder(loads, cluster, Slots::Same(6)).current(current.clone())
    };
    let plan = with_moves(0)
        .plan(&build([true, false, true]).build().unwrap())
        .unwrap();
    assert_eq!(
        plan.placement.physical_to_logical_map(),
        [[0, 1, -1, -1, 2, 3]]
    );
    // What was left carried the same: each expert on one live rank.
    assert_eq!(plan.layers[0].rank_loads_before, Some(vec![2.0, 0.0, 2.0]));
    // Rank 0 dies, and with it the only replicas of experts 0 and 1.
    let lost = build([false, true, true]);
    assert_eq!(
        Incremental::default().plan(&lost.clone().build().unwrap()),
        Err(Error::NoSource {
            layer: 0,
            expert: 0,
            rank: 1
        })
    );
    let lost = lost.reload(true).build().unwrap();
    let plan = Incremental::default().plan(&lost).unwrap();
    assert_eq!(plan.moves, 2);
    assert!(
        plan.reason.contains("2 moves keep every expert present"),
        "{}",
        plan.reason
    );
    assert_eq!(
        with_moves(1).plan(&lost),
        Err(Error::Budget {
            needed: 2,
            unit: "move",
            budget: 1
        })
    );
    let few_bytes = Incremental {
        max_bytes: Some(0),
        ..Incremental::default()
    };
    let with_bytes = build([false, true, true])
        .reload(true)
        .expert_bytes(7)
        .build()
        .unwrap();
    assert_eq!(
        few_bytes.plan(&with_bytes),
        Err(Error::Budget {
            needed: 14,
            unit: "byte",
            budget: 0
        })
    );
}

#[test]
fn a_rank_that_came_back_is_filled() {
    let map =
        [Some(0), Some(1), None, None, Some(2), Some(3)].map(|expert| expert.map(RetainedExpert));
    let current = Placement::from_physical_to_logical(&[map.to_vec()], &[4], 3).unwrap();
    let loads = Loads::new(vec![vec![8.0, 2.0, 6.0, 1.0]]).unwrap();
    let problem = Problem::builder(loads, Cluster::new(3, 1).unwrap(), Slots::Same(6))
        .current(current)
        .build()
        .unwrap();
    let plan = with_moves(2).plan(&problem).unwrap();
    // Of the six pairs that rank 1 could hold, 0 and 3 leave the smallest maximum: 6, 4.5 and 6.5.
    assert_eq!(
        plan.placement.physical_to_logical_map(),
        [[0, 1, 0, 3, 2, 3]]
    );
    assert_eq!(
        (plan.moves, plan.layers[0].rank_loads.clone()),
        (2, vec![6.0, 4.5, 6.5])
    );
}

#[test]
fn groups_that_are_on_nodes_stay_there() {
    let mut generator = Generator::new(6);
    let before = generator.window(3, 64, Shape::Lognormal { sigma: 1.0 });
    let after = generator.drift(&before, 0.5);
    let build = |loads: Vec<Vec<f64>>| {
        Problem::builder(
            Loads::new(loads).unwrap(),
            Cluster::new(8, 2).unwrap(),
            Slots::Same(80),
        )
        .groups(4)
    };
    let current = Refined
        .plan(&build(before).build().unwrap())
        .unwrap()
        .placement;
    let nodes = |placement: &Placement| -> Vec<Vec<usize>> {
        let of = |layer: &eplb::LayerPlacement, group: usize| {
            let expert = RetainedExpert(16 * group as u32);
            layer
                .rank_of(layer.replicas(expert).next().unwrap())
                .unwrap()
                / 4
        };
        placement
            .layers()
            .iter()
            .map(|layer| (0..4).map(|group| of(layer, group)).collect())
            .collect()
    };
    let plan = with_moves(60)
        .plan(&build(after).current(current.clone()).build().unwrap())
        .unwrap();
    assert!(plan.moves > 0);
    assert_eq!(nodes(&plan.placement), nodes(&current));
    for layer in plan.placement.layers() {
        for expert in 0..64 {
            let group_node = layer
                .rank_of(
                    layer
                        .replicas(RetainedExpert(expert / 16 * 16))
                        .next()
                        .unwrap(),
                )
                .unwrap()
                / 4;
            assert!(
                layer
                    .replicas(RetainedExpert(expert))
                    .all(|slot| layer.rank_of(slot).unwrap() / 4 == group_node)
            );
        }
    }
}

#[test]
fn duplicates_of_a_deepseek_placement_may_stay_and_none_are_added() {
    let mut generator = Generator::new(7);
    let before = generator.window(2, 16, Shape::Zipf { exponent: 1.5 });
    let after = generator.drift(&before, 0.5);
    let build = |loads: Vec<Vec<f64>>| {
        Problem::builder(
            Loads::new(loads).unwrap(),
            Cluster::new(8, 1).unwrap(),
            Slots::Same(24),
        )
    };
    let current = DeepSeek.plan(&build(before).build().unwrap()).unwrap();
    assert!(!current.duplicates.is_empty());
    let problem = build(after)
        .current(current.placement.clone())
        .build()
        .unwrap();
    for budget in [0, 4, 100] {
        let plan = with_moves(budget).plan(&problem).unwrap();
        assert!(plan.moves <= budget);
        assert!(plan.duplicates.len() <= current.duplicates.len());
        assert!(
            plan.layers
                .iter()
                .all(|layer| layer.maximum <= layer.maximum_before.unwrap() * (1.0 + 1e-12))
        );
    }
}

#[test]
fn without_a_current_placement_it_is_refined() {
    let drift = drift(8, 2);
    let problem = Problem::builder(
        Loads::new(drift.after.clone()).unwrap(),
        drift.cluster.clone(),
        Slots::Same(80),
    );
    let problem = problem.build().unwrap();
    let (incremental, refined) = (
        Incremental::default().plan(&problem).unwrap(),
        Refined.plan(&problem).unwrap(),
    );
    assert_eq!(incremental.placement, refined.placement);
    assert!(
        incremental.reason.contains("no placement to start from"),
        "{}",
        incremental.reason
    );
    assert_eq!(incremental.planner, "incremental");
}

#[test]
fn settings_that_cannot_be_are_errors() {
    let problem = drift(9, 1).builder().build().unwrap();
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let costs = MoveCosts {
            intra_node: bad,
            ..MoveCosts::default()
        };
        let error = Incremental {
            costs,
            ..Incremental::default()
        }
        .plan(&problem)
        .unwrap_err();
        assert!(error.to_string().starts_with("intra-node cost"), "{error}");
        let error = Incremental {
            minimum_gain: bad,
            ..Incremental::default()
        }
        .plan(&problem)
        .unwrap_err();
        assert!(error.to_string().starts_with("minimum gain"), "{error}");
    }
}

#[test]
fn every_incremental_plan_is_free_of_duplicates_where_the_current_one_is() {
    let drift = drift(10, 4);
    let problem = drift.builder().build().unwrap();
    let plan = Incremental::default().plan(&problem).unwrap();
    assert_eq!(
        plan.placement.validate(&problem, Duplicates::Refuse),
        Ok(vec![])
    );
    let peak = plan.peak_extra_bytes.iter().max().unwrap();
    assert!(*peak > 0 && *peak <= 100);
}
