//! `locum calibrate`: what each expert of a model does on a text.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use locum::models::{Model, ModelFiles};
use locum::prune::{Calibration, Selection, Sequences, Shard};

use crate::error::CliError;
use crate::output::{announce, note};
use crate::source::{ComputeArguments, load};

#[derive(Args)]
#[command(allow_negative_numbers = true)]
#[command(
    after_help = "The text is tokenized without special tokens, each file for itself, and cut into windows of --length\ntokens; what is left at the end is dropped. Progress is kept beside --out, as FILE.partial: the same\ncommand goes on where a process was killed.\n\nExamples:\n  locum calibrate OLMoE-1B-7B --text calib.txt --sequences 128 --seed 1 --out stats.safetensors\n  locum calibrate OLMoE-1B-7B --text calib.txt --shard 3/8 --out stats-3.safetensors\n  locum merge-stats stats-*.safetensors --out stats.safetensors"
)]
pub(crate) struct CalibrateArguments {
    /// A local Hugging Face model directory
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// The calibration text, UTF-8; of several files the tokens follow each other
    #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
    text: Vec<PathBuf>,

    /// Tokens of a sequence [default: 2048, or the model's context where it is shorter]
    #[arg(long, value_name = "L")]
    length: Option<usize>,

    /// How many sequences [default: all]
    #[arg(long, value_name = "N")]
    sequences: Option<usize>,

    /// Draw the sequences at random instead of taking the first ones
    #[arg(long, value_name = "S", requires = "sequences")]
    seed: Option<u64>,

    /// Sequences that are computed at once [default: about 1024 tokens of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,

    /// Count one of several parts, for `locum merge-stats`: 1/8 to 8/8
    #[arg(long, value_name = "I/N", value_parser = shard)]
    shard: Option<Shard>,

    /// Where to write the statistics
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    compute: ComputeArguments,
}

fn shard(text: &str) -> Result<Shard, String> {
    let parse = || {
        let (index, count) = text.split_once('/')?;
        let (index, count) = (index.parse().ok()?, count.parse().ok()?);
        (1..=count)
            .contains(&index)
            .then_some(Shard { index, count })
    };
    parse().ok_or_else(|| "must be I/N with I from 1 to N, such as 3/8".into())
}

impl CalibrateArguments {
    fn calibration(&self, files: &ModelFiles, model: &Model) -> Result<Calibration, CliError> {
        let selection = Selection {
            length: self.length,
            sequences: self.sequences,
            seed: self.seed,
        };
        let sequences = Sequences::read(&self.text, files, &model.limits(), selection)?;
        let mut calibration = Calibration::new(files, model, sequences)?;
        if let Some(batch) = self.batch {
            calibration = calibration.with_batch(batch as usize);
        }
        if let Some(shard) = self.shard {
            calibration = calibration.with_shard(shard)?;
        }
        Ok(calibration)
    }
}

pub(crate) fn run(arguments: &CalibrateArguments) -> Result<(), CliError> {
    let options = arguments.compute.options()?;
    let files = ModelFiles::open(&arguments.model)?;
    let mut model = Model::plan(&files, &options)?;
    let calibration = arguments.calibration(&files, &model)?;
    let run = calibration.start(&model, &arguments.out)?;
    if run.is_finished() {
        note(&format!(
            "already counted: {} sequences are in {}",
            run.progress().total,
            arguments.out.display()
        ));
        return Ok(run.finish(&model, |_| {})?);
    }
    let (length, batch) = (calibration.length(), calibration.batch());
    announce(
        model.memory(),
        length * batch,
        &[
            ("statistics", calibration.bytes(&model)),
            ("outputs of experts", calibration.outputs_bytes(&model)),
        ],
    );
    let before = run.progress().done;
    if before > 0 {
        note(&format!(
            "resumed: {before} of {} sequences are counted already",
            run.progress().total
        ));
    }
    load(&mut model)?;

    let bar = ProgressBar::new(run.progress().total as u64).with_style(
        ProgressStyle::with_template("calibrating {wide_bar} {pos}/{len} sequences, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    // What was counted before took no time of this process.
    bar.set_position(before as u64);
    bar.tick();
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_secs(1));
    let start = Instant::now();
    let mut done = before;
    let result = run.finish(&model, |progress| {
        done = progress.done;
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    result?;
    let seconds = start.elapsed().as_secs_f64();
    let speed = ((done - before) * length) as f64 / seconds.max(f64::MIN_POSITIVE);
    note(&format!(
        "{done} sequences of {length} tokens counted, {speed:.0} tokens/s; wrote {}",
        arguments.out.display()
    ));
    Ok(())
}
