//! `locum generate`: continue a prompt.

use std::io::Write;
use std::ops::ControlFlow;

use clap::Args;
use locum::models::{GenerateOptions, Generator, Model, Sampler, Sampling};

use crate::error::CliError;
use crate::output::{announce, bytes, note};
use crate::source::{ComputeArguments, ModelArgument, load};

#[derive(Args)]
#[command(
    after_help = "Example:\n  locum generate --prompt \"Alice thought\" --temperature 0.8 --top-k 40 --seed 7"
)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    model: ModelArgument,

    /// The text to continue
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,

    /// The most tokens to generate
    #[arg(long, default_value_t = 64, value_name = "N")]
    max_new_tokens: usize,

    /// Draw tokens from softmax(logits / T) instead of taking the likeliest; 0 is greedy
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "T",
        allow_negative_numbers = true
    )]
    temperature: f64,

    /// Draw among the K likeliest tokens only
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,

    /// Draw among the likeliest tokens that together have probability P only
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f64>,

    /// The seed of the draws
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    compute: ComputeArguments,
}

impl GenerateArguments {
    fn sampling(&self) -> Result<Sampling, CliError> {
        let sampling = if self.temperature == 0.0 {
            // A cut that nothing is drawn from would be ignored, which nobody can want.
            for (option, given) in [
                ("--top-k", self.top_k.is_some()),
                ("--top-p", self.top_p.is_some()),
            ] {
                if given {
                    return Err(CliError::Usage(format!(
                        "{option} has no effect without --temperature: generation is greedy"
                    )));
                }
            }
            Sampling::Greedy
        } else {
            Sampling::Random {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                seed: self.seed,
            }
        };
        // Refused before anything is loaded.
        Sampler::new(sampling)?;
        Ok(sampling)
    }
}

pub(crate) fn run(arguments: &GenerateArguments) -> Result<(), CliError> {
    let options = arguments.compute.options()?;
    let sampling = arguments.sampling()?;
    let files = arguments.model.files()?;
    let mut model = Model::plan(&files, &options)?;
    let tokenizer = files.tokenizer()?;
    let options = GenerateOptions {
        max_new_tokens: arguments.max_new_tokens,
        sampling,
        end_tokens: files.end_tokens()?,
    };
    let prompt_tokens = Generator::new(&model, &tokenizer)
        .encode(&arguments.prompt)?
        .len();
    let tokens = prompt_tokens
        .saturating_add(options.max_new_tokens)
        .min(model.limits().max_positions);
    announce(model.memory(), tokens, None);
    load(&mut model)?;

    let mut out = std::io::stdout().lock();
    write!(out, "{}", arguments.prompt)?;
    out.flush()?;
    let mut closed = None;
    let generated =
        Generator::new(&model, &tokenizer).generate(&arguments.prompt, &options, |text| {
            match write!(out, "{text}").and_then(|()| out.flush()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    closed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
    if let Some(error) = closed {
        return Err(error.into());
    }
    writeln!(out)?;
    out.flush()?;

    let memory = model.memory();
    let speed = generated.tokens_per_second().map_or_else(
        || "no token to time".into(),
        |speed| format!("{speed:.1} tokens/s"),
    );
    note(&format!(
        "{} tokens, {speed}; weights {} in memory, {} if no expert were substituted",
        generated.tokens.len(),
        bytes(memory.weights),
        bytes(memory.unpruned_weights()),
    ));
    Ok(())
}
