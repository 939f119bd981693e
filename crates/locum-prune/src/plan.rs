//! The choice as a file of its own: which experts go, and why.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use locum_checkpoint::read_text;
use locum_substitution::RouteTable;
use locum_substitution::name::parse_id;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::{PruneError, Settings, Subject};

/// The version of the file.
const VERSION: u32 = 1;

/// Which experts of a model go, and why.
///
/// As a file it can be read, changed, and applied to a sibling of the same shape, such as the instruct
/// model of a base model, with constants from that one's own statistics.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// How they were chosen; none where they came from outside.
    pub settings: Option<Settings>,
    /// Every MoE layer of the model, in order.
    pub layers: Vec<LayerPlan>,
}

/// One MoE layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerPlan {
    /// The global decoder layer.
    pub layer: u32,
    /// How many experts its router chooses from.
    pub num_logical_experts: u32,
    /// The experts that go, ascending by id. Those that are constants already are not among them.
    pub substituted: Vec<PlannedExpert>,
}

/// An expert that goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedExpert {
    /// Its logical id.
    pub expert: u32,
    /// What it was ranked by.
    #[serde(default)]
    pub value: Option<f64>,
    /// Its place in the ranking of its layer, or of the model where that was the scope: 1 is the most
    /// needed.
    #[serde(default)]
    pub rank: Option<u32>,
    /// Tokens of the calibration text that were routed to it.
    #[serde(default)]
    pub tokens: Option<u64>,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    version: u32,
    settings: Option<Settings>,
    layers: Vec<LayerPlan>,
}

impl LayerPlan {
    /// Logical ids of the experts that go.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.substituted.iter().map(|planned| planned.expert)
    }
}

impl Plan {
    /// Reads a plan that [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is no plan.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PruneError> {
        let path = path.as_ref();
        let wrong = |reason: String| PruneError::PlanFile {
            file: path.into(),
            reason,
        };
        let text = read_text(path)?;
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        // Said first: another version may have any other field.
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            let found = value
                .get("version")
                .map_or("none".into(), ToString::to_string);
            return Err(wrong(format!(
                "its version must be {VERSION}, found {found}"
            )));
        }
        let file: PlanFile =
            serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        Ok(Self {
            settings: file.settings,
            layers: file.layers,
        })
    }

    /// Reads a list of experts from outside: `{"<layer>": [logical ids]}`. Layers that it does not
    /// name keep all of theirs.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is no such list; layers or experts that the model does not have,
    /// or that come twice; all experts of a layer.
    pub fn of_list(path: impl AsRef<Path>, subject: &Subject) -> Result<Self, PruneError> {
        let path = path.as_ref();
        let wrong = |reason: String| PruneError::ExpertList {
            file: path.into(),
            reason,
        };
        let text = read_text(path)?;
        let list: List = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let mut layers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (key, experts) in list.0 {
            let layer = parse_id(&key)
                .ok_or_else(|| wrong(format!("key {key:?} is not a layer number")))?;
            if !subject
                .layers()
                .iter()
                .any(|known| known.info.layer == layer)
            {
                let known: Vec<u32> = subject.layers().iter().map(|l| l.info.layer).collect();
                return Err(wrong(format!(
                    "layer {layer} is no MoE layer of the model, which has {known:?}"
                )));
            }
            if layers.insert(layer, experts).is_some() {
                return Err(wrong(format!("layer {layer} comes twice")));
            }
        }
        if layers.values().all(Vec::is_empty) {
            return Err(wrong("it names no expert".into()));
        }
        let plan = subject.layers().iter().map(|known| {
            let mut experts = layers.remove(&known.info.layer).unwrap_or_default();
            experts.sort_unstable();
            LayerPlan {
                layer: known.info.layer,
                num_logical_experts: known.info.num_logical_experts,
                substituted: experts.into_iter().map(PlannedExpert::unranked).collect(),
            }
        });
        let plan = Self {
            settings: None,
            layers: plan.collect(),
        };
        match plan.check(subject) {
            Err(PruneError::Plan { reason }) => Err(wrong(reason)),
            other => other.map(|()| plan),
        }
    }

    /// The plan as a file's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        let file = PlanFile {
            version: VERSION,
            settings: self.settings,
            layers: self.layers.clone(),
        };
        // Only maps with keys that are no strings, and none is here, cannot be written.
        serde_json::to_value(file).map_or_else(|_| String::new(), |value| format!("{value:#}\n"))
    }

    /// How many experts go.
    #[must_use]
    pub fn count(&self) -> usize {
        self.layers
            .iter()
            .map(|layer| layer.substituted.len())
            .sum()
    }

    /// Checks that it can be applied to a model.
    ///
    /// # Errors
    ///
    /// Other layers or numbers of experts, an expert that is not there, that is a constant already or
    /// that comes twice, or a layer that would have none left.
    pub fn check(&self, subject: &Subject) -> Result<(), PruneError> {
        let wrong = |reason: String| Err(PruneError::Plan { reason });
        let layers = subject.layers();
        if self.layers.len() != layers.len() {
            return wrong(format!(
                "it is for {} MoE layers, the model has {}",
                self.layers.len(),
                layers.len()
            ));
        }
        for (planned, known) in self.layers.iter().zip(layers) {
            let (layer, experts) = (known.info.layer, known.info.num_logical_experts);
            if planned.layer != layer {
                return wrong(format!(
                    "it is for layer {} where the model has MoE layer {layer}",
                    planned.layer
                ));
            }
            if planned.num_logical_experts != experts {
                return wrong(format!(
                    "it is for {} experts in layer {layer}, the model has {experts}",
                    planned.num_logical_experts
                ));
            }
            let constants = known.table.substituted();
            if let Some(expert) = planned.ids().find(|id| constants.contains(id)) {
                return wrong(format!(
                    "expert {expert} of layer {layer} is a constant already"
                ));
            }
            let all: Vec<u32> = planned.ids().chain(constants.iter().copied()).collect();
            if let Err(error) = RouteTable::new(experts, &all) {
                return wrong(format!("layer {layer}: {error}"));
            }
        }
        if self.count() == 0 {
            return wrong("it replaces no expert".into());
        }
        Ok(())
    }
}

impl PlannedExpert {
    fn unranked(expert: u32) -> Self {
        Self {
            expert,
            value: None,
            rank: None,
            tokens: None,
        }
    }
}

/// The members of a list of experts, those included whose names come twice.
struct List(Vec<(String, Vec<u32>)>);

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = List;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from layers to lists of expert ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<List, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(List(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
