//! What goes over a link between two of these crates: messages of up to one slot, and 32 bits of
//! immediate data.
//!
//! A message is a header of 8 bytes (grants), then elements: 4 bytes of kind and length, then the
//! element. All numbers are little-endian. `docs/rdma.md` describes it for other implementers.

/// What one side gives back to the other, in numbers since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grants {
    /// Messages that were taken, so as many more may be sent.
    pub(crate) messages: u16,
    /// Immediates that were taken.
    pub(crate) immediates: u16,
    /// Offers that were read to their end, oldest first.
    pub(crate) releases: u16,
}

impl Grants {
    /// As immediate data: 10 bits of messages, 10 of immediates, 12 of releases.
    pub(crate) fn to_bits(self) -> u32 {
        debug_assert!(self.messages < 1 << 10 && self.immediates < 1 << 10);
        debug_assert!(self.releases < 1 << 12);
        u32::from(self.messages) | u32::from(self.immediates) << 10 | u32::from(self.releases) << 20
    }

    pub(crate) fn from_bits(bits: u32) -> Self {
        Self {
            messages: (bits & 0x3ff) as u16,
            immediates: (bits >> 10 & 0x3ff) as u16,
            releases: (bits >> 20) as u16,
        }
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element<'a> {
    /// Bytes of the stream.
    Bytes(&'a [u8]),
    /// Bytes of the stream that lie at the sender.
    Offer(Offer),
    /// The stream ends here.
    End,
}

/// Memory of the sender that the receiver shall read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) address: u64,
    pub(crate) len_bytes: u64,
    pub(crate) key: u32,
}

/// Appends elements to a message.
#[derive(Debug)]
pub(crate) struct MessageWriter<'a> {
    slot: &'a mut [u8],
    len_bytes: usize,
}

impl<'a> MessageWriter<'a> {
    /// An empty message in `slot`, which has room for a header at least.
    pub(crate) fn new(slot: &'a mut [u8]) -> Self {
        assert!(slot.len() >= MESSAGE_BYTES_MIN, "a slot holds a message");
        Self {
            slot,
            len_bytes: HEADER_BYTES,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len_bytes == HEADER_BYTES
    }

    /// Bytes that an element of bytes may still have.
    pub(crate) fn room_bytes(&self) -> usize {
        (self.slot.len() - self.len_bytes).saturating_sub(ELEMENT_BYTES)
    }

    /// Appends an element of bytes; adjacent ones are one.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.element(KIND_BYTES, bytes);
    }

    /// Appends an offer and says whether it had room.
    pub(crate) fn offer(&mut self, offer: Offer) -> bool {
        if self.room_bytes() < OFFER_BYTES {
            return false;
        }
        let mut body = [0; OFFER_BYTES];
        body[..8].copy_from_slice(&offer.address.to_le_bytes());
        body[8..16].copy_from_slice(&offer.len_bytes.to_le_bytes());
        body[16..].copy_from_slice(&offer.key.to_le_bytes());
        self.element(KIND_OFFER, &body);
        true
    }

    /// Appends the end of the stream and says whether it had room.
    pub(crate) fn end(&mut self) -> bool {
        let has_room = self.slot.len() - self.len_bytes >= ELEMENT_BYTES;
        if has_room {
            self.element(KIND_END, &[]);
        }
        has_room
    }

    /// Writes the header and returns the length of the message in bytes.
    pub(crate) fn finish(self, grants: Grants) -> usize {
        self.slot[..2].copy_from_slice(&grants.messages.to_le_bytes());
        self.slot[2..4].copy_from_slice(&grants.immediates.to_le_bytes());
        self.slot[4..6].copy_from_slice(&grants.releases.to_le_bytes());
        self.slot[6..8].copy_from_slice(&[0; 2]);
        self.len_bytes
    }

    fn element(&mut self, kind: u32, body: &[u8]) {
        let at = self.len_bytes;
        let head = kind << KIND_SHIFT | body.len() as u32;
        self.slot[at..at + ELEMENT_BYTES].copy_from_slice(&head.to_le_bytes());
        self.slot[at + ELEMENT_BYTES..at + ELEMENT_BYTES + body.len()].copy_from_slice(body);
        self.len_bytes = at + ELEMENT_BYTES + body.len();
    }
}

/// Reads the header of a message.
pub(crate) fn grants_of(message: &[u8]) -> Result<Grants, Malformed> {
    let Some((header, _)) = message.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Malformed("a message shorter than its header"));
    };
    let [m0, m1, i0, i1, r0, r1, 0, 0] = *header else {
        return Err(Malformed("a header with reserved bits"));
    };
    Ok(Grants {
        messages: u16::from_le_bytes([m0, m1]),
        immediates: u16::from_le_bytes([i0, i1]),
        releases: u16::from_le_bytes([r0, r1]),
    })
}

/// The element of `message` at `at`, and where the next one begins. `None` at the end of the
/// message.
pub(crate) fn element_at(
    message: &[u8],
    at: usize,
) -> Result<Option<(Element<'_>, usize)>, Malformed> {
    let rest = message.get(at..).unwrap_or_default();
    if rest.is_empty() {
        return Ok(None);
    }
    let Some((head, rest)) = rest.split_first_chunk::<ELEMENT_BYTES>() else {
        return Err(Malformed("an element shorter than its head"));
    };
    let head = u32::from_le_bytes(*head);
    let len = (head & ((1 << KIND_SHIFT) - 1)) as usize;
    let Some(body) = rest.get(..len) else {
        return Err(Malformed("an element longer than its message"));
    };
    let next = at + ELEMENT_BYTES + len;
    let element = match head >> KIND_SHIFT {
        KIND_BYTES => Element::Bytes(body),
        KIND_OFFER => Element::Offer(offer_of(body)?),
        KIND_END if body.is_empty() => Element::End,
        KIND_END => return Err(Malformed("an end with a body")),
        _ => return Err(Malformed("an element of unknown kind")),
    };
    Ok(Some((element, next)))
}

fn offer_of(body: &[u8]) -> Result<Offer, Malformed> {
    let Ok(body) = <[u8; OFFER_BYTES]>::try_from(body) else {
        return Err(Malformed("an offer of the wrong length"));
    };
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| body[at + index]));
    let offer = Offer {
        address: number(0),
        len_bytes: number(8),
        key: u32::from_le_bytes(std::array::from_fn(|index| body[16 + index])),
    };
    if offer.len_bytes == 0 || offer.address.checked_add(offer.len_bytes).is_none() {
        return Err(Malformed(
            "an offer of no bytes, or beyond the address space",
        ));
    }
    Ok(offer)
}

/// What is wrong with a message of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Where the elements of a message begin.
pub(crate) const HEADER_BYTES: usize = 8;

/// A slot cannot be smaller: header, an offer and an end.
pub(crate) const MESSAGE_BYTES_MIN: usize = HEADER_BYTES + 2 * ELEMENT_BYTES + OFFER_BYTES;

const ELEMENT_BYTES: usize = 4;
const OFFER_BYTES: usize = 20;
const KIND_SHIFT: u32 = 24;
const KIND_BYTES: u32 = 1;
const KIND_OFFER: u32 = 2;
const KIND_END: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut slot = [0xaa; 100];
        let mut writer = MessageWriter::new(&mut slot);
        assert!(writer.is_empty());
        let offer = Offer {
            address: 0x7f00_1234_5678,
            len_bytes: 16 << 20,
            key: 0xdead_beef,
        };
        writer.bytes(b"head");
        assert!(writer.offer(offer));
        assert!(writer.end());
        let grants = Grants {
            messages: 3,
            immediates: 2,
            releases: 1,
        };
        let len = writer.finish(grants);
        let message = &slot[..len];
        assert_eq!(grants_of(message), Ok(grants));
        let (first, at) = element_at(message, HEADER_BYTES).unwrap().unwrap();
        assert_eq!(first, Element::Bytes(b"head"));
        let (second, at) = element_at(message, at).unwrap().unwrap();
        assert_eq!(second, Element::Offer(offer));
        let (third, at) = element_at(message, at).unwrap().unwrap();
        assert_eq!((third, at), (Element::End, len));
        assert_eq!(element_at(message, at), Ok(None));
    }

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let mut slot = [0; 64];
        let mut writer = MessageWriter::new(&mut slot);
        writer.bytes(&[7]);
        writer.offer(Offer {
            address: 1,
            len_bytes: 2,
            key: 3,
        });
        let len = writer.finish(Grants {
            messages: 0x102,
            immediates: 3,
            releases: 4,
        });
        let expected = [
            2, 1, 3, 0, 4, 0, 0, 0, 1, 0, 0, 1, 7, 20, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0,
            0, 0, 0, 0, 3, 0, 0, 0,
        ];
        assert_eq!(slot[..len], expected);
    }

    #[test]
    fn grants_fit_into_immediate_data() {
        for (messages, immediates, releases) in [(0, 0, 0), (1023, 0, 4095), (5, 1023, 77)] {
            let grants = Grants {
                messages,
                immediates,
                releases,
            };
            assert_eq!(Grants::from_bits(grants.to_bits()), grants);
        }
    }

    #[test]
    fn a_full_message_takes_no_more() {
        let mut slot = [0; MESSAGE_BYTES_MIN];
        let mut writer = MessageWriter::new(&mut slot);
        writer.bytes(&[1; 20]);
        assert_eq!(writer.room_bytes(), 0);
        let offer = Offer {
            address: 1,
            len_bytes: 1,
            key: 1,
        };
        assert!(!writer.offer(offer));
        assert!(writer.end());
        assert!(!writer.end());
        assert_eq!(writer.finish(Grants::default()), MESSAGE_BYTES_MIN);
    }

    #[test]
    fn no_bytes_of_a_peer_panic() {
        let seed = std::env::var("GRPCXX_SEED").map_or(1, |seed| seed.parse().unwrap());
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..100_000 {
            let mut message = vec![0; random.usize(..80)];
            random.fill(&mut message);
            if message.len() > 12 && random.bool() {
                message[6..8].fill(0);
                message[9..11].fill(0);
                message[11] = random.u8(..5);
            }
            let _ = grants_of(&message);
            let mut at = HEADER_BYTES;
            while let Ok(Some((_, next))) = element_at(&message, at) {
                assert!(next > at && next <= message.len(), "GRPCXX_SEED={seed}");
                at = next;
            }
        }
    }

    #[test]
    fn bad_offers_are_refused() {
        let mut body = [0xff; OFFER_BYTES];
        assert!(offer_of(&body).is_err());
        body[8..16].fill(0);
        assert!(offer_of(&body).is_err());
        assert!(offer_of(&body[1..]).is_err());
    }
}
