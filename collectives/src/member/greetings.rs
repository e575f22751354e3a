//! What partners say that they call, for the operations of one tag.
//!
//! A request that waits at its sender before there is an answer brings that in one way. One for
//! each of the next operations costs a message each; asked for together, they go in one.

use std::collections::VecDeque;

use grpcxx_memory::Buffer;
use grpcxx_rpc::Status;

use crate::plan::Partners;

/// The greetings of the present operation, and of those behind it that were asked for.
pub(super) struct Greetings {
    partners: Partners,
    /// By operation, the present one first, and by partner.
    rows: VecDeque<Vec<Greeting>>,
    /// How many rows, the present one first, were asked for.
    asked: usize,
    /// How many rows are asked for next.
    next: usize,
}

#[derive(Clone)]
pub(super) enum Greeting {
    Awaited,
    Here(Buffer),
    Taken,
    /// The partner was gone before an operation needed it.
    Lost(Status),
}

impl Greetings {
    pub(super) fn new(partners: Partners) -> Self {
        Self {
            rows: [vec![Greeting::Awaited; partners.len()]].into(),
            partners,
            asked: 0,
            next: 1,
        }
    }

    pub(super) fn partners(&self) -> &[u32] {
        &self.partners
    }

    /// How many operations, the present one first, partners are to be asked for now. A tag that
    /// has seen more operations is asked for more of them.
    pub(super) fn ask(&mut self) -> usize {
        if self.asked > 0 {
            return 0;
        }
        self.asked = self.next;
        self.next = (self.next * 2).min(OPERATIONS_ASKED_MAX);
        let row = || vec![Greeting::Awaited; self.partners.len()];
        (self.rows).resize_with(self.asked.max(self.rows.len()), row);
        self.asked
    }

    /// Whether partners were asked for the operation that comes so many behind the present one.
    pub(super) fn has_asked(&self, ahead: usize) -> bool {
        ahead < self.asked
    }

    /// What partners have said of the present operation, or shown in the present step of it.
    pub(super) fn present(&mut self) -> impl Iterator<Item = (u32, &mut Greeting)> {
        let partners = self.partners.iter().copied();
        partners.zip(&mut self.rows[0])
    }

    /// The partners of which nothing has been taken yet.
    pub(super) fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        let greetings = self.partners.iter().zip(&self.rows[0]);
        greetings
            .filter(|(_, greeting)| !matches!(greeting, Greeting::Taken))
            .map(|(&from, _)| from)
    }

    /// Notes what has become of a greeting, of an operation that was asked for.
    pub(super) fn set(&mut self, ahead: usize, from: u32, greeting: Greeting) {
        let place = self.partners.iter().position(|&partner| partner == from);
        if let Some(place) = place {
            self.rows[ahead][place] = greeting;
        }
    }

    /// Nothing is taken yet of the step that begins.
    pub(super) fn forget_present(&mut self) {
        self.rows[0].fill(Greeting::Awaited);
    }

    /// Goes on to the next operation.
    pub(super) fn advance(&mut self) {
        self.forget_present();
        self.rows.rotate_left(1);
        self.asked = self.asked.saturating_sub(1);
    }
}

/// Most operations for which partners are asked at a time.
pub(super) const OPERATIONS_ASKED_MAX: usize = 8;
