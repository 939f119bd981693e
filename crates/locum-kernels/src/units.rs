//! Memory for units, in whole lines of the cache: to read a vector that lies across two of them takes twice
//! as long.
#![allow(unsafe_code)]

/// A line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u32; Line::UNITS]);

impl Line {
    const UNITS: usize = 16;
}

/// Units with any content.
#[derive(Debug, Default)]
pub(crate) struct Units(Vec<Line>);

impl Units {
    /// At least so many.
    pub(crate) fn new(length: usize) -> Self {
        let mut units = Self::default();
        units.grow(length);
        units
    }

    /// Makes room for at least so many, in whose place there may be anything.
    pub(crate) fn grow(&mut self, length: usize) {
        let lines = length.div_ceil(Line::UNITS);
        if self.0.len() < lines {
            // What is there is not needed: it goes before there is more.
            self.0 = Vec::new();
            self.0 = vec![Line([0; Line::UNITS]); lines];
        }
    }
}

impl std::ops::Deref for Units {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: a line is so many units and nothing else.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * Line::UNITS) }
    }
}

impl std::ops::DerefMut for Units {
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * Line::UNITS)
        }
    }
}
