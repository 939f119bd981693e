//! Placements as JSON: this crate's plans, and what vLLM and SGLang read at start.
//!
//! | format | document | layers | used by |
//! |---|---|---|---|
//! | plan | object with `physical_to_logical_map` and everything else a [`Plan`] has | MoE layers | this crate |
//! | SGLang | object with `physical_to_logical_map` *only*: further keys are passed on as arguments and refused | all hidden layers, dense ones included | `--init-expert-location FILE.json` |
//! | vLLM | list of slots, the same for all layers, or a list of such lists | MoE layers | `eplb_config` (`initial_expert_map_path`, vLLM pull request 49572) |
//! | vLLM Ascend | object with `moe_layer_count` and `layer_list` | MoE layers | `eplb_config.expert_map_path` |
//!
//! In all of them a slot names the expert that it holds, and a rank's slots are contiguous.

use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::index::RetainedExpert;
use crate::placement::{EMPTY, Placement};
use crate::plan::Plan;
use crate::wording::{are, counted};

/// A JSON format of placements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// This crate's plan.
    Plan,
    /// SGLang's initial expert location.
    Sglang,
    /// vLLM's initial expert map.
    Vllm,
    /// vLLM Ascend's expert map.
    VllmAscend,
}

/// Which layers of a model the layers of a placement are: SGLang's format lists dense layers too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HiddenLayers {
    /// Number of all hidden layers (`num_hidden_layers`).
    pub count: usize,
    /// Index of each MoE layer among them.
    pub moe: Vec<usize>,
}

impl HiddenLayers {
    fn check(&self, layers: usize) -> Result<(), Error> {
        const MOST: usize = 1 << 16;
        if self.count > MOST {
            return Err(Error::Limit {
                what: "hidden layers",
                value: self.count,
                limit: MOST,
            });
        }
        if self.moe.len() != layers {
            return Err(Error::Shape {
                what: "indices of MoE layers".into(),
                expected: format!("{layers}, one per layer of the placement"),
                found: self.moe.len().to_string(),
            });
        }
        let ascending = self.moe.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || self.moe.last().is_some_and(|last| *last >= self.count) {
            return Err(Error::Setting {
                what: "indices of MoE layers".into(),
                found: format!("{:?} of {} hidden layers", self.moe, self.count),
                remedy: "give them in ascending order and below the number of hidden layers".into(),
            });
        }
        Ok(())
    }
}

impl Plan {
    /// The plan as a JSON object.
    ///
    /// `physical_to_logical_map` is `[layers][slots]`, -1 for a slot of a rank that is not live;
    /// `logical_to_physical_map` is `[layers][experts][replicas]`; `logical_count` is
    /// `[layers][experts]`, the number of replicas.
    pub fn to_json(&self) -> Value {
        let mut kinds = Map::new();
        for layer in &self.layers {
            let kind = json!(layer.lower_bound.kind);
            let name = kind.as_str().unwrap_or_default().to_owned();
            let count = kinds.get(&name).and_then(Value::as_u64).unwrap_or(0);
            kinds.insert(name, json!(count + 1));
        }
        json!({
            "planner": self.planner,
            "ranks": self.peak_extra_bytes.len(),
            "physical_to_logical_map": self.placement.physical_to_logical_map(),
            "logical_to_physical_map": self.placement.logical_to_physical_map(),
            "logical_count": self.placement.logical_count(),
            "balancedness": self.balancedness,
            "balancedness_before": self.balancedness_before,
            "worst_layer": self.worst_layer,
            "lower_bound": self.lower_bound,
            "lower_bound_kinds": kinds,
            "gap": self.gap,
            "moves": self.moves,
            "bytes": self.bytes,
            "peak_extra_bytes": self.peak_extra_bytes,
            "duplicates": self.duplicates,
            "reason": self.reason,
            "layers": self.layers,
        })
    }
}

impl Placement {
    /// The placement for SGLang. Rows of dense layers, which the engine ignores, hold the experts
    /// in order.
    ///
    /// # Errors
    ///
    /// When layers differ in experts or slots, a slot is empty, or `hidden` does not fit or has more
    /// than 65 536 layers.
    pub fn to_sglang(&self, hidden: &HiddenLayers) -> Result<Value, Error> {
        hidden.check(self.layers().len())?;
        self.check_engine("SGLang")?;
        let Some(first) = self.layers().first() else {
            return Ok(json!({ "physical_to_logical_map": [] }));
        };
        let trivial: Vec<i64> = (0..first.slots())
            .map(|slot| (slot % first.experts()) as i64)
            .collect();
        let mut rows = vec![trivial; hidden.count];
        for (index, row) in hidden.moe.iter().zip(self.physical_to_logical_map()) {
            rows[*index] = row;
        }
        Ok(json!({ "physical_to_logical_map": rows }))
    }

    /// The placement for vLLM.
    ///
    /// # Errors
    ///
    /// When layers differ in experts or slots, or a slot is empty.
    pub fn to_vllm(&self) -> Result<Value, Error> {
        self.check_engine("vLLM")?;
        Ok(json!(self.physical_to_logical_map()))
    }

    /// The placement for vLLM Ascend.
    ///
    /// # Errors
    ///
    /// When layers differ in experts or slots, or a slot is empty.
    pub fn to_vllm_ascend(&self) -> Result<Value, Error> {
        self.check_engine("vLLM Ascend")?;
        let layers: Vec<Value> = self
            .layers()
            .iter()
            .enumerate()
            .map(|(layer, placed)| {
                let devices: Vec<Value> = (0..placed.ranks())
                    .map(|rank| {
                        let experts: Vec<u32> =
                            placed.rank(rank).flatten().map(|expert| expert.0).collect();
                        json!({ "device_id": rank, "device_expert": experts })
                    })
                    .collect();
                json!({ "layer_id": layer, "device_count": placed.ranks(), "device_list": devices })
            })
            .collect();
        Ok(json!({ "moe_layer_count": layers.len(), "layer_list": layers }))
    }

    fn check_engine(&self, engine: &str) -> Result<(), Error> {
        let Some(first) = self.layers().first() else {
            return Ok(());
        };
        for (layer, placed) in self.layers().iter().enumerate() {
            if (placed.experts(), placed.slots()) != (first.experts(), first.slots()) {
                return Err(Error::Format {
                    field: format!("layer {layer}"),
                    problem: format!(
                        "{engine} needs the same experts and slots in every layer: expected {} in {}, found {} in {}",
                        first.experts(),
                        first.slots(),
                        placed.experts(),
                        placed.slots()
                    ),
                });
            }
            if let Some(slot) = (0..placed.slots()).find(|slot| placed.raw()[*slot] == EMPTY) {
                return Err(Error::Format {
                    field: format!("layer {layer}, slot {slot}"),
                    problem: format!(
                        "{engine} cannot start with empty slots; plan for the live ranks alone"
                    ),
                });
            }
            if !placed.slots().is_multiple_of(placed.ranks()) {
                return Err(Error::Format {
                    field: format!("layer {layer}"),
                    problem: format!(
                        "{engine} needs as many slots on every rank: {} {} not a multiple of {}",
                        counted(placed.slots(), "slot"),
                        are(placed.slots()),
                        counted(placed.ranks(), "rank")
                    ),
                });
            }
        }
        Ok(())
    }

    /// Reads a placement in any of the formats, and says which it was.
    ///
    /// `experts` is the number of experts of each MoE layer. A `physical_to_logical_map` with a row
    /// per hidden layer needs `hidden` to find the MoE layers.
    ///
    /// # Errors
    ///
    /// When the document has none of the formats, does not fit the layers or ranks, or names an
    /// expert that does not exist; when a plan's replica counts are not those of its slots. The maps
    /// of a plan are compared with each other by [`Placement::check_maps`] and
    /// [`Placement::validate`].
    pub fn from_json(
        document: &Value,
        experts: &[usize],
        ranks: usize,
        hidden: Option<&HiddenLayers>,
    ) -> Result<(Format, Self), Error> {
        if document.get("moe_layer_count").is_some() || document.get("layer_list").is_some() {
            let map = ascend_rows(document, ranks)?;
            return Ok((
                Format::VllmAscend,
                Self::from_physical_to_logical(&map, experts, ranks)?,
            ));
        }
        if let Some(map) = document.get("physical_to_logical_map") {
            // The same slots on other ranks would be read without complaint, and every move counted
            // wrongly.
            let planned = document.get("ranks");
            if let Some(planned) = planned.filter(|planned| planned.as_u64() != Some(ranks as u64))
            {
                return Err(Error::Shape {
                    what: "ranks of the plan".into(),
                    expected: ranks.to_string(),
                    found: shown(planned),
                });
            }
            let mut rows = rows(map, "physical_to_logical_map")?;
            if let Some(hidden) =
                hidden.filter(|hidden| rows.len() == hidden.count && rows.len() != experts.len())
            {
                hidden.check(experts.len())?;
                rows = hidden
                    .moe
                    .iter()
                    .map(|index| rows[*index].clone())
                    .collect();
            }
            let (format, placement) = match document.get("logical_to_physical_map") {
                None => (
                    Format::Sglang,
                    Self::from_physical_to_logical(&rows, experts, ranks)?,
                ),
                Some(inverse) => (Format::Plan, from_both(&rows, inverse, experts, ranks)?),
            };
            check_counts(document, &placement)?;
            return Ok((format, placement));
        }
        if let Value::Array(entries) = document {
            let flat = entries.first().is_some_and(Value::is_number);
            let map = if flat {
                vec![row(document, "slots")?; experts.len()]
            } else {
                rows(document, "layers")?
            };
            return Ok((
                Format::Vllm,
                Self::from_physical_to_logical(&map, experts, ranks)?,
            ));
        }
        Err(Error::Format {
            field: "placement".into(),
            problem: "expected an object with physical_to_logical_map or moe_layer_count, or a list of slots".into(),
        })
    }
}

type Row = Vec<Option<RetainedExpert>>;

fn from_both(
    rows: &[Row],
    inverse: &Value,
    experts: &[usize],
    ranks: usize,
) -> Result<Placement, Error> {
    let wrong = |problem: &str| Error::Format {
        field: "logical_to_physical_map".into(),
        problem: problem.into(),
    };
    let replicas: Vec<Vec<Vec<crate::index::Slot>>> = serde_json::from_value(inverse.clone())
        .map_err(|error| {
            wrong(&format!(
                "expected [layers][experts][replicas] of slots: {error}"
            ))
        })?;
    let counts: Vec<usize> = replicas.iter().map(Vec::len).collect();
    if counts != experts || rows.len() != experts.len() {
        return Err(Error::Shape {
            what: "maps of the plan".into(),
            expected: shape(experts),
            found: format!("{} and {}", counted(rows.len(), "layer"), shape(&counts)),
        });
    }
    let layers = rows.iter().zip(&replicas).enumerate();
    let layers = layers.map(|(layer, (row, replicas))| {
        crate::LayerPlacement::from_maps(layer, row, replicas, ranks)
    });
    Ok(Placement::new(layers.collect::<Result<_, _>>()?))
}

/// Layers and their experts.
fn shape(experts: &[usize]) -> String {
    let each = match experts.first() {
        Some(first) if experts.iter().all(|count| count == first) => counted(*first, "expert"),
        Some(_) => format!("{experts:?} experts"),
        None => "no experts".into(),
    };
    format!("{} with {each}", counted(experts.len(), "layer"))
}

fn rows(map: &Value, field: &str) -> Result<Vec<Row>, Error> {
    let Value::Array(layers) = map else {
        return Err(Error::Format {
            field: field.into(),
            problem: "expected a list of layers".into(),
        });
    };
    layers
        .iter()
        .enumerate()
        .map(|(layer, slots)| row(slots, &format!("{field}[{layer}]")))
        .collect()
}

fn row(slots: &Value, field: &str) -> Result<Row, Error> {
    let Value::Array(slots) = slots else {
        return Err(Error::Format {
            field: field.into(),
            problem: "expected a list of experts".into(),
        });
    };
    let expert = |(slot, value): (usize, &Value)| match value.as_i64() {
        Some(-1) => Ok(None),
        Some(expert) => match u32::try_from(expert) {
            Ok(expert) if expert < u32::MAX => Ok(Some(RetainedExpert(expert))),
            _ => Err(Error::Format {
                field: format!("{field}[{slot}]"),
                problem: format!("expected an expert id, or -1 for an empty slot, found {expert}"),
            }),
        },
        None => Err(Error::Format {
            field: format!("{field}[{slot}]"),
            problem: format!(
                "expected an expert id, or -1 for an empty slot, found {}",
                shown(value)
            ),
        }),
    };
    slots.iter().enumerate().map(expert).collect()
}

/// A value in a message: itself, if it is short by nature.
fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// The counts follow from the slots. Counts that do not are those of another plan, or somebody has
/// edited one of the two.
fn check_counts(document: &Value, placement: &Placement) -> Result<(), Error> {
    let Some(counts) = document.get("logical_count") else {
        return Ok(());
    };
    let wrong = |field: String, problem: String| Err(Error::Format { field, problem });
    let layers = placement.layers();
    let Some(rows) = counts.as_array().filter(|rows| rows.len() == layers.len()) else {
        return wrong(
            "logical_count".into(),
            format!("expected a list of {}", counted(layers.len(), "layer")),
        );
    };
    for (index, (layer, row)) in layers.iter().zip(rows).enumerate() {
        let field = format!("logical_count[{index}]");
        let mut held = vec![0_u64; layer.experts()];
        for slot in layer.raw().iter().filter(|slot| **slot != EMPTY) {
            held[*slot as usize] += 1;
        }
        let Some(row) = row.as_array().filter(|row| row.len() == held.len()) else {
            return wrong(
                field,
                format!("expected a list of {}", counted(held.len(), "number")),
            );
        };
        let differs = (0..held.len()).find(|expert| row[*expert].as_u64() != Some(held[*expert]));
        if let Some(expert) = differs {
            return wrong(
                format!("{field}[{expert}]"),
                format!(
                    "expected {}, as physical_to_logical_map has it, found {}",
                    held[expert],
                    shown(&row[expert])
                ),
            );
        }
    }
    Ok(())
}

/// The rows of vLLM Ascend's nested lists, whose entries may come in any order.
fn ascend_rows(document: &Value, ranks: usize) -> Result<Vec<Row>, Error> {
    let wrong = |field: String, problem: String| Error::Format { field, problem };
    let entries = |value: &Value, name: &str, field: &str| match value.get(name) {
        Some(Value::Array(entries)) => Ok(entries.clone()),
        _ => Err(wrong(format!("{field}{name}"), "expected a list".into())),
    };
    let number = |value: &Value, name: &str, field: &str| {
        let number = value
            .get(name)
            .and_then(Value::as_u64)
            .and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| wrong(format!("{field}.{name}"), "expected a number".into()))
    };
    let layers = entries(document, "layer_list", "")?;
    if document.get("moe_layer_count").and_then(Value::as_u64) != Some(layers.len() as u64) {
        return Err(wrong(
            "moe_layer_count".into(),
            format!("expected {}, the length of layer_list", layers.len()),
        ));
    }
    let mut out: Vec<Option<Row>> = vec![None; layers.len()];
    for (index, layer) in layers.iter().enumerate() {
        let field = format!("layer_list[{index}]");
        let id = number(layer, "layer_id", &field)?;
        let devices = entries(layer, "device_list", &format!("{field}."))?;
        if devices.len() != ranks {
            return Err(Error::Shape {
                what: format!("{field}.device_list"),
                expected: counted(ranks, "rank"),
                found: devices.len().to_string(),
            });
        }
        let mut by_device: Vec<Option<Row>> = vec![None; ranks];
        for (place, device) in devices.iter().enumerate() {
            let field = format!("{field}.device_list[{place}]");
            let experts = row(
                device.get("device_expert").unwrap_or(&Value::Null),
                &format!("{field}.device_expert"),
            )?;
            match by_device.get_mut(number(device, "device_id", &field)?) {
                Some(slot @ None) => *slot = Some(experts),
                _ => {
                    return Err(wrong(
                        format!("{field}.device_id"),
                        format!("expected each of 0 to {} once", ranks - 1),
                    ));
                }
            }
        }
        let rows: Vec<Row> = by_device.into_iter().flatten().collect();
        if rows.iter().any(|row| row.len() != rows[0].len()) {
            return Err(wrong(
                format!("{field}.device_list"),
                "expected as many experts on every device".into(),
            ));
        }
        match out.get_mut(id) {
            Some(slot @ None) => *slot = Some(rows.concat()),
            _ => {
                let last = layers.len() - 1;
                return Err(wrong(
                    format!("{field}.layer_id"),
                    format!("expected each of 0 to {last} once"),
                ));
            }
        }
    }
    Ok(out.into_iter().flatten().collect())
}
