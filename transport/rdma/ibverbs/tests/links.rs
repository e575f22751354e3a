//! A link of ours and a peer that the package `ibverbs` is, over real verbs. Without a device the
//! test says that it was skipped; with GRPCXX_RDMA_REQUIRED=1 that is a failure.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use grpcxx_memory::BufferMut;
use grpcxx_rdma::{RdmaLinks, RdmaOptions, VerbsAdapter};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time,
};

#[test]
fn a_peer_of_the_package_ibverbs_echoes_bytes_and_has_its_memory_read() {
    let options = RdmaOptions::default();
    let adapter = match VerbsAdapter::open(&options) {
        Ok(adapter) => adapter,
        Err(reason) => {
            let is_required = std::env::var_os("GRPCXX_RDMA_REQUIRED").is_some();
            assert!(!is_required, "there is no device: {reason}");
            eprintln!("SKIPPED, nothing was tested: {reason}");
            return;
        }
    };
    let mut links = RdmaLinks::new(adapter, options);
    let (link, blob) = links.offer().expect("a link can be begun");
    let mut child = Command::new(env!("CARGO_BIN_EXE_ibverbs-peer"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the peer starts");
    let digits: String = blob.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(child.stdin.take().unwrap(), "{digits}").expect("the peer reads");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let answer = lines.next().expect("the peer answers").expect("as text");
    let answer: Vec<u8> = (0..answer.len() / 2)
        .map(|index| {
            u8::from_str_radix(&answer[2 * index..2 * index + 2], 16).expect("hexadecimal")
        })
        .collect();

    let mut sent: Vec<u8> = (0..SENT_BYTES)
        .map(|index| (index * 7 % 253) as u8)
        .collect();
    sent[SENT_BYTES - 1] = LAST;
    let mut ours = Ours::default();
    let landing = Landing::new(BufferMut::zeroed(SENT_BYTES));
    links
        .finish(link, &answer, Next::Land(landing))
        .expect("the link opens");
    let start = Instant::now();
    let mut rest = &sent[..];
    while ours.closed.is_none() {
        assert!(
            start.elapsed() < PATIENCE,
            "the link stopped after {} bytes",
            SENT_BYTES - rest.len()
        );
        while !rest.is_empty() {
            // Frames of all lengths that go in messages; longer ones would be offered.
            let (now, later) = rest.split_at(rest.len().min(1 + rest.len() % FRAME_BYTES_MAX));
            let mut frame = Box::new(Frame::new());
            frame.bytes_mut().extend_from_slice(now);
            if links.send(link, frame).is_err() {
                break;
            }
            rest = later;
        }
        links.turn::<()>(Time::ZERO + start.elapsed(), &mut ours);
        links.submit();
        while let Some((id, reason)) = links.next_closed() {
            ours.closed = Some(reason);
            assert_eq!(id, link);
        }
        std::thread::yield_now();
    }
    let said = lines
        .next()
        .expect("the peer says what it did")
        .expect("as text");
    assert!(child.wait().expect("the peer ends").success());
    assert_eq!(
        said,
        format!("{SENT_BYTES} bytes sent back, {OFFER_BYTES} read from here")
    );
    assert!(ours.landed[0] == sent, "the bytes came back as they went");
    let offered: Vec<u8> = (0..OFFER_BYTES).map(|index| (index % 251) as u8).collect();
    assert!(ours.landed[1] == offered, "the peer's memory was read");
    assert_eq!(ours.closed, Some(CloseReason::EndOfStream));
}

/// Our side of the link: what landed, in order.
#[derive(Default)]
struct Ours {
    landed: Vec<Vec<u8>>,
    closed: Option<CloseReason>,
}

impl LinkHandler<()> for Ours {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, (): ()) {
        unreachable!("nobody listens");
    }

    fn connected(&mut self, _: LinkId) -> Next {
        unreachable!("nobody dials");
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        panic!("the peer sent {} bytes more than it should", bytes.len());
    }

    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        assert_eq!(outcome, Outcome::Done);
        self.landed.push(landing.into_buffer().to_vec());
        match self.landed.len() {
            1 => Next::Land(Landing::new(BufferMut::zeroed(OFFER_BYTES))),
            _ => Next::Head { at_least_bytes: 1 },
        }
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
    }

    fn closed(&mut self, _: LinkId, reason: &CloseReason) {
        self.closed = Some(reason.clone());
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {
        unreachable!("the link begins on RDMA");
    }
}

const SENT_BYTES: usize = 1 << 20;
const FRAME_BYTES_MAX: usize = 4000;
/// As the peer has them.
const OFFER_BYTES: usize = 1 << 20;
const LAST: u8 = 255;
const PATIENCE: Duration = Duration::from_secs(60);
