//! `locum`: generate from, inspect and compare mixture-of-experts checkpoints.

mod axis;
mod calibrate;
mod eplb;
mod error;
mod eval;
mod generate;
mod inspect;
mod logits;
mod merge_stats;
mod output;
mod place;
mod prune;
mod report;
mod source;
mod table;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::CliError;

/// Every layer takes megabytes for its results and gives them back. The system's allocator returns
/// such memory to the kernel each time, and a tenth of a long prompt's time goes to getting it again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(
    name = "locum",
    version,
    about = "Run and make mixture-of-experts models whose pruned experts are constants",
    after_help = "Examples:\n  locum generate --prompt \"The Lord said unto\"\n  locum inspect\n\nTo prune a model:\n  locum calibrate MODEL --text calib.txt --out stats.safetensors\n  locum prune MODEL --stats stats.safetensors --ratio 0.25 --out PRUNED\n  locum eval PRUNED --text heldout.txt --against MODEL\n  locum report PRUNED --out report.html\n\nEnvironment:\n  LOCUM_MODEL  the model directory where --model is not given\n  LOCUM_CPU    the CPU kernels: portable, avx2, avx512 or amx (default: the best that there are)\n  LOCUM_LOG    what is logged: error, warn (default), info, debug, trace"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
// There is one of these per run: its size does not matter.
#[allow(clippy::large_enum_variant)]
enum Command {
    /// Continue a prompt
    Generate(generate::GenerateArguments),
    /// Show which experts of a model are constants, and what that saves
    Inspect(inspect::InspectArguments),
    /// Write a model's logits for given token ids, to compare with another implementation
    Logits(logits::LogitsArguments),
    /// Count on a text what each expert of a model does, for `locum prune`
    Calibrate(calibrate::CalibrateArguments),
    /// Put the statistics of shards together
    MergeStats(merge_stats::MergeStatsArguments),
    /// Replace the experts that a model needs least by constants
    Prune(prune::PruneArguments),
    /// Measure how well a model predicts a text, and how far it is from another
    Eval(eval::EvalArguments),
    /// Draw a model's experts, or what calibration knows of them, as a page
    Report(report::ReportArguments),
    /// Plan where expert replicas go
    #[command(subcommand)]
    Eplb(eplb::EplbCommand),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("LOCUM_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn")),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
    let result = match arguments.command {
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Logits(arguments) => logits::run(&arguments),
        Command::Calibrate(arguments) => calibrate::run(&arguments),
        Command::MergeStats(arguments) => merge_stats::run(&arguments),
        Command::Prune(arguments) => prune::run(&arguments),
        Command::Eval(arguments) => eval::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Eplb(command) => eplb::run(&command),
    };
    match result {
        // Whoever reads has seen enough: that is no failure.
        Ok(()) | Err(CliError::ClosedPipe) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::from(2)
        }
    }
}
