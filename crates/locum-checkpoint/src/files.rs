//! The file system: every call puts the path into its error.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::CheckpointError;
use crate::map::FileMap;

/// How a Git LFS pointer starts, whatever its version.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Some editors put this before JSON. No JSON text starts with it, so it is passed over.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a JSON file, such as a model's `config.json`.
///
/// A byte order mark is tolerated.
///
/// # Errors
///
/// A file that is not there, cannot be read, is a Git LFS pointer, is empty or is not JSON.
pub fn read_json(path: impl AsRef<Path>) -> Result<Value, CheckpointError> {
    parse_json(path.as_ref())
}

/// Reads a text file, such as a model's `chat_template.jinja`.
///
/// # Errors
///
/// As [`read_file`], and a file that is not UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> Result<String, CheckpointError> {
    let path = path.as_ref();
    String::from_utf8(read_file(path)?)
        .map_err(|error| io_error("read", path)(io::Error::new(io::ErrorKind::InvalidData, error)))
}

/// Reads a whole file that people put there, whatever its content.
///
/// Links are followed, to a regular file: reading a pipe would wait for a writer, and a device need
/// not end.
///
/// # Errors
///
/// A file that is not there, cannot be read, is no regular file, is a Git LFS pointer or is empty.
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<u8>, CheckpointError> {
    let path = path.as_ref();
    regular(path)?;
    let bytes = fs::read(path).map_err(io_error("read", path))?;
    readable(path, &bytes)?;
    Ok(bytes)
}

/// Reads a JSON file into a type.
pub(crate) fn parse_json<T: DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    let bytes = read_file(path)?;
    let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    serde_json::from_slice(text).map_err(|source| CheckpointError::Json {
        path: path.into(),
        source,
    })
}

/// What is at a path, links followed; `None` where nothing is.
pub(crate) fn metadata(path: &Path) -> Result<Option<Metadata>, CheckpointError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => match fs::symlink_metadata(path) {
            Ok(_) => Err(CheckpointError::BrokenLink { path: path.into() }),
            Err(_) => Ok(None),
        },
        Err(e) => Err(io_error("look at", path)(e)),
    }
}

/// The names in a directory that are UTF-8, sorted.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>, CheckpointError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(io_error("list", directory))? {
        let entry = entry.map_err(io_error("list", directory))?;
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Maps a whole file into memory. Nothing of it is read until it is looked at.
pub(crate) fn map(path: &Path) -> Result<FileMap, CheckpointError> {
    let length = regular(path)?.len();
    if length == 0 {
        return Err(CheckpointError::EmptyFile { path: path.into() });
    }
    let file = File::open(path).map_err(io_error("open", path))?;
    FileMap::new(file, path).map_err(io_error("map", path))
}

/// Refuses what is a common mistake for any content: nothing at all, and a Git LFS pointer.
pub(crate) fn readable(path: &Path, bytes: &[u8]) -> Result<(), CheckpointError> {
    if bytes.is_empty() {
        return Err(CheckpointError::EmptyFile { path: path.into() });
    }
    if bytes.starts_with(LFS_POINTER) {
        return Err(CheckpointError::LfsPointer { path: path.into() });
    }
    Ok(())
}

/// Refuses what is no file before it is opened: opening a pipe waits for somebody to write.
fn regular(path: &Path) -> Result<Metadata, CheckpointError> {
    match metadata(path)? {
        Some(metadata) if metadata.is_file() => Ok(metadata),
        Some(_) => Err(CheckpointError::NotAFile { path: path.into() }),
        None => {
            let reason = io::Error::new(io::ErrorKind::NotFound, "not found");
            Err(io_error("open", path)(reason))
        }
    }
}

pub(crate) fn io_error(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CheckpointError {
    let path = path.into();
    move |source| CheckpointError::Io {
        action,
        path,
        source,
    }
}

/// Writes a new file; messages call it `shown`.
pub(crate) fn write(path: &Path, shown: &Path, contents: &[u8]) -> Result<(), CheckpointError> {
    let mut file = File::create_new(path).map_err(io_error("create", shown))?;
    file.write_all(contents).map_err(io_error("write", shown))?;
    drop(file);
    check_length(path, shown, contents.len() as u64)
}

/// Checks that a file which was written and closed is as long as what was written to it: some file
/// systems find only then that there is no room, and closing tells nobody. Messages call it `shown`.
///
/// # Errors
///
/// Another length, or a file that is not there.
pub fn check_length(path: &Path, shown: &Path, expected: u64) -> Result<(), CheckpointError> {
    let found = fs::metadata(path).map_err(io_error("write", shown))?.len();
    if found == expected {
        return Ok(());
    }
    let reason = format!("{found} of its {expected} bytes are there; is the disk full?");
    Err(io_error("write", shown)(io::Error::other(reason)))
}

/// Waits until a directory's entries are on the disk, where the system has a way to ask for it: some
/// network file systems have none, and lose nothing by it but time after a power failure.
pub(crate) fn sync_directory(path: &Path) {
    if cfg!(unix)
        && let Ok(directory) = File::open(path)
    {
        let _ = directory.sync_all();
    }
}

/// Waits until all files below a directory are on the disk.
pub(crate) fn sync_files(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            sync_files(&path)?;
        } else if cfg!(unix) {
            File::open(&path)?.sync_all()?;
        }
    }
    sync_directory(directory);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_lost_its_end_is_refused() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("file");
        fs::write(&path, "12345")?;
        assert!(check_length(&path, Path::new("out/file"), 5).is_ok());
        let found = check_length(&path, Path::new("out/file"), 7).map_err(|e| e.to_string());
        let expected = "cannot write `out/file`: 5 of its 7 bytes are there; is the disk full?";
        assert_eq!(found, Err(expected.into()));
        fs::remove_file(&path)?;
        assert!(check_length(&path, Path::new("out/file"), 0).is_err());
        Ok(())
    }
}
