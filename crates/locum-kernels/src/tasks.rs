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
    run_ahead(tasks, multiplications, |scratch, index, _| {
        task(scratch, index);
    });
}

/// The same for tasks that are told which one the thread does next, if any: its memory can be asked for in
/// time.
pub(crate) fn run_ahead<S: Default>(
    tasks: usize,
    multiplications: usize,
    task: impl Fn(&mut S, usize, Option<usize>) + Sync,
) {
    let taken = AtomicUsize::new(0);
    let take = || {
        let index = taken.fetch_add(1, Ordering::Relaxed);
        (index < tasks).then_some(index)
    };
    let work = || {
        let mut scratch = S::default();
        let mut index = take();
        while let Some(this) = index {
            index = take();
            task(&mut scratch, this, index);
        }
    };
    let threads = rayon::current_num_threads().min(tasks);
    if threads <= 1 || multiplications < WORTH_SHARING {
        return work();
    }
    (0..threads)
        .into_par_iter()
        .with_max_len(1)
        .for_each(|_| work());
}

/// Columns of a task where each is to get a good part of all of them: a multiple of `of`.
pub(crate) fn columns_per_task(columns: usize, tasks_per_thread: usize, of: usize) -> usize {
    columns
        .div_ceil(rayon::current_num_threads() * tasks_per_thread)
        .next_multiple_of(of)
}

/// The same where weights stream from memory, `bytes` for each column: so few that threads end at about the
/// same time.
pub(crate) fn columns_that_stream(columns: usize, bytes: usize, of: usize) -> usize {
    const TASK: usize = 1 << 19;
    let block = (TASK / bytes.max(1)).next_multiple_of(of).max(of);
    block.min(columns_per_task(columns, 4, of))
}
