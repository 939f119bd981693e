//! How much an expert is needed: the metrics that experts are ranked by.

use std::fmt;
use std::str::FromStr;

use locum_substitution::Dtype;
use serde::{Deserialize, Serialize};

use crate::{ExpertStatistics, LayerStatistics, PruneError, Subject};

/// What experts are ranked by; those of the smallest value are replaced first.
///
/// Over a calibration text of `T` tokens (what the layer saw), `n` of them routed to the expert with
/// router weights `w` (those of the forward pass) and outputs `y`, not weighted:
///
/// | metric | value | source |
/// |---|---|---|
/// | `fusion` | `‖std‖₂ · Σw / T` | MoNE (arXiv 2507.00390), section 3; the authors' code has ¼ of it |
/// | `output_fluctuation` | `‖std‖₂` | MoNE |
/// | `routing_score` | `Σw / T` | MoNE |
/// | `frequency` | `n / T` | the usual count of routes |
/// | `reap` | `Σ w·‖y‖ / n` | REAP (arXiv 2510.13999): router-weighted expert activation |
/// | `ean` | `Σ ‖y‖` | expert activation norm, which REAP is compared with there |
/// | `random` | pseudo-random, by seed | the baseline that a metric must beat |
/// | `weights` | Frobenius norm of all the expert's weights | needs no calibration |
///
/// `‖std‖₂ = √(Σ_c Var y_c) = √(E‖y‖² − ‖E y‖²)`, population variances over the routed tokens: because
/// `Σ_c (E y_c² − (E y_c)²)` is that, no statistics by channel but `Σy` are needed. An expert that was
/// never routed has the value 0 in all metrics that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Fluctuation of the output times mean router score: MoNE's.
    Fusion,
    /// How much the output varies.
    OutputFluctuation,
    /// Mean router weight over all tokens.
    RoutingScore,
    /// Share of tokens that are routed to the expert.
    Frequency,
    /// Mean norm of the weighted output over routed tokens.
    Reap,
    /// Sum of the norms of the outputs.
    Ean,
    /// By chance, repeatably.
    Random,
    /// Norm of the weights.
    Weights,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Fusion,
        Self::OutputFluctuation,
        Self::RoutingScore,
        Self::Frequency,
        Self::Reap,
        Self::Ean,
        Self::Random,
        Self::Weights,
    ];

    /// Whether it is computed from calibration statistics.
    #[must_use]
    pub fn needs_statistics(self) -> bool {
        !matches!(self, Self::Random | Self::Weights)
    }

    /// Its name, in plans and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fusion => "fusion",
            Self::OutputFluctuation => "output_fluctuation",
            Self::RoutingScore => "routing_score",
            Self::Frequency => "frequency",
            Self::Reap => "reap",
            Self::Ean => "ean",
            Self::Random => "random",
            Self::Weights => "weights",
        }
    }

    /// The value of an expert that statistics were counted of; `None` for a metric that is not
    /// counted.
    #[must_use]
    pub fn of_statistics(self, layer: &LayerStatistics, expert: &ExpertStatistics) -> Option<f64> {
        let per_token = |sum: f64| sum / (layer.tokens.max(1) as f64);
        Some(match self {
            Self::Fusion => expert.std_norm() * per_token(expert.score_sum),
            Self::OutputFluctuation => expert.std_norm(),
            Self::RoutingScore => per_token(expert.score_sum),
            Self::Frequency => per_token(expert.tokens as f64),
            Self::Reap => expert.weighted_norm_sum / (expert.tokens.max(1) as f64),
            Self::Ean => expert.norm_sum,
            Self::Random | Self::Weights => return None,
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Metric {
    type Err = PruneError;

    fn from_str(name: &str) -> Result<Self, PruneError> {
        Self::ALL
            .into_iter()
            .find(|metric| metric.name() == name)
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::name).join(", ");
                PruneError::setting("metric", format!("{name} is none of {known}"))
            })
    }
}

/// A number in `[0, 1)` that depends on seed, layer and expert only: SplitMix64 (Steele, Lea and
/// Flood, 2014) of the three, its upper 53 bits.
#[must_use]
pub(crate) fn chance(seed: u64, layer: u32, expert: u32) -> f64 {
    let place = (u64::from(layer) << 32) | u64::from(expert);
    (mix(mix(seed).wrapping_add(place)) >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The Frobenius norm of all weights of each retained expert, by layer and in the order of the
/// layer's retained experts. Weights are read once, in the order of the files, and not kept.
pub(crate) fn weight_norms(subject: &Subject) -> Result<Vec<Vec<f64>>, PruneError> {
    let layers = subject.layers();
    let mut squares: Vec<Vec<f64>> = layers
        .iter()
        .map(|layer| vec![0.0; layer.table.retained().len()])
        .collect();
    let checkpoint = subject.checkpoint();
    for info in checkpoint.infos() {
        let Some(tensor) = subject.expert_tensor(&info.name) else {
            continue;
        };
        let Some(bytes) = checkpoint.stored(&info.name) else {
            continue;
        };
        let squares = &mut squares[tensor.layer];
        let layer = &layers[tensor.layer];
        if let Some(rows) = subject.packed_rows(&tensor, info) {
            for (sum, (_, row)) in squares.iter_mut().zip(&rows.places) {
                let row = rows.row(&bytes, *row);
                row.read(|piece| *sum += square_sum(&info.dtype, piece))?;
            }
        } else if let Some(expert) = tensor.expert
            && layer.info.expert_parts.contains(&tensor.part)
            && let Ok(place) = layer.table.retained().binary_search(&expert)
        {
            bytes.read(|piece| squares[place] += square_sum(&info.dtype, piece))?;
        }
    }
    for sum in squares.iter_mut().flatten() {
        *sum = sum.sqrt();
    }
    Ok(squares)
}

/// The sum of the squares of some elements. Pieces end between elements: their size is a power of
/// two.
fn square_sum(dtype: &Dtype, bytes: &[u8]) -> f64 {
    let square = |element: f32| f64::from(element) * f64::from(element);
    match dtype {
        Dtype::F32 => {
            let (elements, _) = bytes.as_chunks::<4>();
            elements
                .iter()
                .map(|e| square(f32::from_le_bytes(*e)))
                .sum()
        }
        Dtype::F16 => {
            let (elements, _) = bytes.as_chunks::<2>();
            let element = |e: &[u8; 2]| half::f16::from_le_bytes(*e).to_f32();
            elements.iter().map(|e| square(element(e))).sum()
        }
        Dtype::Bf16 => {
            let (elements, _) = bytes.as_chunks::<2>();
            let element = |e: &[u8; 2]| half::bf16::from_le_bytes(*e).to_f32();
            elements.iter().map(|e| square(element(e))).sum()
        }
        // A model's loader takes no other.
        _ => 0.0,
    }
}
