//! Files that appear whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::PruneError;

/// A path with something more at its end.
pub(crate) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> PruneError {
    move |source| PruneError::Io {
        action,
        path: path.into(),
        source,
    }
}

/// Writes a file under a temporary name, which is always the same, so that a process that is killed
/// leaves one behind at most; and renames it. `durable` has it on the disk before it has its name:
/// what a power failure then leaves is the file before or the file after.
pub(crate) fn save(
    path: &Path,
    durable: bool,
    contents: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), PruneError> {
    let temporary = beside(path, ".tmp");
    let write = || {
        let mut out = BufWriter::new(File::create(&temporary)?);
        contents(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        if durable {
            file.sync_all()?;
        }
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        failed("write", path)(error)
    })?;
    if durable {
        sync_directory(path);
    }
    Ok(())
}

/// Has a new name on the disk, where the system can do that.
pub(crate) fn sync_directory(path: &Path) {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    if let Ok(directory) = File::open(parent.unwrap_or(Path::new("."))) {
        let _ = directory.sync_all();
    }
}

/// Checks that a file can be written, and that it is not among those of a model.
pub(crate) fn check_place(path: &Path, model: &Path) -> Result<(), PruneError> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            return Err(failed("write", path)(io::ErrorKind::IsADirectory.into()));
        }
        Ok(found) if !found.is_file() => {
            let reason = "it is not a regular file";
            return Err(failed("write", path)(io::Error::other(reason)));
        }
        _ => {}
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    let parent =
        fs::canonicalize(parent.unwrap_or(Path::new("."))).map_err(failed("write", path))?;
    if let Ok(model) = fs::canonicalize(model)
        && model.is_dir()
        && parent.starts_with(&model)
    {
        return Err(PruneError::InsideModel {
            path: path.into(),
            model,
        });
    }
    let temporary = beside(path, ".tmp");
    File::create(&temporary)
        .and_then(|_| fs::remove_file(&temporary))
        .map_err(failed("write", path))
}
