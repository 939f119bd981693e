//! What can be seen of a layer's experts while it computes: for calibration, and for reports.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use locum_substitution::{RouteTable, TokenWeight};

use crate::Routes;

/// Somebody who looks on while a model computes, maybe on another thread.
pub trait ExpertObserver: Send {
    /// Whether it wants the experts' outputs too, which take `[routes, hidden]` in memory.
    fn wants_outputs(&self) -> bool {
        false
    }

    /// Where outputs may be kept between layers and between steps; what is in it means nothing. Fresh
    /// memory for each layer costs about a tenth of the time of a small model.
    fn scratch(&mut self) -> Option<&mut Vec<f32>> {
        None
    }

    /// Sees the tokens of a step in one MoE layer. Layers come in their order.
    fn observe(&mut self, observation: &Observation<'_>);
}

impl fmt::Debug for dyn ExpertObserver + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertObserver").finish_non_exhaustive()
    }
}

/// The tokens of a step in one MoE layer.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    /// The global decoder layer.
    pub layer: u32,
    /// Where the layer's experts are.
    pub table: &'a RouteTable,
    /// What the router chose: logical ids, and the weights of the forward pass, `[tokens, top_k]`.
    pub routes: &'a Routes,
    /// What the retained experts gave, where it is wanted.
    pub outputs: Option<RouteOutputs<'a>>,
}

/// The outputs of the routes to retained experts, before they are weighted.
#[derive(Clone, Debug)]
pub struct RouteOutputs<'a> {
    table: &'a RouteTable,
    /// By row.
    routes: &'a [Vec<TokenWeight>],
    /// By row: the place of its first route.
    starts: Vec<usize>,
    hidden: usize,
    /// `[routes, hidden]`
    values: &'a [f32],
}

/// The outputs of one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertOutputs<'a> {
    /// Its tokens, in order, with their router weights.
    pub routes: &'a [TokenWeight],
    /// `[routes, hidden]`
    pub values: &'a [f32],
}

impl<'a> RouteOutputs<'a> {
    pub(crate) fn new(
        table: &'a RouteTable,
        routes: &'a [Vec<TokenWeight>],
        hidden: usize,
        values: &'a [f32],
    ) -> Self {
        let starts = routes.iter().scan(0, |next, row| {
            let start = *next;
            *next += row.len();
            Some(start)
        });
        Self {
            starts: starts.collect(),
            table,
            routes,
            hidden,
            values,
        }
    }

    /// What a logical expert gave its tokens; `None` for one that is not retained.
    #[must_use]
    pub fn of_expert(&self, expert: u32) -> Option<ExpertOutputs<'a>> {
        let row = self.table.retained().binary_search(&expert).ok()?;
        let routes = self.routes.get(row)?;
        let start = self.starts[row] * self.hidden;
        let values = self.values.get(start..start + routes.len() * self.hidden)?;
        Some(ExpertOutputs { routes, values })
    }

    /// What a logical expert gave a token, `[hidden]`; `None` where it is not retained, or the token
    /// did not go to it.
    #[must_use]
    pub fn of_token(&self, token: usize, expert: u32) -> Option<&'a [f32]> {
        let ExpertOutputs { routes, values } = self.of_expert(expert)?;
        let place = routes.binary_search_by_key(&token, |route| route.token);
        values.get(place.ok()? * self.hidden..)?.get(..self.hidden)
    }
}

/// Where a layer's computation leaves the outputs of its routes, `[routes, hidden]`.
///
/// It goes by the side of the tensors, because an operation of a backend gives one tensor.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputBuffer(Arc<Mutex<Vec<f32>>>);

impl OutputBuffer {
    /// With an observer's memory in it; `None` where it wants no outputs.
    pub(crate) fn of(observer: &mut dyn ExpertObserver) -> Option<Self> {
        if !observer.wants_outputs() {
            return None;
        }
        let buffer = Self::default();
        buffer.put(observer.scratch().map(std::mem::take).unwrap_or_default());
        Some(buffer)
    }

    pub(crate) fn put(&self, values: Vec<f32>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = values;
    }

    pub(crate) fn take(&self) -> Vec<f32> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
