//! Links that a loop that spins asks without waiting to be told that they have bytes.
//!
//! Who asks epoll first makes two system calls for each receive. The few links that were used last are asked
//! directly in each turn, and epoll in some turns only. If they become many, a system call for each costs more
//! than the one that names those that have bytes.

use grpcxx_transport::{Inbound, ReadTarget};

use super::io::Readiness;
use crate::core::{Core, HOT_LINKS_MAX, MISSES_MAX};

/// The links that are asked in each turn.
#[derive(Debug)]
pub(super) struct Hot {
    slots: Vec<u32>,
    /// Turns since epoll was asked.
    turns: u32,
    /// Times that epoll is asked before a link may be hot again, because there were too many.
    crowded: u32,
}

impl Hot {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::with_capacity(HOT_LINKS_MAX),
            turns: 0,
            crowded: 0,
        }
    }

    /// Notes that a link was received from.
    pub(super) fn admit(&mut self, slot: u32) {
        if self.crowded > 0 || self.slots.contains(&slot) {
            return;
        }
        if self.slots.len() < HOT_LINKS_MAX {
            self.slots.push(slot);
        } else {
            self.slots.clear();
            self.crowded = CROWDED_POLLS;
        }
    }

    /// Whether this turn asks epoll.
    pub(super) fn is_poll_due(&mut self) -> bool {
        self.turns += 1;
        let is_due = self.slots.is_empty() || self.turns >= TURNS_OF_A_POLL;
        if is_due {
            self.turns = 0;
            self.crowded = self.crowded.saturating_sub(1);
        }
        is_due
    }

    /// Has the links asked for heads, but for those that were asked in vain too often. Payload comes in large parts, for
    /// which epoll is asked.
    pub(super) fn queue(&mut self, core: &mut Core<Readiness>) {
        self.slots.retain(|&slot| {
            let Some((_, link)) = core.links.at(slot) else {
                return false;
            };
            link.io.misses += 1;
            let target = link.inbound.as_mut().map(Inbound::target);
            let is_hot =
                matches!(target, Some(ReadTarget::Staging)) && link.io.misses <= MISSES_MAX;
            if is_hot {
                link.io.readable = true;
                core.queue(slot);
            } else {
                link.io.misses = 0;
            }
            is_hot
        });
    }
}

/// With hot links, epoll is asked in one of so many turns: it adds some microseconds to the first bytes of others.
const TURNS_OF_A_POLL: u32 = 8;

/// How often epoll is asked before links are counted again: some hundreds of microseconds.
const CROWDED_POLLS: u32 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_in(hot: &mut Hot, turns: u32) -> u32 {
        (0..turns).filter(|_| hot.is_poll_due()).count() as u32
    }

    #[test]
    fn epoll_is_asked_in_each_turn_unless_a_link_is_hot() {
        let mut hot = Hot::new();
        assert_eq!(polls_in(&mut hot, 100), 100);
        hot.admit(7);
        hot.admit(7);
        assert_eq!(polls_in(&mut hot, 80), 80 / TURNS_OF_A_POLL);
        hot.slots.clear();
        assert_eq!(polls_in(&mut hot, 100), 100);
    }

    #[test]
    fn no_link_is_hot_for_a_while_after_there_were_too_many() {
        let mut hot = Hot::new();
        (0..=HOT_LINKS_MAX as u32).for_each(|slot| hot.admit(slot));
        for polls in 0..CROWDED_POLLS {
            hot.admit(1);
            assert!(hot.slots.is_empty(), "after {polls} polls");
            assert!(hot.is_poll_due());
        }
        hot.admit(1);
        assert_eq!(hot.slots, [1]);
    }
}
