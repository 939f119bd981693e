//! Recording loads, and keeping them by model.
#![allow(clippy::unwrap_used)]

use eplb::{
    BalancingState, Cluster, Error, Geometry, LayerGeometry, ModelGeometry, Planner, Problem,
    Recorder, Refined, Scope, Slots,
};

fn local(rank: usize) -> Recorder {
    Recorder::new(Scope::Local { rank }, &[4, 2], 2, 3).unwrap()
}

#[test]
fn only_valid_tokens_count() {
    let mut recorder = local(0);
    // Token 1 is padding, and its routes are not even looked at.
    recorder
        .record(0, &[0, 3, -1, 99, 3, 2], 2, &[true, false, true])
        .unwrap();
    recorder.record(1, &[1], 1, &[true]).unwrap();
    recorder.end_step();
    recorder.end_step();
    assert_eq!(
        recorder.windows().collect::<Vec<_>>(),
        [&vec![vec![1, 0, 1, 2], vec![0, 1]]]
    );
    let loads = recorder.loads().unwrap();
    assert_eq!(
        loads.windows(),
        [vec![vec![1.0, 0.0, 1.0, 2.0], vec![0.0, 1.0]]]
    );
    assert_eq!(loads.scope(), Scope::Local { rank: 0 });
}

#[test]
fn a_window_is_a_number_of_steps_and_the_last_ones_are_kept() {
    let mut recorder = local(0);
    for step in 0..9 {
        recorder
            .record(0, &vec![1; step], 1, &vec![true; step])
            .unwrap();
        recorder.end_step();
    }
    // Windows of steps 0+1, 2+3, 4+5, 6+7; the first is dropped, step 8 is open.
    let first_layer: Vec<u64> = recorder.windows().map(|window| window[0][1]).collect();
    assert_eq!(first_layer, [5, 9, 13]);
}

#[test]
fn wrong_routes_are_errors_and_count_nothing() {
    let mut recorder = local(0);
    for expert in [-1, 4, i64::MAX, i64::MIN] {
        let error = recorder
            .record(0, &[0, 1, 2, expert], 2, &[true, true])
            .unwrap_err();
        assert_eq!(
            error,
            Error::ExpertOutOfRange {
                place: "layer 0, token 1".into(),
                expert,
                experts: 4
            }
        );
    }
    assert!(matches!(
        recorder.record(2, &[0], 1, &[true]),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        recorder.record(0, &[0, 1, 2], 2, &[true, true]),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        recorder.record(0, &[], 0, &[]),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        recorder.record(0, &[0], usize::MAX, &[true, true]),
        Err(Error::Shape { .. })
    ));
    recorder.end_step();
    recorder.end_step();
    assert_eq!(
        recorder.windows().next().unwrap(),
        &[vec![0; 4], vec![0; 2]]
    );
}

#[test]
fn no_complete_window_is_an_error() {
    assert!(matches!(local(0).loads(), Err(Error::Empty { .. })));
    assert!(Recorder::new(Scope::Global, &[0], 1, 1).is_err());
    assert!(Recorder::new(Scope::Global, &[1], 0, 1).is_err());
    assert!(Recorder::new(Scope::Global, &[1], 1, 0).is_err());
}

#[test]
fn gathering_sums_ranks_into_a_global_load() {
    let (mut first, mut second) = (local(0), local(1));
    for recorder in [&mut first, &mut second] {
        recorder.record(0, &[2], 1, &[true]).unwrap();
        recorder.end_step();
        recorder.end_step();
    }
    let global = Recorder::gather(&[first.clone(), second.clone()]).unwrap();
    assert_eq!(
        (global.scope(), global.windows().next().unwrap()[0][2]),
        (Scope::Global, 2)
    );
    for (wrong, part) in [
        (vec![], "recorders"),
        (
            vec![first.clone(), first.clone()],
            "two count the tokens of rank 0",
        ),
        (
            vec![first.clone(), global],
            "recorder 1 counts the tokens of all ranks already",
        ),
        (
            vec![first.clone(), local(2)],
            "recorder 1 differs from recorder 0",
        ),
    ] {
        let message = Recorder::gather(&wrong).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_plan_from_one_ranks_load_says_so() {
    let mut recorder = Recorder::new(Scope::Local { rank: 3 }, &[4], 1, 1).unwrap();
    recorder.record(0, &[0, 0, 1, 2, 3], 1, &[true; 5]).unwrap();
    recorder.end_step();
    let problem = Problem::builder(
        recorder.loads().unwrap(),
        Cluster::new(2, 1).unwrap(),
        Slots::Same(4),
    );
    let plan = Refined.plan(&problem.build().unwrap()).unwrap();
    assert!(
        plan.reason.contains("loads are those of rank 3 alone"),
        "{}",
        plan.reason
    );
}

fn geometry(first: usize, layers: usize, experts: usize, redundant: usize) -> ModelGeometry {
    let geometry = Geometry::new(experts, 1, redundant, 32).unwrap();
    let layers = (first..first + layers).map(|layer| LayerGeometry {
        layer,
        geometry,
        retained: None,
    });
    ModelGeometry {
        num_expert_groups: 1,
        layers: layers.collect(),
    }
}

#[test]
fn a_draft_beside_its_target_is_balanced_on_its_own() {
    let mut state = BalancingState::new();
    let (target, draft) = (geometry(0, 2, 384, 32), geometry(61, 1, 128, 32));
    assert!(eplb::can_share_state(&target, &draft).is_err());
    assert!(
        state
            .register("target", target, Scope::Global, 1, 1)
            .unwrap()
            .is_none()
    );
    assert!(
        state
            .register("draft", draft, Scope::Global, 1, 1)
            .unwrap()
            .is_none()
    );
    for (model, experts, top_k) in [("target", 384, 6), ("draft", 128, 3)] {
        let own = state.model_mut(model).unwrap();
        for layer in 0..own.geometry.layers.len() {
            // Expert 7 is in every token's routes.
            let tokens = 200;
            let routes: Vec<i64> = (0..tokens)
                .flat_map(|token| {
                    (0..top_k).map(move |k| {
                        if k == 0 {
                            7
                        } else {
                            (token * 13 + k * 29) % experts
                        }
                    })
                })
                .collect();
            own.recorder
                .record(layer, &routes, top_k as usize, &vec![true; tokens as usize])
                .unwrap();
        }
        own.recorder.end_step();
    }
    for (model, slots) in [("target", 416), ("draft", 160)] {
        let own = state.model_mut(model).unwrap();
        let loads = own.recorder.loads().unwrap();
        let problem = Problem::builder(loads, Cluster::new(32, 4).unwrap(), Slots::Same(slots))
            .build()
            .unwrap();
        let plan = Refined.plan(&problem).unwrap();
        assert!(
            plan.placement
                .logical_count()
                .iter()
                .all(|layer| layer[7] > 1)
        );
        own.placement = Some(plan.placement);
    }
    let placed: Vec<(String, usize)> = state
        .models()
        .map(|(name, own)| {
            (
                name.to_owned(),
                own.placement.as_ref().unwrap().layers()[0].experts(),
            )
        })
        .collect();
    assert_eq!(
        placed,
        [("draft".to_owned(), 128), ("target".to_owned(), 384)]
    );
    assert!(state.model("other").is_none());
}
