//! What `locum prune` is asked for.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};
use locum::prune::{Amount, Metric, Replacement, Scope, Settings};
use locum::substitution::ConfigFormat;

use crate::error::CliError;

#[derive(Args)]
#[command(allow_negative_numbers = true)]
#[command(
    group(ArgGroup::new("choice").required(true).args(["ratio", "keep", "plan", "experts"])),
    group(ArgGroup::new("given").args(["plan", "experts"])),
    after_help = "Example:\n  \
        locum calibrate OLMoE-1B-7B --text calib.txt --out stats.safetensors\n  \
        locum prune OLMoE-1B-7B --stats stats.safetensors --ratio 0.25 --out OLMoE-1B-7B-MoNE\n  \
        locum generate --model OLMoE-1B-7B-MoNE --prompt \"Once upon a time\"\n\n\
        The same choice for the instruct model, with constants of its own:\n  \
        locum prune OLMoE-1B-7B --stats stats.safetensors --ratio 0.25 --dry-run --plan-out plan.json\n  \
        locum prune OLMoE-Instruct --stats instruct.safetensors --plan plan.json --out OLMoE-Instruct-MoNE"
)]
pub(crate) struct PruneArguments {
    /// A local Hugging Face model directory
    #[arg(value_name = "MODEL")]
    pub(super) model: PathBuf,

    /// Statistics of the model, from `locum calibrate`; `--metric weights` and `random` with
    /// `--replace zero` need none
    #[arg(long, value_name = "FILE")]
    pub(super) stats: Option<PathBuf>,

    /// Replace this part of the experts that have weights: 0.25
    #[arg(long, value_name = "PART", allow_negative_numbers = true)]
    ratio: Option<f64>,

    /// Keep so many experts with weights in each layer (on average with `--scope model`)
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    keep: Option<i64>,

    /// Replace the experts of a plan that `--plan-out` wrote
    #[arg(long, value_name = "FILE")]
    pub(super) plan: Option<PathBuf>,

    /// Replace the experts of a JSON file: {"<layer>": [ids]}
    #[arg(long, value_name = "FILE")]
    pub(super) experts: Option<PathBuf>,

    /// What experts are ranked by; the lowest go
    #[arg(long, value_enum, default_value_t = MetricName::Fusion, conflicts_with = "given")]
    metric: MetricName,

    /// Rank within each layer, or over the whole model
    #[arg(long, value_enum, default_value_t = ScopeName::Layer, conflicts_with = "given")]
    scope: ScopeName,

    /// Experts with weights that each layer keeps at least
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "given")]
    min_per_layer: u32,

    /// Seed of `--metric random` [default: 0]
    #[arg(long, value_name = "N", conflicts_with = "given")]
    seed: Option<u64>,

    /// What stands in for an expert
    #[arg(long, value_enum, default_value_t = ReplacementName::Mean)]
    replace: ReplacementName,

    /// How config.json declares the constants: `approximate_experts`, or
    /// `compression_config.transform_config.expert_substitution`
    #[arg(long, value_enum, default_value_t = FormatName::Approx)]
    format: FormatName,

    /// The directory to write
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    pub(super) out: Option<PathBuf>,

    /// The most bytes of tensors in a file: 500MB, 5GB, 2GiB
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    max_shard_size: String,

    /// Replace the directory where it is there
    #[arg(long)]
    pub(super) force: bool,

    /// Say what would be done, and write no model
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Write which experts go, and why
    #[arg(long, value_name = "FILE")]
    pub(super) plan_out: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum MetricName {
    /// How much the output varies, times the mean router weight (MoNE)
    Fusion,
    /// How much the output varies
    #[value(name = "output_fluctuation", alias = "output-fluctuation")]
    OutputFluctuation,
    /// Mean router weight over all tokens
    #[value(name = "routing_score", alias = "routing-score")]
    RoutingScore,
    /// How many tokens are routed to it
    Frequency,
    /// Mean norm of the weighted output (REAP)
    Reap,
    /// Sum of the norms of the outputs
    Ean,
    /// By chance, by --seed
    Random,
    /// Norm of the weights, without calibration
    Weights,
}

#[derive(Clone, Copy, ValueEnum)]
enum ScopeName {
    Layer,
    Model,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReplacementName {
    /// The mean output
    Mean,
    /// Nothing
    Zero,
    /// The output that errs least in the layer's weighted sum
    #[value(alias = "least_squares")]
    LeastSquares,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatName {
    Approx,
    Explicit,
}

impl PruneArguments {
    /// How experts are chosen, unless they are given.
    pub(super) fn settings(&self) -> Result<Option<Settings>, CliError> {
        let amount = match (self.ratio, self.keep) {
            (Some(ratio), _) => Amount::Ratio(ratio),
            (None, Some(keep)) => Amount::Keep(u32::try_from(keep).map_err(|_| {
                CliError::Usage(format!("--keep {keep} must be a number of experts"))
            })?),
            (None, None) => return Ok(None),
        };
        if let (Some(seed), false) = (self.seed, matches!(self.metric, MetricName::Random)) {
            return Err(CliError::Usage(format!(
                "--seed {seed} is for --metric random alone: give that, or no seed"
            )));
        }
        Ok(Some(Settings {
            amount,
            metric: match self.metric {
                MetricName::Fusion => Metric::Fusion,
                MetricName::OutputFluctuation => Metric::OutputFluctuation,
                MetricName::RoutingScore => Metric::RoutingScore,
                MetricName::Frequency => Metric::Frequency,
                MetricName::Reap => Metric::Reap,
                MetricName::Ean => Metric::Ean,
                MetricName::Random => Metric::Random,
                MetricName::Weights => Metric::Weights,
            },
            scope: match self.scope {
                ScopeName::Layer => Scope::Layer,
                ScopeName::Model => Scope::Model,
            },
            min_per_layer: self.min_per_layer,
            seed: self.seed.unwrap_or(0),
        }))
    }

    pub(super) fn replacement(&self) -> Replacement {
        match self.replace {
            ReplacementName::Mean => Replacement::Mean,
            ReplacementName::Zero => Replacement::Zero,
            ReplacementName::LeastSquares => Replacement::LeastSquares,
        }
    }

    pub(super) fn format(&self) -> ConfigFormat {
        match self.format {
            FormatName::Approx => ConfigFormat::ApproximateExperts,
            FormatName::Explicit => ConfigFormat::ExpertSubstitution,
        }
    }

    pub(super) fn max_shard_bytes(&self) -> Result<u64, CliError> {
        size(&self.max_shard_size).ok_or_else(|| {
            CliError::Usage(format!(
                "--max-shard-size {} is no size such as 500MB, 5GB or 2GiB",
                self.max_shard_size
            ))
        })
    }
}

/// Bytes, in decimal or binary units; none for what is no size, or zero.
fn size(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 8] = [
        ("", 1),
        ("b", 1),
        ("kb", 1000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
    ];
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = number.parse::<u64>().ok()?.checked_mul(*factor)?;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_decimal_or_binary_units() {
        let sizes = ["5GB", "500 mb", "2GiB", "12", "1kB"];
        let bytes = [5_000_000_000, 500_000_000, 2 << 30, 12, 1000];
        assert_eq!(sizes.map(size), bytes.map(Some));
        let wrong = ["0", "", "GB", "1.5GB", "-1", "5 gigabytes", "99999999999GB"];
        assert_eq!(wrong.map(size), [None; 7]);
    }
}
