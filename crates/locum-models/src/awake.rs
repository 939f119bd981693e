//! The threads of a pool, awake while a token is computed.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::Yield;

/// Computes something as one of the current pool's threads, while the others stay awake: a token is dozens
/// of products of a fraction of a millisecond, and waking a thread for each takes a twentieth of one.
pub(crate) fn awake<T: Send>(compute: impl FnOnce() -> T + Send) -> T {
    let done = AtomicBool::new(false);
    rayon::scope(|scope| {
        let own = rayon::current_thread_index();
        let done = &done;
        scope.spawn_broadcast(move |_, thread| {
            // The one that computes looks for work too, while others still are at theirs.
            if Some(thread.index()) == own {
                return;
            }
            while !done.load(Ordering::Acquire) {
                if rayon::yield_now() != Some(Yield::Executed) {
                    std::thread::yield_now();
                }
            }
        });
        // Also where it panics.
        let _finished = Finished(done);
        compute()
    })
}

struct Finished<'a>(&'a AtomicBool);

impl Drop for Finished<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
