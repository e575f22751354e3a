//! Streams between two joined connections, used in any order at both ends, and what must be true of
//! each after each step.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    CallId, CallOptions, Code, ConnectionLimits, Credit, Envelope, Metadata, Request, RequestId,
    Response, SHARED_MESSAGE_BYTES_MAX, Status, StreamData, StreamEvent, split_first_message,
};
use grpcxx_transport::{Frame, Outcome};

use super::driver::{ClientEnd, ServerEnd, frame_bytes};
use super::pair::Pair;

/// Two connections, the bytes between them, and what is known of their streams.
struct World {
    client: ClientEnd,
    server: ServerEnd,
    to_server: VecDeque<u8>,
    to_client: VecDeque<u8>,
    /// Frames that links have taken and not yet sent.
    at_client_link: VecDeque<Box<Frame>>,
    at_server_link: VecDeque<Box<Frame>>,
    /// By the token of the call.
    streams: BTreeMap<u64, Stream>,
    tokens: u64,
}

/// What is known of a stream whose call has not ended.
struct Stream {
    call: CallId,
    /// While the server has it.
    request: Option<RequestId>,
    up: Direction,
    down: Direction,
    has_head: bool,
    head_arrived: bool,
    /// What the server has answered.
    answer: Option<Result<(), ()>>,
    is_cancelled: bool,
    has_deadline: bool,
}

/// The messages of one direction of a stream.
#[derive(Default)]
struct Direction {
    sent: u64,
    arrived: u64,
    part: Vec<u8>,
    /// What has come and was not yet given back.
    held: Credit,
    is_ended: bool,
    end_arrived: bool,
}

/// Runs the steps that the bytes stand for. Both ends are correct, so nothing is a violation, each
/// message arrives once and in order, each stream ends once, with a reason, and behind all messages
/// of its server; and if both ends go on, it ends.
pub fn streams(data: &[u8]) {
    let mut bytes = data.iter().copied();
    let Some(kind) = bytes.next() else {
        return;
    };
    let limits = ConnectionLimits::default().with(|limits| {
        limits.outstanding_calls = 8;
        limits.streams = 4;
        if kind & 1 != 0 {
            limits.whole_frame_bytes = 2000;
            limits.chunk_bytes = 2500;
        }
    });
    let Pair { client, server, .. } = Pair::announced_with_limits(limits);
    let mut world = World {
        client,
        server,
        to_server: VecDeque::new(),
        to_client: VecDeque::new(),
        at_client_link: VecDeque::new(),
        at_server_link: VecDeque::new(),
        streams: BTreeMap::new(),
        tokens: 0,
    };
    while let Some(step) = bytes.next() {
        world.step(step, bytes.next().unwrap_or(0));
        world.look();
    }
    match kind & 2 {
        0 => world.finish(),
        _ => world.lose(),
    }
    assert!(world.streams.is_empty(), "each stream ends");
}

impl World {
    fn step(&mut self, step: u8, argument: u8) {
        match step % 18 {
            0 | 17 => self.open(argument),
            1 => self.client_sends(argument),
            2 => self.server_sends(argument),
            3 => self.client_ends(argument),
            4 => self.server_begins(argument),
            5 => self.server_answers(argument),
            6 => self.client_cancels(argument),
            7 => self.client_gives(argument),
            8 => self.server_gives(argument),
            9 => self.client_frames(argument),
            10 => {
                let piece = take(&mut self.to_server, argument);
                self.server.offer(&piece);
            }
            11 => self.server_frames(argument),
            12 => {
                let piece = take(&mut self.to_client, argument);
                self.client.offer(&piece);
            }
            13 => self.frames_leave(argument),
            14 => self.refuse_frames(),
            15 => self.pass_time(argument),
            _ => self.carry(),
        }
    }

    fn open(&mut self, argument: u8) {
        let token = self.tokens;
        let writer = Envelope::request(&format!("/s/{token}"), &Metadata::default(), 0);
        let request = Request::Stream(Box::new(writer.expect("a path").finish()));
        let deadline = (argument & 0x80 != 0)
            .then(|| self.client.now + Duration::from_millis(u64::from(argument & 0x3f)));
        let options = CallOptions {
            token,
            deadline,
            ..CallOptions::default()
        };
        if let Ok(call) = self.client.end.call(self.client.now, request, options) {
            self.tokens += 1;
            let stream = Stream {
                call,
                request: None,
                up: Direction::default(),
                down: Direction::default(),
                has_head: false,
                head_arrived: false,
                answer: None,
                is_cancelled: false,
                has_deadline: deadline.is_some(),
            };
            self.streams.insert(token, stream);
        }
    }

    /// A stream at the client.
    fn chosen(&mut self, argument: u8) -> Option<(u64, &mut Stream)> {
        let count = self.streams.len();
        let place = usize::from(argument & 7) % count.max(1);
        let (token, stream) = self.streams.iter_mut().nth(place)?;
        Some((*token, stream))
    }

    fn client_sends(&mut self, argument: u8) {
        if let Some((token, stream)) = self.chosen(argument)
            && !stream.up.is_ended
        {
            let call = stream.call;
            let data = stream.up.send(token, UP, argument);
            self.client.end.send_on_stream(call, data);
        }
    }

    fn server_sends(&mut self, argument: u8) {
        if let Some((token, stream)) = self.chosen(argument)
            && let (Some(request), None) = (stream.request, stream.answer)
        {
            let data = stream.down.send(token, DOWN, argument);
            self.server.end.send_on_stream(request, data);
        }
    }

    fn client_ends(&mut self, argument: u8) {
        if let Some((_, stream)) = self.chosen(argument) {
            stream.up.is_ended = true;
            let call = stream.call;
            self.client.end.end_stream(call);
        }
    }

    fn server_begins(&mut self, argument: u8) {
        if let Some((_, stream)) = self.chosen(argument)
            && let (Some(request), None) = (stream.request, stream.answer)
            && !stream.has_head
            && stream.down.sent == 0
        {
            stream.has_head = true;
            self.server.end.send_head(request, &metadata());
        }
    }

    fn server_answers(&mut self, argument: u8) {
        if let Some((token, stream)) = self.chosen(argument)
            && let (Some(request), None) = (stream.request, stream.answer)
        {
            let (answer, result) = match argument & 0x80 {
                0 => (Ok(()), Ok(trailers())),
                _ => (Err(()), Err(Status::new(Code::Aborted, "aborted"))),
            };
            if self.server.end.answer(request, result)
                && let Some(stream) = self.streams.get_mut(&token)
            {
                stream.answer = Some(answer);
            }
        }
    }

    fn client_cancels(&mut self, argument: u8) {
        if let Some((_, stream)) = self.chosen(argument) {
            let call = stream.call;
            stream.is_cancelled = true;
            assert!(self.client.end.cancel(call));
        }
    }

    fn client_gives(&mut self, argument: u8) {
        if let Some((_, stream)) = self.chosen(argument) {
            let (call, credit) = (stream.call, stream.down.give());
            self.client.end.give_on_stream(call, credit);
        }
    }

    fn server_gives(&mut self, argument: u8) {
        if let Some((_, stream)) = self.chosen(argument)
            && let Some(request) = stream.request
        {
            let credit = stream.up.give();
            self.server.end.give_on_stream(request, credit);
        }
    }

    fn client_frames(&mut self, count: u8) {
        for _ in 0..count {
            let Some(frame) = self.client.end.poll_frame() else {
                return;
            };
            self.to_server.extend(frame_bytes(&frame));
            self.at_client_link.push_back(frame);
        }
    }

    fn server_frames(&mut self, count: u8) {
        for _ in 0..count {
            let Some(frame) = self.server.end.poll_frame() else {
                return;
            };
            self.to_client.extend(frame_bytes(&frame));
            self.at_server_link.push_back(frame);
        }
    }

    fn frames_leave(&mut self, count: u8) {
        for _ in 0..count {
            if let Some(frame) = self.at_client_link.pop_front() {
                self.client.end.handle_sent(frame, Outcome::Done);
            }
            if let Some(frame) = self.at_server_link.pop_front() {
                self.server.end.handle_sent(frame, Outcome::Done);
            }
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

    fn pass_time(&mut self, ms: u8) {
        for now in [&mut self.client.now, &mut self.server.now] {
            *now = *now + Duration::from_millis(u64::from(ms));
        }
        self.client.end.handle_timeout(self.client.now);
        self.server.end.handle_timeout(self.server.now);
    }

    /// All bytes cross.
    fn carry(&mut self) {
        self.client_frames(u8::MAX);
        let piece = take(&mut self.to_server, 0);
        self.server.offer(&piece);
        self.server.resume();
        self.look();
        self.server_frames(u8::MAX);
        let piece = take(&mut self.to_client, 0);
        self.client.offer(&piece);
        self.frames_leave(u8::MAX);
    }

    /// Both ends go on until all streams have ended.
    fn finish(&mut self) {
        for _ in 0..500 {
            for argument in 0..8 {
                self.client_gives(argument);
                self.server_gives(argument);
                self.server_answers(argument);
            }
            self.carry();
            self.look();
            if self.streams.is_empty() {
                return;
            }
        }
    }

    fn lose(&mut self) {
        let status = Status::new(Code::Unavailable, "the connection is gone");
        for frame in std::mem::take(&mut self.at_client_link) {
            self.client.end.handle_sent(frame, Outcome::Lost);
        }
        for frame in std::mem::take(&mut self.at_server_link) {
            self.server.end.handle_sent(frame, Outcome::Lost);
        }
        self.client.close(&status);
        self.server.close(&status);
        self.look();
        assert_eq!(self.server.end.outstanding_requests().count(), 0);
    }

    /// Takes what both ends tell, and holds it against what is known.
    fn look(&mut self) {
        assert_eq!(self.client.violation, None);
        assert_eq!(self.server.violation, None);
        while let Some(request) = self.server.end.poll_cancelled() {
            if let Some((_, stream)) = self.of_request(request.token()) {
                stream.request = None;
            }
        }
        while let Some(incoming) = self.server.end.poll_request() {
            let Request::Stream(envelope) = &incoming.request else {
                panic!("nobody asks for {:?}", incoming.request);
            };
            let token = envelope.path().strip_prefix("/s/").map(str::parse);
            let token: u64 = token.expect("it is ours").expect("it is a number");
            // The client may have given it up meanwhile.
            if let Some(stream) = self.streams.get_mut(&token) {
                assert_eq!(stream.request, None, "stream {token} begins once");
                stream.request = Some(incoming.id);
            }
        }
        while let Some(news) = self.server.end.poll_stream() {
            if let Some((token, stream)) = self.of_request(news.token) {
                match news.what {
                    StreamEvent::Head(_) => panic!("a client has no head"),
                    StreamEvent::Ended => {
                        assert_eq!(stream.up.arrived, stream.up.sent, "the end comes last");
                        stream.up.end_arrived = true;
                    }
                    StreamEvent::Drained => {}
                    event => stream.up.arrive(token, UP, event),
                }
            }
        }
        while let Some(news) = self.client.end.poll_stream() {
            let token = news.token;
            let stream = self.streams.get_mut(&token).expect("it has not ended");
            match news.what {
                StreamEvent::Ended => panic!("a server ends with its answer"),
                StreamEvent::Head(head) => {
                    assert!(stream.has_head && stream.down.arrived == 0);
                    assert_eq!(head, metadata());
                    stream.head_arrived = true;
                }
                StreamEvent::Drained => {}
                event => stream.down.arrive(token, DOWN, event),
            }
        }
        while let Some(finished) = self.client.end.poll_finished() {
            let stream = self.streams.remove(&finished.token);
            let stream = stream.expect("a stream ends once");
            assert_eq!(stream.call, finished.call);
            stream.check_end(finished.result);
        }
        assert_eq!(self.client.end.outstanding_calls(), self.streams.len());
    }

    fn of_request(&mut self, request: u64) -> Option<(u64, &mut Stream)> {
        let is_it = |stream: &Stream| stream.request.is_some_and(|id| id.token() == request);
        let mut streams = self.streams.iter_mut();
        let (token, stream) = streams.find(|(_, stream)| is_it(stream))?;
        Some((*token, stream))
    }
}

impl Stream {
    fn check_end(self, result: Result<Response, Status>) {
        let answer = match result {
            Ok(response) => {
                assert_eq!(response, trailers());
                Ok(())
            }
            Err(status) => match status.code {
                Code::Aborted => Err(()),
                Code::Cancelled => return assert!(self.is_cancelled, "{status}"),
                Code::DeadlineExceeded => return assert!(self.has_deadline, "{status}"),
                // Only so many are open at once.
                Code::ResourceExhausted => {
                    return assert!(self.request.is_none() && self.answer.is_none(), "{status}");
                }
                Code::Unavailable => return,
                _ => panic!("nothing explains {status}"),
            },
        };
        assert_eq!(self.answer, Some(answer));
        assert_eq!(self.down.arrived, self.down.sent, "the answer comes last");
        assert_eq!(self.head_arrived, self.has_head);
    }
}

impl Direction {
    /// The next messages.
    fn send(&mut self, token: u64, direction: u64, argument: u8) -> StreamData {
        let first = content(token, direction, self.sent);
        self.sent += 1;
        if first.len() > SHARED_MESSAGE_BYTES_MAX || argument & 0x40 != 0 {
            let (one, other) = first.split_at(first.len() / 3);
            let pieces = [one, other].map(|piece| Buffer::from(piece.to_vec()));
            return StreamData::Message(pieces.into());
        }
        let mut run = Vec::new();
        add(&mut run, &first);
        for _ in 0..argument >> 3 & 7 {
            let next = content(token, direction, self.sent);
            if next.len() > SHARED_MESSAGE_BYTES_MAX {
                break;
            }
            self.sent += 1;
            add(&mut run, &next);
        }
        StreamData::Messages(Buffer::from(run))
    }

    /// Takes what has come.
    fn arrive(&mut self, token: u64, direction: u64, event: StreamEvent) {
        assert!(!self.end_arrived, "nothing comes behind the end");
        match event {
            StreamEvent::Messages(run, count) => {
                assert!(self.part.is_empty(), "nothing comes within a message");
                self.hold(count, run.len());
                let (mut rest, before) = (&run[..], self.arrived);
                while let Some((message, behind)) = split_first_message(rest) {
                    self.check(token, direction, message);
                    rest = behind;
                }
                assert!(rest.is_empty());
                assert_eq!(self.arrived - before, u64::from(count));
            }
            StreamEvent::Part { bytes, is_last } => {
                self.part.extend_from_slice(&bytes);
                self.hold(u32::from(is_last), bytes.len());
                if is_last {
                    let message = std::mem::take(&mut self.part);
                    self.check(token, direction, &message);
                }
            }
            other => unreachable!("{other:?} was taken"),
        }
    }

    fn hold(&mut self, messages: u32, bytes: usize) {
        self.held.messages += messages;
        self.held.bytes += bytes as u32;
        // Each end gives back no more than has come, so this is all that may be under way.
        assert!(self.held.messages <= Credit::FIRST.messages);
        assert!(self.held.bytes <= Credit::FIRST.bytes);
    }

    fn check(&mut self, token: u64, direction: u64, message: &[u8]) {
        assert!(self.arrived < self.sent, "a message arrives once");
        let expected = content(token, direction, self.arrived);
        assert!(*message == *expected, "message {} of {token}", self.arrived);
        self.arrived += 1;
    }

    fn give(&mut self) -> Credit {
        std::mem::take(&mut self.held)
    }
}

/// A message, which follows from its place.
fn content(token: u64, direction: u64, number: u64) -> Vec<u8> {
    let mixed = (token * 7 + direction * 3 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let lengths = [0, 1, 9, 100, 1000, 4096, 4097, 150_000];
    let len = lengths[(mixed >> 61) as usize];
    vec![mixed as u8; len]
}

fn add(run: &mut Vec<u8>, message: &[u8]) {
    run.extend_from_slice(&(message.len() as u32).to_le_bytes());
    run.extend_from_slice(message);
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::default();
    metadata.insert("name", "value").expect("it has room");
    metadata
}

fn trailers() -> Response {
    Response::Unary(Envelope::answer(&metadata(), 0).finish())
}

/// Takes some bytes; 0 takes all.
fn take(wire: &mut VecDeque<u8>, count: u8) -> Vec<u8> {
    let count = match count {
        0 => wire.len(),
        count => (usize::from(count) * 97).min(wire.len()),
    };
    wire.drain(..count).collect()
}

const UP: u64 = 0;
const DOWN: u64 = 1;
