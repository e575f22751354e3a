//! The checked-in messages are what the `.proto` files say.

use std::path::Path;

/// Set to rewrite `src/proto/tensorflow.rs` instead of comparing it.
const REGENERATE: &str = "GRPCXX_REGENERATE_PROTO";

const FILES: [&str; 4] = [
    "tensorflow/types.proto",
    "tensorflow/worker.proto",
    "tensorflow/master.proto",
    "tensorflow/services.proto",
];

#[test]
fn generated_messages_match_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(FILES, [root.join("proto")]).expect("the files compile");
    let out = tempfile::tempdir().expect("a temporary directory");
    prost_build::Config::new()
        .bytes(["."])
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("the messages are generated");
    let generated = std::fs::read_to_string(out.path().join("tensorflow.rs")).expect("one package");

    let checked_in = root.join("src/proto/tensorflow.rs");
    if std::env::var_os(REGENERATE).is_some() {
        std::fs::write(&checked_in, generated).expect("the sources are writable");
        return;
    }
    let current = std::fs::read_to_string(&checked_in).expect("the messages are checked in");
    assert!(
        current == generated,
        "{} differs from proto/: run `{REGENERATE}=1 cargo test -p grpcxx-rpc --test main proto`",
        checked_in.display()
    );
}
