//! Streams between two connections without a link.

use crate::support;
use crate::support::Pair;

mod rules;

use std::time::Duration;

use grpcxx_memory::Buffer;
use grpcxx_rpc::wire::{HEADER_BYTES, RequestHeader, STREAM_METHOD, STREAM_OPEN_METHOD};
use grpcxx_rpc::{
    CallId, CallOptions, Code, ConnectionLimits, Credit, Envelope, Features, Metadata, Reason,
    Request, RequestId, Response, Status, StreamCount, StreamData, StreamEvent, StreamNews,
    split_first_message,
};
use grpcxx_transport::Time;
use proptest::prelude::*;

const PATH: &str = "/demo.Greeter/Chat";
const TOKEN: u64 = 77;

/// A client and a server with one stream between them, which the service has.
pub(crate) struct Open {
    pair: Pair,
    call: CallId,
    request: RequestId,
}

fn request() -> Request {
    let writer = Envelope::request(PATH, &Metadata::default(), 0).unwrap();
    Request::Stream(Box::new(writer.finish()))
}

fn trailers(name: &str) -> Result<Response, Status> {
    let mut metadata = Metadata::default();
    metadata.insert(name, "value").unwrap();
    Ok(Response::Unary(Envelope::answer(&metadata, 0).finish()))
}

/// Messages one behind the other, as they lie in records.
fn run(messages: &[&[u8]]) -> Buffer {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
        bytes.extend_from_slice(message);
    }
    Buffer::from(bytes)
}

fn messages_of(mut run: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((message, rest)) = split_first_message(run) {
        messages.push(message.to_vec());
        run = rest;
    }
    assert!(run.is_empty());
    messages
}

impl Open {
    fn new() -> Self {
        Self::with_options(CallOptions {
            token: TOKEN,
            ..CallOptions::default()
        })
    }

    fn with_options(options: CallOptions) -> Self {
        let mut pair = Pair::announced();
        let call = pair.call_with(request(), options);
        pair.carry_requests();
        let incoming = pair.request();
        assert_eq!(incoming.request, request());
        Self {
            pair,
            call,
            request: incoming.id,
        }
    }

    fn client_sends(&mut self, data: StreamData) {
        self.pair.client.end.send_on_stream(self.call, data);
    }

    fn server_sends(&mut self, data: StreamData) {
        self.pair.server.end.send_on_stream(self.request, data);
    }

    fn carry(&mut self) {
        self.pair.carry_requests();
        self.pair.carry_responses();
        self.pair.carry_requests();
    }

    /// What the server has heard, without what it was told of its own messages.
    fn at_server(&mut self) -> Vec<StreamEvent> {
        let token = self.request.token();
        events(
            std::iter::from_fn(|| self.pair.server.end.poll_stream()),
            token,
        )
    }

    fn at_client(&mut self) -> Vec<StreamEvent> {
        events(
            std::iter::from_fn(|| self.pair.client.end.poll_stream()),
            TOKEN,
        )
    }

    fn answer(&mut self, result: Result<Response, Status>) {
        assert!(self.pair.server.end.answer(self.request, result));
    }
}

fn events(news: impl Iterator<Item = StreamNews>, token: u64) -> Vec<StreamEvent> {
    news.map(|news| {
        assert_eq!(news.token, token);
        news.what
    })
    .filter(|event| *event != StreamEvent::Drained)
    .collect()
}

#[test]
fn messages_cross_both_ways_and_the_answer_comes_behind_them() {
    for piece_bytes in [usize::MAX, 1, 7, 33] {
        let mut open = Open::new();
        open.pair.piece_bytes = piece_bytes;
        let mut metadata = Metadata::default();
        metadata.insert("a", "b").unwrap();
        open.pair.server.end.send_head(open.request, &metadata);
        open.client_sends(StreamData::Messages(run(&[b"one", b"", b"three"])));
        open.pair.client.end.end_stream(open.call);
        open.server_sends(StreamData::Messages(run(&[b"eins"])));
        open.carry();
        let heard = StreamEvent::Messages(run(&[b"one", b"", b"three"]), 3);
        assert_eq!(open.at_server(), [heard, StreamEvent::Ended]);
        let heard = StreamEvent::Messages(run(&[b"eins"]), 1);
        assert_eq!(open.at_client(), [StreamEvent::Head(metadata), heard]);

        open.server_sends(StreamData::Messages(run(&[b"zwei"])));
        open.answer(trailers("last"));
        open.carry();
        let heard = StreamEvent::Messages(run(&[b"zwei"]), 1);
        assert_eq!(open.at_client(), [heard]);
        assert_eq!(open.pair.finished().result, trailers("last"));
        assert_eq!(open.pair.client.end.outstanding_calls(), 0);
        assert_eq!(open.pair.server.end.requests_under_way(), 0);
    }
}

#[test]
fn a_stream_goes_on_and_is_cancelled_where_no_other_request_may_begin() {
    for piece_bytes in [usize::MAX, 1, 33] {
        let limits = ConnectionLimits::default().with(|limits| limits.outstanding_calls = 1);
        let mut pair = Pair::announced_with_limits(limits);
        pair.piece_bytes = piece_bytes;
        let call = pair.call(request());
        pair.carry_requests();
        let request = pair.request().id;
        let mut open = Open {
            pair,
            call,
            request,
        };
        open.client_sends(StreamData::Messages(run(&[b"one"])));
        open.pair.client.end.end_stream(call);
        open.carry();
        let heard = StreamEvent::Messages(run(&[b"one"]), 1);
        assert_eq!(open.at_server(), [heard, StreamEvent::Ended]);
        assert!(open.pair.client.end.cancel(call));
        open.carry();
        assert_eq!(open.pair.server.end.poll_cancelled(), Some(request));
    }
}

/// The bytes of the page on the wire.
#[test]
fn frames_are_as_the_page_says() {
    let mut pair = Pair::announced();
    let call = pair.call(request());
    pair.client
        .end
        .send_on_stream(call, StreamData::Messages(run(&[b"xyz"])));
    pair.client.end.give_on_stream(
        call,
        Credit {
            messages: 1,
            bytes: 2,
        },
    );
    pair.client.end.end_stream(call);
    let opens = pair.client.drain_one().unwrap();
    let header = RequestHeader::decode(opens[..HEADER_BYTES].try_into().unwrap()).unwrap();
    assert_eq!(header.method, STREAM_OPEN_METHOD);
    assert_eq!(header.metadata_bytes as usize, 2 + PATH.len());
    let payload = [&[18, 0][..], PATH.as_bytes(), &[0, 0, 0, 0]].concat();
    assert_eq!(&opens[HEADER_BYTES..], payload);

    let records = pair.client.drain_one().unwrap();
    let header = RequestHeader::decode(records[..HEADER_BYTES].try_into().unwrap()).unwrap();
    let expected = RequestHeader {
        method: STREAM_METHOD,
        payload_bytes: 34,
        ..RequestHeader::default()
    };
    assert_eq!(header, expected);
    let payload = [
        &[0, 0, 0, 0, 1, 1, 0, 0, 0, 2, 0, 0, 0][..],
        &[0, 0, 0, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0],
        b"xyz",
        &[0, 0, 0, 0, 2],
    ]
    .concat();
    assert_eq!(&records[HEADER_BYTES..], payload);
    assert_eq!(pair.client.drain_one(), None);
}

#[test]
fn a_long_message_crosses_in_parts_as_far_as_there_are_credits() {
    let mut open = Open::new();
    let message: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
    let pieces = message
        .chunks(70_000)
        .map(|piece| Buffer::from(piece.to_vec()));
    open.client_sends(StreamData::Message(pieces.collect()));
    open.client_sends(StreamData::Messages(run(&[b"behind"])));
    let mut arrived = Vec::new();
    let mut rounds = 0;
    loop {
        open.carry();
        let events = open.at_server();
        let mut bytes = 0;
        for event in events {
            match event {
                StreamEvent::Part { bytes: part, .. } => {
                    bytes += part.len();
                    arrived.extend_from_slice(&part);
                }
                StreamEvent::Messages(run, 1) => {
                    assert_eq!(messages_of(&run), [b"behind"]);
                    assert_eq!(arrived, message);
                    assert_eq!(rounds, 4);
                    return;
                }
                other => panic!("unexpected: {other:?}"),
            }
        }
        assert!(bytes <= 65_536, "no more than the credits");
        assert_ne!(bytes, 0, "it goes on as credits come back");
        let credit = Credit {
            messages: 0,
            bytes: bytes as u32,
        };
        open.pair.server.end.give_on_stream(open.request, credit);
        rounds += 1;
    }
}

#[test]
fn a_reader_that_never_reads_gets_no_more_than_its_credits() {
    let mut open = Open::new();
    for _ in 0..100 {
        open.server_sends(StreamData::Messages(run(&[&[1; 100]])));
        open.carry();
    }
    let events = open.at_client();
    assert_eq!(events.len(), 64);
    let count = |without_credit| StreamCount {
        open: 1,
        without_credit,
    };
    assert_eq!(open.pair.server.end.stream_count(), count(1));
    assert_eq!(open.pair.client.end.stream_count(), count(0));
    open.answer(trailers("end"));
    open.carry();
    assert_eq!(open.pair.client.end.poll_finished(), None);
    // Other calls go on.
    let other = open.pair.call(Request::RecvTensor {
        step_id: 1,
        key: "key".into(),
    });
    open.pair.carry_requests();
    let incoming = open.pair.request();
    let status = Status::new(Code::NotFound, "not there");
    assert!(open.pair.server.end.answer(incoming.id, Err(status)));
    open.pair.carry_responses();
    assert_eq!(open.pair.finished().call, other);
    open.pair.client.end.give_on_stream(
        open.call,
        Credit {
            messages: 100,
            bytes: 0,
        },
    );
    open.carry();
    open.carry();
    assert_eq!(open.at_client().len(), 36, "the rest shares a record");
    assert_eq!(open.pair.finished().result, trailers("end"));
    assert_eq!(open.pair.server.end.stream_count(), StreamCount::default());
}

#[test]
fn calls_pass_what_streams_send_and_streams_take_turns() {
    let mut open = Open::new();
    let other = open.pair.call(request());
    open.pair.carry_requests();
    let other_request = open.pair.request().id;
    let credit = Credit {
        messages: 1000,
        bytes: 8 << 20,
    };
    for (call, id) in [(open.call, open.request), (other, other_request)] {
        open.pair.server.end.give_on_stream(id, credit);
        open.pair.carry_responses();
        let long = Buffer::from(vec![1; 3 << 20]);
        open.pair
            .client
            .end
            .send_on_stream(call, StreamData::Message(vec![long]));
    }
    let mut turns = Vec::new();
    while let Some(frame) = open.pair.client.end.poll_frame() {
        let bytes = support::driver::frame_bytes(&frame);
        let header = RequestHeader::decode(bytes[..HEADER_BYTES].try_into().unwrap()).unwrap();
        turns.push((header.timeout_ms, header.metadata_bytes));
        // The link is done with none of them.
    }
    assert_eq!(
        turns,
        [(2, 0), (2, 1)],
        "a link gets no more than two mebibytes"
    );
    open.pair.call(Request::RecvTensor {
        step_id: 1,
        key: "key".into(),
    });
    assert!(open.pair.client.end.poll_frame().is_some());
}

#[test]
fn what_a_link_refuses_keeps_its_place() {
    let mut open = Open::new();
    let mut numbers = Vec::new();
    for number in 0..40_u8 {
        open.client_sends(StreamData::Messages(run(&[&[number]])));
        for _ in 0..number {
            open.pair.call(Request::RecvTensor {
                step_id: 1,
                key: "key".into(),
            });
        }
        let end = &mut open.pair.client.end;
        for _ in 0..number % 3 {
            let frame = end.poll_frame().expect("a frame");
            end.unpoll_frame(frame);
        }
        open.pair.carry_requests();
        while open.pair.server.end.poll_request().is_some() {}
        for event in open.at_server() {
            match event {
                StreamEvent::Messages(run, _) => numbers.extend(messages_of(&run).concat()),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }
    assert!(numbers.iter().copied().eq(0..40));
}

#[test]
fn a_stream_that_is_given_up_ends_at_both_ends_and_late_messages_are_ignored() {
    let mut open = Open::new();
    open.client_sends(StreamData::Messages(run(&[b"one"])));
    open.server_sends(StreamData::Messages(run(&[b"crosses the cancel"])));
    assert!(open.pair.client.end.cancel(open.call));
    let finished = open.pair.finished();
    assert_eq!(finished.result.unwrap_err().code, Code::Cancelled);
    open.carry();
    assert_eq!(open.at_client(), []);
    assert_eq!(open.pair.server.end.poll_cancelled(), Some(open.request));
    open.server_sends(StreamData::Messages(run(&[b"too late"])));
    open.carry();
    open.carry();
    assert_eq!(open.pair.client.end.poll_finished(), None);
    assert_eq!(open.pair.server.end.requests_under_way(), 0);
    // A message of a client whose stream the server has ended.
    let mut open = Open::new();
    open.answer(Err(Status::new(Code::Aborted, "enough")));
    open.client_sends(StreamData::Messages(run(&[b"crosses the answer"])));
    open.pair.client.end.end_stream(open.call);
    open.carry();
    assert_eq!(open.at_server(), []);
    assert_eq!(open.pair.finished().result.unwrap_err().code, Code::Aborted);
}

#[test]
fn deadlines_end_streams_at_both_ends_also_behind_messages_that_nobody_reads() {
    let mut open = Open::with_options(CallOptions {
        token: TOKEN,
        deadline: Some(Time::ZERO + Duration::from_millis(5)),
        ..CallOptions::default()
    });
    for _ in 0..100 {
        open.server_sends(StreamData::Messages(run(&[b"x"])));
    }
    open.answer(trailers("end"));
    let late = Time::ZERO + Duration::from_millis(6);
    open.pair.server.end.handle_timeout(late);
    assert_eq!(open.pair.server.end.poll_cancelled(), None);
    open.carry();
    let status = open.pair.finished().result.unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert_eq!(open.pair.server.end.requests_under_way(), 0);
}

#[test]
fn a_stream_has_its_turn_behind_many_that_have_ended() {
    let mut open = Open::new();
    let ending = CallOptions {
        deadline: Some(Time::ZERO + Duration::from_millis(5)),
        ..CallOptions::default()
    };
    let calls: Vec<CallId> = (0..100)
        .map(|_| open.pair.call_with(request(), ending))
        .collect();
    open.pair.carry_requests();
    while open.pair.server.end.poll_request().is_some() {}
    for call in calls {
        let message = StreamData::Messages(run(&[b"late"]));
        open.pair.client.end.send_on_stream(call, message);
    }
    open.client_sends(StreamData::Messages(run(&[b"here"])));
    let late = Time::ZERO + Duration::from_millis(6);
    open.pair.client.end.handle_timeout(late);
    open.pair.carry_requests();
    let heard = StreamEvent::Messages(run(&[b"here"]), 1);
    assert_eq!(open.at_server(), [heard]);
}

#[test]
fn lost_links_end_streams_once() {
    let lost = Status::new(Code::Unavailable, "lost");
    let mut open = Open::new();
    open.client_sends(StreamData::Messages(run(&[b"one"])));
    open.pair.client.close(&lost);
    assert_eq!(open.pair.finished().result, Err(lost.clone()));
    assert_eq!(open.pair.client.end.poll_finished(), None);
    assert!(open.pair.client.end.poll_frame().is_none());
    open.pair.server.close(&lost);
    assert_eq!(open.pair.server.end.poll_cancelled(), Some(open.request));
    assert_eq!(open.pair.server.end.poll_cancelled(), None);
    assert!(open.pair.server.end.poll_frame().is_none());
}

#[test]
fn a_peer_that_knows_no_streams_is_not_asked() {
    for server in [Features::NONE, Features::ALL.without(Features::STREAMS)] {
        let mut pair = Pair::new(Features::ALL, server);
        // It waits for what the peer says of itself.
        let call = pair.call(request());
        let data = StreamData::Messages(run(&[b"early"]));
        pair.client.end.send_on_stream(call, data);
        pair.carry_requests();
        let status = pair.request();
        assert_eq!(pair.server.end.poll_request(), None);
        let body = Ok(Response::Message(vec![].into()));
        assert!(pair.server.end.answer(status.id, body));
        pair.carry_responses();
        let status = pair.finished().result.unwrap_err();
        assert_eq!(status.code, Code::Unimplemented);
        assert!(status.message.contains(PATH), "{status}");
        assert!(pair.client.drain().is_empty());
    }
}

#[test]
fn what_is_sent_before_the_announcement_waits_for_it() {
    let mut pair = Pair::new(Features::ALL, Features::ALL);
    let call = pair.call(request());
    let data = StreamData::Messages(run(&[b"early"]));
    pair.client.end.send_on_stream(call, data);
    pair.carry_requests();
    let status = pair.request();
    let body = Ok(Response::Message(vec![].into()));
    assert!(pair.server.end.answer(status.id, body));
    pair.carry_responses();
    pair.carry_requests();
    let id = pair.request().id;
    let news = pair.server.end.poll_stream().unwrap();
    assert_eq!(news.token, id.token());
    assert_eq!(news.what, StreamEvent::Messages(run(&[b"early"]), 1));
}

#[test]
fn streams_of_a_connection_are_counted() {
    let limits = ConnectionLimits::default().with(|limits| limits.streams = 2);
    let mut pair = Pair::announced_with_limits(limits);
    pair.call(request());
    let second = pair.call(request());
    pair.call(request());
    let refused = pair.finished().result.unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert_eq!(refused.reason, Reason::TooManyCalls);
    pair.carry_requests();
    let (_, id) = (pair.request(), pair.request().id);
    assert!(pair.server.end.answer(id, trailers("end")));
    pair.carry_responses();
    assert_eq!(pair.finished().call, second);
    pair.call(request());
    pair.carry_requests();
    pair.request();
}

/// How a random stream is used.
#[derive(Clone, Debug)]
enum Step {
    Small(Vec<u8>),
    Long(usize),
    Take,
    Carry,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Step::Small),
        1 => (1_usize..200_000).prop_map(Step::Long),
        2 => Just(Step::Take),
        3 => Just(Step::Carry),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every message arrives once and in order, however credits and frames come.
    #[test]
    fn every_message_arrives_once_and_in_order(steps in steps(), piece_bytes in 1_usize..5000) {
        let mut open = Open::new();
        open.pair.piece_bytes = piece_bytes;
        let (mut sent, mut arrived, mut part) = (Vec::new(), Vec::new(), Vec::new());
        let mut taken = Credit::default();
        let mut take = |open: &mut Open, arrived: &mut Vec<Vec<u8>>| {
            for event in open.at_client() {
                match event {
                    StreamEvent::Messages(run, count) => {
                        let messages = messages_of(&run);
                        assert_eq!(messages.len(), count as usize);
                        arrived.extend(messages);
                        taken.messages += count;
                        taken.bytes += run.len() as u32;
                    }
                    StreamEvent::Part { bytes, is_last } => {
                        part.extend_from_slice(&bytes);
                        taken.bytes += bytes.len() as u32;
                        if is_last {
                            taken.messages += 1;
                            arrived.push(std::mem::take(&mut part));
                        }
                    }
                    other => panic!("unexpected: {other:?}"),
                }
            }
            open.pair.client.end.give_on_stream(open.call, std::mem::take(&mut taken));
        };
        for step in steps {
            match step {
                Step::Small(message) => {
                    open.server_sends(StreamData::Messages(run(&[&message])));
                    sent.push(message);
                }
                Step::Long(len) => {
                    let message = vec![len as u8; len];
                    let data = StreamData::Message(vec![Buffer::from(message.clone())]);
                    open.server_sends(data);
                    sent.push(message);
                }
                Step::Take => take(&mut open, &mut arrived),
                Step::Carry => open.carry(),
            }
        }
        open.answer(trailers("end"));
        let finished = (0..1000).find_map(|_| {
            open.carry();
            take(&mut open, &mut arrived);
            open.pair.client.end.poll_finished()
        });
        prop_assert_eq!(finished.expect("the stream ends").result, trailers("end"));
        prop_assert_eq!(&arrived, &sent);
    }
}
