//! Which option or file an error of the library is about.

use std::path::Path;

use eplb::Error;

use crate::error::CliError;

/// The files of a run.
pub(super) struct Blame<'a> {
    pub(super) load: &'a Path,
    pub(super) current: Option<&'a Path>,
}

impl Blame<'_> {
    /// An error of a problem or a planner, with what it is about in front.
    pub(super) fn error(&self, error: Error) -> CliError {
        let current = self.current.unwrap_or(self.load).display().to_string();
        match &error {
            Error::Groups { .. } => about("--groups", error),
            Error::TooFewSlots { .. }
            | Error::UnevenSlots { .. }
            | Error::Limit {
                what: "slots of a layer",
                ..
            } => about("--slots", error),
            Error::Budget { unit: "byte", .. } => about("--max-bytes", error),
            Error::Budget { .. } => about("--max-moves", error),
            Error::CurrentShape { .. }
            | Error::NoSource { .. }
            | Error::NotInverse { .. }
            | Error::TooManyReplicas { .. } => about(&current, error),
            Error::Shape { what, .. } if what == "slots" => option(error),
            Error::Setting { what, .. } if what == "z" => option(error),
            Error::Setting {
                what,
                found,
                remedy,
            } if what == "minimum gain" => {
                CliError::Usage(format!("--min-gain: {found}; {remedy}"))
            }
            _ => about(&self.load.display().to_string(), error),
        }
    }
}

/// An error whose text starts with the name of an option.
pub(super) fn option(error: Error) -> CliError {
    CliError::Usage(format!("--{error}"))
}

/// An error with the option or file that it is about, and the option that allows what it mentions.
pub(super) fn about(what: &str, error: Error) -> CliError {
    let allowed_by = match error {
        Error::UnevenSlots { .. } => " (--uneven)",
        Error::NoSource { .. } => " (--reload)",
        _ => "",
    };
    CliError::Usage(format!("{what}: {error}{allowed_by}"))
}
