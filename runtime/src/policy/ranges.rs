//! Ranges of addresses, as settings name them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Ranges of IP addresses, of both families.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressRanges(Vec<IpNet>);

/// Something that names no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRange {
    /// A part of the list cannot be read.
    #[error(
        "{found:?} names no addresses; write ranges such as 10.1.0.0/16, addresses such as \
         2001:db8::7, loopback, all or none, with commas between them"
    )]
    Unreadable {
        /// The part.
        found: String,
    },
    /// The list has more parts than anybody needs.
    #[error("{found} ranges, allowed are {RANGES_MAX}")]
    TooMany {
        /// The number of parts.
        found: usize,
    },
}

impl AddressRanges {
    /// Every address.
    pub fn all() -> Self {
        Self(vec![
            IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)),
            IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)),
        ])
    }

    /// The addresses of this machine's loopback interface.
    pub fn loopback() -> Self {
        Self(vec![
            IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
            IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
        ])
    }

    /// Whether an address is in one of the ranges.
    pub fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|range| range.contains(&address))
    }

    /// Whether no address is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for AddressRanges {
    type Err = BadRange;

    fn from_str(text: &str) -> Result<Self, BadRange> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if parts.len() > RANGES_MAX {
            return Err(BadRange::TooMany { found: parts.len() });
        }
        let mut ranges = Vec::with_capacity(parts.len());
        for part in parts {
            match part {
                "all" => ranges.extend(Self::all().0),
                "loopback" => ranges.extend(Self::loopback().0),
                "none" => {}
                _ => ranges.push(range(part)?),
            }
        }
        Ok(Self(ranges))
    }
}

fn range(text: &str) -> Result<IpNet, BadRange> {
    let range = text.parse::<IpNet>().ok();
    let range = range.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    range
        .map(|range| range.trunc())
        .ok_or_else(|| BadRange::Unreadable {
            found: text.chars().take(SHOWN_CHARS_MAX).collect(),
        })
}

impl fmt::Display for AddressRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str("all");
        }
        if *self == Self::loopback() {
            return f.write_str("loopback");
        }
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, range) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{range}")?;
        }
        Ok(())
    }
}

/// Most ranges of a list: each is looked at for each connection.
const RANGES_MAX: usize = 1024;

/// How much of a wrong part an error repeats.
const SHOWN_CHARS_MAX: usize = 80;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ranges(text: &str) -> AddressRanges {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_are_in_the_ranges_that_name_them() {
        let ranges = ranges("10.1.0.0/16, 192.168.7.9,2001:db8::/32,loopback");
        for inside in [
            "10.1.255.3",
            "192.168.7.9",
            "2001:db8::1",
            "127.9.9.9",
            "::1",
        ] {
            assert!(ranges.contain(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["10.2.0.1", "192.168.7.8", "2001:db9::1", "126.0.0.1", "::2"] {
            assert!(!ranges.contain(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn an_ipv4_address_that_came_to_an_ipv6_socket_is_one() {
        assert!(ranges("10.0.0.0/8").contain("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!ranges("::/0").contain("::ffff:10.1.2.3".parse().unwrap()));
        assert!(AddressRanges::all().contain("::ffff:10.1.2.3".parse().unwrap()));
    }

    #[test]
    fn words_stand_for_ranges_and_come_back() {
        for word in ["all", "loopback", "none"] {
            assert_eq!(ranges(word).to_string(), word);
        }
        assert_eq!(ranges("10.9.8.7/8,::2").to_string(), "10.0.0.0/8,::2/128");
        assert!(!ranges("none").contain("127.0.0.1".parse().unwrap()));
    }

    #[test]
    fn what_names_no_addresses_is_refused_with_what_does() {
        for text in [
            "10.0.0.0/33",
            "example.org",
            "10.0.0.1-10.0.0.9",
            "10.0.0.1,,",
            "*",
        ] {
            let error = text.parse::<AddressRanges>().unwrap_err();
            assert!(error.to_string().contains("10.1.0.0/16"), "{error}");
        }
        let many = vec!["10.0.0.1"; RANGES_MAX + 1].join(",");
        let error = many.parse::<AddressRanges>().unwrap_err();
        assert_eq!(error.to_string(), "1025 ranges, allowed are 1024");
    }
}
