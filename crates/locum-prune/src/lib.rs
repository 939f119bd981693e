//! Make mixture-of-experts checkpoints whose redundant experts are constants (MoNE, arXiv 2507.00390):
//! calibrate on a text, rank the experts, replace the least needed, export, and measure what it cost.
//!
//! # Calibration
//!
//! ```no_run
//! use std::path::Path;
//!
//! use locum_models::{LoadOptions, Model, ModelFiles};
//! use locum_prune::{Calibration, Selection, Sequences, Statistics};
//!
//! let files = ModelFiles::open("OLMoE-1B-7B")?;
//! let mut model = Model::plan(&files, &LoadOptions::default())?;
//! let texts = ["calib.txt".into()];
//! let sequences = Sequences::read(&texts, &files, &model.limits(), Selection::default())?;
//! let calibration = Calibration::new(&files, &model, sequences)?;
//! let out = Path::new("stats.safetensors");
//! let run = calibration.start(&model, out)?;
//! model.load(|_| {})?;
//! run.finish(&model, |progress| println!("{} of {}", progress.done, progress.total))?;
//! let statistics = Statistics::open(out)?;
//! # Ok::<(), locum_prune::PruneError>(())
//! ```
//!
//! # Pruning
//!
//! A [`Subject`] is the model to prune, of which headers are read; of [`Statistics`], scalars are, and
//! sums by channel ([`ChannelSums`]) when one is asked for. [`Settings`] choose a [`Plan`] of it
//! by a [`Metric`], a [`Replacement`] makes the constants, and an [`Export`] writes the new checkpoint
//! without ever loading the old one.
//!
//! ```no_run
//! use locum_prune::{
//!     Amount, Export, ExportOptions, Metric, Replacement, Scope, Settings, Statistics, Subject,
//! };
//!
//! let subject = Subject::open("OLMoE-1B-7B")?;
//! let statistics = Statistics::open("stats.safetensors")?;
//! subject.check_statistics(&statistics)?;
//! let settings = Settings {
//!     metric: Metric::Fusion,
//!     scope: Scope::Layer,
//!     amount: Amount::Ratio(0.25),
//!     min_per_layer: 1,
//!     seed: 0,
//! };
//! let plan = settings.plan(&subject, Some(&statistics))?;
//! let constants = Replacement::Mean.constants(&subject, &plan, Some(&statistics))?;
//! let export = Export::new(&subject, &plan, &constants, &ExportOptions::default())?;
//! println!("{} of {} bytes", export.bytes_after(), export.bytes_before());
//! export.write("OLMoE-1B-7B-MoNE", false, &mut |_| {})?;
//! # Ok::<(), locum_prune::PruneError>(())
//! ```
#![deny(missing_docs)]

mod calibration;
mod channel_sums;
mod choice;
mod collect;
mod constants;
mod error;
mod evaluate;
mod export;
mod file;
mod fingerprint;
mod fixed;
mod merge;
mod metric;
mod output_error;
mod plan;
mod replacement;
mod rhythm;
mod save;
mod sequences;
mod statistics;
mod subject;
mod sums;

pub use calibration::{Calibration, Progress, Run, Shard};
pub use channel_sums::ChannelSums;
pub use choice::{Amount, RankedExpert, RankedLayer, Scope, Settings, rank};
pub use constants::stored_constants;
pub use error::PruneError;
pub use evaluate::{
    Comparison, Encounters, Evaluation, ModelEvaluation, Steps, Windows, check_vocabularies,
    check_windows, evaluate,
};
pub use export::{Export, ExportDirectory, ExportOptions, LeftOut};
pub use fingerprint::fingerprint;
pub use merge::merge;
pub use metric::Metric;
pub use output_error::OutputError;
pub use plan::{LayerPlan, Plan, PlannedExpert};
pub use replacement::{Constants, Replacement};
pub use sequences::{Selection, Sequences};
pub use statistics::{ExpertStatistics, LayerStatistics, Origin, Statistics};
pub use subject::{Subject, SubjectLayer};
