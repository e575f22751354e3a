//! The ways that arrays take, as the log tells them.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::boards::Refused;
use crate::description::Kind;
use crate::plan::Scheme;

/// How an array gets from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// [`Scheme::Exchange`] in shared memory.
    Boards,
    /// [`Scheme::Segments`].
    Segments,
    /// A scheme by messages.
    Messages(Scheme),
}

/// The ways that a group has told of.
#[derive(Debug, Default)]
pub(crate) struct Told([AtomicBool; WAYS]);

impl Way {
    /// The way of a scheme, where short arrays are shown on boards or are not.
    pub(crate) fn of(scheme: Scheme, has_boards: bool) -> Self {
        match scheme {
            Scheme::Exchange if has_boards => Self::Boards,
            Scheme::Segments => Self::Segments,
            Scheme::Exchange | Scheme::Owners | Scheme::Ring | Scheme::Tree => {
                Self::Messages(scheme)
            }
        }
    }

    fn explanation(self) -> &'static str {
        match self {
            Self::Boards => "boards: it is short, so each rank shows it in shared memory",
            Self::Segments => "segments: each rank combines its part of each in shared memory",
            Self::Messages(scheme) => match scheme {
                Scheme::Exchange => "exchange: it is short, so each rank sends it to each",
                Scheme::Ring => {
                    "ring: chunks go round, since the group is large and the array long"
                }
                Scheme::Tree => "tree: the array goes up and down a tree, since the group is large",
                Scheme::Owners | Scheme::Segments => {
                    "owners: each rank takes its chunk from all and gives it to all"
                }
            },
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Messages(scheme) => scheme as usize,
            Self::Boards => WAYS - 2,
            Self::Segments => WAYS - 1,
        }
    }
}

impl Told {
    /// Logs how an array of this rank travels, once for each way.
    pub(crate) fn tell(&self, (rank, size): (u32, u32), kind: Kind, way: Way) {
        // A barrier has no array.
        if kind == Kind::Barrier || self.0[way.index()].swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::info!(rank, size, "{} goes by {}", kind.name(), way.explanation());
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

/// Number of ways: the schemes by messages, of which there are no more, and two by boards.
const WAYS: usize = 7;
