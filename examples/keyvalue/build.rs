//! Makes the service.

fn main() -> std::io::Result<()> {
    grpcxx_build::compile_protos("proto/keyvalue.proto")
}
