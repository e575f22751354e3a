//! What a fuzzer does with bytes that a peer sends before and on a link. Only tests and fuzzers
//! have this module.

use crate::blob::Introduction;
use crate::credits::{CreditLimits, Credits};
use crate::migrating::record::{RECORD_BYTES, Record, secret_of, split_offer};
use crate::wire::{
    Element, Grants, HEADER_BYTES, MESSAGE_BYTES_MIN, MessageWriter, element_at, grants_of,
};

/// Whatever is a message, set-up data, a record or an offer is the same when it is written again.
/// The first byte chooses one of them.
///
/// # Panics
/// If this is not true.
pub fn rdma_message(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else {
        return;
    };
    match first % 4 {
        0 => message(bytes),
        1 => {
            if let Ok(introduction) = Introduction::decode(bytes) {
                assert_eq!(introduction.encode()[..], *bytes);
            }
        }
        2 => {
            if let Some(record) = Record::decode(bytes) {
                let again = record.encode();
                assert_eq!(Record::decode(&again), Some(record));
                assert_eq!(again.len(), RECORD_BYTES);
            }
        }
        _ => {
            let (lower, own) = split_offer(bytes);
            assert_eq!([lower, own].concat(), bytes);
            assert!(own.is_empty() || secret_of(own).is_some());
        }
    }
}

/// Reads a message to its end, or to where it is wrong.
fn message(bytes: &[u8]) {
    let Ok(grants) = grants_of(bytes) else {
        return;
    };
    grant(grants);
    let mut slot = vec![0; bytes.len().max(MESSAGE_BYTES_MIN)];
    let mut writer = MessageWriter::new(&mut slot);
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        let Ok(Some((element, next))) = element_at(bytes, at) else {
            return;
        };
        assert!(next > at && next <= bytes.len());
        at = next;
        match element {
            Element::Bytes(bytes) => writer.bytes(bytes),
            Element::Offer(offer) => assert!(writer.offer(offer)),
            Element::End => assert!(writer.end()),
        }
    }
    assert_eq!(element_at(bytes, at), Ok(None));
    let len_bytes = writer.finish(grants);
    assert_eq!(slot[..len_bytes], *bytes);
}

/// Grants that are not owed are refused, and those that are do not overflow.
fn grant(grants: Grants) {
    let limits = CreditLimits::default();
    let mut credits = Credits::new(limits, limits, true);
    if credits.receive(grants, limits).is_ok() {
        assert!(grants.messages <= limits.messages && grants.immediates <= limits.immediates);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::rdma_message;

    #[test]
    fn the_corpus_of_the_fuzzer_holds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/rdma_message");
        let inputs = std::fs::read_dir(&folder).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            rdma_message(&std::fs::read(path).unwrap());
        });
        assert!(inputs.count() > 0, "{} is empty", folder.display());
    }
}
