//! What is read later, and asked for while something else is computed.

/// Some lines of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    pub(super) start: *const u8,
    pub(super) lines: usize,
}

impl Ahead {
    pub(super) const LINE: usize = 64;

    /// The lines from `first` on of a slice, at most `lines` of them.
    pub(crate) fn new<T>(slice: &[T], first: usize, lines: usize) -> Self {
        let all = size_of_val(slice).div_ceil(Self::LINE);
        Self {
            start: slice.as_ptr().cast::<u8>().wrapping_add(first * Self::LINE),
            lines: lines.min(all.saturating_sub(first)),
        }
    }
}

/// What is read after some weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next<'a, W> {
    /// Rows that are read right after these, if that is known.
    pub(crate) after: Option<&'a [W]>,
    /// Rows that take the place of these when all panels have been multiplied with them.
    pub(crate) later: Option<&'a [W]>,
    /// Which of the panels it is, of how many: each asks for its part of what comes later.
    pub(crate) panel: [usize; 2],
}

impl<'a, W> Next<'a, W> {
    /// For one panel: its rows are not needed again.
    pub(crate) fn of(after: Option<&'a [W]>) -> Self {
        Self {
            after,
            later: None,
            panel: [0, 1],
        }
    }

    /// Whether it is the first panel: what the others read has just been read.
    pub(super) fn streams(&self) -> bool {
        self.panel[0] == 0
    }

    /// This panel's part of what comes later, of which it is at most so many elements. Nothing for the panel that
    /// [streams](Self::streams): memory is read all the time then.
    pub(super) fn ahead(&self, elements: usize) -> Ahead {
        let [panel, panels] = self.panel;
        if self.streams() {
            return Ahead::new(&[0u8; 0], 0, 0);
        }
        let (panel, panels) = (panel - 1, panels - 1);
        let later = self.later.unwrap_or_default();
        let later = &later[..elements.min(later.len())];
        let lines = size_of_val(later).div_ceil(Ahead::LINE);
        let first = lines * panel / panels;
        Ahead::new(later, first, lines * (panel + 1) / panels - first)
    }
}
