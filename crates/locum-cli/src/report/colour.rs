//! Numbers as colours: the viridis scale, which is even to the eye, colour-blind or not.

/// Viridis (Smith and van der Walt, matplotlib 1.5; CC0) at even distances from lowest to highest.
const VIRIDIS: [[u8; 3]; 17] = [
    [0x44, 0x01, 0x54],
    [0x48, 0x18, 0x6a],
    [0x47, 0x2d, 0x7b],
    [0x42, 0x40, 0x86],
    [0x3b, 0x52, 0x8b],
    [0x33, 0x63, 0x8d],
    [0x2c, 0x72, 0x8e],
    [0x26, 0x82, 0x8e],
    [0x21, 0x91, 0x8c],
    [0x1f, 0xa0, 0x88],
    [0x28, 0xae, 0x80],
    [0x3f, 0xbc, 0x73],
    [0x5e, 0xc9, 0x62],
    [0x84, 0xd4, 0x4b],
    [0xad, 0xdc, 0x30],
    [0xd8, 0xe2, 0x19],
    [0xfd, 0xe7, 0x25],
];

/// A colour of the scale, from 0 to 1: `#440154`.
pub(super) fn colour(at: f64) -> String {
    let place = at.clamp(0.0, 1.0) * (VIRIDIS.len() - 1) as f64;
    let low = (place as usize).min(VIRIDIS.len() - 2);
    let part = place - low as f64;
    let mix = |channel: usize| {
        let [from, to] = [VIRIDIS[low][channel], VIRIDIS[low + 1][channel]].map(f64::from);
        (from + (to - from) * part).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(0), mix(1), mix(2))
}

/// What a label takes of the scale.
const ROOM: f64 = 0.17;

/// The way from values to the colour scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scale {
    /// From 0 to the largest.
    Linear { largest: f64 },
    /// Logarithmic from `smallest` on; whatever is below has the lowest colour.
    Logarithmic {
        smallest: f64,
        largest: f64,
        /// Whether any value is below.
        below: bool,
    },
}

/// A mark on a scale.
pub(super) struct Tick {
    /// From 0 to 1.
    pub(super) at: f64,
    pub(super) value: f64,
    /// Whether smaller values have the same colour.
    pub(super) and_below: bool,
}

impl Scale {
    /// Linear, unless positive values differ by more than a factor of ten: then logarithmic from the
    /// value that a twentieth of them are below, so that a few of the smallest do not take all colours.
    /// `None` where no value is positive.
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut positive: Vec<f64> = values
            .filter(|value| *value > 0.0 && value.is_finite())
            .collect();
        positive.sort_unstable_by(f64::total_cmp);
        let largest = *positive.last()?;
        let smallest = positive[positive.len() / 20].max(largest / 1e4);
        Some(if largest / smallest > 10.0 {
            Self::Logarithmic {
                smallest,
                largest,
                below: positive[0] < smallest,
            }
        } else {
            Self::Linear { largest }
        })
    }

    /// From 0 to 1.
    pub(super) fn at(self, value: f64) -> f64 {
        let at = match self {
            Self::Linear { largest } => value / largest,
            Self::Logarithmic {
                smallest, largest, ..
            } => (value / smallest).ln() / (largest / smallest).ln(),
        };
        at.clamp(0.0, 1.0)
    }

    pub(super) fn is_logarithmic(self) -> bool {
        matches!(self, Self::Logarithmic { .. })
    }

    /// The ends of the scale, and round values between them where labels have room.
    pub(super) fn ticks(self) -> Vec<Tick> {
        // The roundest first.
        let (ends, round): ([f64; 2], Vec<f64>) = match self {
            Self::Linear { largest } => {
                let step = crate::axis::nice_step(largest);
                let values = (1..).map(move |count| f64::from(count) * step);
                (
                    [0.0, largest],
                    values.take_while(|v| *v < largest).collect(),
                )
            }
            Self::Logarithmic {
                smallest, largest, ..
            } => {
                let powers = smallest.log10().floor() as i32..=largest.log10().floor() as i32;
                let times = |factor: f64| powers.clone().map(move |p| factor * 10.0_f64.powi(p));
                let values = times(1.0).chain(times(2.0)).chain(times(5.0));
                let inner = values.filter(|v| (smallest..largest).contains(v));
                ([smallest, largest], inner.collect())
            }
        };
        let mut shown = ends.to_vec();
        for value in round {
            let apart = |other: &f64| (self.at(value) - self.at(*other)).abs() >= ROOM;
            if shown.iter().all(apart) {
                shown.push(value);
            }
        }
        shown.sort_unstable_by(f64::total_cmp);
        let below = matches!(self, Self::Logarithmic { below: true, .. });
        let ticks = shown.into_iter().map(|value| Tick {
            at: self.at(value),
            value,
            and_below: below && value == ends[0],
        });
        ticks.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Scale, colour};

    #[test]
    fn ends_of_the_scale_are_viridis() {
        assert_eq!(
            [-1.0, 0.0, 0.5, 1.0, 2.0].map(colour),
            ["#440154", "#440154", "#21918c", "#fde725", "#fde725"]
        );
    }

    #[test]
    fn values_of_different_magnitude_get_a_logarithmic_scale() {
        let scale = |values: &[f64]| Scale::of(values.iter().copied());
        assert_eq!(
            scale(&[0.0, 2.0, 4.0]),
            Some(Scale::Linear { largest: 4.0 })
        );
        let wide = scale(&[0.0, 1.0, 100.0]);
        assert!(wide.is_some_and(|scale| (scale.at(10.0) - 0.5).abs() < 1e-12));
        let mut values = vec![2.0; 30];
        values[0] = 1e-9;
        assert_eq!(scale(&values), Some(Scale::Linear { largest: 2.0 }));
        values[1..4].copy_from_slice(&[0.1, 0.1, 0.1]);
        let outlier = scale(&values);
        let expected = Scale::Logarithmic {
            smallest: 0.1,
            largest: 2.0,
            below: true,
        };
        assert_eq!(outlier, Some(expected));
        assert_eq!(expected.at(1e-9), 0.0);
        assert!(expected.ticks()[0].and_below);
        assert_eq!(scale(&[0.0, f64::NAN]), None);
    }

    #[test]
    fn ticks_are_apart() {
        for scale in [
            Scale::Linear { largest: 0.37 },
            Scale::Logarithmic {
                smallest: 0.002,
                largest: 3.0,
                below: false,
            },
            Scale::Logarithmic {
                smallest: 6.4,
                largest: 69.0,
                below: true,
            },
        ] {
            let ticks = scale.ticks();
            assert!(ticks.len() >= 4, "{scale:?}");
            for pair in ticks.windows(2) {
                assert!(pair[1].at - pair[0].at > 0.1, "{scale:?}");
            }
        }
    }
}
