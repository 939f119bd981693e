//! A number per layer as bars.

use std::fmt::Write;

use super::heat_map::{opening, text};
use super::markup::{escaped, label};
use crate::axis::nice_step;

/// Bars over the layers.
pub(super) struct Bars {
    /// What the picture is called among others: a word.
    pub(super) id: &'static str,
    pub(super) title: String,
    pub(super) description: String,
    /// What the numbers are.
    pub(super) unit: &'static str,
    /// The class of the bars' colour.
    pub(super) class: &'static str,
    pub(super) bars: Vec<Bar>,
}

pub(super) struct Bar {
    pub(super) layer: u32,
    pub(super) value: f64,
    /// What the value is a part of, drawn behind it.
    pub(super) whole: Option<f64>,
    /// What is said of the bar.
    pub(super) said: String,
}

const LEFT: f64 = 66.0;
const TOP: f64 = 14.0;
const PLOT: f64 = 150.0;

impl Bars {
    pub(super) fn svg(&self) -> String {
        let count = self.bars.len().max(1) as f64;
        let slot = (900.0 / count).floor().clamp(9.0, 48.0);
        let width = LEFT + slot * count + 14.0;
        let height = TOP + PLOT + 46.0;
        let bottom = TOP + PLOT;
        let mut svg = opening(
            self.id,
            (width, height),
            &self.title,
            &self.description,
            false,
        );
        let highest = self
            .bars
            .iter()
            .map(|bar| bar.whole.unwrap_or(bar.value).max(bar.value))
            .fold(0.0, f64::max);
        let highest = if highest > 0.0 { highest } else { 1.0 };
        let step = nice_step(highest);
        let top = highest * 1.04;
        let y = |value: f64| bottom - PLOT * value / top;

        let lines = (top / step).floor() as u32;
        for line in 0..=lines {
            let value = f64::from(line) * step;
            let at = y(value);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>",
                width - 14.0
            );
            text(
                &mut svg,
                LEFT - 8.0,
                at + 3.5,
                "end",
                "class=\"faint\" font-size=\"10\"",
                &label(value),
            );
        }
        let middle = TOP + PLOT / 2.0;
        text(
            &mut svg,
            16.0,
            middle,
            "middle",
            &format!("transform=\"rotate(-90 16 {middle:.1})\""),
            self.unit,
        );
        let bar_width = (slot * 0.72).max(slot - 8.0);
        for (index, bar) in self.bars.iter().enumerate() {
            let x = LEFT + slot * index as f64 + (slot - bar_width) / 2.0;
            let mut rect = |class: &str, from: f64, to: f64| {
                let _ = writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{bar_width:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
                    y(to),
                    y(from) - y(to),
                    escaped(&bar.said)
                );
            };
            if let Some(whole) = bar.whole.filter(|whole| *whole > bar.value) {
                rect("bar gone", bar.value, whole);
            }
            rect(&format!("bar {}", self.class), 0.0, bar.value);
        }
        let every = [1, 2, 5, 10, 20, 50, 100]
            .into_iter()
            .find(|every| slot * *every as f64 >= 22.0)
            .unwrap_or(200);
        for (index, bar) in self.bars.iter().enumerate().step_by(every) {
            let x = LEFT + slot * (index as f64 + 0.5);
            text(
                &mut svg,
                x,
                bottom + 15.0,
                "middle",
                "class=\"faint\" font-size=\"10\"",
                &bar.layer.to_string(),
            );
        }
        text(&mut svg, LEFT, bottom + 34.0, "start", "", "layer");
        svg.push_str("</svg>\n");
        svg
    }
}
