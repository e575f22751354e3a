//! A call under way: where its payload lands, and who hears of its end.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use grpcxx_capi::notices::after;
use grpcxx_memory::BufferMut;
use grpcxx_rpc::{Code, Reason, Request, Response, Status, Tensor, TensorMeta};
use grpcxx_runtime::{
    CallResult, CallSpec, Cancellation, Client, CompletionHandler, Peer, ShardContext,
};
use smallvec::SmallVec;

use crate::arrays::{LENT_BYTES_MIN, without_data};
use crate::call::Begin;
use crate::completions::Report;
use crate::lock::lock;
use crate::memory::{Brought, Place, copy_of, with_user};
use crate::pool::for_array;

/// Places for the tensors of a response, by their index; all that is missing has none.
pub(crate) type Places = SmallVec<[Option<Place>; 1]>;

/// What a call has brought, and which of its tensors landed in memory of their place.
pub(crate) struct Arrived {
    pub(crate) response: Response,
    pub(crate) landed: SmallVec<[usize; 1]>,
}

pub(crate) type Outcome = Result<Arrived, Status>;

/// Tells who waits for a call, or collects calls, that it has ended.
pub(crate) struct Ending {
    state: Mutex<State>,
    over: Condvar,
    report: Option<Arc<Report>>,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    /// Whether the call has ended, though its outcome may have been taken.
    is_over: bool,
    is_withdrawn: bool,
    /// Of the thread that waits.
    waker: Option<Waker>,
}

/// Whoever may still read or write memory of Python holds an ownership, and so does the engine
/// until the call has its result: the call ends when the last one is gone.
struct Flight {
    this: Weak<Self>,
    ending: Arc<Ending>,
    outcome: Mutex<Option<Outcome>>,
    places: Places,
    brings_memory: bool,
    brought: Mutex<SmallVec<[(usize, Brought); 1]>>,
    landed: Mutex<SmallVec<[usize; 1]>>,
    road: (Client, Peer),
}

/// The ownership of a flight that the arrays hold which are sent. It has none before the flight
/// begins.
#[derive(Clone, Default)]
struct Loan(Arc<Mutex<Option<Arc<Flight>>>>);

/// A call that is ready to begin.
pub(crate) struct Departure {
    pub(crate) client: Client,
    pub(crate) peer: Peer,
    pub(crate) request: Request,
    pub(crate) timeout: Option<Duration>,
    pub(crate) places: Places,
    /// Whether large tensors shall have memory that is theirs alone.
    pub(crate) brings_memory: bool,
}

impl Begin for Departure {
    fn begin(self, ending: &Arc<Ending>, cancellation: &Cancellation) {
        let Self {
            client,
            peer,
            mut request,
            timeout,
            places,
            brings_memory,
        } = self;
        let loan = Loan::of(&mut request, peer.is_self());
        let flight = Arc::new_cyclic(|this| Flight {
            this: this.clone(),
            ending: Arc::clone(ending),
            outcome: Mutex::new(None),
            places,
            brings_memory,
            brought: Mutex::default(),
            landed: Mutex::default(),
            road: (client.clone(), peer.clone()),
        });
        let noted = Arc::downgrade(&flight);
        if let Some(loan) = loan {
            *lock(&loan.0) = Some(Arc::clone(&flight));
        }
        let spec = CallSpec::new(&peer, request)
            .with_timeout(timeout)
            .with_cancellation(cancellation);
        if let Err(refused) = client.submit(spec, flight, 0)
            && let Some(flight) = noted.upgrade()
        {
            flight.set(Err(refused.status.clone()));
        }
    }

    fn road(&self) -> (&Client, &Peer) {
        (&self.client, &self.peer)
    }
}

impl Loan {
    /// What the arrays of a request hold from now on until they are used no more; `None` if there
    /// are no such arrays. A task that is called by itself gets copies: it may keep what it gets.
    fn of(request: &mut Request, is_self: bool) -> Option<Self> {
        let Request::StarRunGraph(call) = request else {
            return None;
        };
        let mut loan: Option<Self> = None;
        for (_, tensor) in call.feeds.iter_mut() {
            if tensor.data.len() < LENT_BYTES_MIN {
                continue;
            }
            if is_self {
                tensor.data = copy_of(&tensor.data);
                continue;
            }
            let data = std::mem::take(&mut tensor.data);
            tensor.data = with_user(data, loan.get_or_insert_default().clone());
        }
        loan
    }
}

impl Ending {
    /// The end of one call, which `report` hears of too.
    pub(crate) fn new(report: Option<Arc<Report>>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            over: Condvar::new(),
            report,
        })
    }

    /// Notes that the call is being withdrawn by somebody who waits for its arrays.
    pub(crate) fn note_withdrawn(&self) {
        lock(&self.state).is_withdrawn = true;
    }

    fn is_withdrawn(&self) -> bool {
        lock(&self.state).is_withdrawn
    }

    /// Waits for the end of a call that was withdrawn: until then its arrays are in use.
    pub(crate) fn await_withdrawn(&self) {
        let state = lock(&self.state);
        let is_under_way = |state: &mut State| !state.is_over;
        let waited = self
            .over
            .wait_timeout_while(state, WITHDRAWN_TIME_MAX, is_under_way);
        drop(waited);
    }

    /// What the call ended in, if it has ended and nobody has asked before.
    pub(crate) fn take(&self) -> Option<Outcome> {
        lock(&self.state).outcome.take()
    }

    /// Waits for what a call to this peer ended in; `None` if it goes on for longer than
    /// `patience`. One thread does so.
    pub(crate) fn wait(&self, client: &Client, peer: &Peer, patience: Duration) -> Option<Outcome> {
        let ended = poll_fn(|context| self.poll(context));
        client.wait(peer.shard(), ended, Some(patience))
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = lock(&self.state);
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Ends it, if it has not ended.
    fn set_unless_over(&self, outcome: Outcome) {
        let is_over = lock(&self.state).is_over;
        if !is_over {
            self.set(outcome);
        }
    }

    /// Ends it.
    pub(crate) fn set(&self, outcome: Outcome) {
        let waker = {
            let mut state = lock(&self.state);
            state.outcome = Some(outcome);
            state.is_over = true;
            state.waker.take()
        };
        self.over.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(report) = &self.report {
            report.tell();
        }
    }
}

impl Flight {
    fn set(&self, outcome: Outcome) {
        *lock(&self.outcome) = Some(outcome);
    }

    /// Takes the data of tensors out that lie in memory of Python: what keeps it is this flight.
    /// Memory that was brought becomes theirs alone.
    fn arrived(&self, mut response: Response) -> Arrived {
        let landed = std::mem::take(&mut *lock(&self.landed));
        for &index in &landed {
            if let Some(tensor) = tensor_at(&mut response, index) {
                without_data(tensor);
            }
        }
        for (index, brought) in std::mem::take(&mut *lock(&self.brought)) {
            if let Some(tensor) = tensor_at(&mut response, index) {
                let bytes = tensor.data.len();
                without_data(tensor);
                let data = brought.take().filter(|data| data.len() == bytes);
                tensor.data = data.unwrap_or_default();
            }
        }
        Arrived { response, landed }
    }

    /// Waits for a link that still uses memory of Python though the call has its result. One that
    /// writes there though the call has failed is closed in the end; then the call ends, whatever
    /// the link does.
    fn await_link(&self, has_failed: bool) {
        let flight = self.this.clone();
        after(STUCK_TIME, move || {
            let Some(flight) = flight.upgrade() else {
                return;
            };
            if has_failed && flight.is_written_to() {
                let (client, peer) = &flight.road;
                tracing::warn!(
                    peer = peer.address(),
                    "closing the connection, on which the payload of a call that has failed does not arrive"
                );
                client.disconnect(peer);
            }
            let patience = match (has_failed, flight.ending.is_withdrawn()) {
                (true, true) => WITHDRAWN_TIME,
                (true, false) => STUCK_TIME,
                (false, _) => return flight.end_with_link(),
            };
            let flight = flight.this.clone();
            after(patience, move || {
                if let Some(flight) = flight.upgrade() {
                    flight.end_with_link();
                }
            });
        });
    }

    /// Whether something is received into memory of Python.
    fn is_written_to(&self) -> bool {
        !lock(&self.landed).is_empty()
    }

    /// Ends the call though its link has not let go of its arrays.
    fn end_with_link(&self) {
        if let Some(outcome) = lock(&self.outcome).take() {
            tracing::warn!(
                peer = self.road.1.address(),
                "a call has ended, and its arrays are still in use; what the peer gets of them is \
                 what they hold by then"
            );
            self.ending.set(outcome);
        }
    }
}

impl CompletionHandler for Flight {
    fn runs_anywhere(&self) -> bool {
        true
    }

    fn on_complete(
        self: Arc<Self>,
        _token: u64,
        result: CallResult,
        _shard: &mut ShardContext<'_>,
    ) {
        let is_failure = result.is_err();
        if let Ok(response) = &result {
            response.expose();
        }
        self.set(result.map(|response| self.arrived(response)));
        if Arc::strong_count(&self) > 1 {
            self.await_link(is_failure);
        }
    }

    fn allocates(&self, _token: u64) -> bool {
        !self.places.is_empty() || self.brings_memory
    }

    fn allocate(
        &self,
        _token: u64,
        index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        let Some(place) = self.places.get(index).and_then(Option::as_ref) else {
            let is_wanted = self.brings_memory && !meta.is_dead;
            let memory = is_wanted.then(|| for_array(meta.data_bytes))??;
            let (brought, memory) = Brought::new(memory);
            lock(&self.brought).push((index, brought));
            return Some(Ok(memory));
        };
        if place.len() as u64 != meta.data_bytes {
            return None;
        }
        let memory = place.take(self.this.upgrade())?;
        lock(&self.landed).push(index);
        Some(Ok(memory))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let outcome = self
            .outcome
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let outcome = outcome.take().unwrap_or_else(|| {
            let text = "the engine stopped before the call ended";
            Err(Status::new(Code::Unavailable, text).because(Reason::Stopping))
        });
        self.ending.set_unless_over(outcome);
    }
}

fn tensor_at(response: &mut Response, index: usize) -> Option<&mut Tensor> {
    match response {
        Response::Tensors(tensors) => tensors.get_mut(index),
        Response::Fetched(tensors) => tensors.get_mut(index).map(|(_, tensor)| tensor),
        Response::Message(_) | Response::Unary(_) => None,
    }
}

/// How long the payload of a call that has failed may take to arrive, or to leave, while its memory
/// is Python's.
const STUCK_TIME: Duration = Duration::from_secs(2);

/// How much longer that is for one that was withdrawn by somebody who will use the memory.
const WITHDRAWN_TIME: Duration = Duration::from_secs(8);

/// How long the end of a call that was withdrawn is awaited: longer than all of that.
const WITHDRAWN_TIME_MAX: Duration = Duration::from_secs(12);
