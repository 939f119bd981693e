//! Files that are read: regular ones, whole.

use std::path::Path;

use locum::checkpoint::read_file;
use serde_json::Value;

use crate::error::CliError;

/// Some editors and spreadsheets put this before text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

pub(super) fn bytes(path: &Path) -> Result<Vec<u8>, CliError> {
    read_file(path).map_err(|error| CliError::Usage(error.to_string()))
}

pub(super) fn json(path: &Path) -> Result<Value, CliError> {
    parse_json(&bytes(path)?)
        .map_err(|problem| CliError::Usage(format!("{}: {problem}", path.display())))
}

pub(super) fn parse_json(bytes: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(without_mark(bytes)).map_err(|error| format!("not valid JSON: {error}"))
}

pub(super) fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(without_mark(bytes)).map_err(|error| format!("not UTF-8 text: {error}"))
}

fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes)
}
