//! What holds for every input.
#![allow(clippy::unwrap_used)]

use eplb::{
    Cluster, DeepSeek, Duplicates, Greedy, Incremental, Loads, MoveCosts, Placement, Planner,
    Problem, Refined, Schedule, Slots, Summary,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Case {
    windows: Vec<Vec<Vec<f64>>>,
    ranks: usize,
    nodes: usize,
    groups: usize,
    slots: Vec<usize>,
    uneven: bool,
    speeds: Vec<f64>,
    live: Vec<bool>,
    z: f64,
    drift: Vec<f64>,
    max_moves: Option<usize>,
    inter_node: f64,
}

fn load() -> impl Strategy<Value = f64> {
    prop_oneof![
        2 => Just(0.0),
        6 => (0_u32..1000).prop_map(f64::from),
        3 => (-5.0_f64..10.0).prop_map(f64::exp),
        1 => Just(9_007_199_254_740_992.0),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    (
        1_usize..4,
        1_usize..4,
        1_usize..4,
        1_usize..5,
        1_usize..3,
        any::<bool>(),
        0_usize..4,
    )
        .prop_flat_map(
            |(nodes, per_node, groups, group_size, layers, uneven, extra)| {
                let ranks = nodes * per_node;
                // Layers have different numbers of experts, all multiples of the groups.
                let experts: Vec<usize> = (0..layers)
                    .map(|layer| groups * (group_size + layer))
                    .collect();
                let slots: Vec<usize> = experts
                    .iter()
                    .map(|experts| {
                        if uneven {
                            experts + extra * 3 + 1
                        } else {
                            (experts + extra).next_multiple_of(ranks) + extra / 2 * ranks
                        }
                    })
                    .collect();
                let window: Vec<_> = experts
                    .iter()
                    .map(|experts| prop::collection::vec(load(), *experts))
                    .collect();
                let most = *experts.iter().max().unwrap();
                (
                    prop::collection::vec(window, 1..3),
                    prop_oneof![
                        Just(vec![1.0; ranks]),
                        prop::collection::vec(0.25_f64..4.0, ranks)
                    ],
                    prop::collection::vec(prop::bool::weighted(0.85), ranks),
                    0.0_f64..2.0,
                    prop::collection::vec(0.1_f64..10.0, most),
                    prop::option::of(0_usize..12),
                    prop_oneof![Just(0.0), 0.0_f64..5.0],
                )
                    .prop_map(
                        move |(windows, speeds, live, z, drift, max_moves, inter_node)| Case {
                            windows,
                            ranks,
                            nodes,
                            groups,
                            slots: slots.clone(),
                            uneven,
                            speeds,
                            live,
                            z,
                            drift,
                            max_moves,
                            inter_node,
                        },
                    )
            },
        )
}

impl Case {
    fn cluster(&self, live: bool) -> Option<Cluster> {
        let cluster = Cluster::new(self.ranks, self.nodes)
            .unwrap()
            .with_speeds(self.speeds.clone())
            .unwrap();
        if live {
            cluster.with_live(self.live.clone()).ok()
        } else {
            Some(cluster)
        }
    }

    fn problem(&self, live: bool, current: Option<Placement>, drifted: bool) -> Option<Problem> {
        let mut windows = self.windows.clone();
        if drifted {
            for layer in windows.iter_mut().flatten() {
                for (load, drift) in layer.iter_mut().zip(&self.drift) {
                    *load = (*load * drift).min(eplb::LARGEST_LOAD);
                }
            }
        }
        let builder = Problem::builder(
            Loads::from_windows(windows).unwrap(),
            self.cluster(live)?,
            Slots::PerLayer(self.slots.clone()),
        );
        let builder = builder
            .groups(self.groups)
            .uneven(self.uneven)
            .expert_bytes(3)
            .reload(true)
            .summary(Summary::MeanPlusDeviation { z: self.z });
        let builder = match current {
            Some(placement) => builder.current(placement),
            None => builder,
        };
        // Too few live slots for the experts is an error, as it should be.
        builder.build().ok()
    }
}

/// Everything that a plan states, from its maps and the problem alone.
fn check(planner: &dyn Planner, problem: &Problem) -> Result<Placement, TestCaseError> {
    let plan = match planner.plan(problem) {
        Ok(plan) => plan,
        Err(eplb::Error::Budget { .. }) => return Ok(Placement::default()),
        Err(error) => return Err(TestCaseError::fail(format!("{}: {error}", planner.name()))),
    };
    let twice = planner.name() == "deepseek" || planner.name() == "incremental";
    let duplicates = if twice {
        Duplicates::Report
    } else {
        Duplicates::Refuse
    };
    prop_assert!(plan.placement.validate(problem, duplicates).is_ok());
    let map = plan.placement.physical_to_logical_map();
    let live_speed: f64 = problem
        .cluster()
        .speeds()
        .iter()
        .zip(problem.cluster().live())
        .filter(|x| *x.1)
        .map(|x| x.0)
        .sum();
    let (mut means, mut maxima, mut bounds) = (0.0, 0.0, 0.0);
    for (layer, report) in plan.layers.iter().enumerate() {
        let weights = problem.weights(layer).unwrap();
        let mut counts = vec![0.0; weights.len()];
        for expert in map[layer].iter().filter(|expert| **expert >= 0) {
            counts[*expert as usize] += 1.0;
        }
        prop_assert!(counts.iter().all(|count| *count >= 1.0));
        let placed = &plan.placement.layers()[layer];
        let mut maximum = 0.0_f64;
        for rank in 0..placed.ranks() {
            let load: f64 = placed
                .rank(rank)
                .flatten()
                .map(|e| weights[e.index()] / counts[e.index()])
                .sum();
            let time = load / problem.cluster().speeds()[rank];
            prop_assert!((time - report.rank_loads[rank]).abs() <= 1e-9 * time);
            maximum = maximum.max(time);
        }
        let bound = problem.lower_bound(layer).unwrap().value;
        // The node limit bounds plans that keep groups on nodes.
        prop_assert!(
            bound <= maximum * (1.0 + 1e-12)
                || (planner.name() == "incremental" && problem.current().is_some())
        );
        means += weights.iter().sum::<f64>() / live_speed;
        maxima += maximum;
        bounds += bound;
    }
    if maxima > 0.0 {
        prop_assert!((plan.balancedness - means / maxima).abs() <= 1e-9);
        prop_assert!(
            (plan.gap - (maxima / bounds - 1.0).max(0.0)).abs() <= 1e-9 * (1.0 + plan.gap)
        );
    }
    Ok(plan.placement)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_is_valid_and_says_what_is_true(case in case()) {
        let incremental = Incremental {
            max_moves: case.max_moves,
            costs: MoveCosts { inter_node: case.inter_node, ..MoveCosts::default() },
            ..Incremental::default()
        };
        for first in [&DeepSeek as &dyn Planner, &Greedy, &Refined, &incremental] {
            for live in [false, true] {
                let Some(problem) = case.problem(live, None, false) else { continue };
                let current = check(first, &problem)?;
                if live || current.layers().is_empty() {
                    continue;
                }
                // From that placement on, with other loads, and with ranks that died since.
                for live in [false, true] {
                    let Some(problem) = case.problem(live, Some(current.clone()), true) else { continue };
                    for next in [&DeepSeek as &dyn Planner, &Greedy, &Refined, &incremental] {
                        let placement = check(next, &problem)?;
                        if placement.layers().is_empty() {
                            continue;
                        }
                        let schedule = Schedule::new(&current, &placement, problem.cluster(), true);
                        prop_assert!(schedule.is_ok());
                    }
                }
            }
        }
    }

    #[test]
    fn refined_is_never_worse_than_greedy(case in case()) {
        if let Some(problem) = case.problem(true, None, false) {
            let (greedy, refined) = (Greedy.plan(&problem).unwrap(), Refined.plan(&problem).unwrap());
            for (greedy, refined) in greedy.layers.iter().zip(&refined.layers) {
                prop_assert!(refined.maximum <= greedy.maximum * (1.0 + 1e-9));
            }
        }
    }

    #[test]
    fn incremental_never_makes_a_layer_worse_and_keeps_its_budget(case in case()) {
        let Some(problem) = case.problem(false, None, false) else { return Ok(()) };
        let current = Refined.plan(&problem).unwrap().placement;
        let Some(problem) = case.problem(false, Some(current), true) else { return Ok(()) };
        let planner = Incremental { max_moves: case.max_moves, ..Incremental::default() };
        let plan = planner.plan(&problem).unwrap();
        prop_assert!(case.max_moves.is_none_or(|most| plan.moves <= most));
        for layer in &plan.layers {
            prop_assert!(layer.maximum <= layer.maximum_before.unwrap() * (1.0 + 1e-12));
            prop_assert!(layer.moves == 0 || layer.maximum <= layer.maximum_before.unwrap() * 0.99 * (1.0 + 1e-9));
        }
    }

    #[test]
    fn plans_come_back_from_json(case in case()) {
        let Some(problem) = case.problem(true, None, false) else { return Ok(()) };
        let plan = Greedy.plan(&problem).unwrap();
        let text = plan.to_json().to_string();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let experts: Vec<usize> = (0..problem.layers()).map(|layer| problem.weights(layer).unwrap().len()).collect();
        let (_, placement) = Placement::from_json(&document, &experts, case.ranks, None).unwrap();
        prop_assert_eq!(placement, plan.placement);
    }
}
