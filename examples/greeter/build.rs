//! Makes the services.

fn main() -> std::io::Result<()> {
    grpcxx_build::compile_protos("proto/helloworld.proto")?;
    grpcxx_build::compile_protos("proto/probe.proto")
}
