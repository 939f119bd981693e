//! Transformers' MoE block, in a Python process that runs it once for each call from here, so that
//! both sides are measured in turns.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::olmoe::{EXPERTS, HIDDEN, INTERMEDIATE, TOP_K};

/// The implementations of experts that transformers has.
pub const IMPLEMENTATIONS: [&str; 3] = ["eager", "grouped_mm", "batched_mm"];

/// A running Python process.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
    /// What it is, with versions.
    pub name: String,
}

impl Peer {
    /// Starts it with the Python that the environment variable `PYTHON` names, or `python3`: `None`
    /// where that has no PyTorch or no transformers.
    #[must_use]
    pub fn start() -> Option<Self> {
        let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/moe_block.py");
        let threads = rayon::current_num_threads();
        let mut process = Command::new(python)
            .arg(script)
            .args([HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, threads].map(|size| size.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let requests = process.stdin.take()?;
        let mut replies = BufReader::new(process.stdout.take()?);
        let mut line = String::new();
        replies.read_line(&mut line).ok()?;
        let Some(name) = line.trim().strip_prefix("ready ") else {
            process.wait().ok()?;
            return None;
        };
        Some(Self {
            name: name.to_owned(),
            process,
            requests,
            replies,
        })
    }

    /// The seconds of one call; infinite where the peer cannot.
    pub fn call(&mut self, implementation: &str, tokens: usize) -> f64 {
        let mut line = String::new();
        let asked = writeln!(self.requests, "{implementation} {tokens}")
            .and_then(|()| self.replies.read_line(&mut line));
        // Its threads spin for a while after a call.
        std::thread::sleep(Duration::from_millis(20));
        asked
            .ok()
            .and_then(|_| line.trim().parse().ok())
            .unwrap_or(f64::INFINITY)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It reads until its input ends; one that does not is ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
