//! The checked-in services and descriptors are what the `.proto` files say.

use std::path::Path;

use prost::Message;

/// Set to rewrite the files under `src/generated/` instead of comparing them.
const REGENERATE: &str = "GRPCXX_REGENERATE_PROTO";

#[test]
fn the_generated_inspector_matches_its_proto_file() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors =
        protox::compile(["grpcxx/inspect.proto"], [root.join("proto")]).expect("the file compiles");
    let descriptor_bytes = descriptors.encode_to_vec();
    let out = tempfile::tempdir().expect("a temporary directory");
    tonic_prost_build::configure()
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("the service is generated");
    let service = std::fs::read(out.path().join("grpcxx.v1.rs")).expect("there is one package");
    let generated = root.join("src/generated");
    compare_or_write(&generated.join("inspect.rs"), &service);
    compare_or_write(&generated.join("inspect.descriptors"), &descriptor_bytes);
}

#[test]
fn generated_services_match_the_proto_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(["tensorflow/services.proto"], [root.join("../rpc/proto")])
        .expect("the files compile");
    let descriptor_bytes = descriptors.encode_to_vec();

    let out = tempfile::tempdir().expect("a temporary directory");
    tonic_prost_build::configure()
        .extern_path(".tensorflow", "::grpcxx_rpc::proto")
        .generate_default_stubs(true)
        .out_dir(out.path())
        .compile_fds(descriptors)
        .expect("the services are generated");
    let services =
        std::fs::read(out.path().join("tensorflow.rs")).expect("all services are in one package");

    let generated = root.join("src/generated");
    compare_or_write(&generated.join("services.rs"), &services);
    compare_or_write(&generated.join("services.descriptors"), &descriptor_bytes);
}

fn compare_or_write(checked_in: &Path, wanted: &[u8]) {
    if std::env::var_os(REGENERATE).is_some() {
        std::fs::write(checked_in, wanted).expect("the sources are writable");
        return;
    }
    let current = std::fs::read(checked_in).expect("generated files are checked in");
    assert!(
        current == wanted,
        "{} differs from its .proto file: run `{REGENERATE}=1 cargo test -p grpcxx-control --test main generated`",
        checked_in.display()
    );
}
