//! What a turn does with a ring: starts operations, and deals with their completions.

use std::os::fd::AsFd;

use grpcxx_transport::{CloseReason, LinkHandler, ListenerId};
use io_uring::cqueue;
use rustix::io::Errno;

use super::operation::{self, Kind};
use super::{SPARE_GATHERS_MAX, UringDriver};
use crate::core::EVENTS_ENOUGH;
use crate::link::Phase;
use crate::listener::Accepting;
use crate::socket::{self, Accepted};
use crate::wake::silence;

impl UringDriver {
    /// Takes the work list off once. Returns the number of events.
    pub(super) fn work(&mut self, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let mut events = 0;
        for _ in 0..self.core.work.len() {
            if events >= EVENTS_ENOUGH {
                break;
            }
            if let Some(slot) = self.core.work.pop_front() {
                events += self.advance(slot, handler);
            }
        }
        events
    }

    /// Does what the state of one link asks for. Returns the number of events.
    fn advance(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let Some((id, link)) = self.core.links.at(slot) else {
            return 0;
        };
        link.queued = false;
        let mut events = 0;
        if link.is_ended() {
            self.spinning.dismiss(slot, link);
            if link.io.is_empty() {
                return self.core.finish(slot, handler);
            }
            if link.io.cancels == 0 && !operation::cancel(&mut self.ring, slot, &mut link.io) {
                self.core.queue(slot);
            }
            return 0;
        }
        let mut pushed = true;
        let (id, link) = if matches!(link.phase, Phase::Finishing { .. }) {
            let is_landing_free = !link.io.landing;
            if link.wants_landing_back() && !is_landing_free && link.io.cancels == 0 {
                let is_cancelled = operation::cancel_one(&mut self.ring, Kind::Receive, slot);
                link.io.cancels += u8::from(is_cancelled);
                pushed &= is_cancelled;
            }
            events += self.core.finish_stream(slot, is_landing_free, handler);
            match self.core.links.at(slot) {
                Some(found) => found,
                None => return events,
            }
        } else {
            (id, link)
        };
        if matches!(link.phase, Phase::Dialling) && !link.io.dialling {
            pushed &= operation::await_dial(&mut self.ring, slot, link);
        }
        if link.phase.reads()
            && let Some(inbound) = &mut link.inbound
            && std::mem::take(&mut link.resumed)
        {
            events += inbound.offer(id, &[], handler);
        }
        if link.sends() && !link.io.sending {
            if link.outbound.pieces(1).next().is_none() {
                events += self.core.sent(slot, 0, handler);
            } else if let Some(sent) = self.send_at_once(slot, handler) {
                events += sent;
                self.queue_to_send(slot);
            } else if let Some((_, link)) = self.core.links.at(slot) {
                pushed &= operation::send(&mut self.ring, slot, link, &mut self.spare_gathers);
            }
        }
        if let Some(received) = self.receive_at_once(slot, handler) {
            if !pushed {
                self.core.queue(slot);
            }
            return events + received;
        }
        if let Some((_, link)) = self.core.links.at(slot)
            && link.phase.reads()
            && !link.io.receiving()
        {
            pushed &= operation::receive(&mut self.ring, slot, link, &mut self.core.cpu_sharing);
        }
        if !pushed {
            self.core.queue(slot);
        }
        events
    }

    /// Puts a link on the work list if it has something to send, or has come to its end by sending.
    fn queue_to_send(&mut self, slot: u32) {
        if let Some((_, link)) = self.core.links.at(slot)
            && (link.sends() || link.is_ended())
        {
            self.core.queue(slot);
        }
    }

    /// Watches what is not a link.
    pub(super) fn watch(&mut self) {
        self.watch_crowd(false);
        if !self.bell_watched {
            self.bell_watched = operation::await_readable(
                &mut self.ring,
                Kind::WakeUp,
                0,
                self.core.wake_up.inside(),
            );
        }
        for listener in &mut self.core.listeners {
            if !listener.watched && listener.state == Accepting::Waiting {
                listener.watched = operation::await_readable(
                    &mut self.ring,
                    Kind::Listener,
                    listener.id.0,
                    listener.socket.as_fd(),
                );
            }
        }
    }

    /// Watches the companions, which matter only for sleep.
    pub(super) fn watch_companions(&mut self) {
        for (index, companion) in self.companions.iter_mut().enumerate() {
            if !companion.watched && !companion.is_dead {
                companion.watched = operation::await_readable(
                    &mut self.ring,
                    Kind::Companion,
                    index as u32,
                    companion.fd.as_fd(),
                );
            }
        }
    }

    pub(super) fn enter(&mut self) {
        if self.ring.wants_enter() {
            self.core.counters.polls += 1;
            let entered = self.ring.enter();
            self.check(entered);
        }
    }

    /// Errors that pass by themselves are met by trying again in the next turn.
    fn check(&mut self, entered: std::io::Result<()>) {
        let Err(error) = entered else {
            return;
        };
        let passes = matches!(
            Errno::from_io_error(&error),
            Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM)
        );
        if !passes && !self.is_broken {
            self.is_broken = true;
            tracing::error!(
                "io_uring_enter: {error}; a transport must stay on the thread that opened it"
            );
        }
    }

    /// Deals with completions, until that brings `events` to [`EVENTS_ENOUGH`]. Returns the new
    /// number.
    pub(super) fn complete(
        &mut self,
        mut events: usize,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        if self.batch_done == self.batch.len() {
            self.batch_done = 0;
            self.batch.clear();
            self.ring.take(&mut self.batch);
        }
        while let Some(completion) = self.batch.get(self.batch_done) {
            if events >= EVENTS_ENOUGH {
                break;
            }
            self.batch_done += 1;
            events += self.complete_one(&completion.clone(), handler);
        }
        events
    }

    fn complete_one(
        &mut self,
        completion: &cqueue::Entry,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let (kind, subject) = operation::unmark(completion);
        match kind {
            Kind::Receive => return self.received(subject, completion, handler),
            Kind::Send => return self.sent(subject, completion.result(), handler),
            Kind::Dial => return self.dialled(subject, handler),
            Kind::Cancel => {
                if let Some((_, link)) = self.core.links.at(subject)
                    && link.io.cancels > 0
                {
                    link.io.cancels -= 1;
                    self.core.queue(subject);
                }
            }
            Kind::Listener => {
                let id = ListenerId(subject);
                let listener = self.core.listeners.iter_mut().find(|l| l.id == id);
                if let Some(listener) = listener {
                    listener.watched = false;
                    listener.state = Accepting::Ready;
                }
            }
            Kind::WakeUp => {
                silence(self.core.wake_up.inside());
                self.bell_watched = false;
            }
            Kind::Companion => self.companion_stirs(subject as usize, completion.result()),
            Kind::Alarm => self.alarm.armed = false,
            Kind::ReadySet => self.spinning.ready_set.notify(),
        }
        0
    }

    /// A companion has something to be read, or has died.
    fn companion_stirs(&mut self, index: usize, result: i32) {
        let companion = &mut self.companions[index];
        companion.watched = false;
        companion.is_dead = match u16::try_from(result) {
            Ok(events) => events & libc::POLLIN as u16 == 0,
            Err(_) => !matches!(
                Errno::from_raw_os_error(-result),
                Errno::AGAIN | Errno::INTR | Errno::CANCELED | Errno::NOMEM
            ),
        };
        if companion.is_dead {
            tracing::warn!(
                result,
                "a descriptor that ends sleeps is dead; it is watched no more"
            );
        }
    }

    /// Whether a turn has something to do without entering the kernel.
    pub(super) fn has_work(&mut self) -> bool {
        self.core.has_work()
            || self.spinning.ready_set.is_notified()
            || self.batch_done < self.batch.len()
            || self.ring.has_completions()
    }

    fn received(
        &mut self,
        slot: u32,
        completion: &cqueue::Entry,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        let buffers = self.buffers.as_mut().expect("taken by the drop only");
        let Some((_, link)) = self.core.links.at(slot) else {
            unreachable!("a link stays until its operations are complete");
        };
        let (result, flags) = (completion.result(), completion.flags());
        let is_direct = std::mem::take(&mut link.io.landing);
        link.io.staging = false;
        link.io.more = cqueue::sock_nonempty(flags);
        let bytes = usize::try_from(result).unwrap_or(0);
        let staged =
            cqueue::buffer_select(flags).map(|buffer| (buffer, buffers.take(buffer, bytes)));
        let mut events = 0;
        if link.phase.reads() {
            match (result, &staged) {
                (1.., Some((_, staged))) => events += self.core.staged(slot, staged, handler),
                (1.., None) => {
                    assert!(is_direct, "bytes came from nowhere");
                    events += self.core.landed(slot, bytes, handler);
                }
                (0, _) => link.end(CloseReason::EndOfStream),
                (..0, _) => match Errno::from_raw_os_error(-result) {
                    Errno::NOBUFS => {
                        self.core.counters.staging_exhausted += 1;
                        link.io.more = true;
                    }
                    Errno::AGAIN | Errno::INTR | Errno::CANCELED => {}
                    errno => link.fail("receive from", errno),
                },
            }
        }
        if let Some((buffer, _)) = staged {
            buffers.give_back(buffer);
        }
        self.core.queue(slot);
        events
    }

    fn sent(&mut self, slot: u32, result: i32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let Some((_, link)) = self.core.links.at(slot) else {
            unreachable!("a link stays until its operations are complete");
        };
        link.io.sending = false;
        if let Some(gather) = link.io.gather.take()
            && self.spare_gathers.len() < SPARE_GATHERS_MAX
        {
            self.spare_gathers.push(gather);
        }
        let mut events = 0;
        match usize::try_from(result) {
            Ok(bytes) => events += self.core.sent(slot, bytes, handler),
            Err(_) => match Errno::from_raw_os_error(-result) {
                Errno::AGAIN | Errno::INTR | Errno::CANCELED => {}
                errno => link.fail("send to", errno),
            },
        }
        self.core.queue(slot);
        events
    }

    fn dialled(&mut self, slot: u32, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        let Some((_, link)) = self.core.links.at(slot) else {
            unreachable!("a link stays until its operations are complete");
        };
        link.io.dialling = false;
        let mut events = 0;
        if matches!(link.phase, Phase::Dialling) {
            let result = socket::dial_result(&link.socket, link.peer)
                .and_then(|()| rustix::io::ioctl_fionbio(&link.socket, false));
            match result {
                Ok(()) => events += self.core.connected(slot, handler),
                Err(errno) => link.fail("connect to", errno),
            }
        }
        self.core.queue(slot);
        events
    }
}
