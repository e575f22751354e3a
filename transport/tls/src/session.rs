//! Sealing and opening after the handshake: keys, their replacement, alerts.

use grpcxx_transport::PeerName;

use crate::handshake::{Agreement, HandshakeError, KeySource};
use crate::key::RecordKey;
use crate::outbound::Outbound;
use crate::record::{
    CLOSE_NOTIFY, Content, FULL_RECORD_BYTES, Fault, HEADER_BYTES, IDLE_RECORDS_MAX,
    TEXT_BYTES_MAX, USER_CANCELED,
};

/// One end of a connection whose handshake is over.
pub(crate) struct Session {
    sealing: RecordKey,
    opening: RecordKey,
    source: KeySource,
    /// Whether the peer has proven that it belongs to the cluster.
    pub(crate) is_proven: bool,
    /// The task that the peer has proven to be.
    pub(crate) name: Option<PeerName>,
    /// The peer wants us to replace our key.
    owes_key: bool,
    /// Records in a row that brought no data.
    idle_records: u32,
    records_per_key: u64,
    /// How often a key was replaced, in both directions.
    pub(crate) replaced_keys: u64,
}

/// What a record had.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened<'a> {
    Data(&'a [u8]),
    /// Something that is between the ends of TLS.
    Nothing,
    /// The peer will send nothing more.
    Closed,
}

impl Session {
    /// What the ends of a handshake have agreed on, and what followed already.
    pub(crate) fn new(
        agreement: Agreement,
        records_per_key: u64,
    ) -> Result<(Self, Vec<u8>), SessionError> {
        let session = Self {
            sealing: RecordKey::new(agreement.secrets.tx)?,
            opening: RecordKey::new(agreement.secrets.rx)?,
            source: agreement.source,
            is_proven: agreement.is_proven,
            name: agreement.name,
            owes_key: false,
            idle_records: 0,
            records_per_key,
            replaced_keys: 0,
        };
        Ok((session, agreement.rest))
    }

    /// Opens a whole record where it lies.
    pub(crate) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<Opened<'a>, Fault> {
        let (content, text) = self.opening.open(record)?;
        if content == Content::Data && !text.is_empty() {
            self.idle_records = 0;
            return Ok(Opened::Data(text));
        }
        self.idle_records += 1;
        if self.idle_records > IDLE_RECORDS_MAX {
            return Err(Fault::Idle);
        }
        match content {
            Content::Data => Ok(Opened::Nothing),
            Content::Handshake => self.take_messages(text).map(|()| Opened::Nothing),
            Content::Alert => match *text {
                [_, CLOSE_NOTIFY] => Ok(Opened::Closed),
                [_, USER_CANCELED] => Ok(Opened::Nothing),
                [_, code] => Err(Fault::Alert { code }),
                _ => Err(Fault::AlertLength { bytes: text.len() }),
            },
        }
    }

    /// Takes messages of a handshake that is over: tickets, which nobody uses, and new keys.
    fn take_messages(&mut self, mut text: &[u8]) -> Result<(), Fault> {
        if text.is_empty() {
            return Err(Fault::Message { kind: 0 });
        }
        while let [kind, rest @ ..] = text {
            let cut = Fault::Message { kind: *kind };
            let Some(([high, middle, low], rest)) = rest.split_first_chunk() else {
                return Err(cut);
            };
            let bytes = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            let Some((message, rest)) = rest.split_at_checked(bytes) else {
                return Err(cut);
            };
            match (*kind, message) {
                (NEW_SESSION_TICKET, _) => {}
                // Its key opens what follows, so it is the last of its record.
                (KEY_UPDATE, [wanted @ (0 | 1)]) if rest.is_empty() => {
                    let key = self.source.next_to_open().map_err(no_keys)?;
                    self.opening = RecordKey::new(key)?;
                    self.owes_key |= *wanted == 1;
                    self.replaced_keys += 1;
                }
                _ => return Err(cut),
            }
            text = rest;
        }
        Ok(())
    }

    /// Whether something is to be sealed that the peer waits for.
    pub(crate) fn owes_key(&self) -> bool {
        self.owes_key
    }

    /// Seals what `outbound` has, at most so many records. Returns the number of frames of which
    /// nothing is left.
    pub(crate) fn seal(
        &mut self,
        outbound: &mut Outbound,
        records_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<u64, Fault> {
        let mut frames = 0;
        for _ in 0..records_max {
            if self.owes_key || self.sealing.records() >= self.records_per_key {
                self.replace_key(out)?;
            }
            let start = out.len();
            out.extend_from_slice(&[0; HEADER_BYTES]);
            frames += outbound.copy(TEXT_BYTES_MAX, out);
            if out.len() == start + HEADER_BYTES {
                out.truncate(start);
                break;
            }
            self.sealing.seal(out, start, Content::Data);
        }
        Ok(frames)
    }

    /// Tells the peer that another key seals what follows.
    fn replace_key(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        self.seal_text(&[KEY_UPDATE, 0, 0, 1, 0], Content::Handshake, out);
        let key = self.source.next_to_seal().map_err(no_keys)?;
        self.sealing = RecordKey::new(key)?;
        self.owes_key = false;
        self.replaced_keys += 1;
        Ok(())
    }

    /// Seals an alert.
    pub(crate) fn seal_alert(&mut self, code: u8, out: &mut Vec<u8>) {
        let level = if code == CLOSE_NOTIFY { WARNING } else { FATAL };
        self.seal_text(&[level, code], Content::Alert, out);
    }

    fn seal_text(&mut self, text: &[u8], content: Content, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        out.extend_from_slice(text);
        self.sealing.seal(out, start, content);
    }
}

/// Why a handshake that is over leads to nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum SessionError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Keys(#[from] Fault),
}

impl SessionError {
    /// Whether one end does not accept the certificate of the other, or misses one.
    pub(crate) fn is_of_certificates(&self) -> bool {
        match self {
            Self::Handshake(error) => error.is_of_certificates(),
            Self::Keys(fault) => fault.is_of_certificates(),
        }
    }
}

fn no_keys(error: rustls::Error) -> Fault {
    Fault::NoKeys {
        message: error.to_string(),
    }
}

/// Bytes that so many records take at most, with a key that is replaced before each.
pub(crate) const fn sealed_bytes_max(records: usize) -> usize {
    records * (FULL_RECORD_BYTES + 64)
}

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const WARNING: u8 = 1;
const FATAL: u8 = 2;

#[cfg(test)]
mod tests;
