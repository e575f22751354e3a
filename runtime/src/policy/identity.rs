use std::fmt;
use std::net::{IpAddr, SocketAddr};

use grpcxx_transport::PeerName;

use crate::cluster::TaskId;

/// Who is at the other end of a connection, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Where it is. An IPv4 address is one, also if it came to an IPv6 socket.
    pub address: IpAddr,
    /// How it has shown that it belongs to the cluster.
    pub proof: Proof,
    /// Which task it is, if that is proven.
    pub task: Option<TaskId>,
}

/// How a peer has shown that it belongs to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Not at all: its address is all that is known.
    Nothing,
    /// It has the token.
    Token,
    /// It has a certificate of the cluster.
    Certificate,
    /// The kernel says that it is a process of the same user.
    SameUser,
}

impl Identity {
    /// A peer of which only the address is known.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address: address.ip().to_canonical(),
            proof: Proof::Nothing,
            task: None,
        }
    }

    /// The same peer, once it has proven more.
    #[must_use]
    pub fn proven(self, proof: Proof) -> Self {
        Self { proof, ..self }
    }

    /// The same peer, once it has shown a good certificate, with the name of a task or without.
    #[must_use]
    pub fn certified(self, name: Option<&PeerName>) -> Self {
        Self {
            proof: Proof::Certificate,
            task: name.map(|name| TaskId::new(&*name.job, name.index)),
            ..self
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::Token => "token",
            Self::Certificate => "certificate",
            Self::SameUser => "same user",
        })
    }
}
