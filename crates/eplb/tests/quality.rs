//! The quality targets, on the loads that the benchmark uses.
#![allow(clippy::unwrap_used)]

use eplb::synthetic::{Generator, Shape};
use eplb::{Cluster, Greedy, Incremental, Loads, Planner, Problem, Refined, Slots};

const LOGNORMAL: Shape = Shape::Lognormal { sigma: 1.0 };

fn problem(
    window: Vec<Vec<f64>>,
    slots: usize,
    ranks: usize,
    nodes: usize,
    groups: usize,
) -> Problem {
    Problem::builder(
        Loads::new(window).unwrap(),
        Cluster::new(ranks, nodes).unwrap(),
        Slots::Same(slots),
    )
    .groups(groups)
    .build()
    .unwrap()
}

fn gap(
    planner: &dyn Planner,
    layers: usize,
    experts: usize,
    slots: usize,
    ranks: usize,
    shape: Shape,
) -> f64 {
    let window = Generator::new(7).window(layers, experts, shape);
    planner
        .plan(&problem(window, slots, ranks, 1, 1))
        .unwrap()
        .gap
}

#[test]
fn refined_is_within_a_tenth_of_a_percent_of_the_bound() {
    for shape in [
        LOGNORMAL,
        Shape::Zipf { exponent: 0.6 },
        Shape::Zipf { exponent: 1.0 },
        Shape::Dirichlet { concentration: 0.3 },
        Shape::Dirichlet { concentration: 1.0 },
    ] {
        for (layers, experts, slots) in [(58, 256, 288), (61, 384, 416)] {
            let gap = gap(&Refined, layers, experts, slots, 32, shape);
            assert!(gap <= 0.001, "{shape:?}, {experts} experts: {gap}");
        }
    }
}

#[test]
fn refined_is_within_one_percent_where_greedy_is_far_off() {
    let heavy = Shape::Zipf { exponent: 1.2 };
    for (slots, ranks, shape) in [(288, 32, heavy), (320, 64, heavy), (320, 64, LOGNORMAL)] {
        let refined = gap(&Refined, 58, 256, slots, ranks, shape);
        assert!(
            refined <= 0.01,
            "{shape:?}, {slots} slots on {ranks}: {refined}"
        );
        let greedy = gap(&Greedy, 58, 256, slots, ranks, shape);
        assert!(
            greedy > 10.0 * refined,
            "{shape:?}, {slots} slots on {ranks}: greedy {greedy}, refined {refined}"
        );
    }
}

#[test]
fn incremental_restores_balance_with_moves_of_eleven_percent_of_the_slots() {
    for (shape, target) in [(LOGNORMAL, 0.96), (Shape::Zipf { exponent: 1.0 }, 0.94)] {
        let mut generator = Generator::new(7);
        let before = generator.window(58, 256, shape);
        let after = generator.drift(&before, 0.5);
        let current = Refined
            .plan(&problem(before, 288, 32, 1, 1))
            .unwrap()
            .placement;
        let drifted = Problem::builder(
            Loads::new(after).unwrap(),
            Cluster::new(32, 1).unwrap(),
            Slots::Same(288),
        );
        let drifted = drifted.current(current).build().unwrap();
        let most = 58 * 288 * 11 / 100;
        let plan = Incremental {
            max_moves: Some(most),
            ..Incremental::default()
        }
        .plan(&drifted)
        .unwrap();
        assert!(plan.moves <= most);
        assert!(
            plan.balancedness >= target,
            "{shape:?}: {} after {}",
            plan.balancedness,
            plan.balancedness_before.unwrap()
        );
    }
}

#[test]
fn hierarchical_plans_are_within_one_percent_of_the_bound_with_node_limits() {
    for shape in [LOGNORMAL, Shape::Zipf { exponent: 1.0 }] {
        let window = Generator::new(7).window(58, 256, shape);
        let problem = problem(window, 288, 32, 4, 8);
        assert!((0..58).all(|layer| problem.hierarchical(layer)));
        let plan = Refined.plan(&problem).unwrap();
        assert!(plan.gap <= 0.01, "{shape:?}: {}", plan.gap);
    }
}
