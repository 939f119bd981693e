//! Collecting MoE layers, and what a draft shares.
#![allow(clippy::unwrap_used)]

use eplb::{
    DecoderLayer, Error, FeedForward, Geometry, Loads, LogicalExpert, MismatchKind, ModelGeometry,
    MoeBlock, RetainedExpert, can_share_state, collect_moe_layers, dspark_draft_supports_eplb,
    expert_groups,
};
use serde_json::json;

struct Block {
    experts: &'static str,
    geometry: Geometry,
    retained: Option<Vec<LogicalExpert>>,
}

impl MoeBlock for Block {
    type Experts = &'static str;
    fn experts(&self) -> &&'static str {
        &self.experts
    }
    fn geometry(&self) -> Geometry {
        self.geometry
    }
    fn retained_experts(&self) -> Option<Vec<LogicalExpert>> {
        self.retained.clone()
    }
}

enum Layer {
    Placeholder,
    Dense,
    Moe(Block),
}

impl DecoderLayer for Layer {
    type Moe = Block;
    fn feed_forward(&self) -> FeedForward<'_, Block> {
        match self {
            Self::Placeholder => FeedForward::Placeholder,
            Self::Dense => FeedForward::Dense,
            Self::Moe(block) => FeedForward::Moe(block),
        }
    }
}

fn moe(experts: &'static str, geometry: Geometry) -> Layer {
    Layer::Moe(Block {
        experts,
        geometry,
        retained: None,
    })
}

fn geometry(layers: &[Layer], first: usize, groups: Option<usize>) -> ModelGeometry {
    collect_moe_layers(layers, first, groups).geometry
}

#[test]
fn blocks_experts_and_global_indices_in_order() {
    let v3 = Geometry::new(256, 1, 32, 32).unwrap();
    let layers = [
        Layer::Placeholder,
        Layer::Dense,
        moe("a", v3),
        Layer::Dense,
        moe("b", v3),
        Layer::Placeholder,
    ];
    let collected = collect_moe_layers(&layers, 0, Some(8));
    assert_eq!(collected.num_moe_layers(), 2);
    assert_eq!(collected.moe_layers, [&"a", &"b"]);
    assert_eq!(
        collected
            .moe_mlp_layers
            .iter()
            .map(|block| block.experts)
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(
        collected
            .geometry
            .layers
            .iter()
            .map(|layer| layer.layer)
            .collect::<Vec<_>>(),
        [2, 4]
    );
    assert_eq!(collected.geometry.num_expert_groups, 8);
    let counts = collected.geometry.uniform().unwrap();
    let expected = Geometry {
        routed: 256,
        shared: 1,
        logical: 256,
        retained: 256,
        physical: 288,
        local_physical: 9,
        redundant: 32,
    };
    assert_eq!(counts, expected);
}

#[test]
fn a_draft_stack_starts_where_the_caller_says() {
    let layers = [moe("draft", Geometry::new(128, 1, 0, 32).unwrap())];
    assert_eq!(geometry(&layers, 61, None).layers[0].layer, 61);
}

#[test]
fn any_iterator_of_layers_is_taken() {
    let boxed: Vec<Box<Layer>> = vec![Box::new(moe("a", Geometry::new(4, 0, 0, 2).unwrap()))];
    let found = collect_moe_layers(boxed.iter().map(AsRef::as_ref).rev(), 3, None);
    assert_eq!(found.geometry.layers[0].layer, 3);
}

#[test]
fn absent_and_zero_expert_groups_mean_one() {
    let layers = [moe("a", Geometry::new(4, 0, 0, 2).unwrap())];
    for (given, expected) in [(None, 1), (Some(0), 1), (Some(1), 1), (Some(4), 4)] {
        assert_eq!(geometry(&layers, 0, given).num_expert_groups, expected);
    }
    for (config, expected) in [
        (json!({}), 1),
        (json!({"n_group": null}), 1),
        (json!({"n_group": 0}), 1),
        (json!({"n_group": 8}), 8),
    ] {
        assert_eq!(expert_groups(&config), Ok(expected));
    }
    for config in [
        json!({"n_group": -1}),
        json!({"n_group": 1.5}),
        json!({"n_group": "8"}),
    ] {
        assert!(
            matches!(expert_groups(&config), Err(Error::Format { field, .. }) if field == "n_group")
        );
    }
}

#[test]
fn a_stage_without_moe_layers_has_no_groups_and_zero_counts() {
    for layers in [vec![], vec![Layer::Dense, Layer::Placeholder]] {
        let mut found = geometry(&layers, 5, Some(8));
        assert_eq!(
            found,
            ModelGeometry {
                num_expert_groups: 0,
                layers: vec![]
            }
        );
        assert_eq!(found.uniform(), Ok(Geometry::default()));
        assert_eq!(found.update_physical_experts(0, 0), Ok(()));
    }
}

#[test]
fn layers_that_disagree_are_kept_and_named() {
    let (many, few) = (
        Geometry::new(64, 0, 0, 8).unwrap(),
        Geometry::new(32, 0, 0, 8).unwrap(),
    );
    let found = geometry(
        &[moe("a", many), moe("b", few), moe("c", many), moe("d", few)],
        10,
        None,
    );
    assert_eq!(found.layers[1].geometry, few);
    assert_eq!(
        found.uniform(),
        Err(Error::NotUniform {
            first: 10,
            differing: vec![11, 13]
        })
    );
    assert!(
        found
            .uniform()
            .unwrap_err()
            .to_string()
            .starts_with("layers [11, 13] differ from layer 10")
    );
}

#[test]
fn scaling_changes_slots_of_all_layers_or_of_none() {
    let block = Geometry::new(64, 1, 0, 8).unwrap();
    let mut found = geometry(&[moe("a", block), moe("b", block)], 0, None);
    found.update_physical_experts(96, 6).unwrap();
    let up = found.uniform().unwrap();
    assert_eq!(
        (
            up.physical,
            up.local_physical,
            up.redundant,
            up.logical,
            up.shared
        ),
        (96, 6, 32, 64, 1)
    );
    found.update_physical_experts(64, 16).unwrap();
    assert_eq!(found.uniform().unwrap().redundant, 0);
    let before = found.clone();
    assert_eq!(
        found.update_physical_experts(60, 15),
        Err(Error::TooFewSlots {
            layer: 0,
            slots: 60,
            experts: 64
        })
    );
    assert!(matches!(
        found.update_physical_experts(64, 0),
        Err(Error::Setting { .. })
    ));
    assert!(matches!(
        found.update_physical_experts(64, 7),
        Err(Error::Setting { .. })
    ));
    assert_eq!(found, before);
}

#[test]
fn retained_not_logical_experts_are_placed() {
    // Experts 1 and 2 of 4 are substituted.
    let block = Block {
        experts: "a",
        geometry: Geometry::with_retained(4, 2, 0, 2, 2).unwrap(),
        retained: Some(vec![LogicalExpert(0), LogicalExpert(3)]),
    };
    let found = geometry(&[Layer::Moe(block)], 0, None);
    assert_eq!(found.layers[0].geometry.physical, 4);
    assert_eq!(
        found.layers[0].logical(RetainedExpert(1)),
        Some(LogicalExpert(3))
    );
    assert_eq!(found.layers[0].logical(RetainedExpert(2)), None);
    let loads = Loads::new(vec![vec![5.0, 9.0, 9.0, 7.0]]).unwrap();
    assert_eq!(
        found.retained_loads(&loads).unwrap().windows(),
        [vec![vec![5.0, 7.0]]]
    );
    for wrong in [vec![vec![5.0, 7.0]], vec![vec![1.0; 4]; 2]] {
        let error = found
            .retained_loads(&Loads::new(wrong).unwrap())
            .unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{error}");
    }
}

#[test]
fn impossible_geometries_are_errors() {
    assert!(matches!(
        Geometry::new(8, 0, 0, 0),
        Err(Error::Empty { .. })
    ));
    assert!(matches!(
        Geometry::with_retained(8, 9, 0, 0, 1),
        Err(Error::Setting { .. })
    ));
    let error = Geometry::new(256, 0, 30, 32).unwrap_err().to_string();
    assert!(error.ends_with("use 32 redundant experts"), "{error}");
}

#[test]
fn only_deepseek_v4_drafts_share_by_name() {
    assert!(dspark_draft_supports_eplb(
        &json!({"model_type": "deepseek_v4"})
    ));
    for config in [
        json!({"model_type": "deepseek_v41"}),
        json!({"model_type": "deepseek_v3"}),
        json!({"model_type": "deepseek_v4 "}),
        json!({"model_type": null}),
        json!({"model_type": ["deepseek_v4"]}),
        json!({}),
        json!([]),
        json!(null),
    ] {
        assert!(!dspark_draft_supports_eplb(&config), "{config}");
    }
}

#[test]
fn a_draft_with_its_targets_layout_shares() {
    let block = Geometry::new(256, 1, 32, 32).unwrap();
    let target = geometry(&[moe("a", block), moe("b", block)], 0, Some(8));
    let draft = geometry(&[moe("c", block)], 2, Some(8));
    assert_eq!(can_share_state(&target, &draft), Ok(()));
}

#[test]
fn a_smaller_draft_does_not_share_and_every_difference_is_named() {
    // A V4.1-like pair: 384 experts beside 128.
    let target = geometry(
        &[moe("a", Geometry::new(384, 1, 32, 32).unwrap())],
        3,
        Some(8),
    );
    let block = Geometry::new(128, 1, 0, 32).unwrap();
    let draft = geometry(&[moe("b", block), moe("c", block)], 61, Some(4));
    let found = can_share_state(&target, &draft).unwrap_err();
    let kinds: Vec<_> = found
        .iter()
        .map(|mismatch| (mismatch.kind, mismatch.layers))
        .collect();
    let of_layer = |layer| {
        use MismatchKind::{Logical, Physical, Redundant, Retained, Routed};
        [Routed, Logical, Retained, Physical, Redundant].map(move |kind| (kind, Some((layer, 3))))
    };
    let expected: Vec<_> = std::iter::once((MismatchKind::Groups, None))
        .chain(of_layer(61))
        .chain(of_layer(62))
        .collect();
    assert_eq!(kinds, expected);
    assert_eq!(
        found[1].to_string(),
        "layer 61 of the draft has 128 routed experts, layer 3 of the target has 384; \
         the draft runs with balancing off while the target keeps it"
    );
    assert!(
        found
            .iter()
            .all(|mismatch| mismatch.to_string().ends_with("while the target keeps it"))
    );
}

#[test]
fn stages_without_moe_layers_share_only_when_nothing_needs_state() {
    let block = Geometry::new(8, 0, 0, 2).unwrap();
    let (none, some) = (
        geometry(&[], 0, None),
        geometry(&[moe("a", block)], 0, None),
    );
    assert_eq!(can_share_state(&some, &none), Ok(()));
    assert_eq!(can_share_state(&none, &none), Ok(()));
    let found = can_share_state(&none, &some).unwrap_err();
    assert_eq!((found.len(), found[0].kind), (1, MismatchKind::Layers));
}

#[test]
fn other_retained_experts_are_a_difference() {
    let block = |ids: [u32; 2]| {
        Layer::Moe(Block {
            experts: "a",
            geometry: Geometry::with_retained(4, 2, 0, 0, 2).unwrap(),
            retained: Some(ids.map(LogicalExpert).to_vec()),
        })
    };
    let (target, draft) = (
        geometry(&[block([0, 1])], 0, None),
        geometry(&[block([0, 2])], 1, None),
    );
    let found = can_share_state(&target, &draft).unwrap_err();
    assert_eq!(found[0].kind, MismatchKind::Retained);
    assert!(
        found[0]
            .to_string()
            .starts_with("layer 1 of the draft has other retained experts"),
        "{}",
        found[0]
    );
}
