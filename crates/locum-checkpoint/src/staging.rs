//! A directory that appears whole or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::{CheckpointError, files};

/// What is in the names of unfinished directories, after a dot and the name that they would get.
const PARTIAL: &str = ".locum-partial-";

/// Where the directory that is replaced waits, where it cannot change places with the new one.
const REPLACED: &str = ".locum-replaced-";

/// What a directory must hold to be replaced: only those of models are. Much else has a `config.json`,
/// so it must name an architecture, and there must be weights.
const CONFIG: &str = "config.json";
const ARCHITECTURE: [&str; 2] = ["model_type", "architectures"];
const WEIGHTS: &str = "safetensors";
/// What a repository keeps its history in.
const REPOSITORY: &str = ".git";

/// A new directory under a temporary name beside the place where it belongs.
///
/// Its name starts with a dot and says that it is partial, so nobody takes it for the one that is to
/// come. Dropping it removes it. What a killed process left behind is removed when the next one
/// starts to make the same directory: a lock, which ends with its process, tells what is still in use.
#[derive(Debug)]
pub struct StagedDirectory {
    temporary: TempDir,
    target: PathBuf,
    replace: bool,
    /// Held until the directory has its name.
    _lock: Option<File>,
}

impl StagedDirectory {
    /// Begins a directory that is to be called `target`, whose parent must exist.
    ///
    /// # Errors
    ///
    /// A name that is taken, unless `replace` says that the directory there may be replaced, which
    /// only one that is empty or a model's is: its `config.json` has `model_type` or `architectures`,
    /// and there is a `.safetensors` file; a place that cannot be written to.
    pub fn create(target: impl AsRef<Path>, replace: bool) -> Result<Self, CheckpointError> {
        let given = target.as_ref();
        let target = resolve(given)?;
        if target.exists() {
            if !replace {
                return Err(CheckpointError::Exists { path: given.into() });
            }
            replaceable(&target, given)?;
        }
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(CheckpointError::NoPlace {
                path: given.into(),
                reason: "it is the root of the file system",
            });
        };
        remove_leftovers(parent, &hidden(name, PARTIAL));
        if target.exists() {
            remove_leftovers(parent, &hidden(name, REPLACED));
        }
        let failed = |error: io::Error| files::io_error("create", given)(plain(error));
        let (temporary, lock) = begin(parent, &hidden(name, PARTIAL)).map_err(failed)?;
        Ok(Self {
            temporary,
            target,
            replace,
            _lock: lock,
        })
    }

    /// Where its files are to be written.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Gives the directory its name, in one step; what it replaces is removed after that.
    ///
    /// Whenever the process ends, the name leads to all of a directory or to none; but where something
    /// is replaced and the file system cannot let two directories change places, to none between two
    /// renames, while the old one waits beside it under a hidden name.
    ///
    /// Where something is replaced, that holds for a power failure as well: the new files are on the
    /// disk before the old ones go. Where nothing is lost but what can be made again, it is not waited
    /// for the disk, which takes longer than the writing: a power failure within the next minute or so
    /// may leave files under the name that are short or empty. Make the directory again then.
    ///
    /// # Errors
    ///
    /// A name that was taken meanwhile, by what is not to be replaced; a file system that refuses.
    pub fn publish(self) -> Result<(), CheckpointError> {
        let failed = |error| files::io_error("create", &self.target)(error);
        if self.replace && self.target.exists() {
            // It may be another one than at the beginning.
            replaceable(&self.target, &self.target)?;
            // The old one goes when the new one is on the disk.
            files::sync_files(self.path()).map_err(failed)?;
            if !exchanged(self.path(), &self.target).map_err(failed)? {
                self.replace_in_two_steps().map_err(failed)?;
            }
        } else {
            fs::rename(self.path(), &self.target).map_err(|error| {
                if self.target.exists() {
                    // Another process was faster.
                    let path = self.target.clone();
                    return CheckpointError::Exists { path };
                }
                failed(error)
            })?;
        }
        if let Some(parent) = self.target.parent() {
            files::sync_directory(parent);
        }
        // What has the temporary name now is what was replaced, or nothing.
        drop(self.temporary);
        Ok(())
    }

    /// For file systems where two directories cannot change places: the old one waits under another
    /// name until the new one is there.
    fn replace_in_two_steps(&self) -> io::Result<()> {
        let (Some(parent), Some(name)) = (self.target.parent(), self.target.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let replaced = tempfile::Builder::new()
            .prefix(&hidden(name, REPLACED))
            .tempdir_in(parent)?
            .keep();
        // Onto the empty directory of that name.
        fs::rename(&self.target, &replaced)?;
        if let Err(error) = fs::rename(self.path(), &self.target) {
            fs::rename(&replaced, &self.target)?;
            return Err(error);
        }
        fs::remove_dir_all(&replaced)
    }
}

/// A path without links whose last part may not exist.
fn resolve(given: &Path) -> Result<PathBuf, CheckpointError> {
    let no_place = |reason| CheckpointError::NoPlace {
        path: given.into(),
        reason,
    };
    if fs::symlink_metadata(given).is_ok() {
        return fs::canonicalize(given).map_err(files::io_error("look at", given));
    }
    let name = given
        .file_name()
        .ok_or_else(|| no_place("it has no name of its own"))?;
    let parent = match given.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match fs::canonicalize(parent) {
        Ok(parent) if parent.is_dir() => Ok(parent.join(name)),
        Ok(_) => Err(no_place("what should hold it is not a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(no_place("the directory that should hold it does not exist"))
        }
        Err(error) => Err(files::io_error("create", given)(error)),
    }
}

/// Refuses what is no model's directory: replacing removes everything in it.
fn replaceable(target: &Path, given: &Path) -> Result<(), CheckpointError> {
    let refused = |reason| {
        Err(CheckpointError::NotReplaced {
            path: given.into(),
            reason,
        })
    };
    if !target.is_dir() {
        return refused("it is not a directory");
    }
    let mut empty = true;
    let mut weights = false;
    for entry in fs::read_dir(target).map_err(files::io_error("list", given))? {
        let entry = entry.map_err(files::io_error("list", given))?;
        empty = false;
        if entry.file_name() == REPOSITORY {
            return refused("it holds a `.git`, whose history would be lost; remove it yourself");
        }
        weights |= Path::new(&entry.file_name()).extension() == Some(OsStr::new(WEIGHTS));
    }
    if empty {
        return Ok(());
    }
    let config = target.join(CONFIG);
    if !config.exists() {
        return refused(
            "it holds files but no `config.json`, so it is no model; remove it yourself",
        );
    }
    let config = files::read_json(config).ok();
    if !config.is_some_and(|config| ARCHITECTURE.iter().any(|key| config.get(key).is_some())) {
        return refused(
            "its `config.json` has neither `model_type` nor `architectures`, so it is no model; \
             remove it yourself",
        );
    }
    if !weights {
        return refused("it holds no `.safetensors` file, so it is no model; remove it yourself");
    }
    Ok(())
}

/// `.name` and a mark: how names of directories start that are not for others.
fn hidden(name: &OsStr, mark: &str) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(mark);
    hidden
}

/// A temporary directory, and a lock on it where the system locks directories.
fn begin(parent: &Path, prefix: &OsStr) -> io::Result<(TempDir, Option<File>)> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    // Temporary directories are private by default; this one is to be as any other.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o777));
    }
    loop {
        let directory = builder.tempdir_in(parent)?;
        match lock(directory.path()) {
            // Another process took it for a leftover between its making and its locking: it holds the
            // lock, or has removed the directory before it was opened, or after.
            Some(Err(TryLockError::WouldBlock)) => {}
            Some(Err(TryLockError::Error(error))) if error.kind() == io::ErrorKind::NotFound => {}
            Some(Ok(file)) if !leads_to(directory.path(), &file) => {}
            Some(Ok(file)) => return Ok((directory, Some(file))),
            Some(Err(TryLockError::Error(_))) | None => return Ok((directory, None)),
        }
    }
}

/// Whether a path still leads to the directory that was opened.
#[cfg(unix)]
fn leads_to(path: &Path, opened: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (fs::symlink_metadata(path), opened.metadata()) {
        (Ok(there), Ok(opened)) => (there.dev(), there.ino()) == (opened.dev(), opened.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
fn leads_to(path: &Path, _: &File) -> bool {
    path.exists()
}

/// Locks a directory; `None` where the system cannot.
fn lock(directory: &Path) -> Option<Result<File, TryLockError>> {
    if !cfg!(unix) {
        return None;
    }
    let file = match File::open(directory) {
        Ok(file) => file,
        Err(error) => return Some(Err(TryLockError::Error(error))),
    };
    Some(file.try_lock().map(|()| file))
}

/// Removes directories that a process which is no more has left; what cannot be removed stays.
fn remove_leftovers(parent: &Path, prefix: &OsStr) {
    let prefix = prefix.as_encoded_bytes();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let named = entry.file_name().as_encoded_bytes().starts_with(prefix);
        if named && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            if let Some(Ok(_lock)) = lock(&path) {
                let _ = fs::remove_dir_all(&path);
            }
        }
    }
}

/// Lets two directories change places; whether the system could.
#[cfg(target_os = "linux")]
fn exchanged(one: &Path, other: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchanged(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}

/// The error of the system, without the temporary name that is put to it.
fn plain(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.source()) {
        Some(source) => io::Error::new(error.kind(), source.to_string()),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"{"model_type": "old"}"#;

    fn staged(parent: &Path) -> Result<StagedDirectory, CheckpointError> {
        let out = parent.join("out");
        fs::create_dir(&out).map_err(files::io_error("create", &out))?;
        for (name, content) in [("config.json", OLD), ("model.safetensors", "")] {
            fs::write(out.join(name), content).map_err(files::io_error("write", &out))?;
        }
        let staged = StagedDirectory::create(&out, true)?;
        fs::write(staged.path().join("config.json"), "new")
            .map_err(files::io_error("write", &out))?;
        Ok(staged)
    }

    fn names(parent: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(parent)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    }

    #[test]
    fn where_directories_cannot_change_places_one_waits() -> Result<(), Box<dyn std::error::Error>>
    {
        let parent = tempfile::tempdir()?;
        let staged = staged(parent.path())?;
        staged.replace_in_two_steps()?;
        let out = parent.path().join("out");
        assert_eq!(fs::read_to_string(out.join("config.json"))?, "new");
        drop(staged);
        assert_eq!(names(parent.path())?, ["out"]);
        Ok(())
    }

    #[test]
    fn what_cannot_be_replaced_comes_back() -> Result<(), Box<dyn std::error::Error>> {
        let parent = tempfile::tempdir()?;
        let staged = staged(parent.path())?;
        fs::remove_dir_all(staged.path())?;
        assert!(staged.replace_in_two_steps().is_err());
        let out = parent.path().join("out");
        assert_eq!(fs::read_to_string(out.join("config.json"))?, OLD);
        assert_eq!(names(parent.path())?, ["out"]);
        Ok(())
    }

    #[test]
    fn what_waited_for_a_process_that_was_killed_goes_once_the_new_one_is_there()
    -> Result<(), Box<dyn std::error::Error>> {
        let parent = tempfile::tempdir()?;
        let waiting = parent.path().join(".out.locum-replaced-abc123");
        fs::create_dir(&waiting)?;
        let out = parent.path().join("out");
        // Killed in between: it is the only one there is.
        let staged = StagedDirectory::create(&out, false)?;
        assert!(waiting.exists());
        staged.publish()?;
        drop(StagedDirectory::create(&out, true)?);
        assert_eq!(waiting.exists(), !cfg!(unix));
        Ok(())
    }
}
