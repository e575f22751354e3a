//! Makes the services.

fn main() -> std::io::Result<()> {
    grpcxx_build::compile_protos("proto/helloworld.proto")?;
    grpcxx_build::compile_protos("proto/probe.proto")?;
    grpcxx_build::configure()
        .on_shards_only()
        .compile_protos(&["proto/corner.proto"], &["proto"])
}
