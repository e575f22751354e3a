//! The ways that arrays take, as the log tells them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::boards::Refused;
use crate::description::Kind;
use crate::plan::Scheme;

/// The ways that a group has told of.
#[derive(Debug, Default)]
pub(crate) struct Told([AtomicBool; WAYS]);

impl Told {
    /// Logs how an array of this rank travels, once for each way. With boards, what is exchanged is
    /// shown there.
    pub(crate) fn tell(
        &self,
        (rank, size): (u32, u32),
        kind: Kind,
        (scheme, has_boards): (Scheme, bool),
    ) {
        let (index, explanation) = match scheme {
            Scheme::Exchange if has_boards => (
                0,
                "boards: it is short, so each rank shows it in shared memory",
            ),
            Scheme::Exchange => (1, "exchange: it is short, so each rank sends it to each"),
            Scheme::Owners => (
                2,
                "owners: each rank takes its chunk from all and gives it to all",
            ),
            Scheme::Ring => (
                3,
                "ring: chunks go round, since the group is large and the array long",
            ),
            Scheme::Tree => (
                4,
                "tree: the array goes up and down a tree, since the group is large",
            ),
            Scheme::Segments => (
                5,
                "segments: each rank combines its part of each in shared memory",
            ),
        };
        // A barrier has no array.
        if kind == Kind::Barrier || self.0[index].swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::info!(rank, size, "{} goes by {explanation}", kind.name());
    }
}

/// Logs that all ranks show each other short arrays.
pub(crate) fn tell_of_boards(rank: u32) {
    tracing::info!(
        rank,
        "short arrays go by shared memory: all ranks are on one host"
    );
}

/// Logs why they do not, as far as this rank knows.
pub(crate) fn tell_of_messages(rank: u32, why: Option<&Refused>) {
    match why {
        Some(why) => tracing::info!(
            rank,
            "short arrays go by messages, not by shared memory: {why}"
        ),
        None => tracing::info!(
            rank,
            "short arrays go by messages, since a rank sees no other's"
        ),
    }
}

/// Number of ways.
const WAYS: usize = 6;
