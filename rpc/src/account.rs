//! Whose share it is that something counts against.

use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};

use foldhash::quality::FixedState;

/// A peer with all its connections, as far as it can be told from others.
///
/// Everything of which a peer gets only a share is counted by this type. It stands for the network
/// address from which the peer calls, and for what it has proven: strangers at the address of a
/// member take nothing of its share. One machine with IPv6 has as many addresses as it likes in its
/// network of 64 bits, so all of that network is one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Account {
    address: IpAddr,
    member: Member,
}

/// Who at an address it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Member {
    /// All who have proven nothing.
    Stranger,
    /// All who have proven that they belong to the cluster, and say of no task that they are it.
    Unnamed,
    /// All processes of the user of this one that say of no task that they are it.
    SameUser,
    /// A task, by a hash of its name.
    Task(u64),
}

impl Account {
    /// This process itself, and whoever is not known.
    pub const OWN: Self = Self {
        address: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        member: Member::Unnamed,
    };

    /// The account of who calls from this address.
    pub fn of(address: IpAddr) -> Self {
        let address = match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let network = address.to_bits() >> HOST_BITS << HOST_BITS;
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address => address,
        };
        Self {
            address,
            member: Member::Stranger,
        }
    }

    /// The account of who has proven at that address to belong to the cluster. `task` is the name
    /// of the task in its certificate, or else the one that it says it is: members of a cluster
    /// are believed that.
    #[must_use]
    pub fn proven(self, task: Option<&str>) -> Self {
        self.of_member(task, Member::Unnamed)
    }

    /// The account of a process at that address that the kernel says is of the same user, and of
    /// the task that it says it is.
    #[must_use]
    pub fn of_same_user(self, task: Option<&str>) -> Self {
        self.of_member(task, Member::SameUser)
    }

    fn of_member(self, task: Option<&str>, unnamed: Member) -> Self {
        let named = |name: &str| Member::Task(FixedState::default().hash_one(name));
        let member = task.map_or(unnamed, named);
        Self { member, ..self }
    }
}

/// The part of an IPv6 address that a machine chooses by itself.
const HOST_BITS: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_machine_has_one_account() {
        let account = |text: &str| Account::of(text.parse().unwrap());
        assert_eq!(account("10.0.0.1"), account("::ffff:10.0.0.1"));
        assert_ne!(account("10.0.0.1"), account("10.0.0.2"));
        assert_eq!(account("2001:db8::1"), account("2001:db8::ffff:2"));
        assert_ne!(account("2001:db8::1"), account("2001:db8:0:1::1"));
        assert_ne!(account("::1"), account("::2"));
    }

    #[test]
    fn what_is_proven_is_apart_from_strangers_at_the_address() {
        let stranger = Account::of([10, 0, 0, 1].into());
        let accounts = [
            stranger,
            stranger.proven(None),
            stranger.of_same_user(None),
            stranger.proven(Some("job:ps/task:0")),
            stranger.proven(Some("job:ps/task:1")),
            stranger.proven(Some("job:worker/task:0")),
        ];
        for (index, account) in accounts.iter().enumerate() {
            assert!(!accounts[..index].contains(account), "{account:?}");
        }
        let task = Some("job:ps/task:0");
        assert_eq!(stranger.proven(None).proven(task), accounts[3]);
        assert_eq!(stranger.of_same_user(task), accounts[3]);
    }
}
