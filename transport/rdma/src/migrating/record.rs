//! The record that cuts a stream, and the offer that allows one.

use crate::blob::{BLOB_BYTES, Blob};

/// What only the two ends of a connection know, so that no payload is taken for a record.
pub(crate) type Secret = [u8; SECRET_BYTES];

/// What is sent on the base transport where a stream goes over to RDMA, or where it is said that it
/// does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    secret: Secret,
    pub(crate) is_refusal: bool,
    pub(crate) blob: Blob,
}

impl Record {
    /// A record with set-up data, or one that refuses.
    pub(crate) fn new(secret: Secret, blob: Option<Blob>) -> Self {
        Self {
            secret,
            is_refusal: blob.is_none(),
            blob: blob.unwrap_or([0; BLOB_BYTES]),
        }
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..SECRET_BYTES].copy_from_slice(&self.secret);
        bytes[SECRET_BYTES] = u8::from(self.is_refusal);
        bytes[SECRET_BYTES + 1..SECRET_BYTES + 1 + BLOB_BYTES].copy_from_slice(&self.blob);
        bytes
    }

    /// The record that `bytes` begins with.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_BYTES)?;
        let mut blob = [0; BLOB_BYTES];
        blob.copy_from_slice(&bytes[SECRET_BYTES + 1..SECRET_BYTES + 1 + BLOB_BYTES]);
        Some(Self {
            secret: std::array::from_fn(|index| bytes[index]),
            is_refusal: bytes[SECRET_BYTES] != 0,
            blob,
        })
    }
}

/// Appends what lets a peer migrate to RDMA to the offer of another medium, which may be empty.
pub(crate) fn append_offer(offer: &mut Vec<u8>, secret: &Secret) {
    offer.extend_from_slice(secret);
    offer.extend_from_slice(&MARK);
}

/// Divides an offer: that of another medium, and that of RDMA. Either may be empty.
pub(crate) fn split_offer(offer: &[u8]) -> (&[u8], &[u8]) {
    let lower_bytes = offer.len().saturating_sub(OFFER_BYTES);
    match offer.split_at(lower_bytes) {
        (lower, own) if secret_of(own).is_some() => (lower, own),
        _ => (offer, &[]),
    }
}

/// The secret in an offer of RDMA.
pub(crate) fn secret_of(offer: &[u8]) -> Option<Secret> {
    let secret = offer.strip_suffix(&MARK)?;
    secret.try_into().ok()
}

/// Whether the offer of another medium, shared memory, is one of this host: then that is faster.
pub(crate) fn is_of_this_host(offer: &[u8]) -> bool {
    let Some(host) = offer.get(..16) else {
        return false;
    };
    let Ok(text) = std::fs::read_to_string("/proc/sys/kernel/random/boot_id") else {
        return false;
    };
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let bytes = digits.chunks_exact(2).map(|pair| {
        let text = std::str::from_utf8(pair).unwrap_or_default();
        u8::from_str_radix(text, 16).unwrap_or(0)
    });
    bytes.eq(host.iter().copied())
}

/// Where the secret lies in `bytes`.
pub(crate) fn position(bytes: &[u8], secret: &Secret) -> Option<usize> {
    memchr::memmem::find(bytes, secret)
}

pub(crate) const SECRET_BYTES: usize = 16;

/// As long as the longest head that may be asked for, so that a record is always shown.
pub(crate) const RECORD_BYTES: usize = grpcxx_transport::HEAD_BYTES_MAX;

const MARK: [u8; 4] = *b"GXR1";

const OFFER_BYTES: usize = SECRET_BYTES + MARK.len();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for blob in [None, Some([7; BLOB_BYTES])] {
            let record = Record::new([3; SECRET_BYTES], blob);
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        assert_eq!(Record::decode(&[0; RECORD_BYTES - 1]), None);
    }

    #[test]
    fn an_offer_is_taken_apart() {
        let secret = [9; SECRET_BYTES];
        for nearer in [&b""[..], b"shared memory"] {
            let mut offer = nearer.to_vec();
            assert_eq!(split_offer(&offer), (nearer, &b""[..]));
            append_offer(&mut offer, &secret);
            let (lower, own) = split_offer(&offer);
            assert_eq!((lower, secret_of(own)), (nearer, Some(secret)));
        }
        assert_eq!(split_offer(b"GXR1"), (&b"GXR1"[..], &b""[..]));
    }

    #[test]
    fn the_secret_is_found_wherever_it_is() {
        let secret: Secret = std::array::from_fn(|index| index as u8 % 3);
        for at in 0..40 {
            let mut bytes = vec![0; at];
            bytes.extend_from_slice(&secret);
            bytes.extend_from_slice(&[0; 5]);
            let found = position(&bytes, &secret).expect("it is there");
            assert!(bytes[found..].starts_with(&secret) && found <= at);
        }
        assert_eq!(position(&[1; 100], &secret), None);
        assert_eq!(position(&[], &secret), None);
    }
}
