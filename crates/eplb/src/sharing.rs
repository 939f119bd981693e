//! Whether a draft model can share the balancing state of its target.

use crate::collect::{LayerGeometry, ModelGeometry};

/// vLLM's rule for DSpark drafts: only DeepSeek-V4 drafts reuse their target's expert layout, so
/// the config's `model_type` must be exactly `deepseek_v4`. A V4.1 draft has fewer routed experts
/// and cannot share.
///
/// [`can_share_state`] is the rule by capability, which looks at what the layers have instead of
/// what the model is called.
///
/// ```
/// let config = serde_json::json!({"model_type": "deepseek_v4"});
/// assert!(eplb::dspark_draft_supports_eplb(&config));
/// ```
pub fn dspark_draft_supports_eplb(config: &serde_json::Value) -> bool {
    config.get("model_type").and_then(serde_json::Value::as_str) == Some("deepseek_v4")
}

/// What target and draft differ in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MismatchKind {
    /// Expert groups of the model.
    Groups,
    /// Whether there are MoE layers at all.
    Layers,
    /// Routed experts of a layer.
    Routed,
    /// Logical experts of a layer.
    Logical,
    /// Retained experts of a layer, or which ones they are.
    Retained,
    /// Physical slots of a layer.
    Physical,
    /// Redundant slots of a layer.
    Redundant,
}

/// One reason why a draft cannot share its target's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mismatch {
    /// What differs.
    pub kind: MismatchKind,
    /// The draft's layer (global index) and the target's layer that it differs from; `None` for the
    /// model as a whole.
    pub layers: Option<(usize, usize)>,
    /// The target's number.
    pub target: usize,
    /// The draft's number.
    pub draft: usize,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            MismatchKind::Groups => "expert groups",
            MismatchKind::Layers => "MoE layers",
            MismatchKind::Routed => "routed experts",
            MismatchKind::Logical => "logical experts",
            MismatchKind::Retained => "retained experts",
            MismatchKind::Physical => "physical experts",
            MismatchKind::Redundant => "redundant experts",
        };
        let (target, draft) = (self.target, self.draft);
        match self.layers {
            Some((layer, of_target)) if target == draft => {
                write!(
                    formatter,
                    "layer {layer} of the draft has other {what} than layer {of_target} of the target"
                )?;
            }
            Some((layer, of_target)) => write!(
                formatter,
                "layer {layer} of the draft has {draft} {what}, layer {of_target} of the target has {target}"
            )?,
            None => write!(
                formatter,
                "the draft has {draft} {what}, the target has {target}"
            )?,
        }
        formatter.write_str("; the draft runs with balancing off while the target keeps it")
    }
}

impl std::error::Error for Mismatch {}

/// Whether a draft can share its target's balancing state: one placement must fit the layers of
/// both.
///
/// Each layer of the draft is compared with the layers of the target, and each kind of difference
/// is named once per draft layer, with the first target layer that shows it. A draft without MoE
/// layers needs no state and can always share.
///
/// # Errors
///
/// All differences. Each one's text says that the draft then runs with balancing off while the
/// target keeps it. It can still be balanced on its own: see
/// [`BalancingState`](crate::BalancingState).
pub fn can_share_state(target: &ModelGeometry, draft: &ModelGeometry) -> Result<(), Vec<Mismatch>> {
    if draft.layers.is_empty() {
        return Ok(());
    }
    let mut found = Vec::new();
    if target.layers.is_empty() {
        let (target, draft) = (0, draft.layers.len());
        return Err(vec![Mismatch {
            kind: MismatchKind::Layers,
            layers: None,
            target,
            draft,
        }]);
    }
    if target.num_expert_groups != draft.num_expert_groups {
        let (target, draft) = (target.num_expert_groups, draft.num_expert_groups);
        found.push(Mismatch {
            kind: MismatchKind::Groups,
            layers: None,
            target,
            draft,
        });
    }
    for layer in &draft.layers {
        let mut kinds = Vec::new();
        for of_target in &target.layers {
            for (kind, target, draft) in differences(of_target, layer) {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                    found.push(Mismatch {
                        kind,
                        layers: Some((layer.layer, of_target.layer)),
                        target,
                        draft,
                    });
                }
            }
        }
    }
    if found.is_empty() { Ok(()) } else { Err(found) }
}

fn differences(target: &LayerGeometry, draft: &LayerGeometry) -> Vec<(MismatchKind, usize, usize)> {
    let (of_target, of_draft) = (&target.geometry, &draft.geometry);
    let mut found: Vec<_> = [
        (MismatchKind::Routed, of_target.routed, of_draft.routed),
        (MismatchKind::Logical, of_target.logical, of_draft.logical),
        (
            MismatchKind::Retained,
            of_target.retained,
            of_draft.retained,
        ),
        (
            MismatchKind::Physical,
            of_target.physical,
            of_draft.physical,
        ),
        (
            MismatchKind::Redundant,
            of_target.redundant,
            of_draft.redundant,
        ),
    ]
    .into_iter()
    .filter(|(_, target, draft)| target != draft)
    .collect();
    if found.is_empty() && target.retained != draft.retained {
        found.push((
            MismatchKind::Retained,
            of_target.retained,
            of_draft.retained,
        ));
    }
    found
}
