//! Text up to the first stop string.

use crate::ModelError;

/// Passes text on up to where the first stop string begins.
///
/// Text comes in pieces, and a stop string may span them, so what could still become one is held
/// back. Where several match, the one that begins first counts, even if another is complete before
/// it: where the text ends does not depend on how it was cut into pieces.
#[derive(Clone, Debug)]
pub(super) struct StopText<'s> {
    stop: &'s [String],
    held: String,
}

/// What may be passed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Passed {
    /// The text.
    pub(super) text: String,
    /// Whether a stop string comes after it.
    pub(super) stopped: bool,
}

impl<'s> StopText<'s> {
    pub(super) fn new(stop: &'s [String]) -> Result<Self, ModelError> {
        if stop.iter().any(String::is_empty) {
            return Err(ModelError::EmptyStop);
        }
        Ok(Self {
            stop,
            held: String::new(),
        })
    }

    /// Takes a piece of text, and gives what is certain by now.
    pub(super) fn push(&mut self, piece: &str) -> Passed {
        self.held.push_str(piece);
        let unsure = self.possible_start();
        match self.first_match() {
            Some(start) if start <= unsure => self.pass(start, true),
            _ => self.pass(unsure, false),
        }
    }

    /// Gives what is left when no more text comes.
    pub(super) fn finish(&mut self) -> Passed {
        match self.first_match() {
            Some(start) => self.pass(start, true),
            None => self.pass(self.held.len(), false),
        }
    }

    fn pass(&mut self, end: usize, stopped: bool) -> Passed {
        let rest = self.held.split_off(end);
        Passed {
            text: std::mem::replace(&mut self.held, rest),
            stopped,
        }
    }

    fn first_match(&self) -> Option<usize> {
        self.stop.iter().filter_map(|s| self.held.find(s)).min()
    }

    /// Where a stop string begins that the held text ends in the middle of; else its end.
    fn possible_start(&self) -> usize {
        let begins_one = |&start: &usize| {
            let rest = &self.held[start..];
            let longer = |stop: &&String| stop.len() > rest.len();
            self.stop.iter().filter(longer).any(|s| s.starts_with(rest))
        };
        let starts = self.held.char_indices().map(|(start, _)| start);
        starts
            .into_iter()
            .find(begins_one)
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{Passed, StopText};

    fn strings(stop: &[&str]) -> Vec<String> {
        stop.iter().map(ToString::to_string).collect()
    }

    fn passed(text: &str, stopped: bool) -> Passed {
        Passed {
            text: text.into(),
            stopped,
        }
    }

    #[test]
    fn what_could_become_a_stop_string_is_held_back() {
        let stop = strings(&["END"]);
        let mut text = StopText::new(&stop).unwrap();
        assert_eq!(text.push("the E"), passed("the ", false));
        assert_eq!(text.push("N"), passed("", false));
        assert_eq!(text.push("Emy EN"), passed("ENEmy ", false));
        assert_eq!(text.push("D of it"), passed("", true));
    }

    #[test]
    fn what_did_not_become_a_stop_string_is_passed_at_the_end() {
        let stop = strings(&["END"]);
        let mut text = StopText::new(&stop).unwrap();
        assert_eq!(text.push("the EN"), passed("the ", false));
        assert_eq!(text.finish(), passed("EN", false));
        assert_eq!(text.finish(), passed("", false));
    }

    #[test]
    fn match_that_begins_first_counts_though_another_is_complete_before() {
        let stop = strings(&["bc", "abcd"]);
        let mut text = StopText::new(&stop).unwrap();
        assert_eq!(text.push("_abc"), passed("_", false));
        assert_eq!(text.clone().push("d"), passed("", true));
        assert_eq!(text.clone().push("e"), passed("a", true));
        assert_eq!(text.finish(), passed("a", true));
    }

    #[test]
    fn empty_stop_string_is_refused() {
        let error = StopText::new(&strings(&["a", ""])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "stop is empty, but must have at least one character"
        );
    }

    /// Every way to cut a text into pieces gives what cutting the whole text does.
    #[test]
    fn pieces_do_not_matter() {
        for (whole, stop) in [
            ("aabaabaaab", vec!["aabaaab"]),
            ("xäöxäöü\n\ny", vec!["äöü\n", "\n\n"]),
            ("abcabdabc", vec!["abd", "bda", "cab"]),
            ("no match", vec!["chx", "o  "]),
            ("plain", vec![]),
        ] {
            let stop = strings(&stop);
            let cut = stop.iter().filter_map(|s| whole.find(s)).min();
            let characters: Vec<char> = whole.chars().collect();
            for cuts in 0..1 << (characters.len() - 1) {
                let mut text = StopText::new(&stop).unwrap();
                let mut found = Passed::default();
                let mut piece = String::new();
                for (i, &character) in characters.iter().enumerate() {
                    piece.push(character);
                    if !found.stopped && (cuts >> i) & 1 == 1 {
                        let next = text.push(&std::mem::take(&mut piece));
                        found.text += &next.text;
                        found.stopped = next.stopped;
                    }
                }
                if !found.stopped {
                    for next in [text.push(&piece), text.finish()] {
                        if !found.stopped {
                            found.text += &next.text;
                            found.stopped = next.stopped;
                        }
                    }
                }
                let expected = passed(&whole[..cut.unwrap_or(whole.len())], cut.is_some());
                assert_eq!(found, expected, "{whole:?}, {stop:?}, {cuts:b}");
            }
        }
    }
}
