//! Which fields of a `config.json` an architecture asks for: what its documentation is made of.

use std::cell::RefCell;
use std::collections::BTreeSet;

/// The fields that reading a `config.json` asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldLog {
    /// Fields whose value is used.
    pub used: BTreeSet<String>,
    /// Fields that are refused unless their value changes nothing.
    pub restricted: BTreeSet<String>,
}

thread_local! {
    // Reading is a call tree of typed getters that all borrow the JSON; a log that travelled with
    // them would be a parameter of each for the sake of documentation alone.
    static LOG: RefCell<Option<FieldLog>> = const { RefCell::new(None) };
}

/// Runs `read`, and gives the fields that it asked for.
pub(crate) fn logged(read: impl FnOnce()) -> FieldLog {
    LOG.with(|log| *log.borrow_mut() = Some(FieldLog::default()));
    read();
    let mut log = LOG.with(RefCell::take).unwrap_or_default();
    for field in &log.restricted {
        log.used.remove(field);
    }
    log
}

/// Notes that a field's value is asked for.
pub(super) fn used(field: &str) {
    LOG.with(|log| {
        if let Some(log) = &mut *log.borrow_mut() {
            log.used.insert(field.to_owned());
        }
    });
}

/// Notes that a field is refused unless its value changes nothing.
pub(super) fn restricted(field: &str) {
    LOG.with(|log| {
        if let Some(log) = &mut *log.borrow_mut() {
            log.restricted.insert(field.to_owned());
        }
    });
}
