//! Where a model comes from, and where it runs.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use locum::models::{LoadOptions, Model, ModelFiles};
use locum::nn::{DType, Device};

use crate::error::CliError;

/// Bytes at an address that suits any element type.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!(
    "../assets/tiny-olmoe-mone25/model.safetensors"
));

/// The model that is part of the program.
const EMBEDDED: &str = "tiny-olmoe-mone25 (embedded)";

#[derive(Args)]
pub(crate) struct ModelArgument {
    /// A local Hugging Face model directory [env: LOCUM_MODEL] [default: the embedded
    /// tiny-olmoe-mone25]
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,

    /// The same as --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    directory: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ComputeArguments {
    /// Activations: f32 is exact; bf16 halves their memory, and rounds them
    #[arg(long, value_enum, default_value_t = Activations::F32)]
    dtype: Activations,

    /// Where to compute: cpu, cuda, cuda:N, wgpu
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: String,

    /// Threads to compute with on the CPU [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Activations {
    F32,
    Bf16,
}

impl ModelArgument {
    pub(crate) fn files(&self) -> Result<ModelFiles, CliError> {
        model_files(self.model.as_deref().or(self.directory.as_deref()))
    }
}

/// The model in a directory, or else the one that the environment names, or else the embedded one.
pub(crate) fn model_files(directory: Option<&Path>) -> Result<ModelFiles, CliError> {
    // Read here, so that an empty variable is as good as none.
    let from_environment = || {
        std::env::var_os("LOCUM_MODEL")
            .filter(|directory| !directory.is_empty())
            .map(PathBuf::from)
    };
    let directory = directory.map(Path::to_path_buf);
    Ok(match directory.or_else(from_environment) {
        Some(directory) => ModelFiles::open(directory)?,
        None => ModelFiles::embedded(
            EMBEDDED,
            include_str!("../assets/tiny-olmoe-mone25/config.json"),
            include_str!("../assets/tiny-olmoe-mone25/generation_config.json"),
            include_bytes!("../assets/tiny-olmoe-mone25/tokenizer.json"),
            &WEIGHTS.0,
        )?,
    })
}

impl ComputeArguments {
    /// Sets the number of threads, and says how to build the model.
    pub(crate) fn options(&self) -> Result<LoadOptions, CliError> {
        if let Some(threads) = self.threads {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads.into())
                .build_global()
                .map_err(|error| CliError::Usage(format!("--threads {threads}: {error}")))?;
        }
        Ok(LoadOptions {
            activations: match self.dtype {
                Activations::F32 => DType::F32,
                Activations::Bf16 => DType::BF16,
            },
            device: device(&self.device)?,
        })
    }
}

fn device(name: &str) -> Result<Device, CliError> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, Some(index)),
        None => (name, None),
    };
    let unusable = |reason: &str| Err(CliError::Usage(format!("--device {name}: {reason}")));
    match (kind, index) {
        ("cpu", None) => Ok(Device::flex()),
        ("cuda", _) => match index.unwrap_or("0").parse::<usize>() {
            Ok(index) => cuda(index).map_or_else(
                || unusable("this program was built without CUDA, build with `--features cuda`"),
                Ok,
            ),
            Err(_) => unusable("is not `cuda:` and the number of a GPU"),
        },
        ("wgpu", None) => wgpu().map_or_else(
            || unusable("this program was built without WebGPU, build with `--features wgpu`"),
            Ok,
        ),
        _ => unusable("is not one of cpu, cuda, cuda:N, wgpu"),
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Option<Device> {
    Some(Device::cuda(index))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: usize) -> Option<Device> {
    None
}

#[cfg(feature = "wgpu")]
fn wgpu() -> Option<Device> {
    Some(Device::wgpu(locum::nn::DeviceKind::DefaultDevice))
}

#[cfg(not(feature = "wgpu"))]
fn wgpu() -> Option<Device> {
    None
}

/// Loads a model's weights, with a bar that vanishes where nobody would see it.
pub(crate) fn load(model: &mut Model) -> Result<(), CliError> {
    let bar = ProgressBar::new(model.checkpoint().total_bytes()).with_style(
        ProgressStyle::with_template("loading {wide_bar} {decimal_bytes}/{decimal_total_bytes}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let progress = bar.clone();
    let result = model.load(move |bytes| progress.inc(bytes));
    bar.finish_and_clear();
    result?;
    Ok(())
}
