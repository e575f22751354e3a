//! Graph calls and calls by path, as a client makes them from requests that their callers keep.

use grpcxx_transport::{Frame, Time};

use crate::connection::calls::{CallId, CallOptions, Expected};
use crate::connection::client::ClientConnection;
use crate::connection::encode;
use crate::extensions::element_types;
use crate::extensions::services::client::wanted_of_call;
use crate::wire::Features;
use crate::{Envelope, GraphCall, Status};

impl ClientConnection {
    /// Whether [`ClientConnection::call_graph`] may be used for this call, which does not need that
    /// its peer has announced anything.
    #[inline]
    pub fn takes_graph(&self, now: Time, call: &GraphCall, options: &CallOptions) -> bool {
        self.takes_kept(now, options)
            && self.peer.is_some()
            && wanted_of_call(call) == Features::NONE
    }

    /// Starts a graph call, as [`ClientConnection::call`] does, and leaves it to its caller, who
    /// may make it again. [`ClientConnection::takes_graph`] has to be true.
    pub fn call_graph(&mut self, now: Time, call: &GraphCall, options: CallOptions) -> CallId {
        debug_assert!(self.takes_graph(now, call, &options));
        self.call_kept(now, options, |own, frame, (tag, timeout_ms)| {
            let common = own.common();
            element_types::check(common, call.feeds.iter().map(|(_, feed)| feed.dtype))?;
            let limits = own.reader.limits.between(common);
            let records = &mut own.outgoing.records;
            encode::graph_request(frame, tag, timeout_ms, call, &limits, records)?;
            let names = call.fetches.clone();
            Ok(Expected::Fetched { names })
        })
    }

    /// Whether [`ClientConnection::call_path`] may be used: the peer knows calls by path.
    #[inline]
    pub fn takes_path(&self, now: Time, options: &CallOptions) -> bool {
        self.takes_kept(now, options) && self.has(Features::SERVICES)
    }

    /// Starts a call by path, as [`ClientConnection::call`] does, and leaves the envelope to its
    /// caller, who may send it again. [`ClientConnection::takes_path`] has to be true.
    pub fn call_path(&mut self, now: Time, envelope: &Envelope, options: CallOptions) -> CallId {
        debug_assert!(self.takes_path(now, &options));
        self.call_kept(now, options, |own, frame, (tag, timeout_ms)| {
            let limits = own.reader.limits.between(own.common());
            encode::unary_request(frame, tag, timeout_ms, envelope, &limits)?;
            Ok(Expected::Unary)
        })
    }

    #[inline]
    fn takes_kept(&self, now: Time, options: &CallOptions) -> bool {
        let is_in_time = options.deadline.is_none_or(|deadline| deadline > now);
        is_in_time && self.takes_calls()
    }

    /// Starts a call whose request `encode` writes, with this tag and timeout.
    #[inline]
    fn call_kept(
        &mut self,
        now: Time,
        options: CallOptions,
        encode: impl FnOnce(&mut Self, &mut Frame, (u64, i32)) -> Result<Expected, Status>,
    ) -> CallId {
        let deadline = options.deadline;
        let timeout_ms = deadline.map_or(0, |deadline| self.timeout_ms(deadline, now));
        let id = self.begin_call(options, timeout_ms, false);
        let mut frame = self.outgoing.empty_frame();
        match encode(self, &mut frame, (id.raw(), timeout_ms)) {
            Ok(expected) => {
                frame.token = id.raw();
                self.outgoing.push(frame);
                self.expect(id, expected);
            }
            Err(status) => {
                self.outgoing.recycle(frame);
                self.finish(id, Err(status));
            }
        }
        CallId(id)
    }
}
