//! What is printed, and where: data to standard output, everything else to standard error.

use std::io::Write;
use std::path::Path;

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

/// Writes a file whole or not at all: to a temporary sibling, which then takes its name.
pub(crate) fn write_file(path: &Path, contents: &[u8]) -> Result<(), CliError> {
    let failed = |reason: std::io::Error| CliError::file("write", path, reason);
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".locum-")
        .permissions(permissions())
        .tempfile_in(parent)
        .map_err(failed)?;
    file.write_all(contents).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Those of any new file, before the user's mask; temporary files are private by default.
#[cfg(unix)]
fn permissions() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}

#[cfg(not(unix))]
fn permissions() -> std::fs::Permissions {
    std::fs::metadata(".").map_or_else(
        |_| unreachable!("the current directory has permissions"),
        |metadata| metadata.permissions(),
    )
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
