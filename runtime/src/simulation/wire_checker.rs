//! Holds each frame of the simulation against what its receiver may get.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use grpcxx_rpc::Method;
use grpcxx_rpc::wire::{
    CANCEL_METHOD, CHUNK_METHOD, ChunkHeader, HEADER_BYTES, RequestHeader, STREAM_METHOD,
    STREAM_OPEN_METHOD,
};
use grpcxx_transport::{
    CloseReason, Frame, LinkHandler, LinkId, Migration, Outcome, Refused, Time, Transport,
    TransportError, forward_events, forward_transport,
};

use super::model::Watcher;
use super::tensors::{ids_among, ids_in};

/// A transport that looks into each frame: tells the model which tensors leave with it, and holds
/// it against what its receiver may get.
#[derive(Debug)]
pub(super) struct WireChecker<T> {
    inner: T,
    watcher: Watcher,
    /// The task that uses the transport.
    task: usize,
    leaving: BTreeMap<LinkId, Leaving>,
    /// The task at the other end of each dialled link.
    peers: BTreeMap<LinkId, usize>,
}

/// What one link has of frames that have not left.
#[derive(Debug, Default)]
struct Leaving {
    /// Tensors of each frame that has not come back, those of a frame in chunks with its last one.
    frames: VecDeque<Vec<usize>>,
    /// What there is of the frame that goes in chunks.
    cut: Vec<u8>,
}

impl<T> WireChecker<T> {
    pub(super) fn new(inner: T, watcher: Watcher, task: usize) -> Self {
        Self {
            inner,
            watcher,
            task,
            leaving: BTreeMap::new(),
            peers: BTreeMap::new(),
        }
    }

    pub(super) fn inner(&self) -> &T {
        &self.inner
    }

    pub(super) fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Checks that a peer that plays an original gets nothing but what an original knows.
    fn inspect(&self, link: LinkId, frame: &Frame) {
        let Some(&peer) = self.peers.get(&link) else {
            return;
        };
        let bytes = frame.bytes().first_chunk::<HEADER_BYTES>();
        let header = RequestHeader::decode(bytes.expect("a header")).expect("a request");
        let tasks = &self.watcher.model().tasks;
        let (own, other) = (tasks[self.task].announces, tasks[peer].announces);
        let is_announcement =
            header.method == Method::GetStatus.number() && header.payload_bytes > 0;
        let extensions = [
            CANCEL_METHOD,
            CHUNK_METHOD,
            STREAM_OPEN_METHOD,
            STREAM_METHOD,
        ];
        let is_extension = extensions.contains(&header.method) || header.timeout_ms != 0;
        assert!(
            own || !is_announcement,
            "task {} announced something to task {peer}, but has no extensions: {header:?}",
            self.task
        );
        assert!(
            (own && other) || !is_extension,
            "task {} used an extension on task {peer}, and one of them has none: {header:?}",
            self.task
        );
    }
}

impl<T: Transport> Transport for WireChecker<T> {
    type Accepted = T::Accepted;

    forward_transport!(inner: name listen unlisten adopt resume end_stream close submit);
    forward_transport!(inner: reading frames_in_flight ends offer upgrade);

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let link = self.inner.connect(peer)?;
        self.peers.insert(link, super::task::index_of(peer));
        Ok(link)
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        self.inspect(link, &frame);
        let (chunk, ids) = match chunk_in(&frame) {
            Some(chunk) => (chunk, Vec::new()),
            None => (Vec::new(), ids_in(&frame)),
        };
        self.inner.send(link, frame)?;
        let mut model = self.watcher.model();
        let leaving = self.leaving.entry(link).or_default();
        let ids = if chunk.is_empty() {
            ids
        } else {
            model.chunks += 1;
            leaving.join(&chunk)
        };
        model.framed(&ids);
        leaving.frames.push_back(ids);
        Ok(())
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let mut checking = CheckingHandler {
            handler,
            watcher: &self.watcher,
            leaving: &mut self.leaving,
            peers: &mut self.peers,
        };
        self.inner.turn(now, &mut checking)
    }
}

impl Leaving {
    /// Adds a chunk to those before it, and returns the tensors of the frame if that was its last.
    fn join(&mut self, chunk: &[u8]) -> Vec<usize> {
        self.cut.extend_from_slice(chunk);
        // Headers of requests and responses have the length in the same place.
        let payload_bytes = self.cut[24..HEADER_BYTES].try_into().expect("a length");
        if (self.cut.len() - HEADER_BYTES) as u64 != u64::from_le_bytes(payload_bytes) {
            return Vec::new();
        }
        ids_among(&std::mem::take(&mut self.cut))
    }
}

/// What a chunk has of its frame.
fn chunk_in(frame: &Frame) -> Option<Vec<u8>> {
    ChunkHeader::find(frame.bytes().first_chunk()?)?;
    Some(
        frame
            .segments()
            .collect::<Vec<_>>()
            .concat()
            .split_off(HEADER_BYTES),
    )
}

/// Sits between a transport and its handler during a turn.
struct CheckingHandler<'a, A> {
    handler: &'a mut dyn LinkHandler<A>,
    watcher: &'a Watcher,
    leaving: &'a mut BTreeMap<LinkId, Leaving>,
    peers: &'a mut BTreeMap<LinkId, usize>,
}

impl<A> LinkHandler<A> for CheckingHandler<'_, A> {
    forward_events!(handler<A>: accepted connected received landed);

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        let leaving = self.leaving.get_mut(&link);
        let ids = leaving.and_then(|leaving| leaving.frames.pop_front());
        let ids = ids.expect("a frame comes back once");
        self.watcher.model().unframed(&ids, outcome);
        self.handler.sent(link, frame, outcome);
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.leaving.remove(&link);
        self.peers.remove(&link);
        self.handler.closed(link, reason);
    }

    forward_events!(handler<A>: proven);

    fn migration(&mut self, link: LinkId, news: Migration<'_>) {
        let mut model = self.watcher.model();
        match news {
            Migration::Migrated(_) => model.migrated += 1,
            Migration::Declined(_) => {}
            Migration::FailedOver(reason) => {
                model.failed_over += 1;
                model.note(format_args!("a link failed over: {reason}"));
            }
        }
        drop(model);
        self.handler.migration(link, news);
    }
}
