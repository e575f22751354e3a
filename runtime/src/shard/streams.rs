//! Streams on a shard: what their users send goes to connections, what comes goes to their users,
//! and credits go back to peers as users take messages.

use std::sync::Arc;

use grpcxx_rpc::{Account, CallId, Credit, Envelope, RequestId, Status, StreamData, StreamNews};

use crate::caller::Caller;
use crate::command::{Bells, Origin, SlotId};
use crate::service::{Chunk, Ending, StreamEnds, WINDOW, hang, pipe};
use crate::shard::core::Core;
use crate::shard::functions::Door;
use crate::shard::in_flight::{Details, Stage, from_token};
use crate::shard::shares::StreamShare;

/// Where the messages of a stream go: a connection that we have made, or that a peer has.
trait Carrier {
    fn is_drained(&self) -> bool;
    fn send(&mut self, data: StreamData);
    fn give(&mut self, credit: Credit);
    fn begin(&mut self, ends: &StreamEnds);
    fn end(&mut self);
}

struct Outgoing<'a>(&'a mut grpcxx_rpc::ClientConnection, CallId);

struct Incoming<'a>(&'a mut grpcxx_rpc::ServerConnection, RequestId);

impl Carrier for Outgoing<'_> {
    fn is_drained(&self) -> bool {
        self.0.is_stream_drained(self.1)
    }

    fn send(&mut self, data: StreamData) {
        self.0.send_on_stream(self.1, data);
    }

    fn give(&mut self, credit: Credit) {
        self.0.give_on_stream(self.1, credit);
    }

    /// A client says nothing before its messages.
    fn begin(&mut self, _: &StreamEnds) {}

    fn end(&mut self) {
        self.0.end_stream(self.1);
    }
}

impl Carrier for Incoming<'_> {
    fn is_drained(&self) -> bool {
        self.0.is_stream_drained(self.1)
    }

    fn send(&mut self, data: StreamData) {
        self.0.send_on_stream(self.1, data);
    }

    fn give(&mut self, credit: Credit) {
        self.0.give_on_stream(self.1, credit);
    }

    fn begin(&mut self, ends: &StreamEnds) {
        if let Some(metadata) = ends.outgoing.take_head() {
            self.0.send_head(self.1, &metadata);
        }
    }

    /// The answer says it.
    fn end(&mut self) {}
}

/// Carries out what the user of a stream has done. `is_last` says that the stream ends, and nothing
/// may be left behind.
fn pump(ends: &mut StreamEnds, carrier: &mut impl Carrier, is_last: bool) {
    ends.look();
    if !std::mem::replace(&mut ends.has_window, true) {
        carrier.give(Credit {
            messages: WINDOW.messages - Credit::FIRST.messages,
            bytes: WINDOW.bytes - Credit::FIRST.bytes,
        });
    }
    let released = ends.incoming.take_released();
    if released != Credit::default() {
        carrier.give(released);
    }
    carrier.begin(ends);
    if !is_last && !carrier.is_drained() {
        return;
    }
    while let Some(chunk) = ends.outgoing.take() {
        // A head that was given since goes before what was given behind it.
        carrier.begin(ends);
        carrier.send(match chunk {
            Chunk::Messages(run, _) => StreamData::Messages(run),
            Chunk::Message(pieces) => StreamData::Message(pieces),
            Chunk::Part { bytes, .. } => StreamData::Message(vec![bytes]),
        });
    }
    if ends.outgoing.ending() == Ending::Ended && !ends.has_ended {
        ends.has_ended = true;
        carrier.end();
    }
}

impl<A> Core<A> {
    /// The user of a stream has done something.
    pub(super) fn stream_rang(&mut self, bells: Bells) {
        match bells {
            Bells::Call(number) => {
                if let Some(call) = self.outgoing.calls.numbered(number) {
                    self.pump_call(call);
                }
            }
            Bells::Request(Origin::Link {
                server, request, ..
            }) => self.pump_request(server, request, false),
            // Pipes of this process go from one user to the other.
            Bells::Request(Origin::Local { .. }) => {}
        }
    }

    /// Carries out what the user of a call's stream has done, once the call is on a connection.
    pub(super) fn pump_call(&mut self, call: SlotId) {
        let Some(details) = self.outgoing.calls.details_mut(call) else {
            return;
        };
        let Details {
            stage:
                Stage::OnLink {
                    peer,
                    call: on_link,
                },
            stream: Some(ends),
            ..
        } = details
        else {
            return;
        };
        let (peer, on_link) = (*peer as usize, *on_link);
        let Some(connection) = self.outgoing.peers[peer].connection_mut() else {
            return;
        };
        pump(ends, &mut Outgoing(connection, on_link), false);
        let failure = (ends.outgoing.ending() == Ending::Cut)
            .then(|| ends.outgoing.take_failure().unwrap_or_else(cut));
        if let Some(status) = failure {
            // What the connection says of the call comes too late then.
            connection.cancel(on_link);
            self.finish_call(call, Err(status));
        }
        self.mark_peer(peer);
    }

    /// Carries out what a method has done on its stream.
    pub(super) fn pump_request(&mut self, server: SlotId, request: RequestId, is_last: bool) {
        if let Some(link) = self.incoming.servers.find_mut(server)
            && let Some(ends) = link.streams.get_mut(&request.token())
        {
            pump(ends, &mut Incoming(&mut link.connection, request), is_last);
            self.mark_server(server);
        }
    }

    /// Hands out what has come on the streams of calls to a peer.
    #[cold]
    pub(super) fn take_peer_streams(&mut self, peer: usize) -> usize {
        let mut events = 0;
        while let Some(connection) = self.outgoing.peers[peer].connection_mut()
            && let Some(StreamNews { token, what }) = connection.poll_stream()
        {
            events += 1;
            let call = from_token(token);
            if let Some(Details {
                stream: Some(ends), ..
            }) = self.outgoing.calls.details_mut(call)
                && ends.take(what)
            {
                self.pump_call(call);
            }
        }
        events
    }

    /// Hands out what has come on the streams of a peer.
    #[cold]
    pub(super) fn take_server_streams(&mut self, server: SlotId) -> usize {
        let mut events = 0;
        while let Some(link) = self.incoming.servers.find_mut(server)
            && let Some(StreamNews { token, what }) = link.connection.poll_stream()
        {
            events += 1;
            if let Some(ends) = link.streams.get(&token)
                && ends.take(what)
            {
                self.pump_request(server, RequestId::from_token(token), false);
            }
        }
        events
    }

    /// Lets a method serve a stream.
    pub(super) fn serve_stream(&mut self, origin: Origin, caller: &Caller, envelope: &Envelope) {
        if self.is_stopping() {
            return self.answer(origin, Err(self.stopping()), None);
        }
        let functions = self.shared.functions.load();
        let Some(method) = functions.method(envelope.path()) else {
            let text = functions.unknown_path(envelope.path());
            let unknown = Status::new(grpcxx_rpc::Code::Unimplemented, text);
            return self.answer(origin, Err(unknown), None);
        };
        let share = match self.share_of_stream(origin, caller.account) {
            Ok(share) => share,
            Err(status) => {
                self.counters().streams_refused.add(1);
                return self.answer(origin, Err(status), None);
            }
        };
        let (input, output) = match origin {
            Origin::Link {
                server, request, ..
            } => {
                let Some(link) = self.incoming.servers.find_mut(server) else {
                    return;
                };
                let (incoming, input) = pipe();
                let (output, outgoing) = pipe();
                let mut ends = StreamEnds::new(outgoing, incoming);
                let bells = Bells::Request(origin);
                hang(&mut ends, &self.shared.mailboxes, self.index, bells);
                link.streams.insert(request.token(), ends);
                self.pump_request(server, request, false);
                (input, output)
            }
            Origin::Local { call, .. } => {
                let details = self.outgoing.calls.details_mut(call);
                let Some(ends) = details.and_then(|details| details.stream.take()) else {
                    return;
                };
                let StreamEnds {
                    outgoing, incoming, ..
                } = *ends;
                (outgoing, incoming)
            }
        };
        let asked = (envelope, caller);
        let begun = method.begin_stream(asked, input, output, self.index, share.clone());
        self.carry_on(origin, begun, share, Door::service());
    }

    /// What a stream takes of the share of who has begun it: nothing if that is this process.
    fn share_of_stream(
        &self,
        origin: Origin,
        caller: Account,
    ) -> Result<Option<Arc<StreamShare>>, Status> {
        let begun = match origin {
            Origin::Link { server, .. } => {
                let link = self.incoming.servers.find(server);
                link.map(|link| link.waits.begin_stream(&self.shares))
            }
            Origin::Local { .. } => {
                let accounts = &self.shared.accounts;
                (caller != Account::OWN).then(|| accounts.visit(caller, &self.shares))
            }
        };
        begun.transpose()
    }
}

fn cut() -> Status {
    let text = "the messages of the stream were dropped before their end";
    Status::new(grpcxx_rpc::Code::Cancelled, text).because(grpcxx_rpc::Reason::Cancelled)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::RefCell;

    use grpcxx_memory::Buffer;
    use grpcxx_rpc::Metadata;

    use super::*;
    use crate::service::PipeSender;

    /// A connection whose method says something while it is asked whether it is drained.
    struct Interrupted {
        method: RefCell<Option<PipeSender>>,
        said: Vec<&'static str>,
    }

    impl Carrier for Interrupted {
        fn is_drained(&self) -> bool {
            if let Some(method) = self.method.take() {
                method.set_head(Metadata::default());
                method.push(Chunk::Message(vec![Buffer::from(vec![7])]));
            }
            true
        }

        fn send(&mut self, _: StreamData) {
            self.said.push("message");
        }

        fn give(&mut self, _: Credit) {}

        fn begin(&mut self, ends: &StreamEnds) {
            if ends.outgoing.take_head().is_some() {
                self.said.push("head");
            }
        }

        fn end(&mut self) {}
    }

    #[test]
    fn a_head_leaves_first_whenever_the_method_gives_it() {
        let ((sender, outgoing), (incoming, _input)) = (pipe(), pipe());
        let mut carrier = Interrupted {
            method: RefCell::new(Some(sender)),
            said: Vec::new(),
        };
        pump(
            &mut StreamEnds::new(outgoing, incoming),
            &mut carrier,
            false,
        );
        assert_eq!(carrier.said, ["head", "message"]);
    }
}
