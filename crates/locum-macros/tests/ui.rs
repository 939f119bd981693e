//! One case per rule, each with the whole output that a user sees.
//!
//! Compilers word and lay out what surrounds a message differently, so the whole output is compared
//! on the compiler of `rust-version` only. On any other, and with `LOCUM_UI=messages`, the cases are
//! checked as the programs of one package, and each has to show the messages of its `.stderr`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn misuse_is_one_error_and_use_compiles() {
    let whole = std::env::var_os("LOCUM_UI").is_none_or(|mode| mode != "messages");
    if whole && is_pinned(&compiler_version()) {
        let cases = trybuild::TestCases::new();
        cases.pass("tests/ui/pass/*.rs");
        cases.compile_fail("tests/ui/*.rs");
    } else {
        compare_messages();
    }
}

fn is_pinned(version: &str) -> bool {
    version.starts_with(concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"), "."))
}

fn compiler_version() -> String {
    let output = Command::new(tool("RUSTC", "rustc"))
        .arg("--version")
        .output()
        .expect("rustc runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn tool(variable: &str, default: &str) -> OsString {
    std::env::var_os(variable).unwrap_or_else(|| default.into())
}

fn compare_messages() {
    let macros = Path::new(env!("CARGO_MANIFEST_DIR"));
    let passing = programs(&macros.join("tests/ui/pass"));
    let failing = programs(&macros.join("tests/ui"));
    assert!(!passing.is_empty() && !failing.is_empty());
    let output = check(macros, passing.iter().chain(&failing));
    // Without a file before it, an error is Cargo's, or of a dependency.
    let shown = |case: &Path| -> Vec<&str> {
        let case = case.display().to_string();
        output
            .lines()
            .filter(|line| line.starts_with(&case) && line.contains(": error"))
            .collect()
    };
    let mut wrong = Vec::new();
    for case in &passing {
        if !shown(case).is_empty() {
            wrong.push(format!("{} does not compile", case.display()));
        }
    }
    for case in &failing {
        let expected = fs::read_to_string(case.with_extension("stderr")).expect("a .stderr");
        let shown = shown(case);
        if shown.is_empty() {
            wrong.push(format!("{} compiles", case.display()));
        }
        for message in own_messages(&expected) {
            if !shown.iter().any(|line| line.ends_with(message)) {
                wrong.push(format!("{} does not say: {message}", case.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n\n{output}", wrong.join("\n"));
}

/// The messages that are this workspace's own: of the macros, and of traits that say what to do.
fn own_messages(stderr: &str) -> impl Iterator<Item = &str> {
    stderr
        .lines()
        .filter_map(|line| {
            line.strip_prefix("error: ")
                .or_else(|| line.strip_prefix("error[E0277]: "))
        })
        .filter(|message| !message.starts_with("the trait bound"))
}

fn programs(folder: &Path) -> Vec<PathBuf> {
    let mut programs: Vec<PathBuf> = fs::read_dir(folder)
        .expect("a folder of cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect();
    programs.sort();
    programs
}

/// Checks each case as a program of a package outside the workspace, and returns what was said.
fn check<'a>(macros: &Path, cases: impl Iterator<Item = &'a PathBuf>) -> String {
    let workspace = macros.join("../..");
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("messages");
    fs::create_dir_all(&package).expect("a folder for the package");
    let mut manifest = format!(
        "[workspace]\n\n[package]\nname = \"messages\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nlocum-macros.path = {macros:?}\nlocum-substitution.path = {:?}\n",
        workspace.join("crates/locum-substitution")
    );
    for (number, case) in cases.enumerate() {
        manifest += &format!("\n[[bin]]\nname = \"case{number}\"\npath = {case:?}\n");
    }
    fs::write(package.join("Cargo.toml"), manifest).expect("a manifest");
    // The workspace's own versions: the registry may have newer ones, or be out of reach.
    fs::copy(workspace.join("Cargo.lock"), package.join("Cargo.lock")).expect("a lock file");
    let output = Command::new(tool("CARGO", "cargo"))
        .args(["check", "--bins", "--keep-going", "--message-format=short"])
        .current_dir(&package)
        .env("CARGO_TARGET_DIR", package.join("target"))
        .output()
        .expect("cargo runs");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
