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
#![deny(missing_docs)]

mod calibration;
mod collect;
mod error;
mod file;
mod fingerprint;
mod fixed;
mod save;
mod sequences;
mod statistics;
mod sums;

pub use calibration::{Calibration, Progress, Run, Shard, merge};
pub use error::PruneError;
pub use fingerprint::fingerprint;
pub use sequences::{Selection, Sequences};
pub use statistics::{ExpertStatistics, LayerStatistics, Origin, Statistics};
