//! Next-token distributions: what a position's logits say.

/// A softmax of logits in `f64`: `log p_i = logit_i − normaliser`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distribution<'a> {
    logits: &'a [f32],
    /// `ln Σ exp(logit)`
    normaliser: f64,
    /// The most likely token; of several the first.
    best: usize,
}

impl<'a> Distribution<'a> {
    /// `None` for logits that are no distribution: one is NaN or +∞, or all are −∞.
    pub(super) fn new(logits: &'a [f32]) -> Option<Self> {
        let mut best = 0;
        for (token, logit) in logits.iter().enumerate() {
            if logit.is_nan() {
                return None;
            }
            if *logit > logits[best] {
                best = token;
            }
        }
        let largest = f64::from(*logits.get(best)?);
        let sum: f64 = logits
            .iter()
            .map(|&logit| (f64::from(logit) - largest).exp())
            .sum();
        largest.is_finite().then_some(Self {
            logits,
            normaliser: largest + sum.ln(),
            best,
        })
    }

    pub(super) fn best(&self) -> usize {
        self.best
    }

    /// In nats.
    pub(super) fn log_probability(&self, token: usize) -> f64 {
        f64::from(self.logits[token]) - self.normaliser
    }

    /// `KL(self‖other) = Σ p·(ln p − ln q)` in nats. A token that is impossible here adds nothing.
    pub(super) fn divergence_from(&self, other: &Self) -> f64 {
        (0..self.logits.len())
            .map(|token| {
                let log = self.log_probability(token);
                let probability = log.exp();
                if probability > 0.0 {
                    probability * (log - other.log_probability(token))
                } else {
                    0.0
                }
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Distribution;

    #[test]
    fn divergence_is_that_of_the_definition() -> Result<(), &'static str> {
        let (p, q) = ([0.5f64, 0.25, 0.25], [0.25, 0.25, 0.5]);
        // Shifting logits changes nothing.
        let logits = |of: [f64; 3], shift: f64| of.map(|p| (p.ln() + shift) as f32);
        let (p_logits, q_logits) = (logits(p, 40.0), logits(q, -7.0));
        let here = Distribution::new(&p_logits).ok_or("no distribution")?;
        let there = Distribution::new(&q_logits).ok_or("no distribution")?;
        let expected: f64 = p.iter().zip(q).map(|(p, q)| p * (p / q).ln()).sum();
        assert!((here.divergence_from(&there) - expected).abs() < 1e-5);
        assert!((here.log_probability(1) - 0.25f64.ln()).abs() < 1e-5);
        assert_eq!((here.best(), there.best()), (0, 2));
        Ok(())
    }

    #[test]
    fn impossible_tokens_add_nothing() -> Result<(), &'static str> {
        let logits = [1.0, f32::NEG_INFINITY, 1.0];
        let here = Distribution::new(&logits).ok_or("no distribution")?;
        assert_eq!(here.divergence_from(&here), 0.0);
        Ok(())
    }

    #[test]
    fn logits_that_are_no_distribution() {
        for logits in [
            [0.0, f32::NAN],
            [f32::NAN, 0.0],
            [f32::INFINITY, 0.0],
            [f32::NEG_INFINITY; 2],
        ] {
            assert!(Distribution::new(&logits).is_none(), "{logits:?}");
        }
    }
}
