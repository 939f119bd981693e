//! BENCHMARKS.md: what the benchmark suites print, between prose that is written by hand.

use std::path::Path;
use std::process::Command;

use crate::{run, tidy};

/// The suites, in the order that the report has them.
const SUITES: [&str; 6] = [
    "block",
    "kernels",
    "whole_model",
    "models",
    "pruning",
    "eplb",
];

/// Runs the named suites, all where none is named, and replaces their sections; the others stay.
pub(crate) fn write(root: &Path, arguments: &[&str]) -> Result<(), String> {
    let (options, named): (Vec<&str>, Vec<&str>) = arguments
        .iter()
        .copied()
        .partition(|name| name.starts_with('-'));
    let quick = match options[..] {
        [] => false,
        ["--quick"] => true,
        _ => {
            return Err(format!(
                "unknown option among {options:?}, there is --quick"
            ));
        }
    };
    if let Some(unknown) = named.iter().find(|name| !SUITES.contains(name)) {
        let suites = SUITES.join(", ");
        return Err(format!("no benchmark suite {unknown}, there are {suites}"));
    }
    let path = root.join("BENCHMARKS.md");
    let mut report = tidy::read(&path).unwrap_or_default();
    let prose = |name: &str| tidy::read(&root.join(format!("benches/report/{name}.md")));
    for suite in SUITES {
        if !named.is_empty() && !named.contains(&suite) {
            continue;
        }
        let mut command = format!("bench -p locum-benches --bench {suite}");
        if quick {
            command += " -- --quick";
        }
        println!("$ cargo {command}");
        let printed = run::cargo_output(root, &command)?;
        let notes = prose(suite).unwrap_or_default();
        let section = section(suite, &today()?, &command, &printed, &notes)?;
        report = assemble(&prose("head")?, &report, suite, &section);
        // At once: a later suite may fail.
        std::fs::write(&path, &report)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

/// A suite's section: its heading, the day, the command, what it printed, and notes.
fn section(
    suite: &str,
    date: &str,
    command: &str,
    printed: &str,
    notes: &str,
) -> Result<String, String> {
    let printed = printed
        .trim()
        .strip_prefix(&format!("## {suite}\n"))
        .ok_or_else(|| format!("suite {suite} did not print its heading first: {printed}"))?;
    let parts = [
        format!("## {suite}"),
        format!("{date}:\n\n```text\ncargo {command}\n```"),
        printed.trim().to_owned(),
        notes.trim().to_owned(),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Ok(parts.join("\n\n") + "\n")
}

/// The report with one section replaced, all in the suites' order.
fn assemble(head: &str, report: &str, suite: &str, section: &str) -> String {
    let mut parts = vec![head.trim().to_owned() + "\n"];
    for name in SUITES {
        if name == suite {
            parts.push(section.to_owned());
        } else if let Some(kept) = find(report, name) {
            parts.push(kept);
        }
    }
    parts.join("\n")
}

/// A suite's section of a report.
fn find(report: &str, suite: &str) -> Option<String> {
    let heading = format!("## {suite}\n");
    let start = match report.strip_prefix(&heading) {
        Some(_) => 0,
        None => report.find(&format!("\n{heading}"))? + 1,
    };
    let rest = &report[start..];
    let end = rest.find("\n## ").unwrap_or(rest.len());
    Some(rest[..end].trim_end().to_owned() + "\n")
}

fn today() -> Result<String, String> {
    let output = Command::new("date")
        .args(["-u", "+%F"])
        .output()
        .map_err(|error| format!("cannot run date: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_is_replaced_in_its_place_and_the_others_stay() {
        let report = "old head\n\n## block\n\nb\n\n## eplb\n\ne\n";
        let section = section(
            "kernels",
            "2026-01-02",
            "bench x",
            "## kernels\n\nk\n",
            "n\n",
        );
        let section = section.expect("it has its heading");
        assert_eq!(
            section,
            "## kernels\n\n2026-01-02:\n\n```text\ncargo bench x\n```\n\nk\n\nn\n"
        );
        let once = assemble("# Head\n", report, "kernels", &section);
        assert_eq!(
            once,
            format!("# Head\n\n## block\n\nb\n\n{section}\n## eplb\n\ne\n")
        );
        assert_eq!(assemble("# Head\n", &once, "kernels", &section), once);
    }

    #[test]
    fn output_without_its_heading_is_refused() {
        let error =
            section("block", "2026-01-02", "bench x", "no table", "").expect_err("no heading");
        assert!(
            error.contains("suite block did not print its heading"),
            "{error}"
        );
    }
}
