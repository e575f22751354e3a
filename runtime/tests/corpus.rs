//! The fuzz targets without a fuzzer: their corpus, and input like that which they read.

use std::path::Path;

use proptest::prelude::*;

use crate::fuzz::{cluster_spec, endpoint_map, tensor_message};

fn run(target: &str, function: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target);
    let inputs = std::fs::read_dir(&folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let result = std::panic::catch_unwind(|| function(&std::fs::read(&path).unwrap()));
        assert!(result.is_ok(), "{} breaks a promise", path.display());
    });
    assert!(inputs.count() > 0, "{} is empty", folder.display());
}

#[test]
fn the_corpus_of_clusters_holds() {
    run("cluster_spec", cluster_spec);
}

#[test]
fn the_corpus_of_endpoint_maps_holds() {
    run("endpoint_map", endpoint_map);
}

#[test]
fn the_corpus_of_tensors_in_messages_holds() {
    run("tensor_message", tensor_message);
}

proptest! {
    #[test]
    fn texts_like_clusters_panic_nowhere(text in "[pw|:;,\\[\\]{}\"0-9 a.]{0,60}") {
        cluster_spec(text.as_bytes());
    }

    #[test]
    fn texts_like_maps_panic_nowhere(
        cluster in "(ps\\|a:1(;b:2){0,2})?",
        map in "([ab]:[12]=[ab]?:[0-9]{0,6}\r?\n|#.*\n|\\PC{0,8}\n){0,6}",
    ) {
        endpoint_map(format!("{cluster}\0{map}").as_bytes());
    }

    #[test]
    fn any_bytes_panic_nowhere(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        cluster_spec(&bytes);
        endpoint_map(&bytes);
        tensor_message(&bytes);
    }
}
