//! Whose share it is that something counts against.

use std::net::{IpAddr, Ipv6Addr};

/// A peer with all its connections, as far as it can be told from others.
///
/// Everything of which a peer gets only a share is counted by this type. It stands for the network
/// address from which the peer calls. One machine with IPv6 has as many addresses as it likes in
/// its network of 64 bits, so all of that network is one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Account(IpAddr);

impl Account {
    /// This process itself, and whoever is not known.
    pub const OWN: Self = Self(IpAddr::V6(Ipv6Addr::UNSPECIFIED));

    /// The account of who calls from this address.
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) if !address.is_loopback() => {
                let network = address.to_bits() >> HOST_BITS << HOST_BITS;
                IpAddr::V6(Ipv6Addr::from_bits(network))
            }
            address => address,
        })
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
}
