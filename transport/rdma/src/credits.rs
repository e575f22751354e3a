use crate::wire::{Grants, Malformed};

/// Who may send how much on one link, so that a message always finds memory posted for it.
///
/// There are two purses. Messages carry the stream and are taken when its reader wants them;
/// immediates carry grants only and are taken at once. So a reader who pauses stops the stream
/// towards it and nothing else. The last credit for an immediate is kept for one that gives back at
/// least half of the peer's, which ends every wait: whoever is out of immediates has given that
/// much, or will be given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credits {
    limits: CreditLimits,
    messages_left: u16,
    immediates_left: u16,
    owed: Grants,
    /// The peer must hear of this side, for it waits with its first message until then.
    greets: bool,
}

/// How much memory each side posts for a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditLimits {
    /// Messages of the stream, 2 to 512.
    pub messages: u16,
    /// Immediates, 4 to 512.
    pub immediates: u16,
}

impl Credits {
    /// `own` is what this side posts, `peer` what the other one does.
    pub(crate) fn new(own: CreditLimits, peer: CreditLimits, greets: bool) -> Self {
        Self {
            limits: own,
            messages_left: peer.messages,
            immediates_left: peer.immediates,
            owed: Grants::default(),
            greets,
        }
    }

    /// Whether a message may be sent.
    pub(crate) fn has_message(&self) -> bool {
        self.messages_left > 0
    }

    /// Pays for a message, and returns what is to be written into its header.
    ///
    /// # Panics
    /// If there is no credit.
    pub(crate) fn spend_message(&mut self) -> Grants {
        assert!(self.messages_left > 0, "a message needs a credit");
        self.messages_left -= 1;
        self.greets = false;
        self.take_owed()
    }

    /// Pays for an immediate, if one is due and allowed, and returns what it shall carry. So many
    /// releases are worth one.
    pub(crate) fn spend_immediate(&mut self, releases_min: u16) -> Option<Grants> {
        let gives_back_half = self.owed.immediates >= self.limits.immediates.div_ceil(2);
        let is_due = self.greets
            || self.owed.releases >= releases_min.max(1)
            || self.owed.messages >= self.limits.messages.div_ceil(2)
            || gives_back_half;
        let may = self.immediates_left > 1 || (self.immediates_left == 1 && gives_back_half);
        if !(is_due && may) {
            return None;
        }
        self.immediates_left -= 1;
        self.greets = false;
        Some(self.take_owed())
    }

    /// As [`Credits::spend_immediate`], for the last word on a link: nobody waits for what it
    /// keeps.
    pub(crate) fn spend_last(&mut self) -> Option<Grants> {
        if self.owed.releases == 0 || self.immediates_left == 0 {
            return None;
        }
        self.immediates_left -= 1;
        Some(self.take_owed())
    }

    /// Whether the peer does not know yet of all offers that were read.
    pub(crate) fn owes_releases(&self) -> bool {
        self.owed.releases > 0
    }

    /// Takes what the peer gives back.
    ///
    /// # Errors
    /// It gives back more than it could owe.
    pub(crate) fn receive(&mut self, grants: Grants, peer: CreditLimits) -> Result<(), Malformed> {
        let messages = self.messages_left.saturating_add(grants.messages);
        let immediates = self.immediates_left.saturating_add(grants.immediates);
        if messages > peer.messages || immediates > peer.immediates {
            return Err(Malformed("more credits than it has"));
        }
        self.messages_left = messages;
        self.immediates_left = immediates;
        Ok(())
    }

    /// A message was taken and its memory is posted again.
    ///
    /// # Errors
    /// The peer sends more messages than it had credits for.
    pub(crate) fn message_taken(&mut self) -> Result<(), Malformed> {
        if self.owed.messages == self.limits.messages {
            return Err(Malformed("more messages than it had credits for"));
        }
        self.owed.messages += 1;
        Ok(())
    }

    /// An immediate was taken and its memory is posted again.
    pub(crate) fn immediate_taken(&mut self) {
        // A peer that goes on without credits ends its own queue.
        self.owed.immediates = self.owed.immediates.saturating_add(1);
    }

    /// The oldest offer was read to its end.
    pub(crate) fn offer_taken(&mut self) {
        self.owed.releases = self.owed.releases.saturating_add(1);
    }

    fn take_owed(&mut self) -> Grants {
        // What does not fit into immediate data waits for the next grant.
        let now = Grants {
            messages: self.owed.messages,
            immediates: self.owed.immediates,
            releases: self.owed.releases.min(RELEASES_MAX),
        };
        self.owed = Grants {
            releases: self.owed.releases - now.releases,
            ..Grants::default()
        };
        now
    }
}

impl CreditLimits {
    /// Whether both numbers are in their bounds.
    pub(crate) fn are_valid(self) -> bool {
        (MESSAGES_MIN..=CREDITS_MAX).contains(&self.messages)
            && (IMMEDIATES_MIN..=CREDITS_MAX).contains(&self.immediates)
    }

    /// Receives that a queue needs.
    pub(crate) fn receives(self) -> u16 {
        self.messages + self.immediates
    }
}

impl Default for CreditLimits {
    fn default() -> Self {
        Self {
            messages: 16,
            immediates: 8,
        }
    }
}

const MESSAGES_MIN: u16 = 2;

/// With fewer, half of them is one, and each immediate would ask for another one for ever.
const IMMEDIATES_MIN: u16 = 4;

const CREDITS_MAX: u16 = 512;

/// Releases of one grant: 12 bits.
const RELEASES_MAX: u16 = (1 << 12) - 1;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[derive(Debug)]
    enum Sent {
        Message(Grants),
        Immediate(Grants),
    }

    /// One side with its unread messages, as a model of a link without bytes.
    struct Side {
        credits: Credits,
        wire: VecDeque<Sent>,
        unread: u16,
        to_send: u32,
        offers_read: u32,
    }

    fn side(limits: CreditLimits, greets: bool) -> Side {
        Side {
            credits: Credits::new(limits, limits, greets),
            wire: VecDeque::new(),
            unread: 0,
            to_send: 0,
            offers_read: 0,
        }
    }

    fn receive(sides: &mut [Side; 2], to: usize, limits: CreditLimits) -> bool {
        let Some(sent) = sides[1 - to].wire.pop_front() else {
            return false;
        };
        let side = &mut sides[to];
        match sent {
            Sent::Message(grants) => {
                side.credits.receive(grants, limits).unwrap();
                side.unread += 1;
                assert!(side.unread <= limits.messages, "a receiver was overrun");
            }
            Sent::Immediate(grants) => {
                side.credits.receive(grants, limits).unwrap();
                side.credits.immediate_taken();
            }
        }
        true
    }

    fn send(side: &mut Side) {
        if side.to_send > 0 && side.credits.has_message() {
            side.to_send -= 1;
            let grants = side.credits.spend_message();
            side.wire.push_back(Sent::Message(grants));
        } else if let Some(grants) = side.credits.spend_immediate(1) {
            side.wire.push_back(Sent::Immediate(grants));
        }
    }

    #[test]
    fn two_sides_never_wait_for_each_other_and_never_overrun() {
        let seed = std::env::var("GRPCXX_SEED").map_or(7, |seed| seed.parse().unwrap());
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let limits = CreditLimits {
                messages: random.u16(2..20),
                immediates: random.u16(IMMEDIATES_MIN..10),
            };
            let mut sides = [side(limits, true), side(limits, false)];
            let total = 400;
            sides[0].to_send = total;
            sides[1].to_send = random.u32(0..total);
            for _ in 0..3000 {
                let at = random.usize(..2);
                match random.u8(..4) {
                    0 | 1 => send(&mut sides[at]),
                    2 => {
                        receive(&mut sides, at, limits);
                    }
                    _ => read(&mut sides[at]),
                }
            }
            // Everything is given a chance in turn: then all must come to an end.
            for _ in 0..20_000 {
                for at in [0, 1] {
                    receive(&mut sides, at, limits);
                    read(&mut sides[at]);
                    send(&mut sides[at]);
                }
            }
            for side in &sides {
                assert_eq!(side.to_send, 0, "stuck, GRPCXX_SEED={seed}: {limits:?}");
                assert!(
                    !side.credits.owes_releases(),
                    "a release is stuck, GRPCXX_SEED={seed}"
                );
                assert!(
                    side.wire.is_empty(),
                    "grants for ever, GRPCXX_SEED={seed}: {:?}",
                    side.wire
                );
            }
        }
    }

    fn read(side: &mut Side) {
        if side.unread > 0 {
            side.unread -= 1;
            side.credits.message_taken().unwrap();
            if side.unread.is_multiple_of(3) {
                side.credits.offer_taken();
                side.offers_read += 1;
            }
        }
    }

    #[test]
    fn messages_without_credits_are_a_violation() {
        let limits = CreditLimits {
            messages: 2,
            immediates: 4,
        };
        let mut credits = Credits::new(limits, limits, false);
        assert_eq!(credits.message_taken(), Ok(()));
        assert_eq!(credits.message_taken(), Ok(()));
        assert!(credits.message_taken().is_err());
    }

    #[test]
    fn a_reader_that_pauses_does_not_stop_releases() {
        let limits = CreditLimits {
            messages: 2,
            immediates: 4,
        };
        let mut sides = [side(limits, true), side(limits, false)];
        // Side 1 never reads; side 0 has used up its messages.
        sides[0].to_send = 10;
        for _ in 0..100 {
            sides[0].credits.offer_taken();
            for at in [0, 1] {
                send(&mut sides[at]);
                receive(&mut sides, 1 - at, limits);
            }
        }
        assert_eq!((sides[0].to_send, sides[1].unread), (8, 2));
        for _ in 0..10 {
            for at in [0, 1] {
                send(&mut sides[at]);
                receive(&mut sides, 1 - at, limits);
            }
        }
        assert!(!sides[0].credits.owes_releases());
    }

    #[test]
    fn a_peer_cannot_grant_more_than_it_posted() {
        let limits = CreditLimits::default();
        let mut credits = Credits::new(limits, limits, false);
        let grants = Grants {
            messages: 1,
            ..Grants::default()
        };
        assert!(credits.receive(grants, limits).is_err());
        credits.spend_message();
        assert!(credits.receive(grants, limits).is_ok());
    }
}
