//! Sequences of operations on two joined connections, and what must be true after each.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    CallId, CallOptions, ClientConnection, Code, Features, Incoming, Method, Request, RequestId,
    Response, ServerConnection, Status,
};
use grpcxx_transport::{Frame, Outcome};

use super::driver::{ClientEnd, Port, ServerEnd, frame_bytes};
use super::fuzz::limits;
use super::make::{bytes_tensor, fuse, graph, message, named, receive};

/// Two connections, the bytes between them, and what has been asked of them.
struct World {
    client: ClientEnd,
    server: ServerEnd,
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// Frames that the server's link has taken and not yet sent.
    at_link: VecDeque<Box<Frame>>,
    /// Calls without a result, by id: the token, and the result if it is a success.
    open: BTreeMap<CallId, (u64, Response)>,
    tokens: u64,
    pending: Vec<Incoming>,
    /// Requests that were handed out and have no answer, by id.
    handed_out: BTreeMap<RequestId, Request>,
}

/// Runs the operations that the bytes stand for. Both ends are correct, so no order of events is a
/// violation, each call ends once, and what arrives is what was sent.
pub fn operations(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let announced = |byte: u8| {
        let chunks = if byte & 4 == 0 {
            Features::NONE
        } else {
            Features::CHUNKS
        };
        Features::from_bits(u64::from(byte & 3)) | chunks
    };
    let (Some(client), Some(server)) = (bytes.next(), bytes.next()) else {
        return;
    };
    let mut world = World {
        client: Port::new(ClientConnection::new(limits(), announced(client))),
        server: Port::new(ServerConnection::new(limits(), announced(server))),
        to_server: VecDeque::new(),
        to_client: VecDeque::new(),
        at_link: VecDeque::new(),
        open: BTreeMap::new(),
        tokens: 0,
        pending: Vec::new(),
        handed_out: BTreeMap::new(),
    };
    while let Some(operation) = bytes.next() {
        world.step(operation, bytes.next().unwrap_or(0));
        world.check();
    }
    world.lose();
    world.check();
    assert!(world.open.is_empty(), "a lost link ends all calls");
    assert!(world.handed_out.is_empty(), "and all requests");
}

impl World {
    fn step(&mut self, operation: u8, argument: u8) {
        match operation % 14 {
            0 => self.call(argument),
            1 => self.cancel(argument),
            2 => self.send_requests(argument),
            3 => {
                let piece = take(&mut self.to_server, argument);
                self.server.offer(&piece);
            }
            4 => self.poll_requests(),
            5 => self.answer(argument),
            6 => self.take_responses(argument),
            7 => self.send_responses(argument),
            8 => {
                let piece = take(&mut self.to_client, argument);
                self.client.offer(&piece);
            }
            9 => self.pass_time(argument),
            10 => self.refuse_frames(),
            11 => {
                self.server.resume();
            }
            12 => self.poll_cancelled(),
            _ => self.settle(),
        }
    }

    fn call(&mut self, argument: u8) {
        let token = self.tokens;
        let deadline = (argument & 0x80 != 0)
            .then(|| self.client.now + Duration::from_millis(u64::from(argument & 0x3f)));
        let options = CallOptions {
            token,
            deadline,
            shares_memory: argument & 0x40 != 0,
        };
        let now = self.client.now;
        let request = request(token, argument);
        let response = response(&request);
        if let Ok(call) = self.client.end.call(now, request, options) {
            self.tokens += 1;
            assert_eq!(
                self.open.insert(call, (token, response)),
                None,
                "ids are unique"
            );
        }
    }

    fn cancel(&mut self, argument: u8) {
        let call = self.open.keys().nth(usize::from(argument)).copied();
        if let Some(call) = call {
            assert!(self.client.end.cancel(call));
            assert!(!self.client.end.cancel(call));
        }
    }

    fn send_requests(&mut self, count: u8) {
        for _ in 0..count {
            match self.client.drain_one() {
                Some(bytes) => self.to_server.extend(bytes),
                None => return,
            }
        }
    }

    fn poll_requests(&mut self) {
        while let Some(incoming) = self.server.end.poll_request() {
            let (id, request) = (incoming.id, incoming.request.clone());
            assert_eq!(self.handed_out.insert(id, request), None, "ids are unique");
            self.pending.push(incoming);
        }
    }

    fn answer(&mut self, argument: u8) {
        if self.pending.is_empty() {
            return;
        }
        let place = usize::from(argument >> 2) % self.pending.len();
        let incoming = self.pending.swap_remove(place);
        let wanted = self.server.end.is_outstanding(incoming.id);
        let result = match argument & 3 {
            0 => Err(Status::new(Code::Aborted, "aborted")),
            _ => Ok(response(&incoming.request)),
        };
        assert_eq!(self.server.end.answer(incoming.id, result), wanted);
        if wanted {
            self.handed_out
                .remove(&incoming.id)
                .expect("it was handed out");
        }
    }

    fn take_responses(&mut self, count: u8) {
        for _ in 0..count {
            match self.server.end.poll_frame() {
                Some(frame) => {
                    self.to_client.extend(frame_bytes(&frame));
                    self.at_link.push_back(frame);
                }
                None => return,
            }
        }
    }

    fn send_responses(&mut self, count: u8) {
        for _ in 0..count {
            if let Some(frame) = self.at_link.pop_front() {
                self.server.end.handle_sent(frame, Outcome::Done);
            }
        }
    }

    fn pass_time(&mut self, ms: u8) {
        for now in [&mut self.client.now, &mut self.server.now] {
            *now = *now + Duration::from_millis(u64::from(ms));
        }
        self.client.end.handle_timeout(self.client.now);
        self.server.end.handle_timeout(self.server.now);
        for due in [
            self.client.end.poll_timeout(),
            self.server.end.poll_timeout(),
        ] {
            assert!(
                due.is_none_or(|due| due > self.client.now),
                "what is due is done"
            );
        }
    }

    fn refuse_frames(&mut self) {
        if let Some(frame) = self.client.end.poll_frame() {
            self.client.end.unpoll_frame(frame);
        }
        if let Some(frame) = self.server.end.poll_frame() {
            self.server.end.unpoll_frame(frame);
        }
    }

    fn poll_cancelled(&mut self) {
        while let Some(id) = self.server.end.poll_cancelled() {
            assert!(!self.server.end.is_outstanding(id));
            self.handed_out.remove(&id).expect("a request ends once");
        }
    }

    /// Everything that can happen without a further decision happens.
    fn settle(&mut self) {
        for _ in 0..4 {
            self.send_requests(u8::MAX);
            let piece = take(&mut self.to_server, 0);
            self.server.offer(&piece);
            self.poll_requests();
            while !self.pending.is_empty() {
                self.answer(1);
            }
            self.take_responses(u8::MAX);
            self.send_responses(u8::MAX);
            self.poll_cancelled();
            self.server.resume();
            let piece = take(&mut self.to_client, 0);
            self.client.offer(&piece);
        }
    }

    fn lose(&mut self) {
        let status = Status::new(Code::Unavailable, "the connection is gone");
        while let Some(frame) = self.at_link.pop_front() {
            self.server.end.handle_sent(frame, Outcome::Lost);
        }
        self.client.close(&status);
        self.server.close(&status);
        self.poll_cancelled();
        for incoming in std::mem::take(&mut self.pending) {
            let late = Ok(response(&incoming.request));
            assert!(!self.server.end.answer(incoming.id, late));
        }
        assert_eq!(self.server.end.poll_request(), None);
        assert_eq!(self.client.end.poll_timeout(), None);
        assert_eq!(self.server.end.poll_timeout(), None);
    }

    /// What is true after each operation.
    fn check(&mut self) {
        assert_eq!(self.client.violation, None);
        assert_eq!(self.server.violation, None);
        while let Some(finished) = self.client.end.poll_finished() {
            let (token, expected) = self.open.remove(&finished.call).expect("a call ends once");
            assert_eq!(finished.token, token);
            if let Ok(found) = finished.result {
                assert_eq!(found, expected, "call {token}");
            }
        }
        assert_eq!(self.client.end.outstanding_calls(), self.open.len());
        while let Some(undelivered) = self.server.end.poll_undelivered() {
            let Response::Tensors(tensors) = response(&undelivered.request) else {
                panic!("only tensors are given back");
            };
            assert_eq!(undelivered.tensors, tensors);
        }
    }
}

/// A request whose kind and size follow from the argument, and that names its token.
fn request(token: u64, argument: u8) -> Request {
    let key = format!("{token}");
    let kind = u64::from(argument & 3);
    match (token + kind) % 4 {
        0 => receive(&key),
        1 => fuse(&[&key, &key]),
        2 => message(Method::RunGraph, key.as_bytes()),
        _ => graph(&key, vec![("x", bytes_tensor(size(token), 1))], &["b", "a"]),
    }
}

/// The answer to a request, which follows from the token that it names.
fn response(request: &Request) -> Response {
    let tensor = |key: &str, seed: u8| {
        let token: u64 = key.parse().expect("keys are tokens");
        bytes_tensor(size(token), seed)
    };
    match request {
        Request::Message {
            method: Method::GetStatus,
            ..
        } => Response::Message(Buffer::new()),
        Request::Message { body, .. } => Response::Message(body.clone()),
        Request::RecvTensor { key, .. } => Response::from(tensor(key, 0)),
        Request::FuseRecvTensor { keys, .. } => Response::Tensors(
            keys.iter()
                .zip(0..)
                .map(|(key, i)| tensor(key, i))
                .collect(),
        ),
        Request::StarRunGraph(call) => {
            let key = &call.graph_handle;
            assert_eq!(call.feeds[0].1, tensor(key, 1), "feeds arrive as they were");
            Response::Fetched(named(vec![("b", tensor(key, 2)), ("a", tensor(key, 3))]))
        }
        Request::Unary(_) | Request::Stream(_) => unreachable!("no such request is made here"),
    }
}

/// Lengths on both sides of what is copied, shown and landed.
fn size(token: u64) -> usize {
    [0, 4, 512, 513, 3000, 9000][token as usize % 6]
}

/// Takes some bytes; 0 takes all.
fn take(wire: &mut VecDeque<u8>, count: u8) -> Vec<u8> {
    let count = match count {
        0 => wire.len(),
        count => (usize::from(count) * 7).min(wire.len()),
    };
    wire.drain(..count).collect()
}
