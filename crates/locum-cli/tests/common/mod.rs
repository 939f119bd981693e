//! Running `locum`, and model directories to run it on.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use tempfile::TempDir;

/// A command that is ready to run.
pub fn locum(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_locum"));
    command.args(arguments).env_remove("LOCUM_MODEL");
    command
}

/// Runs `locum`.
pub fn run(arguments: &[&str]) -> Output {
    locum(arguments).output().unwrap()
}

/// Runs `locum`, which must succeed, and gives what it printed.
pub fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs `locum`, which must refuse: exit code 2, nothing on standard output, and one line on
/// standard error, which must hold all of `parts`.
#[track_caller]
pub fn refused(arguments: &[&str], parts: &[&str]) {
    let output = run(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(text(&output.stdout), "", "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("error: "), "{error}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

/// A file or folder of the workspace's fixtures.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name)
}

/// A tensor of a model that is about to be written.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A model directory to change before it is written.
pub struct TestModel {
    pub config: Value,
    pub tensors: BTreeMap<String, Tensor>,
    pub tokenizer: bool,
}

impl TestModel {
    /// A fixture, with the embedded model's tokenizer.
    pub fn of_fixture(name: &str) -> Self {
        let directory = fixture(name);
        let config = std::fs::read(directory.join("config.json")).unwrap();
        let bytes = std::fs::read(directory.join("model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes)
            .unwrap()
            .iter()
            .map(|(name, view)| {
                let tensor = Tensor {
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    bytes: view.data().to_vec(),
                };
                (name.to_owned(), tensor)
            })
            .collect();
        Self {
            config: serde_json::from_slice(&config).unwrap(),
            tensors,
            tokenizer: true,
        }
    }

    /// A fixture whose layers are all dense.
    pub fn without_experts() -> Self {
        let mut model = Self::of_fixture("qwen2_moe/base");
        let layers = model.config["num_hidden_layers"].as_u64().unwrap();
        let dense = model.config["mlp_only_layers"][0].as_u64().unwrap();
        model.config["mlp_only_layers"] = (0..layers).collect::<Vec<u64>>().into();
        let of_dense: Vec<_> = ["gate_proj", "up_proj", "down_proj"]
            .map(|part| {
                (
                    part,
                    model.tensors[&format!("model.layers.{dense}.mlp.{part}.weight")].clone(),
                )
            })
            .into();
        model.tensors.retain(|name, _| !name.contains(".mlp."));
        for layer in 0..layers {
            for (part, tensor) in &of_dense {
                let name = format!("model.layers.{layer}.mlp.{part}.weight");
                model.tensors.insert(name, tensor.clone());
            }
        }
        model
    }

    /// Adds a tensor of zeros.
    pub fn add(&mut self, name: &str, dtype: Dtype, shape: &[usize]) {
        let bits = dtype.bitsize() * shape.iter().product::<usize>();
        self.tensors.insert(
            name.to_owned(),
            Tensor {
                dtype,
                shape: shape.to_vec(),
                bytes: vec![0; bits / 8],
            },
        );
    }

    pub fn write(&self) -> TempDir {
        let directory = TempDir::new().unwrap();
        self.write_to(directory.path());
        directory
    }

    pub fn write_to(&self, directory: &Path) {
        let config = serde_json::to_vec(&self.config).unwrap();
        std::fs::write(directory.join("config.json"), config).unwrap();
        let views = self.tensors.iter().map(|(name, tensor)| {
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
            (name.as_str(), view.unwrap())
        });
        let file = safetensors::serialize(views, None).unwrap();
        std::fs::write(directory.join("model.safetensors"), file).unwrap();
        if self.tokenizer {
            std::fs::copy(
                Path::new(env!("CARGO_MANIFEST_DIR"))
                    .join("assets/tiny-olmoe-mone25/tokenizer.json"),
                directory.join("tokenizer.json"),
            )
            .unwrap();
        }
    }
}

/// A path as an argument.
pub fn path(directory: &TempDir) -> &str {
    directory.path().to_str().unwrap()
}
