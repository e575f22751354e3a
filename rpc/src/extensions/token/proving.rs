//! How far a client has come with the token.

use std::sync::Arc;

use crate::{Nonce, Text, Token};

/// The token of a client's connection.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The token.
    pub token: Arc<Token>,
    /// A number that no other connection has.
    pub nonce: Nonce,
    /// Whether a server that knows no tokens is called all the same.
    pub trusts_unproven: bool,
}

/// How far a client has come with the token.
#[derive(Debug, Default)]
pub(crate) enum Proving {
    /// There is none, or the server needs none.
    #[default]
    Unused,
    /// Calls wait until the server has proved it.
    Asked {
        credentials: Credentials,
        /// Whether the link has the announcement.
        is_announced: bool,
    },
    /// The proof of this side is on its way, and its answer has not come.
    Proved {
        /// Whether the first announcement, which brought the server's proof, is over and done with.
        is_first_over: bool,
    },
    /// The server has not proved it. Nothing more is sent.
    Failed(Unproven),
}

/// Why a server is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// It knows nothing of tokens, as originals do not.
    #[error(
        "the server has no token of the cluster; give it the same GRPCXX_TOKEN_FILE, or name its \
         address in GRPCXX_MEMBERS"
    )]
    Missing,
    /// Its token is another one.
    #[error("the server has another token than this task; give both the same GRPCXX_TOKEN_FILE")]
    Wrong,
    /// It has proven to be another task than the one that was dialled.
    #[error(transparent)]
    OtherTask(Box<OtherTask>),
    /// It does not believe who this side is.
    #[error("the server refuses this task: {0}")]
    Refused(Box<str>),
}

/// The certificate of a server that names another task than was called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its certificate is that of {found}, and {called} was called; give {called} its own \
     certificate (GRPCXX_TLS_CERT, GRPCXX_TLS_KEY), or check its address in the cluster spec and \
     the endpoint map"
)]
pub struct OtherTask {
    /// The task that was called, as in `ps/0`.
    pub called: Text,
    /// The name in the certificate, as in `grpcxx://training/ps/1`.
    pub found: Text,
}

impl Proving {
    pub(crate) fn new(credentials: Option<Credentials>) -> Self {
        match credentials {
            Some(credentials) => Self::Asked {
                credentials,
                is_announced: false,
            },
            None => Self::Unused,
        }
    }

    /// The client's number, for its announcement.
    pub(crate) fn nonce(&self) -> Option<Nonce> {
        match self {
            Self::Asked { credentials, .. } => Some(credentials.nonce),
            Self::Unused | Self::Proved { .. } | Self::Failed(_) => None,
        }
    }

    /// Whether the next frame may leave: while the server has proved nothing, only the first.
    #[inline]
    pub(crate) fn lets_leave(&mut self) -> bool {
        match self {
            Self::Unused | Self::Proved { .. } => true,
            Self::Asked { is_announced, .. } => !std::mem::replace(is_announced, true),
            Self::Failed(_) => false,
        }
    }

    /// Takes back that a frame has left.
    pub(crate) fn left_not(&mut self) {
        if let Self::Asked { is_announced, .. } = self {
            *is_announced = false;
        }
    }

    /// Notes that the server has answered an announcement.
    pub(crate) fn answered(&mut self) {
        *self = match std::mem::take(self) {
            Self::Proved {
                is_first_over: false,
            } => Self::Proved {
                is_first_over: true,
            },
            Self::Unused | Self::Proved { .. } => Self::Unused,
            // A server that fails to answer has no token.
            Self::Asked { credentials, .. } if credentials.trusts_unproven => Self::Unused,
            Self::Asked { .. } => Self::Failed(Unproven::Missing),
            Self::Failed(why) => Self::Failed(why),
        };
    }

    /// Slots that the second announcement holds.
    pub(crate) fn slots(&self) -> usize {
        usize::from(matches!(self, Self::Proved { .. }))
    }

    /// Says that the peer is not to be talked to.
    ///
    /// # Errors
    /// It has not proved the token.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Unproven> {
        match self {
            Self::Failed(why) => Err(why.clone()),
            Self::Unused | Self::Asked { .. } | Self::Proved { .. } => Ok(()),
        }
    }
}
