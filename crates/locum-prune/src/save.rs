//! Files that appear whole or not at all, at a place that is one process's own meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::{PruneError, file};

/// What is in the names of unfinished files, after a dot and the name that they would get.
const PARTIAL: &str = ".locum-partial-";

/// What the name of a lock ends with, after a dot and the name of what it locks.
const LOCK: &str = ".locum-lock";

/// The place of a statistics file, which no other process writes to until this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    /// Where the file belongs, links resolved.
    target: PathBuf,
    parent: PathBuf,
    name: OsString,
    lock: Lock,
}

impl Place {
    /// Takes a place, and checks that it can be written to.
    ///
    /// # Errors
    ///
    /// A place that is among the files of `model`, that is one of `inputs`, that holds what is no
    /// statistics file, that another process writes to, or that cannot be written to.
    pub(crate) fn take(
        path: &Path,
        model: Option<&Path>,
        inputs: &[PathBuf],
    ) -> Result<Self, PruneError> {
        let write = |reason: io::ErrorKind| failed("write", path)(reason.into());
        // A link is followed: what it leads to is replaced, not the link.
        let found = fs::metadata(path).ok();
        let resolved = match &found {
            Some(_) => fs::canonicalize(path).map_err(failed("write", path))?,
            None => path.to_path_buf(),
        };
        match &found {
            Some(found) if found.is_dir() => return Err(write(io::ErrorKind::IsADirectory)),
            Some(found) if !found.is_file() => {
                let reason = "it is not a regular file";
                return Err(failed("write", path)(io::Error::other(reason)));
            }
            _ => {}
        }
        let name = resolved
            .file_name()
            .ok_or_else(|| write(io::ErrorKind::InvalidFilename))?;
        let parent = resolved.parent().filter(|p| !p.as_os_str().is_empty());
        let parent =
            fs::canonicalize(parent.unwrap_or(Path::new("."))).map_err(failed("write", path))?;
        let (target, name) = (parent.join(name), name.to_owned());
        if let Some(model) = model.and_then(|model| fs::canonicalize(model).ok())
            && model.is_dir()
            && parent.starts_with(&model)
        {
            let path = path.into();
            return Err(PruneError::InsideModel { path, model });
        }
        if found.is_some() {
            let is_target = |input: &PathBuf| fs::canonicalize(input).is_ok_and(|i| i == target);
            if inputs.iter().any(is_target) {
                return Err(PruneError::OutputIsInput { path: path.into() });
            }
            if !file::is_statistics(&target) {
                return Err(PruneError::NotReplaced { path: path.into() });
            }
        }
        let place = Self {
            lock: Lock::take(&parent.join(hidden(&name, LOCK)), path)?,
            target,
            parent,
            name,
        };
        place.remove_leftovers();
        place.temporary().map_err(failed("write", path))?;
        Ok(place)
    }

    /// Where the file belongs.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Where progress is kept.
    pub(crate) fn progress(&self) -> PathBuf {
        let mut name = self.target.as_os_str().to_owned();
        name.push(".partial");
        name.into()
    }

    /// Writes the file, or its progress, under a temporary name of its own, and renames it. `durable`
    /// has it on the disk before it has its name: what a power failure then leaves is the file before
    /// or the file after.
    pub(crate) fn save(
        &self,
        path: &Path,
        durable: bool,
        contents: impl FnOnce(&mut dyn Write) -> Result<(), PruneError>,
    ) -> Result<(), PruneError> {
        let written = |result: io::Result<()>| result.map_err(failed("write", path));
        let temporary = self.temporary().map_err(failed("write", path))?;
        // Into the file itself: the other writer puts its temporary name to errors.
        let mut out = BufWriter::new(temporary.as_file());
        contents(&mut out)?;
        written(out.flush())?;
        drop(out);
        if durable {
            written(temporary.as_file().sync_all())?;
        }
        let persisted = temporary.persist(path).map(drop);
        written(persisted.map_err(|error| error.error))?;
        if durable && let Ok(directory) = File::open(&self.parent) {
            // Has the new name on the disk, where the system can do that.
            let _ = directory.sync_all();
        }
        Ok(())
    }

    fn temporary(&self) -> io::Result<NamedTempFile> {
        let prefix = hidden(&self.name, PARTIAL);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        // Temporary files are private by default; this one is to be as any other.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        builder.tempfile_in(&self.parent).map_err(plain)
    }

    /// Removes files that a process which is no more has left; what cannot be removed stays.
    fn remove_leftovers(&self) {
        if self.lock.file.is_none() {
            return;
        }
        let prefix = hidden(&self.name, PARTIAL);
        let prefix = prefix.as_encoded_bytes();
        for entry in fs::read_dir(&self.parent).into_iter().flatten().flatten() {
            let named = entry.file_name().as_encoded_bytes().starts_with(prefix);
            if named && entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// An empty file that is locked. It goes when it is dropped; that of a process which was killed is
/// taken over.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    /// None where the file system has no locks.
    file: Option<File>,
}

impl Lock {
    /// Takes the lock of what was given as `shown`.
    fn take(path: &Path, shown: &Path) -> Result<Self, PruneError> {
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false);
            let file = options.open(path).map_err(failed("write", shown))?;
            let file = match file.try_lock() {
                Ok(()) => Some(file),
                Err(TryLockError::WouldBlock) => {
                    return Err(PruneError::Busy { path: shown.into() });
                }
                Err(TryLockError::Error(_)) => None,
            };
            // The one who had it may have removed it between the opening and the locking.
            if file.as_ref().is_none_or(|file| has_the_name(file, path)) {
                let path = path.into();
                return Ok(Self { path, file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is locked, so that it is nobody else's.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(unix)]
fn has_the_name(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    let (opened, named) = (file.metadata().map(id), fs::metadata(path).map(id));
    opened.is_ok_and(|opened| named.is_ok_and(|named| opened == named))
}

/// A file that is open keeps its name there.
#[cfg(not(unix))]
fn has_the_name(_: &File, _: &Path) -> bool {
    true
}

/// `.name` and a mark: how names of files start that are not for others.
fn hidden(name: &OsStr, mark: &str) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(mark);
    hidden
}

/// The error of the system, without the temporary name that is put to it.
fn plain(error: io::Error) -> io::Error {
    match error.get_ref().and_then(|inner| inner.source()) {
        Some(source) => io::Error::new(error.kind(), source.to_string()),
        None => error,
    }
}

pub(crate) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> PruneError {
    move |source| PruneError::Io {
        action,
        path: path.into(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<OsString> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn place_is_one_process_s_own_until_it_is_done() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let out = folder.path().join("out");
        let mine = folder.path().join("out.tmp");
        fs::write(&mine, "of the user")?;
        fs::write(folder.path().join(".out.locum-lock"), "")?;
        fs::write(folder.path().join(".out.locum-partial-abc"), "killed")?;
        let place = Place::take(&out, None, &[])?;
        let error = Place::take(&out, None, &[]).err().map(|e| e.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains("another process"), "{error}");
        // Another file beside it is free.
        drop(Place::take(&folder.path().join("other"), None, &[])?);
        place.save(&out, true, |to| {
            to.write_all(b"whole").map_err(failed("write", &out))
        })?;
        drop(place);
        assert_eq!(names(folder.path()), ["out", "out.tmp"]);
        assert_eq!(fs::read_to_string(&mine)?, "of the user");
        Ok(())
    }

    #[test]
    fn failure_leaves_what_was_there() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let out = folder.path().join("out");
        let place = Place::take(&out, None, &[])?;
        place.save(&out, false, |to| {
            to.write_all(b"before").map_err(failed("write", &out))
        })?;
        let failing = place.save(&out, false, |to| {
            to.write_all(b"half").map_err(failed("write", &out))?;
            Err(PruneError::OtherLayers)
        });
        assert!(failing.is_err());
        drop(place);
        assert_eq!(names(folder.path()), ["out"]);
        assert_eq!(fs::read_to_string(&out)?, "before");
        Ok(())
    }
}
