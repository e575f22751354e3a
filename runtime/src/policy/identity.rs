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
///
/// The stronger proof is the greater one: a certificate may name the task, the token is known to
/// the cluster alone, and a process of the same user may be any program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    /// Not at all: its address is all that is known.
    Nothing,
    /// The kernel says that it is a process of the same user.
    SameUser,
    /// It has the token.
    Token,
    /// It has a certificate of the cluster.
    Certificate,
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

    /// This peer, once it has proven this besides. The stronger proof counts.
    #[must_use]
    pub fn proven(self, proof: Proof) -> Self {
        Self {
            proof: self.proof.max(proof),
            ..self
        }
    }

    /// This peer, once it has shown a good certificate, with the name of a task or without.
    #[must_use]
    pub fn certified(self, name: Option<&PeerName>) -> Self {
        Self {
            proof: Proof::Certificate,
            task: name.map(task_of).or(self.task),
            ..self
        }
    }
}

fn task_of(name: &PeerName) -> TaskId {
    TaskId::new(&*name.job, name.index)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_weaker_proof_leaves_a_stronger_one_alone() {
        let peer = Identity::at(SocketAddr::from(([10, 0, 0, 1], 1)));
        let name: PeerName = "grpcxx://c/ps/0".parse().unwrap();
        let certified = peer.clone().certified(Some(&name));
        for weaker in [Proof::Nothing, Proof::SameUser, Proof::Token] {
            assert_eq!(certified.clone().proven(weaker), certified);
            assert_eq!(
                peer.clone().proven(weaker).certified(Some(&name)),
                certified
            );
        }
        let neighbour = peer.clone().proven(Proof::SameUser);
        assert_eq!(neighbour.proof, Proof::SameUser);
        assert_eq!(neighbour.clone().proven(Proof::Nothing), neighbour);
        let member = neighbour.proven(Proof::Token);
        assert_eq!(member.proof, Proof::Token);
        assert_eq!(member.clone().proven(Proof::SameUser), member);
        // What a certificate without a name proves takes no name away.
        assert_eq!(certified.clone().certified(None), certified);
    }
}
