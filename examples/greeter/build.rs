//! Makes the services.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    grpcxx_build::compile_protos("proto/helloworld.proto")?;
    grpcxx_build::compile_protos("proto/probe.proto")?;
    grpcxx_build::compile_protos("proto/model.proto")?;
    grpcxx_build::configure()
        .on_shards_only()
        .compile_protos(&["proto/corner.proto"], &["proto"])?;
    grpcxx_build::configure()
        .bytes_as_vec()
        .compile_protos(&["proto/route_guide.proto"], &["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    make_for_tonic(&out.join("tonic"))?;
    let moved = moved("tests/route_guide/tonic.rs", "../../docs/services.md")?;
    fs::write(out.join("moved.rs"), moved)?;
    Ok(())
}

/// The route guide as tonic makes it, for the tests.
fn make_for_tonic(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let files = protox::compile(["route_guide.proto"], ["proto"])?;
    fs::create_dir_all(folder)?;
    tonic_prost_build::configure()
        .out_dir(folder)
        .compile_fds(files)?;
    Ok(())
}

/// A service for tonic, changed as the page shows it under `// src/main.rs`: what a reader of the
/// page does by hand.
fn moved(source: &str, page: &str) -> io::Result<String> {
    println!("cargo:rerun-if-changed={source}");
    println!("cargo:rerun-if-changed={page}");
    let (mut code, text) = (fs::read_to_string(source)?, fs::read_to_string(page)?);
    let lines = text.lines().skip_while(|line| *line != " // src/main.rs");
    let lines: Vec<&str> = lines.skip(1).take_while(|line| *line != "```").collect();
    for hunk in lines.split(|line| line.is_empty()) {
        let side = |other: char| -> String {
            let kept = hunk.iter().filter(|line| !line.starts_with(other));
            kept.map(|line| format!("{}\n", &line[1..])).collect()
        };
        let (before, after) = (side('+'), side('-'));
        if code.matches(&before).count() != 1 {
            let text = format!("{page} changes this, which {source} has not once:\n{before}");
            return Err(io::Error::other(text));
        }
        code = code.replace(&before, &after);
    }
    match code.contains("tonic::") {
        true => Err(io::Error::other(format!(
            "{page} leaves some of tonic in {source}"
        ))),
        false => Ok(code),
    }
}
