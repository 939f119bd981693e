//! Every module says in its first line what it is.

use std::path::{Path, PathBuf};

/// Folders whose files are not modules of ours: build output, and cases that show users' code.
const SKIPPED: [&str; 4] = ["target", "ui", ".git", "fixtures"];

pub(super) fn wrong(root: &Path) -> Result<Vec<String>, String> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    let mut wrong = Vec::new();
    for file in files {
        if !super::read(&file)?.starts_with("//!") {
            let shown = file.strip_prefix(root).unwrap_or(&file);
            wrong.push(format!(
                "{}: does not start with a `//!` line that says what it is",
                shown.display()
            ));
        }
    }
    Ok(wrong)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if path.is_dir() {
            if !name.is_some_and(|name| SKIPPED.contains(&name)) {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}
