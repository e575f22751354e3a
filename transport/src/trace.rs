use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Next, Outcome, Park, Progress,
    Refused, Time, Transport, TransportError, forward_events, forward_transport,
};

/// A transport that writes down what is submitted and what happens, one line each, for tests to
/// compare.
///
/// Links appear as `slot.generation`, sizes in bytes, and behind an arrow what the link shall do
/// next: `0.1 received 64, used 32 -> land 4096`. Only the newest [`TRACE_LINES_MAX`] lines are
/// kept.
#[derive(Debug)]
pub struct Trace<T> {
    inner: T,
    lines: Lines,
}

/// Lines that a [`Trace`] keeps.
pub const TRACE_LINES_MAX: usize = 10_000;

#[derive(Debug, Default)]
struct Lines(VecDeque<String>);

impl<T: Transport> Trace<T> {
    /// A trace without lines.
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            lines: Lines::default(),
        }
    }

    /// The lines since the last call, oldest first.
    pub fn take_lines(&mut self) -> Vec<String> {
        self.lines.0.drain(..).collect()
    }

    /// The transport behind.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: Transport> Transport for Trace<T> {
    type Accepted = T::Accepted;

    forward_transport!(inner: name submit reading frames_in_flight ends offer upgrade);

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        let result = self.inner.listen(address);
        self.lines.add(match &result {
            Ok((listener, used)) => format!("listener {} on {used}", listener.0),
            Err(error) => format!("no listener: {error}"),
        });
        result
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.lines.add(format!("unlisten {}", listener.0));
        self.inner.unlisten(listener);
    }

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        let order = order(&next);
        let result = self.inner.adopt(accepted, next);
        self.lines.add(match &result {
            Ok(link) => format!("{} adopted -> {order}", name(*link)),
            Err(error) => format!("not adopted: {error}"),
        });
        result
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let result = self.inner.connect(peer);
        self.lines.add(match &result {
            Ok(link) => format!("{} dials {peer}", name(*link)),
            Err(error) => format!("no dial: {error}"),
        });
        result
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let bytes = frame.len_bytes();
        let result = self.inner.send(link, frame);
        let outcome = match &result {
            Ok(()) => "accepted".to_owned(),
            Err(refused) => format!("refused: {}", refused.refusal),
        };
        self.lines
            .add(format!("{} send {bytes} {outcome}", name(link)));
        result
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let order = order(&next);
        let result = self.inner.resume(link, next);
        let outcome = match &result {
            Ok(()) => format!("-> {order}"),
            Err(refused) => format!("refused: {}", refused.refusal),
        };
        self.lines.add(format!("{} resume {outcome}", name(link)));
        result
    }

    fn end_stream(&mut self, link: LinkId) {
        self.lines.add(format!("{} end stream", name(link)));
        self.inner.end_stream(link);
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        let how = if flush { "close with flush" } else { "close" };
        self.lines.add(format!("{} {how}", name(link)));
        self.inner.close(link, flush);
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let lines = &mut self.lines;
        self.inner.turn(now, &mut Writer { lines, handler })
    }
}

impl<T: Park> Park for Trace<T> {
    forward_transport!(inner: park park_fd patience unpark waker watch);
}

/// Sits between a transport and its handler during a turn.
struct Writer<'a, A> {
    lines: &'a mut Lines,
    handler: &'a mut dyn LinkHandler<A>,
}

impl<A> LinkHandler<A> for Writer<'_, A> {
    forward_events!(handler<A>: proven migration);

    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A) {
        self.lines
            .add(format!("listener {} accepts {peer}", listener.0));
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        let next = self.handler.connected(link);
        self.lines
            .add(format!("{} connected -> {}", name(link), order(&next)));
        next
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        let progress = self.handler.received(link, bytes);
        self.lines.add(format!(
            "{} received {}, used {} -> {}",
            name(link),
            bytes.len(),
            progress.consumed_bytes,
            order(&progress.next)
        ));
        progress
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let bytes = landing.filled_bytes();
        let next = self.handler.landed(link, landing, outcome);
        self.lines.add(match outcome {
            Outcome::Done => format!("{} landed {bytes} -> {}", name(link), order(&next)),
            Outcome::Lost => format!("{} lost a landing after {bytes}", name(link)),
        });
        next
    }

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        let how = match outcome {
            Outcome::Done => "sent",
            Outcome::Lost => "lost a frame of",
        };
        self.lines
            .add(format!("{} {how} {}", name(link), frame.len_bytes()));
        self.handler.sent(link, frame, outcome);
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.lines.add(format!("{} gone: {reason}", name(link)));
        self.handler.closed(link, reason);
    }
}

impl Lines {
    fn add(&mut self, line: String) {
        if self.0.len() == TRACE_LINES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }
}

fn name(link: LinkId) -> String {
    format!("{}.{}", link.slot, link.generation)
}

fn order(next: &Next) -> String {
    match next {
        Next::Head { at_least_bytes } => format!("head {at_least_bytes}"),
        Next::Land(landing) => format!("land {}", landing.remaining_bytes()),
        Next::Discard {
            bytes,
            then_at_least_bytes,
        } => format!("discard {bytes}, head {then_at_least_bytes}"),
        Next::Pause => "pause".to_owned(),
    }
}
