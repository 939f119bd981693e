//! What a report says, before it is drawn.

use std::collections::{BTreeMap, BTreeSet};

use super::bars::{Bar, Bars};
use super::heat_map::HeatMap;
use super::markup::number;

/// What a report says.
pub(super) struct Figures {
    pub(super) title: String,
    /// One sentence.
    pub(super) lead: String,
    /// Names and values.
    pub(super) facts: Vec<(&'static str, String)>,
    pub(super) maps: Vec<HeatMap>,
    pub(super) layers: Vec<LayerFigures>,
    /// What a substituted expert is called: `substituted`, or what a plan would do.
    pub(super) substituted: &'static str,
}

/// Experts by layer.
pub(super) type Experts = BTreeMap<u32, BTreeSet<u32>>;

/// One layer.
pub(super) struct LayerFigures {
    pub(super) layer: u32,
    pub(super) experts: usize,
    pub(super) substituted: Vec<u32>,
    /// Experts that no token of the calibration went to.
    pub(super) never_routed: Option<usize>,
    /// Share of the routes that lead to substituted experts.
    pub(super) route_share: Option<f64>,
    /// Share of the router weight.
    pub(super) weight_share: Option<f64>,
    /// Squared error of the output, relative to the output.
    pub(super) error: Option<f64>,
    /// Bytes that the constants save.
    pub(super) saved: Option<u64>,
    /// The smallest and the largest norm of a constant.
    pub(super) norms: Option<(f64, f64)>,
}

impl LayerFigures {
    pub(super) fn retained(&self) -> usize {
        self.experts - self.substituted.len()
    }
}

impl Figures {
    pub(super) fn retained_bars(&self) -> Bars {
        let bar = |layer: &LayerFigures| Bar {
            layer: layer.layer,
            value: layer.retained() as f64,
            whole: Some(layer.experts as f64),
            said: format!(
                "layer {}: {} of {} experts retained",
                layer.layer,
                layer.retained(),
                layer.experts
            ),
        };
        Bars {
            id: "retained",
            title: "Retained experts per layer".into(),
            description: "A bar per layer: retained experts, and behind them all experts.".into(),
            unit: "experts",
            class: "kept",
            bars: self.layers.iter().map(bar).collect(),
        }
    }

    /// None where no error is known.
    pub(super) fn error_bars(&self) -> Option<Bars> {
        let bars: Vec<Bar> = self
            .layers
            .iter()
            .filter_map(|layer| {
                let percent = 100.0 * layer.error?;
                Some(Bar {
                    layer: layer.layer,
                    value: percent,
                    whole: None,
                    said: format!("layer {}: {} %", layer.layer, number(percent)),
                })
            })
            .collect();
        (!bars.is_empty()).then(|| Bars {
            id: "error",
            title: "Error per layer".into(),
            description: "A bar per layer: the squared error of the routed experts' output, relative to the output.".into(),
            unit: "squared error, %",
            class: "loss",
            bars,
        })
    }

    pub(super) fn total(&self) -> (usize, usize) {
        let experts = self.layers.iter().map(|layer| layer.experts);
        let substituted = self.layers.iter().map(|layer| layer.substituted.len());
        (experts.sum(), substituted.sum())
    }
}
