//! What pages and pictures hold, of models of any size.

use std::collections::BTreeMap;

use locum::models::{LoadOptions, Model, ModelFiles};
use locum::prune::{ExpertStatistics, LayerStatistics, Statistics};
use roxmltree::{Document, Node, ParsingOptions};

use super::figures::{Experts, Figures};
use super::statistics::{Constants, Score, Substituted, figures, same_layers};
use super::{heat_map, page};

/// Experts of a layer: `tokens` of 1000, outputs of norm 2.
fn expert(tokens: u64, score: f64) -> ExpertStatistics {
    let count = tokens as f64;
    let mean = score * 1000.0 / count.max(1.0);
    ExpertStatistics {
        tokens,
        score_sum: score * 1000.0,
        squared_score_sum: mean * mean * count,
        norm_sum: 2.0 * count,
        weighted_norm_sum: 2.0 * mean * count,
        squared_norm_sum: 4.0 * count,
        weighted_squared_norm_sum: 4.0 * mean * mean * count,
        output_sum: vec![count, 0.0].into(),
        weighted_output_sum: vec![mean * mean * count, 0.0].into(),
    }
}

fn statistics(layers: u32, experts: u32) -> Statistics {
    let of_layer = |layer: u32| LayerStatistics {
        layer: layer + 1,
        prefix: format!("model.layers.{}.mlp.experts", layer + 1),
        hidden: 2,
        tokens: 1000,
        substituted: Vec::new(),
        experts: (0..experts)
            .map(|id| {
                let mixed = (u64::from(id) * 2_654_435_761 + u64::from(layer) * 40_503) % 997;
                let part = (mixed as f64 / 997.0).powi(2);
                // One expert of the second layer is never chosen.
                let tokens = match (layer, id) {
                    (1, 3) => 0,
                    _ => 1 + (600.0 * part) as u64,
                };
                let growth = 1.0 + 0.1 * f64::from(layer);
                expert(tokens, tokens as f64 / 1000.0 * 0.3 * growth * (0.2 + part))
            })
            .collect(),
    };
    Statistics {
        layers: (0..layers).map(of_layer).collect(),
        origin: Default::default(),
    }
}

fn score(layer: &LayerStatistics, expert: &ExpertStatistics) -> Option<f64> {
    Some(expert.score_sum / layer.tokens as f64)
}

/// A quarter of the experts of each layer, and in every third layer an eighth.
fn substituted(statistics: &Statistics) -> Substituted {
    let mut experts = Experts::new();
    let mut constants = Constants::new();
    for layer in &statistics.layers {
        let every = if layer.layer % 3 == 0 { 8 } else { 4 };
        let gone = (0..layer.experts.len() as u32).filter(|id| (id + layer.layer) % every == 0);
        experts.insert(layer.layer, gone.clone().collect());
        constants.insert(layer.layer, gone.map(|id| (id, vec![1.0, 0.0])).collect());
    }
    Substituted {
        experts,
        constants,
        name: "substituted",
    }
}

fn drawn(statistics: &Statistics, substituted: &Substituted, title: &str) -> Figures {
    let score = Score {
        name: "routing",
        of: &score,
    };
    figures(
        statistics,
        &score,
        substituted,
        title.into(),
        vec![("text", title.to_owned())],
    )
    .unwrap_or_else(|error| panic!("{error}"))
}

fn parse(text: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(text, options).unwrap_or_else(|error| panic!("{error}"))
}

fn has_class(node: &Node<'_, '_>, class: &str) -> bool {
    let classes = node.attribute("class").unwrap_or_default();
    classes.split(' ').any(|found| found == class)
}

/// What is said of the cells of this class.
fn said<'d>(document: &'d Document<'_>, class: &str) -> Vec<&'d str> {
    let cells = document
        .descendants()
        .filter(|node| node.is_element() && has_class(node, "cell") && has_class(node, class));
    cells
        .map(|cell| {
            let title = cell.first_element_child();
            title.and_then(|title| title.text()).unwrap_or_default()
        })
        .collect()
}

#[test]
fn every_expert_is_a_cell_and_marked_ones_are_those_of_the_plan() {
    for (layers, experts) in [(4, 16), (16, 64), (61, 256)] {
        let statistics = statistics(layers, experts);
        let substituted = substituted(&statistics);
        let figures = drawn(&statistics, &substituted, "a model");
        let maps: Vec<_> = figures.maps.iter().collect();
        let picture = heat_map::svg(&maps, "a model", "experts", true);
        let page = page::page(&figures);
        for document in [parse(&picture), parse(&page)] {
            let cells = said(&document, "cell");
            assert_eq!(cells.len(), 2 * (layers * experts) as usize);
            let expected: Vec<String> = substituted
                .experts
                .iter()
                .flat_map(|(layer, ids)| {
                    ids.iter()
                        .map(move |id| format!("layer {layer}, expert {id}:"))
                })
                .collect();
            let marked = said(&document, "marked");
            assert_eq!(marked.len(), 2 * expected.len());
            let (scores, frequencies) = marked.split_at(expected.len());
            for of_map in [scores, frequencies] {
                for (found, expected) in of_map.iter().zip(&expected) {
                    assert!(found.starts_with(expected), "{found}, expected {expected}");
                    assert!(found.ends_with(", substituted"), "{found}");
                }
            }
        }
    }
}

#[test]
fn cells_say_what_was_counted() {
    let statistics = statistics(4, 16);
    let none = Substituted {
        experts: Experts::new(),
        constants: Constants::new(),
        name: "substituted",
    };
    let page = page::page(&drawn(&statistics, &none, "a model"));
    let document = parse(&page);
    let cells = said(&document, "cell");
    let tokens = statistics.layers[0].experts[5].tokens;
    let expected = format!("layer 1, expert 5: {:.2} % of tokens", tokens as f64 / 10.0);
    assert!(
        cells.iter().any(|cell| *cell == expected),
        "{expected} is not among {cells:?}"
    );
    assert!(cells.contains(&"layer 2, expert 3, never routed"));
    assert!(said(&document, "marked").is_empty());
    assert!(!page.contains("Error per layer"));
}

#[test]
fn error_and_shares_are_those_of_the_sums() {
    // Expert 1 goes: it has 1 of 4 routes with weight 0.5 of 2; its outputs have norm 2 and the
    // constant, of norm 1, lies in their direction at half their mean, so what is lost is
    // w²·(4 − 2·1·1 + 1) of Σ w²·4.
    let statistics = Statistics {
        layers: vec![LayerStatistics {
            tokens: 1000,
            experts: vec![expert(300, 0.3 * 0.5), expert(100, 0.1 * 0.5)],
            ..statistics(1, 1).layers.remove(0)
        }],
        origin: Default::default(),
    };
    let substituted = Substituted {
        experts: BTreeMap::from([(1, [1].into())]),
        constants: BTreeMap::from([(1, BTreeMap::from([(1, vec![1.0, 0.0])]))]),
        name: "substituted",
    };
    let figures = drawn(&statistics, &substituted, "a model");
    let layer = &figures.layers[0];
    let close = |found: Option<f64>, expected: f64| {
        assert!(
            found.is_some_and(|found| (found - expected).abs() < 1e-12),
            "{found:?}, expected {expected}"
        );
    };
    close(layer.route_share, 0.25);
    close(layer.weight_share, 0.25);
    close(layer.error, 0.25 * (4.0 - 2.0 + 1.0) / 4.0);
    let page = page::page(&figures);
    assert!(page.contains("<title>layer 1: 18.8 %</title>"), "{page}");
    assert!(page.contains("<td>18.8</td>"), "{page}");
}

#[test]
fn nothing_is_fetched_and_names_are_text() {
    let hostile = "<script src=\"http://x\">'&]]></style>\u{0}";
    let statistics = statistics(4, 16);
    let figures = drawn(&statistics, &substituted(&statistics), hostile);
    let maps: Vec<_> = figures.maps.iter().collect();
    let picture = heat_map::svg(&maps, hostile, hostile, true);
    let page = page::page(&figures);
    for text in [&picture, &page] {
        let document = parse(text);
        let all = || document.descendants().filter(Node::is_element);
        assert!(all().all(|node| node.tag_name().name() != "script"));
        let titles: Vec<_> = all()
            .filter(|node| node.tag_name().name() == "title")
            .filter_map(|node| node.text())
            .collect();
        let shown = hostile.replace('\0', "\u{fffd}");
        assert!(titles.contains(&shown.as_str()), "{titles:?}");
        // What would be fetched: an attribute that names a place. Those within are `url(#…)`.
        for attribute in all().flat_map(|node| node.attributes().collect::<Vec<_>>()) {
            assert!(!["src", "href", "srcset", "data"].contains(&attribute.name()));
            assert!(!attribute.value().contains("url(") || attribute.value().contains("url(#"));
        }
    }
    let others = picture.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    let place = "src=&quot;http://x&quot;";
    assert!(!others.replace(place, "").contains("http"), "{others}");
    assert!(!page.replace(place, "").contains("http:"));
    assert!(!page.contains("https:") && !page.contains("@import"));
}

/// Ids must be unique in the page, or names and colours of one picture become another's.
#[test]
fn ids_are_unique_and_labels_refer_to_them() {
    let statistics = statistics(4, 16);
    let figures = drawn(&statistics, &substituted(&statistics), "a model");
    let page = page::page(&figures);
    let document = parse(&page);
    let mut ids: Vec<&str> = document
        .descendants()
        .filter_map(|node| node.attribute("id"))
        .collect();
    let labels = document
        .descendants()
        .filter_map(|node| node.attribute("aria-labelledby"))
        .flat_map(|labels| labels.split(' '));
    for label in labels {
        assert!(ids.contains(&label), "{label}");
    }
    let count = ids.len();
    assert!(count >= 8);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn statistics_of_another_size_are_not_those_of_a_model() -> Result<(), Box<dyn std::error::Error>> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/tiny-olmoe-mone25");
    let model = Model::plan(&ModelFiles::open(directory)?, &LoadOptions::default())?;
    let mut statistics = statistics(4, 16);
    for (layer, (info, _)) in statistics.layers.iter_mut().zip(model.moe_layers()) {
        (layer.layer, layer.hidden) = (info.layer, info.hidden_size);
    }
    assert_eq!(same_layers(&statistics, &model), Ok(()));
    statistics.layers[2].hidden = 64;
    let error = same_layers(&statistics, &model);
    let expected = "the statistics are of a hidden size of 64 in layer 2, the model has 128";
    assert_eq!(error, Err(expected.into()));
    Ok(())
}
