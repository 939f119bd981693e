//! Running cargo.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Runs `cargo` with arguments that hold no spaces themselves, and says how long it took.
pub(crate) fn cargo(root: &Path, arguments: &str, env: &[(&str, &str)]) -> Result<(), String> {
    let shown: String = env.iter().map(|(k, v)| format!("{k}={v:?} ")).collect();
    println!("$ {shown}cargo {arguments}");
    let start = Instant::now();
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments.split_whitespace())
        .envs(env.iter().copied())
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    println!("  {} s", start.elapsed().as_secs());
    if status.success() {
        return Ok(());
    }
    Err(format!("`{shown}cargo {arguments}` failed"))
}

/// What `cargo` prints.
pub(crate) fn cargo_output(root: &Path, arguments: &str) -> Result<String, String> {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(arguments.split_whitespace())
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "`cargo {arguments}` failed: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("`cargo {arguments}`: {error}"))
}
