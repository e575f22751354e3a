//! What the two sides tell each other before there is a link: 48 bytes.

use ibverbs::{Gid, QueuePairEndpoint};
use ibverbs_sys::ibv_gid;

pub(crate) struct SetUp {
    queue: u32,
    pub(crate) sequence: u32,
    lid: u16,
    pub(crate) mtu: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) messages: u16,
}

impl SetUp {
    pub(crate) fn from_line(line: &str) -> Result<Self, &'static str> {
        let digits = line.trim().as_bytes();
        let mut bytes = [0; SET_UP_BYTES];
        if digits.len() != 2 * SET_UP_BYTES {
            return Err("set-up data has 96 hexadecimal digits");
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let text = std::str::from_utf8(pair).map_err(|_| "set-up data is ASCII")?;
            *byte = u8::from_str_radix(text, 16).map_err(|_| "set-up data is hexadecimal")?;
        }
        let two = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if bytes[..4] != MAGIC || four(36) as usize != MESSAGE_BYTES {
            return Err("set-up data begins with GXR1, and messages have 8 KiB");
        }
        Ok(Self {
            queue: four(4),
            sequence: four(8),
            lid: two(12),
            mtu: bytes[14],
            gid: std::array::from_fn(|i| bytes[16 + i]),
            messages: two(32),
        })
    }

    /// Set-up data of a queue of this program.
    pub(crate) fn of(endpoint: QueuePairEndpoint, mtu: u8) -> Self {
        Self {
            queue: endpoint.num,
            sequence: 0,
            lid: endpoint.lid,
            mtu,
            gid: endpoint.gid.map(bytes_of).unwrap_or_default(),
            messages: MESSAGES,
        }
    }

    pub(crate) fn to_line(&self) -> String {
        let mut bytes = [0; SET_UP_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.queue.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.lid.to_le_bytes());
        bytes[14] = self.mtu;
        bytes[15] = READS;
        bytes[16..32].copy_from_slice(&self.gid);
        bytes[32..34].copy_from_slice(&self.messages.to_le_bytes());
        bytes[34..36].copy_from_slice(&IMMEDIATES.to_le_bytes());
        bytes[36..40].copy_from_slice(&(MESSAGE_BYTES as u32).to_le_bytes());
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn endpoint(&self) -> QueuePairEndpoint {
        QueuePairEndpoint {
            num: self.queue,
            lid: self.lid,
            gid: Some(Gid::from(ibv_gid { raw: self.gid })),
        }
    }
}

pub(crate) fn bytes_of(gid: Gid) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&gid.subnet_prefix().to_be_bytes());
    bytes[8..].copy_from_slice(&gid.interface_id().to_be_bytes());
    bytes
}

const MAGIC: [u8; 4] = *b"GXR1";
const SET_UP_BYTES: usize = 48;
pub(crate) const MESSAGE_BYTES: usize = 8 << 10;
pub(crate) const MESSAGES: u16 = 16;
pub(crate) const IMMEDIATES: u16 = 8;
pub(crate) const READS: u8 = 16;
