//! `locum logits`: a model's logits as a file, to compare with another implementation.

use std::path::PathBuf;

use clap::Args;
use locum::checkpoint::read_file;
use locum::models::{Logits, Model, ModelError};
use locum::nn::KvCache;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::error::CliError;
use crate::output::{Kind, OutputFile, announce, note};
use crate::place::spare;
use crate::source::{ComputeArguments, ModelArgument, load};

#[derive(Args)]
#[command(
    after_help = "Example:\n  locum logits --model DIR --input-ids 1,2,3 --out logits.safetensors"
)]
pub(crate) struct LogitsArguments {
    #[command(flatten)]
    model: ModelArgument,

    /// Token ids of one sequence: 1,2,3
    #[arg(
        long,
        value_name = "IDS",
        allow_hyphen_values = true,
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

/// About how many tokens are computed at once.
const TOKENS_AT_ONCE: usize = 2048;

pub(crate) fn run(arguments: &LogitsArguments) -> Result<(), CliError> {
    let options = arguments.compute.options()?;
    let ids = arguments.ids()?;
    let (batch, tokens) = (ids.len(), ids[0].len());
    let files = arguments.model.files()?;
    let read = [Some(files.name()), arguments.input_ids_file.as_deref()];
    spare(&arguments.out, read.into_iter().flatten())?;
    let mut model = Model::plan(&files, &options)?;
    // Everything that can be wrong is, before anything is loaded.
    model.check_ids(&ids, &vec![0; batch])?;
    let out = OutputFile::create(&arguments.out, Kind::Logits)?;
    let vocabulary = model.limits().vocabulary;
    announce(
        model.memory(),
        tokens,
        &[("logits", (batch * tokens * vocabulary * 4) as u64)],
    );
    load(&mut model)?;

    let mut logits = Vec::with_capacity(batch * tokens * vocabulary);
    for ids in ids.chunks((TOKENS_AT_ONCE / tokens).max(1)) {
        let mut caches = vec![model.new_cache(); ids.len()];
        if arguments.cached {
            logits.extend(cached(&model, ids, &mut caches)?);
        } else {
            logits.extend(model.logits(ids, &mut caches, Logits::All)?);
        }
    }
    if let Some(first) = logits.iter().position(|logit| logit.is_nan()) {
        let token = first / vocabulary;
        note(&format!(
            "warning: the logits hold NaN, first for token {} of sequence {}",
            token % tokens,
            token / tokens
        ));
    }
    let bytes: Vec<u8> = logits
        .iter()
        .flat_map(|logit| logit.to_le_bytes())
        .collect();
    let failed = |error| CliError::file("write", &arguments.out, error);
    let view =
        TensorView::new(Dtype::F32, vec![batch, tokens, vocabulary], &bytes).map_err(failed)?;
    let file = safetensors::serialize([("logits", view)], None).map_err(failed)?;
    out.write(&file)?;
    note(&format!(
        "wrote logits [{batch}, {tokens}, {vocabulary}] to {}",
        arguments.out.display()
    ));
    Ok(())
}

/// One token at a time; the same shape as all at once.
fn cached(model: &Model, ids: &[Vec<i64>], caches: &mut [KvCache]) -> Result<Vec<f32>, CliError> {
    let (batch, tokens) = (ids.len(), ids[0].len());
    let vocabulary = model.limits().vocabulary;
    let mut all = vec![0.0; batch * tokens * vocabulary];
    for token in 0..tokens {
        let step: Vec<Vec<i64>> = ids.iter().map(|row| vec![row[token]]).collect();
        let logits = model.logits(&step, caches, Logits::Last)?;
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
        let bytes = read_file(path).map_err(ModelError::from)?;
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
