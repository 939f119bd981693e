//! `cargo xtask`: what the repository checks of itself.
//!
//! - `cargo xtask check`: formatting, clippy and rustdoc with warnings denied, the tidy rules, and
//!   that the GPU features type-check.
//! - `cargo xtask ci`: that, and the README's test command.
//! - `cargo xtask readme`: writes the README's table of architectures.
//! - `cargo xtask bench-report [SUITE…] [--quick]`: runs the benchmark suites and writes BENCHMARKS.md.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench_report;
mod run;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask check | ci | tidy | readme | bench-report";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::all(&root()),
        ["readme"] => run::cargo(
            &root(),
            "test --workspace --release --test readme_table",
            &[("UPDATE_README", "1")],
        ),
        ["bench-report", ref arguments @ ..] => bench_report::write(&root(), arguments),
        ["check"] => check(),
        ["ci"] => check().and_then(|()| test()),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder.
fn root() -> std::path::PathBuf {
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

fn check() -> Result<(), String> {
    let root = root();
    tidy::all(&root)?;
    run::cargo(&root, "fmt --all --check", &[])?;
    run::cargo(
        &root,
        "clippy --workspace --all-targets -- --deny warnings",
        &[],
    )?;
    run::cargo(
        &root,
        "doc --workspace --no-deps",
        &[("RUSTDOCFLAGS", "--deny warnings")],
    )?;
    // Burn's CUDA support downloads a prebuilt LLVM, except where documentation is built: that
    // much can be checked without network, CUDA toolkit or GPU.
    run::cargo(
        &root,
        "check -p locum-cli --features cuda,wgpu",
        &[("DOCS_RS", "1")],
    )
}

/// The tests, by the command that the README gives.
fn test() -> Result<(), String> {
    const COMMAND: &str = "cargo test --workspace --release";
    let root = root();
    let readme = tidy::read(&root.join("README.md"))?;
    let line = readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cargo test"))
        .ok_or("README.md gives no test command")?;
    let command = line.split('#').next().unwrap_or_default().trim();
    if command != COMMAND {
        return Err(format!(
            "README.md gives the test command `{command}`, expected `{COMMAND}`"
        ));
    }
    run::cargo(&root, command.trim_start_matches("cargo "), &[])
}
