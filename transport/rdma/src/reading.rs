//! How what arrives on a link is shown, and how payload is read.

use grpcxx_transport::{CloseReason, LinkHandler, Outcome, ReadTarget};

use crate::adapter::Adapter;
use crate::link::{Link, Phase};
use crate::links::RdmaLinks;
use crate::queue_context::Target;
use crate::turn::EVENTS_PER_LINK;
use crate::wire::{Element, HEADER_BYTES, element_at};

impl<A: Adapter> RdmaLinks<A> {
    /// Shows what arrived, as far as the link's orders and the turn allow. Returns the number of
    /// events.
    pub(crate) fn read<H>(&mut self, slot: u32, handler: &mut dyn LinkHandler<H>) -> usize {
        let mut events = 0;
        let reads_max = usize::from(self.options.reads);
        while events < EVENTS_PER_LINK {
            let Some((_, link)) = self.links.at(slot) else {
                return events;
            };
            match link.phase {
                Phase::Open => {}
                Phase::Flushing { .. } => {
                    drop_messages(link);
                    return events;
                }
                Phase::Preparing | Phase::Parting { .. } | Phase::Ended(_) => return events,
            }
            if let Some(delivered) = self.deliver_read(slot, handler) {
                events += delivered;
                continue;
            }
            let Some((id, link)) = self.links.at(slot) else {
                return events;
            };
            let id = link.reported_as(id);
            let is_reading = link.is_reading();
            if is_reading && link.is_settled() {
                link.end_as_side();
                return events;
            }
            // A read may have it.
            let Some(inbound) = &mut link.inbound else {
                return events;
            };
            // Landings come back in order, so one that has its bytes waits until those before it
            // are read.
            link.resumed |= inbound.set_behind(is_reading);
            let is_behind = is_reading && inbound.has_landing();
            if !is_behind && std::mem::take(&mut link.resumed) {
                events += inbound.offer(id, &[], handler);
            }
            if inbound.is_paused() {
                return events;
            }
            if link.incoming.offer().is_some() {
                if link.is_settled() {
                    link.end_as_side();
                    return events;
                }
                if !self.may_read(slot) {
                    return events;
                }
                self.begin_read(slot);
                continue;
            }
            let (Some(message), Some(context)) = (link.incoming.front(), &mut link.context) else {
                if link.is_settled() {
                    link.end_as_side();
                }
                return events;
            };
            let bytes = context.message(message.index, message.len_bytes);
            match element_at(bytes, link.incoming.at) {
                Ok(Some((element, next))) => {
                    let mut behind = None;
                    let waits = match element {
                        Element::Bytes(bytes) if is_behind => {
                            if context.reading_count() < reads_max {
                                behind = inbound.take_landing(bytes.len() as u64);
                            }
                            behind.is_none()
                        }
                        Element::Bytes(_) | Element::Offer(_) => false,
                        Element::End => is_reading,
                    };
                    if waits {
                        return events;
                    }
                    link.incoming.at = next;
                    match element {
                        Element::Bytes(mut bytes) => {
                            self.counters.eager_bytes += bytes.len() as u64;
                            if let Some(landing) = &mut behind {
                                bytes = &bytes[landing.fill_from(bytes)..];
                            }
                            events += inbound.offer(id, bytes, handler);
                            if let Some(landing) = behind {
                                context.hold_back(landing);
                                link.targets.push_back(None);
                            }
                        }
                        Element::Offer(offer) => link.incoming.set_offer(offer),
                        Element::End => {
                            link.phase = Phase::Parting { until: None };
                            self.timed.push(slot);
                        }
                    }
                }
                Ok(None) => {
                    link.incoming.pop(HEADER_BYTES);
                    context.repost(message.index);
                    let taken = (link.peer.as_mut()).map(|peer| peer.credits.message_taken());
                    if let Some(Err(malformed)) = taken {
                        link.violate(malformed);
                    }
                }
                Err(malformed) => link.violate(malformed),
            }
        }
        self.queue(slot);
        events
    }

    /// Shows what the oldest read has brought, if it is over. Returns the number of events.
    fn deliver_read<H>(&mut self, slot: u32, handler: &mut dyn LinkHandler<H>) -> Option<usize> {
        let (id, link) = self.links.at(slot)?;
        let id = link.reported_as(id);
        let context = link.context.as_mut()?;
        let read = context.finished_read()?;
        link.targets.pop_front();
        link.unreleased_bytes += read.len_bytes;
        if read.ends_offer
            && let Some(peer) = &mut link.peer
        {
            peer.credits.offer_taken();
        }
        let len_bytes = read.len_bytes;
        if matches!(read.into, Target::Staging(_)) {
            self.counters.staged_read_bytes += len_bytes as u64;
        } else {
            self.counters.read_bytes += len_bytes as u64;
        }
        let (inbound, events) = match read.into {
            Target::Landing(mut landing) => {
                landing.advance(len_bytes);
                // The link has gone on, so the answer does not count.
                handler.landed(id, landing, Outcome::Done);
                return Some(1);
            }
            Target::Inbound(mut inbound) => {
                inbound.set_behind(false);
                let events = inbound.landed_direct(id, len_bytes, handler);
                (inbound, events)
            }
            Target::Staging(mut inbound) => {
                inbound.set_behind(false);
                let events = inbound.offer(id, context.staged(len_bytes), handler);
                (inbound, events)
            }
        };
        link.inbound = Some(inbound);
        Some(events)
    }

    /// Whether one more read may begin: one always, several within bounds.
    fn may_read(&mut self, slot: u32) -> bool {
        let Some((_, link)) = self.links.at(slot) else {
            return false;
        };
        (link.context.as_ref()).is_some_and(|context| {
            context.reading_count() == 0
                || (context.reading_count() < usize::from(self.options.reads)
                    && context.reading_bytes() < READING_BYTES_MAX)
        })
    }

    /// Begins to read the present offer to where the link wants it.
    fn begin_read(&mut self, slot: u32) {
        let Some((_, link)) = self.links.at(slot) else {
            return;
        };
        let (Some(offer), Some(context)) = (link.incoming.offer(), &mut link.context) else {
            return;
        };
        let Some(mut inbound) = link.inbound.take() else {
            return;
        };
        if let ReadTarget::Direct(target) = inbound.target() {
            let offered = usize::try_from(offer.len_bytes).unwrap_or(usize::MAX);
            let len_bytes = target.len().min(offered);
            let start = target.as_ptr().addr();
            if let Some(target) = self.registry.target(&self.adapter, start, len_bytes) {
                link.targets.push_back(target.registration);
                link.incoming.advance(len_bytes);
                let into = match inbound.take_landing(offer.len_bytes) {
                    Some(landing) => {
                        link.inbound = Some(inbound);
                        Target::Landing(landing)
                    }
                    None => Target::Inbound(inbound),
                };
                self.counters.reads_beside += u64::from(context.reading_count() > 0);
                let chunk_bytes = self.options.chunk_bytes;
                context.read_direct(into, offer, len_bytes, target.key, chunk_bytes);
                return;
            }
        }
        link.targets.push_back(None);
        let len_bytes = context.read_staged(inbound, offer);
        link.incoming.advance(len_bytes);
    }
}

/// Drops what arrives on a link that is closing, and ends it if the peer closes too: then it reads
/// no more.
fn drop_messages<A: Adapter>(link: &mut Link<A>) {
    while let (Some(message), Some(context)) = (link.incoming.front(), &mut link.context) {
        let bytes = context.message(message.index, message.len_bytes);
        let mut at = link.incoming.at;
        let mut is_end = false;
        while let Ok(Some((element, next))) = element_at(bytes, at) {
            is_end |= element == Element::End;
            at = next;
        }
        link.incoming.pop(HEADER_BYTES);
        context.repost(message.index);
        if is_end {
            return link.end(CloseReason::Local);
        }
    }
}

/// Payload of one link whose reads have begun: enough to keep a device busy while the next pieces
/// are ordered.
const READING_BYTES_MAX: usize = 4 << 20;
