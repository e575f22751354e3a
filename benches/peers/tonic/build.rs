//! Makes the services that grpcxx's own programs have.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for (folder, file) in [
        ("../../proto", "bench.proto"),
        ("../../../examples/keyvalue/proto", "keyvalue.proto"),
    ] {
        println!("cargo::rerun-if-changed={folder}/{file}");
        let files = protox::compile([file], [folder])?;
        tonic_prost_build::configure()
            .bytes(".")
            .compile_fds(files)?;
    }
    Ok(())
}
