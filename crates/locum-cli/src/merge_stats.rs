//! `locum merge-stats`: the statistics of shards, put together.

use std::path::PathBuf;

use clap::Args;
use locum::prune::merge;

use crate::error::CliError;
use crate::output::note;

#[derive(Args)]
#[command(
    after_help = "What is written does not depend on how a calibration was sharded, nor on the order of the files.\n\nExample:\n  locum merge-stats stats-1.safetensors stats-2.safetensors --out stats.safetensors"
)]
pub(crate) struct MergeStatsArguments {
    /// Statistics of shards of one calibration
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Where to write the statistics
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn run(arguments: &MergeStatsArguments) -> Result<(), CliError> {
    let origin = merge(&arguments.files, &arguments.out)?;
    let rest = match origin.sequences.saturating_sub(origin.counted()) {
        0 => String::new(),
        rest => format!("; {rest} are in no file"),
    };
    note(&format!(
        "{} of {} sequences{rest}; wrote {}",
        origin.counted(),
        origin.sequences,
        arguments.out.display()
    ));
    Ok(())
}
