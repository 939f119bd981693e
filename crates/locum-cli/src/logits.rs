//! `locum logits`: a model's logits as a file, to compare with another implementation.

use std::path::PathBuf;

use clap::Args;
use locum::models::{Logits, Model};
use locum::nn::KvCache;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::error::CliError;
use crate::output::{note, write_file};
use crate::source::{ComputeArguments, ModelArgument, load};

#[derive(Args)]
#[command(
    after_help = "Example:\n  locum logits --model DIR --input-ids 1,2,3 --out logits.safetensors"
)]
pub(crate) struct LogitsArguments {
    #[command(flatten)]
    model: ModelArgument,

    /// Token ids of one sequence
    #[arg(
        long,
        value_name = "IDS",
        value_delimiter = ',',
        required_unless_present = "input_ids_file",
        conflicts_with = "input_ids_file"
    )]
    input_ids: Vec<i64>,

    /// A safetensors file with `input_ids`, i64 or i32, [batch, tokens] or [tokens]
    #[arg(long, value_name = "FILE")]
    input_ids_file: Option<PathBuf>,

    /// Where to write `logits`, f32 [batch, tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Feed the tokens one by one through the key-value cache
    #[arg(long)]
    cached: bool,

    #[command(flatten)]
    compute: ComputeArguments,
}

pub(crate) fn run(arguments: &LogitsArguments) -> Result<(), CliError> {
    let options = arguments.compute.options()?;
    let ids = arguments.ids()?;
    let files = arguments.model.files()?;
    let mut model = Model::plan(&files, &options)?;
    load(&mut model)?;

    let (batch, tokens) = (ids.len(), ids[0].len());
    let vocabulary = model.limits().vocabulary;
    let logits = if arguments.cached {
        cached(&model, &ids)?
    } else {
        model.logits(&ids, &mut caches(&model, batch), Logits::All)?
    };
    let bytes: Vec<u8> = logits
        .iter()
        .flat_map(|logit| logit.to_le_bytes())
        .collect();
    let failed = |error| CliError::file("write", &arguments.out, error);
    let view =
        TensorView::new(Dtype::F32, vec![batch, tokens, vocabulary], &bytes).map_err(failed)?;
    let file = safetensors::serialize([("logits", view)], None).map_err(failed)?;
    write_file(&arguments.out, &file)?;
    note(&format!(
        "wrote logits [{batch}, {tokens}, {vocabulary}] to {}",
        arguments.out.display()
    ));
    Ok(())
}

/// An empty cache for each sequence.
fn caches(model: &Model, batch: usize) -> Vec<KvCache> {
    vec![model.new_cache(); batch]
}

/// One token at a time; the same shape as all at once.
fn cached(model: &Model, ids: &[Vec<i64>]) -> Result<Vec<f32>, CliError> {
    let (batch, tokens) = (ids.len(), ids[0].len());
    let vocabulary = model.limits().vocabulary;
    let mut caches = caches(model, batch);
    let mut all = vec![0.0; batch * tokens * vocabulary];
    for token in 0..tokens {
        let step: Vec<Vec<i64>> = ids.iter().map(|row| vec![row[token]]).collect();
        let logits = model.logits(&step, &mut caches, Logits::Last)?;
        for (row, logits) in logits.chunks_exact(vocabulary).enumerate() {
            all[(row * tokens + token) * vocabulary..][..vocabulary].copy_from_slice(logits);
        }
    }
    Ok(all)
}

impl LogitsArguments {
    /// `[batch, tokens]`, at least one token.
    fn ids(&self) -> Result<Vec<Vec<i64>>, CliError> {
        let Some(path) = &self.input_ids_file else {
            return Ok(vec![self.input_ids.clone()]);
        };
        let failed = |reason: String| CliError::file("read", path, reason);
        let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| failed(error.to_string()))?;
        let tensor = file
            .tensor("input_ids")
            .map_err(|_| failed("no tensor `input_ids` in it".into()))?;
        let ids: Vec<i64> = match tensor.dtype() {
            Dtype::I64 => chunks(tensor.data(), i64::from_le_bytes),
            Dtype::I32 => chunks(tensor.data(), |bytes| i32::from_le_bytes(bytes).into()),
            found => {
                return Err(failed(format!(
                    "`input_ids` has dtype {found:?}, expected I64 or I32"
                )));
            }
        };
        let tokens = match tensor.shape() {
            [tokens] | [_, tokens] => *tokens,
            found => {
                return Err(failed(format!(
                    "`input_ids` has shape {found:?}, expected [batch, tokens]"
                )));
            }
        };
        if ids.is_empty() {
            return Err(failed("`input_ids` is empty".into()));
        }
        Ok(ids.chunks_exact(tokens).map(<[i64]>::to_vec).collect())
    }
}

fn chunks<const N: usize>(bytes: &[u8], from: impl Fn([u8; N]) -> i64) -> Vec<i64> {
    let (chunks, _) = bytes.as_chunks::<N>();
    chunks.iter().map(|chunk| from(*chunk)).collect()
}
