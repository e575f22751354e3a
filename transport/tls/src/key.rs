//! The keys of one direction: they seal or open records, each with its number.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce};
use ring::aead::{Algorithm, UnboundKey};
use rustls::ConnectionTrafficSecrets;

use crate::record::{self, Content, Fault, HEADER_BYTES, TAG_BYTES};

/// The key of one direction, and the number of its next record.
pub(crate) struct RecordKey {
    key: LessSafeKey,
    /// What the number of a record is combined with into its nonce.
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl RecordKey {
    /// The key that a handshake or an update of keys has made.
    pub(crate) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Fault> {
        let (algorithm, key, iv): (&'static Algorithm, _, _) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(no_keys("the cipher is none of TLS 1.3 that we offered")),
        };
        // Keys are as long as the longest that there is.
        let key = key.as_ref().get(..algorithm.key_len());
        let key = key.and_then(|key| UnboundKey::new(algorithm, key).ok());
        let key = key.ok_or_else(|| no_keys("the key has the wrong length"))?;
        let iv = iv.as_ref().try_into();
        Ok(Self {
            key: LessSafeKey::new(key),
            iv: iv.map_err(|_| no_keys("the nonce has the wrong length"))?,
            sequence,
        })
    }

    /// Records that the key has sealed or opened, and those before it of the handshake.
    pub(crate) fn records(&self) -> u64 {
        self.sequence
    }

    /// Seals what `out` has from `start` on: room for the header, and the text behind it.
    pub(crate) fn seal(&mut self, out: &mut Vec<u8>, start: usize, content: Content) {
        out.push(content.code());
        let header = record::header(out.len() - start - HEADER_BYTES + TAG_BYTES);
        out[start..][..HEADER_BYTES].copy_from_slice(&header);
        let nonce = self.next_nonce();
        let text = &mut out[start + HEADER_BYTES..];
        let tag = (self.key).seal_in_place_separate_tag(nonce, Aad::from(header), text);
        let tag = tag.expect("the ciphers seal any text of a record's length");
        out.extend_from_slice(tag.as_ref());
    }

    /// Opens a whole record where it lies.
    pub(crate) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(Content, &'a [u8]), Fault> {
        let sequence = self.sequence;
        let nonce = self.next_nonce();
        let forged = Fault::Forged { sequence };
        let Some((header, sealed)) = record.split_first_chunk_mut::<HEADER_BYTES>() else {
            return Err(forged);
        };
        let opened = self.key.open_in_place(nonce, Aad::from(*header), sealed);
        record::content(opened.map_err(|_| forged)?)
    }

    fn next_nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

fn no_keys(message: &str) -> Fault {
    Fault::NoKeys {
        message: message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::crypto::cipher::{AeadKey, Iv};

    fn keys() -> [ConnectionTrafficSecrets; 3] {
        let key = || AeadKey::from([7; 32]);
        let iv = || Iv::from([9; NONCE_LEN]);
        [
            ConnectionTrafficSecrets::Aes128Gcm {
                key: key(),
                iv: iv(),
            },
            ConnectionTrafficSecrets::Aes256Gcm {
                key: key(),
                iv: iv(),
            },
            ConnectionTrafficSecrets::Chacha20Poly1305 {
                key: key(),
                iv: iv(),
            },
        ]
    }

    fn pair(secrets: fn() -> [ConnectionTrafficSecrets; 3], of: usize) -> [RecordKey; 2] {
        [0, 1].map(|_| {
            let secrets = secrets().into_iter().nth(of).unwrap();
            RecordKey::new((0, secrets)).unwrap()
        })
    }

    fn sealed(key: &mut RecordKey, text: &[u8]) -> Vec<u8> {
        let mut record = vec![0; HEADER_BYTES];
        record.extend_from_slice(text);
        key.seal(&mut record, 0, Content::Data);
        record
    }

    #[test]
    fn what_is_sealed_opens_in_its_order() {
        for of in 0..3 {
            let [mut sealer, mut opener] = pair(keys, of);
            for text in [&b""[..], b"a", &[5; 16_384]] {
                let mut record = sealed(&mut sealer, text);
                assert_eq!(record.len(), text.len() + record::OVERHEAD_BYTES);
                assert_eq!(opener.open(&mut record), Ok((Content::Data, text)));
            }
            assert_eq!((sealer.records(), opener.records()), (3, 3));
        }
    }

    #[test]
    fn records_that_are_repeated_or_left_out_do_not_open() {
        let [mut sealer, mut opener] = pair(keys, 0);
        let first = sealed(&mut sealer, b"first");
        let second = sealed(&mut sealer, b"second");
        assert!(opener.open(&mut first.clone()).is_ok());
        let repeated = opener.open(&mut first.clone()).map(drop);
        assert_eq!(repeated, Err(Fault::Forged { sequence: 1 }));
        let [_, mut opener] = pair(keys, 0);
        let early = opener.open(&mut second.clone()).map(drop);
        assert_eq!(early, Err(Fault::Forged { sequence: 0 }));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_record_with_a_changed_bit_does_not_open(
            text in proptest::collection::vec(any::<u8>(), 0..300),
            place in any::<proptest::sample::Index>(),
            bit in 0..8u8,
        ) {
            let [mut sealer, mut opener] = pair(keys, 0);
            let mut record = sealed(&mut sealer, &text);
            let place = place.index(record.len());
            record[place] ^= 1 << bit;
            let opened = opener.open(&mut record).map(drop);
            prop_assert_eq!(opened, Err(Fault::Forged { sequence: 0 }));
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let [_, mut opener] = pair(keys, 2);
            prop_assert!(opener.open(&mut bytes).is_err());
        }
    }
}
