//! What an acceptor tells a dialler over the base transport, so that it finds the rendezvous and
//! the link.

use std::hash::{BuildHasher, Hasher, RandomState};

use grpcxx_transport::LinkId;

use crate::message::Token;

/// What an acceptor tells a dialler, for it to find the rendezvous socket and the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) host: HostId,
    pub(crate) token: Token,
    pub(crate) socket_name: Vec<u8>,
}

/// The boot of a host: two processes with the same one run on the same kernel.
pub(crate) type HostId = [u8; 16];

impl Offer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        [&self.host[..], &self.token[..], &self.socket_name[..]].concat()
    }

    /// Reads an offer; `None` if it is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (host, rest) = bytes.split_first_chunk()?;
        let (token, name) = rest.split_first_chunk()?;
        let is_name = (1..=SOCKET_NAME_BYTES_MAX).contains(&name.len());
        is_name.then(|| Self {
            host: *host,
            token: *token,
            socket_name: name.to_vec(),
        })
    }
}

/// Names a link so that only who was told can ask for it.
pub(crate) fn token(link: LinkId, secret: u64) -> Token {
    let mut token = Token::default();
    token[..4].copy_from_slice(&link.slot.to_le_bytes());
    token[4..8].copy_from_slice(&link.generation.to_le_bytes());
    token[8..].copy_from_slice(&secret.to_le_bytes());
    token
}

/// The link that a token may name.
pub(crate) fn link_of(token: &Token) -> LinkId {
    let part =
        |at: usize| u32::from_le_bytes([token[at], token[at + 1], token[at + 2], token[at + 3]]);
    LinkId {
        slot: part(0),
        generation: part(4),
    }
}

/// A number that nobody can guess: the hasher's keys come from the system's source of randomness.
pub(crate) fn secret() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The id of this host's present boot.
pub(crate) fn host_id() -> Option<HostId> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    parse_host_id(&text)
}

fn parse_host_id(text: &str) -> Option<HostId> {
    let digits: String = text.trim().chars().filter(|&digit| digit != '-').collect();
    if digits.len() != 32 {
        return None;
    }
    u128::from_str_radix(&digits, 16)
        .ok()
        .map(u128::to_be_bytes)
}

/// Longest name of a socket in the abstract namespace.
const SOCKET_NAME_BYTES_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_and_tokens_come_back_as_they_were() {
        let link = LinkId {
            slot: 7,
            generation: 9,
        };
        let offer = Offer {
            host: [1; 16],
            token: token(link, 5),
            socket_name: b"name".to_vec(),
        };
        assert_eq!(Offer::decode(&offer.encode()), Some(offer.clone()));
        assert_eq!(link_of(&offer.token), link);
        assert_eq!(Offer::decode(&offer.encode()[..32]), None);
        assert_eq!(Offer::decode(&[0; 200]), None);
        assert_ne!(secret(), secret());
    }

    #[test]
    fn a_boot_id_is_sixteen_bytes() {
        let id = parse_host_id("00112233-4455-6677-8899-aabbccddeeff\n").unwrap();
        assert_eq!(id[..3], [0x00, 0x11, 0x22]);
        assert_eq!(parse_host_id("0011"), None);
        assert_eq!(parse_host_id("+0112233-4455-6677-8899-aabbccddeefx"), None);
        assert!(host_id().is_some());
    }
}
