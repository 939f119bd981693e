//! Where paths lead, and which of them must not be written to.

use std::path::{Path, PathBuf};

use crate::error::CliError;

/// Where a file is, or would be: links followed as far as there is something.
pub(crate) fn place(path: &Path) -> PathBuf {
    if let Ok(there) = std::fs::canonicalize(path) {
        return there;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
            place(Path::new(".")).join(name)
        }
        (Some(parent), Some(name)) => place(parent).join(name),
        _ => path.to_path_buf(),
    }
}

/// Refuses to write over what is read: a file, anything in a model's directory, and what a link in
/// there leads to (the Hugging Face cache keeps models as links).
pub(crate) fn spare<'p>(
    out: &Path,
    read: impl IntoIterator<Item = &'p Path>,
) -> Result<(), CliError> {
    let written = place(out);
    for input in read {
        if belongs_to(&written, input) {
            return Err(CliError::file(
                "write",
                out,
                format!(
                    "it is, or is part of, {}, which is read: give another place",
                    input.display()
                ),
            ));
        }
    }
    Ok(())
}

fn belongs_to(written: &Path, input: &Path) -> bool {
    let Ok(there) = std::fs::canonicalize(input) else {
        return false;
    };
    if written.starts_with(&there) {
        return true;
    }
    let entries = std::fs::read_dir(&there).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
        .any(|entry| std::fs::canonicalize(entry.path()).is_ok_and(|of| of == written))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_is_read_is_spared_behind_links_too() -> std::io::Result<()> {
        let directory = tempfile::tempdir()?;
        let at = |name: &str| directory.path().join(name);
        let (model, blob) = (at("model"), at("blob"));
        std::fs::create_dir(&model)?;
        std::fs::write(&blob, "weights")?;
        symlink(&blob, model.join("model.safetensors"))?;
        symlink(&model, at("link"))?;
        for (out, spared) in [
            (model.join("new"), true),
            (at("link/new"), true),
            (model.clone(), true),
            (blob, true),
            (at("other"), false),
            (at("nowhere/new"), false),
        ] {
            let refused = spare(&out, [at("link").as_path(), &at("missing")]).is_err();
            assert_eq!(refused, spared, "{}", out.display());
        }
        Ok(())
    }
}
