//! What a peer may do, and which right each of its requests needs.

use std::fmt;

use crate::{Code, Method, Reason, Status};

/// One thing that a peer may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Right {
    /// Read the tensors of the store.
    Pull = 1,
    /// Put tensors into the store, in place of others too.
    Push = 1 << 1,
    /// Call registered functions and graphs.
    Call = 1 << 2,
    /// Take part in steps: receive their tensors and end them.
    Step = 1 << 3,
    /// Empty the store and reset the task.
    Admin = 1 << 4,
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Right {
    /// All rights.
    pub const ALL: [Self; 5] = [Self::Pull, Self::Push, Self::Call, Self::Step, Self::Admin];

    /// The right that a request of `method` needs. A graph call needs that of the function which it
    /// names, and what a task tells about itself needs none.
    #[inline]
    pub const fn of_method(method: Method) -> Option<Self> {
        match method {
            Method::RecvTensor | Method::FuseRecvTensor | Method::CleanupGraph => Some(Self::Step),
            Method::CleanupAll => Some(Self::Admin),
            Method::CreateWorkerSession
            | Method::DeleteWorkerSession
            | Method::RegisterGraph
            | Method::DeregisterGraph
            | Method::RunGraph => Some(Self::Call),
            Method::GetStatus
            | Method::StarRunGraph
            | Method::GetTopologyStatus
            | Method::Logging
            | Method::Tracing
            | Method::RecvBuf
            | Method::CompleteGroup
            | Method::CompleteInstance
            | Method::GetStepSequence => None,
        }
    }

    /// The name in settings and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Call => "call",
            Self::Step => "step",
            Self::Admin => "admin",
        }
    }

    /// What the task can set to give the right to peers that prove nothing.
    pub const fn setting(self) -> &'static str {
        match self {
            Self::Pull => "GRPCXX_STORE=read-only",
            Self::Push => "GRPCXX_STORE=push",
            Self::Call | Self::Step => "the caller's address in GRPCXX_MEMBERS",
            Self::Admin => "the caller's address in GRPCXX_ADMIN",
        }
    }

    /// How a request ends whose peer lacks the right.
    pub fn missing(self) -> Status {
        let text = format!(
            "this task does not give the right {self} to this caller; give both the same \
             GRPCXX_TOKEN_FILE, or set on the task: {}",
            self.setting()
        );
        Status::new(Code::PermissionDenied, text).because(Reason::Forbidden)
    }
}

impl Rights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// Every right.
    pub const ALL: Self = Self::of(&Right::ALL);

    /// The set of these rights.
    pub const fn of(rights: &[Right]) -> Self {
        let (mut bits, mut index) = (0, 0);
        while index < rights.len() {
            bits |= rights[index] as u8;
            index += 1;
        }
        Self(bits)
    }

    /// The rights of either set.
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the set has a right.
    #[inline]
    pub const fn has(self, right: Right) -> bool {
        self.0 & right as u8 != 0
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for right in Right::ALL.into_iter().filter(|&right| self.has(right)) {
            write!(f, "{separator}{right}")?;
            separator = "+";
        }
        match separator {
            "" => f.write_str("nothing"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_tell_what_is_in_them() {
        let rights = Rights::of(&[Right::Pull, Right::Step]);
        assert!(rights.has(Right::Pull) && rights.has(Right::Step));
        assert!(!rights.has(Right::Push) && !rights.has(Right::Admin));
        assert_eq!(rights.to_string(), "pull+step");
        assert_eq!(Rights::NONE.to_string(), "nothing");
        assert_eq!(Rights::ALL.to_string(), "pull+push+call+step+admin");
        assert_eq!(rights.or(Rights::NONE), rights);
    }

    #[test]
    fn a_refusal_names_the_right_and_what_gives_it() {
        for right in Right::ALL {
            let status = right.missing();
            assert_eq!(status.code, Code::PermissionDenied);
            assert_eq!(status.reason, Reason::Forbidden);
            for text in [right.name(), right.setting(), "GRPCXX_TOKEN_FILE"] {
                assert!(status.message.contains(text), "{status}");
            }
        }
    }
}
