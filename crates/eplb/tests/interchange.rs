//! JSON of plans and of serving engines.
#![allow(clippy::unwrap_used)]

use eplb::synthetic::{Generator, Shape};
use eplb::{
    Cluster, DeepSeek, Duplicates, Error, Format, HiddenLayers, Loads, Placement, Plan, Planner,
    Problem, Refined, Slots,
};
use serde_json::{Value, json};

fn problem() -> Problem {
    let window = Generator::new(31).window(2, 8, Shape::Lognormal { sigma: 1.0 });
    Problem::builder(
        Loads::new(window).unwrap(),
        Cluster::new(4, 2).unwrap(),
        Slots::Same(12),
    )
    .build()
    .unwrap()
}

fn plan() -> Plan {
    Refined.plan(&problem()).unwrap()
}

fn read(document: &Value) -> Result<(Format, Placement), Error> {
    Placement::from_json(document, &[8, 8], 4, None)
}

#[test]
fn a_plan_has_the_fields_that_are_promised() {
    let json = plan().to_json();
    for field in [
        "physical_to_logical_map",
        "logical_to_physical_map",
        "logical_count",
        "balancedness",
        "lower_bound",
        "gap",
        "moves",
        "bytes",
        "reason",
    ] {
        assert!(!json[field].is_null(), "{field}");
    }
    // A rank's slots are contiguous: the maps are each other's inverse by position.
    for layer in 0..2 {
        for expert in 0..8 {
            let slots = json["logical_to_physical_map"][layer][expert]
                .as_array()
                .unwrap();
            assert_eq!(json["logical_count"][layer][expert], slots.len());
            for slot in slots {
                assert_eq!(
                    json["physical_to_logical_map"][layer][slot.as_u64().unwrap() as usize],
                    expert
                );
            }
        }
    }
    assert_eq!(
        json["lower_bound_kinds"]
            .as_object()
            .unwrap()
            .values()
            .map(|count| count.as_u64().unwrap())
            .sum::<u64>(),
        2
    );
}

#[test]
fn plans_and_engine_formats_come_back_as_they_went() {
    let plan = plan();
    let hidden = HiddenLayers {
        count: 5,
        moe: vec![1, 4],
    };
    assert_eq!(
        read(&plan.to_json()),
        Ok((Format::Plan, plan.placement.clone()))
    );
    assert_eq!(
        read(&plan.placement.to_vllm().unwrap()),
        Ok((Format::Vllm, plan.placement.clone()))
    );
    assert_eq!(
        read(&plan.placement.to_vllm_ascend().unwrap()),
        Ok((Format::VllmAscend, plan.placement.clone()))
    );
    let sglang = plan.placement.to_sglang(&hidden).unwrap();
    let back = Placement::from_json(&sglang, &[8, 8], 4, Some(&hidden));
    assert_eq!(back, Ok((Format::Sglang, plan.placement)));
}

#[test]
fn sglang_gets_one_key_and_a_row_per_hidden_layer() {
    let plan = plan();
    let hidden = HiddenLayers {
        count: 3,
        moe: vec![1, 2],
    };
    let document = plan.placement.to_sglang(&hidden).unwrap();
    assert_eq!(
        document.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["physical_to_logical_map"]
    );
    let rows = document["physical_to_logical_map"].as_array().unwrap();
    assert_eq!(rows[0], json!([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]));
    assert_eq!(
        json!([rows[1], rows[2]]),
        json!(plan.placement.physical_to_logical_map())
    );
    for wrong in [
        HiddenLayers {
            count: 3,
            moe: vec![1],
        },
        HiddenLayers {
            count: 2,
            moe: vec![1, 2],
        },
        HiddenLayers {
            count: 3,
            moe: vec![2, 1],
        },
    ] {
        assert!(plan.placement.to_sglang(&wrong).is_err());
    }
}

#[test]
fn vllm_accepts_one_list_for_all_layers() {
    let map = json!([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]);
    let (format, placement) = read(&map).unwrap();
    assert_eq!(format, Format::Vllm);
    assert_eq!(
        json!(placement.physical_to_logical_map()),
        json!([map, map])
    );
}

#[test]
fn vllm_ascend_lists_may_come_in_any_order() {
    let device =
        |id: usize, experts: [usize; 2]| json!({"device_id": id, "device_expert": experts});
    let layer = |id: usize, devices: [Value; 2]| json!({"layer_id": id, "device_count": 2, "device_list": devices});
    let document = json!({"moe_layer_count": 2, "layer_list": [
        layer(1, [device(1, [2, 3]), device(0, [0, 1])]),
        layer(0, [device(0, [3, 2]), device(1, [1, 0])]),
    ]});
    let (_, placement) = Placement::from_json(&document, &[4, 4], 2, None).unwrap();
    assert_eq!(
        placement.physical_to_logical_map(),
        [[3, 2, 1, 0], [0, 1, 2, 3]]
    );
}

#[test]
fn empty_slots_of_dead_ranks_survive_in_plans_only() {
    let cluster = Cluster::new(4, 1)
        .unwrap()
        .with_live(vec![true, false, true, true])
        .unwrap();
    let loads = Loads::new(vec![vec![1.0, 2.0, 3.0, 4.0]]).unwrap();
    let problem = Problem::builder(loads, cluster, Slots::Same(8))
        .build()
        .unwrap();
    let plan = DeepSeek.plan(&problem).unwrap();
    let (_, back) = Placement::from_json(&plan.to_json(), &[4], 4, None).unwrap();
    assert_eq!(back, plan.placement);
    let message = plan.placement.to_vllm().unwrap_err().to_string();
    assert!(
        message.contains("slot 2: vLLM cannot start with empty slots"),
        "{message}"
    );
}

#[test]
fn engines_refuse_layers_that_differ_and_uneven_ranks() {
    let loads = || Loads::new(vec![vec![1.0; 4], vec![1.0; 2]]).unwrap();
    let slots = Slots::PerLayer(vec![4, 2]);
    let problem = Problem::builder(loads(), Cluster::new(2, 1).unwrap(), slots)
        .build()
        .unwrap();
    let placement = Refined.plan(&problem).unwrap().placement;
    assert!(
        placement
            .to_vllm()
            .unwrap_err()
            .to_string()
            .contains("same experts and slots in every layer")
    );
    let one = Loads::new(vec![vec![1.0; 4]]).unwrap();
    let problem = Problem::builder(one, Cluster::new(2, 1).unwrap(), Slots::Same(5))
        .uneven(true)
        .build()
        .unwrap();
    let placement = Refined.plan(&problem).unwrap().placement;
    assert!(
        placement
            .to_vllm_ascend()
            .unwrap_err()
            .to_string()
            .contains("5 slots are not a multiple of 2 ranks")
    );
}

#[test]
fn a_plan_whose_maps_disagree_is_read_and_then_rejected() {
    let mut json = plan().to_json();
    json["logical_to_physical_map"][0][0] = json!([99]);
    let (_, placement) = read(&json).unwrap();
    for error in [
        placement.check_maps().unwrap_err(),
        placement
            .validate(&problem(), Duplicates::Refuse)
            .unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::NotInverse { layer: 0, .. }),
            "{error}"
        );
    }
    assert_eq!(plan().placement.check_maps(), Ok(()));
}

#[test]
fn documents_of_no_format_are_errors_that_name_the_field() {
    let row = json!([0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]);
    let device = json!({"device_id": 0, "device_expert": [0, 1, 2]});
    let cases = [
        (json!(null), "placement: expected an object"),
        (json!({"map": []}), "placement: expected an object"),
        (
            json!({"physical_to_logical_map": 3}),
            "physical_to_logical_map: expected a list of layers",
        ),
        (
            json!({"physical_to_logical_map": [row, 3]}),
            "physical_to_logical_map[1]: expected a list of experts",
        ),
        (
            json!({"physical_to_logical_map": [row, [0, "1"]]}),
            "physical_to_logical_map[1][1]: expected an expert id",
        ),
        (
            json!({"physical_to_logical_map": [row, [0, -2]]}),
            "physical_to_logical_map[1][1]: expected an expert id",
        ),
        (
            json!({"physical_to_logical_map": [row, [0, 4_294_967_295_u32]]}),
            "physical_to_logical_map[1][1]: expected",
        ),
        (
            json!({"physical_to_logical_map": [row, [0, 1.5]]}),
            "physical_to_logical_map[1][1]: expected an expert id",
        ),
        (
            json!({"physical_to_logical_map": [row]}),
            "physical_to_logical_map: expected 2 layers, found 1",
        ),
        (
            json!([row, [8]]),
            "layer 1, slot 0: expert 8 is not one of the layer's 8",
        ),
        (
            json!({"physical_to_logical_map": [row, row], "logical_to_physical_map": 1}),
            "logical_to_physical_map: expected",
        ),
        (
            json!({"physical_to_logical_map": [row, row], "logical_to_physical_map": [[[0]]]}),
            "maps of the plan: expected",
        ),
        (json!({"moe_layer_count": 1}), "layer_list: expected a list"),
        (
            json!({"moe_layer_count": 2, "layer_list": []}),
            "moe_layer_count: expected 0",
        ),
        (
            json!({"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_list": [device]}]}),
            "layer_list[0].device_list: expected 4 ranks",
        ),
        (
            json!({"moe_layer_count": 1, "layer_list": [{"layer_id": 0, "device_list": [device, device, device, device]}]}),
            "layer_list[0].device_list[1].device_id: expected each",
        ),
        (
            json!({"moe_layer_count": 1, "layer_list": [{"device_list": []}]}),
            "layer_list[0].layer_id: expected a number",
        ),
    ];
    for (document, start) in cases {
        let message = read(&document).unwrap_err().to_string();
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn a_plan_for_other_ranks_is_refused() {
    let error = Placement::from_json(&plan().to_json(), &[8, 8], 2, None).unwrap_err();
    assert_eq!(error.to_string(), "ranks of the plan: expected 2, found 4");
}

#[test]
fn replica_counts_that_are_not_those_of_the_slots_are_refused() {
    let plan = plan().to_json();
    let count = plan["logical_count"][1][7].as_u64().unwrap();
    let cases = [
        (json!(count + 1), format!("{}", count + 1)),
        (json!("2"), "a string".to_owned()),
    ];
    for (wrong, found) in cases {
        let mut plan = plan.clone();
        plan["logical_count"][1][7] = wrong;
        assert_eq!(
            read(&plan).unwrap_err().to_string(),
            format!(
                "logical_count[1][7]: expected {count}, as physical_to_logical_map has it, found {found}"
            )
        );
    }
    for (counts, expected) in [
        (json!([]), "logical_count: expected a list of 2 layers"),
        (
            json!([[1], [1]]),
            "logical_count[0]: expected a list of 8 numbers",
        ),
    ] {
        let mut plan = plan.clone();
        plan["logical_count"] = counts;
        assert_eq!(read(&plan).unwrap_err().to_string(), expected);
    }
    let mut ranks = plan;
    ranks["ranks"] = json!("four");
    assert_eq!(
        read(&ranks).unwrap_err().to_string(),
        "ranks of the plan: expected 4, found a string"
    );
}
