//! A shard beside a simulated original, under virtual time.
//!
//! The original queues the packets of all its links in one queue, keeps links whose peers have
//! ended their streams, and never sends again if a link breaks under a packet while another is
//! queued for it. It answers late, in crumbs, with empty texts, with garbage, or ends its stream
//! within an answer.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use grpcxx_rpc::{Code, Request, Response, Text};
use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimOptions, SimTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};

use self::encode::{HEADER_BYTES, Header};
use super::scale::host::{self, Host};
use crate::call::{Call, CallResult};
use crate::client::Peer;
use crate::command::Command;
use crate::shard::DrainLimits;

#[expect(dead_code, unreachable_pub, reason = "the simulation uses a part")]
#[path = "../../tests/original/encode.rs"]
mod encode;

/// How the original answers a receive.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Tensor { bytes: usize },
    After(Duration),
    EmptyText,
    Garbage,
    CutAt(usize),
}

/// What an original holds between its turns.
#[derive(Default)]
struct Original {
    manner: Option<Manner>,
    accepted: Vec<SimAccepted>,
    read: BTreeMap<LinkId, Vec<u8>>,
    /// Packets by the time from which they may leave, whether the stream ends behind them included.
    packets: VecDeque<(Time, LinkId, Vec<u8>, bool)>,
    lost: BTreeMap<LinkId, usize>,
    is_wedged: bool,
    answered: usize,
    now: Time,
}

impl Original {
    fn answer(&mut self, link: LinkId, header: &Header) {
        let tensor = |bytes: usize| encode::record(encode::UINT8, bytes as u32, &vec![7; bytes]);
        let respond = |payload: &[u8]| encode::response(header.tag, 0, 0, payload);
        let (after, bytes, ends) = match (header.method, self.manner) {
            (encode::RECV_TENSOR, Some(Manner::Tensor { bytes })) => {
                (Duration::ZERO, respond(&tensor(bytes)), false)
            }
            (encode::RECV_TENSOR, Some(Manner::After(after))) => {
                (after, respond(&tensor(100)), false)
            }
            (encode::RECV_TENSOR, Some(Manner::EmptyText)) => (
                Duration::ZERO,
                encode::response(header.tag, 5, 0, b""),
                false,
            ),
            (encode::RECV_TENSOR, Some(Manner::Garbage)) => {
                let mut bytes = respond(&tensor(10_000));
                bytes[HEADER_BYTES] = 9;
                (Duration::ZERO, bytes, false)
            }
            (encode::RECV_TENSOR, Some(Manner::CutAt(at))) => {
                let mut bytes = respond(&tensor(1000));
                bytes.truncate(at);
                (Duration::ZERO, bytes, true)
            }
            _ => (Duration::ZERO, respond(b""), false),
        };
        self.packets
            .push_back((self.now + after, link, bytes, ends));
    }
}

impl LinkHandler<SimAccepted> for Original {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: SimAccepted) {
        self.accepted.push(accepted);
    }

    fn connected(&mut self, _: LinkId) -> Next {
        Next::Pause
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        let mut read = self.read.remove(&link).unwrap_or_default();
        read.extend_from_slice(bytes);
        while let Some(head) = read.first_chunk() {
            let header = Header::of(head);
            let end = HEADER_BYTES + header.payload_bytes as usize;
            if read.len() < end {
                break;
            }
            self.answer(link, &header);
            read.drain(..end);
        }
        self.read.insert(link, read);
        Progress {
            consumed_bytes: bytes.len(),
            next: Next::Head { at_least_bytes: 1 },
        }
    }

    fn landed(&mut self, _: LinkId, _: Landing, _: Outcome) -> Next {
        Next::Pause
    }

    fn sent(&mut self, link: LinkId, _: Box<Frame>, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.answered += 1,
            Outcome::Lost => *self.lost.entry(link).or_default() += 1,
        }
    }

    fn closed(&mut self, link: LinkId, _: &CloseReason) {
        let queued = self.packets.iter().filter(|packet| packet.1 == link);
        let lost = self.lost.remove(&link).unwrap_or_default();
        self.is_wedged |= lost > 1 || (lost == 1 && queued.count() > 0);
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {
        // An original knows no other medium.
    }
}

/// A shard that calls, and the original that it calls.
struct Scene {
    network: SimNetwork,
    host: Host,
    peer: Peer,
    transport: SimTransport,
    original: Original,
    now: Time,
}

impl Scene {
    fn new(options: SimOptions, manner: Manner) -> Self {
        let network = SimNetwork::new(options);
        let mut transport = network.transport(address(1).ip());
        transport.outlast_streams();
        transport.listen(address(1)).expect("the port is free");
        let host = host::start(&network, 0, address(2), None);
        let peer = host.client.peer(&address(1).to_string()).unwrap();
        let original = Original {
            manner: Some(manner),
            ..Original::default()
        };
        Self {
            network,
            host,
            peer,
            transport,
            original,
            now: Time::ZERO,
        }
    }

    fn receive(&self) -> Call {
        let request = Request::RecvTensor {
            step_id: 1,
            key: Text::from("k"),
        };
        self.host.client.call(&self.peer, request, None)
    }

    fn turn(&mut self) -> usize {
        self.network.advance(self.now);
        self.original.now = self.now;
        let mut events = self.host.shard.turn(self.now);
        events += self.transport.turn(self.now, &mut self.original);
        for accepted in std::mem::take(&mut self.original.accepted) {
            let next = Next::Head { at_least_bytes: 1 };
            self.transport.adopt(accepted, next).unwrap();
            events += 1;
        }
        events + self.send()
    }

    /// Hands packets to the links, unless the original has stopped.
    fn send(&mut self) -> usize {
        let mut later = VecDeque::new();
        let mut events = 0;
        while let Some((at, link, bytes, ends)) = self.original.packets.pop_front() {
            if at > self.now || self.original.is_wedged {
                later.push_back((at, link, bytes, ends));
                continue;
            }
            let mut frame = Box::new(Frame::new());
            frame.bytes_mut().extend_from_slice(&bytes);
            if self.transport.send(link, frame).is_ok() && ends {
                self.transport.end_stream(link);
            }
            events += 1;
        }
        self.original.packets = later;
        events
    }

    /// Lets time pass until something holds, or for so long.
    fn until(&mut self, patience: Duration, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + patience;
        loop {
            while self.turn() > 0 {}
            if holds(self) {
                return true;
            }
            let packets = self.original.packets.iter().map(|packet| packet.0);
            let next = packets
                .chain(self.network.next_event_at())
                .chain(self.host.shard.next_timeout())
                .chain(self.host.shard.transport().next_event_at())
                .chain(self.transport.next_event_at())
                .min();
            let tick = self.now + Duration::from_micros(10);
            self.now = next.unwrap_or(end).max(tick);
            if self.now > end {
                self.now = end;
                while self.turn() > 0 {}
                return holds(self);
            }
        }
    }

    fn result(&mut self, call: &mut Call) -> CallResult {
        let mut result = None;
        let ended = self.until(PATIENCE, |_| match poll(call) {
            Some(ended) => {
                result = Some(ended);
                true
            }
            None => false,
        });
        assert!(ended, "the call has no result");
        result.expect("it has just ended")
    }

    /// Whether the original still answers somebody who comes now.
    fn answers_others(&mut self) -> bool {
        let mut other = self.network.transport(address(3).ip());
        let mut asker = Original::default();
        let link = other.connect(address(1)).unwrap();
        let mut frame = Box::new(Frame::new());
        let request = encode::request(encode::GET_STATUS, 1, 0, b"");
        frame.bytes_mut().extend_from_slice(&request);
        let mut frame = Some(frame);
        let answered = self.original.answered;
        self.until(PATIENCE, |scene| {
            other.turn(scene.now, &mut asker);
            if let Some(request) = frame.take()
                && let Err(refused) = other.send(link, request)
            {
                frame = Some(refused.value);
            }
            frame.is_none() && scene.original.answered > answered
        })
    }

    fn stop(&mut self) {
        let grace = Duration::ZERO;
        self.host.mailboxes.deliver(0, Command::Stop { grace });
    }
}

fn poll(call: &mut Call) -> Option<CallResult> {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

fn address(host: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 1, host)), 7000)
}

#[test]
fn an_answer_may_come_hours_later() {
    let hours = Duration::from_secs(3 * 3600);
    let mut scene = Scene::new(SimOptions::reliable(1), Manner::After(hours));
    let mut call = scene.receive();
    let result = scene.result(&mut call);
    assert!(matches!(result, Ok(Response::Tensors(_))), "{result:?}");
    assert!(scene.now >= Time::ZERO + hours);

    // One packet for a connection that is gone does no harm.
    let mut call = scene.receive();
    scene.until(Duration::from_secs(1), |_| false);
    scene.host.client.disconnect(&scene.peer);
    let status = scene.result(&mut call).unwrap_err();
    assert_eq!(status.code, Code::Unavailable);
    scene.until(2 * hours, |_| false);
    assert!(scene.answers_others());
}

#[test]
fn an_original_that_writes_slowly_is_left_at_any_moment() {
    for seed in 0..MOMENTS {
        let options = SimOptions {
            bytes_per_second: 2_000_000,
            buffer_bytes: 20_000,
            ..SimOptions::reliable(seed)
        };
        let mut scene = Scene::new(options, Manner::Tensor { bytes: 100_000 });
        let mut calls: Vec<Call> = (0..8).map(|_| scene.receive()).collect();
        scene.until(Duration::from_millis(30) * seed as u32, |_| false);
        if seed % 2 == 0 {
            scene.host.client.disconnect(&scene.peer);
        } else {
            scene.stop();
        }
        for call in &mut calls {
            // Those before the moment have succeeded.
            let _ = scene.result(call);
        }
        scene.until(2 * DrainLimits::default().time, |_| false);
        assert!(!scene.original.is_wedged, "seed {seed}");
        assert!(scene.answers_others(), "seed {seed}");
    }
}

/// What the tests around this one would see if a connection were not left so.
#[test]
fn an_original_whose_peer_is_gone_while_it_writes_stops_for_everybody() {
    let options = SimOptions {
        bytes_per_second: 2_000_000,
        buffer_bytes: 20_000,
        ..SimOptions::reliable(1)
    };
    let mut scene = Scene::new(options, Manner::Tensor { bytes: 100_000 });
    let _calls: Vec<Call> = (0..8).map(|_| scene.receive()).collect();
    scene.until(Duration::from_millis(100), |_| false);
    scene.network.crash(address(2).ip());
    assert!(scene.until(Duration::from_secs(1), |scene| scene.original.is_wedged));
}

#[test]
fn a_violation_of_an_original_is_told_and_drained() {
    let options = SimOptions {
        bytes_per_second: 2_000_000,
        buffer_bytes: 2000,
        ..SimOptions::reliable(7)
    };
    let mut scene = Scene::new(options, Manner::Garbage);
    let mut calls: Vec<Call> = (0..8).map(|_| scene.receive()).collect();
    for call in &mut calls {
        let status = scene.result(call).unwrap_err();
        assert!(status.message.contains("the dead flag is 9"), "{status}");
    }
    scene.until(2 * DrainLimits::default().time, |_| false);
    assert!(!scene.original.is_wedged);
    assert!(scene.answers_others());
}

#[test]
fn an_answer_that_ends_anywhere_ends_its_call() {
    for at in [1, 31, 32, 40, 69, 500, 1068] {
        let mut scene = Scene::new(SimOptions::crumbs(at as u64), Manner::CutAt(at));
        let mut call = scene.receive();
        let status = scene.result(&mut call).unwrap_err();
        assert_eq!(status.code, Code::Unavailable, "{at}: {status}");
        scene.original.manner = Some(Manner::Tensor { bytes: 10 });
        let mut call = scene.receive();
        assert!(scene.result(&mut call).is_ok(), "{at}");
    }
}

#[test]
fn an_empty_text_is_replaced() {
    let mut scene = Scene::new(SimOptions::crumbs(3), Manner::EmptyText);
    for _ in 0..3 {
        let mut call = scene.receive();
        let status = scene.result(&mut call).unwrap_err();
        assert_eq!(status.code, Code::NotFound);
        assert!(!status.message.is_empty());
    }
    assert_eq!(scene.original.read.len(), 1, "all on one connection");
}

/// Moments of the eight answers at which they are interrupted.
const MOMENTS: u64 = 14;

const PATIENCE: Duration = Duration::from_secs(24 * 3600);
