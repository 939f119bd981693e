//! Routes: from the router's logical ids to retained rows, constants, or nothing.

use std::collections::BTreeSet;

use crate::SubstitutionError;

/// Where one of a token's top-k choices leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To a retained expert: its row among the packed weights.
    Retained(u32),
    /// To a constant: its row among the layer's constants.
    Substituted(u32),
    /// Nowhere: the id is not one of the layer's experts.
    Invalid,
}

/// A layer's logical experts, each with its route.
///
/// ```
/// use locum_substitution::{Route, RouteTable};
///
/// let table = RouteTable::new(5, &[1, 3])?;
/// assert_eq!(table.route(2), Route::Retained(1));
/// assert_eq!(table.route(3), Route::Substituted(1));
/// assert_eq!(table.route(-1), Route::Invalid);
/// # Ok::<(), locum_substitution::SubstitutionError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTable {
    routes: Vec<Route>,
    retained: Vec<u32>,
    substituted: Vec<u32>,
}

impl RouteTable {
    /// The table of a layer with `num_logical_experts` experts of which `substituted` are
    /// constants. Rows follow the order of logical ids.
    ///
    /// # Errors
    ///
    /// [`SubstitutionError::InvalidExperts`] for an id at or beyond the number of experts, an id
    /// twice, or a list that leaves no expert.
    pub fn new(num_logical_experts: u32, substituted: &[u32]) -> Result<Self, SubstitutionError> {
        let invalid = |reason: String| SubstitutionError::InvalidExperts { reason };
        let set: BTreeSet<u32> = substituted.iter().copied().collect();
        if set.len() != substituted.len() {
            let mut sorted = substituted.to_vec();
            sorted.sort_unstable();
            let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
            return Err(invalid(format!(
                "expert {} is listed twice",
                twice.map_or(0, |pair| pair[0])
            )));
        }
        let outside: Vec<u32> = set.range(num_logical_experts..).copied().collect();
        if !outside.is_empty() {
            return Err(invalid(format!(
                "experts {outside:?} do not exist, the layer has {num_logical_experts}"
            )));
        }
        if !set.is_empty() && set.len() == num_logical_experts as usize {
            return Err(invalid(format!(
                "all {num_logical_experts} experts are substituted, at least one must be retained"
            )));
        }
        let mut table = Self {
            routes: Vec::with_capacity(num_logical_experts as usize),
            retained: Vec::new(),
            substituted: Vec::new(),
        };
        for expert in 0..num_logical_experts {
            let (rows, route): (_, fn(u32) -> Route) = if set.contains(&expert) {
                (&mut table.substituted, Route::Substituted)
            } else {
                (&mut table.retained, Route::Retained)
            };
            table.routes.push(route(rows.len() as u32));
            rows.push(expert);
        }
        Ok(table)
    }

    /// The table of a layer that retains every expert.
    #[must_use]
    pub fn all_retained(num_logical_experts: u32) -> Self {
        Self {
            routes: (0..num_logical_experts).map(Route::Retained).collect(),
            retained: (0..num_logical_experts).collect(),
            substituted: Vec::new(),
        }
    }

    /// The route of a logical id; [`Route::Invalid`] for one that the layer does not have.
    #[must_use]
    pub fn route(&self, logical: i64) -> Route {
        usize::try_from(logical)
            .ok()
            .and_then(|id| self.routes.get(id))
            .copied()
            .unwrap_or(Route::Invalid)
    }

    /// Number of logical experts.
    #[must_use]
    pub fn num_logical(&self) -> usize {
        self.routes.len()
    }

    /// Logical ids of the retained experts, in row order.
    #[must_use]
    pub fn retained(&self) -> &[u32] {
        &self.retained
    }

    /// Logical ids of the substituted experts, in row order.
    #[must_use]
    pub fn substituted(&self) -> &[u32] {
        &self.substituted
    }

    /// Follows the routes of some tokens.
    ///
    /// Invalid routes lead nowhere, whatever their weight; a token with a NaN weight keeps it to
    /// itself, since every route carries its own token.
    ///
    /// # Shapes
    ///
    /// `ids` and `weights` are `[tokens, top_k]`, row-major; a last partial token is ignored, and
    /// `top_k` 0 gives no routes.
    #[must_use]
    pub fn dispatch(&self, ids: &[i64], weights: &[f32], top_k: usize) -> Dispatch {
        let mut dispatch = Dispatch {
            retained: vec![Vec::new(); self.retained.len()],
            substituted: Vec::new(),
        };
        if top_k == 0 {
            return dispatch;
        }
        let tokens = ids.len().min(weights.len()) / top_k;
        for (position, (&id, &weight)) in ids.iter().zip(weights).take(tokens * top_k).enumerate() {
            let token = position / top_k;
            match self.route(id) {
                Route::Retained(row) => {
                    dispatch.retained[row as usize].push(TokenWeight { token, weight });
                }
                Route::Substituted(row) => dispatch.substituted.push(ConstantRoute {
                    token,
                    row: row as usize,
                    weight,
                }),
                Route::Invalid => {}
            }
        }
        dispatch
    }
}

/// Tokens by where their routes lead.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// For each retained row, its tokens in order, with their router weights.
    pub retained: Vec<Vec<TokenWeight>>,
    /// The routes that lead to constants, in token order.
    pub substituted: Vec<ConstantRoute>,
}

/// A token that a retained expert computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenWeight {
    /// The token's position in the batch.
    pub token: usize,
    /// Its router weight.
    pub weight: f32,
}

/// A route that leads to a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConstantRoute {
    /// The token's position in the batch.
    pub token: usize,
    /// The row among the layer's constants.
    pub row: usize,
    /// The router weight.
    pub weight: f32,
}
