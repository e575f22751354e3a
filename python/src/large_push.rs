//! A push that is too large for one call: in several, which become visible together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, GraphCall, Request, Status, Tensor, Text};
use grpcxx_runtime::{Cancellation, Client, Peer, STORE_PUSH, StagedPush};

use crate::call::Begin;
use crate::flight::{Departure, Ending, Outcome, Places};
use crate::waits::WAIT_SLICE;

/// A push that is ready to begin.
pub(crate) struct LargePush {
    pub(crate) client: Client,
    pub(crate) peer: Peer,
    pub(crate) feeds: Vec<(Text, Tensor)>,
    pub(crate) timeout: Option<Duration>,
}

/// The calls of a push that goes on.
struct Journey<'a> {
    client: Client,
    peer: Peer,
    until: Option<Instant>,
    cancellation: &'a Cancellation,
}

/// A call that goes on, and the means to withdraw it.
struct UnderWay {
    ending: Arc<Ending>,
    cancellation: Cancellation,
}

/// Ends the push when its thread does, also by a panic.
struct End {
    ending: Arc<Ending>,
    outcome: Option<Outcome>,
}

/// Whether so many tensors go in several calls.
pub(crate) fn is_large(feeds: &[(Text, Tensor)]) -> bool {
    let bytes: u64 = feeds.iter().map(|(_, tensor)| bytes_of(tensor)).sum();
    feeds.len() > CALL_TENSORS_MAX || (feeds.len() > 1 && bytes > CALL_BYTES_MAX)
}

impl Begin for LargePush {
    /// Begins the push, on a thread of its own: it is seldom, and long.
    fn begin(self, ending: &Arc<Ending>, cancellation: &Cancellation) {
        let (told, cancellation) = (Arc::clone(ending), cancellation.clone());
        let run = move || {
            let mut end = End {
                ending: told,
                outcome: None,
            };
            end.outcome = Some(self.run(&cancellation));
        };
        let thread = thread::Builder::new().name("grpcxx-push".to_owned());
        if let Err(error) = thread.spawn(run) {
            let text = format!("cannot start the thread of a large push: {error}");
            ending.set(Err(Status::new(Code::ResourceExhausted, text)));
        }
    }

    fn road(&self) -> (&Client, &Peer) {
        (&self.client, &self.peer)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let outcome = self.outcome.take().unwrap_or_else(|| {
            let text = "the thread of a large push panicked (please report this)";
            Err(Status::new(Code::Internal, text))
        });
        self.ending.set(outcome);
    }
}

impl LargePush {
    fn run(self, cancellation: &Cancellation) -> Outcome {
        let journey = Journey {
            client: self.client,
            peer: self.peer,
            until: (self.timeout).and_then(|timeout| Instant::now().checked_add(timeout)),
            cancellation,
        };
        let push = StagedPush::new();
        match journey.make(push.begin()) {
            Ok(_) => {}
            Err(status) if StagedPush::is_unknown(&status) => {
                tracing::warn!(
                    peer = journey.peer.address(),
                    "the task is of a version that stages no pushes, so all goes in one call, \
                     which may be too large"
                );
                return journey.make(in_one_call(self.feeds));
            }
            Err(status) => return Err(status),
        }
        let staged = journey.stage_all(push, self.feeds);
        let outcome = staged.and_then(|()| journey.make(push.commit()));
        if outcome.is_err() {
            push.discard(&journey.client, &journey.peer);
        }
        outcome
    }
}

impl Journey<'_> {
    /// Stages tensors, some calls at a time.
    fn stage_all(&self, push: StagedPush, feeds: Vec<(Text, Tensor)>) -> Result<(), Status> {
        let mut under_way = VecDeque::with_capacity(CALLS_AT_ONCE);
        let mut outcome = Ok(());
        for batch in batches(feeds) {
            if under_way.len() == CALLS_AT_ONCE
                && let Some(first) = under_way.pop_front()
            {
                outcome = self.end(first).map(|_| ());
            }
            if outcome.is_err() {
                break;
            }
            under_way.push_back(self.begin(push.stage(batch)));
        }
        for call in under_way {
            if outcome.is_err() {
                call.cancellation.cancel();
            }
            // Arrays are sent from where they lie: no call outlives the push.
            let ended = self.end(call).map(|_| ());
            outcome = outcome.and(ended);
        }
        outcome
    }

    fn make(&self, request: Request) -> Outcome {
        self.end(self.begin(request))
    }

    fn begin(&self, request: Request) -> UnderWay {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let departure = Departure {
            client: self.client.clone(),
            peer: self.peer.clone(),
            request,
            timeout: self.until.map(|until| left(until).max(TIMEOUT_MIN)),
            places: Places::new(),
            brings_memory: false,
        };
        let call = UnderWay {
            ending: Ending::new(None),
            cancellation: Cancellation::new(),
        };
        departure.begin(&call.ending, &call.cancellation);
        call
    }

    /// Waits for the end of a call, which comes soon after the push was withdrawn.
    fn end(&self, call: UnderWay) -> Outcome {
        loop {
            if self.cancellation.is_cancelled() {
                call.cancellation.cancel();
            }
            if let Some(outcome) = call.ending.wait(&self.client, &self.peer, WAIT_SLICE) {
                return outcome;
            }
        }
    }
}

/// Divides tensors among calls, in their order.
fn batches(feeds: Vec<(Text, Tensor)>) -> Vec<Vec<(Text, Tensor)>> {
    let mut batches = Vec::new();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for (name, tensor) in feeds {
        let more = bytes_of(&tensor);
        if !batch.is_empty() && (batch.len() >= BATCH_TENSORS_MAX || bytes + more > BATCH_BYTES) {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += more;
        batch.push((name, tensor));
    }
    batches.push(batch);
    batches
}

fn in_one_call(feeds: Vec<(Text, Tensor)>) -> Request {
    Request::StarRunGraph(Box::new(GraphCall {
        feeds: feeds.into(),
        ..GraphCall::new(STORE_PUSH)
    }))
}

fn bytes_of(tensor: &Tensor) -> u64 {
    tensor.data.len() as u64
}

/// Most tensors of a push of one call: as many as a graph call of ours has.
const CALL_TENSORS_MAX: usize = 1 << 17;

/// Most bytes of a push of one call with several tensors: longer frames may be more than a small
/// server has room for.
const CALL_BYTES_MAX: u64 = 1 << 30;

/// Most tensors of one call of several: as many as a graph call of an original has.
const BATCH_TENSORS_MAX: usize = 32_767;

/// Bytes of one call of several, unless one tensor is longer.
const BATCH_BYTES: u64 = 256 << 20;

/// Calls of one push under way at once.
const CALLS_AT_ONCE: usize = 4;

/// What a call gets whose push has no time left: it ends with the right status.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
