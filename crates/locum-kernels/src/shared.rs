//! A slice that several threads write, each its own places.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// Access to a slice from several threads.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T> {
    start: *mut T,
    length: usize,
    of: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` of which each thread uses places of its own (see its functions).
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Copy> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            length: slice.len(),
            of: PhantomData,
        }
    }

    /// Writes one place.
    ///
    /// # Safety
    ///
    /// No other thread uses the place.
    pub(crate) unsafe fn write(self, index: usize, value: T) {
        assert!(index < self.length);
        // SAFETY: the place is within the slice, and this thread's.
        unsafe { self.start.add(index).write(value) }
    }

    /// A part.
    ///
    /// # Safety
    ///
    /// Nothing else uses the part while it is borrowed.
    pub(crate) unsafe fn part(self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.length);
        // SAFETY: the part is within the slice, and nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
