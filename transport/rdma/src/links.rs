use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_memory::{Arena, DeviceMemory};
use grpcxx_transport::{
    CloseReason, Frame, LinkId, Next, Reading, Refusal, Refused, SlotTable, Time, TransportError,
};

use crate::adapter::{Adapter, Completion, Queue};
use crate::counters::RdmaCounters;
use crate::link::{Gone, Link, Phase, Side};
use crate::options::RdmaOptions;
use crate::registry::{Registry, RegistryLimits};

/// The RDMA links of one shard, without a way to find peers: set-up data is carried by whoever uses
/// this.
///
/// The side that begins calls [`RdmaLinks::offer`], carries the blob to the peer, which answers
/// with that of [`RdmaLinks::accept`], and gives the answer to [`RdmaLinks::finish`]. From then on
/// a link works as every link of a [`Transport`](grpcxx_transport::Transport) does. That the peer
/// is gone, it learns from its requests, which takes seconds, or at once from
/// [`RdmaLinks::peer_gone`].
pub struct RdmaLinks<A: Adapter> {
    pub(crate) adapter: A,
    pub(crate) options: RdmaOptions,
    pub(crate) links: SlotTable<Link<A>, LinkId>,
    pub(crate) registry: Registry<A>,
    pub(crate) work: VecDeque<u32>,
    pub(crate) completions: Vec<Completion>,
    pub(crate) counters: RdmaCounters,
    pub(crate) frames_in_flight: usize,
    pub(crate) now: Time,
    /// Links that are flushing, or whose peer is gone.
    pub(crate) timed: Vec<u32>,
    pub(crate) over: VecDeque<Gone>,
    pub(crate) faults_checked: Time,
    pub(crate) expires: bool,
    is_software: bool,
    pub(crate) generation: u16,
}

impl<A: Adapter> RdmaLinks<A> {
    /// Links over this device.
    pub fn new(adapter: A, options: RdmaOptions) -> Self {
        let options = options.checked();
        let registry = Registry::new(RegistryLimits {
            arena_bytes: options.registered_bytes,
            foreign_bytes_min: options.foreign_bytes_min,
            foreign_bytes: options.foreign_bytes,
            foreign_entries: options.foreign_entries,
        });
        let is_software = adapter.limits().is_software;
        Self {
            adapter,
            options,
            links: SlotTable::unlimited(),
            registry,
            work: VecDeque::new(),
            completions: Vec::with_capacity(COMPLETIONS_MAX),
            counters: RdmaCounters::default(),
            frames_in_flight: 0,
            now: Time::ZERO,
            timed: Vec::new(),
            over: VecDeque::new(),
            faults_checked: Time::ZERO,
            expires: false,
            is_software,
            generation: 0,
        }
    }

    /// Device and port, for logs.
    pub fn device(&self) -> &str {
        self.adapter.name()
    }

    /// The device.
    pub fn adapter(&self) -> &A {
        &self.adapter
    }

    /// The device, to play tricks on it in tests.
    pub fn adapter_mut(&mut self) -> &mut A {
        &mut self.adapter
    }

    /// What the links have done so far.
    pub fn counters(&self) -> RdmaCounters {
        let registry = self.registry.counters;
        RdmaCounters {
            registered_arena_bytes: registry.registered_arena_bytes,
            registration_hits: registry.hits,
            registration_misses: registry.misses,
            registrations_refused: registry.refused,
            ..self.counters
        }
    }

    /// Registers memory of another device, as a GPU: from then on peers read what is sent from it
    /// straight from there (GPUDirect). Where that cannot be, its buffers go by their copies on the
    /// host.
    ///
    /// # Errors
    /// Why it cannot be: no dma-buf, a library or a driver that cannot register one, or a limit.
    pub fn register_device(&mut self, memory: Arc<dyn DeviceMemory>) -> Result<(), TransportError> {
        self.registry.add_device(&self.adapter, memory)
    }

    /// Registers an arena, so that its tensors are sent and received without a copy, or as much
    /// from its start as the options and the system allow. Returns how many bytes that is. From
    /// then on the arena keeps its pages.
    ///
    /// # Errors
    /// The arena is full, so that nothing can hold its mapping.
    pub fn register_arena(&mut self, arena: &mut Arena) -> Result<usize, TransportError> {
        let anchor = arena.allocate(1).map_err(|error| TransportError {
            operation: "register an arena for RDMA".to_owned(),
            errno: 0,
            message: error.to_string(),
        })?;
        let region = arena.region();
        arena.keep_pages();
        let registered = self.registry.add_arena(&self.adapter, region, anchor);
        if registered < region.len {
            tracing::warn!(
                arena_bytes = region.len,
                registered_bytes = registered,
                allowed_bytes = self.options.registered_bytes,
                "not all of the arena is registered for RDMA; payload outside is registered when it is used, or copied (raise RLIMIT_MEMLOCK or GRPCXX_RDMA_REGISTERED_BYTES)"
            );
        }
        Ok(registered)
    }

    /// Registers memory for the first links now, since it takes long and nobody waits yet. A
    /// refusal is told to the first link that needs it.
    pub fn warm_up(&mut self) {
        let _ = self.registry.add_pool(&self.adapter, 0);
    }

    /// Says that the peer is gone, as the connection beside the link has ended for this reason.
    /// What arrived before is still read; then the link closes with the same reason.
    pub fn peer_gone(&mut self, id: LinkId, reason: CloseReason) {
        let Some(link) = self.links.find_mut(id) else {
            return;
        };
        if matches!(link.side, Side::Up) && !link.is_ended() {
            link.side = Side::Lost {
                reason,
                since: None,
                is_settled: false,
            };
            self.timed.push(id.slot);
        }
    }

    /// Reports the events of a link by this id, also its end.
    pub(crate) fn set_owner(&mut self, id: LinkId, owner: LinkId) {
        if let Some(link) = self.links.find_mut(id) {
            link.owner = Some(owner);
        }
    }

    /// Queues a frame, as [`Transport::send`](grpcxx_transport::Transport::send) does.
    ///
    /// # Errors
    /// The frame comes back: the queue is full, or the link is not open.
    pub fn send(&mut self, id: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        match self.check_frame(id) {
            Ok(()) => {
                self.push(id, frame);
                Ok(())
            }
            Err(refusal) => Err(Refused {
                value: frame,
                refusal,
            }),
        }
    }

    /// Whether a link takes one more frame.
    pub(crate) fn check_frame(&mut self, id: LinkId) -> Result<(), Refusal> {
        let limit = self.options.limits.queued_frames;
        match self.links.find_mut(id) {
            Some(link) if !link.is_open() => Err(Refusal::NotOpen),
            Some(link) if link.outbound.len() >= limit => Err(Refusal::Full),
            Some(_) => Ok(()),
            None => Err(Refusal::NotOpen),
        }
    }

    /// Queues a frame on a link that is there, also beyond the limit.
    pub(crate) fn push(&mut self, id: LinkId, frame: Box<Frame>) {
        if let Some(link) = self.links.find_mut(id) {
            link.outbound.push(frame);
            self.frames_in_flight += 1;
            self.queue(id.slot);
        }
    }

    /// Lets no frame leave while it holds.
    pub(crate) fn hold(&mut self, id: LinkId, is_held: bool) {
        if let Some(link) = self.links.find_mut(id) {
            link.is_held = is_held;
            self.queue(id.slot);
        }
    }

    /// Ends a link at once, for this reason.
    pub(crate) fn end_link(&mut self, id: LinkId, reason: CloseReason) {
        if let Some(link) = self.links.find_mut(id) {
            link.end(reason);
            self.queue(id.slot);
        }
    }

    /// As [`Transport::submit`](grpcxx_transport::Transport::submit).
    pub fn submit(&mut self) {
        for index in 0..self.work.len() {
            let slot = self.work[index];
            if (self.links.at(slot)).is_some_and(|(_, link)| link.outbound.has_unpacked()) {
                self.write(slot);
            }
        }
    }

    /// As [`Transport::resume`](grpcxx_transport::Transport::resume).
    ///
    /// # Errors
    /// The link is not open, or reads on.
    pub fn resume(&mut self, id: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(link) = self.links.find_mut(id).filter(|link| link.is_open()) else {
            return refuse(next, Refusal::NotOpen);
        };
        // A read has the receiving half only while it is not paused.
        let Some(inbound) = &mut link.inbound else {
            return refuse(next, Refusal::WrongState);
        };
        if let Err(next) = inbound.resume(next) {
            return refuse(next, Refusal::WrongState);
        }
        link.resumed = true;
        self.queue(id.slot);
        Ok(())
    }

    /// As [`Transport::reading`](grpcxx_transport::Transport::reading). A link that reads memory of
    /// its peer asks for nothing.
    pub fn reading(&mut self, id: LinkId) -> Option<Reading> {
        let link = self.links.find(id).filter(|link| link.is_open())?;
        let Some(inbound) = &link.inbound else {
            return Some(Reading::default());
        };
        let reading = inbound.reading();
        Some(Reading {
            asks: reading.asks && !link.is_reading(),
            ..reading
        })
    }

    /// As [`Transport::close`](grpcxx_transport::Transport::close).
    pub fn close(&mut self, id: LinkId, flush: bool) {
        let Some(link) = self.links.find_mut(id) else {
            return;
        };
        match link.phase {
            Phase::Open if flush => {
                link.phase = Phase::Flushing { until: None };
                link.outbound.end();
                self.timed.push(id.slot);
            }
            Phase::Open | Phase::Preparing | Phase::Parting { .. } => link.end(CloseReason::Local),
            Phase::Flushing { .. } | Phase::Ended(_) => return,
        }
        self.queue(id.slot);
    }

    /// Takes peers the right to read foreign memory that was sent, also if they are reading it,
    /// which ends their links. Returns how many registrations that ended.
    pub fn revoke(&mut self, payload: &[u8]) -> usize {
        self.registry.revoke(payload)
    }

    /// Stops the queue of a link, as a device does that fails.
    pub fn break_queue(&mut self, id: LinkId) -> bool {
        let context = self
            .links
            .find_mut(id)
            .and_then(|link| link.context.as_mut());
        context.map(|context| context.queue().stop()).is_some()
    }

    /// The next link that is gone, and why; nothing else follows for it.
    pub fn next_closed(&mut self) -> Option<(LinkId, CloseReason)> {
        let gone = self.next_gone()?;
        self.free(gone.id);
        Some((gone.id, gone.reason))
    }

    /// The next link that is gone; nothing else follows for it. Its id is not used again before
    /// [`RdmaLinks::free`].
    pub(crate) fn next_gone(&mut self) -> Option<Gone> {
        self.over.pop_front()
    }

    /// Lets an id be used again.
    pub(crate) fn free(&mut self, id: LinkId) {
        self.links.free(id);
    }

    /// Whether there are no links.
    pub fn is_empty(&self) -> bool {
        self.links.len() == 0
    }

    /// Whether CPUs of this machine do the device's work.
    pub fn is_software(&self) -> bool {
        self.is_software
    }

    /// Frames accepted and not yet reported as sent.
    pub fn frames_in_flight(&self) -> usize {
        self.frames_in_flight
    }

    /// Whether a turn has something to do that the device will not tell.
    pub fn has_work(&self) -> bool {
        !self.work.is_empty() || !self.over.is_empty() || !self.completions.is_empty()
    }

    /// How long a sleep may last because of what only a clock will tell.
    pub fn patience(&self) -> Option<Duration> {
        if !self.timed.is_empty() {
            Some(TIMED_CHECK)
        } else if self.expires {
            Some(crate::registry::LINGER)
        } else {
            None
        }
    }

    /// Prepares for sleep: after this call the descriptors become readable with a completion or a
    /// fault. False if there is work already.
    pub fn arm(&mut self) -> bool {
        if self.has_work() {
            return false;
        }
        self.adapter.arm();
        self.poll();
        // A device tells once of a fault, and the last turn may have looked just before.
        self.check_faults();
        !self.has_work()
    }

    /// What [`RdmaLinks::arm`] makes readable.
    pub fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.adapter.descriptors()
    }

    /// Puts a link on the work list.
    pub(crate) fn queue(&mut self, slot: u32) {
        if let Some((_, link)) = self.links.at(slot)
            && !link.queued
        {
            link.queued = true;
            self.work.push_back(slot);
        }
    }

    pub(crate) fn poll(&mut self) {
        let room = COMPLETIONS_MAX - self.completions.len();
        self.adapter.poll(self.now, room, &mut self.completions);
    }
}

/// Completions taken at once.
pub(crate) const COMPLETIONS_MAX: usize = 256;

/// How often links are looked at that a clock moves on.
const TIMED_CHECK: Duration = Duration::from_millis(1);
