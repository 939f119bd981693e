//! Sums by channel, which stay in the statistics file until they are asked for.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use locum_checkpoint::FileMap;

use crate::fixed;

/// The size of a sum in a statistics file.
pub(crate) const BYTES: usize = size_of::<i128>();

/// A sum of each channel, `[hidden]`.
///
/// Of statistics that were opened it is a place in their file, and [`read`](Self::read) goes there each
/// time: a file may hold more than memory does. Of statistics that were just counted, or made from
/// numbers, it is in memory.
#[derive(Clone)]
pub struct ChannelSums(Source);

#[derive(Clone)]
enum Source {
    Memory(Vec<f64>),
    File { map: FileMap, range: Range<usize> },
}

impl ChannelSums {
    /// Of the exact sums that a part of a file holds, which must be within it.
    pub(crate) fn of_file(map: &FileMap, range: Range<usize>) -> Self {
        let map = map.clone();
        Self(Source::File { map, range })
    }

    /// How many channels there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Memory(sums) => sums.len(),
            Source::File { range, .. } => range.len() / BYTES,
        }
    }

    /// Whether there are none: those of an expert that was a constant already.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sums, `[hidden]`. Nothing is kept of what is read from a file.
    #[must_use]
    pub fn read(&self) -> Cow<'_, [f64]> {
        match &self.0 {
            Source::Memory(sums) => Cow::Borrowed(sums),
            Source::File { map, range } => {
                let (sums, _) = map.bytes()[range.clone()].as_chunks::<BYTES>();
                let sums = sums.iter().map(|sum| i128::from_le_bytes(*sum));
                let sums = sums.map(fixed::to_f64).collect();
                map.release();
                Cow::Owned(sums)
            }
        }
    }
}

impl Default for ChannelSums {
    /// Of no channels.
    fn default() -> Self {
        Vec::new().into()
    }
}

impl From<Vec<f64>> for ChannelSums {
    fn from(sums: Vec<f64>) -> Self {
        Self(Source::Memory(sums))
    }
}

impl FromIterator<f64> for ChannelSums {
    fn from_iter<I: IntoIterator<Item = f64>>(sums: I) -> Self {
        sums.into_iter().collect::<Vec<_>>().into()
    }
}

impl PartialEq for ChannelSums {
    /// Whether the sums are equal, wherever they are.
    fn eq(&self, other: &Self) -> bool {
        self.read() == other.read()
    }
}

impl fmt::Debug for ChannelSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.read().iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_in_a_file_are_those_in_memory() -> Result<(), Box<dyn std::error::Error>> {
        let numbers = [1.5, -2.25, 0.0, 1e12, -3e-9];
        let sums = numbers.map(|number| fixed::from_f64(number).unwrap_or_default());
        let file = tempfile::NamedTempFile::new()?;
        let words = sums.iter().flat_map(|sum| sum.to_le_bytes());
        std::fs::write(file.path(), words.collect::<Vec<u8>>())?;
        let map = FileMap::open(file.path())?;
        let in_file = ChannelSums::of_file(&map, BYTES..4 * BYTES);
        let in_memory: ChannelSums = sums[1..4].iter().copied().map(fixed::to_f64).collect();
        assert_eq!(*in_file.read(), numbers[1..4]);
        // What was let go of comes back.
        assert_eq!(in_file, in_memory);
        assert_eq!((in_file.len(), in_memory.len()), (3, 3));
        assert_ne!(in_file, ChannelSums::of_file(&map, 0..3 * BYTES));
        assert_eq!(format!("{in_file:?}"), "[-2.25, 0.0, 1000000000000.0]");
        assert!(ChannelSums::default().is_empty() && !in_file.is_empty());
        Ok(())
    }
}
