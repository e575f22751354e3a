use std::net::SocketAddr;

use super::books::{Books, Order, Phase, Tally};
use crate::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Next, Outcome, Park, Progress,
    Refused, Time, Transport, TransportError, forward_events, forward_transport,
};

/// A transport with an auditor: notes what was submitted and what came back, and panics as soon as
/// one of the contracts of this crate is broken.
///
/// It wraps any transport and is one itself, so a test or a simulation puts it between transport
/// and user. Each panic starts with the label.
#[derive(Debug)]
pub struct Ledger<T> {
    inner: T,
    books: Books,
}

impl<T: Transport> Ledger<T> {
    /// Opens the books of a transport that has no links yet.
    pub fn new(inner: T, label: impl Into<String>) -> Self {
        Self {
            inner,
            books: Books::new(label.into()),
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

    forward_transport!(inner: name listen unlisten submit reading frames_in_flight ends offer upgrade);

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

    fn end_stream(&mut self, link: LinkId) {
        self.inner.end_stream(link);
        if let Some(account) = self.books.accounts.get_mut(&link)
            && account.phase != Phase::Closing
        {
            account.phase = Phase::Finishing;
        }
        self.books.count_in_flight(&self.inner);
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
}

impl<T: Park> Park for Ledger<T> {
    forward_transport!(inner: park park_fd patience unpark waker watch);
}

/// Sits between a transport and its handler during a turn.
struct Auditor<'a, A> {
    books: &'a mut Books,
    handler: &'a mut dyn LinkHandler<A>,
}

impl<A> LinkHandler<A> for Auditor<'_, A> {
    forward_events!(handler<A>: proven migration);

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
            Outcome::Lost => self.books.after_lost_landing(link),
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
}
