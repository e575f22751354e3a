//! How two ends agree on the memory of a link, over a UNIX socket.

use std::os::fd::AsFd;

use grpcxx_memory::OwnFd;
use grpcxx_transport::{CloseReason, Ends, LinkId, LinkRegistry, Time};
use rustix::io::Errno;

use super::ShmMedium;
use super::offer::{self, Offer};
use crate::channel::{Channel, Side, failure};
use crate::link::{Link, Phase};
use crate::mapped;
use crate::message::{LinkClaim, Message};
use crate::poller::watch_link;
use crate::rendezvous::{self, PendingPeer};
use crate::segment::Segment;
use crate::socket;

/// How far a link has come on its way to shared memory.
#[derive(Debug, Default)]
pub enum Handshake {
    /// Nothing was said about it.
    #[default]
    None,
    /// The dialler may ask, if it knows the secret.
    Offered { secret: u64 },
    /// The acceptor was asked.
    Asked { socket: OwnFd, segment: Segment },
    /// The dialler may switch.
    Welcomed(Box<Channel>),
}

impl ShmMedium {
    /// Asks the peer of a dialled link to migrate.
    pub(super) fn enter(&mut self, links: &mut LinkRegistry<Self>, id: LinkId, offer: &[u8]) {
        let handshake = links.link(id).and_then(|link| link.handshake());
        let Some(Handshake::None) = handshake else {
            return;
        };
        let Some(offer) = Offer::decode(offer) else {
            return self.decline(links, id, "the peer's offer cannot be read");
        };
        if offer.host != self.host {
            self.driver.counters.elsewhere += 1;
            return;
        }
        if let Err(reason) = self.check_limit() {
            return self.decline(links, id, &reason);
        }
        let claim = LinkClaim {
            token: offer.token,
            ends: links.link(id).and_then(|link| link.ends()),
        };
        let ring_bytes = self.driver.options.ring_bytes();
        let entered = rendezvous::enter(&offer.socket_name, claim, ring_bytes);
        let entered = entered.and_then(|(socket, segment)| {
            watch_link(&self.driver.poller, socket.as_fd(), id)
                .map_err(|errno| ("watch a UNIX socket", errno))?;
            Ok(Handshake::Asked { socket, segment })
        });
        let reason = match entered {
            Ok(handshake) => return links.asked(id, handshake),
            Err((operation, Errno::CONNREFUSED)) => format!(
                "{operation}: nobody listens there; the peer is in another network namespace"
            ),
            Err((operation, Errno::PERM)) => {
                format!("{operation}: the peer runs as another user")
            }
            Err((operation, errno)) => failure(operation, errno).to_string(),
        };
        self.decline(links, id, &reason);
    }

    /// Takes the messages of one link's peer.
    pub(super) fn hear(&mut self, links: &mut LinkRegistry<Self>, id: LinkId) {
        let Some(link) = links.link(id) else {
            return;
        };
        if let Some(migrated) = link.migrated() {
            if migrated.hear() {
                self.driver.readable.push_back(id);
            }
            if let Some(cut) = migrated.cut() {
                links.cut(id, cut, self);
            }
            return;
        }
        let Some(handshake) = link.handshake() else {
            return;
        };
        match std::mem::take(handshake) {
            idle @ (Handshake::None | Handshake::Offered { .. }) => *handshake = idle,
            Handshake::Asked { socket, segment } => match socket::receive(&socket).map(|packet| {
                packet.map_or(Ok(Message::Wake), |packet| Message::decode(packet.bytes()))
            }) {
                Ok(Ok(Message::Welcome)) => self.switch_dialler(links, id, socket, segment),
                Ok(Ok(Message::Refuse { reason })) => {
                    self.decline(links, id, &format!("the peer refuses: {reason}"));
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    *handshake = Handshake::Asked { socket, segment };
                }
                _ => self.decline(
                    links,
                    id,
                    "the peer closed its UNIX socket without an answer",
                ),
            },
            Handshake::Welcomed(mut channel) => {
                let heard = channel.hear();
                if channel.has_unheard() {
                    self.driver.readable.push_back(id);
                }
                if heard.is_err() || channel.is_peer_gone() && channel.cut().is_none() {
                    return self.decline(links, id, "the peer changed its mind");
                }
                match channel.cut() {
                    Some(cut) => self.switch_acceptor(links, id, *channel, cut),
                    None => *handshake = Handshake::Welcomed(channel),
                }
            }
        }
    }

    /// The peer has the memory: from here on frames go there.
    fn switch_dialler(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        socket: OwnFd,
        segment: Segment,
    ) {
        // Who closes the link needs it no longer; the peer learns so by the end of the socket.
        let Some(link) = links.link(id).filter(|link| link.is_open()) else {
            return;
        };
        let cut = link.sent_bytes();
        let channel = self.driver.channel(socket, segment, Side::Dialler, None);
        if channel.tell(&Message::Switch { cut }).is_err() {
            return self.decline(links, id, "the peer went away");
        }
        self.migrate(links, id, channel);
    }

    /// The peer has switched: so does this end. There is no way back, since the peer's frames go
    /// into memory already.
    fn switch_acceptor(
        &mut self,
        links: &mut LinkRegistry<Self>,
        id: LinkId,
        channel: Channel,
        peer_cut: u64,
    ) {
        let Some(cut) = links.link(id).map(|link| link.sent_bytes()) else {
            return;
        };
        let told = channel.tell(&Message::Switch { cut });
        self.migrate(links, id, channel);
        if let (Err(errno), Some(migrated)) =
            (told, links.link(id).and_then(|link| link.migrated()))
        {
            let error = failure("send to the peer's UNIX socket", errno);
            migrated.phase.end(CloseReason::Failed(error));
        }
        links.cut(id, peer_cut, self);
    }

    fn migrate(&mut self, links: &mut LinkRegistry<Self>, id: LinkId, channel: Channel) {
        let link = Link {
            phase: Phase::Open,
            channel: Some(channel),
        };
        links.migrate(id, link, self);
        self.migrated.push(id);
        self.driver.counters.links += 1;
    }

    /// Takes in who waits at the rendezvous socket.
    pub(super) fn admit(&mut self, links: &mut LinkRegistry<Self>, now: Time) {
        let mut pending = Vec::new();
        let refused = &mut self.driver.counters.refused;
        let has_more =
            (self.rendezvous).admit(now, &self.driver.poller, refused, |peer| pending.push(peer));
        self.driver.is_other_readable |= has_more;
        for peer in pending {
            self.welcome(links, peer);
        }
    }

    /// Lets a dialler in that was made an offer, and has dialled the link itself.
    fn welcome(&mut self, links: &mut LinkRegistry<Self>, peer: PendingPeer) {
        let PendingPeer {
            socket,
            segment,
            claim,
        } = peer;
        let id = offer::link_of(&claim.token);
        let checked = check_claim(links, id, &claim).and_then(|()| self.check_limit());
        if let Err(reason) = checked {
            self.driver.counters.refused += 1;
            let _ = socket::send(&socket, &Message::Refuse { reason }.encode(), None);
            return;
        }
        let channel = self.driver.channel(socket, segment, Side::Acceptor, None);
        let welcomed = watch_link(&self.driver.poller, channel.socket(), id)
            .and_then(|()| channel.tell(&Message::Welcome));
        let handshake = links.link(id).and_then(|link| link.handshake());
        match (welcomed, handshake) {
            (Ok(()), Some(handshake)) => {
                *handshake = Handshake::Welcomed(Box::new(channel));
                self.driver.readable.push_back(id);
            }
            (Err(errno), _) => {
                self.decline(links, id, &failure("welcome a peer", errno).to_string());
            }
            (Ok(()), None) => {}
        }
    }

    fn check_limit(&mut self) -> Result<(), String> {
        let bytes_max = self.driver.options.mapped_bytes_max;
        if mapped::mapped_bytes() >= bytes_max {
            return Err(mapped::no_room(bytes_max));
        }
        let (orphans, orphaned_bytes) = self.driver.orphaned();
        let lent_bytes_max = self.driver.options.lent_bytes_max;
        if orphaned_bytes > lent_bytes_max {
            return Err(format!(
                "peers keep {orphaned_bytes} bytes that links lent them which have ended; at most \
                 {lent_bytes_max} are allowed (ShmOptions::lent_bytes_max)"
            ));
        }
        let limit = self.driver.options.limits.links;
        if self.migrated.len() + orphans < limit {
            return Ok(());
        }
        Err(format!(
            "all {limit} links over shared memory are in use, {orphans} of them by peers that keep \
             what an ended link lent them; close some or raise LinkLimits::links"
        ))
    }

    /// Notes that a link stays where it is, and why.
    pub(super) fn decline(&mut self, links: &mut LinkRegistry<Self>, id: LinkId, reason: &str) {
        self.driver.counters.failures += 1;
        self.last_failure = Some(reason.to_owned());
        links.decline(id, reason);
    }
}

/// Lets only the peer of a link's connection have its memory: an offer can be passed on, and who
/// passes it on would have all rights of who takes it.
fn check_claim(
    links: &mut LinkRegistry<ShmMedium>,
    id: LinkId,
    claim: &LinkClaim,
) -> Result<(), String> {
    let no_link = || Err("no such link".to_owned());
    let Some(link) = links.link(id) else {
        return no_link();
    };
    let ends = link.ends();
    match link.handshake() {
        Some(Handshake::Offered { secret }) if offer::token(id, *secret) == claim.token => {}
        _ => return no_link(),
    }
    if ends.is_some() && ends == claim.ends.map(Ends::reversed) {
        return Ok(());
    }
    Err(
        "the two are not the ends of one connection: a proxy, a forwarder or a rule that rewrites \
         addresses is between them"
            .to_owned(),
    )
}
