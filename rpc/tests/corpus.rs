//! The fuzz targets without a fuzzer: their corpus, random bytes, and damaged golden frames.

use std::path::PathBuf;

use proptest::prelude::*;

use crate::support;
use crate::support::fuzz::TARGETS;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries
        .map(|entry| {
            let path = entry.expect("the folder can be listed").path();
            let bytes = std::fs::read(&path).expect("the file can be read");
            (path, bytes)
        })
        .collect()
}

fn golden_frames() -> Vec<(bool, Vec<u8>)> {
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("data/star-frames.json")).unwrap();
    let decode = |hex: &str| {
        (0..hex.len() / 2)
            .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
            .collect()
    };
    let vectors = vectors.as_array().unwrap().iter();
    vectors
        .map(|vector| {
            let is_request = vector["direction"] == "request";
            (is_request, decode(vector["hex"].as_str().unwrap()))
        })
        .collect()
}

#[test]
fn the_corpus_of_every_target_runs() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(!inputs.is_empty(), "fuzz/corpus/{name} is empty");
        for (path, bytes) in inputs {
            let result = std::panic::catch_unwind(|| target(&bytes));
            assert!(result.is_ok(), "{} breaks a promise", path.display());
        }
    }
}

/// Sequences of golden frames, with some bytes changed, some left out and the tags of calls put in.
fn damaged_frames(requests: bool) -> impl Strategy<Value = Vec<u8>> {
    let frames: Vec<Vec<u8>> = golden_frames()
        .into_iter()
        .filter(|&(is_request, _)| is_request == requests)
        .map(|(_, bytes)| bytes)
        .collect();
    let frame = (
        proptest::sample::select(frames),
        0u32..7,
        proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..3),
        proptest::option::weighted(0.1, any::<proptest::sample::Index>()),
    );
    let frame = frame.prop_map(|(mut bytes, slot, changes, cut)| {
        bytes[8..16].copy_from_slice(&(u64::from(slot) | 1 << 32).to_le_bytes());
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes
    });
    (any::<u8>(), proptest::collection::vec(frame, 1..8)).prop_map(|(pieces, frames)| {
        let mut bytes = vec![pieces];
        bytes.extend(frames.concat());
        bytes
    })
}

proptest! {
    #[test]
    fn random_bytes_panic_nowhere(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }

    #[test]
    fn damaged_responses_end_each_call_once(bytes in damaged_frames(false)) {
        support::fuzz::client_responses(&bytes);
    }

    #[test]
    fn damaged_requests_leave_nothing_behind(bytes in damaged_frames(true)) {
        support::fuzz::server_requests(&bytes);
    }

    #[test]
    fn any_order_of_operations_keeps_its_promises(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        support::operations::operations(&bytes);
    }

    #[test]
    fn any_use_of_streams_keeps_its_promises(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        support::streams::streams(&bytes);
    }
}
