//! Recording which experts tokens are routed to, in windows of steps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::collect::ModelGeometry;
use crate::error::Error;
use crate::load::{Loads, Scope};
use crate::placement::{Placement, check_experts_limit};
use crate::wording::counted;

/// Counts routes per layer and expert, and keeps the last windows.
///
/// A window is the sum of a fixed number of steps. Only valid tokens count: padding and dummy
/// tokens are routed too, and would pull replicas to whatever experts they happen to reach.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorder {
    scope: Scope,
    steps_per_window: usize,
    kept: usize,
    steps: usize,
    open: Vec<Vec<u64>>,
    windows: VecDeque<Vec<Vec<u64>>>,
}

impl Recorder {
    /// A recorder for layers with these numbers of experts. `scope` states whose tokens it will be
    /// given; windows are `steps_per_window` steps long, and the last `kept` are kept.
    ///
    /// # Errors
    ///
    /// When a layer has no experts or more than 65 536, or either number is 0.
    pub fn new(
        scope: Scope,
        experts: &[usize],
        steps_per_window: usize,
        kept: usize,
    ) -> Result<Self, Error> {
        if let Some(layer) = experts.iter().position(|experts| *experts == 0) {
            return Err(Error::Empty {
                what: format!("experts of layer {layer}"),
            });
        }
        for experts in experts {
            check_experts_limit(*experts)?;
        }
        for (what, value) in [
            ("steps per window", steps_per_window),
            ("windows that are kept", kept),
        ] {
            if value == 0 {
                return Err(Error::Empty { what: what.into() });
            }
        }
        let open = experts.iter().map(|experts| vec![0; *experts]).collect();
        Ok(Self {
            scope,
            steps_per_window,
            kept,
            steps: 0,
            open,
            windows: VecDeque::new(),
        })
    }

    /// Whose tokens are counted.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Counts the routes of one layer in the current step. Nothing is counted when there is an
    /// error.
    ///
    /// # Shapes
    ///
    /// `routes`: `[tokens, top_k]`, expert ids, row by row; `valid`: `[tokens]`.
    ///
    /// # Errors
    ///
    /// When the layer does not exist, the shapes do not fit, or a valid token is routed to an
    /// expert that does not exist.
    pub fn record(
        &mut self,
        layer: usize,
        routes: &[i64],
        top_k: usize,
        valid: &[bool],
    ) -> Result<(), Error> {
        let layers = self.open.len();
        let Some(counts) = self.open.get_mut(layer) else {
            return Err(Error::Shape {
                what: "layer".into(),
                expected: format!("one of {}", counted(layers, "layer")),
                found: layer.to_string(),
            });
        };
        if top_k == 0 || valid.len().checked_mul(top_k) != Some(routes.len()) {
            return Err(Error::Shape {
                what: format!("layer {layer}: routes"),
                expected: format!(
                    "[{}, top_k] entries with top_k {top_k} (at least 1)",
                    valid.len()
                ),
                found: counted(routes.len(), "entry"),
            });
        }
        let tokens = || {
            routes
                .chunks_exact(top_k)
                .zip(valid)
                .enumerate()
                .filter(|(_, (_, valid))| **valid)
        };
        for (token, (row, _)) in tokens() {
            let known =
                |expert: &i64| usize::try_from(*expert).is_ok_and(|expert| expert < counts.len());
            if let Some(&expert) = row.iter().find(|expert| !known(expert)) {
                let place = format!("layer {layer}, token {token}");
                return Err(Error::ExpertOutOfRange {
                    place,
                    expert,
                    experts: counts.len(),
                });
            }
        }
        for (_, (row, _)) in tokens() {
            for &expert in row {
                let count = &mut counts[expert as usize];
                *count = count.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Ends a step. When the window is full, it is kept and the oldest beyond the limit dropped.
    pub fn end_step(&mut self) {
        self.steps += 1;
        if self.steps < self.steps_per_window {
            return;
        }
        self.steps = 0;
        let empty = self.open.iter().map(|layer| vec![0; layer.len()]).collect();
        self.windows
            .push_back(std::mem::replace(&mut self.open, empty));
        if self.windows.len() > self.kept {
            self.windows.pop_front();
        }
    }

    /// The windows that are complete, oldest first. Shape `[windows][layers][experts]`.
    pub fn windows(&self) -> impl ExactSizeIterator<Item = &Vec<Vec<u64>>> + '_ {
        self.windows.iter()
    }

    /// The complete windows as loads, with the scope stated.
    ///
    /// # Errors
    ///
    /// When no window is complete, or a count is above 2^53.
    pub fn loads(&self) -> Result<Loads, Error> {
        let windows: Vec<_> = self.windows.iter().cloned().collect();
        Ok(Loads::from_counts(&windows)?.with_scope(self.scope))
    }

    /// Sums the recorders of all ranks into one of global scope.
    ///
    /// # Errors
    ///
    /// When there are none, one is global already or is of a rank that another one is of (tokens
    /// would count twice), or they differ in layers or windows.
    pub fn gather(recorders: &[Self]) -> Result<Self, Error> {
        let Some(first) = recorders.first() else {
            return Err(Error::Empty {
                what: "recorders".into(),
            });
        };
        let mut ranks = BTreeSet::new();
        let mut sum = Self {
            scope: Scope::Global,
            ..first.clone()
        };
        for (index, recorder) in recorders.iter().enumerate() {
            match recorder.scope {
                Scope::Global => {
                    return Err(Error::Scope(format!(
                        "recorder {index} counts the tokens of all ranks already; gather only local ones"
                    )));
                }
                Scope::Local { rank } if !ranks.insert(rank) => {
                    return Err(Error::Scope(format!(
                        "two count the tokens of rank {rank}; gather one per rank"
                    )));
                }
                Scope::Local { .. } => {}
            }
            let shape =
                |recorder: &Self| -> Vec<usize> { recorder.open.iter().map(Vec::len).collect() };
            let same_steps = (
                recorder.steps_per_window,
                recorder.steps,
                recorder.windows.len(),
            ) == (first.steps_per_window, first.steps, first.windows.len());
            if shape(recorder) != shape(first) || !same_steps {
                return Err(Error::Scope(format!(
                    "recorder {index} differs from recorder 0 in layers, experts or steps; gather them at the same step"
                )));
            }
            if index > 0 {
                add(&mut sum.open, &recorder.open);
                for (into, from) in sum.windows.iter_mut().zip(&recorder.windows) {
                    add(into, from);
                }
            }
        }
        Ok(sum)
    }
}

fn add(into: &mut [Vec<u64>], from: &[Vec<u64>]) {
    for (into, from) in into.iter_mut().zip(from) {
        for (into, from) in into.iter_mut().zip(from) {
            *into = into.saturating_add(*from);
        }
    }
}

/// What is kept for one model: its layers, its loads, and where its experts are.
#[derive(Debug, Clone)]
pub struct ModelState {
    /// The MoE layers.
    pub geometry: ModelGeometry,
    /// The recorded loads, by layer.
    pub recorder: Recorder,
    /// The placement in use; none before the first plan.
    pub placement: Option<Placement>,
}

/// Load state by model: a draft whose layers do not fit its target's state has its own and is
/// balanced on its own.
#[derive(Debug, Clone, Default)]
pub struct BalancingState {
    models: BTreeMap<String, ModelState>,
}

impl BalancingState {
    /// A state without models.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a model, with a recorder for the retained experts of each of its layers. A model that
    /// is there already is replaced, and its state returned.
    ///
    /// # Errors
    ///
    /// As [`Recorder::new`].
    pub fn register(
        &mut self,
        model: impl Into<String>,
        geometry: ModelGeometry,
        scope: Scope,
        steps_per_window: usize,
        kept: usize,
    ) -> Result<Option<ModelState>, Error> {
        let experts: Vec<usize> = geometry
            .layers
            .iter()
            .map(|layer| layer.geometry.retained)
            .collect();
        let recorder = Recorder::new(scope, &experts, steps_per_window, kept)?;
        Ok(self.models.insert(
            model.into(),
            ModelState {
                geometry,
                recorder,
                placement: None,
            },
        ))
    }

    /// A model's state.
    pub fn model(&self, model: &str) -> Option<&ModelState> {
        self.models.get(model)
    }

    /// A model's state, to record into or to put a new placement in.
    pub fn model_mut(&mut self, model: &str) -> Option<&mut ModelState> {
        self.models.get_mut(model)
    }

    /// The models by name.
    pub fn models(&self) -> impl Iterator<Item = (&str, &ModelState)> + '_ {
        self.models
            .iter()
            .map(|(name, state)| (name.as_str(), state))
    }
}
