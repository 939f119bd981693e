//! `locum generate`: continue a prompt, or answer one.

use std::io::Write;
use std::ops::ControlFlow;

use clap::Args;
use locum::models::{
    Chat, GenerateOptions, Generator, Message, Model, ModelError, ModelFiles, Prompt, Sampling,
};

use crate::error::CliError;
use crate::output::{announce, bytes, note};
use crate::source::{ComputeArguments, ModelArgument, load};

#[derive(Args)]
#[command(
    after_help = "Examples:\n  locum generate --prompt \"Alice thought\" --temperature 0.8 --top-k 40 --seed 7\n  locum generate --model OLMoE-1B-7B-Instruct-MoNE --chat --prompt \"Who is Emma?\""
)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    model: ModelArgument,

    /// The text to continue, or with --chat the message to answer
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: String,

    /// Format the prompt as a message by the model's chat template, and print the answer alone
    #[arg(long)]
    chat: bool,

    /// What the model is told before the message, with --chat
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// The most tokens to generate
    #[arg(long, default_value_t = 64, value_name = "N")]
    max_new_tokens: usize,

    /// End before TEXT when it comes up; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

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

    /// The seed of the draws [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Divide the positive logits of tokens that are there already by P, multiply the negative
    /// ones; 1 is off
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "P",
        allow_negative_numbers = true
    )]
    repetition_penalty: f64,

    #[command(flatten)]
    compute: ComputeArguments,
}

impl GenerateArguments {
    fn sampling(&self) -> Result<Sampling, CliError> {
        Ok(if self.temperature == 0.0 {
            // A choice among draws that are not made would be ignored, which nobody can want.
            for (option, given) in [
                ("--top-k", self.top_k.is_some()),
                ("--top-p", self.top_p.is_some()),
                ("--seed", self.seed.is_some()),
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
                seed: self.seed.unwrap_or(0),
            }
        })
    }

    /// The options, refused before anything is loaded.
    fn options(&self) -> Result<GenerateOptions, CliError> {
        let options = GenerateOptions {
            max_new_tokens: self.max_new_tokens,
            sampling: self.sampling()?,
            repetition_penalty: self.repetition_penalty,
            stop: self.stop.clone(),
            ..GenerateOptions::default()
        };
        options.check()?;
        if self.system.is_some() && !self.chat {
            return Err(CliError::Usage(
                "--system has no effect without --chat: the prompt is continued as it is".into(),
            ));
        }
        Ok(options)
    }

    /// The prompt as the model's chat template formats it, where it is to.
    fn formatted(&self, files: &ModelFiles) -> Result<Option<String>, CliError> {
        if !self.chat {
            return Ok(None);
        }
        if self.prompt.is_empty() {
            return Err(ModelError::EmptyPrompt.into());
        }
        let system = self.system.iter().map(Message::system);
        let messages: Vec<_> = system.chain([Message::user(&self.prompt)]).collect();
        Ok(Some(files.chat_template()?.render(&Chat::new(messages))?))
    }
}

pub(crate) fn run(arguments: &GenerateArguments) -> Result<(), CliError> {
    let load_options = arguments.compute.options()?;
    let mut options = arguments.options()?;
    let files = arguments.model.files()?;
    let formatted = arguments.formatted(&files)?;
    let mut model = Model::plan(&files, &load_options)?;
    let tokenizer = files.tokenizer()?;
    options.end_tokens = files.end_tokens()?;
    let prompt = match &formatted {
        Some(formatted) => Prompt::Formatted(formatted),
        None => Prompt::Text(&arguments.prompt),
    };
    let prompt = Generator::new(&model, &tokenizer).encode(prompt)?;
    let tokens = prompt
        .len()
        .saturating_add(options.max_new_tokens)
        .min(model.limits().max_positions);
    announce(model.memory(), tokens, &[]);
    load(&mut model)?;

    let mut out = std::io::stdout().lock();
    if !arguments.chat {
        write!(out, "{}", arguments.prompt)?;
        out.flush()?;
    }
    let mut closed = None;
    let generated = Generator::new(&model, &tokenizer).generate(&prompt, &options, |text| {
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
