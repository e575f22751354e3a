//! How two ends agree on a queue pair, by records in the stream that migrates.

use std::time::Duration;

use grpcxx_transport::{CloseReason, LinkId, LinkRegistry, Next, Time};

use super::RdmaMedium;
use super::record::{Record, Secret};
use crate::adapter::Adapter;

/// How far a link has come on its way to RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handshake {
    /// Nothing was said about it.
    #[default]
    None,
    /// The peer may send its record.
    Offered { secret: Secret },
    /// The record is on its way, the answer is to come.
    Asked {
        secret: Secret,
        /// This end of the queue pair.
        rdma: LinkId,
    },
}

impl Handshake {
    /// The secret whose record may come on the base transport.
    ///
    /// It is looked for as long as the link is there: a peer that is late, or has much to send
    /// before it, must still be understood, and one that never asks costs a search of the heads it
    /// sends.
    pub(super) fn awaited(&self) -> Option<Secret> {
        match self {
            Self::Offered { secret } | Self::Asked { secret, .. } => Some(*secret),
            Self::None => None,
        }
    }
}

/// A link that will ask its peer at a time.
pub(super) struct Resting {
    id: LinkId,
    secret: Secret,
    until: Time,
}

impl<A: Adapter> RdmaMedium<A> {
    /// Asks the peer of a dialled link to migrate, now or once RDMA has rested.
    pub(super) fn ask_when_rested(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        secret: Secret,
    ) {
        if links.now() < self.rests_until {
            let until = self.rests_until;
            self.resting.push(Resting { id, secret, until });
            return;
        }
        let link = links.link(id).filter(|link| link.is_open());
        let handshake = link.and_then(|link| link.handshake());
        let Some(Handshake::None) = handshake else {
            return;
        };
        match self.links.offer() {
            Ok((rdma, blob)) => {
                self.links.set_owner(rdma, id);
                links.asked(id, Handshake::Asked { secret, rdma });
                links.send_record(id, &Record::new(secret, Some(blob)).encode());
            }
            Err(error) => links.decline(id, error.to_string()),
        }
    }

    /// Asks for links whose time has come.
    pub(super) fn check_resting(&mut self, links: &mut LinkRegistry<Self>, now: Time) {
        let mut index = 0;
        while let Some(resting) = self.resting.get(index) {
            if now < resting.until {
                index += 1;
                continue;
            }
            let Resting { id, secret, .. } = self.resting.swap_remove(index);
            self.ask_when_rested(links, id, secret);
        }
    }

    /// Takes the peer's record. Returns whether the peer may send more on the base transport.
    pub(super) fn meet(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        record: &[u8],
        next: Next,
    ) -> bool {
        let handshake = links.link(id).and_then(|link| link.handshake());
        let (Some(record), Some(handshake)) = (Record::decode(record), handshake) else {
            return false;
        };
        match *handshake {
            Handshake::Offered { secret } => self.answer(links, id, secret, &record, next),
            Handshake::Asked { secret, rdma } if record.is_refusal => {
                *handshake = Handshake::None;
                self.links.close(rdma, false);
                links.decline(id, "the peer cannot use its RDMA device now");
                let until = links.now() + REFUSED_TIME;
                self.resting.push(Resting { id, secret, until });
            }
            Handshake::Asked { rdma, .. } => match self.links.finish(rdma, &record.blob, next) {
                Ok(()) => links.migrate(id, rdma, self),
                // The peer has gone over already, so there is no way back.
                Err(_) => links.fail(id, "the peer's queue cannot be reached", self),
            },
            Handshake::None => links.fail(id, "a record came that was not asked for", self),
        }
        record.is_refusal
    }

    /// The peer asks to migrate: answers, and goes over if it can.
    fn answer(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        secret: Secret,
        record: &Record,
        next: Next,
    ) {
        if links.link(id).is_none_or(|link| link.has_record()) {
            let what = "a record came before the answer to the last had left";
            return links.fail(id, what, self);
        }
        let accepted = if links.now() < self.rests_until {
            Err("RDMA failed here a moment ago".to_owned())
        } else {
            (self.links.accept(&record.blob, next)).map_err(|error| error.to_string())
        };
        match accepted {
            Ok((rdma, blob)) => {
                self.links.set_owner(rdma, id);
                // In this order: frames wait until the answer has left.
                links.send_record(id, &Record::new(secret, Some(blob)).encode());
                links.migrate(id, rdma, self);
            }
            Err(reason) => {
                // The peer may ask again: the handshake stays.
                links.send_record(id, &Record::new(secret, None).encode());
                links.decline(id, reason);
            }
        }
    }

    /// Takes the ends of links over RDMA.
    pub(super) fn part(&mut self, links: &mut LinkRegistry<Self>) {
        while let Some(gone) = self.links.next_gone() {
            self.links.free(gone.id);
            let id = gone.reported_as;
            let Some(link) = links.link(id) else {
                continue;
            };
            let is_base_there = link.has_base() && !link.is_over();
            // A link that is not migrated yet is decided by the peer's answer.
            if link.migrated().copied() != Some(gone.id) {
                continue;
            }
            if matches!(gone.reason, CloseReason::Failed(_)) && is_base_there {
                self.rests_until = links.now() + REST_TIME;
                links.fail_over(id, gone.reason.to_string());
            }
            links.leave(id, gone.reason);
        }
    }
}

/// How long no link migrates after RDMA failed under one. Until then new links carry calls where
/// they began.
const REST_TIME: Duration = Duration::from_secs(10);

/// When a peer that has refused is asked again.
const REFUSED_TIME: Duration = Duration::from_secs(60);
