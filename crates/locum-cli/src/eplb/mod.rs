//! `locum eplb`: plan expert replicas from recorded loads, and replay windows.

mod arguments;
mod blame;
mod input;
mod loads;
mod outputs;
mod picture;
mod plan;
mod simulate;

use clap::Subcommand;

use crate::error::CliError;

#[derive(Subcommand)]
#[command(
    after_help = "Example:\n  printf '600,560,120,120,20,10,10,10\\n' > loads.csv\n  locum eplb plan --load loads.csv --ranks 8 --slots 16"
)]
pub(crate) enum EplbCommand {
    /// Decide which ranks hold which experts, and how often
    Plan(plan::PlanArguments),
    /// Replay load windows: plan on one, serve the next
    Simulate(simulate::SimulateArguments),
}

pub(crate) fn run(command: &EplbCommand) -> Result<(), CliError> {
    match command {
        EplbCommand::Plan(arguments) => plan::run(arguments),
        EplbCommand::Simulate(arguments) => simulate::run(arguments),
    }
}

/// `1 layer`, `2 layers`.
fn counted(count: usize, one: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {one}{plural}")
}

/// What moves cost, where the bytes of an expert are known.
fn moved(count: u64, expert_bytes: Option<u64>) -> String {
    expert_bytes.map_or_else(|| "–".into(), |_| crate::output::bytes(count))
}

/// Four significant digits, without an exponent while that is readable.
fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if !(1e-3..1e7).contains(&size) => format!("{value:.3e}"),
        size if size >= 1000.0 => format!("{value:.0}"),
        size => {
            let decimals = (3.0 - size.log10().floor()).clamp(0.0, 6.0) as usize;
            format!("{value:.decimals$}")
        }
    }
}

/// Rows under a header, columns right-aligned.
fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let header = header.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&header).chain(rows) {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:>width$}"))
            .collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{figure, table};

    #[test]
    fn figures_keep_four_digits() {
        let shown = [
            0.0,
            0.000_123_4,
            0.012_345,
            1.0,
            196.666_7,
            1234.5,
            9_999_999.0,
            12_345_678.0,
        ];
        assert_eq!(
            shown.map(figure),
            [
                "0", "1.234e-4", "0.01235", "1.000", "196.7", "1234", "9999999", "1.235e7"
            ]
        );
    }

    #[test]
    fn columns_line_up() {
        let rows = [
            vec!["1".into(), "22".into()],
            vec!["333".into(), String::new()],
        ];
        assert_eq!(table(&["a", "b"], &rows), "  a   b\n  1  22\n333\n");
    }
}
