use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grpcxx_rpc::{Code, Response, Status, Text, proto};
use grpcxx_transport::{Outcome, Time};
use prost::Message;

use super::calls::{Calls, Kind, Record as Call, State};
use super::journal::Journal;
use super::profile::Profile;
use super::service_tensors;
use super::streams::Progresses;
use super::tensors::{self, Tensors};
use crate::call::CallResult;
use crate::staging::Act;

/// What must be true of a cluster, kept beside it. Each method that notes an event panics if the
/// event should not have happened.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) now: Time,
    pub(super) journal: Journal,
    pub(super) calls: Calls,
    pub(super) tensors: Tensors,
    pub(super) streams: Progresses,
    pub(super) tasks: Vec<TaskRecord>,
    steps: BTreeMap<StepName, Step>,
    /// Steps, by task, that a call may have cleaned; it may have reached a later run of the task.
    cleaned: BTreeSet<(usize, i64)>,
    profile: Profile,
    /// Chunks of frames that links accepted.
    pub(super) chunks: u64,
    /// Ends of links that migrated to RDMA, and that it failed under.
    pub(super) migrated: u64,
    pub(super) failed_over: u64,
}

/// A handle of the model, for all who see something happen.
#[derive(Clone, Debug)]
pub(super) struct Watcher(Arc<Mutex<Model>>);

#[derive(Debug)]
pub(super) struct TaskRecord {
    pub(super) announces: bool,
    pub(super) epoch: u32,
    pub(super) is_running: bool,
    /// It has stopped, crashed or started anew at some time, or could not reach another task for
    /// so long that their connections may have been cut.
    pub(super) was_disturbed: bool,
    /// Of its present and earlier runs.
    pub(super) incarnations: Vec<u64>,
}

/// Task, run of the task, step.
pub(super) type StepName = (usize, u32, i64);

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    is_aborted: bool,
    ended_at: Option<Time>,
}

impl Watcher {
    pub(super) fn new(profile: &Profile, lines_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Model {
            now: Time::ZERO,
            journal: Journal::new(lines_max),
            calls: Calls::default(),
            tensors: Tensors::default(),
            streams: Progresses::default(),
            tasks: Vec::new(),
            steps: BTreeMap::new(),
            cleaned: BTreeSet::new(),
            profile: profile.clone(),
            chunks: 0,
            migrated: 0,
            failed_over: 0,
        })))
    }

    pub(super) fn model(&self) -> MutexGuard<'_, Model> {
        // A run that panicked is still to be reported.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    pub(super) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.journal.note(self.now, what);
    }

    pub(super) fn step_name(&self, task: usize, step_id: i64) -> StepName {
        (task, self.tasks[task].epoch, step_id)
    }

    pub(super) fn abort(&mut self, name: StepName) {
        self.steps.entry(name).or_default().is_aborted = true;
    }

    pub(super) fn maybe_clean(&mut self, task: usize, step_id: i64) {
        self.cleaned.insert((task, step_id));
    }

    pub(super) fn is_ended(&self, name: StepName) -> bool {
        self.step(name).is_aborted || self.cleaned.contains(&(name.0, name.2))
    }

    /// Why a tensor that nobody got need not be in its step.
    pub(super) fn excuse(&self, id: usize) -> Option<&'static str> {
        let record = self.tensors.record(id);
        let task = &self.tasks[record.home];
        if record.has_left {
            Some("left")
        } else if self.is_ended((record.home, record.epoch, record.step_id)) {
            Some("step over")
        } else if record.epoch != task.epoch || !task.is_running {
            Some("task gone")
        } else {
            None
        }
    }

    pub(super) fn framed(&mut self, ids: &[usize]) {
        for &id in ids {
            self.tensors.framed(id);
        }
        if !ids.is_empty() {
            self.note(format_args!("frame with tensors {ids:?} accepted"));
        }
    }

    pub(super) fn unframed(&mut self, ids: &[usize], outcome: Outcome) {
        for &id in ids {
            self.tensors.unframed(id, outcome);
        }
        if !ids.is_empty() {
            self.note(format_args!("frame with tensors {ids:?} {outcome:?}"));
        }
    }

    /// A call has its result.
    pub(super) fn finish(&mut self, id: usize, result: &CallResult) {
        let code = result.as_ref().err().map(|status| status.code);
        match result {
            Ok(_) => self.note(format_args!("call {id} ok")),
            Err(status) => self.note(format_args!("call {id} {status}")),
        }
        self.calls.close(id, State::Finished(code));
        self.check_time(id);
        match result {
            Ok(response) => self.check_response(id, response),
            Err(status) => self.check_failure(id, status),
        }
    }

    fn step(&self, name: StepName) -> Step {
        self.steps.get(&name).copied().unwrap_or_default()
    }

    fn check_response(&mut self, id: usize, response: &Response) {
        let call = self.calls.record(id);
        let (kind, callee, is_local) = (call.kind.clone(), call.callee, call.caller == call.callee);
        let (executions, issued_at) = (call.executions, call.issued_at);
        match (&kind, response) {
            (Kind::Receive { step_id, tensors }, Response::Tensors(got)) => {
                assert_eq!(
                    tensors.len(),
                    got.len(),
                    "call {id} got {} tensors",
                    got.len()
                );
                let epoch = self.tensors.record(tensors[0]).epoch;
                let ended_at = self.step((callee, epoch, *step_id)).ended_at;
                assert!(
                    ended_at.is_none_or(|at| at > issued_at),
                    "call {id} got tensors of step {step_id}, which was over before"
                );
                for (&tensor, got) in tensors.iter().zip(got) {
                    self.tensors.deliver(tensor, got, id, is_local);
                }
            }
            (Kind::ServiceTensors { keys }, Response::Tensors(got)) => {
                assert_eq!(keys.len(), got.len(), "call {id}");
                for (key, tensor) in keys.iter().zip(got) {
                    let holds = tensor.data[..] == service_tensors::bytes(key)[..];
                    assert!(holds, "call {id} got other bytes than those of {key}");
                }
            }
            (Kind::Echo { fetches } | Kind::Late { fetches }, Response::Fetched(got)) => {
                assert_eq!(executions, 1, "call {id} succeeded without its function");
                check_fetched(id, fetches, got);
            }
            (Kind::Push | Kind::Staged { .. }, Response::Fetched(got)) => assert!(got.is_empty()),
            (Kind::Pull, Response::Fetched(got)) => {
                for (name, tensor) in got {
                    let holds = tensor.data[..] == stored(name)[..];
                    assert!(holds, "call {id} pulled other bytes than those of {name}");
                }
            }
            (Kind::Status, Response::Message(body)) => self.check_status(id, callee, body),
            (Kind::Cleanup { step_id }, Response::Message(_)) => {
                let name = self.step_name(callee, *step_id);
                let now = self.now;
                if self.tasks[callee].epoch == 0 {
                    self.steps.entry(name).or_default().ended_at = Some(now);
                }
            }
            _ => panic!("call {id} for {kind:?} was answered with {response:?}"),
        }
    }

    /// Checks that a call did not wait without a reason.
    fn check_time(&self, id: usize) {
        let call = self.calls.record(id);
        // Others wait for somebody, or for the bytes of many tensors.
        let is_prompt = !matches!(
            call.kind,
            Kind::Receive { .. } | Kind::Late { .. } | Kind::ServiceTensors { .. }
        );
        if let Some(limit) = self.profile.answered_within().filter(|_| is_prompt) {
            let taken = self.now.since(call.issued_at);
            assert!(taken <= limit, "call {id} took {taken:?}: {call:?}");
        }
    }

    fn check_status(&self, id: usize, callee: usize, body: &[u8]) {
        let response = proto::GetStatusResponse::decode(body).expect("a GetStatusResponse");
        let incarnation = response.device_attributes[0].incarnation;
        let known = &self.tasks[callee].incarnations;
        assert!(
            known.contains(&incarnation),
            "call {id} was answered by {incarnation:x}, which task {callee} never was"
        );
    }

    pub(super) fn check_failure(&self, id: usize, status: &Status) {
        let call = self.calls.record(id);
        if let Err(why) = self.excuse_failure(id, call, status) {
            panic!("call {id} failed with {status}, but {why}: {call:?}");
        }
    }

    fn excuse_failure(&self, id: usize, call: &Call, status: &Status) -> Result<(), &'static str> {
        let elapsed = self.now.since(call.issued_at);
        let is_over = |limit: Duration| elapsed >= limit;
        let disturbed =
            self.tasks[call.caller].was_disturbed || self.tasks[call.callee].was_disturbed;
        let excused = match status.code {
            Code::Unavailable => {
                let excused = self.profile.links_fail || disturbed;
                return excused.then_some(()).ok_or("no link and no task was lost");
            }
            Code::DeadlineExceeded => call.timeout.is_some_and(is_over),
            Code::Internal => {
                let wait = self.profile.channel.connection_timeout;
                let waited = is_over(call.timeout.unwrap_or(wait)) && call.caller != call.callee;
                waited || call.is_responder_dropped
            }
            Code::ResourceExhausted => self.profile.is_tight,
            Code::Aborted | Code::OutOfRange => {
                let Kind::Receive { step_id, tensors } = &call.kind else {
                    return Err("it is not about a step");
                };
                let epoch = self.tensors.record(tensors[0]).epoch;
                let step = self.step((call.callee, epoch, *step_id));
                let is_stale = self.tasks[call.callee].epoch != epoch;
                match status.code {
                    Code::OutOfRange => step.is_aborted,
                    _ => is_stale || self.cleaned.contains(&(call.callee, *step_id)),
                }
            }
            Code::NotFound => match call.kind {
                Kind::Staged {
                    act,
                    begun_at,
                    last_at,
                } if act != Act::Discard => {
                    // It has ended, with its connection or by itself.
                    let is_lost = self.profile.links_fail || disturbed;
                    let is_late = self.now.since(last_at) >= self.profile.staged_patience;
                    is_lost || is_late || self.now.since(begun_at) >= self.profile.staged_life
                }
                _ => matches!(call.kind, Kind::Unknown | Kind::Pull),
            },
            Code::InvalidArgument => matches!(call.kind, Kind::Malformed),
            Code::FailedPrecondition => matches!(call.kind, Kind::Fail),
            Code::DataLoss => matches!(&call.kind, Kind::Stream(plan) if plan.fails()),
            Code::Cancelled => self.was_cut(id),
            Code::Unimplemented => {
                let announces = |task: usize| self.tasks[task].announces;
                let know_streams = announces(call.caller) && announces(call.callee);
                matches!(call.kind, Kind::Stream(_)) && !know_streams && call.caller != call.callee
            }
            _ => false,
        };
        excused
            .then_some(())
            .ok_or("nothing happened that explains it")
    }
}

/// What is stored under a name.
pub(super) fn stored(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(100 + name.len() * 7).collect()
}

/// What the functions return for a name.
pub(super) fn fetched(name: &str) -> Vec<u8> {
    name.bytes().rev().cycle().take(name.len() * 30).collect()
}

fn check_fetched(id: usize, fetches: &[Text], got: &[(Text, grpcxx_rpc::Tensor)]) {
    assert_eq!(fetches.len(), got.len(), "call {id}");
    for (name, (returned, tensor)) in fetches.iter().zip(got) {
        let expected = tensors::tensor(fetched(name));
        assert!(
            name == returned && *tensor == expected,
            "call {id} fetched {name} and got {returned} with other bytes"
        );
    }
}
