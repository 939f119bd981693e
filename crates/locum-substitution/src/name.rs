//! Tensor names, read by structure: which stack, which layer, which module, which expert.
//!
//! A name is not searched for "the only integer in it": `mtp.layers.0.mlp.experts.5.approx_value`
//! is not of decoder layer 0. The namespace decides first, then the layer, then the module.

use std::borrow::Cow;

/// The prefixes under which checkpoints keep the text stack's decoder layers.
///
/// Multimodal checkpoints nest the text model; DeepSeek-V4 writes no prefix at all.
const TEXT_STACKS: [&str; 4] = [
    "model.layers.",
    "model.language_model.layers.",
    "language_model.model.layers.",
    "layers.",
];

/// Prefixes of the text stack outside its layers, and what they are here.
const ALIASES: [(&str, &str); 3] = [
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
];

/// The last segment of a constant's name in the `approximate_experts` format.
pub const APPROX_VALUE: &str = "approx_value";

/// Parses an id as checkpoints write it: ASCII digits, no leading zero, at most `u32::MAX`.
#[must_use]
pub fn parse_id(text: &str) -> Option<u32> {
    let canonical = text == "0" || (!text.is_empty() && !text.starts_with('0'));
    // `u32::from_str` takes a leading `+`, so digits are asked for explicitly.
    if !canonical || text.len() > 10 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// The one spelling of a text-stack name: `model.…` whatever the checkpoint's nesting.
///
/// Names that are not of the text stack come back as they are.
#[must_use]
pub fn canonical(name: &str) -> Cow<'_, str> {
    for (alias, prefix) in ALIASES {
        if let Some(rest) = name.strip_prefix(alias) {
            // Nested twice is nobody's spelling, and must not become one by losing one nesting.
            if rest.starts_with("language_model.") {
                return Cow::Borrowed(name);
            }
            return Cow::Owned(format!("{prefix}{rest}"));
        }
    }
    match LayerName::parse(name) {
        // Only the prefix-less spelling is left to change.
        Some(_) if name.starts_with("layers.") => Cow::Owned(format!("model.{name}")),
        _ => Cow::Borrowed(name),
    }
}

/// A tensor or module of a decoder layer of the text stack: `model.layers.3.…`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerName<'a> {
    /// The global decoder layer.
    pub layer: u32,
    /// What follows the layer: `self_attn.q_proj.weight`.
    pub rest: &'a str,
}

impl<'a> LayerName<'a> {
    /// Reads a name; `None` where it is not of a decoder layer of the text stack.
    #[must_use]
    pub fn parse(name: &'a str) -> Option<Self> {
        let after = TEXT_STACKS.iter().find_map(|p| name.strip_prefix(p))?;
        let (layer, rest) = after.split_once('.')?;
        if rest.is_empty() {
            return None;
        }
        Some(Self {
            layer: parse_id(layer)?,
            rest,
        })
    }
}

/// A tensor of the routed experts of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsName<'a> {
    /// The global decoder layer.
    pub layer: u32,
    /// The experts' module within the layer: `mlp.experts`, `block_sparse_moe.experts`.
    pub module: &'a str,
    /// The logical expert; `None` for a packed tensor that holds several.
    pub expert: Option<u32>,
    /// What follows: `gate_proj.weight`, `approx_value`, `gate_up_proj`.
    pub part: &'a str,
}

impl<'a> ExpertsName<'a> {
    /// Reads a name; `None` where it is not of the routed experts of a text-stack layer, or where
    /// what should be an id is not one (`experts.007`).
    #[must_use]
    pub fn parse(name: &'a str) -> Option<Self> {
        let LayerName { layer, rest } = LayerName::parse(name)?;
        let start = if rest.starts_with("experts.") {
            0
        } else {
            rest.find(".experts.")? + 1
        };
        let module = &rest[..start + "experts".len()];
        let (expert, part) = expert_and_part(&rest[start + "experts.".len()..])?;
        Some(Self {
            layer,
            module,
            expert,
            part,
        })
    }

    /// Whether this names a constant in the `approximate_experts` format.
    #[must_use]
    pub fn is_approx_value(&self) -> bool {
        self.expert.is_some() && self.part == APPROX_VALUE
    }
}

/// Reads what follows the experts' prefix: a logical id, where there is one, and the part.
///
/// `None` where nothing follows, or where what should be an id is not one (`007.up_proj.weight`).
#[must_use]
pub fn expert_and_part(name: &str) -> Option<(Option<u32>, &str)> {
    let (expert, part) = match name.split_once('.') {
        Some((id, part)) if id.bytes().all(|b| b.is_ascii_digit()) => (Some(parse_id(id)?), part),
        // Unicode has digits of its own, and none of them is an id.
        Some((id, _)) if id.chars().all(char::is_numeric) => return None,
        _ => (None, name),
    };
    (!part.is_empty()).then_some((expert, part))
}

/// Whether a name ends in `.approx_value`, wherever it belongs.
#[must_use]
pub fn ends_in_approx_value(name: &str) -> bool {
    name.strip_suffix(APPROX_VALUE)
        .is_some_and(|stem| stem.ends_with('.'))
}
