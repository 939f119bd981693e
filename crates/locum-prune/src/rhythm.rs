//! How often progress is written, so that it costs little.

use std::time::Duration;

/// How much longer than writing progress the computation of that progress has to take.
const SAVE_FROM: u32 = 20;

/// How much longer than making progress durable the computation of that progress has to take.
const DURABLE_FROM: u32 = 100;

/// When progress is to be written.
#[derive(Debug, Default)]
pub(crate) struct Rhythm {
    /// What was computed since it was last written, and how long that took.
    since_saved: Duration,
    saving: Duration,
    /// The same of what was forced to the disk.
    since_durable: Duration,
    making_durable: Duration,
}

impl Rhythm {
    /// Something was computed.
    pub(crate) fn computed(&mut self, took: Duration) {
        self.since_saved += took;
        self.since_durable += took;
    }

    /// Whether to write, and if so, whether to force it to the disk.
    pub(crate) fn due(&self) -> Option<bool> {
        let due = self.since_saved >= self.saving * SAVE_FROM;
        due.then(|| self.since_durable >= self.making_durable * DURABLE_FROM)
    }

    /// It was written, or forced to the disk as well.
    pub(crate) fn saved(&mut self, took: Duration, durable: bool) {
        (self.since_saved, self.saving) = (Duration::ZERO, took);
        if durable {
            (self.since_durable, self.making_durable) = (Duration::ZERO, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_progress_takes_a_twentieth_of_the_time() {
        let second = Duration::from_secs(1);
        let mut rhythm = Rhythm::default();
        rhythm.computed(second);
        assert_eq!(rhythm.due(), Some(true), "the first chunk");
        rhythm.saved(second, true);
        for _ in 0..19 {
            rhythm.computed(second);
            assert_eq!(rhythm.due(), None);
        }
        rhythm.computed(second);
        assert_eq!(rhythm.due(), Some(false));
        rhythm.saved(second / 2, false);
        // A chunk that takes longer is never lost with the one after it.
        rhythm.computed(90 * second);
        assert_eq!(rhythm.due(), Some(true));
        rhythm.saved(second, true);
        rhythm.computed(30 * second);
        assert_eq!(rhythm.due(), Some(false));
    }
}
