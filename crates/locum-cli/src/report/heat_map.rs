//! Layer × expert as a picture: a cell per expert, its value a colour, constants marked.

use std::fmt::Write;

use super::colour::{Scale, colour};
use super::markup::{escaped, label, number};

/// One picture.
pub(super) struct HeatMap {
    /// What the picture is called among others: a word.
    pub(super) id: &'static str,
    pub(super) title: String,
    /// What the colour says: `share of tokens`.
    pub(super) unit: String,
    /// What it means that a cell has no value.
    pub(super) without: Option<&'static str>,
    pub(super) rows: Vec<Row>,
    /// What the marked cells are, where cells are marked.
    pub(super) marked: Option<&'static str>,
}

/// A layer.
pub(super) struct Row {
    pub(super) layer: u32,
    /// By logical expert.
    pub(super) cells: Vec<Cell>,
}

/// An expert.
pub(super) struct Cell {
    pub(super) value: Option<f64>,
    pub(super) marked: bool,
    /// What else is said of it.
    pub(super) note: Option<&'static str>,
}

/// Colours of both themes, in the page and in a file of its own.
pub(super) const STYLE: &str = "\
.picture{font-family:system-ui,'Segoe UI',Helvetica,Arial,sans-serif;font-size:12px}\
.picture .paper{fill:#ffffff}.picture text{fill:#1f2933}.picture .faint{fill:#52606d}\
.picture .none{fill:#dde2e8}.picture .mark{fill:none;stroke:#ffffff;stroke-linecap:round}\
.picture .under{fill:none;stroke:#16202a;stroke-linecap:round}.picture .line{stroke:#9aa5b1}\
.picture .grid{stroke:#e4e7eb}.picture .kept{fill:#2f6f8f}.picture .gone{fill:#cbd2d9}.picture .loss{fill:#b4472f}\
@media(prefers-color-scheme:dark){.picture .paper{fill:#14191f}.picture text{fill:#e4e7eb}\
.picture .faint{fill:#a3b0bd}.picture .none{fill:#323c47}.picture .line{stroke:#616e7c}\
.picture .grid{stroke:#2b343d}.picture .kept{fill:#5aa5c8}.picture .gone{fill:#3e4c59}.picture .loss{fill:#e0745a}}";

const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
/// Room for the name of a picture in a file of its own.
const HEADING: f64 = 40.0;
const NARROWEST: f64 = 380.0;

/// Where the cells are.
struct Grid {
    cell: f64,
    row: f64,
    gap: f64,
    columns: usize,
}

impl Grid {
    fn of(rows: &[Row]) -> Self {
        let columns = rows.iter().map(|row| row.cells.len()).max().unwrap_or(0);
        let cell = (896.0 / columns.max(1) as f64).floor().clamp(5.0, 26.0);
        let row = cell.max(9.0);
        let gap = if cell >= 8.0 { 1.0 } else { 0.5 };
        Self {
            cell,
            row,
            gap,
            columns,
        }
    }

    fn width(&self) -> f64 {
        self.cell * self.columns as f64
    }
}

impl HeatMap {
    fn grid(&self) -> Grid {
        Grid::of(&self.rows)
    }

    pub(super) fn width(&self) -> f64 {
        (LEFT + self.grid().width() + RIGHT).max(NARROWEST)
    }

    pub(super) fn height(&self) -> f64 {
        let entries = usize::from(self.names_marked()) + usize::from(self.names_without());
        92.0 + self.grid().row * self.rows.len() as f64 + 62.0 + 19.0 * entries as f64
    }

    /// Draws the picture with its top at `top`.
    pub(super) fn draw(&self, svg: &mut String, top: f64) {
        let grid = self.grid();
        let scale = Scale::of(self.cells().filter_map(|cell| cell.value));
        text(
            svg,
            LEFT,
            top + 24.0,
            "start",
            "class=\"title\" font-size=\"15\" font-weight=\"600\"",
            &self.title,
        );
        let how = match scale {
            Some(scale) if scale.is_logarithmic() => ", logarithmic",
            _ => "",
        };
        text(
            svg,
            LEFT,
            top + 43.0,
            "start",
            "class=\"faint\"",
            &format!("Colour: {}{how}", self.unit),
        );

        let first = top + 92.0;
        text(svg, LEFT, top + 66.0, "start", "", "expert");
        for expert in (0..grid.columns).step_by(step(grid.cell, 26.0)) {
            let x = LEFT + grid.cell * (expert as f64 + 0.5);
            text(
                svg,
                x,
                first - 6.0,
                "middle",
                "class=\"faint\" font-size=\"10\"",
                &expert.to_string(),
            );
        }
        let middle = first + grid.row * self.rows.len() as f64 / 2.0;
        text(
            svg,
            16.0,
            middle,
            "middle",
            &format!("transform=\"rotate(-90 16 {middle:.1})\""),
            "layer",
        );
        for row in (0..self.rows.len()).step_by(step(grid.row, 12.0)) {
            let y = first + grid.row * (row as f64 + 0.5) + 3.5;
            text(
                svg,
                LEFT - 7.0,
                y,
                "end",
                "class=\"faint\" font-size=\"10\"",
                &self.rows[row].layer.to_string(),
            );
        }
        let mut marks = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let y = first + grid.row * index as f64;
            for (expert, cell) in row.cells.iter().enumerate() {
                let x = LEFT + grid.cell * expert as f64;
                self.cell(svg, &grid, scale, (x, y), (row.layer, expert), cell);
                if cell.marked && self.marked.is_some() {
                    marks += &mark(x, y, grid.cell - grid.gap, grid.row - grid.gap);
                }
            }
        }
        draw_marks(svg, grid.cell, &marks);
        self.legend(
            svg,
            &grid,
            scale,
            first + grid.row * self.rows.len() as f64 + 16.0,
        );
    }

    fn names_marked(&self) -> bool {
        self.marked.is_some() && self.cells().any(|cell| cell.marked)
    }

    fn names_without(&self) -> bool {
        let scale = Scale::of(self.cells().filter_map(|cell| cell.value));
        let logarithmic = scale.is_some_and(Scale::is_logarithmic);
        let none = |cell: &Cell| cell.value.is_none() || logarithmic && cell.value == Some(0.0);
        self.without.is_some() && self.cells().any(none)
    }

    fn cells(&self) -> impl Iterator<Item = &Cell> {
        self.rows.iter().flat_map(|row| &row.cells)
    }

    fn cell(
        &self,
        svg: &mut String,
        grid: &Grid,
        scale: Option<Scale>,
        (x, y): (f64, f64),
        (layer, expert): (u32, usize),
        cell: &Cell,
    ) {
        let shown = cell
            .value
            .zip(scale)
            .filter(|(value, scale)| *value > 0.0 || !scale.is_logarithmic());
        let marked = if cell.marked { " marked" } else { "" };
        let (class, fill) = match shown {
            Some((value, scale)) => ("", format!(" fill=\"{}\"", colour(scale.at(value)))),
            None => (" none", String::new()),
        };
        let mut said = format!("layer {layer}, expert {expert}");
        if let Some(value) = cell.value {
            let _ = write!(said, ": {} {}", number(value), self.unit);
        }
        for note in cell
            .note
            .into_iter()
            .chain(self.marked.filter(|_| cell.marked))
        {
            let _ = write!(said, ", {note}");
        }
        let _ = writeln!(
            svg,
            "<rect class=\"cell{class}{marked}\"{fill} x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
            grid.cell - grid.gap,
            grid.row - grid.gap,
            escaped(said)
        );
    }

    fn legend(&self, svg: &mut String, grid: &Grid, scale: Option<Scale>, top: f64) {
        const WIDTH: f64 = 280.0;
        let mut y = top;
        if let Some(scale) = scale {
            let _ = write!(svg, "<linearGradient id=\"{}-colours\">", self.id);
            for stop in 0..=16 {
                let at = f64::from(stop) / 16.0;
                let _ = write!(svg, "<stop offset=\"{at}\" stop-color=\"{}\"/>", colour(at));
            }
            let _ = writeln!(
                svg,
                "</linearGradient>\n<rect fill=\"url(#{}-colours)\" x=\"{LEFT}\" y=\"{top:.1}\" width=\"{WIDTH}\" height=\"11\"/>",
                self.id
            );
            for tick in scale.ticks() {
                let at = LEFT + WIDTH * tick.at;
                let _ = writeln!(
                    svg,
                    "<line class=\"line\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
                    top + 11.0,
                    top + 15.0
                );
                text(
                    svg,
                    at,
                    top + 27.0,
                    "middle",
                    "class=\"faint\" font-size=\"10\"",
                    &format!(
                        "{}{}",
                        if tick.and_below { "≤ " } else { "" },
                        label(tick.value)
                    ),
                );
            }
            y += 42.0;
        }
        let mut entries: Vec<(String, &str)> = Vec::new();
        if let Some(marked) = self.marked.filter(|_| self.names_marked()) {
            // As in the map: small cells have other marks.
            let (width, height) = (
                grid.cell.min(13.0) - grid.gap,
                grid.row.min(13.0) - grid.gap,
            );
            let mut symbol = format!(
                "<rect fill=\"{}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width}\" height=\"{height}\"/>\n",
                colour(0.5)
            );
            draw_marks(
                &mut symbol,
                grid.cell.min(13.0),
                &mark(LEFT, y, width, height),
            );
            entries.push((symbol, marked));
        }
        if let Some(without) = self.without.filter(|_| self.names_without()) {
            let y = y + 19.0 * entries.len() as f64;
            let symbol = format!(
                "<rect class=\"none\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"12\" height=\"12\"/>\n"
            );
            entries.push((symbol, without));
        }
        for (index, (symbol, name)) in entries.into_iter().enumerate() {
            svg.push_str(&symbol);
            let y = y + 19.0 * index as f64 + 10.0;
            text(svg, LEFT + 20.0, y, "start", "", name);
        }
    }
}

/// White on a dark rim, so that marks are seen on every colour.
fn draw_marks(svg: &mut String, cell: f64, marks: &str) {
    if marks.is_empty() {
        return;
    }
    let width = (cell * 0.11).clamp(1.0, 2.0);
    for (class, width) in [("under", width + 1.6), ("mark", width)] {
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" stroke-width=\"{width:.1}\" pointer-events=\"none\" d=\"{marks}\"/>"
        );
    }
}

/// A cross in the middle of a cell, or an upright stroke where there is no room for one.
fn mark(x: f64, y: f64, width: f64, height: f64) -> String {
    if width < 7.0 {
        let (centre, length) = (x + width / 2.0, (height * 0.4).min(5.0));
        let start = y + (height - length) / 2.0;
        return format!("M{centre:.2} {start:.2}v{length:.2}");
    }
    let arm = width.min(height) * 0.24;
    let (cx, cy) = (x + width / 2.0, y + height / 2.0);
    format!(
        "M{:.2} {:.2}l{side:.2} {side:.2}m0 -{side:.2}l-{side:.2} {side:.2}",
        cx - arm,
        cy - arm,
        side = 2.0 * arm
    )
}

/// A distance between labels, in cells of `size`, that leaves each at least `room`.
fn step(size: f64, room: f64) -> usize {
    [1, 2, 4, 8, 16, 32, 64, 128]
        .into_iter()
        .find(|count| size * *count as f64 >= room)
        .unwrap_or(256)
}

pub(super) fn text(svg: &mut String, x: f64, y: f64, anchor: &str, more: &str, content: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{}</text>",
        escaped(content)
    );
}

/// Pictures one below the other as a file of their own, or (`standalone` false) as a part of a page.
pub(super) fn svg(maps: &[&HeatMap], name: &str, description: &str, standalone: bool) -> String {
    let width = maps.iter().map(|map| map.width()).fold(0.0, f64::max);
    let start = if standalone { HEADING } else { 0.0 };
    let height: f64 = start + maps.iter().map(|map| map.height()).sum::<f64>();
    let id = maps.first().map_or("picture", |map| map.id);
    let mut svg = opening(id, (width, height), name, description, standalone);
    if standalone {
        text(
            &mut svg,
            LEFT,
            32.0,
            "start",
            "font-size=\"18\" font-weight=\"600\"",
            name,
        );
    }
    let mut top = start;
    for map in maps {
        map.draw(&mut svg, top);
        top += map.height();
    }
    svg.push_str("</svg>\n");
    svg
}

pub(super) fn opening(
    id: &str,
    (width, height): (f64, f64),
    name: &str,
    description: &str,
    standalone: bool,
) -> String {
    let mut svg = format!(
        "<svg {}class=\"picture\" role=\"img\" aria-labelledby=\"{id}-title {id}-description\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\">\n\
         <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-description\">{}</desc>\n",
        if standalone {
            "xmlns=\"http://www.w3.org/2000/svg\" "
        } else {
            ""
        },
        escaped(name),
        escaped(description)
    );
    if standalone {
        let _ = writeln!(
            svg,
            "<style>{STYLE}</style>\n<rect class=\"paper\" width=\"100%\" height=\"100%\"/>"
        );
    }
    svg
}
