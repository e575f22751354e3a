//! Which of many links have bytes, for a loop that spins.
//!
//! To ask each of many links costs a system call for each, and to let each wait in the ring costs more than that. One
//! `epoll_wait` names those that have bytes, and only they are asked. Few links are better asked without it, so every now
//! and then those that had bytes are counted.

use std::os::fd::OwnedFd;

use rustix::event::{Timespec, epoll};

use super::UringDriver;
use super::operation::Flight;
use super::spin::HOT_LINKS_MAX;
use crate::link::Link;

/// Links that are asked when epoll names them.
pub(super) struct Crowd {
    /// None if the loop does not spin.
    epoll: Option<OwnedFd>,
    events: Vec<epoll::Event>,
    members: Vec<u32>,
    /// Looks since links were counted last, and which count this is.
    looks: u32,
    count: u32,
    /// Links that have been named since then.
    named: usize,
}

/// What the crowd knows of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    is_member: bool,
    /// Epoll tells about the link, member or not.
    is_registered: bool,
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

impl Place {
    /// Notes that the link is no member any more.
    pub(super) fn leave(&mut self) {
        self.is_member = false;
    }

    pub(super) fn is_readable(&self) -> bool {
        self.readable != Readable::No
    }

    /// Notes that a receive has found less than it asked for.
    pub(super) fn found_the_last(&mut self) {
        if self.readable == Readable::Yes {
            self.readable = Readable::No;
        }
    }
}

impl Crowd {
    /// For a loop that spins, or does not.
    pub(super) fn new(is_busy: bool) -> rustix::io::Result<Self> {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Self {
            epoll: is_busy.then(create).transpose()?,
            events: Vec::with_capacity(EVENTS_MAX),
            members: Vec::new(),
            looks: 0,
            count: 1,
            named: 0,
        })
    }

    /// Whether links are in it.
    pub(super) fn is_gathered(&self) -> bool {
        !self.members.is_empty()
    }

    /// Adds a link. False if the system refuses.
    pub(super) fn admit(&mut self, slot: u32, link: &mut Link<Flight>) -> bool {
        if link.io.place.is_member {
            return true;
        }
        let Some(epoll) = &self.epoll else {
            return false;
        };
        if !link.io.place.is_registered && register(epoll, slot, link).is_err() {
            return false;
        }
        link.io.place.is_registered = true;
        // Nothing was told about what came before now, so the link is asked once.
        if link.io.place.readable == Readable::No {
            link.io.place.readable = Readable::Yes;
        }
        link.io.place.is_member = true;
        self.members.push(slot);
        true
    }

    /// Removes a link.
    pub(super) fn dismiss(&mut self, slot: u32, place: &mut Place) {
        if std::mem::take(&mut place.is_member) {
            self.members.retain(|&member| member != slot);
        }
    }

    /// One of the members, which is none any more.
    pub(super) fn pop(&mut self) -> Option<u32> {
        self.members.pop()
    }
}

impl UringDriver {
    /// Puts members of the crowd that have bytes on the work list.
    pub(super) fn look_around(&mut self) {
        let crowd = &mut self.spinning.crowd;
        let Some(epoll) = crowd.epoll.as_ref().filter(|_| crowd.is_gathered()) else {
            return;
        };
        crowd.events.clear();
        self.core.counters.polls += 1;
        let buffer = rustix::buffer::spare_capacity(&mut crowd.events);
        // Fails only for a signal, and is repeated in the next turn.
        let _ = epoll::wait(epoll, buffer, Some(&NOW));
        for &epoll::Event { flags, data } in &crowd.events {
            let slot = data.u64() as u32;
            let Some((_, link)) = self.core.links.at(slot) else {
                continue;
            };
            use epoll::EventFlags;
            let has_end = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            link.io.place.readable = match flags.intersects(has_end) {
                true => Readable::UntilTheEnd,
                false => Readable::Yes,
            };
            if std::mem::replace(&mut link.io.place.named_in, crowd.count) != crowd.count {
                crowd.named += 1;
            }
            self.core.queue(slot);
        }
        crowd.looks += 1;
        if crowd.looks == LOOKS_OF_A_COUNT {
            let were_few = crowd.named <= HOT_LINKS_MAX;
            (crowd.looks, crowd.named) = (0, 0);
            crowd.count = crowd.count.wrapping_add(1);
            if were_few {
                self.cool();
            }
        }
    }
}

fn register(epoll: &OwnedFd, slot: u32, link: &Link<Flight>) -> rustix::io::Result<()> {
    use epoll::EventFlags;
    let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    let data = epoll::EventData::new_u64(slot.into());
    epoll::add(epoll, &link.socket, data, flags)
}

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// Looks after which a crowd of few links is sent away: some hundreds of microseconds.
const LOOKS_OF_A_COUNT: u32 = 512;

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
