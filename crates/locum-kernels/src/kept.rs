//! Memory of a thread that is kept from call to call: what an allocator gives back to the system between
//! two tokens costs more to get again than a small layer takes.

use std::cell::Cell;

use crate::units::Units;

thread_local! {
    static KEPT: Cell<Units> = Cell::default();
}

/// So many units are kept at most.
const MOST: usize = 1 << 18;

/// Units with any content, given back where this is dropped.
pub(crate) struct Kept(Units);

impl Kept {
    /// At least so many.
    pub(crate) fn new(length: usize) -> Self {
        let mut units = KEPT.take();
        units.grow(length);
        Self(units)
    }
}

impl std::ops::Deref for Kept {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl std::ops::DerefMut for Kept {
    fn deref_mut(&mut self) -> &mut [u32] {
        &mut self.0
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.0.len() <= MOST {
            KEPT.set(std::mem::take(&mut self.0));
        }
    }
}
