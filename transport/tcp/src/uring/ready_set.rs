//! Which of many links have bytes, for a loop that spins.
//!
//! To ask each of many links costs a system call for each, and to let each wait in the ring costs
//! more than that. One `epoll_wait` names those that have bytes, and only they are asked. Few links
//! are better asked without it, so every now and then those that had bytes are counted; where they
//! are few, the ring watches all of them through their epoll set.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

use super::UringDriver;
use super::operation::{self, Flight, Kind};
use crate::hot_set::HOT_LINKS_MAX;
use crate::link::Link;

/// Links that are asked when epoll names them.
pub(super) struct ReadySet {
    /// None if the loop does not spin.
    epoll: Option<OwnedFd>,
    events: Vec<epoll::Event>,
    members: usize,
    /// Epoll is asked in each turn, and not only when the ring says that it knows something.
    is_lively: bool,
    /// The ring watches the epoll set.
    is_watched: bool,
    /// The ring has said so.
    is_notified: bool,
    /// Looks since links were counted last, and which count this is.
    looks: u32,
    count: u32,
    /// Links that have been named since then.
    named: usize,
}

/// What the ready set knows of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Membership {
    is_member: bool,
    readable: Readable,
    /// The count in which the link was named last.
    named_in: u32,
}

/// What epoll has told about a link and no receive has disproved since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Readable {
    #[default]
    No,
    Yes,
    /// The stream has an end, and no further event will tell.
    UntilTheEnd,
}

impl Membership {
    /// Whether the link is a member that has not been named.
    pub(super) fn waits(&self) -> bool {
        self.is_member && self.readable == Readable::No
    }

    /// Notes that a receive has found less than it asked for. More may be there behind a byte that
    /// the peer called urgent, which no peer of ours does; it comes with the next bytes.
    pub(super) fn found_the_last(&mut self) {
        if self.readable == Readable::Yes {
            self.readable = Readable::No;
        }
    }

    /// Notes that a receive has found nothing.
    pub(super) fn found_nothing(&mut self) {
        self.readable = Readable::No;
    }
}

impl ReadySet {
    /// For a loop that spins, or does not.
    pub(super) fn new(is_busy: bool) -> rustix::io::Result<Self> {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Self {
            epoll: is_busy.then(create).transpose()?,
            events: Vec::with_capacity(EVENTS_MAX),
            members: 0,
            is_lively: false,
            is_watched: false,
            is_notified: false,
            looks: 0,
            count: 1,
            named: 0,
        })
    }

    pub(super) fn is_lively(&self) -> bool {
        self.is_lively
    }

    /// Begins to ask in each turn, and to count anew.
    pub(super) fn liven_up(&mut self) {
        if !self.is_lively {
            self.is_lively = true;
            self.begin_count();
        }
    }

    /// Adds a link, which is asked once. False if the system refuses.
    pub(super) fn admit(&mut self, slot: u32, link: &mut Link<Flight>) -> bool {
        use epoll::EventFlags;
        if link.io.membership.is_member {
            return true;
        }
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let data = epoll::EventData::new_u64(slot.into());
        let Some(epoll) = &self.epoll else {
            return false;
        };
        if epoll::add(epoll, &link.socket, data, flags).is_err() {
            return false;
        }
        self.members += 1;
        link.io.membership.is_member = true;
        link.io.membership.readable = Readable::Yes;
        true
    }

    /// Removes a link, if it is a member.
    pub(super) fn dismiss(&mut self, link: &mut Link<Flight>) {
        if let Some(epoll) = &self.epoll
            && std::mem::take(&mut link.io.membership.is_member)
        {
            self.members -= 1;
            // The socket is there, and in the set.
            let _ = epoll::delete(epoll, &link.socket);
        }
    }

    /// What the ring shall watch, if it shall and does not.
    fn unwatched(&self) -> Option<BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        let epoll = self.epoll.as_ref()?;
        (self.members > 0 && !self.is_watched).then(|| epoll.as_fd())
    }

    /// Notes that the ring has seen something, and watches no more.
    pub(super) fn notify(&mut self) {
        (self.is_watched, self.is_notified) = (false, true);
    }

    /// Whether the next turn will ask epoll for a reason.
    pub(super) fn is_notified(&self) -> bool {
        self.is_notified
    }

    /// Whether epoll is to be asked now.
    fn wants_look(&mut self) -> bool {
        std::mem::take(&mut self.is_notified) || self.is_lively
    }

    /// Counts a look, and decides now and then whether the next turns look too.
    fn count_look(&mut self) {
        self.looks += 1;
        if self.looks >= LOOKS_OF_A_COUNT {
            self.is_lively &= self.named > HOT_LINKS_MAX;
            self.begin_count();
        }
    }

    fn begin_count(&mut self) {
        (self.looks, self.named) = (0, 0);
        self.count = self.count.wrapping_add(1);
    }
}

impl UringDriver {
    /// Puts members of the ready set that have bytes on the work list.
    pub(super) fn look_around(&mut self) {
        use epoll::EventFlags;
        let ready_set = &mut self.spinning.ready_set;
        if !ready_set.wants_look() {
            return;
        }
        let Some(epoll) = &ready_set.epoll else {
            return;
        };
        ready_set.events.clear();
        self.core.counters.polls += 1;
        let buffer = rustix::buffer::spare_capacity(&mut ready_set.events);
        // Fails only for a signal, and what is there then is there in the next turn.
        let _ = epoll::wait(epoll, buffer, Some(&NOW));
        ready_set.is_notified = ready_set.events.len() == EVENTS_MAX;
        for &epoll::Event { flags, data } in &ready_set.events {
            let slot = data.u64() as u32;
            let Some((_, link)) = self.core.links.at(slot) else {
                continue;
            };
            let has_end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            link.io.membership.readable = match flags.intersects(has_end) {
                true => Readable::UntilTheEnd,
                false => Readable::Yes,
            };
            if std::mem::replace(&mut link.io.membership.named_in, ready_set.count)
                != ready_set.count
            {
                ready_set.named += 1;
            }
            self.core.queue(slot);
        }
        ready_set.count_look();
    }

    /// Lets the ring watch the ready set, if that is not asked in each turn or there will be none.
    pub(super) fn watch_crowd(&mut self, is_last_turn: bool) {
        let ready_set = &mut self.spinning.ready_set;
        if (is_last_turn || !ready_set.is_lively)
            && let Some(epoll) = ready_set.unwatched()
        {
            ready_set.is_watched =
                operation::await_readable(&mut self.ring, Kind::ReadySet, 0, epoll);
            // Without room in the ring the next turn looks itself.
            ready_set.is_notified |= !ready_set.is_watched;
        }
    }
}

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// Looks after which the ready set may be asked less: some hundreds of microseconds.
const LOOKS_OF_A_COUNT: u32 = 512;

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
