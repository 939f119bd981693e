//! Transfer schedules, carried out on a memory of numbers.
#![allow(clippy::unwrap_used)]

use eplb::synthetic::{Generator, Shape};
use eplb::{
    Cluster, DeepSeek, Error, Greedy, Incremental, Loads, Placement, Planner, Problem, Refined,
    RetainedExpert, Schedule, Slots,
};

fn placement(map: &[i64], experts: usize, ranks: usize) -> Placement {
    let map = map
        .iter()
        .map(|expert| u32::try_from(*expert).ok().map(RetainedExpert))
        .collect();
    Placement::from_physical_to_logical(&[map], &[experts], ranks).unwrap()
}

/// Does what the schedule says, and checks every copy against the contents before the exchange.
fn carry_out(schedule: &Schedule, current: &Placement, cluster: &Cluster) -> Vec<Vec<i64>> {
    let before = current.physical_to_logical_map();
    let mut after = before.clone();
    for (layer, plan) in schedule.layers.iter().enumerate() {
        let rank_of = |slot: usize| {
            current.layers()[layer]
                .rank_of(eplb::Slot(slot as u32))
                .unwrap()
        };
        for copy in &plan.local {
            assert_eq!(before[layer][copy.from_slot], copy.expert as i64);
            assert_eq!(
                (rank_of(copy.from_slot), rank_of(copy.to_slot)),
                (copy.rank, copy.rank)
            );
            after[layer][copy.to_slot] = copy.expert as i64;
        }
        for batch in &plan.batches {
            assert!(!batch.is_empty());
            let mut peers = vec![None; cluster.ranks()];
            for transfer in batch {
                assert_eq!(before[layer][transfer.from_slot], transfer.expert as i64);
                assert_eq!(rank_of(transfer.from_slot), transfer.from_rank);
                assert!(
                    cluster.live()[transfer.from_rank] && transfer.from_rank != transfer.to_rank
                );
                for (rank, peer) in [
                    (transfer.from_rank, transfer.to_rank),
                    (transfer.to_rank, transfer.from_rank),
                ] {
                    assert_eq!(
                        *peers[rank].get_or_insert(peer),
                        peer,
                        "rank {rank} has two peers in a batch"
                    );
                }
                for slot in &transfer.to_slots {
                    assert_eq!(rank_of(*slot), transfer.to_rank);
                    after[layer][*slot] = transfer.expert as i64;
                }
            }
        }
        for reload in &plan.reloads {
            for slot in &reload.to_slots {
                after[layer][*slot] = reload.expert as i64;
            }
        }
    }
    after
}

#[test]
fn schedules_of_all_planners_lead_to_their_placements() {
    let mut generator = Generator::new(21);
    let before = generator.window(3, 64, Shape::Lognormal { sigma: 1.0 });
    let after = generator.drift(&before, 0.7);
    let cluster = Cluster::new(16, 4).unwrap();
    let build = |loads: &Vec<Vec<f64>>| {
        Problem::builder(
            Loads::new(loads.clone()).unwrap(),
            cluster.clone(),
            Slots::Same(96),
        )
        .expert_bytes(10)
    };
    let current = DeepSeek
        .plan(&build(&before).build().unwrap())
        .unwrap()
        .placement;
    let problem = build(&after).current(current.clone()).build().unwrap();
    for planner in [
        &DeepSeek as &dyn Planner,
        &Greedy,
        &Refined,
        &Incremental::default(),
    ] {
        let plan = planner.plan(&problem).unwrap();
        let schedule = Schedule::new(&current, &plan.placement, &cluster, false).unwrap();
        let reached = carry_out(&schedule, &current, &cluster);
        assert_eq!(
            reached,
            plan.placement.physical_to_logical_map(),
            "{}",
            planner.name()
        );
        // One transfer per move, and what a rank stages is what it writes.
        assert_eq!(schedule.transfers(), plan.moves, "{}", planner.name());
        for rank in 0..16 {
            let written = |layer: &eplb::LayerSchedule| -> u64 {
                let local = layer.local.iter().filter(|copy| copy.rank == rank).count();
                let transfers = layer
                    .batches
                    .iter()
                    .flatten()
                    .filter(|transfer| transfer.to_rank == rank);
                10 * (local
                    + transfers
                        .map(|transfer| transfer.to_slots.len())
                        .sum::<usize>()) as u64
            };
            let peak = schedule.layers.iter().map(written).max().unwrap();
            assert_eq!(peak, plan.peak_extra_bytes[rank], "{}", planner.name());
        }
    }
}

#[test]
fn local_copies_come_first_and_near_sources_are_preferred() {
    // Expert 1 is on ranks 1 (same node as rank 0) and 2 (other node). Rank 0 wants it, and its own
    // expert 0 in the other slot.
    let current = placement(&[0, 2, 1, 3, 1, 3, 2, 0], 4, 4);
    let next = placement(&[1, 0, 1, 3, 1, 3, 2, 0], 4, 4);
    let schedule = Schedule::new(&current, &next, &Cluster::new(4, 2).unwrap(), false).unwrap();
    let layer = &schedule.layers[0];
    assert_eq!(
        (
            layer.local.len(),
            layer.local[0].from_slot,
            layer.local[0].to_slot
        ),
        (1, 0, 1)
    );
    assert_eq!(layer.batches.len(), 1);
    assert_eq!(
        (layer.batches[0][0].from_rank, layer.batches[0][0].from_slot),
        (1, 2)
    );
}

#[test]
fn sources_share_the_sending() {
    // Ranks 0 and 1 hold expert 0; ranks 2 and 3 want it. One batch, from different senders.
    let current = placement(&[0, 0, 1, 2], 3, 4);
    let next = placement(&[0, 1, 0, 2], 3, 4);
    let all = placement(&[0, 0, 0, 0], 1, 4);
    let schedule = Schedule::new(&current, &next, &Cluster::new(4, 1).unwrap(), false).unwrap();
    assert_eq!(
        carry_out(&schedule, &current, &Cluster::new(4, 1).unwrap()),
        next.physical_to_logical_map()
    );
    let wants = placement(&[0, 0, 1, 1], 2, 4);
    let gets = placement(&[0, 1, 0, 0], 2, 4);
    let schedule = Schedule::new(&wants, &gets, &Cluster::new(4, 1).unwrap(), false).unwrap();
    let senders: Vec<usize> = schedule.layers[0]
        .batches
        .iter()
        .flatten()
        .filter(|transfer| transfer.expert == 0)
        .map(|transfer| transfer.from_rank)
        .collect();
    assert!(senders.contains(&0) && senders.contains(&1), "{senders:?}");
    let nothing = Schedule::new(&all, &all, &Cluster::new(4, 1).unwrap(), false).unwrap();
    assert_eq!((nothing.transfers(), nothing.layers.len()), (0, 1));
}

#[test]
fn lost_experts_are_reloaded_or_refused() {
    let current = placement(&[0, 1, 1, 2], 3, 2);
    let next = placement(&[-1, -1, 0, 1], 3, 2);
    let cluster = Cluster::new(2, 1)
        .unwrap()
        .with_live(vec![false, true])
        .unwrap();
    let refused = Schedule::new(&current, &next, &cluster, false);
    assert_eq!(
        refused,
        Err(Error::NoSource {
            layer: 0,
            expert: 0,
            rank: 1
        })
    );
    let schedule = Schedule::new(&current, &next, &cluster, true).unwrap();
    let reload = &schedule.layers[0].reloads[0];
    assert_eq!(
        (reload.expert, reload.rank, reload.to_slots.as_slice()),
        (0, 1, [2].as_slice())
    );
    assert_eq!(schedule.layers[0].local[0].expert, 1);
}

#[test]
fn placements_of_different_shape_are_errors() {
    let (small, large) = (placement(&[0, 1], 2, 2), placement(&[0, 1, 0, 1], 2, 2));
    let cluster = Cluster::new(2, 1).unwrap();
    assert!(matches!(
        Schedule::new(&small, &large, &cluster, false),
        Err(Error::Shape { .. })
    ));
    assert!(matches!(
        Schedule::new(&small, &Placement::default(), &cluster, false),
        Err(Error::Shape { .. })
    ));
    let other = Cluster::new(4, 1).unwrap();
    assert!(matches!(
        Schedule::new(&small, &small, &other, false),
        Err(Error::Shape { .. })
    ));
}
