//! What stands in for an expert: its constant, from what was counted of it.

use std::collections::BTreeMap;

use half::{bf16, f16};
use locum_substitution::{Dtype, LayerExpert};
use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::{ExpertStatistics, PruneError, Statistics, Subject};

/// What stands in for an expert.
///
/// With `w` the router weights and `y` the outputs, not weighted, of the tokens routed to it:
///
/// - `mean`: `c = Σy / n`, the novice of MoNE (arXiv 2507.00390, section 3);
/// - `zero`: `c = 0`, plain removal;
/// - `least-squares`: `c = Σw²y / Σw²`.
///
/// The last is what minimises `J(c) = Σ‖w·y − w·c‖²`, the error that the constant makes in the sum of
/// the layer on the calibration text: `∇J = −2 Σ w²(y − c) = 0` gives `c·Σw² = Σw²y`, and `J` is convex
/// (its Hessian is `2 Σw² · I`), so it is the minimum. It is the mean with tokens counted by `w²`, and
/// the mean where all weights are equal.
///
/// An expert that was never routed has nothing to take a mean of: its constant is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replacement {
    /// The mean output.
    #[default]
    Mean,
    /// Nothing.
    Zero,
    /// The output that errs least in the layer's sum.
    LeastSquares,
}

/// The constants of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constants {
    /// `[hidden]` each, rounded to `f32`, from which they are rounded to the type that they are stored in.
    pub values: BTreeMap<LayerExpert, Vec<f32>>,
    /// Experts that no token was routed to, whose constants are therefore zero. None are known of a
    /// replacement that is always zero where there are no statistics.
    pub never_routed: Vec<LayerExpert>,
}

impl Replacement {
    /// Whether it is computed from calibration statistics.
    #[must_use]
    pub fn needs_statistics(self) -> bool {
        self != Self::Zero
    }

    /// An expert's constant, `[hidden]`; `None` where no token, or none with a weight, was routed to it.
    #[must_use]
    pub fn of_statistics(self, expert: &ExpertStatistics) -> Option<Vec<f64>> {
        let (sums, count) = match self {
            Self::Mean => (&expert.output_sum, expert.tokens as f64),
            Self::Zero => return Some(vec![0.0; expert.output_sum.len()]),
            Self::LeastSquares => (&expert.weighted_output_sum, expert.squared_score_sum),
        };
        (count > 0.0).then(|| sums.read().iter().map(|sum| sum / count).collect())
    }

    /// The constants of all experts that a plan replaces. Sums by channel are read of those experts only.
    ///
    /// # Errors
    ///
    /// No statistics where they are needed, or those of another model.
    pub fn constants(
        self,
        subject: &Subject,
        plan: &Plan,
        statistics: Option<&Statistics>,
    ) -> Result<Constants, PruneError> {
        plan.check(subject)?;
        if let Some(statistics) = statistics {
            same_shape(subject, statistics)?;
        } else if self.needs_statistics() {
            return Err(PruneError::NoStatistics {
                what: "a constant that is a mean".into(),
            });
        }
        let mut constants = Constants::default();
        for (place, (layer, planned)) in subject.layers().iter().zip(&plan.layers).enumerate() {
            for expert in planned.ids() {
                let key = LayerExpert {
                    layer: planned.layer,
                    expert,
                };
                let counted = statistics.map(|found| &found.layers[place].experts[expert as usize]);
                let value = counted.and_then(|counted| self.of_statistics(counted));
                let routed = counted.is_none_or(|counted| counted.tokens > 0) && value.is_some();
                if counted.is_some() && !routed {
                    constants.never_routed.push(key);
                }
                let value = value.map_or_else(
                    || vec![0.0; layer.info.hidden_size],
                    |value| value.into_iter().map(|element| element as f32).collect(),
                );
                constants.values.insert(key, value);
            }
        }
        Ok(constants)
    }
}

/// That statistics have the layers, experts and sizes of a model.
pub(crate) fn same_shape(subject: &Subject, statistics: &Statistics) -> Result<(), PruneError> {
    let other = |reason: String| Err(PruneError::OtherModel { reason });
    let (layers, counted) = (subject.layers(), &statistics.layers);
    if layers.len() != counted.len() {
        return other(format!(
            "they are of {} MoE layers, the model has {}",
            counted.len(),
            layers.len()
        ));
    }
    for (layer, counted) in layers.iter().zip(counted) {
        let info = &layer.info;
        if info.layer != counted.layer {
            return other(format!(
                "they are of layer {} where the model has layer {}",
                counted.layer, info.layer
            ));
        }
        let (experts, found) = (info.num_logical_experts as usize, counted.experts.len());
        if experts != found {
            return other(format!(
                "they are of {found} experts in layer {}, the model has {experts}",
                info.layer
            ));
        }
        if counted.substituted != layer.table.substituted() {
            return other(format!(
                "its constants in layer {} were {:?}, those of the model are {:?}",
                info.layer,
                counted.substituted,
                layer.table.substituted()
            ));
        }
        let hidden = info.hidden_size;
        // Of constants only routes are counted.
        let retained = layer.table.retained().iter();
        let mut sizes = retained.flat_map(|&expert| {
            let expert = &counted.experts[expert as usize];
            [expert.output_sum.len(), expert.weighted_output_sum.len()]
        });
        let wrong = sizes.find(|&size| size != hidden);
        if let Some(found) = wrong.or((counted.hidden != hidden).then_some(counted.hidden)) {
            return other(format!(
                "their tokens are of size {found} in layer {}, the model's of {hidden}",
                info.layer
            ));
        }
    }
    Ok(())
}

/// A constant as it is stored, little-endian: rounded to the type, to nearest, ties to even.
///
/// # Errors
///
/// A type that constants cannot have, or a value beyond it.
pub(crate) fn stored(
    key: LayerExpert,
    value: &[f32],
    dtype: &Dtype,
) -> Result<Vec<u8>, PruneError> {
    let mut bytes = Vec::with_capacity(value.len() * 4);
    for &element in value {
        let finite = match dtype {
            Dtype::F32 => {
                bytes.extend(element.to_le_bytes());
                element.is_finite()
            }
            Dtype::F16 => {
                let rounded = f16::from_f32(element);
                bytes.extend(rounded.to_le_bytes());
                rounded.is_finite()
            }
            Dtype::Bf16 => {
                let rounded = bf16::from_f32(element);
                bytes.extend(rounded.to_le_bytes());
                rounded.is_finite()
            }
            _ => false,
        };
        if !finite {
            return Err(PruneError::Constant {
                layer: key.layer,
                expert: key.expert,
                value: element,
                dtype: dtype.clone(),
            });
        }
    }
    Ok(bytes)
}
