//! The calibration text, as sequences of tokens.

use std::path::PathBuf;

use locum_checkpoint::read_text;
use locum_models::{Limits, ModelFiles};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::PruneError;
use crate::fingerprint::Hash;

/// The longest sequence where nothing is asked for, in tokens.
const DEFAULT_LENGTH: usize = 2048;

/// Which windows of a text are its sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Tokens of a window; 2048, or the model's context where it is shorter, where nothing is said.
    pub length: Option<usize>,
    /// How many windows; all where nothing is said.
    pub sequences: Option<usize>,
    /// Draws the windows at random, without one twice; the first ones are taken where there is none.
    pub seed: Option<u64>,
}

/// Sequences of one length.
#[derive(Clone, Debug)]
pub struct Sequences {
    length: usize,
    seed: Option<u64>,
    /// `[sequences, length]`
    ids: Vec<i64>,
    /// The files that they are from.
    texts: Vec<PathBuf>,
}

/// The same tokens, and drawn in the same way, whatever files they are from.
impl PartialEq for Sequences {
    fn eq(&self, other: &Self) -> bool {
        (self.length, self.seed, &self.ids) == (other.length, other.seed, &other.ids)
    }
}

impl Eq for Sequences {}

impl Sequences {
    /// Reads texts: each is tokenized for itself, without special tokens, and their tokens follow each
    /// other as the files do.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is not UTF-8, a tokenizer that cannot be used, and those of
    /// [`from_ids`](Self::from_ids).
    pub fn read(
        texts: &[PathBuf],
        files: &ModelFiles,
        limits: &Limits,
        selection: Selection,
    ) -> Result<Self, PruneError> {
        // What needs no tokenizer is refused first.
        let contents = texts
            .iter()
            .map(read_text)
            .collect::<Result<Vec<String>, _>>()?;
        let tokenizer = files.tokenizer()?;
        let mut ids = Vec::new();
        for text in &contents {
            let encoding = tokenizer
                .encode_fast(text.as_str(), false)
                .map_err(|error| locum_models::ModelError::Tokenizer(error.to_string()))?;
            ids.extend(encoding.get_ids().iter().map(|&id| i64::from(id)));
        }
        Ok(Self {
            texts: texts.to_vec(),
            ..Self::from_ids(&ids, limits, selection)?
        })
    }

    /// Takes sequences of a text that is tokens already: its non-overlapping windows, in order. What
    /// is left at the end is dropped.
    ///
    /// # Errors
    ///
    /// A length of zero or beyond the model's context, a text shorter than one sequence, or fewer
    /// sequences than asked for.
    pub fn from_ids(
        ids: &[i64],
        limits: &Limits,
        selection: Selection,
    ) -> Result<Self, PruneError> {
        let most = limits.max_positions;
        let length = selection.length.unwrap_or(DEFAULT_LENGTH.min(most));
        if length == 0 || length > most {
            return Err(PruneError::Length { length, most });
        }
        let windows: Vec<&[i64]> = ids.chunks_exact(length).collect();
        if windows.is_empty() {
            return Err(PruneError::TextTooShort {
                tokens: ids.len(),
                length,
            });
        }
        let wanted = selection.sequences.unwrap_or(windows.len());
        if wanted == 0 || wanted > windows.len() {
            return Err(PruneError::TooFewSequences {
                wanted,
                found: windows.len(),
                length,
            });
        }
        let chosen = match selection.seed {
            None => (0..wanted).collect(),
            Some(seed) => draw(windows.len(), wanted, seed),
        };
        let chosen = chosen.into_iter().flat_map(|window| windows[window]);
        Ok(Self {
            length,
            seed: selection.seed,
            ids: chosen.copied().collect(),
            texts: Vec::new(),
        })
    }

    /// Tokens of each.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len() / self.length
    }

    /// The files that they are from, where they are from files.
    pub(crate) fn texts(&self) -> &[PathBuf] {
        &self.texts
    }

    /// The seed that they were drawn by.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The tokens of one.
    pub(crate) fn sequence(&self, number: usize) -> &[i64] {
        &self.ids[number * self.length..][..self.length]
    }

    /// A hash of all tokens.
    pub(crate) fn hash(&self) -> String {
        let mut hash = Hash::new("locum sequences 1");
        for &id in &self.ids {
            hash.number(id as u64);
        }
        hash.finish()
    }
}

/// Some of so many windows, in the order of the text: the start of a Fisher–Yates shuffle.
fn draw(windows: usize, wanted: usize, seed: u64) -> Vec<usize> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..windows).collect();
    for place in 0..wanted {
        let rest = (windows - place) as u128;
        let other = place + ((u128::from(random.next_u64()) * rest) >> 64) as usize;
        order.swap(place, other);
    }
    order.truncate(wanted);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        vocabulary: 100,
        max_positions: 16,
        layers: 1,
        cache_bytes_per_token: 0,
        cache_bytes_per_sequence: 0,
    };

    fn selected(tokens: i64, selection: Selection) -> Result<Sequences, String> {
        let ids: Vec<i64> = (0..tokens).collect();
        Sequences::from_ids(&ids, &LIMITS, selection).map_err(|error| error.to_string())
    }

    #[test]
    fn windows_follow_each_other_and_the_tail_is_dropped() {
        let length = Some(3);
        let sequences = selected(
            11,
            Selection {
                length,
                ..Selection::default()
            },
        );
        let sequences = sequences.expect("sequences");
        assert_eq!((sequences.count(), sequences.length()), (3, 3));
        assert_eq!(sequences.sequence(2), [6, 7, 8]);
    }

    #[test]
    fn default_length_is_the_context_where_that_is_short() {
        let sequences = selected(50, Selection::default()).expect("sequences");
        assert_eq!((sequences.length(), sequences.count()), (16, 3));
    }

    #[test]
    fn first_sequences_are_taken_without_a_seed_and_others_with_one() {
        let of = |sequences, seed| {
            let selection = Selection {
                length: Some(1),
                sequences: Some(sequences),
                seed,
            };
            selected(40, selection).expect("sequences").ids
        };
        assert_eq!(of(4, None), [0, 1, 2, 3]);
        let drawn = of(20, Some(7));
        assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]), "{drawn:?}");
        assert_eq!(drawn, of(20, Some(7)));
        assert_ne!(drawn, of(20, Some(8)));
        assert_ne!(drawn, of(20, None));
        assert_eq!(of(40, Some(1)), of(40, None));
    }

    #[test]
    fn what_the_text_does_not_have_is_refused() {
        let select = |length, sequences| Selection {
            length,
            sequences,
            seed: None,
        };
        let error = selected(7, select(Some(8), None)).expect_err("too short");
        assert!(error.contains("7 tokens") && error.contains('8'), "{error}");
        let error = selected(40, select(Some(8), Some(6))).expect_err("too few");
        assert!(error.contains('6') && error.contains('5'), "{error}");
        let error = selected(40, select(Some(17), None)).expect_err("beyond the context");
        assert!(error.contains("17") && error.contains("16"), "{error}");
        assert!(selected(40, select(Some(0), None)).is_err());
        assert!(selected(40, select(Some(8), Some(0))).is_err());
    }
}
