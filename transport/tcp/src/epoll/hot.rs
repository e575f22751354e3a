//! Hot links of a driver to which epoll names all of them.
//!
//! Who asks epoll first makes two system calls for each receive. While there are hot links, epoll
//! is asked in some turns only, and not to note what arrives on those that stay hot, which costs
//! whoever sends to them. If links become too many, a system call for each costs more than the one
//! that names those that have bytes.

use grpcxx_transport::{Inbound, LinkHandler, ReadTarget};
use rustix::event::epoll;

use super::io::Readiness;
use super::{EpollDriver, LINK_EVENTS};
use crate::core::EVENTS_ENOUGH;
use crate::hot_set::{ASKED_MIN, HotSet, MISSES_MAX};
use crate::link::Link;
use crate::socket::Accepted;

/// When epoll is asked, and which links are asked without it.
#[derive(Debug)]
pub(super) struct Asking {
    hot: HotSet,
    /// Turns since epoll was asked, and links that had bytes since.
    turns: u32,
    /// Times that epoll is asked before a link may be hot again, because there were too many.
    crowded: u32,
}

impl Asking {
    pub(super) fn new() -> Self {
        Self {
            hot: HotSet::new(),
            turns: 0,
            crowded: 0,
        }
    }

    /// Lets a link be hot from now on. False if there are too many, which then all are not.
    pub(super) fn admit(&mut self, slot: u32) -> bool {
        if self.crowded > 0 {
            return false;
        }
        let has_room = self.hot.admit(slot);
        if !has_room {
            self.crowded = CROWDED_POLLS;
        }
        has_room
    }

    /// Lets a link be hot no more.
    pub(super) fn dismiss(&mut self, slot: u32, link: &mut Link<Readiness>) {
        if std::mem::take(&mut link.is_hot) {
            self.hot.dismiss(slot);
        }
    }

    /// Whether this turn asks epoll.
    pub(super) fn is_poll_due(&mut self) -> bool {
        self.turns += 1;
        let is_due = self.hot.is_empty() || self.turns >= TURNS_OF_A_POLL;
        if is_due {
            self.turns = 0;
            self.crowded = self.crowded.saturating_sub(1);
        }
        is_due
    }
}

impl EpollDriver {
    /// Asks hot links for heads. Payload comes in large parts, for which epoll is asked. Returns
    /// the number of events, with those that there were before.
    pub(super) fn ask_hot(
        &mut self,
        mut events: usize,
        handler: &mut dyn LinkHandler<Accepted>,
    ) -> usize {
        self.staging.asking.hot.begin_walk();
        let mut asked = 0;
        while (events < EVENTS_ENOUGH || asked < ASKED_MIN)
            && let Some(slot) = self.staging.asking.hot.next()
        {
            let Some((_, link)) = self.core.links.at(slot) else {
                continue;
            };
            let target = link.inbound.as_mut().map(Inbound::target);
            link.is_hot &= self.staging.asking.crowded == 0
                && link.io.misses < MISSES_MAX
                && matches!(target, Some(ReadTarget::Staging));
            if !link.is_hot {
                self.rearm(slot);
                continue;
            }
            asked += 1;
            link.io.readable = true;
            link.io.misses += 1;
            events += self.staging.read(&mut self.core, slot, handler);
            let Some((_, link)) = self.core.links.at(slot) else {
                continue;
            };
            let (found, is_ended) = (link.io.misses == 0, link.is_ended());
            match found {
                true => {
                    link.io.hits = link.io.hits.saturating_add(1);
                    if link.io.hits == HITS_TO_MUTE {
                        self.disarm(slot);
                    }
                    self.staging.asking.hot.found(slot);
                    // A turn that serves many links is a long one.
                    self.staging.asking.turns += 1;
                }
                false => self.staging.asking.hot.missed(slot),
            }
            if is_ended {
                self.core.queue(slot);
            }
        }
        self.staging.asking.hot.end_walk();
        events
    }

    /// Lets epoll tell of a hot link only that it is over, unless it has to tell when there is room
    /// again.
    fn disarm(&mut self, slot: u32) {
        let Some((_, link)) = self.core.links.at(slot) else {
            return;
        };
        if !link.io.writable {
            link.io.hits = 0;
            return;
        }
        let data = epoll::EventData::new_u64(u64::from(slot));
        let disarmed = epoll::modify(&self.epoll, &link.socket, data, epoll::EventFlags::ET);
        link.io.is_disarmed = disarmed.is_ok();
    }

    /// Lets epoll tell everything of a link that is not asked any more, or that has something to
    /// send and no room: of what is so now, too.
    pub(super) fn rearm(&mut self, slot: u32) {
        let Some((_, link)) = self.core.links.at(slot) else {
            return;
        };
        (link.io.hits, link.io.misses) = (0, 0);
        if !std::mem::take(&mut link.io.is_disarmed) {
            return;
        }
        let data = epoll::EventData::new_u64(u64::from(slot));
        if let Err(errno) = epoll::modify(&self.epoll, &link.socket, data, LINK_EVENTS) {
            link.fail("watch", errno);
            self.core.queue(slot);
        }
        self.staging.asking.turns = TURNS_OF_A_POLL;
    }

    /// Lets no link be hot, because the loop goes to sleep.
    pub(super) fn deactivate(&mut self) {
        while let Some(slot) = self.staging.asking.hot.pop() {
            if let Some((_, link)) = self.core.links.at(slot) {
                link.is_hot = false;
                self.rearm(slot);
            }
        }
    }
}

/// With hot links, epoll is asked in one of so many turns, or after so many links had bytes: that
/// is how much later the first bytes of others are seen.
const TURNS_OF_A_POLL: u32 = 16;

/// How often a hot link has had bytes when epoll is told to note no more of it, which takes two
/// system calls until it is not hot any more.
const HITS_TO_MUTE: u32 = 8;

/// How often epoll is asked before links are counted again: some hundreds of microseconds.
const CROWDED_POLLS: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot_set::HOT_LINKS_MAX;

    fn polls_in(asking: &mut Asking, turns: u32) -> u32 {
        (0..turns).filter(|_| asking.is_poll_due()).count() as u32
    }

    #[test]
    fn epoll_is_asked_in_each_turn_unless_a_link_is_hot() {
        let mut asking = Asking::new();
        assert_eq!(polls_in(&mut asking, 100), 100);
        assert!(asking.admit(7));
        assert_eq!(polls_in(&mut asking, 10 * TURNS_OF_A_POLL), 10);
        asking.hot.dismiss(7);
        assert_eq!(polls_in(&mut asking, 100), 100);
    }

    #[test]
    fn no_link_is_hot_for_a_while_after_there_were_too_many() {
        let mut asking = Asking::new();
        assert!((0..HOT_LINKS_MAX as u32).all(|slot| asking.admit(slot)));
        assert!(!asking.admit(99));
        while asking.hot.pop().is_some() {}
        for polls in 0..CROWDED_POLLS {
            assert!(!asking.admit(1), "after {polls} polls");
            assert!(asking.is_poll_due());
        }
        assert!(asking.admit(1));
    }
}
