//! How often tokens meet substituted experts.

use std::ops::AddAssign;

use locum_nn::Routes;
use locum_substitution::{Route, RouteTable};

/// What one MoE layer's router chose, and how much of that was substituted. Invalid routes count as
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Encounters {
    /// Tokens that the layer saw.
    pub tokens: u64,
    /// Tokens of which at least one route led to a substituted expert.
    pub tokens_substituted: u64,
    /// Routes.
    pub routes: u64,
    /// Routes to substituted experts.
    pub routes_substituted: u64,
    /// Sum of the router weights.
    pub weight: f64,
    /// Sum of the router weights of routes to substituted experts.
    pub weight_substituted: f64,
}

impl Encounters {
    /// Counts the routes of some tokens.
    pub(super) fn of(routes: &Routes, table: &RouteTable) -> Self {
        let mut counts = Self::default();
        let top_k = routes.top_k.max(1);
        let weights = routes.weights.chunks(top_k);
        for (ids, weights) in routes.ids.chunks(top_k).zip(weights) {
            let before = counts.routes_substituted;
            for (&id, &weight) in ids.iter().zip(weights) {
                let substituted = match table.route(id) {
                    Route::Retained(_) => false,
                    Route::Substituted(_) => true,
                    Route::Invalid => continue,
                };
                counts.routes += 1;
                counts.weight += f64::from(weight);
                if substituted {
                    counts.routes_substituted += 1;
                    counts.weight_substituted += f64::from(weight);
                }
            }
            counts.tokens += 1;
            counts.tokens_substituted += u64::from(counts.routes_substituted > before);
        }
        counts
    }

    /// Share of the routes that led to substituted experts; 0 where there was none.
    #[must_use]
    pub fn route_share(&self) -> f64 {
        share(self.routes_substituted as f64, self.routes as f64)
    }

    /// Share of the tokens that met at least one substituted expert.
    #[must_use]
    pub fn token_share(&self) -> f64 {
        share(self.tokens_substituted as f64, self.tokens as f64)
    }

    /// Share of the router weight that went to substituted experts.
    #[must_use]
    pub fn weight_share(&self) -> f64 {
        share(self.weight_substituted, self.weight)
    }
}

impl AddAssign for Encounters {
    fn add_assign(&mut self, more: Self) {
        self.tokens += more.tokens;
        self.tokens_substituted += more.tokens_substituted;
        self.routes += more.routes;
        self.routes_substituted += more.routes_substituted;
        self.weight += more.weight;
        self.weight_substituted += more.weight_substituted;
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use locum_nn::Routes;
    use locum_substitution::{RouteTable, SubstitutionError};

    use super::Encounters;

    #[test]
    fn routes_tokens_and_weights_are_counted() -> Result<(), SubstitutionError> {
        let table = RouteTable::new(4, &[1, 3])?;
        let routes = Routes {
            ids: vec![0, 1, 3, 1, 2, 0, 2, 9],
            weights: vec![0.5, 0.25, 0.5, 0.25, 0.5, 0.5, 1.0, 7.0],
            top_k: 2,
        };
        let mut counts = Encounters::of(&routes, &table);
        assert_eq!(
            counts,
            Encounters {
                tokens: 4,
                tokens_substituted: 2,
                routes: 7,
                routes_substituted: 3,
                weight: 3.5,
                weight_substituted: 1.0,
            }
        );
        counts += counts;
        assert_eq!(counts.token_share(), 0.5);
        assert_eq!(counts.route_share(), 6.0 / 14.0);
        assert_eq!(counts.weight_share(), 2.0 / 7.0);
        assert_eq!(Encounters::default().route_share(), 0.0);
        Ok(())
    }
}
