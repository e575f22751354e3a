use crate::adapter::Endpoint;
use crate::credits::CreditLimits;

/// What one side of a link tells the other before there is a link: where its queue is and what it
/// posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Introduction {
    pub(crate) endpoint: Endpoint,
    pub(crate) credits: CreditLimits,
    pub(crate) slot_bytes: u32,
}

/// Set-up data of one side of a link, to be carried to the other by any means.
pub type Blob = [u8; BLOB_BYTES];

/// Length of a [`Blob`].
pub const BLOB_BYTES: usize = 48;

impl Introduction {
    pub(crate) fn encode(&self) -> Blob {
        let mut blob = [0; BLOB_BYTES];
        let Endpoint {
            queue,
            sequence,
            lid,
            mtu,
            reads,
            gid,
        } = self.endpoint;
        blob[..4].copy_from_slice(&MAGIC);
        blob[4..8].copy_from_slice(&queue.to_le_bytes());
        blob[8..12].copy_from_slice(&sequence.to_le_bytes());
        blob[12..14].copy_from_slice(&lid.to_le_bytes());
        blob[14] = mtu;
        blob[15] = reads;
        blob[16..32].copy_from_slice(&gid);
        blob[32..34].copy_from_slice(&self.credits.messages.to_le_bytes());
        blob[34..36].copy_from_slice(&self.credits.immediates.to_le_bytes());
        blob[36..40].copy_from_slice(&self.slot_bytes.to_le_bytes());
        blob
    }

    pub(crate) fn decode(blob: &[u8]) -> Result<Self, BadBlob> {
        let blob: &Blob = blob.try_into().map_err(|_| BadBlob("length"))?;
        let two = |at: usize| u16::from_le_bytes([blob[at], blob[at + 1]]);
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|index| blob[at + index]));
        if blob[..4] != MAGIC {
            return Err(BadBlob("version"));
        }
        let introduction = Self {
            endpoint: Endpoint {
                queue: four(4),
                sequence: four(8),
                lid: two(12),
                mtu: blob[14],
                reads: blob[15],
                gid: std::array::from_fn(|index| blob[16 + index]),
            },
            credits: CreditLimits {
                messages: two(32),
                immediates: two(34),
            },
            slot_bytes: four(36),
        };
        introduction.check()?;
        if blob[40..] != [0; BLOB_BYTES - 40] {
            return Err(BadBlob("reserved bytes"));
        }
        Ok(introduction)
    }

    fn check(&self) -> Result<(), BadBlob> {
        let Endpoint {
            queue,
            sequence,
            mtu,
            reads,
            ..
        } = self.endpoint;
        if queue >= 1 << 24 || sequence >= 1 << 24 {
            return Err(BadBlob("queue or sequence number"));
        }
        if !(1..=5).contains(&mtu) || reads == 0 {
            return Err(BadBlob("packet size or number of reads"));
        }
        if !self.credits.are_valid() {
            return Err(BadBlob("number of credits"));
        }
        if !(SLOT_BYTES_MIN..=SLOT_BYTES_MAX).contains(&(self.slot_bytes as usize)) {
            return Err(BadBlob("length of a message"));
        }
        Ok(())
    }
}

/// Set-up data that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's set-up data of an RDMA link has a {0} that is not allowed")]
pub(crate) struct BadBlob(&'static str);

/// Bounds of a message, also of what a peer may announce.
pub(crate) const SLOT_BYTES_MIN: usize = 256;
pub(crate) const SLOT_BYTES_MAX: usize = 1 << 20;

/// Name and version.
const MAGIC: [u8; 4] = *b"GXR1";

#[cfg(test)]
mod tests {
    use super::*;

    fn introduction() -> Introduction {
        Introduction {
            endpoint: Endpoint {
                queue: 0x12_3456,
                sequence: 0xab_cdef,
                lid: 7,
                mtu: 5,
                reads: 16,
                gid: std::array::from_fn(|index| index as u8),
            },
            credits: CreditLimits::default(),
            slot_bytes: 8192,
        }
    }

    #[test]
    fn a_blob_is_read_as_it_was_written() {
        let blob = introduction().encode();
        assert_eq!(Introduction::decode(&blob), Ok(introduction()));
        assert_eq!(&blob[..8], b"GXR1\x56\x34\x12\x00");
    }

    #[test]
    fn bad_blobs_are_refused_with_the_reason() {
        let refused = |change: fn(&mut Blob), reason: &str| {
            let mut blob = introduction().encode();
            change(&mut blob);
            let error = Introduction::decode(&blob).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        };
        refused(|blob| blob[3] = b'2', "version");
        refused(|blob| blob[7] = 1, "queue");
        refused(|blob| blob[14] = 6, "packet size");
        refused(|blob| blob[15] = 0, "reads");
        refused(|blob| blob[32..34].fill(0), "credits");
        refused(|blob| blob[34..36].fill(0xff), "credits");
        refused(|blob| blob[36..40].fill(0xff), "message");
        refused(|blob| blob[47] = 1, "reserved");
        assert!(Introduction::decode(&introduction().encode()[1..]).is_err());
    }
}
