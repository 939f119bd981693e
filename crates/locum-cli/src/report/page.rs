//! A report as one page that needs nothing else: no network, no scripts.

use std::fmt::Write;

use super::figures::{Figures, LayerFigures};
use super::heat_map::{STYLE, svg};
use super::markup::{escaped, number, runs};
use crate::output::bytes;

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2933;--faint:#52606d;--paper:#ffffff;--line:#d5dbe1;--soft:#f5f7f9}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e7eb;--faint:#a3b0bd;--paper:#14191f;--line:#343e48;--soft:#1b2128}}\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,'Segoe UI',Helvetica,Arial,sans-serif}\
main{max-width:90rem;margin:0 auto;padding:1.5rem 1.25rem 3rem}h1{font-size:1.6rem;line-height:1.25;margin:0 0 .4rem;overflow-wrap:anywhere}\
h2{font-size:1.2rem;margin:2.2rem 0 .4rem}p{max-width:46rem;margin:.3rem 0 .8rem}.faint{color:var(--faint)}\
dl{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.15rem 1.25rem;margin:1rem 0}dt{color:var(--faint)}\
dd{margin:0;overflow-wrap:anywhere}.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.4rem;margin:.6rem 0}\
.scroll:focus-visible{outline:2px solid #2f6f8f}.scroll svg{display:block}.row{display:flex;flex-wrap:wrap;gap:0 1.2rem;align-items:flex-start}.picture-frame{width:fit-content;max-width:100%}\
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums;width:100%}\
th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:top}\
thead th{font-weight:600;background:var(--soft)}tbody th{font-weight:400}tfoot td,tfoot th{font-weight:600;border-bottom:0}\
td.ids,th.ids{text-align:left;white-space:normal;min-width:9rem}\
@media(max-width:40rem){dl{grid-template-columns:minmax(0,1fr);gap:0}dt{margin-top:.5rem}main{padding:1rem .8rem 2rem}}\
@media print{.scroll{overflow:visible;border:0}}";

/// A column of the table: its head, and a layer's cell; nothing where that is not known.
struct Column {
    head: &'static str,
    cell: fn(&LayerFigures) -> Option<String>,
}

const COLUMNS: [Column; 8] = [
    Column {
        head: "experts",
        cell: |layer| Some(layer.experts.to_string()),
    },
    Column {
        head: "retained",
        cell: |layer| Some(layer.retained().to_string()),
    },
    Column {
        head: "never routed",
        cell: |layer| layer.never_routed.map(|count| count.to_string()),
    },
    Column {
        head: "routes %",
        cell: |layer| layer.route_share.map(|share| number(100.0 * share)),
    },
    Column {
        head: "weight %",
        cell: |layer| layer.weight_share.map(|share| number(100.0 * share)),
    },
    Column {
        head: "error %",
        cell: |layer| layer.error.map(|error| number(100.0 * error)),
    },
    Column {
        head: "constants’ norms",
        cell: |layer| {
            let (low, high) = layer.norms?;
            Some(format!("{}–{}", number(low), number(high)))
        },
    },
    Column {
        head: "saved",
        cell: |layer| layer.saved.map(bytes),
    },
];

/// The whole page: HTML that is well-formed XML too.
pub(super) fn page(figures: &Figures) -> String {
    let title = escaped(&figures.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
         <title>{title}</title>\n<style>{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n<p>{}</p>\n<dl>\n",
        escaped(&figures.lead)
    );
    for (name, value) in &figures.facts {
        let _ = writeln!(
            page,
            "<dt>{}</dt><dd>{}</dd>",
            escaped(name),
            escaped(value)
        );
    }
    page.push_str("</dl>\n<div class=\"row\">\n");
    for map in &figures.maps {
        let description = format!(
            "A row per layer, a column per expert; the colour of a cell is the expert's {}.",
            map.unit
        );
        let picture = svg(&[map], &map.title, &description, false);
        scrolled(&mut page, &map.title, &picture, " picture-frame");
    }
    page.push_str("</div>\n");
    let (_, substituted) = figures.total();
    if substituted > 0 {
        heading(&mut page, "Retained experts per layer");
        page.push_str("<p>Blue: retained. Grey: constants.</p>\n");
        scrolled(
            &mut page,
            "Retained experts per layer",
            &figures.retained_bars().svg(),
            " picture-frame",
        );
    }
    if let Some(bars) = figures.error_bars() {
        heading(&mut page, "Error per layer");
        page.push_str(
            "<p>The squared error that constants make in the output of a layer’s routed experts over the \
             calibration text, relative to that output: Σ‖w·y − w·c‖² over the routes to substituted \
             experts, by Σ‖w·y‖² over all routes. Not part of it: cross terms between the experts of one \
             token, shared experts, and what pruned layers change for those after them.</p>\n",
        );
        scrolled(&mut page, "Error per layer", &bars.svg(), " picture-frame");
    }
    heading(&mut page, "Layers");
    table(&mut page, figures);
    let _ = writeln!(
        page,
        "<p class=\"faint\">Made by locum {}.</p>\n</main>\n</body>\n</html>",
        env!("CARGO_PKG_VERSION")
    );
    page
}

fn heading(page: &mut String, text: &str) {
    let _ = writeln!(page, "<h2>{}</h2>", escaped(text));
}

/// What may be wider than the screen scrolls by itself, with the keyboard too.
fn scrolled(page: &mut String, name: &str, content: &str, class: &str) {
    let _ = writeln!(
        page,
        "<div class=\"scroll{class}\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n{content}</div>",
        escaped(name)
    );
}

fn table(page: &mut String, figures: &Figures) {
    let shown: Vec<&Column> = COLUMNS
        .iter()
        .filter(|column| {
            figures
                .layers
                .iter()
                .any(|layer| (column.cell)(layer).is_some())
        })
        .collect();
    let (experts, substituted) = figures.total();
    let mut table = String::from("<table>\n<thead><tr><th scope=\"col\">layer</th>");
    for column in &shown {
        let _ = write!(table, "<th scope=\"col\">{}</th>", column.head);
    }
    if substituted > 0 {
        let _ = write!(
            table,
            "<th scope=\"col\" class=\"ids\">{}</th>",
            figures.substituted
        );
    }
    table.push_str("</tr></thead>\n<tbody>\n");
    for layer in &figures.layers {
        let _ = write!(table, "<tr><th scope=\"row\">{}</th>", layer.layer);
        for column in &shown {
            let cell = (column.cell)(layer).unwrap_or_else(|| "–".into());
            let _ = write!(table, "<td>{cell}</td>");
        }
        if substituted > 0 {
            let _ = write!(table, "<td class=\"ids\">{}</td>", runs(&layer.substituted));
        }
        table.push_str("</tr>\n");
    }
    let _ = write!(
        table,
        "</tbody>\n<tfoot><tr><th scope=\"row\">total</th><td>{experts}</td><td>{}</td>",
        experts - substituted
    );
    for column in shown.iter().skip(2) {
        let saved = figures.layers.iter().filter_map(|layer| layer.saved).sum();
        let total = match column.head {
            "saved" => bytes(saved),
            "never routed" => figures
                .layers
                .iter()
                .filter_map(|layer| layer.never_routed)
                .sum::<usize>()
                .to_string(),
            _ => String::new(),
        };
        let _ = write!(table, "<td>{total}</td>");
    }
    if substituted > 0 {
        let _ = write!(table, "<td class=\"ids\">{substituted}</td>");
    }
    table.push_str("</tr></tfoot>\n</table>\n");
    scrolled(page, "Layers", &table, "");
    if shown.iter().any(|column| column.head == "routes %") {
        page.push_str(
            "<p class=\"faint\">routes %, weight %: shares of the calibration’s routes and of its router \
             weight that lead to these experts.</p>\n",
        );
    }
}
