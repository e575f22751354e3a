use std::collections::{BTreeMap, VecDeque};

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rdma::sim::SimFabric;
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Next, Outcome, Progress,
};

/// Speaks a small protocol over links: a number that counts up, a length, and so many bytes of that number.
pub(crate) struct Talker<A> {
    pub(crate) accepted: VecDeque<A>,
    pub(crate) links: BTreeMap<LinkId, Talk>,
    /// The fabric, to look at what the device can still touch when memory comes back.
    pub(crate) fabric: Option<SimFabric>,
    /// Queues that there were when a frame or a landing came back from a dead link.
    pub(crate) queues_at_loss: Vec<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Talk {
    pub(crate) is_open: bool,
    pub(crate) sent: u32,
    pub(crate) left: u32,
    pub(crate) lost: u32,
    pub(crate) read: u32,
    landing: u32,
    pub(crate) landings_lost: u32,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) stayed: u32,
    pub(crate) fell_back: u32,
}

impl<A> Talker<A> {
    pub(crate) fn new(fabric: Option<SimFabric>) -> Self {
        Self {
            accepted: VecDeque::new(),
            links: BTreeMap::new(),
            fabric,
            queues_at_loss: Vec::new(),
        }
    }

    /// The next frame of a link.
    pub(crate) fn frame(&mut self, link: LinkId, payload_bytes: usize) -> Box<Frame> {
        let talk = self.links.get_mut(&link).expect("the link is known");
        let number = talk.sent;
        talk.sent += 1;
        let mut frame = Box::new(Frame::new());
        frame.bytes_mut().extend_from_slice(&number.to_le_bytes());
        (frame.bytes_mut()).extend_from_slice(&(payload_bytes as u32).to_le_bytes());
        frame.bytes_mut().extend_from_slice(&[0; 8]);
        frame.attach(Buffer::from(vec![number as u8; payload_bytes]));
        frame
    }

    fn talk(&mut self, link: LinkId) -> &mut Talk {
        self.links.entry(link).or_default()
    }

    fn note_loss(&mut self) {
        if let Some(fabric) = &self.fabric {
            self.queues_at_loss.push(fabric.queue_count());
        }
    }
}

pub(crate) const HEAD: Next = Next::Head { at_least_bytes: 16 };

impl<A> LinkHandler<A> for Talker<A> {
    fn accepted(&mut self, _: ListenerId, _: std::net::SocketAddr, accepted: A) {
        self.accepted.push_back(accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.talk(link).is_open = true;
        HEAD
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        let talk = self.talk(link);
        let number = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let len = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes"));
        assert_eq!(number, talk.read, "frames arrive in order");
        talk.landing = number;
        Progress {
            consumed_bytes: 16,
            next: Next::Land(Landing::new(BufferMut::zeroed(len as usize))),
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let talk = self.talk(link);
        if outcome == Outcome::Lost {
            talk.landings_lost += 1;
            self.note_loss();
            return Next::Pause;
        }
        let expected = talk.landing as u8;
        let bytes = landing.into_buffer();
        assert!(
            bytes.iter().all(|byte| *byte == expected),
            "payload is what was sent"
        );
        talk.read += 1;
        HEAD
    }

    fn sent(&mut self, link: LinkId, _: Box<Frame>, outcome: Outcome) {
        let talk = self.talk(link);
        match outcome {
            Outcome::Done => talk.left += 1,
            Outcome::Lost => {
                talk.lost += 1;
                self.note_loss();
            }
        }
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        let talk = self.talk(link);
        talk.is_open = false;
        talk.closed = Some(reason.clone());
    }

    fn stayed(&mut self, link: LinkId, _: &str) {
        self.talk(link).stayed += 1;
    }

    fn fell_back(&mut self, link: LinkId, _: &str) {
        self.talk(link).fell_back += 1;
    }
}
