//! Who may do what on a task: one policy, asked by the star port and the gRPC endpoint alike.
//!
//! A [`Policy`] is what was set. An [`Authority`] is made of it once, at the start of the engine,
//! and says of each connection whether it may be, and of each [`Identity`] which rights it has.

mod authority;
mod identity;
mod ranges;
mod step_makers;
mod task_hosts;
mod token;

#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) use authority::lenient;
pub use authority::{Authority, AuthorityCounters, PolicyError};
pub use identity::{Identity, Proof};
pub use ranges::{AddressRanges, BadRange};
pub use token::{Secret, TokenSource};

use grpcxx_rpc::{Right, Rights};

/// What was set about who may do what. Without a setting the cluster is open: it works with peers
/// that know no tokens, wherever they are, and lets them change nothing that is to stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Whose connections are taken at all; `None`: anybody's.
    pub allow: Option<AddressRanges>,
    /// Who has every right without a proof; `None`: this machine, unless there is a token.
    pub admin: Option<AddressRanges>,
    /// Who counts as a task of the cluster without a proof; `None`: nobody, and the cluster is open
    /// unless there is a token.
    pub members: Option<AddressRanges>,
    /// The hosts of the cluster's tasks, as names or addresses. In a cluster that is open
    /// otherwise, whoever is there counts as a task too; the cluster stays open.
    pub tasks: Vec<String>,
    /// What all others may do with the store; `None`: read in an open cluster, else nothing.
    pub store: Option<StoreAccess>,
    /// What proves that a peer belongs to the cluster.
    pub token: Option<TokenSource>,
}

/// What peers without identity may do with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreAccess {
    /// Nothing.
    Off,
    /// Read its tensors.
    ReadOnly,
    /// Put tensors into it too.
    Push,
    /// Empty it too, as CleanupAll and Reset do.
    Admin,
}

impl Policy {
    /// A policy under which everybody may do everything, for clusters that nobody else reaches.
    pub fn lenient() -> Self {
        Self {
            admin: Some(AddressRanges::all()),
            ..Self::default()
        }
    }

    /// Whether nothing limits who may call functions and take part in steps.
    pub fn is_open(&self) -> bool {
        self.token.is_none() && self.members.is_none()
    }
}

impl StoreAccess {
    /// The rights that it gives.
    pub const fn rights(self) -> Rights {
        match self {
            Self::Off => Rights::NONE,
            Self::ReadOnly => Rights::of(&[Right::Pull]),
            Self::Push => Rights::of(&[Right::Pull, Right::Push]),
            Self::Admin => Rights::of(&[Right::Pull, Right::Push, Right::Admin]),
        }
    }
}
