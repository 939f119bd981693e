//! `locum eval`: how well a model predicts a text, and how far it is from another.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use locum::checkpoint::read_text;
use locum::models::{LayerMemory, Model, ModelError, ModelFiles};
use locum::prune::{
    Evaluation, ModelEvaluation, PruneError, Windows, check_vocabularies, check_windows, evaluate,
};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::output::{bytes, note};
use crate::source::{ComputeArguments, load, model_files};
use crate::table::Table;

#[derive(Args)]
#[command(allow_negative_numbers = true)]
#[command(
    after_help = "Windows are read one by one, without context from the one before and without special tokens; the\nlast partial one is dropped. What is lost against another model is KL(p_other‖p_model) in nats. In JSON,\nwhat is infinite is the string \"Infinity\".\n\nExample:\n  locum eval OLMoE-1B-7B-MoNE --text heldout.txt --against OLMoE-1B-7B --json"
)]
pub(crate) struct EvalArguments {
    /// A local Hugging Face model directory [env: LOCUM_MODEL] [default: the embedded
    /// tiny-olmoe-mone25]
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// The text, UTF-8
    #[arg(long, value_name = "FILE")]
    text: PathBuf,

    /// Predictions per window [default: the model's context, at most 2048]
    #[arg(long, value_name = "L")]
    length: Option<usize>,

    /// A model to compare with, of the same tokenizer: the unpruned one, say
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    compute: ComputeArguments,
}

/// What is chosen where no length is given, unless the model's context is shorter.
const LENGTH: usize = 2048;

/// A text as a model sees it.
struct Tokens {
    ids: Vec<i64>,
    vocabulary: HashMap<String, u32>,
}

impl Tokens {
    fn of(files: &ModelFiles, text: &str) -> Result<Self, CliError> {
        let tokenizer = files.tokenizer()?;
        let encoding = tokenizer
            .encode_fast(text, false)
            .map_err(|error| ModelError::Tokenizer(error.to_string()))?;
        Ok(Self {
            ids: encoding.get_ids().iter().map(|&id| id.into()).collect(),
            vocabulary: tokenizer.get_vocab(true),
        })
    }
}

pub(crate) fn run(arguments: &EvalArguments) -> Result<(), CliError> {
    let options = arguments.compute.options()?;
    let files = model_files(arguments.model.as_deref())?;
    let other_files = match &arguments.against {
        Some(directory) => Some(ModelFiles::open(directory)?),
        None => None,
    };
    let text = read_text(&arguments.text).map_err(ModelError::from)?;
    let mut model = Model::plan(&files, &options)?;
    let mut other = match &other_files {
        Some(files) => Some(Model::plan(files, &options)?),
        None => None,
    };

    let length = arguments
        .length
        .unwrap_or_else(|| model.limits().max_positions.min(LENGTH));
    let most = model.limits().max_positions;
    if !(1..=most).contains(&length) {
        return Err(PruneError::Length { length, most }.into());
    }
    let tokens = Tokens::of(&files, &text)?;
    if let (Some(files), Some(other)) = (&other_files, &other) {
        check_vocabularies(&model, other)?;
        same_tokens(&tokens, files, &text)?;
    }
    let windows = Windows::new(tokens.ids, length)?;
    check_windows(&model, &windows)?;
    if let Some(other) = &other {
        check_windows(other, &windows)?;
    }

    announce_all(&[Some(&model), other.as_ref()], &windows);
    load(&mut model)?;
    if let Some(other) = &mut other {
        load(other)?;
    }
    let bar = ProgressBar::new((windows.count() * windows.length()) as u64).with_style(
        ProgressStyle::with_template("evaluating {wide_bar} {percent} %, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let result = evaluate(&model, other.as_ref(), &windows, |predictions| {
        bar.inc(predictions as u64);
    });
    bar.finish_and_clear();
    let evaluation = result?;

    let subject = Subject {
        name: files.name().display().to_string(),
        model: &model,
    };
    let other = other_files.zip(other.as_ref());
    let other = other.map(|(files, model)| Subject {
        name: files.name().display().to_string(),
        model,
    });
    let report = Report {
        text: &arguments.text,
        length,
        evaluation: &evaluation,
        subject,
        other,
    };
    let printed = if arguments.json {
        format!("{:#}\n", report.json())
    } else {
        report.table()
    };
    let mut out = std::io::stdout().lock();
    write!(out, "{printed}")?;
    out.flush()?;
    Ok(())
}

/// Says how much memory it will take.
fn announce_all(models: &[Option<&Model>], windows: &Windows) {
    let models = || models.iter().flatten();
    let steps = |model: &Model| windows.steps(model.limits().vocabulary);
    let weights: u64 = models().map(|model| model.memory().weights).sum();
    let cache = |model: &&Model| {
        let one = model.memory().total(windows.length()) - model.memory().weights;
        one * steps(model).windows as u64
    };
    let caches: u64 = models().map(cache).sum();
    let logits = |model: &&Model| {
        let steps = steps(model);
        (steps.windows * steps.tokens * model.limits().vocabulary * 4) as u64
    };
    let logits: u64 = models().map(logits).sum();
    note(&format!(
        "needs {} of memory: weights {}, key-value caches {}, logits {}",
        bytes(weights + caches + logits),
        bytes(weights),
        bytes(caches),
        bytes(logits)
    ));
}

/// Refuses a model whose tokens mean something else.
fn same_tokens(tokens: &Tokens, other: &ModelFiles, text: &str) -> Result<(), CliError> {
    let others = Tokens::of(other, text)?;
    let why = if tokens.vocabulary != others.vocabulary {
        "its tokenizer has other tokens"
    } else if tokens.ids != others.ids {
        "its tokenizer divides the text otherwise"
    } else {
        return Ok(());
    };
    Err(CliError::Usage(format!(
        "--against {}: {why}; distributions over different tokens cannot be compared",
        other.name().display()
    )))
}

/// A model with what messages call it.
struct Subject<'a> {
    name: String,
    model: &'a Model,
}

struct Report<'a> {
    text: &'a Path,
    length: usize,
    evaluation: &'a Evaluation,
    subject: Subject<'a>,
    other: Option<Subject<'a>>,
}

impl Report<'_> {
    fn json(&self) -> Value {
        let mut report = subject_json(&self.subject, &self.evaluation.model);
        report["text"] = json!(self.text.display().to_string());
        report["length"] = json!(self.length);
        report["windows"] = json!(self.evaluation.windows);
        report["predictions"] = json!(self.evaluation.predictions);
        if let (Some(other), Some(comparison)) = (&self.other, &self.evaluation.comparison) {
            let mut against = subject_json(other, &comparison.other);
            against["token_agreement"] = json!(comparison.token_agreement);
            against["kl_divergence"] = number(comparison.kl_divergence);
            report["against"] = against;
        }
        report
    }

    fn table(&self) -> String {
        let evaluation = self.evaluation;
        let mut text = format!(
            "text  {}: {} of {} predictions, {} in all\n\n",
            self.text.display(),
            counted(evaluation.windows, "window"),
            self.length,
            evaluation.predictions,
        );
        let comparison = evaluation.comparison.as_ref();
        let columns: Vec<(&Subject, &ModelEvaluation)> =
            std::iter::once((&self.subject, &evaluation.model))
                .chain(
                    self.other
                        .as_ref()
                        .zip(comparison.map(|comparison| &comparison.other)),
                )
                .collect();
        let head = columns.iter().map(|(subject, _)| subject.name.clone());
        let mut table = Table::new([String::new()].into_iter().chain(head));
        let mut row = |name: &str, value: &dyn Fn(&Subject, &ModelEvaluation) -> String| {
            let values = columns
                .iter()
                .map(|(subject, evaluated)| value(subject, evaluated));
            table.row([name.to_owned()].into_iter().chain(values));
        };
        row("perplexity", &|_, evaluated| {
            format!("{:.3}", evaluated.perplexity())
        });
        row("nats per token", &|_, evaluated| {
            format!("{:.4}", evaluated.negative_log_likelihood)
        });
        row("weights in memory", &|subject, _| {
            bytes(subject.model.memory().weights)
        });
        row("tensors on disk", &|subject, _| {
            bytes(subject.model.checkpoint().total_bytes())
        });
        row("tokens/s", &|_, evaluated| {
            format!("{:.0}", evaluated.tokens_per_second())
        });
        text += &table.left_first().to_string();

        if let Some(comparison) = comparison {
            text += &format!(
                "\ntoken agreement  {:.2} % of positions have the same most likely token\n\
                 KL divergence    {:.4} nats per token, KL(p_other‖p_model)\n",
                100.0 * comparison.token_agreement,
                comparison.kl_divergence,
            );
        }
        for (subject, evaluated) in columns {
            let layers: Vec<_> = met(subject.model, evaluated).collect();
            if layers.iter().all(|(layer, _)| layer.substituted.is_empty()) {
                continue;
            }
            let head = [
                "layer",
                "experts",
                "substituted",
                "routes %",
                "tokens %",
                "weight %",
            ];
            let mut table = Table::new(head);
            for (layer, met) in layers {
                let share = |share: f64| format!("{:.2}", 100.0 * share);
                table.row([
                    layer.layer.to_string(),
                    layer.logical.to_string(),
                    layer.substituted.len().to_string(),
                    share(met.route_share()),
                    share(met.token_share()),
                    share(met.weight_share()),
                ]);
            }
            text += &format!(
                "\nshare of routes to substituted experts, of tokens with one or more, of router \
                 weight: {}\n{table}",
                subject.name
            );
        }
        text
    }
}

/// The MoE layers with what they met.
fn met<'a>(
    model: &'a Model,
    evaluated: &'a ModelEvaluation,
) -> impl Iterator<Item = (&'a LayerMemory, &'a locum::prune::Encounters)> {
    model.memory().layers.iter().zip(&evaluated.layers)
}

fn subject_json(subject: &Subject, evaluated: &ModelEvaluation) -> Value {
    let layers: Vec<Value> = met(subject.model, evaluated)
        .map(|(layer, met)| {
            json!({
                "layer": layer.layer,
                "logical": layer.logical,
                "substituted": layer.substituted,
                "tokens": met.tokens,
                "routes": met.routes,
                "substituted_token_share": met.token_share(),
                "substituted_route_share": met.route_share(),
                "substituted_weight_share": met.weight_share(),
            })
        })
        .collect();
    json!({
        "model": subject.name,
        "perplexity": number(evaluated.perplexity()),
        "negative_log_likelihood": number(evaluated.negative_log_likelihood),
        "tokens_per_second": evaluated.tokens_per_second(),
        "weights_bytes": subject.model.memory().weights,
        "tensors_bytes": subject.model.checkpoint().total_bytes(),
        "layers": layers,
    })
}

/// A number, or `"Infinity"`: a token may be impossible, and JSON has no number for what that costs.
fn number(value: f64) -> Value {
    match value.is_finite() {
        true => json!(value),
        false if value > 0.0 => json!("Infinity"),
        false => json!(value.to_string()),
    }
}

fn counted(count: usize, of: &str) -> String {
    match count {
        1 => format!("1 {of}"),
        _ => format!("{count} {of}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn infinity_is_said_in_json() {
        assert_eq!(number(0.25).to_string(), "0.25");
        assert_eq!(number(f64::INFINITY).to_string(), "\"Infinity\"");
    }
}
