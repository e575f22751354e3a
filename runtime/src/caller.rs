//! Who calls a method.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_rpc::Account;

/// Who calls a method, from where, and until when.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Caller {
    /// Against whose share the call counts.
    pub account: Account,
    /// The address of the other end of its connection, if it has one.
    pub address: Option<SocketAddr>,
    /// When it no longer wants the answer.
    pub deadline: Option<Instant>,
}

impl Caller {
    /// This process itself.
    pub const OWN: Self = Self {
        account: Account::OWN,
        address: None,
        deadline: None,
    };

    /// Somebody at this address, whose calls count against the share of `account`.
    pub fn at(address: SocketAddr, account: Account) -> Self {
        Self {
            account,
            address: Some(address),
            deadline: None,
        }
    }

    /// The same, who wants the answer by then, and by the deadline that it had.
    #[must_use]
    pub fn until(self, deadline: Option<Instant>) -> Self {
        let deadline = match (self.deadline, deadline) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        Self { deadline, ..self }
    }

    /// What is left of the time in which it wants the answer.
    pub(crate) fn timeout(self) -> Option<Duration> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.deadline.map(left)
    }
}
