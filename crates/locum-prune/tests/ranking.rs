//! What metrics are, and whom they choose.
#![allow(clippy::unwrap_used)]

use locum_prune::{
    Amount, ExpertStatistics, LayerStatistics, Metric, Plan, PruneError, RankedExpert, RankedLayer,
    Replacement, Scope, Settings,
};

/// Counts of an expert from its routes: router weight and output of each.
fn counted(routes: &[(f64, [f64; 2])]) -> ExpertStatistics {
    let norm = |y: &[f64; 2]| (y[0] * y[0] + y[1] * y[1]).sqrt();
    let sum = |of: &dyn Fn(f64, &[f64; 2]) -> f64| routes.iter().map(|(w, y)| of(*w, y)).sum();
    ExpertStatistics {
        tokens: routes.len() as u64,
        score_sum: sum(&|w, _| w),
        squared_score_sum: sum(&|w, _| w * w),
        norm_sum: sum(&|_, y| norm(y)),
        weighted_norm_sum: sum(&|w, y| w * norm(y)),
        squared_norm_sum: sum(&|_, y| norm(y) * norm(y)),
        weighted_squared_norm_sum: sum(&|w, y| w * w * norm(y) * norm(y)),
        output_sum: vec![sum(&|_, y| y[0]), sum(&|_, y| y[1])].into(),
        weighted_output_sum: vec![sum(&|w, y| w * w * y[0]), sum(&|w, y| w * w * y[1])].into(),
    }
}

fn layer(experts: Vec<ExpertStatistics>) -> LayerStatistics {
    LayerStatistics {
        layer: 3,
        prefix: "model.layers.3.mlp.experts".into(),
        hidden: 2,
        tokens: 10,
        substituted: Vec::new(),
        experts,
    }
}

#[test]
fn metrics_are_what_their_formulas_give_by_hand() {
    // Outputs (3, 4), (6, 8), (0, 0): norms 5, 10, 0; means (3, 4); variances 6 and 32/3.
    let layer = layer(vec![
        counted(&[(0.5, [3.0, 4.0]), (0.25, [6.0, 8.0]), (0.125, [0.0, 0.0])]),
        counted(&[]),
    ]);
    let std = (6.0f64 + 32.0 / 3.0).sqrt();
    let expected = [
        (Metric::Fusion, std * 0.0875),
        (Metric::OutputFluctuation, std),
        (Metric::RoutingScore, 0.0875),
        (Metric::Frequency, 0.3),
        (Metric::Reap, (2.5 + 2.5) / 3.0),
        (Metric::Ean, 15.0),
    ];
    for (metric, expected) in expected {
        let found = metric.of_statistics(&layer, &layer.experts[0]).unwrap();
        assert!(
            (found - expected).abs() < 1e-12,
            "{metric}: {found} is not {expected}"
        );
        // Of an expert that was never routed, nothing is needed.
        assert_eq!(
            metric.of_statistics(&layer, &layer.experts[1]),
            Some(0.0),
            "{metric}"
        );
    }
    for metric in [Metric::Random, Metric::Weights] {
        assert_eq!(metric.of_statistics(&layer, &layer.experts[0]), None);
        assert!(!metric.needs_statistics());
    }
}

#[test]
fn metrics_are_called_what_plans_and_options_call_them() {
    for metric in Metric::ALL {
        assert_eq!(metric.name().parse::<Metric>().unwrap(), metric);
        let json = serde_json::to_value(metric).unwrap();
        assert_eq!(json, metric.name());
    }
    let error = "fussion".parse::<Metric>().unwrap_err().to_string();
    assert!(error.contains("fussion is none of fusion, "), "{error}");
}

#[test]
fn least_squares_errs_least() {
    let routes = [(0.9, [3.0, -1.0]), (0.3, [1.0, 5.0]), (0.6, [-2.0, 2.5])];
    let expert = counted(&routes);
    let best = Replacement::LeastSquares.of_statistics(&expert).unwrap();
    let error = |c: &[f64]| -> f64 {
        let squares = routes
            .iter()
            .flat_map(|(w, y)| [w * (y[0] - c[0]), w * (y[1] - c[1])]);
        squares.map(|difference| difference * difference).sum()
    };
    let least = error(&best);
    for step in [[1e-3, 0.0], [-1e-3, 0.0], [0.0, 1e-3], [0.0, -1e-3]] {
        assert!(error(&[best[0] + step[0], best[1] + step[1]]) > least);
    }
    let mean = Replacement::Mean.of_statistics(&expert).unwrap();
    assert!((mean[0] - 2.0 / 3.0).abs() < 1e-15 && (mean[1] - 6.5 / 3.0).abs() < 1e-15);
    assert!(error(&mean) > least && error(&[0.0, 0.0]) > least);
    // Where all weights are equal, it is the mean.
    let equal = counted(&routes.map(|(_, y)| (0.5, y)));
    let [a, b] = [Replacement::LeastSquares, Replacement::Mean].map(|r| r.of_statistics(&equal));
    let (a, b) = (a.unwrap(), b.unwrap());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12));
}

#[test]
fn nothing_is_known_of_an_expert_that_was_never_routed() {
    let expert = counted(&[]);
    assert_eq!(Replacement::Mean.of_statistics(&expert), None);
    assert_eq!(Replacement::LeastSquares.of_statistics(&expert), None);
    // Nor where its weights were all zero, by which it would be divided.
    let unweighted = counted(&[(0.0, [1.0, 2.0])]);
    assert_eq!(Replacement::LeastSquares.of_statistics(&unweighted), None);
    assert_eq!(Replacement::Zero.of_statistics(&expert), Some(vec![0.0; 2]));
}

/// Layers 1, 2, … of experts 0, 1, … with these values.
fn ranked(layers: &[&[f64]]) -> Vec<RankedLayer> {
    let layer = |(index, values): (usize, &&[f64])| RankedLayer {
        layer: index as u32 + 1,
        num_logical_experts: values.len() as u32,
        experts: values
            .iter()
            .enumerate()
            .map(|(expert, &value)| RankedExpert {
                expert: expert as u32,
                value,
                tokens: Some(100 + expert as u64),
            })
            .collect(),
    };
    layers.iter().enumerate().map(layer).collect()
}

fn settings(amount: Amount, scope: Scope) -> Settings {
    Settings {
        metric: Metric::Fusion,
        scope,
        amount,
        min_per_layer: 1,
        seed: 0,
    }
}

fn ids(plan: &Plan) -> Vec<Vec<u32>> {
    plan.layers
        .iter()
        .map(|layer| layer.ids().collect())
        .collect()
}

#[test]
fn each_layer_loses_its_smallest() {
    let layers = ranked(&[&[0.4, 0.1, 0.3, 0.2], &[9.0, 8.0, 7.0, 6.0]]);
    for amount in [Amount::Ratio(0.5), Amount::Keep(2)] {
        let plan = settings(amount, Scope::Layer).choose(&layers).unwrap();
        assert_eq!(ids(&plan), [[1, 3], [2, 3]]);
        let first = &plan.layers[0].substituted[0];
        assert_eq!(
            (first.value, first.rank, first.tokens),
            (Some(0.1), Some(4), Some(101))
        );
        assert_eq!(plan.layers[0].substituted[1].rank, Some(3));
        assert_eq!(plan.count(), 4);
    }
}

#[test]
fn the_whole_model_loses_its_smallest_and_no_layer_all() {
    let layers = ranked(&[&[0.4, 0.1, 0.3, 0.2], &[9.0, 8.0, 7.0, 0.35]]);
    let choose = |amount, min_per_layer| {
        let settings = Settings {
            min_per_layer,
            ..settings(amount, Scope::Model)
        };
        settings.choose(&layers)
    };
    for amount in [Amount::Ratio(0.5), Amount::Keep(2)] {
        let plan = choose(amount, 1).unwrap();
        assert_eq!(ids(&plan), [vec![1, 2, 3], vec![3]]);
        // Over the model: 0.1 is eighth of eight, 0.2 seventh, 0.3 sixth, 0.35 fifth.
        let ranks: Vec<u32> = plan
            .layers
            .iter()
            .flat_map(|layer| {
                layer
                    .substituted
                    .iter()
                    .map(|planned| planned.rank.unwrap())
            })
            .collect();
        assert_eq!(ranks, [8, 6, 7, 5]);
    }
    // One more would be 0.4, the last of its layer: the next one goes.
    assert_eq!(
        ids(&choose(Amount::Ratio(0.625), 1).unwrap()),
        [vec![1, 2, 3], vec![2, 3]]
    );
    assert_eq!(
        ids(&choose(Amount::Ratio(0.5), 2).unwrap()),
        [[1, 3], [2, 3]]
    );
    let error = choose(Amount::Ratio(0.625), 2).unwrap_err().to_string();
    assert!(
        error.contains("5 of the model's 8") && error.contains("only 4"),
        "{error}"
    );
    let error = choose(Amount::Ratio(0.05), 1).unwrap_err().to_string();
    assert!(error.contains("comes to none"), "{error}");
}

#[test]
fn of_equal_values_the_lower_id_goes_first() {
    let layers = ranked(&[&[1.0, 1.0, 0.0, 1.0], &[1.0; 4]]);
    let in_layer = settings(Amount::Ratio(0.5), Scope::Layer)
        .choose(&layers)
        .unwrap();
    assert_eq!(ids(&in_layer), [[0, 2], [0, 1]]);
    // Of the whole model, the lower layer first.
    let in_model = settings(Amount::Ratio(0.5), Scope::Model)
        .choose(&layers)
        .unwrap();
    assert_eq!(ids(&in_model), [vec![0, 1, 2], vec![0]]);
}

#[test]
fn amounts_that_cannot_be_are_refused_with_what_can() {
    let layers = ranked(&[&[0.0; 64]]);
    let error = |amount| {
        let error = settings(amount, Scope::Layer).choose(&layers).unwrap_err();
        assert!(matches!(error, PruneError::Setting { .. }));
        error.to_string()
    };
    for ratio in [0.0, 1.0, -0.25, f64::NAN, f64::INFINITY] {
        assert!(error(Amount::Ratio(ratio)).contains("must be greater than 0 and less than 1"));
    }
    let unreachable = error(Amount::Ratio(0.3));
    for part in [
        "0.3 of the 64",
        "layer 1 is 19.200",
        "rounds to 19; keep 45 of them, or give a ratio of 0.296875",
    ] {
        assert!(unreachable.contains(part), "{unreachable}");
    }
    // It would round to all of them, or to none.
    assert!(error(Amount::Ratio(0.995)).contains("rounds to 64; keep 1"));
    assert!(error(Amount::Ratio(0.001)).contains("rounds to 0; keep 63"));
    assert!(error(Amount::Keep(0)).contains("keep 0"));
    assert!(error(Amount::Keep(64)).contains("must be less than the 64"));
    let least = Settings {
        min_per_layer: 33,
        ..settings(Amount::Ratio(0.5), Scope::Layer)
    };
    let error = least.choose(&layers).unwrap_err().to_string();
    assert!(error.contains("33 is more than the 32"), "{error}");
    let none = Settings {
        min_per_layer: 0,
        ..settings(Amount::Ratio(0.5), Scope::Layer)
    };
    assert!(none.choose(&layers).is_err());
}

/// No amount can be had there, so none is advised.
#[test]
fn layer_of_one_expert_loses_none() {
    let layers = ranked(&[&[3.0], &[1.0, 2.0]]);
    for amount in [Amount::Ratio(0.4), Amount::Keep(1)] {
        let error = settings(amount, Scope::Layer).choose(&layers).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("in layer 1, which must keep the one expert"),
            "{error}"
        );
        assert!(error.contains("--scope model"), "{error}");
        // As it advises.
        let plan = settings(amount, Scope::Model).choose(&layers);
        assert!(plan.is_ok_and(|plan| ids(&plan) == [vec![], vec![0]]));
    }
}

#[test]
fn value_that_is_no_number_is_refused() {
    let layers = ranked(&[&[0.5, 1.0], &[2.0, f64::NAN]]);
    let error = settings(Amount::Keep(1), Scope::Layer)
        .choose(&layers)
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "fusion of layer 2, expert 1 is NaN: nothing can be ranked by it"
    );
}
