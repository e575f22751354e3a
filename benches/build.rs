//! Makes the services that typed calls are measured with.

fn main() -> std::io::Result<()> {
    grpcxx_build::compile_protos("proto/bench.proto")?;
    grpcxx_build::compile_protos("proto/small.proto")
}
