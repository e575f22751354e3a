use std::time::Duration;

use grpcxx_rpc::{Code, Text};
use grpcxx_transport::Time;

use super::streams::StreamPlan;
use crate::staging::Act;

/// What became of each call.
#[derive(Debug, Default)]
pub(super) struct Calls {
    records: Vec<Record>,
    open: usize,
}

/// One call.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) caller: usize,
    pub(super) caller_epoch: u32,
    pub(super) callee: usize,
    pub(super) kind: Kind,
    pub(super) state: State,
    pub(super) issued_at: Time,
    pub(super) timeout: Option<Duration>,
    /// How often a function ran for it.
    pub(super) executions: u32,
    /// Its function dropped the responder.
    pub(super) is_responder_dropped: bool,
}

/// What a call asks for.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Receive {
        step_id: i64,
        tensors: Vec<usize>,
    },
    /// Tensors that a service keeps.
    ServiceTensors {
        keys: Vec<Text>,
    },
    Echo {
        fetches: Vec<Text>,
    },
    Fail,
    Late {
        fetches: Vec<Text>,
    },
    Unknown,
    /// A call that cannot be put into a frame.
    Malformed,
    Push,
    Pull,
    Status,
    Cleanup {
        step_id: i64,
    },
    Stream(StreamPlan),
    /// A call of a push that is staged, and when that began and had its call before.
    Staged {
        act: Act,
        begun_at: Time,
        last_at: Time,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Open,
    /// It had its one result.
    Finished(Option<Code>),
    /// Its caller lost interest.
    Dropped,
    /// Its caller crashed.
    Crashed,
}

impl Calls {
    pub(super) fn next_id(&self) -> usize {
        self.records.len()
    }

    pub(super) fn issue(&mut self, record: Record) -> usize {
        self.records.push(record);
        self.open += 1;
        self.records.len() - 1
    }

    pub(super) fn record(&self, id: usize) -> &Record {
        &self.records[id]
    }

    pub(super) fn record_mut(&mut self, id: usize) -> &mut Record {
        &mut self.records[id]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Record)> {
        self.records.iter().enumerate()
    }

    /// Calls that are to have a result.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Ends a call, which must be open.
    pub(super) fn close(&mut self, id: usize, state: State) {
        let record = &mut self.records[id];
        assert_eq!(
            record.state,
            State::Open,
            "call {id} ended a second time, with {state:?}: {record:?}"
        );
        record.state = state;
        self.open -= 1;
    }

    /// A function runs for a call.
    pub(super) fn execute(&mut self, id: usize) {
        let record = &mut self.records[id];
        record.executions += 1;
        assert_eq!(record.executions, 1, "call {id} was carried out twice");
    }
}
