//! `locum eplb simulate`.

use std::io::Write;

use clap::Args;
use eplb::{Duplicates, Loads, Placement, Plan, Problem};
use serde_json::{Value, json};

use super::arguments::{SharedArguments, Whole, summary, whole};
use super::blame::Blame;
use super::{counted, loads, moved, plan, table};
use crate::error::CliError;

#[derive(Args)]
#[command(
    after_help = "Example:\n  locum eplb simulate --load windows.json --ranks 32 --slots 288 --max-moves 500\n\nThe plan made on a window serves the next. The first starts from experts in\norder, as engines do; the column \"in order\" is the window without balancing."
)]
pub(crate) struct SimulateArguments {
    #[command(flatten)]
    shared: SharedArguments,

    /// Plan on this many of the last windows
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    history: Whole,

    /// Plan for the mean of the history plus this many deviations
    #[arg(long, value_name = "Z", allow_negative_numbers = true)]
    z: Option<f64>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One window that was served.
struct Served {
    window: usize,
    moves: usize,
    bytes: u64,
    planned: f64,
    served: f64,
    in_order: f64,
}

pub(crate) fn run(arguments: &SimulateArguments) -> Result<(), CliError> {
    let shared = &arguments.shared;
    let planner = shared.planner()?;
    let cluster = shared.cluster(&[])?;
    let (slots, groups) = (shared.slots()?, shared.groups()?);
    let expert_bytes = shared.expert_bytes()?;
    let history: usize = whole("--history", arguments.history)?;
    if history == 0 {
        return Err(CliError::Usage(
            "--history: 0 windows; use at least 1".into(),
        ));
    }
    let loads = loads::read(&shared.load, shared.tensor.as_deref())?;
    let blame = Blame {
        load: &shared.load,
        current: None,
    };
    let wrong = |error| blame.error(error);
    let windows = loads.windows();
    if windows.len() < 2 {
        return Err(CliError::Usage(format!(
            "{}: 1 window; a plan on one serves the next, so at least 2 are needed",
            shared.load.display()
        )));
    }
    let problem =
        |windows: &[Vec<Vec<f64>>], current: Option<&Placement>| -> Result<Problem, CliError> {
            let loads = Loads::from_windows(windows.to_vec()).map_err(wrong)?;
            let mut builder = Problem::builder(loads, cluster.clone(), slots.clone())
                .groups(groups)
                .uneven(shared.uneven)
                .summary(summary(arguments.z))
                .expert_bytes(expert_bytes.unwrap_or(0));
            if let Some(current) = current {
                builder = builder.current(current.clone());
            }
            builder.build().map_err(wrong)
        };
    let serve = |window: &Vec<Vec<f64>>, placement: &Placement| -> Result<f64, CliError> {
        let problem = problem(std::slice::from_ref(window), None)?;
        let plan = Plan::new("serve", &problem, placement.clone(), Duplicates::Report, "");
        Ok(plan.map_err(wrong)?.balancedness)
    };

    let first = problem(&windows[..1], None)?;
    let shape = planner.plan(&first).map_err(wrong)?.placement;
    let in_order = plan::in_order(&first, &shape)?;
    let mut placement = in_order.clone();
    let mut rows = Vec::with_capacity(windows.len() - 1);
    for window in 1..windows.len() {
        let history = &windows[window.saturating_sub(history)..window];
        let problem = problem(history, Some(&placement))?;
        let plan = planner.plan(&problem).map_err(wrong)?;
        rows.push(Served {
            window,
            moves: plan.moves,
            bytes: plan.bytes,
            planned: plan.balancedness,
            served: serve(&windows[window], &plan.placement)?,
            in_order: serve(&windows[window], &in_order)?,
        });
        placement = plan.placement;
    }

    let text = if arguments.json {
        format!("{}\n", report(planner.name(), &rows))
    } else {
        show(planner.name(), &rows, expert_bytes)
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

fn mean(rows: &[Served], value: fn(&Served) -> f64) -> f64 {
    rows.iter().map(value).sum::<f64>() / rows.len() as f64
}

fn report(planner: &str, rows: &[Served]) -> Value {
    let windows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "window": row.window,
                "moves": row.moves,
                "bytes": row.bytes,
                "planned_balancedness": row.planned,
                "served_balancedness": row.served,
                "in_order_balancedness": row.in_order,
            })
        })
        .collect();
    json!({
        "planner": planner,
        "windows": windows,
        "moves": rows.iter().map(|row| row.moves).sum::<usize>(),
        "bytes": rows.iter().map(|row| row.bytes).fold(0, u64::saturating_add),
        "mean_served_balancedness": mean(rows, |row| row.served),
        "mean_in_order_balancedness": mean(rows, |row| row.in_order),
    })
}

fn show(planner: &str, rows: &[Served], expert_bytes: Option<u64>) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.window.to_string(),
                row.moves.to_string(),
                moved(row.bytes, expert_bytes),
                format!("{:.4}", row.planned),
                format!("{:.4}", row.served),
                format!("{:.4}", row.in_order),
            ]
        })
        .collect();
    let mut text = table(
        &["window", "moves", "bytes", "planned", "served", "in order"],
        &cells,
    );
    text += &format!(
        "\nplanner   {planner}\nserved    {:.4} on average, {:.4} with experts in order\nmoves     {} in {}\n",
        mean(rows, |row| row.served),
        mean(rows, |row| row.in_order),
        rows.iter().map(|row| row.moves).sum::<usize>(),
        counted(rows.len(), "plan")
    );
    text
}
