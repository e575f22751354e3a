use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use crate::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Next, Outcome, Park, Progress,
    Refused, Time, Transport, TransportError,
};

/// A transport with an auditor: notes what was submitted and what came back, and panics as soon as one of
/// the contracts of this crate is broken.
///
/// It wraps any transport and is one itself, so a test or a simulation puts it between transport and user.
/// Each panic starts with the label.
#[derive(Debug)]
pub struct Ledger<T> {
    inner: T,
    books: Books,
}

/// What a [`Ledger`] has counted since it was made.
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

#[derive(Debug)]
struct Books {
    label: String,
    accounts: BTreeMap<LinkId, Account>,
    /// The last generation of each slot.
    generations: BTreeMap<u32, u32>,
    in_flight: usize,
    tally: Tally,
}

#[derive(Debug)]
struct Account {
    phase: Phase,
    order: Order,
    /// Lengths of landings behind which more was shown before they were back, oldest first.
    apart: VecDeque<usize>,
    /// Token and length of each accepted frame, oldest first.
    frames: VecDeque<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Dialling,
    Open,
    Closing,
}

/// What the link was told to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
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

impl<T: Transport> Ledger<T> {
    /// Opens the books of a transport that has no links yet.
    pub fn new(inner: T, label: impl Into<String>) -> Self {
        Self {
            inner,
            books: Books {
                label: label.into(),
                accounts: BTreeMap::new(),
                generations: BTreeMap::new(),
                in_flight: 0,
                tally: Tally::default(),
            },
        }
    }

    /// What was counted so far.
    pub fn tally(&self) -> Tally {
        self.books.tally
    }

    /// Links that exist, in ascending order.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.books.accounts.keys().copied()
    }

    /// The transport behind.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport behind the ledger. What is submitted there is unknown to the ledger.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Checks that every operation has come to its end and every link is gone.
    ///
    /// # Panics
    /// If something is outstanding.
    pub fn assert_settled(&self) {
        if let Some((link, account)) = self.books.accounts.first_key_value() {
            self.books
                .fail(*link, &format!("still there in the end: {account:?}"));
        }
        let in_flight = self.inner.frames_in_flight();
        assert_eq!(
            in_flight, 0,
            "{}: no link is left, but {in_flight} frames are in flight",
            self.books.label
        );
    }
}

impl<T: Transport> Transport for Ledger<T> {
    type Accepted = T::Accepted;

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        self.inner.listen(address)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.inner.unlisten(listener);
    }

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        let order = Order::of(&next);
        let link = self.inner.adopt(accepted, next)?;
        self.books.open(link, Phase::Open, order);
        Ok(link)
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let link = self.inner.connect(peer)?;
        self.books.open(link, Phase::Dialling, Order::Nothing);
        Ok(link)
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let entry = (frame.token, frame.len_bytes());
        let result = self.inner.send(link, frame);
        match &result {
            Ok(()) => self.books.frame_accepted(link, entry),
            Err(refused) => {
                let back = (refused.value.token, refused.value.len_bytes());
                self.books.check(
                    link,
                    back == entry,
                    "refused a frame and handed another one back",
                );
            }
        }
        self.books.count_in_flight(&self.inner);
        result
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let order = Order::of(&next);
        let result = self.inner.resume(link, next);
        match &result {
            Ok(()) => self.books.resumed(link, order),
            Err(refused) => self.books.check(
                link,
                Order::of(&refused.value) == order,
                "refused an order and handed another one back",
            ),
        }
        result
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        self.inner.close(link, flush);
        if let Some(account) = self.books.accounts.get_mut(&link) {
            account.phase = Phase::Closing;
        }
        self.books.count_in_flight(&self.inner);
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let events_before = self.books.tally.events;
        let mut auditor = Auditor {
            books: &mut self.books,
            handler,
        };
        let returned = self.inner.turn(now, &mut auditor);
        let seen = (self.books.tally.events - events_before) as usize;
        assert_eq!(
            returned, seen,
            "{}: turn says that it had {returned} events, but the handler saw {seen}",
            self.books.label
        );
        let tally = &mut self.books.tally;
        tally.turns += 1;
        tally.events_per_turn_max = tally.events_per_turn_max.max(seen);
        self.books.count_in_flight(&self.inner);
        returned
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn frames_in_flight(&self) -> usize {
        self.inner.frames_in_flight()
    }

    fn offer(&mut self, link: LinkId) -> Option<Vec<u8>> {
        self.inner.offer(link)
    }

    fn upgrade(&mut self, link: LinkId, offer: &[u8]) {
        self.inner.upgrade(link, offer);
    }
}

impl<T: Park> Park for Ledger<T> {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        self.inner.park(timeout)
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        self.inner.park_fd()
    }

    fn unpark(&mut self) {
        self.inner.unpark();
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        self.inner.watch(companion)
    }
}

/// Sits between a transport and its handler during a turn.
struct Auditor<'a, A> {
    books: &'a mut Books,
    handler: &'a mut dyn LinkHandler<A>,
}

impl<A> LinkHandler<A> for Auditor<'_, A> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A) {
        self.books.tally.events += 1;
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.books.connected(link);
        let next = self.handler.connected(link);
        self.books.ordered(link, Order::of(&next));
        next
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        self.books.received(link, bytes.len());
        let progress = self.handler.received(link, bytes);
        self.books.ordered(link, Order::of(&progress.next));
        progress
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let counts = self.books.landed(link, &landing, outcome);
        let next = self.handler.landed(link, landing, outcome);
        let order = match outcome {
            Outcome::Done => Order::of(&next),
            Outcome::Lost => Order::Nothing,
        };
        if counts {
            self.books.ordered(link, order);
        }
        next
    }

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        self.books.sent(link, &frame, outcome);
        self.handler.sent(link, frame, outcome);
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.books.closed(link, reason);
        self.handler.closed(link, reason);
    }

    fn moved(&mut self, link: LinkId, medium: &'static str) {
        self.handler.moved(link, medium);
    }

    fn stayed(&mut self, link: LinkId, reason: &str) {
        self.handler.stayed(link, reason);
    }

    fn fell_back(&mut self, link: LinkId, reason: &str) {
        self.handler.fell_back(link, reason);
    }
}

impl Books {
    fn open(&mut self, link: LinkId, phase: Phase, order: Order) {
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

    fn frame_accepted(&mut self, link: LinkId, entry: (u64, u64)) {
        let account = self.account(link, "accepted a frame");
        let open = account.phase == Phase::Open;
        account.frames.push_back(entry);
        self.check(link, open, "accepted a frame while it was not open");
        self.in_flight += 1;
        self.tally.frames += 1;
    }

    fn resumed(&mut self, link: LinkId, order: Order) {
        let account = self.account(link, "was resumed");
        let legal = account.phase == Phase::Open && account.order == Order::Paused;
        account.order = order;
        self.check(
            link,
            legal,
            "was resumed although it was not open and paused",
        );
    }

    fn connected(&mut self, link: LinkId) {
        self.tally.events += 1;
        let account = self.account(link, "connected");
        let phase = std::mem::replace(&mut account.phase, Phase::Open);
        self.check(
            link,
            phase == Phase::Dialling,
            &format!("connected while it was {phase:?}"),
        );
    }

    fn ordered(&mut self, link: LinkId, order: Order) {
        self.account(link, "was given an order").order = order;
    }

    fn received(&mut self, link: LinkId, bytes: usize) {
        self.tally.events += 1;
        let account = self.account(link, "received");
        let (phase, order) = (account.phase, account.order);
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
            phase == Phase::Open && wanted.is_some_and(|wanted| wanted <= bytes),
            &format!("received {bytes} bytes while it was {phase:?} with the order {order:?}"),
        );
    }

    /// Says whether the answer to it counts.
    fn landed(&mut self, link: LinkId, landing: &Landing, outcome: Outcome) -> bool {
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

    fn sent(&mut self, link: LinkId, frame: &Frame, outcome: Outcome) {
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

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
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
                *reason != CloseReason::Local || account.phase == Phase::Closing,
                "says that this side closed it, which it did not",
            );
        }
    }

    fn count_in_flight(&self, transport: &impl Transport) {
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

    fn check(&self, link: LinkId, holds: bool, otherwise: &str) {
        if !holds {
            self.fail(link, otherwise);
        }
    }

    fn fail(&self, link: LinkId, what: &str) -> ! {
        panic!(
            "{}: link {}.{} {what}",
            self.label, link.slot, link.generation
        );
    }
}

impl Order {
    fn of(next: &Next) -> Self {
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
