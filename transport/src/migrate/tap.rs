//! Stands between the base transport and the handler during a turn, and finds where a stream
//! migrates.

use std::net::SocketAddr;

use super::link::{Closing, Stage};
use super::{LinkRegistry, Medium};
use crate::{
    CloseReason, Frame, HEAD_BYTES_MAX, Landing, LinkHandler, LinkId, ListenerId, Migration, Next,
    Outcome, PeerName, Progress,
};

pub(super) struct BaseTap<'a, M: Medium, A> {
    pub(super) registry: &'a mut LinkRegistry<M>,
    pub(super) medium: &'a mut Option<M>,
    pub(super) handler: &'a mut dyn LinkHandler<A>,
    /// Events that the handler has seen.
    pub(super) events: usize,
}

impl<M: Medium, A> BaseTap<'_, M, A> {
    /// Shows the handler bytes, and divides what it wants next.
    fn show(&mut self, id: LinkId, bytes: &[u8]) -> Progress {
        self.events += 1;
        let mut progress = self.handler.received(id, bytes);
        if let Some(link) = self.registry.links.find_mut(id) {
            link.take(progress.consumed_bytes);
            progress.next = link.steer(progress.next, self.medium.as_mut());
        }
        progress
    }

    /// Ends a link whose peer sends here what should be in the medium.
    fn fail_stray(&mut self, id: LinkId, bytes: &[u8]) -> Progress {
        if let Some(medium) = self.medium {
            self.registry
                .fail(id, "the peer sends beyond its cut", medium);
        }
        all_of(bytes, Next::Pause)
    }

    /// Takes the bytes up to a record, the record, and what follows it.
    fn meet_record(&mut self, id: LinkId, bytes: &[u8], at: usize) -> Progress {
        let (before, rest) = bytes.split_at(at);
        let is_quiet = self.is_quiet(id);
        if !before.is_empty() && !is_quiet {
            let progress = self.show(id, before);
            let is_between_frames = matches!(progress.next, Next::Head { .. });
            if progress.consumed_bytes < before.len() || !is_between_frames {
                // The frame goes on; the record is met again behind it.
                return progress;
            }
        }
        let head = |at_least_bytes| Next::Head { at_least_bytes };
        let Some((record, behind)) = rest.split_at_checked(HEAD_BYTES_MAX) else {
            return Progress {
                consumed_bytes: at,
                next: head(HEAD_BYTES_MAX),
            };
        };
        let Some(link) = self.registry.links.find_mut(id) else {
            return all_of(bytes, Next::Pause);
        };
        let head_bytes = link.head_bytes();
        // Who has closed awaits an answer for the sake of its held frames, and nothing else.
        let is_wanted = match link.closing {
            None => true,
            Some(Closing::Flush) => link.is_asked(),
            Some(Closing::Now) => false,
        };
        let mut goes_on = true;
        if let (Some(medium), true) = (self.medium.as_mut(), is_wanted) {
            goes_on = medium.take_record(self.registry, id, record, head(head_bytes));
        }
        if let Some(link) = self.registry.links.find_mut(id) {
            link.reads_medium = matches!(link.stage, Stage::Migrated(_));
        }
        if !goes_on && !behind.is_empty() {
            return self.fail_stray(id, bytes);
        }
        if is_quiet {
            return all_of(bytes, head(1));
        }
        let mut progress = Progress {
            consumed_bytes: at + HEAD_BYTES_MAX,
            next: head(head_bytes),
        };
        if behind.len() >= head_bytes {
            let further = self.show(id, behind);
            progress.consumed_bytes += further.consumed_bytes;
            progress.next = further.next;
        }
        progress
    }

    /// Whether the handler has closed the link, so that it sees no bytes any more.
    fn is_quiet(&mut self, id: LinkId) -> bool {
        let link = self.registry.links.find_mut(id);
        link.is_none_or(|link| link.closing.is_some())
    }
}

impl<M: Medium, A> LinkHandler<A> for BaseTap<'_, M, A> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A) {
        self.events += 1;
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, base: LinkId) -> Next {
        let id = self.registry.of_base(base);
        self.events += 1;
        let next = self.handler.connected(id);
        match self.registry.links.find_mut(id) {
            Some(link) => link.steer(next, self.medium.as_mut()),
            None => next,
        }
    }

    fn received(&mut self, base: LinkId, bytes: &[u8]) -> Progress {
        let id = self.registry.of_base(base);
        let Some(link) = self.registry.links.find_mut(id) else {
            return all_of(bytes, Next::Pause);
        };
        if link.reads_medium {
            return self.fail_stray(id, bytes);
        }
        if let Stage::Base(handshake) = &link.stage
            && let Some(at) = M::find_record(handshake, bytes)
        {
            return self.meet_record(id, bytes, at);
        }
        if link.closing.is_some() {
            return all_of(bytes, Next::Head { at_least_bytes: 1 });
        }
        self.show(id, bytes)
    }

    fn landed(&mut self, base: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let id = self.registry.of_base(base);
        self.events += 1;
        let next = self.handler.landed(id, landing, outcome);
        match self.registry.links.find_mut(id) {
            Some(link) if outcome == Outcome::Done => {
                link.take_landing();
                link.steer(next, self.medium.as_mut())
            }
            _ => next,
        }
    }

    fn sent(&mut self, base: LinkId, frame: Box<Frame>, outcome: Outcome) {
        let id = self.registry.of_base(base);
        if let Some(link) = self.registry.links.find_mut(id) {
            link.base_frames -= 1;
            if link.base_frames == 0 {
                match (&mut link.stage, self.medium.as_mut()) {
                    (Stage::Migrated(migrated), Some(medium)) if link.record.is_none() => {
                        medium.hold(migrated, false);
                    }
                    _ if link.record.is_some() || !link.held.is_empty() => {
                        self.registry.due.push_back(id);
                    }
                    _ => {}
                }
            }
            match &mut link.record_after {
                Some(0) => {
                    link.record_after = None;
                    self.registry.records_in_flight -= 1;
                    return;
                }
                Some(before) => *before -= 1,
                None => {}
            }
        }
        self.events += 1;
        self.handler.sent(id, frame, outcome);
    }

    fn closed(&mut self, base: LinkId, reason: &CloseReason) {
        let id = self.registry.of_base(base);
        self.registry.forget_base(base);
        let Some(link) = self.registry.links.find_mut(id) else {
            return;
        };
        link.base = None;
        match (&mut link.stage, self.medium.as_mut()) {
            (Stage::Migrated(migrated), Some(medium)) if link.over.is_none() => {
                if let Some(cut) = medium.base_lost(migrated, reason) {
                    link.cut(cut, medium);
                }
                if !link.reads_medium {
                    link.end(reason.clone(), medium);
                }
            }
            _ => {
                link.over.get_or_insert_with(|| reason.clone());
            }
        }
        self.registry.due.push_back(id);
    }

    fn proven(&mut self, base: LinkId, name: Option<&PeerName>) {
        let id = self.registry.of_base(base);
        self.handler.proven(id, name);
    }

    fn migration(&mut self, base: LinkId, news: Migration<'_>) {
        let id = self.registry.of_base(base);
        self.handler.migration(id, news);
    }
}

/// Takes bytes that nobody may see.
fn all_of(bytes: &[u8], next: Next) -> Progress {
    Progress {
        consumed_bytes: bytes.len(),
        next,
    }
}
