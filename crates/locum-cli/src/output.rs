//! What is printed, and where: data to standard output, everything else to standard error.

use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use locum::models::MemoryPlan;
use tempfile::NamedTempFile;

use crate::error::CliError;

/// Says one line on standard error; that it may be closed is no concern of ours.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says what went wrong, in one line.
pub(crate) fn error(error: &CliError) {
    let message = error.to_string();
    note(&format!(
        "error: {}",
        message.split_whitespace().collect::<Vec<_>>().join(" ")
    ));
}

/// Says how much memory a model will take for sequences of so many tokens, and for what else.
pub(crate) fn announce(memory: &MemoryPlan, tokens: usize, more: &[(&str, u64)]) {
    let total = memory.total(tokens);
    let what = more
        .iter()
        .map(|(what, count)| format!(", {what} {}", bytes(*count)));
    let what: String = what.collect();
    note(&format!(
        "needs {} of memory: weights {}, key-value cache {} for {tokens} tokens{what}",
        bytes(total + more.iter().map(|(_, count)| count).sum::<u64>()),
        bytes(memory.weights),
        bytes(total - memory.weights),
    ));
}

/// Bytes as people read them: decimal units, three digits.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{count} B"),
        (_, v) if v < 9.995 => format!("{v:.2} {}", UNITS[unit]),
        (_, v) if v < 99.95 => format!("{v:.1} {}", UNITS[unit]),
        (_, v) => format!("{v:.0} {}", UNITS[unit]),
    }
}

/// A file that is written whole or not at all: to a temporary sibling, which takes its name at the
/// end. A device or a pipe is written straight into.
pub(crate) struct OutputFile {
    /// As it was given, for messages.
    named: PathBuf,
    sink: Sink,
}

enum Sink {
    Sibling {
        file: NamedTempFile,
        target: PathBuf,
    },
    Straight(File),
}

/// What a file is to hold. One that holds something else is not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A page of `locum report`, or any other.
    Page,
    Picture,
    Logits,
    /// A plan of `locum prune`.
    Plan,
    /// Who writes it takes what comes.
    Any,
}

impl Kind {
    /// What is at the beginning of each of them, in any case.
    fn mark(self) -> &'static str {
        match self {
            Self::Page => "<!doctype html",
            Self::Picture => "<svg",
            Self::Logits => "{\"logits\":",
            Self::Plan => "{\n  \"version\": 1,\n  \"settings\":",
            Self::Any => "",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Page => "HTML page",
            Self::Picture => "SVG picture",
            Self::Logits => "file of logits",
            Self::Plan => "plan",
            Self::Any => "file",
        }
    }

    /// Whether a file, of which nothing is trusted, is of this kind or holds nothing.
    fn is_of(self, path: &Path) -> io::Result<bool> {
        let mut head = Vec::new();
        File::open(path)?.take(256).read_to_end(&mut head)?;
        let head = String::from_utf8_lossy(&head).to_lowercase();
        Ok(head.is_empty() || head.contains(self.mark()))
    }
}

impl OutputFile {
    /// Checks that a place can be written to, before anything is computed for it.
    pub(crate) fn create(path: &Path, kind: Kind) -> Result<Self, CliError> {
        let failed = |error: io::Error| CliError::file("write", path, reason(&error));
        // A link is followed: what it leads to is replaced, not the link.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let existing = std::fs::metadata(&target).ok();
        if existing.as_ref().is_some_and(Metadata::is_dir) {
            return Err(CliError::file("write", path, "it is a directory"));
        }
        if existing.as_ref().is_some_and(|found| !found.is_file()) {
            let sink = Sink::Straight(File::options().write(true).open(path).map_err(failed)?);
            return Ok(Self {
                named: path.to_path_buf(),
                sink,
            });
        }
        if existing.is_some() && !kind.is_of(&target).map_err(failed)? {
            let reason = format!("it exists and is no {}: give another place", kind.name());
            return Err(CliError::file("replace", path, reason));
        }
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".locum-");
        // Temporary files are private by default; this one is to be as any other, or as before.
        if let Some(permissions) = permissions(existing.as_ref()) {
            builder.permissions(permissions);
        }
        let file = builder.tempfile_in(parent).map_err(failed)?;
        if let Some(existing) = &existing {
            file.as_file()
                .set_permissions(existing.permissions())
                .map_err(failed)?;
        }
        Ok(Self {
            named: path.to_path_buf(),
            sink: Sink::Sibling { file, target },
        })
    }

    /// Writes the file.
    pub(crate) fn write(self, contents: &[u8]) -> Result<(), CliError> {
        let failed = |error: io::Error| CliError::file("write", &self.named, reason(&error));
        match self.sink {
            Sink::Straight(mut file) => file.write_all(contents).map_err(failed),
            Sink::Sibling { mut file, target } => {
                file.write_all(contents).map_err(failed)?;
                file.persist(target)
                    .map_err(|error| failed(error.error))
                    .map(drop)
            }
        }
    }
}

/// Writes a file whole or not at all.
pub(crate) fn write_file(path: &Path, kind: Kind, contents: &[u8]) -> Result<(), CliError> {
    OutputFile::create(path, kind)?.write(contents)
}

/// What the system says, without the name of a temporary file.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at path ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// Those of any new file, before the user's mask.
#[cfg(unix)]
fn permissions(existing: Option<&Metadata>) -> Option<std::fs::Permissions> {
    use std::os::unix::fs::PermissionsExt;
    existing
        .is_none()
        .then(|| std::fs::Permissions::from_mode(0o666))
}

#[cfg(not(unix))]
fn permissions(_: Option<&Metadata>) -> Option<std::fs::Permissions> {
    None
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn bytes_keep_three_digits() {
        let shown = [0, 999, 1000, 9994, 9996, 99_940, 99_960, 999_499, 999_500];
        assert_eq!(
            shown.map(bytes),
            [
                "0 B", "999 B", "1.00 kB", "9.99 kB", "10.0 kB", "99.9 kB", "100 kB", "999 kB",
                "1.00 MB"
            ]
        );
    }
}
