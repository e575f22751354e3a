use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use grpcxx_transport::{CloseReason, LinkHandler, LinkId, Park, Time};
use rustix::io::Errno;

use super::flow::{Flow, Stage};
use super::offer::{self, Offer};
use super::{Note, Upgrading};
use crate::HANDSHAKE_TIME_MAX;
use crate::channel::{Channel, Side, failure};
use crate::door::{self, Guest};
use crate::link::{Link, Phase};
use crate::message::Message;
use crate::poller::Subject;
use crate::segment::Segment;
use crate::socket;
use crate::transport::{EVENTS_ENOUGH, POLL_INTERVAL, TURNS_PER_POLL, watch_link};

impl<T: Park> Upgrading<T> {
    /// Asks the peer of a dialled link to move it.
    pub(super) fn ask(&mut self, link: LinkId, offer: &[u8]) {
        let Some(medium) = &mut self.medium else {
            return;
        };
        let Some(flow) = self.flows.find(link) else {
            return;
        };
        if !matches!(flow.stage, Stage::Base) {
            return;
        }
        let Some(offer) = Offer::decode(offer) else {
            return self.stay(link, "the peer's offer cannot be read");
        };
        if offer.host != medium.host {
            self.counters.elsewhere += 1;
            return;
        }
        let limit = medium.options.limits.links;
        if self.moved.len() >= limit {
            return self.stay(
                link,
                &format!("all {limit} links over shared memory are in use"),
            );
        }
        let entered = door::enter(&offer.door, offer.token, medium.options.ring_bytes()).and_then(
            |(socket, segment)| {
                watch_link(&medium.poller, socket.as_fd(), link)
                    .map_err(|errno| ("watch a UNIX socket", errno))?;
                Ok((socket, segment))
            },
        );
        match entered {
            Ok((socket, segment)) => {
                flow.stage = Stage::Asked {
                    socket,
                    segment,
                    since: self.now,
                };
                self.asked.push(link);
            }
            Err((operation, Errno::CONNREFUSED)) => self.stay(
                link,
                &format!(
                    "{operation}: nobody listens there; the peer is in another network namespace"
                ),
            ),
            Err((operation, Errno::PERM)) => {
                self.stay(link, &format!("{operation}: the peer runs as another user"));
            }
            Err((operation, errno)) => self.stay(link, &failure(operation, errno).to_string()),
        }
    }

    /// Takes what sockets have to say, if it is time.
    pub(super) fn listen_around(&mut self, now: Time) {
        let Some(medium) = &mut self.medium else {
            return;
        };
        medium.turns_since_poll += 1;
        let is_due = medium
            .polled
            .is_none_or(|polled| now.since(polled) >= POLL_INTERVAL);
        if is_due || medium.turns_since_poll >= TURNS_PER_POLL {
            medium.polled = Some(now);
            medium.turns_since_poll = 0;
            self.hear_sockets();
            self.give_up_asking(now);
        }
        while let Some(id) = self.medium.as_mut().and_then(|medium| medium.heard.pop()) {
            self.hear(id);
        }
        let Some(medium) = &mut self.medium else {
            return;
        };
        if !std::mem::take(&mut medium.others_heard) {
            return;
        }
        medium.orphans.retain_mut(|orphan| !orphan.is_settled());
        let mut guests = Vec::new();
        let refused = &mut self.counters.refused;
        medium
            .door
            .admit(now, &medium.poller, refused, |guest| guests.push(guest));
        for guest in guests {
            self.welcome(guest);
        }
    }

    /// Lets links stay whose peers do not answer.
    fn give_up_asking(&mut self, now: Time) {
        let mut index = 0;
        while let Some(&id) = self.asked.get(index) {
            let is_late = match self.flows.find(id) {
                Some(Flow {
                    stage: Stage::Asked { since, .. },
                    ..
                }) if now.since(*since) <= HANDSHAKE_TIME_MAX => {
                    index += 1;
                    continue;
                }
                Some(flow) if matches!(flow.stage, Stage::Asked { .. }) => {
                    flow.stage = Stage::Base;
                    true
                }
                _ => false,
            };
            self.asked.swap_remove(index);
            if is_late {
                self.stay(
                    id,
                    &format!(
                        "the peer did not answer at its UNIX socket within {HANDSHAKE_TIME_MAX:?}"
                    ),
                );
            }
        }
    }

    /// Asks the kernel which sockets have something to say; whether there are any.
    pub(super) fn hear_sockets(&mut self) -> bool {
        let Some(medium) = &mut self.medium else {
            return false;
        };
        let (heard, others_heard) = (&mut medium.heard, &mut medium.others_heard);
        let polled = medium
            .poller
            .poll(Some(Duration::ZERO), |subject| match subject {
                Subject::Link(id) => heard.push(id),
                Subject::Other => *others_heard = true,
            });
        if let Err(errno) = polled {
            unreachable!("epoll_wait on a descriptor of our own: {errno}");
        }
        medium.others_heard || !medium.heard.is_empty()
    }

    /// Works on the links in shared memory. Returns the number of events.
    pub(super) fn advance_moved<A>(
        &mut self,
        now: Time,
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let mut events = 0;
        let mut index = 0;
        while let Some(&id) = self.moved.get(index) {
            if events >= EVENTS_ENOUGH {
                // The next turn begins with the others.
                self.moved.rotate_left(index);
                break;
            }
            let (count, is_gone) = self.advance(id, now, handler);
            events += count;
            if is_gone {
                self.moved.swap_remove(index);
                if let (true, Some(medium)) = (self.moved.is_empty(), &mut self.medium) {
                    medium.bounce.release();
                }
            } else {
                index += 1;
            }
        }
        events
    }

    /// Works on one link. Returns the number of events, and whether the link is gone.
    fn advance<A>(
        &mut self,
        id: LinkId,
        now: Time,
        handler: &mut dyn LinkHandler<A>,
    ) -> (usize, bool) {
        let Some(medium) = &mut self.medium else {
            return (0, true);
        };
        let Some(flow) = self.flows.find(id) else {
            return (0, true);
        };
        let base = flow.base;
        let Stage::Moved(link) = &mut flow.stage else {
            return (0, true);
        };
        let frames = link.queued_frames();
        let events = link.advance(
            id,
            now,
            &mut medium.staging,
            handler,
            &mut medium.bounce,
            &mut self.counters,
        );
        self.frames_in_flight -= frames - link.queued_frames();
        let is_ended = matches!(link.phase, Phase::Ended(_));
        if is_ended && let Some(base) = base {
            // Its end is the end of the link.
            self.base.close(base, false);
        }
        if events > 0 || !is_ended || base.is_some() {
            return (events, false);
        }
        match self.flows.take(id.slot as usize) {
            Some((_, flow)) => (self.finish(id, flow, handler), true),
            None => (0, true),
        }
    }

    /// Reports all that follows from the end of a link, whose end on the first medium is over.
    fn finish<A>(&mut self, id: LinkId, flow: Flow, handler: &mut dyn LinkHandler<A>) -> usize {
        self.frames_in_flight -= flow.queued_frames();
        self.flows.free(id);
        let Stage::Moved(Link {
            phase: Phase::Ended(reason),
            channel: Some(channel),
        }) = flow.stage
        else {
            unreachable!("the caller has looked");
        };
        let socket = channel.socket();
        if let Some(medium) = &self.medium {
            medium.poller.forget(socket);
        }
        let (lost, orphan) = channel.finish(id, &reason, handler);
        if let (Some(orphan), Some(medium)) = (orphan, &mut self.medium) {
            // Its end is told by the socket.
            let _ = medium.poller.watch(orphan.socket(), Subject::Other);
            medium.orphans.push(orphan);
            medium.others_heard = true;
        }
        handler.closed(id, &reason);
        lost + 1
    }

    /// Takes the messages of one link's peer.
    fn hear(&mut self, id: LinkId) {
        let Some(flow) = self.flows.find(id) else {
            return;
        };
        match std::mem::replace(&mut flow.stage, Stage::Base) {
            stage @ (Stage::Base | Stage::Offered { .. }) => flow.stage = stage,
            Stage::Asked {
                socket,
                segment,
                since,
            } => match socket::receive(&socket).map(|packet| {
                packet.map_or(Ok(Message::Wake), |packet| Message::decode(packet.bytes()))
            }) {
                Ok(Ok(Message::Welcome)) => self.switch_dialler(id, socket, segment),
                Ok(Ok(Message::Refuse { reason })) => {
                    self.stay(id, &format!("the peer refuses: {reason}"));
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    flow.stage = Stage::Asked {
                        socket,
                        segment,
                        since,
                    };
                }
                _ => self.stay(id, "the peer closed its UNIX socket without an answer"),
            },
            Stage::Welcomed(mut channel) => {
                let heard = channel.hear();
                if heard.is_err() || channel.is_peer_gone() && channel.cut().is_none() {
                    return self.stay(id, "the peer changed its mind");
                }
                if channel.cut().is_some() {
                    self.switch_acceptor(id, channel);
                } else {
                    flow.stage = Stage::Welcomed(channel);
                }
            }
            Stage::Moved(mut link) => {
                if let Some(channel) = &mut link.channel
                    && let Err(error) = channel.hear()
                {
                    link.phase.end(CloseReason::Failed(error));
                }
                flow.stage = Stage::Moved(link);
                flow.try_move();
            }
        }
    }

    /// The peer has the memory: from here on frames go there.
    fn switch_dialler(&mut self, id: LinkId, socket: OwnedFd, segment: Segment) {
        let (Some(medium), Some(flow)) = (&mut self.medium, self.flows.find(id)) else {
            return;
        };
        let channel = Channel::new(socket, segment, Side::Dialler, None, medium.manner());
        let cut = flow.sent_bytes;
        if channel.tell(&Message::Switch { cut }).is_err() {
            return self.stay(id, "the peer went away");
        }
        flow.switch(channel);
        self.note_moved(id);
    }

    /// The peer has switched: so does this end.
    fn switch_acceptor(&mut self, id: LinkId, channel: Channel) {
        let Some(flow) = self.flows.find(id) else {
            return;
        };
        let cut = flow.sent_bytes;
        let told = channel.tell(&Message::Switch { cut });
        flow.switch(channel);
        if let (Err(errno), Stage::Moved(link)) = (told, &mut flow.stage) {
            // There is no way back: the peer's frames go into memory already.
            let error = failure("send to the peer's UNIX socket", errno);
            link.phase.end(CloseReason::Failed(error));
        }
        flow.try_move();
        self.note_moved(id);
    }

    fn note_moved(&mut self, id: LinkId) {
        self.moved.push(id);
        self.counters.links += 1;
        self.notes.push_back((id, Note::Moved));
    }

    /// Lets a dialler in that was made an offer.
    fn welcome(&mut self, guest: Guest) {
        let Some(medium) = &mut self.medium else {
            return;
        };
        let Guest {
            socket,
            segment,
            token,
        } = guest;
        let id = offer::link_of(&token);
        let limit = medium.options.limits.links;
        let refusal = match self.flows.find(id).map(|flow| &mut flow.stage) {
            Some(Stage::Offered { secret }) if offer::token(id, *secret) == token => {
                (self.moved.len() >= limit)
                    .then(|| format!("all {limit} links over shared memory are in use"))
            }
            _ => Some("no such link".to_owned()),
        };
        if let Some(reason) = refusal {
            self.counters.refused += 1;
            let _ = socket::send(&socket, &Message::Refuse { reason }.encode(), None);
            return;
        }
        let channel = Channel::new(socket, segment, Side::Acceptor, None, medium.manner());
        let welcomed = watch_link(&medium.poller, channel.socket(), id)
            .and_then(|()| channel.tell(&Message::Welcome));
        match (welcomed, self.flows.find(id)) {
            (Ok(()), Some(flow)) => {
                flow.stage = Stage::Welcomed(channel);
                medium.heard.push(id);
            }
            (Err(errno), _) => self.stay(id, &failure("welcome a peer", errno).to_string()),
            (Ok(()), None) => {}
        }
    }

    /// Notes that a link stays where it is, and why.
    fn stay(&mut self, link: LinkId, reason: &str) {
        self.counters.failures += 1;
        self.last_failure = Some(reason.to_owned());
        self.notes
            .push_back((link, Note::Stayed(reason.to_owned())));
    }
}
