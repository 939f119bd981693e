//! Work on the threads of the current rayon pool.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

/// Below this many multiplications, waking another thread costs more than it brings.
const WORTH_SHARING: usize = 1 << 18;

/// Runs tasks, taken in order by whichever thread is free. Each thread has its own scratch memory.
pub(crate) fn run<S: Default>(
    tasks: usize,
    multiplications: usize,
    task: impl Fn(&mut S, usize) + Sync,
) {
    let threads = rayon::current_num_threads().min(tasks);
    if threads <= 1 || multiplications < WORTH_SHARING {
        let mut scratch = S::default();
        return (0..tasks).for_each(|index| task(&mut scratch, index));
    }
    let next = AtomicUsize::new(0);
    (0..threads).into_par_iter().with_max_len(1).for_each(|_| {
        let mut scratch = S::default();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                break;
            }
            task(&mut scratch, index);
        }
    });
}

/// Columns of a task where each is to get a good part of all of them: a multiple of `of`.
pub(crate) fn columns_per_task(columns: usize, tasks_per_thread: usize, of: usize) -> usize {
    columns
        .div_ceil(rayon::current_num_threads() * tasks_per_thread)
        .next_multiple_of(of)
}
