//! A folder with load files, to run `locum eplb` in.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder with load files.
pub struct Folder(pub tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.path(name), contents).unwrap();
        self
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    pub fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_locum"));
        command
            .arg("eplb")
            .args(arguments.split_whitespace())
            .current_dir(self.0.path());
        command
    }

    pub fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Standard output of a run that must succeed, without a word on standard error.
    pub fn succeeds(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{arguments}: {errors}");
        assert_eq!(errors, "", "{arguments}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line of a run that must fail: exit code 2, nothing on standard output, nothing
    /// written.
    pub fn fails(&self, arguments: &str) -> String {
        let before = self.names();
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments}");
        assert_eq!(self.names(), before, "{arguments}");
        let line = errors
            .strip_suffix('\n')
            .unwrap_or_else(|| panic!("{arguments}: {errors:?}"));
        assert!(!line.contains('\n'), "{arguments}: {line}");
        line.strip_prefix("error: ")
            .unwrap_or_else(|| panic!("{arguments}: {line}"))
            .to_owned()
    }

    pub fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.succeeds(arguments)).unwrap()
    }
}

pub const POPULAR: &str = "[[600, 560, 120, 120, 20, 10, 10, 10]]";

pub fn popular() -> Folder {
    let folder = Folder::new();
    folder.write("loads.json", POPULAR);
    folder
}

pub fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}
