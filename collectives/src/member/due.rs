//! What comes of an operation that was carried on: effects, and ends.

use std::sync::Arc;

use grpcxx_rpc::Status;
use grpcxx_runtime::Time;

use super::lane::Lane;
use crate::boards::Sleep;
use crate::machine::{Effect, Machine};
use crate::operation::Ending;

/// What begins or ends once the state is not locked any more.
#[derive(Default)]
pub(super) struct Due {
    pub(super) effects: Vec<(u16, u64, Effect)>,
    pub(super) ended: Vec<(Box<Machine>, Arc<Ending>)>,
    /// The shard is to look at boards again: more was there than it took, or may be soon.
    pub(super) looks_again: bool,
}

/// Begins operations of a lane and ends those that are done, as long as there are any.
pub(super) fn advance(lane: &mut Lane, now: Option<Time>, due: &mut Due) -> Result<(), Status> {
    advance_and(Sleep::Deep, lane, now, due)
}

/// [`advance`], which leaves the lane to doze if somebody is about to look at it.
pub(super) fn advance_and(
    sleep: Sleep,
    lane: &mut Lane,
    now: Option<Time>,
    due: &mut Due,
) -> Result<(), Status> {
    loop {
        lane.begin(now, &mut due.effects)?;
        due.looks_again |= lane.rest(sleep, now, &mut due.effects)?;
        match lane.take_done() {
            Some(done) => due.ended.push(done),
            None => return Ok(()),
        }
        lane.ask(&mut due.effects);
    }
}

pub(super) fn succeed(ended: Vec<(Box<Machine>, Arc<Ending>)>) {
    for (machine, ending) in ended {
        ending.succeed();
        drop(machine);
    }
}
