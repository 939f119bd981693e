//! Rank loads before and after, as a self-contained SVG.

use eplb::Plan;

use crate::axis::nice_step;

/// What the plan is compared with.
pub(crate) struct Before {
    pub(crate) name: &'static str,
    /// Shape `[layers][ranks]`.
    pub(crate) rank_loads: Vec<Vec<f64>>,
}

/// A rank over all layers, each relative to the layer's mean.
struct Rank {
    average: f64,
    largest: f64,
}

const HEIGHT: f64 = 380.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 316.0;
const LEFT: f64 = 64.0;
const GAP: f64 = 36.0;
const INK: &str = "#1f2933";
const FAINT: &str = "#7b8794";
const GRID: &str = "#e4e7eb";

/// Two panels with the same axes. Each rank has a bar, its load averaged over the layers, and a
/// whisker up to its most loaded layer; loads are relative to the mean of their layer, which is the
/// dashed line at 1.
pub(crate) fn rank_loads(plan: &Plan, before: &Before) -> String {
    let means: Vec<f64> = plan.layers.iter().map(|layer| layer.mean).collect();
    let after: Vec<Vec<f64>> = plan
        .layers
        .iter()
        .map(|layer| layer.rank_loads.clone())
        .collect();
    let panels = [
        (
            before.name,
            ranks(&before.rank_loads, &means),
            "#c4553b",
            balancedness(&before.rank_loads, &means),
        ),
        ("plan", ranks(&after, &means), "#2f6f8f", plan.balancedness),
    ];
    let count = panels[0].1.len().max(1);
    let panel = (count as f64 * 12.0).clamp(300.0, 720.0);
    let width = LEFT + 2.0 * panel + GAP + 48.0;
    let highest = panels
        .iter()
        .flat_map(|(_, ranks, ..)| ranks)
        .map(|rank| rank.largest)
        .fold(1.0, f64::max);
    let step = nice_step(highest * 1.05);
    let top = (highest * 1.05 / step).ceil() * step;
    let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / top;

    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {HEIGHT:.0}\" width=\"{width:.0}\" height=\"{HEIGHT:.0}\" \
         font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
         <title>Rank loads before and after</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    let layers = plan.layers.len();
    svg += &text(
        LEFT,
        28.0,
        "start",
        INK,
        "font-size=\"17\" font-weight=\"600\"",
        "Rank loads before and after",
    );
    let subtitle = match layers {
        1 => format!(
            "1 layer, {count} ranks, planner {}; relative to the mean rank load",
            plan.planner
        ),
        _ => format!(
            "{layers} layers, {count} ranks, planner {}; relative to the mean of each layer. Bar: average over layers. Whisker: most loaded layer.",
            plan.planner
        ),
    };
    // The note must fit the narrowest picture.
    let size = (11.5_f64).min((width - LEFT - 16.0) / (subtitle.len() as f64 * 0.54));
    svg += &text(
        LEFT,
        48.0,
        "start",
        FAINT,
        &format!("font-size=\"{size:.1}\""),
        &subtitle,
    );

    let mut value = 0.0;
    while value <= top + step / 2.0 {
        let at = y(value);
        for index in 0..2 {
            let start = LEFT + f64::from(index) * (panel + GAP);
            svg += &format!(
                "<line x1=\"{start:.1}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{GRID}\"/>\n",
                start + panel
            );
        }
        let decimals = if step < 0.1 { 2 } else { 1 };
        svg += &text(
            LEFT - 8.0,
            at + 4.0,
            "end",
            FAINT,
            "",
            &format!("{value:.decimals$}"),
        );
        value += step;
    }
    let middle = (TOP + BOTTOM) / 2.0;
    svg += &text(
        18.0,
        middle,
        "middle",
        INK,
        &format!("transform=\"rotate(-90 18 {middle:.1})\""),
        "load relative to the mean",
    );

    for (index, (name, ranks, colour, balancedness)) in panels.iter().enumerate() {
        let start = LEFT + index as f64 * (panel + GAP);
        let slot = panel / count as f64;
        let bar = (slot * 0.7).min(28.0);
        svg += &text(
            start,
            TOP - 14.0,
            "start",
            colour,
            "font-weight=\"600\"",
            &capitalised(name),
        );
        svg += &text(
            start + panel,
            TOP - 14.0,
            "end",
            INK,
            "",
            &format!("balancedness {balancedness:.4}"),
        );
        for (rank, load) in ranks.iter().enumerate() {
            let centre = start + slot * (rank as f64 + 0.5);
            svg += &format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{bar:.1}\" height=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"0.8\"><title>rank {rank}: {:.3} on average, {:.3} in its most loaded layer</title></rect>\n",
                centre - bar / 2.0,
                y(load.average),
                BOTTOM - y(load.average),
                load.average,
                load.largest
            );
            if layers > 1 {
                svg += &format!(
                    "<path d=\"M{centre:.1} {:.1}V{:.1}M{:.1} {:.1}H{:.1}\" stroke=\"{INK}\" stroke-width=\"1\" fill=\"none\"/>\n",
                    y(load.average),
                    y(load.largest),
                    centre - bar / 3.0,
                    y(load.largest),
                    centre + bar / 3.0
                );
            }
        }
        let mean = y(1.0);
        svg += &format!(
            "<line x1=\"{start:.1}\" x2=\"{:.1}\" y1=\"{mean:.1}\" y2=\"{mean:.1}\" stroke=\"{INK}\" stroke-width=\"1.2\" stroke-dasharray=\"5 4\"/>\n",
            start + panel
        );
        if index == 1 {
            svg += &text(
                start + panel + 3.0,
                mean + 4.0,
                "start",
                INK,
                "font-size=\"10\"",
                "mean",
            );
        }
        svg += &format!(
            "<line x1=\"{start:.1}\" x2=\"{:.1}\" y1=\"{BOTTOM:.1}\" y2=\"{BOTTOM:.1}\" stroke=\"{FAINT}\"/>\n",
            start + panel
        );
        // About eight labels, at round distances.
        let every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
            .into_iter()
            .find(|every| count / every <= 10);
        for rank in (0..count).step_by(every.unwrap_or(count)) {
            let centre = start + slot * (rank as f64 + 0.5);
            svg += &text(
                centre,
                BOTTOM + 16.0,
                "middle",
                FAINT,
                "",
                &rank.to_string(),
            );
        }
        svg += &text(
            start + panel / 2.0,
            BOTTOM + 36.0,
            "middle",
            INK,
            "",
            "rank",
        );
    }
    svg += "</svg>\n";
    svg
}

fn ranks(loads: &[Vec<f64>], means: &[f64]) -> Vec<Rank> {
    let count = loads.first().map_or(0, Vec::len);
    let loaded = means.iter().filter(|mean| **mean > 0.0).count().max(1) as f64;
    (0..count)
        .map(|rank| {
            let relative = || {
                let layers = loads.iter().zip(means).filter(|(_, mean)| **mean > 0.0);
                layers.map(|(layer, mean)| layer[rank] / mean)
            };
            Rank {
                average: relative().sum::<f64>() / loaded,
                largest: relative().fold(0.0, f64::max),
            }
        })
        .collect()
}

fn balancedness(loads: &[Vec<f64>], means: &[f64]) -> f64 {
    let largest: f64 = loads
        .iter()
        .map(|layer| layer.iter().copied().fold(0.0, f64::max))
        .sum();
    if largest > 0.0 {
        (means.iter().sum::<f64>() / largest).min(1.0)
    } else {
        1.0
    }
}

fn text(x: f64, y: f64, anchor: &str, colour: &str, more: &str, content: &str) -> String {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\" {more}>{content}</text>\n"
    )
}

fn capitalised(name: &str) -> String {
    let mut characters = name.chars();
    characters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(characters).collect()
    })
}
