//! The fuzz target without a fuzzer: its corpus, and damaged messages of real handshakes.

use std::path::Path;

use proptest::prelude::*;

use crate::fuzz::{end, tls_handshake};

#[test]
fn the_corpus_of_the_fuzzer_holds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tls_handshake");
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        tls_handshake(&std::fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}

/// A hello of a client, and what a server answers to another.
fn messages() -> [Vec<u8>; 2] {
    let mut hello = Vec::new();
    end(true).step(&mut hello).unwrap();
    let mut server = end(false);
    server.take(&hello).unwrap();
    let mut answer = Vec::new();
    server.step(&mut answer).unwrap();
    [hello, answer]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damaged_messages_end_a_handshake_and_nothing_else(
        of_client in any::<bool>(),
        piece in any::<u8>(),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        kept in any::<proptest::sample::Index>(),
    ) {
        let [hello, answer] = messages();
        let mut bytes = if of_client { hello } else { answer };
        for (place, value) in damage {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes.truncate(kept.index(bytes.len()) + 1);
        let first = piece & !1 | u8::from(!of_client);
        tls_handshake(&[&[first][..], &bytes].concat());
    }

    #[test]
    fn any_bytes_end_a_handshake_and_nothing_else(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        tls_handshake(&bytes);
    }
}
