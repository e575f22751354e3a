//! How long the shard of a rank looks at boards before it has partners ring.

use std::time::Duration;

use grpcxx_runtime::Time;

use super::super::lane::{Entry, Lane};
use super::world::operation;
use crate::boards::{Offer, Sleep};
use crate::dtype::ReduceOp;
use crate::machine::{Effect, Slot};
use crate::operator::Operator;
use crate::plan::Plan;

/// An operation of two segments, of which each has two steps.
const LONG: (Operator, usize) = (Operator::AllReduce(ReduceOp::Sum), (512 << 10) / 2);

const LOOK_TIME: Duration = Duration::from_micros(100);

/// The lanes of two ranks of one host, in which the first has begun an operation.
fn lanes(look_time: Duration) -> ([Lane; 2], Vec<(u16, u64, Effect)>) {
    let offers = [0, 1].map(|_| Offer::new().unwrap());
    let told = [0, 1].map(|rank: usize| offers[rank].told().to_owned());
    let told = [&told[0][..], &told[1]];
    let mut rank = 0;
    let mut lanes = offers.map(|offer| {
        let mut lane = Lane::new(0, Plan::partners(rank, 2));
        lane.show_on(offer.open(rank, &told).unwrap(), look_time);
        rank += 1;
        lane
    });
    let mut effects = Vec::new();
    begin(&mut lanes[0], 0, &mut effects);
    (lanes, effects)
}

fn begin(lane: &mut Lane, rank: u32, effects: &mut Vec<(u16, u64, Effect)>) {
    let (machine, ending, _operation) = operation(LONG, (rank, 2), true);
    lane.push(Entry { machine, ending });
    lane.begin(Some(Time::ZERO), effects).unwrap();
}

fn rings(effects: &[(u16, u64, Effect)]) -> bool {
    let is_bell = |effect: &Effect| {
        matches!(
            effect,
            Effect::Send {
                slot: Slot::Bell,
                ..
            }
        )
    };
    effects.iter().any(|(_, _, effect)| is_bell(effect))
}

#[test]
fn nobody_rings_for_a_shard_that_looks() {
    let ([mut first, mut second], mut effects) = lanes(LOOK_TIME);
    let mut now = Time::ZERO;
    assert!(first.rest(Sleep::Deep, Some(now), &mut effects).unwrap());
    begin(&mut second, 1, &mut effects);
    while first.take_done().is_none() {
        for lane in [&mut first, &mut second] {
            // Each step begins another time.
            now = now + LOOK_TIME * 2 / 3;
            let looks_again = lane.rest(Sleep::Deep, Some(now), &mut effects).unwrap();
            assert_eq!(looks_again, lane.waits_for_boards());
        }
    }
    assert!(!rings(&effects));
}

#[test]
fn a_shard_that_has_looked_in_vain_sleeps_and_is_rung_for() {
    let ([mut first, mut second], mut effects) = lanes(LOOK_TIME);
    let rest = |lane: &mut Lane, micros| {
        let now = Time::ZERO + Duration::from_micros(micros);
        lane.rest(Sleep::Deep, Some(now), &mut Vec::new()).unwrap()
    };
    assert!(rest(&mut first, 7));
    assert!(rest(&mut first, 106));
    assert!(!rest(&mut first, 107));
    assert!(!rest(&mut first, 1000), "and does not begin again");
    begin(&mut second, 1, &mut effects);
    assert!(rings(&effects));
}

#[test]
fn a_shard_without_a_cpu_of_its_own_sleeps_at_once() {
    let ([mut first, mut second], mut effects) = lanes(Duration::ZERO);
    assert!(
        !first
            .rest(Sleep::Deep, Some(Time::ZERO), &mut effects)
            .unwrap()
    );
    begin(&mut second, 1, &mut effects);
    assert!(rings(&effects));
}
