//! What the library logs, for a test to look at.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Runs something, and returns with its result the lines that it logged: level and message.
pub(crate) fn logged<T>(run: impl FnOnce() -> T) -> (T, Vec<String>) {
    let lines = Lines::default();
    let result = tracing::subscriber::with_default(lines.clone(), run);
    let lines = lines.0.lock().expect("no panic while logging").clone();
    (result, lines)
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, " {value:?}").expect("a string takes anything");
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(event.metadata().level().to_string());
        event.record(&mut message);
        self.0
            .lock()
            .expect("no panic while logging")
            .push(message.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
