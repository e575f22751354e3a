//! A handler that speaks a small protocol, and notes what came of each link.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rdma::sim::SimFabric;
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress,
};

use crate::gpu::Gpu;

/// Speaks a small protocol over links: a number that counts up, a length, and so many bytes of that
/// number.
pub(crate) struct Talker<A> {
    pub(crate) accepted: VecDeque<A>,
    pub(crate) links: BTreeMap<LinkId, Talk>,
    /// The fabric, to look at what the device can still touch when memory comes back.
    pub(crate) fabric: Option<SimFabric>,
    /// Queues that there were when a frame or a landing came back from a dead link.
    pub(crate) queues_at_loss: Vec<usize>,
    /// The device in whose memory payload lies, if it is not that of the host.
    pub(crate) gpu: Option<Arc<Gpu>>,
}

#[derive(Debug, Default)]
pub(crate) struct Talk {
    pub(crate) is_open: bool,
    pub(crate) sent: u32,
    pub(crate) left: u32,
    pub(crate) lost: u32,
    pub(crate) read: u32,
    shown: u32,
    /// Numbers of the frames that land, oldest first, and the payload of those that are there
    /// already.
    landing: VecDeque<(u32, Option<Landing>)>,
    pub(crate) landings_lost: u32,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) declined: u32,
    pub(crate) failed_over: u32,
}

impl Talk {
    /// Reads the oldest frames whose payload is there.
    fn read_landed(&mut self) {
        while let Some((number, Some(_))) = self.landing.front() {
            let expected = *number as u8;
            let landing = self.landing.pop_front().and_then(|(_, landing)| landing);
            let bytes = landing.expect("looked at just now").into_buffer();
            assert!(
                bytes.iter().all(|byte| *byte == expected),
                "payload is what was sent"
            );
            self.read += 1;
        }
    }
}

impl<A> Talker<A> {
    pub(crate) fn new(fabric: Option<SimFabric>) -> Self {
        Self {
            accepted: VecDeque::new(),
            links: BTreeMap::new(),
            fabric,
            queues_at_loss: Vec::new(),
            gpu: None,
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
        let payload = vec![number as u8; payload_bytes];
        match &self.gpu {
            Some(gpu) => frame.attach_device(gpu.place(&payload)),
            None => frame.attach(Buffer::from(payload)),
        }
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
        let mut consumed_bytes = 0;
        while let Some((head, rest)) = bytes[consumed_bytes..].split_first_chunk::<16>() {
            let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
            let (number, len) = (word(0), word(4) as usize);
            assert_eq!(number, talk.shown, "frames arrive in order");
            talk.shown += 1;
            let mut landing = Landing::new(BufferMut::zeroed(len)).then_head(16);
            consumed_bytes += 16 + landing.fill_from(rest);
            if !landing.is_full() {
                talk.landing.push_back((number, None));
                return Progress {
                    consumed_bytes,
                    next: Next::Land(landing),
                };
            }
            talk.landing.push_back((number, Some(landing)));
            talk.read_landed();
        }
        Progress {
            consumed_bytes,
            next: HEAD,
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let talk = self.talk(link);
        if outcome == Outcome::Lost {
            talk.landings_lost += 1;
            self.note_loss();
            return Next::Pause;
        }
        let oldest = talk.landing.front_mut().expect("a frame lands");
        oldest.1 = Some(landing);
        talk.read_landed();
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

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, link: LinkId, news: Migration<'_>) {
        let talk = self.talk(link);
        match news {
            Migration::Migrated(_) => {}
            Migration::Declined(_) => talk.declined += 1,
            Migration::FailedOver(_) => talk.failed_over += 1,
        }
    }
}
