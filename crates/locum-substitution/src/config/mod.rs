//! What a `config.json` declares: which experts of which layers are constants.

mod approximate;
mod counts;
mod explicit;

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

pub use counts::ExpertCounts;

use crate::SubstitutionError;

/// The way in which a `config.json` declares substituted experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFormat {
    /// `approximate_experts`: layer to logical ids; constants are named `….approx_value`.
    ApproximateExperts,
    /// `compression_config.transform_config.expert_substitution`: every constant's tensor is named.
    ExpertSubstitution,
}

impl ConfigFormat {
    /// The key, or path of keys, that declares it.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::ApproximateExperts => approximate::KEY,
            Self::ExpertSubstitution => explicit::PATH,
        }
    }
}

impl fmt::Display for ConfigFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key())
    }
}

/// The substituted experts of one layer, as declared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerSubstitution {
    /// Logical ids, ascending.
    pub experts: Vec<u32>,
    /// What the declaration knows beyond the ids; form B only.
    pub target: Option<Target>,
}

/// A target of the explicit format: the module it names and what it says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The module path as written: `model.layers.1.mlp.experts`.
    pub path: String,
    /// The number of logical experts that the module must have.
    pub num_logical_experts: u32,
}

/// The expert that a named tensor is the constant of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerExpert {
    /// The global decoder layer.
    pub layer: u32,
    /// The logical expert.
    pub expert: u32,
}

/// Everything that a `config.json` declares about substituted experts.
///
/// ```
/// use locum_substitution::SubstitutionSpec;
///
/// let config = serde_json::json!({ "approximate_experts": { "1": [3, 1], "2": [], "5": [0] } });
/// let spec = SubstitutionSpec::from_config(&config)?;
/// assert_eq!(spec.experts(1), [1, 3]);
/// assert_eq!(spec.layers().map(|(layer, _)| layer).collect::<Vec<_>>(), [1, 5]);
/// # Ok::<(), locum_substitution::SubstitutionError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubstitutionSpec {
    format: Option<ConfigFormat>,
    layers: BTreeMap<u32, LayerSubstitution>,
    value_names: BTreeMap<String, Vec<LayerExpert>>,
}

impl SubstitutionSpec {
    /// No substitution.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads the declaration from a `config.json`: from its `text_config` first, then from the top.
    ///
    /// No declaration, or an empty one, is no substitution.
    ///
    /// # Errors
    ///
    /// A declaration that is in neither of the two formats, or both at once; the
    /// message names the field.
    pub fn from_config(config: &Value) -> Result<Self, SubstitutionError> {
        let Some(top) = config.as_object() else {
            return Err(SubstitutionError::config("config", "must be a JSON object"));
        };
        let text = top.get("text_config").and_then(Value::as_object);
        let places = || text.into_iter().chain([top]);
        let approximate = places()
            .find_map(|place| declared(place.get(approximate::KEY)))
            .map(approximate::parse)
            .transpose()?
            .filter(|layers| !layers.is_empty());
        let explicit = places()
            .find_map(|place| explicit::find(place).transpose())
            .transpose()?
            .map(explicit::parse)
            .transpose()?
            .filter(|(layers, _)| !layers.is_empty());
        match (approximate, explicit) {
            (Some(_), Some(_)) => Err(SubstitutionError::BothFormats),
            (Some(layers), None) => Ok(Self {
                format: Some(ConfigFormat::ApproximateExperts),
                layers,
                value_names: BTreeMap::new(),
            }),
            (None, Some((layers, value_names))) => Ok(Self {
                format: Some(ConfigFormat::ExpertSubstitution),
                layers,
                value_names,
            }),
            (None, None) => Ok(Self::none()),
        }
    }

    /// The format that declared it; `None` where nothing is substituted.
    #[must_use]
    pub fn format(&self) -> Option<ConfigFormat> {
        self.format
    }

    /// Whether no expert is substituted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layers with substituted experts, ascending.
    pub fn layers(&self) -> impl Iterator<Item = (u32, &LayerSubstitution)> {
        self.layers
            .iter()
            .map(|(&layer, declared)| (layer, declared))
    }

    /// The substituted experts of a layer, ascending; none where it declares nothing.
    #[must_use]
    pub fn experts(&self, layer: u32) -> &[u32] {
        self.layers
            .get(&layer)
            .map_or(&[], |declared| &declared.experts)
    }

    /// Tensor names of the explicit format, each with the experts that it is the constant of.
    pub fn value_names(&self) -> impl Iterator<Item = (&str, &[LayerExpert])> {
        self.value_names
            .iter()
            .map(|(name, experts)| (name.as_str(), experts.as_slice()))
    }

    /// The experts that a tensor name of the explicit format stands for.
    #[must_use]
    pub fn experts_of_value(&self, tensor: &str) -> Option<&[LayerExpert]> {
        self.value_names.get(tensor).map(Vec::as_slice)
    }

    /// The tensor that holds an expert's constant: the declared one, or `None` where the name
    /// follows from the module (`….approx_value`).
    #[must_use]
    pub fn value_of(&self, expert: LayerExpert) -> Option<&str> {
        self.value_names
            .iter()
            .find(|(_, experts)| experts.contains(&expert))
            .map(|(name, _)| name.as_str())
    }
}

/// A value that says something: `null` and `{}` are how configurations write "absent".
fn declared(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        _ => true,
    })
}

/// A map, or an error that says what was found instead.
fn object<'a>(value: &'a Value, field: &str) -> Result<&'a Map<String, Value>, SubstitutionError> {
    value.as_object().ok_or_else(|| {
        SubstitutionError::config(field, format!("must be a map, found {}", kind(value)))
    })
}

/// What a JSON value is, for messages.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => quoted(s),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "a map".into(),
    }
}

/// A string in quotes, for messages: a file may hold one of any length.
fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}… ({} bytes)", &text[..end], text.len()),
        None => format!("{text:?}"),
    }
}
