//! From a token's logits to its experts: scores, correction, groups, top k, weights.

use std::cmp::Ordering;

use crate::experts::Routes;

/// How a family of models chooses experts, in `f32` on the CPU: the choice is needed there to
/// schedule the experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutingRule {
    /// How many experts a token goes to.
    pub top_k: usize,
    /// What becomes of logits.
    pub scoring: Scoring,
    /// Whether the chosen experts' weights are divided by their sum (`norm_topk_prob`).
    pub normalize: bool,
    /// What is added to that sum.
    pub epsilon: f32,
    /// What weights are multiplied by (`routed_scaling_factor`).
    pub scale: f32,
    /// Whether the choice is confined to some groups of experts.
    pub groups: Option<Groups>,
}

/// What becomes of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// A softmax over all experts, not over the chosen ones.
    Softmax,
    /// A sigmoid of each.
    Sigmoid,
    /// `√ln(1 + eˣ)` of each (DeepSeek-V4; transformers' `SqrtSoftplusActivation`).
    SqrtSoftplus,
}

/// Experts in consecutive groups of equal size, of which the best are chosen first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Number of groups (`n_group`).
    pub count: usize,
    /// Groups that experts are chosen from (`topk_group`).
    pub chosen: usize,
    /// What a group is worth.
    pub score: GroupScore,
}

/// What a group of experts is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScore {
    /// Its best score (DeepSeek-V2, arXiv 2405.04434, section 2.2.2).
    Max,
    /// The sum of its two best scores (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    TopTwo,
}

impl RoutingRule {
    /// A softmax over all experts, then the top k.
    #[must_use]
    pub fn softmax(top_k: usize, normalize: bool) -> Self {
        Self {
            top_k,
            scoring: Scoring::Softmax,
            normalize,
            epsilon: 0.0,
            scale: 1.0,
            groups: None,
        }
    }

    /// Routes some tokens; among equal scores the lower id is chosen first.
    ///
    /// # Shapes
    ///
    /// `logits` `[tokens, experts]`, `bias` `[experts]`.
    #[must_use]
    pub fn route(&self, logits: &[f32], experts: usize, bias: Option<&[f32]>) -> Routes {
        let tokens = logits.len() / experts.max(1);
        let mut routes = Routes {
            ids: Vec::with_capacity(tokens * self.top_k),
            weights: Vec::with_capacity(tokens * self.top_k),
            top_k: self.top_k,
        };
        let mut order: Vec<usize> = Vec::with_capacity(experts);
        for logits in logits.chunks_exact(experts.max(1)) {
            let scores = self.scoring.scores(logits);
            let choice: Vec<f32> = match bias {
                Some(bias) => scores.iter().zip(bias).map(|(s, b)| s + b).collect(),
                None => scores.clone(),
            };
            order.clear();
            match self.groups {
                Some(groups) => order.extend(groups.experts(&choice)),
                None => order.extend(0..experts),
            }
            let top_k = self.top_k.min(order.len());
            best_first(&mut order, &choice, top_k);
            let chosen = &order[..top_k];
            routes.ids.extend(chosen.iter().map(|&e| e as i64));
            let chosen = chosen.iter().map(|&e| scores[e]);
            routes.weights.extend(self.weights(chosen));
            // A token goes to `top_k` experts, or to nothing where there are not as many.
            routes.ids.resize(routes.ids.len() + self.top_k - top_k, -1);
            routes.weights.resize(routes.ids.len(), 0.0);
        }
        routes
    }

    /// Weighs experts that are chosen already; one that there is not leads nowhere.
    ///
    /// # Shapes
    ///
    /// `logits` `[tokens, experts]`, `chosen` `[tokens, top_k]`.
    #[must_use]
    pub fn weigh(&self, logits: &[f32], experts: usize, chosen: Vec<i64>) -> Routes {
        let mut weights = Vec::with_capacity(chosen.len());
        let rows = logits.chunks_exact(experts.max(1));
        for (logits, chosen) in rows.zip(chosen.chunks(self.top_k.max(1))) {
            let scores = self.scoring.scores(logits);
            let score = |&expert: &i64| {
                let expert = usize::try_from(expert).ok();
                expert.and_then(|e| scores.get(e)).copied().unwrap_or(0.0)
            };
            weights.extend(self.weights(chosen.iter().map(score)));
        }
        Routes {
            ids: chosen,
            weights,
            top_k: self.top_k,
        }
    }

    /// The weights of one token's experts, of their scores.
    fn weights(&self, scores: impl Iterator<Item = f32> + Clone) -> impl Iterator<Item = f32> {
        let sum = if self.normalize {
            scores.clone().sum::<f32>() + self.epsilon
        } else {
            1.0
        };
        let scale = self.scale;
        scores.map(move |score| score / sum * scale)
    }
}

impl Scoring {
    fn scores(self, logits: &[f32]) -> Vec<f32> {
        match self {
            Self::Softmax => {
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<f32> = logits.iter().map(|l| (l - largest).exp()).collect();
                let sum: f32 = powers.iter().sum();
                powers.into_iter().map(|power| power / sum).collect()
            }
            Self::Sigmoid => logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect(),
            Self::SqrtSoftplus => logits
                .iter()
                // Large x is its own softplus, and its power would overflow.
                .map(|&l| if l > 20.0 { l } else { l.exp().ln_1p() }.sqrt())
                .collect(),
        }
    }
}

impl Groups {
    /// The experts of the best groups.
    fn experts(self, scores: &[f32]) -> impl Iterator<Item = usize> {
        let size = (scores.len() / self.count.max(1)).max(1);
        let worth: Vec<f32> = scores
            .chunks_exact(size)
            .map(|group| self.score.of(group))
            .collect();
        let mut groups: Vec<usize> = (0..worth.len()).collect();
        let chosen = self.chosen.min(groups.len());
        best_first(&mut groups, &worth, chosen);
        groups.truncate(chosen);
        groups
            .into_iter()
            .flat_map(move |group| group * size..(group + 1) * size)
    }
}

impl GroupScore {
    fn of(self, scores: &[f32]) -> f32 {
        let mut best = [f32::NEG_INFINITY; 2];
        for &score in scores {
            if score > best[0] {
                best = [score, best[0]];
            } else if score > best[1] {
                best[1] = score;
            }
        }
        match self {
            Self::Max => best[0],
            Self::TopTwo => best[0] + best[1],
        }
    }
}

/// Brings the best `count` indices to the front, in order: by score, then by index.
pub(crate) fn best_first(indices: &mut [usize], scores: &[f32], count: usize) {
    let order =
        |a: &usize, b: &usize| -> Ordering { scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)) };
    if count > 0 && count < indices.len() {
        indices.select_nth_unstable_by(count - 1, order);
    }
    indices[..count].sort_unstable_by(order);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_is_over_all_experts_and_not_renormalised() {
        let logits = [0.0, 2.0f32.ln(), 4.0f32.ln(), 0.0];
        let routes = RoutingRule::softmax(2, false).route(&logits, 4, None);
        assert_eq!(routes.ids, [2, 1]);
        for (found, expected) in routes.weights.iter().zip([0.5, 0.25]) {
            assert!((found - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn normalised_weights_add_up_to_the_scale() {
        let rule = RoutingRule {
            scale: 2.5,
            ..RoutingRule::softmax(2, true)
        };
        let routes = rule.route(&[0.0, 2.0f32.ln(), 4.0f32.ln(), 0.0], 4, None);
        for (found, expected) in routes.weights.iter().zip([2.5 * 2.0 / 3.0, 2.5 / 3.0]) {
            assert!((found - expected).abs() < 1e-6);
        }
    }

    #[test]
    fn correction_changes_the_choice_but_not_the_weights() {
        let rule = RoutingRule {
            scoring: Scoring::Sigmoid,
            ..RoutingRule::softmax(1, false)
        };
        let routes = rule.route(&[1.0, 0.0], 2, Some(&[0.0, 0.5]));
        assert_eq!((routes.ids, routes.weights), (vec![1], vec![0.5]));
    }

    #[test]
    fn square_root_of_softplus_does_not_overflow() {
        let scores = Scoring::SqrtSoftplus.scores(&[0.0, 1.0, 400.0, -400.0]);
        let expected = [
            2.0f32.ln().sqrt(),
            (1.0 + 1.0f32.exp()).ln().sqrt(),
            20.0,
            0.0,
        ];
        for (found, expected) in scores.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn chosen_experts_are_weighed_by_their_scores_and_unknown_ones_by_nothing() {
        let rule = RoutingRule {
            scale: 2.0,
            ..RoutingRule::softmax(2, true)
        };
        let logits = [0.0, 3.0f32.ln(), 9.0, 0.0, 0.0, 0.0];
        let routes = rule.weigh(&logits, 3, vec![1, 0, 7, 2]);
        assert_eq!(routes.ids, [1, 0, 7, 2]);
        for (found, expected) in routes.weights.iter().zip([1.5, 0.5, 0.0, 2.0]) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }

    #[test]
    fn groups_confine_the_choice() {
        let logits = [0.9, 0.0, 0.8, 0.7, 0.1, 0.1];
        let rule = |score| RoutingRule {
            scoring: Scoring::Sigmoid,
            groups: Some(Groups {
                count: 3,
                chosen: 1,
                score,
            }),
            ..RoutingRule::softmax(2, false)
        };
        assert_eq!(rule(GroupScore::Max).route(&logits, 6, None).ids, [0, 1]);
        assert_eq!(rule(GroupScore::TopTwo).route(&logits, 6, None).ids, [2, 3]);
    }

    #[test]
    fn equal_scores_go_by_id() {
        let routes = RoutingRule::softmax(3, false).route(&[1.0; 5], 5, None);
        assert_eq!(routes.ids, [0, 1, 2]);
    }
}
