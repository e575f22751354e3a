//! Streams among the operations: methods of all kinds, clients that read all, slowly or never, that
//! end their messages, leave them open or cut them, and what each end has seen of each stream.

mod client;
mod operations;
mod server;

use std::collections::BTreeMap;

use bytes::Bytes;
use fastrand::Rng;
use grpcxx_rpc::{Code, Status};
use prost::Message;

pub(super) use self::client::OpenStream;
pub(super) use self::server::register;
use super::calls::State;
use super::model::Model;

/// A message of a stream.
#[derive(Clone, PartialEq, Message)]
struct Numbered {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(bytes = "bytes", tag = "2")]
    data: Bytes,
}

/// What both ends of a stream are to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPlan {
    kind: StreamKind,
    /// Messages of the client.
    requests: u64,
    ending: Ending,
    /// Messages after which the server ends the stream, if not all.
    takes: u64,
    /// Messages of a server that is asked once.
    answers: u64,
    /// Whether the server fails behind its messages.
    fails: bool,
    reading: Reading,
    bytes_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamKind {
    /// One message is answered with many.
    Tell,
    /// Many messages are answered with one, which has their number.
    Listen,
    /// Each message is answered with one.
    Talk,
}

/// What a client does behind its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Ends,
    LeavesOpen,
    Cuts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    All,
    Slowly,
    Never,
}

/// What both ends have seen of the streams.
#[derive(Debug, Default)]
pub(super) struct Progresses {
    by_call: BTreeMap<usize, Progress>,
    /// What a server has seen that must not be; there a panic would be a status.
    fault: Option<String>,
    /// Messages that arrived, at either end.
    pub(super) messages: u64,
}

/// What both ends have seen of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    begun: u32,
    taken_by_server: u64,
    sent_by_server: u64,
    taken_by_client: u64,
    was_cut: bool,
}

impl StreamPlan {
    fn draw(random: &mut Rng, bytes_max: usize, is_slow: bool) -> Self {
        let kind = match random.u32(..3) {
            0 => StreamKind::Tell,
            1 => StreamKind::Listen,
            _ => StreamKind::Talk,
        };
        // Some go beyond what a stream begins with of credits.
        let mut count = || match random.u32(..4) {
            0 => random.u64(..4),
            1..=2 => random.u64(..40),
            _ => random.u64(..200),
        };
        let (requests, answers, takes) = (count(), count(), count());
        let mut plan = Self {
            kind,
            requests,
            ending: match random.u32(..8) {
                0 => Ending::LeavesOpen,
                1 => Ending::Cuts,
                _ => Ending::Ends,
            },
            takes: match random.u32(..3) {
                0 => takes,
                _ => u64::MAX,
            },
            answers,
            fails: random.u32(..6) == 0,
            reading: match random.u32(..6) {
                0 => Reading::Never,
                1..=2 => Reading::Slowly,
                _ => Reading::All,
            },
            bytes_max,
        };
        if kind == StreamKind::Tell {
            (plan.requests, plan.ending) = (1, Ending::Ends);
        }
        if !is_slow && kind == StreamKind::Tell && random.u32(..16) == 0 {
            // More than the credits of a reader that never reads.
            (plan.answers, plan.bytes_max) = (60_000, 0);
            plan.reading = Reading::Never;
        }
        plan
    }

    /// Whether the server fails behind its messages.
    pub(super) fn fails(&self) -> bool {
        self.fails
    }

    /// How many messages the client gets, if nothing goes wrong.
    fn due(&self) -> u64 {
        match self.kind {
            StreamKind::Tell => self.answers,
            StreamKind::Listen => u64::from(!self.fails),
            StreamKind::Talk => self.requests.min(self.takes),
        }
    }
}

impl Progresses {
    fn of(&mut self, call: usize) -> &mut Progress {
        self.by_call.entry(call).or_default()
    }

    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.fault.get_or_insert_with(what);
        }
    }
}

impl Model {
    /// Whether a stream failed because its client has cut it.
    pub(super) fn was_cut(&self, call: usize) -> bool {
        let progress = self.streams.by_call.get(&call);
        progress.is_some_and(|progress| progress.was_cut)
    }

    /// A stream has ended.
    fn finish_stream(&mut self, id: usize, plan: &StreamPlan, result: &Result<(), Status>) {
        let progress = *self.streams.of(id);
        self.note(format_args!("stream {id} {result:?} {progress:?}"));
        let code = result.as_ref().err().map(|status| status.code);
        self.calls.close(id, State::Finished(code));
        let got = progress.taken_by_client;
        match result {
            Ok(()) => {
                assert!(
                    !plan.fails,
                    "stream {id} was to fail: {plan:?} {progress:?}"
                );
                assert_eq!(got, plan.due(), "stream {id}: {plan:?} {progress:?}");
            }
            Err(status) => {
                assert!(got <= plan.due(), "stream {id}: {plan:?} {progress:?}");
                if status.code == Code::DataLoss {
                    // It comes behind all messages.
                    assert_eq!(got, plan.due(), "stream {id}: {plan:?} {progress:?}");
                }
                self.check_failure(id, status);
            }
        }
    }
}

/// The message that a stream has at this place.
fn message(stream: usize, direction: u64, number: u64, bytes_max: usize) -> Numbered {
    let mut random = Rng::with_seed((stream as u64) << 32 | number << 1 | direction);
    let len = match random.u32(..8) {
        0 => 0,
        1..=5 => random.usize(..=bytes_max.min(100)),
        6 => random.usize(..=bytes_max / 8),
        _ => random.usize(..=bytes_max),
    };
    // Not what tensors begin with.
    let byte = random.u8(..0x80);
    Numbered {
        number,
        data: vec![byte; len].into(),
    }
}

const STREAM: &str = "stream";
const REQUEST: u64 = 0;
const ANSWER: u64 = 1;
