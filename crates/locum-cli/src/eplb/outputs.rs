//! Files that are written: that they can be, and that none is another's.

use std::path::{Path, PathBuf};

use crate::error::CliError;

/// An option and the file that it names.
pub(super) type Named<'a> = (&'static str, Option<&'a Path>);

/// Finds out before anything is written that a file cannot be, or would replace one that is read or
/// written as well.
pub(super) fn check(outputs: [Named; 2], inputs: [Named; 2]) -> Result<(), CliError> {
    for (_, path) in outputs {
        path.map_or(Ok(()), check_writable)?;
    }
    let [first, second] = outputs;
    let pairs = inputs
        .iter()
        .flat_map(|input| outputs.map(|output| (output, *input)));
    for (output, other) in std::iter::once((first, second)).chain(pairs) {
        let ((option, Some(path)), (other_option, Some(other))) = (output, other) else {
            continue;
        };
        if same(path, other) {
            return Err(CliError::Usage(format!(
                "{option} and {other_option} both name {}; name another file with {option}",
                path.display()
            )));
        }
    }
    Ok(())
}

fn check_writable(path: &Path) -> Result<(), CliError> {
    if path.is_dir() {
        return Err(CliError::file(
            "write",
            path,
            "it is a directory; name a file",
        ));
    }
    tempfile::tempfile_in(parent(path)).map_err(|error| CliError::file("write", path, error))?;
    Ok(())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn same(left: &Path, right: &Path) -> bool {
    let right = places(right);
    places(left).iter().any(|place| right.contains(place))
}

/// What a path stands for: its own place, which writing replaces, and the file that it leads to,
/// which reading opens.
fn places(path: &Path) -> Vec<PathBuf> {
    let own = parent(path).canonicalize().ok();
    let own = own.zip(path.file_name());
    let target = path.canonicalize().ok();
    own.map(|(parent, name)| parent.join(name))
        .into_iter()
        .chain(target)
        .collect()
}
