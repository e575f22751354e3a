//! What the links of a shard do in a turn.

use std::time::Duration;

use grpcxx_transport::{CloseReason, LinkHandler, Outcome, Time};

use crate::adapter::{Adapter, Completion, CompletionEvent, Fault, RequestFailure};
use crate::incoming::Message;
use crate::link::{Gone, Link, Phase, Side};
use crate::links::RdmaLinks;
use crate::queue_context::Target;
use crate::wire::{Grants, Malformed, MessageWriter, grants_of};

impl<A: Adapter> RdmaLinks<A> {
    /// Does a bounded amount of work and reports what happened, but for the ends of links. Returns
    /// the number of events.
    pub fn turn<H>(&mut self, now: Time, handler: &mut dyn LinkHandler<H>) -> usize {
        self.now = now;
        if !self.timed.is_empty() {
            self.check_timed();
        }
        if self.expires {
            self.expires = self.registry.expire(now);
        }
        let events = self.work(0, handler);
        self.poll();
        self.take_completions();
        if now.since(self.faults_checked) >= FAULT_CHECK {
            self.check_faults();
        }
        self.work(events, handler)
    }

    /// Takes the work list off once, until that brings `events` to [`EVENTS_ENOUGH`]. Returns the
    /// new number.
    fn work<H>(&mut self, mut events: usize, handler: &mut dyn LinkHandler<H>) -> usize {
        for _ in 0..self.work.len() {
            if events >= EVENTS_ENOUGH {
                break;
            }
            if let Some(slot) = self.work.pop_front() {
                events += self.advance(slot, handler);
            }
        }
        events
    }

    /// Does what the state of one link asks for. Returns the number of events.
    fn advance<H>(&mut self, slot: u32, handler: &mut dyn LinkHandler<H>) -> usize {
        if let Some((_, link)) = self.links.at(slot) {
            link.queued = false;
        }
        let mut events = self.read(slot, handler);
        self.write(slot);
        events += self.give_frames_back(slot, handler);
        let Some((_, link)) = self.links.at(slot) else {
            return events;
        };
        let is_acknowledged =
            (link.context.as_ref()).is_none_or(|context| context.is_acknowledged());
        match link.phase {
            Phase::Flushing { .. } if is_acknowledged && link.outbound.is_flushed() => {
                link.end(CloseReason::Local);
            }
            Phase::Parting { .. } if is_acknowledged && !link.owes_releases() => {
                link.end(CloseReason::EndOfStream);
            }
            _ => {}
        }
        if link.is_ended() {
            if events == 0 {
                return self.end(slot, handler);
            }
            self.queue(slot);
        }
        events
    }

    /// Packs and posts what may be sent.
    pub(crate) fn write(&mut self, slot: u32) {
        let Some((_, link)) = self.links.at(slot) else {
            return;
        };
        let Some(context) = &mut link.context else {
            return;
        };
        let sends = matches!(link.phase, Phase::Open | Phase::Flushing { .. });
        if let Some(peer) = link.peer.as_mut().filter(|peer| sends && peer.is_up) {
            while !link.is_held && link.outbound.has_unpacked() && peer.credits.has_message() {
                let Some(memory) = context.slot() else {
                    break;
                };
                let mut writer = MessageWriter::new(&mut memory[..peer.message_bytes]);
                let (registry, adapter, now) = (&mut self.registry, &self.adapter, self.now);
                let packed = (link.outbound).pack(
                    &mut writer,
                    self.options.offer_bytes_min,
                    |frame, piece| {
                        let device = frame.device_payload(piece);
                        let lent = match device.and_then(|payload| registry.lend_device(payload)) {
                            Some(lent) => lent,
                            None => registry.lend(adapter, frame.payload(piece)?, now)?,
                        };
                        self.counters.offers_sent += 1;
                        Some(lent)
                    },
                );
                if !writer.is_empty() {
                    let len_bytes = writer.finish(peer.credits.spend_message());
                    link.unreleased_bytes = 0;
                    let is_last = !link.outbound.has_unpacked()
                        && matches!(link.phase, Phase::Flushing { .. });
                    context.send(len_bytes, is_last);
                    self.counters.messages_sent += 1;
                    self.counters.eager_bytes += len_bytes as u64;
                }
                if !packed {
                    break;
                }
            }
            // While more is read, the peer can wait for its memory a little.
            let is_worth = link.unreleased_bytes >= RELEASE_BYTES || context.reading_count() == 0;
            let releases_min = if is_worth { 1 } else { RELEASES_PER_GRANT };
            if context.has_room()
                && let Some(grants) = peer.credits.spend_immediate(releases_min)
            {
                link.unreleased_bytes = 0;
                context.send_immediate(grants.to_bits(), false);
                self.counters.immediates_sent += 1;
            }
        }
        if matches!(link.phase, Phase::Parting { .. })
            && context.has_room()
            && let Some(grants) = (link.peer.as_mut()).and_then(|peer| peer.credits.spend_last())
        {
            context.send_immediate(grants.to_bits(), true);
            self.counters.immediates_sent += 1;
        }
        if let Err(error) = context.flush() {
            link.fail_with(error);
            self.counters.failures += 1;
        }
    }

    /// Gives back frames that have left. Returns the number of events.
    fn give_frames_back<H>(&mut self, slot: u32, handler: &mut dyn LinkHandler<H>) -> usize {
        let Some((id, link)) = self.links.at(slot) else {
            return 0;
        };
        let id = link.reported_as(id);
        let mut events = 0;
        while events < EVENTS_PER_LINK {
            let Some(frame) = link.outbound.pop_done() else {
                return events;
            };
            self.frames_in_flight -= 1;
            handler.sent(id, frame, Outcome::Done);
            events += 1;
        }
        if link.outbound.has_done() {
            self.queue(slot);
        }
        events
    }

    /// Removes a link that has ended, and reports all that follows from it. Returns the number of
    /// events.
    fn end<H>(&mut self, slot: u32, handler: &mut dyn LinkHandler<H>) -> usize {
        let Some((id, mut link)) = self.links.take(slot) else {
            return 0;
        };
        let reported_as = link.reported_as(id);
        self.timed.retain(|&timed| timed != slot);
        // First the queue goes: only then may others have the memory that the device or the peer
        // reads.
        let reads = link.context.take().map(|context| context.close());
        let mut events = 0;
        for target in reads.into_iter().flatten() {
            match target {
                Target::Landing(landing) => {
                    handler.landed(reported_as, landing, Outcome::Lost);
                    events += 1;
                }
                Target::Inbound(inbound) | Target::Staging(inbound) => link.inbound = Some(inbound),
            }
        }
        if let Some(mut inbound) = link.inbound.take() {
            events += inbound.lose(reported_as, handler);
        }
        link.targets.clear();
        for lease in link.outbound.take_leases() {
            self.registry.give_back(lease, self.now);
            self.expires = true;
        }
        while let Some((frame, has_left)) = link.outbound.pop_lost() {
            self.frames_in_flight -= 1;
            // What the peer may have read must not be handed out again.
            let outcome = if has_left {
                Outcome::Done
            } else {
                Outcome::Lost
            };
            handler.sent(reported_as, frame, outcome);
            events += 1;
        }
        if let Phase::Ended(reason) = link.phase {
            self.over.push_back(Gone {
                id,
                reported_as,
                reason,
            });
        }
        events
    }

    fn take_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        self.completions = completions;
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { tag, event } = completion;
        let Some((_, link)) = self.links.at(tag.slot) else {
            return;
        };
        let Some(context) = link.context.as_mut().filter(|_| link.tag == tag) else {
            return;
        };
        match event {
            CompletionEvent::Done => context.done(),
            CompletionEvent::Message { index, len_bytes } => {
                let len_bytes = len_bytes as usize;
                if !context.take(index) {
                    return;
                }
                self.counters.messages_received += 1;
                match grants_of(context.message(index, len_bytes)) {
                    Ok(grants) => {
                        link.incoming.push(Message { index, len_bytes });
                        self.granted(tag.slot, grants);
                    }
                    Err(malformed) => link.violate(malformed),
                }
            }
            CompletionEvent::Immediate { index, bits } => {
                if !context.take(index) {
                    return;
                }
                context.repost(index);
                if let Some(peer) = &mut link.peer {
                    peer.credits.immediate_taken();
                }
                self.granted(tag.slot, Grants::from_bits(bits));
            }
            CompletionEvent::Failed(failure) => {
                // Flushed requests follow the one that failed, or this side's own stop.
                let operation = if failure == RequestFailure::FLUSHED {
                    "use the queue of an RDMA link"
                } else {
                    "complete a request of an RDMA link"
                };
                if !link.is_ended() {
                    self.counters.failures += 1;
                }
                link.fail(operation, failure.to_string());
            }
        }
        self.queue(tag.slot);
    }

    fn granted(&mut self, slot: u32, grants: Grants) {
        let Some((_, link)) = self.links.at(slot) else {
            return;
        };
        let Some(peer) = &mut link.peer else {
            // A peer knows this queue only after it was told, and then its own is known here.
            return link.violate(Malformed("a message before its set-up data"));
        };
        peer.is_up = true;
        let (registry, now) = (&mut self.registry, self.now);
        let mut returned = false;
        let result = peer.credits.receive(grants, peer.limits).and_then(|()| {
            link.outbound.release(grants.releases, |lease| {
                registry.give_back(lease, now);
                returned = true;
            })
        });
        self.expires |= returned;
        if let Err(malformed) = result {
            link.violate(malformed);
        }
    }

    pub(crate) fn check_faults(&mut self) {
        self.faults_checked = self.now;
        while let Some(fault) = self.adapter.next_fault() {
            tracing::warn!(device = self.adapter.name(), ?fault, "RDMA device fault");
            let (only, what) = match fault {
                Fault::Device(what) => (None, what),
                Fault::Completions { what } => (None, what.to_owned()),
                Fault::Queue { tag, what } => (Some(tag), what.to_owned()),
            };
            for slot in self.links.slots() {
                if let Some((_, link)) = self.links.at(slot)
                    && link.context.is_some()
                    && only.is_none_or(|tag| tag == link.tag)
                {
                    link.fail("use an RDMA device", what.clone());
                    self.counters.failures += 1;
                    self.queue(slot);
                }
            }
        }
    }

    fn check_timed(&mut self) {
        let now = self.now;
        for index in 0..self.timed.len() {
            let slot = self.timed[index];
            let Some((_, link)) = self.links.at(slot) else {
                continue;
            };
            if step_timed(link, now, self.options.flush_timeout) {
                self.queue(slot);
            }
        }
        let links = &mut self.links;
        self.timed.retain(|&slot| {
            links.at(slot).is_some_and(|(_, link)| {
                matches!(link.phase, Phase::Flushing { .. } | Phase::Parting { .. })
                    || (matches!(link.side, Side::Lost { .. }) && !link.is_settled())
            })
        });
    }
}

/// Moves a link on that a clock moves. Says whether it has something to do.
fn step_timed<A: Adapter>(link: &mut Link<A>, now: Time, flush_timeout: Duration) -> bool {
    let mut is_changed = false;
    if let Side::Lost {
        since, is_settled, ..
    } = &mut link.side
    {
        let since = *since.get_or_insert(now);
        if !*is_settled && (link.context.is_none() || now.since(since) >= SETTLE_TIME) {
            *is_settled = true;
            is_changed = true;
        }
    }
    if link.is_settled() && !link.is_open() {
        let reason = match &link.phase {
            Phase::Flushing { .. } => Some(CloseReason::Local),
            Phase::Parting { .. } => Some(CloseReason::EndOfStream),
            _ => None,
        };
        match reason {
            Some(reason) => link.end(reason),
            None => link.end_as_side(),
        }
        is_changed = true;
    }
    let (until, reason) = match &mut link.phase {
        Phase::Flushing { until } => (until, CloseReason::Local),
        Phase::Parting { until } => (until, CloseReason::EndOfStream),
        _ => return is_changed,
    };
    if now >= *until.get_or_insert(now + flush_timeout) {
        link.end(reason);
        is_changed = true;
    }
    is_changed
}

/// A turn that has had this many events begins nothing more.
const EVENTS_ENOUGH: usize = 1024;

/// A link that has had this many events lets others go on.
pub(crate) const EVENTS_PER_LINK: usize = 256;

/// Offers that are released at once while more is read: each release costs a message.
const RELEASES_PER_GRANT: u16 = 4;

/// Memory that the peer does not wait for longer than it must.
const RELEASE_BYTES: usize = 1 << 20;

/// How often the device is asked for faults, which costs a system call.
const FAULT_CHECK: Duration = Duration::from_millis(1);

/// How long what a peer sent may take to arrive after its connection has ended.
const SETTLE_TIME: Duration = Duration::from_millis(1);
