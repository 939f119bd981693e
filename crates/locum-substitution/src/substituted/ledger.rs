//! What has arrived, layer by layer: a bit per part of each retained expert and per constant.
//!
//! Bits, not NaN markers among the values: a stored NaN is data.

use std::collections::HashMap;

use crate::error::Listing;
use crate::name::{APPROX_VALUE, canonical};
use crate::{
    LayerExpert, Loaded, MoeLayerInfo, Route, RouteTable, SkipRule, SubstitutionError,
    SubstitutionSpec,
};

/// The layers that are built here, and what has arrived for them.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    pub(super) layers: Vec<LayerLedger>,
    pub(super) arrivals: Vec<Arrivals>,
    /// Whether everything has arrived once; from then on layers change as a whole.
    pub(super) complete: bool,
    /// By the canonical prefix of the experts.
    by_prefix: HashMap<String, usize>,
    longest_prefix: usize,
    /// By global layer, for layers that declare something: these have one MoE module.
    declaring: HashMap<u32, usize>,
    leftovers: usize,
    leftovers_reported: bool,
}

/// One MoE layer.
#[derive(Clone, Debug)]
pub(super) struct LayerLedger {
    pub(super) info: MoeLayerInfo,
    /// The path of the parameter that holds the constants.
    pub(super) constants_parameter: String,
    pub(super) table: RouteTable,
}

/// What has arrived for one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrivals {
    /// `[retained, parts]`
    pub(super) weights: Vec<bool>,
    /// `[substituted]`
    pub(super) constants: Vec<bool>,
}

/// What a tensor name means to a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A constant of the layer, by its row.
    Constant(usize),
    /// An `approx_value` of an expert that is not declared.
    Undeclared(u32),
    /// Weights of a substituted expert.
    Leftover,
    /// Weights of retained experts, as indices among [`Arrivals::weights`].
    Retained(Vec<usize>),
    /// Something else, which the model's loader judges.
    Other,
}

impl Ledger {
    pub(super) fn new(layers: Vec<LayerLedger>) -> Self {
        let arrivals = layers.iter().map(LayerLedger::nothing).collect();
        let by_prefix: HashMap<String, usize> = layers
            .iter()
            .enumerate()
            .map(|(index, layer)| (canonical(&layer.info.prefix).into_owned(), index))
            .collect();
        let declaring = layers
            .iter()
            .enumerate()
            .filter(|(_, layer)| !layer.table.substituted().is_empty())
            .map(|(index, layer)| (layer.info.layer, index))
            .collect();
        Self {
            longest_prefix: by_prefix.keys().map(String::len).max().unwrap_or(0),
            layers,
            arrivals,
            complete: false,
            by_prefix,
            declaring,
            leftovers: 0,
            leftovers_reported: false,
        }
    }

    /// The layer whose experts a canonical name is below, and what follows their prefix.
    ///
    /// Where the layer says its experts are counts, not how their path reads: `mtp.layers.0…` is
    /// no decoder layer, but may well be a layer that is built here.
    pub(super) fn locate<'n>(&self, name: &'n str) -> Option<(usize, &'n str)> {
        // No prefix goes on beyond the longest: a name of megabytes is not looked at further.
        name.bytes()
            .take(self.longest_prefix + 1)
            .enumerate()
            .filter(|&(_, byte)| byte == b'.')
            .filter_map(|(dot, _)| Some((*self.by_prefix.get(&name[..dot])?, &name[dot + 1..])))
            .next_back()
    }

    /// The layer of this global index, where it is built here and declares something.
    pub(super) fn declaring(&self, layer: u32) -> Option<usize> {
        self.declaring.get(&layer).copied()
    }

    pub(super) fn commit(&mut self, arrivals: Vec<Arrivals>, loaded: &Loaded) {
        self.arrivals = arrivals;
        self.complete |= self
            .arrivals
            .iter()
            .all(|layer| layer.weights.iter().chain(&layer.constants).all(|b| *b));
        self.leftovers += loaded
            .skipped
            .get(&SkipRule::SubstitutedExpert)
            .unwrap_or(&0);
    }

    /// Says once, for all calls together, that the checkpoint holds more than it needs.
    pub(super) fn report_leftovers(&mut self) {
        if self.leftovers > 0 && !self.leftovers_reported {
            self.leftovers_reported = true;
            tracing::info!(
                "the checkpoint still holds {} tensors of substituted experts, which were not read",
                self.leftovers
            );
        }
    }

    pub(super) fn nothing_missing(&self, spec: &SubstitutionSpec) -> Result<(), SubstitutionError> {
        nothing_missing(&self.layers, &self.arrivals, spec)
    }
}

/// The error that lists what has not arrived, if anything.
pub(super) fn nothing_missing(
    layers: &[LayerLedger],
    arrivals: &[Arrivals],
    spec: &SubstitutionSpec,
) -> Result<(), SubstitutionError> {
    let (mut constants, mut weights) = (Listing::default(), Listing::default());
    for (layer, arrived) in layers.iter().zip(arrivals) {
        layer.list_missing_constants(arrived, spec, &mut constants);
        layer.list_missing_weights(arrived, &mut weights);
    }
    if constants.is_empty() && weights.is_empty() {
        return Ok(());
    }
    Err(SubstitutionError::Missing { constants, weights })
}

impl LayerLedger {
    pub(super) fn nothing(&self) -> Arrivals {
        Arrivals {
            weights: vec![false; self.table.retained().len() * self.info.expert_parts.len()],
            constants: vec![false; self.table.substituted().len()],
        }
    }

    /// What the rest of a name, after the experts' prefix and a dot, means.
    ///
    /// `expert` is its logical id, where it has one, and `part` what follows.
    pub(super) fn place(&self, expert: Option<u32>, part: &str) -> Place {
        let parts = &self.info.expert_parts;
        let Some(expert) = expert else {
            let Some(packed) = self.info.packed_parts.iter().find(|p| p.name == part) else {
                return Place::Other;
            };
            return Place::Retained(
                (0..self.table.retained().len() * parts.len())
                    .filter(|index| packed.parts.contains(&parts[index % parts.len()]))
                    .collect(),
            );
        };
        let is_constant = part == APPROX_VALUE;
        match self.table.route(expert.into()) {
            Route::Substituted(row) if is_constant => Place::Constant(row as usize),
            Route::Substituted(_) => Place::Leftover,
            Route::Retained(_) | Route::Invalid
                if is_constant && !self.table.substituted().is_empty() =>
            {
                Place::Undeclared(expert)
            }
            Route::Retained(row) => match parts.iter().position(|p| *p == part) {
                Some(index) => Place::Retained(vec![row as usize * parts.len() + index]),
                None => Place::Other,
            },
            Route::Invalid => Place::Other,
        }
    }

    /// What an index among [`Arrivals::weights`] stands for.
    pub(super) fn expert_and_part(&self, index: usize) -> (u32, &'static str) {
        let parts = &self.info.expert_parts;
        (
            self.table.retained()[index / parts.len()],
            parts[index % parts.len()],
        )
    }

    pub(super) fn list_missing_constants(
        &self,
        arrived: &Arrivals,
        spec: &SubstitutionSpec,
        missing: &mut Listing,
    ) {
        let layer = self.info.layer;
        let experts = self.table.substituted().iter().zip(&arrived.constants);
        for (&expert, _) in experts.filter(|(_, here)| !**here) {
            missing.push(|| match spec.value_of(LayerExpert { layer, expert }) {
                Some(name) => format!("`{name}` (layer {layer}, expert {expert})"),
                None => format!(
                    "`{}.{expert}.{APPROX_VALUE}` (layer {layer}, expert {expert})",
                    self.info.prefix
                ),
            });
        }
    }

    pub(super) fn list_missing_weights(&self, arrived: &Arrivals, missing: &mut Listing) {
        for (index, _) in arrived
            .weights
            .iter()
            .enumerate()
            .filter(|(_, here)| !**here)
        {
            missing.push(|| {
                let (expert, part) = self.expert_and_part(index);
                format!(
                    "`{}.{expert}.{part}` (layer {}, expert {expert})",
                    self.info.prefix, self.info.layer
                )
            });
        }
    }
}
