//! How links are set up: each end makes a queue, and connects it to that of which the peer's blob
//! tells.

use grpcxx_transport::{Inbound, LinkId, Next, TransportError};

use crate::adapter::{Adapter, Queue, QueueDepth, QueueTag};
use crate::blob::{Blob, Introduction};
use crate::credits::Credits;
use crate::link::{Link, Peer, Phase};
use crate::links::RdmaLinks;
use crate::queue_context::{Layout, QueueContext, QueueContextLimits};

impl<A: Adapter> RdmaLinks<A> {
    /// Begins a link and returns its id with the set-up data for the peer.
    ///
    /// # Errors
    /// The limit of links is reached, or the device or the system refuses what a link needs.
    pub fn offer(&mut self) -> Result<(LinkId, Blob), TransportError> {
        let id = self.prepare()?;
        match self.introduce(id) {
            Ok(blob) => Ok((id, blob)),
            Err(error) => {
                self.forget(id);
                Err(error)
            }
        }
    }

    /// Answers a peer's offer. The link is open at once; frames wait until the peer has the answer.
    ///
    /// # Errors
    /// As [`RdmaLinks::offer`], or the blob is none.
    pub fn accept(&mut self, blob: &[u8], next: Next) -> Result<(LinkId, Blob), TransportError> {
        let id = self.expect(next)?;
        match self.answer(id, blob) {
            Ok(blob) => Ok((id, blob)),
            Err(error) => {
                self.forget(id);
                Err(error)
            }
        }
    }

    /// Completes a link with the peer's answer; it is open then.
    ///
    /// # Errors
    /// The blob is none, the device refuses the peer's address, or the link does not wait for it.
    /// The caller should close the link.
    pub fn finish(&mut self, id: LinkId, blob: &[u8], next: Next) -> Result<(), TransportError> {
        if !self.connect(id, blob)? {
            return Err(refusal("the link does not wait for an answer"));
        }
        self.open(id, next);
        Ok(())
    }

    /// A link that this side begins, without a queue yet.
    pub(crate) fn prepare(&mut self) -> Result<LinkId, TransportError> {
        self.check_room()?;
        Ok((self.links).insert_with(|| Link::new(Phase::Preparing, None)))
    }

    /// A link that a peer begins, whose set-up data is still on its way. It is open already.
    pub(crate) fn expect(&mut self, next: Next) -> Result<LinkId, TransportError> {
        self.check_room()?;
        let link = Link::new(Phase::Open, Some(Inbound::new(next)));
        let id = self.links.insert_with(|| link);
        self.queue(id.slot);
        Ok(id)
    }

    /// Connects a link that this side began to the peer's queue. False if the link does not wait
    /// for that.
    pub(crate) fn connect(&mut self, id: LinkId, blob: &[u8]) -> Result<bool, TransportError> {
        let introduction = decode(blob)?;
        let waits =
            (self.links.find_mut(id)).is_some_and(|link| matches!(link.phase, Phase::Preparing));
        if waits {
            self.join(id, introduction, true)?;
        }
        Ok(waits)
    }

    /// Opens a link that is connected.
    pub(crate) fn open(&mut self, id: LinkId, next: Next) {
        if let Some(link) = self.links.find_mut(id) {
            link.phase = Phase::Open;
            link.inbound = Some(Inbound::new(next));
        }
        self.queue(id.slot);
    }

    /// Takes back a link that nobody knows of yet.
    pub(crate) fn forget(&mut self, id: LinkId) {
        self.links.remove(id);
    }

    /// Gives a link its queue, and returns the set-up data for the peer.
    pub(crate) fn introduce(&mut self, id: LinkId) -> Result<Blob, TransportError> {
        let limits = self.adapter.limits();
        let credits = self.options.credits;
        let layout = Layout {
            slot_bytes: self.options.message_bytes,
            receives: credits.receives(),
            sends: credits.messages,
            staging_bytes: STAGING_BYTES,
        };
        let reads = self.options.reads.min(limits.reads_per_queue).max(1);
        let requests = (usize::from(credits.messages) + usize::from(credits.immediates))
            .saturating_add(usize::from(reads) + REQUESTS_SPARE)
            .min(limits.requests_per_queue as usize);
        let depth = QueueDepth {
            receives: u32::from(credits.receives()),
            sends: requests as u32,
        };
        let (memory, key) = (self.registry).link_memory(&self.adapter, layout.len_bytes())?;
        self.generation = self.generation.wrapping_add(1);
        let tag = QueueTag {
            slot: id.slot,
            generation: self.generation,
        };
        let queue = self.adapter.open_queue(tag, depth)?;
        let endpoint = queue.endpoint();
        let limits = QueueContextLimits {
            requests,
            reads: usize::from(reads),
            inline_bytes: limits.inline_bytes as usize,
        };
        let context = QueueContext::new(queue, memory, key, layout, limits)?;
        let Some(link) = self.links.find_mut(id) else {
            return Err(refusal("the link is gone"));
        };
        link.tag = tag;
        link.context = Some(context);
        let introduction = Introduction {
            endpoint,
            credits,
            slot_bytes: self.options.message_bytes as u32,
        };
        Ok(introduction.encode())
    }

    /// Gives a link its queue and connects it to the peer's. Returns the answer.
    pub(crate) fn answer(&mut self, id: LinkId, blob: &[u8]) -> Result<Blob, TransportError> {
        let introduction = decode(blob)?;
        let blob = self.introduce(id)?;
        self.join(id, introduction, false)?;
        Ok(blob)
    }

    fn join(
        &mut self,
        id: LinkId,
        introduction: Introduction,
        begins: bool,
    ) -> Result<(), TransportError> {
        let own = self.options.credits;
        let message_bytes = self.options.message_bytes;
        let Some(link) = self.links.find_mut(id) else {
            return Err(refusal("the link is gone"));
        };
        let Some(context) = &mut link.context else {
            return Err(refusal("the link has no queue"));
        };
        context.queue().connect(&introduction.endpoint)?;
        context.set_reads_max(usize::from(introduction.endpoint.reads));
        link.peer = Some(Peer {
            credits: Credits::new(own, introduction.credits, begins),
            limits: introduction.credits,
            message_bytes: message_bytes.min(introduction.slot_bytes as usize),
            is_up: begins,
        });
        Ok(())
    }

    fn check_room(&self) -> Result<(), TransportError> {
        let limit = self.options.limits.links;
        if self.links.len() < limit {
            return Ok(());
        }
        Err(refusal(format!(
            "all {limit} links are in use; close some or raise LinkLimits::links"
        )))
    }
}

fn decode(blob: &[u8]) -> Result<Introduction, TransportError> {
    Introduction::decode(blob).map_err(|error| refusal(error.to_string()))
}

fn refusal(message: impl Into<String>) -> TransportError {
    TransportError {
        operation: "set up an RDMA link".to_owned(),
        errno: 0,
        message: message.into(),
    }
}

/// What is read into no landing goes through so much memory.
const STAGING_BYTES: usize = 32 << 10;

/// Requests beyond what credits allow: those that completed unseen.
const REQUESTS_SPARE: usize = 24;
