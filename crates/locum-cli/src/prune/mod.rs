//! `locum prune`: a model with constants in place of the experts that it needs least.

mod arguments;
mod report;

use std::io::Write;
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};
use locum::checkpoint::CheckpointError;
use locum::prune::{Export, ExportDirectory, ExportOptions, Plan, PruneError, Statistics, Subject};

pub(crate) use arguments::PruneArguments;

use crate::error::CliError;
use crate::output::{Kind, OutputFile, note};
use crate::place::{place, spare};
use report::Report;

pub(crate) fn run(arguments: &PruneArguments) -> Result<(), CliError> {
    prune(arguments).map_err(worded)
}

fn prune(arguments: &PruneArguments) -> Result<(), CliError> {
    // What arguments alone tell comes first, then both places, and only then what takes long: statistics
    // and weights are read.
    let settings = arguments.settings()?;
    let max_shard_bytes = arguments.max_shard_bytes()?;
    arguments.spare_inputs()?;
    let subject = Subject::open(&arguments.model)?;
    let out = arguments.out.as_deref().filter(|_| !arguments.dry_run);
    let directory = out
        .map(|out| ExportDirectory::create(&subject, out, arguments.force))
        .transpose()?;
    let plan_out = arguments.plan_out.as_deref();
    let plan_out = plan_out.map(|path| OutputFile::create(path, Kind::Plan));
    let plan_out = plan_out.transpose()?;
    let statistics = arguments.statistics(&subject)?;
    let plan = match (settings, &arguments.plan, &arguments.experts) {
        (Some(settings), _, _) => settings.plan(&subject, statistics.as_ref())?,
        (None, Some(file), _) => {
            let plan = Plan::read(file)?;
            let named = |error| CliError::Usage(format!("--plan {}: {error}", file.display()));
            plan.check(&subject).map_err(named)?;
            plan
        }
        (None, None, Some(experts)) => Plan::of_list(experts, &subject)?,
        (None, None, None) => return Err(CliError::Usage("nothing says which experts go".into())),
    };
    let constants = arguments
        .replacement()
        .constants(&subject, &plan, statistics.as_ref())?;
    let options = ExportOptions {
        format: arguments.format(),
        max_shard_bytes,
    };
    let export = Export::new(&subject, &plan, &constants, &options)?;
    if let Some(directory) = directory {
        write(&export, directory)?;
    }
    if let Some(plan_out) = plan_out {
        plan_out.write(plan.to_json().as_bytes())?;
    }
    let report = Report {
        subject: &subject,
        plan: &plan,
        constants: &constants,
        export: &export,
        out,
    };
    let text = if arguments.json {
        format!("{:#}\n", report.json())
    } else {
        report.text()
    };
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    out.flush()?;
    Ok(())
}

/// Writes the model, with a bar that vanishes where nobody would see it.
fn write(export: &Export<'_>, directory: ExportDirectory) -> Result<(), CliError> {
    let bar = ProgressBar::new(export.bytes_after()).with_style(
        ProgressStyle::with_template("writing {wide_bar} {decimal_bytes}/{decimal_total_bytes}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let result = export.fill(directory, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    result.map_err(CliError::from)
}

/// What a library says, in the words of the command line.
fn worded(error: CliError) -> CliError {
    let CliError::Prune(error) = error else {
        return error;
    };
    CliError::Usage(match *error {
        PruneError::Setting { setting, reason } => format!("--{setting} {reason}"),
        PruneError::NoStatistics { what } => {
            format!("{what} needs statistics: give --stats FILE, which `locum calibrate` makes")
        }
        PruneError::Checkpoint(CheckpointError::Exists { path }) => format!(
            "{} exists already: give another --out, or --force to replace it",
            path.display()
        ),
        other => return CliError::Prune(Box::new(other)),
    })
}

impl PruneArguments {
    fn statistics(&self, subject: &Subject) -> Result<Option<Statistics>, CliError> {
        let Some(file) = &self.stats else {
            return Ok(None);
        };
        let statistics = Statistics::open(file)?;
        subject
            .check_statistics(&statistics)
            .map_err(|error| CliError::Usage(format!("--stats {}: {error}", file.display())))?;
        let origin = &statistics.origin;
        if !origin.is_complete() {
            note(&format!(
                "warning: {} counts {} of {} sequences: let its calibration end, or put its shards together with \
                 `locum merge-stats`",
                file.display(),
                origin.counted(),
                origin.sequences
            ));
        }
        Ok(Some(statistics))
    }

    /// Refuses to write over what is read, and to lose what is read or written with the directory
    /// that is replaced.
    fn spare_inputs(&self) -> Result<(), CliError> {
        let inputs = [&self.stats, &self.plan, &self.experts];
        if let Some(plan_out) = &self.plan_out {
            let files = inputs.into_iter().flatten();
            spare(plan_out, files.chain([&self.model]).map(PathBuf::as_path))?;
        }
        if self.dry_run {
            return Ok(());
        }
        let Some(given) = &self.out else {
            return Ok(());
        };
        let out = place(given);
        if let Some(plan_out) = &self.plan_out
            && place(plan_out).starts_with(&out)
        {
            return Err(CliError::file(
                "write",
                plan_out,
                format!(
                    "it is in {}, which --out makes: give a place beside it",
                    given.display()
                ),
            ));
        }
        for file in inputs.into_iter().flatten() {
            if file.exists() && place(file).starts_with(&out) {
                return Err(CliError::file(
                    "replace",
                    given,
                    format!("{} is in it: move that elsewhere", file.display()),
                ));
            }
        }
        Ok(())
    }
}
