//! Expert loads: how many routes each expert of each layer received, window by window.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::placement::check_experts_limit;
use crate::wording::{counted, number};

/// The largest load: the last integer up to which an `f64` holds every integer.
pub const LARGEST_LOAD: f64 = 9_007_199_254_740_992.0;

/// Whose routes a load counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The tokens of one rank only.
    Local {
        /// The rank.
        rank: usize,
    },
    /// The tokens of all ranks.
    Global,
}

/// How several windows become one load per expert.
///
/// With mean `m` and population standard deviation `s` of an expert over the windows:
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Summary {
    /// `m`: the best guess of the next window.
    #[default]
    Mean,
    /// `m + z·s`: plans for experts whose load varies as if they were heavier.
    MeanPlusDeviation {
        /// How many deviations are added; at least 0.
        z: f64,
    },
}

/// Checked loads, `[windows][layers][experts]`. Layers may differ in their number of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct Loads {
    scope: Scope,
    windows: Vec<Vec<Vec<f64>>>,
}

impl Loads {
    /// Takes one window, `[layers][experts]`.
    ///
    /// # Errors
    ///
    /// As [`Loads::from_windows`].
    pub fn new(window: Vec<Vec<f64>>) -> Result<Self, Error> {
        Self::from_windows(vec![window])
    }

    /// Takes several windows, `[windows][layers][experts]`. No layers at all is a valid stage; no
    /// windows is not.
    ///
    /// # Errors
    ///
    /// When there is no window, a layer without experts, windows differ in shape, or a load is NaN,
    /// infinite, negative or above 2^53.
    pub fn from_windows(mut windows: Vec<Vec<Vec<f64>>>) -> Result<Self, Error> {
        let Some(first) = windows.first() else {
            return Err(Error::Empty {
                what: "load windows".into(),
            });
        };
        if let Some(layer) = first.iter().position(Vec::is_empty) {
            return Err(Error::Empty {
                what: format!("experts of layer {layer}"),
            });
        }
        for (window, layers) in windows.iter().enumerate() {
            if layers.len() != first.len() {
                return Err(Error::Shape {
                    what: format!("window {window}"),
                    expected: format!("{}, as in window 0", counted(first.len(), "layer")),
                    found: format!("{}", layers.len()),
                });
            }
            for (layer, experts) in layers.iter().enumerate() {
                if experts.len() != first[layer].len() {
                    return Err(Error::Shape {
                        what: format!("window {window}, layer {layer}"),
                        expected: format!(
                            "{}, as in window 0",
                            counted(first[layer].len(), "expert")
                        ),
                        found: format!("{}", experts.len()),
                    });
                }
                for (expert, &value) in experts.iter().enumerate() {
                    check(window, layer, expert, value)?;
                }
            }
        }
        // Searches order loads by their bits, in which minus zero would be the largest.
        for load in windows.iter_mut().flatten().flatten() {
            *load += 0.0;
        }
        Ok(Self {
            scope: Scope::Global,
            windows,
        })
    }

    /// Takes counts, `[windows][layers][experts]`.
    ///
    /// # Errors
    ///
    /// As [`Loads::from_windows`]; a count above 2^53 is refused before it is rounded.
    pub fn from_counts(windows: &[Vec<Vec<u64>>]) -> Result<Self, Error> {
        let mut converted = Vec::with_capacity(windows.len());
        for (window, layers) in windows.iter().enumerate() {
            let mut out = Vec::with_capacity(layers.len());
            for (layer, experts) in layers.iter().enumerate() {
                if let Some(expert) = experts.iter().position(|count| *count > 1 << 53) {
                    return Err(Error::LoadTooLarge {
                        window,
                        layer,
                        expert,
                        value: experts[expert].to_string(),
                    });
                }
                out.push(experts.iter().map(|count| *count as f64).collect());
            }
            converted.push(out);
        }
        Self::from_windows(converted)
    }

    /// States whose routes are counted; [`Scope::Global`] unless said otherwise.
    #[must_use]
    pub fn with_scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Whose routes are counted.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// The windows, `[windows][layers][experts]`.
    pub fn windows(&self) -> &[Vec<Vec<f64>>] {
        &self.windows
    }

    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.windows[0].len()
    }

    /// Number of experts of a layer, or `None` past the last layer.
    pub fn experts(&self, layer: usize) -> Option<usize> {
        self.windows[0].get(layer).map(Vec::len)
    }

    /// Window `window` on its own, or `None` past the last.
    pub fn window(&self, window: usize) -> Option<Self> {
        let only = self.windows.get(window)?.clone();
        Some(Self {
            scope: self.scope,
            windows: vec![only],
        })
    }

    /// One load per expert, `[layers][experts]`.
    ///
    /// # Errors
    ///
    /// When `z` is not a finite number of at least 0.
    pub fn summarize(&self, summary: Summary) -> Result<Vec<Vec<f64>>, Error> {
        let z = match summary {
            Summary::Mean => 0.0,
            Summary::MeanPlusDeviation { z } if z.is_finite() && (0.0..=1e6).contains(&z) => z,
            Summary::MeanPlusDeviation { z } => {
                return Err(Error::Setting {
                    what: "z".into(),
                    found: format!("{} is not a number from 0 to 1e6", number(z)),
                    remedy: "use 0 for the mean alone".into(),
                });
            }
        };
        let count = self.windows.len() as f64;
        let mut layers = self.windows[0].clone();
        if self.windows.len() == 1 {
            return Ok(layers);
        }
        for (layer, experts) in layers.iter_mut().enumerate() {
            for (expert, out) in experts.iter_mut().enumerate() {
                let mean = self
                    .windows
                    .iter()
                    .map(|window| window[layer][expert])
                    .sum::<f64>()
                    / count;
                let variance = self
                    .windows
                    .iter()
                    .map(|window| (window[layer][expert] - mean).powi(2))
                    .sum::<f64>()
                    / count;
                *out = mean + z * variance.sqrt();
            }
        }
        Ok(layers)
    }
}

fn check(window: usize, layer: usize, expert: usize, value: f64) -> Result<(), Error> {
    if !(value.is_finite() && value >= 0.0) {
        return Err(Error::LoadValue {
            window,
            layer,
            expert,
            value: number(value),
        });
    }
    if value > LARGEST_LOAD {
        return Err(Error::LoadTooLarge {
            window,
            layer,
            expert,
            value: number(value),
        });
    }
    Ok(())
}

/// Expected load of a hash-routed layer, whose experts follow from the token id alone
/// (DeepSeek-V4's first layers): `load[e] = Σ_t histogram[t] · |{k : tid2eid[t][k] = e}|`.
///
/// # Shapes
///
/// `histogram`: `[vocabulary]`, how often each token id occurs; `tid2eid`: `[vocabulary, top_k]`,
/// row by row; result: `[experts]`.
///
/// # Errors
///
/// When the table is not `[vocabulary, top_k]` for the histogram's vocabulary, names an expert that
/// does not exist, or a load passes 2^53.
pub fn hash_routed_load(
    histogram: &[u64],
    tid2eid: &[i64],
    top_k: usize,
    experts: usize,
) -> Result<Vec<f64>, Error> {
    if experts == 0 {
        return Err(Error::Empty {
            what: "experts of the hash-routed layer".into(),
        });
    }
    check_experts_limit(experts)?;
    let entries = histogram.len().checked_mul(top_k);
    if top_k == 0 || entries != Some(tid2eid.len()) {
        return Err(Error::Shape {
            what: "tid2eid".into(),
            expected: format!(
                "[{}, top_k] entries with top_k {top_k} (at least 1)",
                histogram.len()
            ),
            found: counted(tid2eid.len(), "entry"),
        });
    }
    let mut counts = vec![0_u128; experts];
    for (token, (&seen, row)) in histogram
        .iter()
        .zip(tid2eid.chunks_exact(top_k))
        .enumerate()
    {
        for &expert in row {
            let slot = usize::try_from(expert)
                .ok()
                .and_then(|expert| counts.get_mut(expert));
            let Some(slot) = slot else {
                return Err(Error::ExpertOutOfRange {
                    place: format!("tid2eid, token {token}"),
                    expert,
                    experts,
                });
            };
            *slot += u128::from(seen);
        }
    }
    let too_large = counts.iter().position(|count| *count > 1 << 53);
    if let Some(expert) = too_large {
        return Err(Error::LoadTooLarge {
            window: 0,
            layer: 0,
            expert,
            value: counts[expert].to_string(),
        });
    }
    Ok(counts.into_iter().map(|count| count as f64).collect())
}
