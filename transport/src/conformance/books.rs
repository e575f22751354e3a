use std::collections::{BTreeMap, VecDeque};

use crate::{CloseReason, Frame, Landing, LinkId, Next, Outcome, Transport};

/// What a [`Ledger`](super::Ledger) has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Calls of [`Transport::turn`].
    pub turns: u64,
    /// Events of all turns.
    pub events: u64,
    /// Events of the turn that had most.
    pub events_per_turn_max: usize,
    /// Links that were dialled or adopted.
    pub links: u64,
    /// Frames accepted.
    pub frames: u64,
    /// Frames that came back with [`Outcome::Done`].
    pub frames_done: u64,
    /// Frames that came back with [`Outcome::Lost`].
    pub frames_lost: u64,
    /// Landings that came back full.
    pub landings_done: u64,
    /// Landings that came back with [`Outcome::Lost`].
    pub landings_lost: u64,
}

/// What was submitted to a transport and has not come back, by link.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) label: String,
    pub(super) accounts: BTreeMap<LinkId, Account>,
    /// The last generation of each slot.
    generations: BTreeMap<u32, u32>,
    in_flight: usize,
    pub(super) tally: Tally,
}

#[derive(Debug)]
pub(super) struct Account {
    pub(super) phase: Phase,
    pub(super) order: Order,
    /// Lengths of landings behind which more was shown before they were back, oldest first.
    apart: VecDeque<usize>,
    /// Token and length of each accepted frame, oldest first.
    frames: VecDeque<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Dialling,
    Open,
    /// This side's stream has ended or is about to.
    Finishing,
    Closing,
}

/// What the link was told to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Head {
        at_least_bytes: usize,
    },
    Land {
        bytes: usize,
        then_head_bytes: Option<usize>,
    },
    Paused,
    Nothing,
}

impl Books {
    /// Of a transport that has no links yet.
    pub(super) fn new(label: String) -> Self {
        Self {
            label,
            accounts: BTreeMap::new(),
            generations: BTreeMap::new(),
            in_flight: 0,
            tally: Tally::default(),
        }
    }

    pub(super) fn open(&mut self, link: LinkId, phase: Phase, order: Order) {
        let known = self.generations.insert(link.slot, link.generation);
        self.check(
            link,
            known.is_none_or(|last| last < link.generation),
            "a new link has an id that was used before",
        );
        self.check(
            link,
            self.accounts.keys().all(|other| other.slot != link.slot),
            "a new link has the slot of a link that is still there",
        );
        self.tally.links += 1;
        self.accounts.insert(
            link,
            Account {
                phase,
                order,
                apart: VecDeque::new(),
                frames: VecDeque::new(),
            },
        );
    }

    pub(super) fn frame_accepted(&mut self, link: LinkId, entry: (u64, u64)) {
        let account = self.account(link, "accepted a frame");
        let open = account.phase == Phase::Open;
        account.frames.push_back(entry);
        self.check(link, open, "accepted a frame while it was not open");
        self.in_flight += 1;
        self.tally.frames += 1;
    }

    pub(super) fn resumed(&mut self, link: LinkId, order: Order) {
        let account = self.account(link, "was resumed");
        let legal = account.reads() && account.order == Order::Paused;
        account.order = order;
        self.check(
            link,
            legal,
            "was resumed although it was not open and paused",
        );
    }

    pub(super) fn connected(&mut self, link: LinkId) {
        self.tally.events += 1;
        let account = self.account(link, "connected");
        let phase = std::mem::replace(&mut account.phase, Phase::Open);
        self.check(
            link,
            phase == Phase::Dialling,
            &format!("connected while it was {phase:?}"),
        );
    }

    pub(super) fn ordered(&mut self, link: LinkId, order: Order) {
        self.account(link, "was given an order").order = order;
    }

    pub(super) fn received(&mut self, link: LinkId, bytes: usize) {
        self.tally.events += 1;
        let account = self.account(link, "received");
        let (phase, reads, order) = (account.phase, account.reads(), account.order);
        let wanted = match order {
            Order::Head { at_least_bytes } => Some(at_least_bytes),
            Order::Land {
                bytes,
                then_head_bytes,
            } => {
                account.apart.push_back(bytes);
                then_head_bytes
            }
            Order::Paused | Order::Nothing => None,
        };
        self.check(
            link,
            reads && wanted.is_some_and(|wanted| wanted <= bytes),
            &format!("received {bytes} bytes while it was {phase:?} with the order {order:?}"),
        );
    }

    /// Says whether the answer to it counts.
    pub(super) fn landed(&mut self, link: LinkId, landing: &Landing, outcome: Outcome) -> bool {
        self.tally.events += 1;
        match outcome {
            Outcome::Done => self.tally.landings_done += 1,
            Outcome::Lost => self.tally.landings_lost += 1,
        }
        let bytes = landing.filled_bytes() + landing.remaining_bytes();
        let account = self.account(link, "gave a landing back");
        let order = account.order;
        let apart = account.apart.pop_front();
        let ordered = match order {
            Order::Land { bytes, .. } => Some(bytes),
            Order::Head { .. } | Order::Paused | Order::Nothing => None,
        };
        self.check(
            link,
            apart.or(ordered) == Some(bytes),
            &format!("gave a landing of {bytes} bytes back, its order was {order:?}"),
        );
        self.check(
            link,
            outcome == Outcome::Lost || landing.is_full(),
            "gave a landing back as done that is not full",
        );
        apart.is_none()
    }

    /// What a link does whose landing was lost: where its stream ends it drops the rest and goes
    /// on.
    pub(super) fn after_lost_landing(&self, link: LinkId) -> Order {
        match self.accounts.get(&link) {
            Some(account) if account.phase == Phase::Finishing => Order::Head { at_least_bytes: 1 },
            _ => Order::Nothing,
        }
    }

    pub(super) fn sent(&mut self, link: LinkId, frame: &Frame, outcome: Outcome) {
        self.tally.events += 1;
        match outcome {
            Outcome::Done => self.tally.frames_done += 1,
            Outcome::Lost => self.tally.frames_lost += 1,
        }
        let oldest = self.account(link, "gave a frame back").frames.pop_front();
        let back = (frame.token, frame.len_bytes());
        self.check(
            link,
            oldest == Some(back),
            &format!(
                "gave back the frame with (token, bytes) {back:?}; the oldest accepted and not given back is {oldest:?}"
            ),
        );
        self.in_flight -= 1;
    }

    pub(super) fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.tally.events += 1;
        self.account(link, "closed");
        if let Some(account) = self.accounts.remove(&link) {
            self.check(
                link,
                account.frames.is_empty()
                    && account.apart.is_empty()
                    && !matches!(account.order, Order::Land { .. }),
                &format!("closed ({reason}) before it gave everything back: {account:?}"),
            );
            self.check(
                link,
                *reason != CloseReason::Local
                    || matches!(account.phase, Phase::Finishing | Phase::Closing),
                "says that this side closed it, which it did not",
            );
        }
    }

    pub(super) fn count_in_flight(&self, transport: &impl Transport) {
        let claimed = transport.frames_in_flight();
        assert_eq!(
            claimed, self.in_flight,
            "{}: the transport says that {claimed} frames are in flight, but {} were accepted and not given back",
            self.label, self.in_flight
        );
    }

    fn account(&mut self, link: LinkId, what: &str) -> &mut Account {
        if !self.accounts.contains_key(&link) {
            self.fail(link, &format!("{what}, but there is no such link"));
        }
        self.accounts
            .get_mut(&link)
            .expect("the link was looked up just now")
    }

    pub(super) fn check(&self, link: LinkId, holds: bool, otherwise: &str) {
        if !holds {
            self.fail(link, otherwise);
        }
    }

    pub(super) fn fail(&self, link: LinkId, what: &str) -> ! {
        panic!(
            "{}: link {}.{} {what}",
            self.label, link.slot, link.generation
        );
    }
}

impl Account {
    /// Whether bytes of the peer are taken.
    fn reads(&self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Finishing)
    }
}

impl Order {
    pub(super) fn of(next: &Next) -> Self {
        match next {
            Next::Head { at_least_bytes } => Self::Head {
                at_least_bytes: *at_least_bytes,
            },
            Next::Land(landing) => Self::Land {
                bytes: landing.filled_bytes() + landing.remaining_bytes(),
                then_head_bytes: landing.then_head_bytes(),
            },
            Next::Discard {
                then_at_least_bytes,
                ..
            } => Self::Head {
                at_least_bytes: *then_at_least_bytes,
            },
            Next::Pause => Self::Paused,
        }
    }
}
