//! Where the ranks of a group meet: a function of rank 0 that each calls, and that answers all of
//! them once the last has come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, GraphCall, NamedTensors, Reason, RendezvousKey, Status};
use grpcxx_runtime::{Function, RequestWatch, Responder};

use crate::member::Who;
use crate::roll::{Greeting, MISSING, Roll, answer, invalid, told_missing};

/// The meeting, at rank 0.
pub(crate) struct Meeting {
    /// The name of the group.
    name: String,
    size: u32,
    generation: u64,
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    arrivals: BTreeMap<u32, Arrival>,
    /// Ranks that came and have hung up.
    gone: BTreeSet<u32>,
    end: Option<Result<Roll, Status>>,
}

struct Arrival {
    who: Who,
    /// Rank 0 has none: it is here.
    responder: Option<Responder>,
    presence: Arc<Presence>,
}

/// Whether a rank still waits for the others.
#[derive(Debug, Default)]
struct Presence {
    has_left: AtomicBool,
}

impl RequestWatch for Presence {
    fn withdrawn(&self) {
        self.has_left.store(true, Ordering::Release);
    }
}

impl Arrival {
    fn is_here(&self) -> bool {
        !self.presence.has_left.load(Ordering::Acquire)
    }
}

impl State {
    /// Whether all are here.
    fn is_full(&mut self, size: u32) -> bool {
        let is_full = |state: &Self| state.arrivals.len() == size as usize;
        if is_full(self) {
            self.let_go();
        }
        is_full(self)
    }

    /// Takes out the ranks that have hung up, as those do whose process or time has ended: they may
    /// come once more.
    fn let_go(&mut self) {
        self.arrivals.retain(|&rank, arrival| {
            let is_here = arrival.is_here();
            if !is_here {
                self.gone.insert(rank);
            }
            is_here
        });
    }

    /// Who is missing now. Those that came and hung up are told apart from those that never came:
    /// it is these for which the others have waited.
    fn missing(&mut self, size: u32) -> String {
        self.let_go();
        let absent = (0..size).filter(|rank| !self.arrivals.contains_key(rank));
        let (gone, never): (Vec<u32>, Vec<u32>) = absent.partition(|rank| self.gone.contains(rank));
        let (missing, gone) = match never.is_empty() {
            true => (gone, never),
            false => (never, gone),
        };
        let mut text = format!(
            "{} of {size} ranks are missing ({})",
            missing.len(),
            shown(&missing)
        );
        if !gone.is_empty() {
            text += &format!(", and {} came and left ({})", gone.len(), shown(&gone));
        }
        text
    }
}

/// The first of these ranks.
fn shown(ranks: &[u32]) -> String {
    let shown = ranks.iter().take(MISSING_SHOWN_MAX);
    let shown: Vec<String> = shown.map(u32::to_string).collect();
    let more = if ranks.len() > shown.len() {
        ", ..."
    } else {
        ""
    };
    format!("{}{more}", shown.join(", "))
}

/// Why a group does not begin.
pub(crate) fn not_full(name: &str, waited: Duration, missing: &str) -> Status {
    let text = format!("the group {name:?} did not get full within {waited:?}: {missing}");
    Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline)
}

impl Meeting {
    /// Rank 0 is there.
    pub(crate) fn new(name: String, size: u32, generation: u64, who: Who) -> Self {
        let arrival = Arrival {
            who,
            responder: None,
            presence: Arc::default(),
        };
        let state = State {
            arrivals: BTreeMap::from([(0, arrival)]),
            gone: BTreeSet::new(),
            end: None,
        };
        Self {
            name,
            size,
            generation,
            state: Mutex::new(state),
            came: Condvar::new(),
        }
    }

    /// Waits until all have come, or the time is over, and tells those that came.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Roll, Status> {
        let until = Instant::now() + timeout;
        let mut state = self.state();
        while !state.is_full(self.size) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.came.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let end = match state.arrivals.len() == self.size as usize {
            true => Roll::new(state.arrivals.values().map(|arrival| arrival.who.clone())),
            false => Err(not_full(&self.name, timeout, &state.missing(self.size))),
        };
        state.end = Some(end.clone());
        let responders = state.arrivals.values_mut();
        let responders: Vec<Responder> = responders
            .filter_map(|arrival| arrival.responder.take())
            .collect();
        drop(state);
        for responder in responders {
            responder.answer(answer(&end));
        }
        end
    }

    fn come(&self, greeting: Greeting, responder: Responder) {
        let presence = Arc::new(Presence::default());
        // Without the lock: what is withdrawn already is told at once.
        responder.watch(Arc::clone(&presence) as Arc<dyn RequestWatch>);
        let Greeting { rank, who, .. } = greeting;
        let mut state = self.state();
        let known = state
            .arrivals
            .get(&rank)
            .map(|known| (known, known.who == who));
        let text = match known {
            Some((known, false)) if state.end.is_some() || known.is_here() => Some(format!(
                "rank {rank} has come twice: from {} and from {}",
                known.who.address, who.address
            )),
            Some(_) | None => None,
        };
        let is_known = known.is_some();
        if let Some(text) = text {
            drop(state);
            return responder.answer(Err(Status::new(Code::AlreadyExists, text)));
        }
        match &state.end {
            // It asks again, since it did not get the answer.
            Some(end) if is_known || end.is_err() => {
                let answer = answer(end);
                drop(state);
                responder.answer(answer);
            }
            Some(_) | None => {
                let arrival = Arrival {
                    who,
                    responder: Some(responder),
                    presence,
                };
                let before = state.arrivals.insert(rank, arrival);
                state.gone.remove(&rank);
                self.came.notify_all();
                drop(state);
                drop(before);
            }
        }
    }

    fn check(&self, greeting: &Greeting) -> Result<(), Status> {
        let Greeting {
            rank,
            size,
            generation,
            who,
        } = greeting;
        if *generation > self.generation {
            // Rank 0 has yet to hear that the group is over, and comes again; the others ask again.
            let text = format!(
                "rank 0 is still in generation {} of the group, and rank {rank} expects {generation}",
                self.generation
            );
            return Err(Status::new(Code::NotFound, text));
        }
        if (*size, *generation) != (self.size, self.generation) {
            return Err(Status::new(
                Code::FailedPrecondition,
                format!(
                    "rank {rank} expects {size} ranks in generation {generation}, and rank 0 \
                     expects {} in generation {}",
                    self.size, self.generation
                ),
            ));
        }
        let is_long = who.address.len() > ADDRESS_BYTES_MAX || who.board.len() > BOARD_BYTES_MAX;
        if *rank == 0 || *rank >= self.size || is_long {
            return Err(invalid(format!(
                "rank {rank} with an address of {} bytes and a board of {} cannot join a group of \
                 {}",
                who.address.len(),
                who.board.len(),
                self.size
            )));
        }
        RendezvousKey::new(&who.device, who.incarnation, &who.device, "check").map(|_| ())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Function for Meeting {
    fn call(&self, _call: GraphCall) -> Result<NamedTensors, Status> {
        let text = "ranks of a group meet by a call of their own";
        Err(Status::new(Code::Unimplemented, text))
    }

    fn start(&self, call: GraphCall, responder: Responder) {
        if call.fetches.iter().any(|name| *name == MISSING) {
            let missing = self.state().missing(self.size);
            return responder.answer(told_missing(&missing));
        }
        let greeting = Greeting::of(&call);
        let checked = greeting.and_then(|greeting| self.check(&greeting).map(|()| greeting));
        match checked {
            Ok(greeting) => self.come(greeting, responder),
            Err(status) => responder.answer(Err(status)),
        }
    }

    fn may_block(&self) -> bool {
        false
    }

    fn runs_anywhere(&self) -> bool {
        true
    }
}
/// Longest address of a rank.
const ADDRESS_BYTES_MAX: usize = 300;

/// Longest text by which a rank tells where its board is.
const BOARD_BYTES_MAX: usize = 200;

/// Most missing ranks that an error names.
const MISSING_SHOWN_MAX: usize = 16;
