use grpcxx_transport::{ENDS_BYTES, Ends};

use crate::garbage::Garbage;

/// What two ends tell each other over their UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// First of the dialler; comes with the descriptor of the segment.
    Hello { claim: LinkClaim, ring_bytes: u64 },
    /// The acceptor has the segment.
    Welcome,
    /// The acceptor does not want it.
    Refuse { reason: String },
    /// The writer's stream goes on in its ring behind this many bytes on the medium before.
    Switch { cut: u64 },
    /// There is something in the segment for who sleeps.
    Wake,
    /// The next arena of the sender; comes with its descriptor.
    Arena,
    /// At this address of the sender's process lies this mark; can the receiver read it?
    Look { address: u64, mark: Mark },
    /// The sender has found the mark, and reads what is shown to it.
    Seen,
}

/// Which link a dialler asks for; the default where its socket says that already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkClaim {
    pub(crate) token: Token,
    /// The connection that the link began on, as the dialler sees it.
    pub(crate) ends: Option<Ends>,
}

/// What an offer names, so that only who has read it can take it.
pub(crate) type Token = [u8; 16];

/// Bytes that nobody can guess, by which a process is told from all others.
pub(crate) type Mark = [u8; 16];

impl Message {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind()];
        match self {
            Self::Hello { claim, ring_bytes } => {
                bytes.push(VERSION);
                bytes.extend_from_slice(&claim.token);
                bytes.extend_from_slice(&ring_bytes.to_le_bytes());
                if let Some(ends) = claim.ends {
                    bytes.extend_from_slice(&ends.encode());
                }
            }
            Self::Refuse { reason } => {
                let text = reason.as_bytes();
                bytes.extend_from_slice(&text[..text.len().min(REASON_BYTES_MAX)]);
            }
            Self::Switch { cut } => bytes.extend_from_slice(&cut.to_le_bytes()),
            Self::Look { address, mark } => {
                bytes.extend_from_slice(&address.to_le_bytes());
                bytes.extend_from_slice(mark);
            }
            Self::Welcome | Self::Wake | Self::Arena | Self::Seen => {}
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Garbage> {
        let garbage = |what, found: usize| Garbage {
            what,
            found: found as u64,
            allowed_max: u64::from(KIND_SEEN),
        };
        let Some((&kind, rest)) = bytes.split_first() else {
            return Err(garbage("length of a message", 0));
        };
        let message = match (kind, rest.len()) {
            (KIND_HELLO, 25 | HELLO_BYTES) => {
                check_version(rest[0])?;
                let mut token = Token::default();
                token.copy_from_slice(&rest[1..17]);
                let ends = rest[25..].first_chunk().map(Ends::decode);
                Self::Hello {
                    claim: LinkClaim { token, ends },
                    ring_bytes: word(&rest[17..25]),
                }
            }
            (KIND_WELCOME, 0) => Self::Welcome,
            (KIND_REFUSE, 0..=REASON_BYTES_MAX) => Self::Refuse {
                reason: String::from_utf8_lossy(rest).into_owned(),
            },
            (KIND_SWITCH, 8) => Self::Switch { cut: word(rest) },
            (KIND_WAKE, 0) => Self::Wake,
            (KIND_ARENA, 0) => Self::Arena,
            (KIND_LOOK, 24) => {
                let mut mark = Mark::default();
                mark.copy_from_slice(&rest[8..]);
                Self::Look {
                    address: word(&rest[..8]),
                    mark,
                }
            }
            (KIND_SEEN, 0) => Self::Seen,
            (KIND_HELLO..=KIND_SEEN, len) => {
                return Err(garbage("length of a message", len));
            }
            (kind, _) => return Err(garbage("kind of a message", kind.into())),
        };
        Ok(message)
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => KIND_HELLO,
            Self::Welcome => KIND_WELCOME,
            Self::Refuse { .. } => KIND_REFUSE,
            Self::Switch { .. } => KIND_SWITCH,
            Self::Wake => KIND_WAKE,
            Self::Arena => KIND_ARENA,
            Self::Look { .. } => KIND_LOOK,
            Self::Seen => KIND_SEEN,
        }
    }
}

/// Ends of different versions do not understand all of each other's messages.
fn check_version(found: u8) -> Result<(), Garbage> {
    if found == VERSION {
        return Ok(());
    }
    Err(Garbage {
        what: "version",
        found: found.into(),
        allowed_max: VERSION.into(),
    })
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// Longest message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 + REASON_BYTES_MAX;

/// What [`Message::Wake`] looks like.
pub(crate) const WAKE: [u8; 1] = [KIND_WAKE];

const VERSION: u8 = 3;
/// A hello of a link that began on a connection, without its kind.
const HELLO_BYTES: usize = 25 + ENDS_BYTES;
const REASON_BYTES_MAX: usize = 255;
const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_REFUSE: u8 = 3;
const KIND_SWITCH: u8 = 4;
const KIND_WAKE: u8 = 5;
const KIND_ARENA: u8 = 6;
const KIND_LOOK: u8 = 7;
const KIND_SEEN: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let [near, far] = [1, 2].map(|port| std::net::SocketAddr::from(([127, 0, 0, 1], port)));
        let hello = |ends| Message::Hello {
            claim: LinkClaim {
                token: [7; 16],
                ends,
            },
            ring_bytes: 1 << 20,
        };
        let messages = [
            hello(None),
            hello(Some(Ends::new(near, far))),
            Message::Welcome,
            Message::Refuse {
                reason: "no room".to_owned(),
            },
            Message::Switch { cut: 1 << 40 },
            Message::Wake,
            Message::Arena,
            Message::Look {
                address: u64::MAX,
                mark: [9; 16],
            },
            Message::Seen,
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        assert_eq!(Message::Wake.encode(), WAKE);
        let long = Message::Refuse {
            reason: "x".repeat(1000),
        };
        assert_eq!(long.encode().len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn anything_else_is_refused() {
        for bytes in [
            &[][..],
            &[0],
            &[7],
            &[7; 24],
            &[8, 8],
            &[9],
            &[1],
            &[1; 25],
            &[1; 27],
            &[1; 60],
            &[2, 0],
            &[4; 8],
            &[5, 5],
        ] {
            assert!(Message::decode(bytes).is_err(), "{bytes:?}");
        }
        let mut hello = Message::Hello {
            claim: LinkClaim::default(),
            ring_bytes: 4096,
        }
        .encode();
        for version in [0, VERSION - 1, VERSION + 1] {
            hello[1] = version;
            assert!(Message::decode(&hello).is_err());
        }
    }
}
