use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use grpcxx_rpc::Method;
use grpcxx_rpc::wire::{CANCEL_METHOD, CHUNK_METHOD, ChunkHeader, HEADER_BYTES, RequestHeader};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, MediumKind, Next, Outcome,
    Progress, Refused, Time, Transport, TransportError,
};

use super::model::Watcher;
use super::tensors::{ids_among, ids_in};

/// A transport that looks into each frame: tells the model which tensors leave with it, and holds it against
/// what its receiver may get.
#[derive(Debug)]
pub(super) struct Customs<T> {
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

impl<T> Customs<T> {
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
        let is_extension =
            matches!(header.method, CANCEL_METHOD | CHUNK_METHOD) || header.timeout_ms != 0;
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

impl<T: Transport> Transport for Customs<T> {
    type Accepted = T::Accepted;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        self.inner.listen(address)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.inner.unlisten(listener);
    }

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        self.inner.adopt(accepted, next)
    }

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

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        self.inner.resume(link, next)
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        self.inner.close(link, flush);
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let mut officer = Officer {
            handler,
            watcher: &self.watcher,
            leaving: &mut self.leaving,
            peers: &mut self.peers,
        };
        self.inner.turn(now, &mut officer)
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn offer(&mut self, link: LinkId) -> Option<Vec<u8>> {
        self.inner.offer(link)
    }

    fn upgrade(&mut self, link: LinkId, offer: &[u8]) {
        self.inner.upgrade(link, offer);
    }

    fn frames_in_flight(&self) -> usize {
        self.inner.frames_in_flight()
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
struct Officer<'a, A> {
    handler: &'a mut dyn LinkHandler<A>,
    watcher: &'a Watcher,
    leaving: &'a mut BTreeMap<LinkId, Leaving>,
    peers: &'a mut BTreeMap<LinkId, usize>,
}

impl<A> LinkHandler<A> for Officer<'_, A> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A) {
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.handler.connected(link)
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        self.handler.received(link, bytes)
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        self.handler.landed(link, landing, outcome)
    }

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

    fn migrated(&mut self, link: LinkId, medium: MediumKind) {
        self.watcher.model().migrated += 1;
        self.handler.migrated(link, medium);
    }

    fn declined(&mut self, link: LinkId, reason: &str) {
        self.handler.declined(link, reason);
    }

    fn failed_over(&mut self, link: LinkId, reason: &str) {
        let mut model = self.watcher.model();
        model.failed_over += 1;
        model.note(format_args!("a link failed over: {reason}"));
        drop(model);
        self.handler.failed_over(link, reason);
    }
}
