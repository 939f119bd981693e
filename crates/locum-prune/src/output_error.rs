//! What substitution does to a layer's output, in closed form from calibration's sums.
//!
//! An expert that is routed to with weight `w` gives `y`; a constant in its place gives `c`. Over the
//! routes of calibration the squared error of the expert's part of the output is
//!
//! `Σ ‖w·y − w·c‖² = Σ w²‖y‖² − 2·c·Σ w²y + ‖c‖²·Σ w²`,
//!
//! whose sums are all in [`ExpertStatistics`]. What it leaves out: cross terms between the experts of
//! one token (errors may cancel or add up), shared experts, the residual stream, and that a layer's
//! input changes once the layers before it are pruned.

use std::collections::BTreeMap;

use crate::{ExpertStatistics, LayerStatistics, PruneError};

/// The squared error of a layer's output, beside the output.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OutputError {
    /// `Σ ‖w·y − w·c‖²` over the routes to substituted experts.
    pub error: f64,
    /// `Σ w²‖y‖²` over the routes to all experts that calibration saw compute.
    pub output: f64,
}

impl OutputError {
    /// Error over output, both squared: 0 where nothing is lost, 1 where constants of zero replace
    /// everything.
    #[must_use]
    pub fn relative(&self) -> f64 {
        if self.output > 0.0 {
            self.error / self.output
        } else {
            0.0
        }
    }
}

impl ExpertStatistics {
    /// `Σ ‖w·y − w·c‖²` over the expert's routes, never below 0; `None` where the constant is not as
    /// long as the outputs.
    ///
    /// # Shapes
    ///
    /// `constant` `[hidden]`.
    #[must_use]
    pub fn substitution_error(&self, constant: &[f64]) -> Option<f64> {
        if constant.len() != self.weighted_output_sum.len() {
            return None;
        }
        let dot = |of: &[f64]| -> f64 { constant.iter().zip(of).map(|(c, of)| c * of).sum() };
        let error = self.weighted_squared_norm_sum - 2.0 * dot(&self.weighted_output_sum.read())
            + dot(constant) * self.squared_score_sum;
        Some(error.max(0.0))
    }
}

impl LayerStatistics {
    /// The error of the layer's output where experts become constants, `[hidden]` each by logical id.
    /// Experts that were constants already while calibrating are not part of it.
    ///
    /// # Errors
    ///
    /// A constant of an expert that the layer does not have, or of another length than its outputs.
    pub fn output_error(
        &self,
        constants: &BTreeMap<u32, Vec<f64>>,
    ) -> Result<OutputError, PruneError> {
        let mut error = 0.0;
        for (&id, constant) in constants {
            let expert = self.experts.get(id as usize);
            let expert = expert.ok_or(PruneError::ConstantOfNone {
                layer: self.layer,
                expert: id,
                experts: self.experts.len(),
            })?;
            // Outputs of what was a constant already are not known.
            if self.substituted.contains(&id) {
                continue;
            }
            let of_expert = expert.substitution_error(constant);
            error += of_expert.ok_or(PruneError::ConstantSize {
                layer: self.layer,
                expert: id,
                expected: expert.weighted_output_sum.len(),
                found: constant.len(),
            })?;
        }
        let outputs = self.experts.iter();
        Ok(OutputError {
            error,
            output: outputs.map(|expert| expert.weighted_squared_norm_sum).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::{ExpertStatistics, LayerStatistics, PruneError};

    /// Sums over outputs `y` with weights `w`, as calibration makes them.
    fn expert(routes: &[(f64, [f64; 2])]) -> ExpertStatistics {
        let norm = |y: &[f64; 2]| y[0].hypot(y[1]);
        let sum = |of: &dyn Fn(f64, &[f64; 2]) -> f64| routes.iter().map(|(w, y)| of(*w, y)).sum();
        ExpertStatistics {
            tokens: routes.len() as u64,
            score_sum: sum(&|w, _| w),
            squared_score_sum: sum(&|w, _| w * w),
            norm_sum: sum(&|_, y| norm(y)),
            weighted_norm_sum: sum(&|w, y| w * norm(y)),
            squared_norm_sum: sum(&|_, y| norm(y).powi(2)),
            weighted_squared_norm_sum: sum(&|w, y| (w * norm(y)).powi(2)),
            output_sum: vec![sum(&|_, y| y[0]), sum(&|_, y| y[1])].into(),
            weighted_output_sum: vec![sum(&|w, y| w * w * y[0]), sum(&|w, y| w * w * y[1])].into(),
        }
    }

    fn layer(experts: Vec<ExpertStatistics>) -> LayerStatistics {
        LayerStatistics {
            layer: 3,
            prefix: "model.layers.3.mlp.experts".into(),
            hidden: 2,
            tokens: 4,
            substituted: Vec::new(),
            experts,
        }
    }

    #[test]
    fn constants_of_other_layers_are_refused() {
        let layer = layer(vec![expert(&[(0.5, [1.0, -2.0])])]);
        for (constants, expected) in [
            (
                [(0, vec![1.0])],
                "layer 3, expert 0 has 1 elements, the statistics 2",
            ),
            (
                [(0, vec![1.0; 3])],
                "layer 3, expert 0 has 3 elements, the statistics 2",
            ),
            (
                [(1, vec![1.0; 2])],
                "layer 3, expert 1, where the statistics have 1 experts",
            ),
        ] {
            let found = layer
                .output_error(&constants.into())
                .map_err(|e| e.to_string());
            assert!(
                found.is_err_and(|error| error.contains(expected)),
                "{expected}"
            );
        }
    }

    #[test]
    fn error_is_that_of_the_routes_one_by_one() -> Result<(), PruneError> {
        let routes = [
            vec![(0.5, [1.0, -2.0]), (0.25, [3.0, 0.5]), (1.0, [0.0, 1.0])],
            vec![(0.5, [2.0, 2.0]), (0.75, [-1.0, 4.0])],
        ];
        let constants = [vec![0.5, -0.25], vec![1.0, 1.0]];
        let layer = layer(routes.iter().map(|routes| expert(routes)).collect());
        let directly = |expert: usize| -> f64 {
            let c = &constants[expert];
            let routes = routes[expert].iter();
            routes
                .map(|(w, y)| w * w * ((y[0] - c[0]).powi(2) + (y[1] - c[1]).powi(2)))
                .sum()
        };
        let output: f64 = routes
            .iter()
            .flatten()
            .map(|(w, y)| w * w * (y[0] * y[0] + y[1] * y[1]))
            .sum();
        for experts in [vec![0], vec![1], vec![0, 1], vec![]] {
            let replaced: BTreeMap<u32, Vec<f64>> = experts
                .iter()
                .map(|&expert| (expert as u32, constants[expert].clone()))
                .collect();
            let found = layer.output_error(&replaced)?;
            let expected: f64 = experts.iter().map(|&expert| directly(expert)).sum();
            assert!((found.error - expected).abs() < 1e-12, "{experts:?}");
            assert!((found.output - output).abs() < 1e-12);
            assert!((found.relative() - expected / output).abs() < 1e-12);
        }
        Ok(())
    }

    #[test]
    fn expert_that_always_gives_the_same_is_replaced_without_loss() {
        let expert = expert(&[(0.1, [0.3, 0.7]), (0.9, [0.3, 0.7]), (0.4, [0.3, 0.7])]);
        let error = expert.substitution_error(&[0.3, 0.7]);
        assert!(error.is_some_and(|error| error < 1e-15), "{error:?}");
    }
}
