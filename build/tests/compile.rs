//! What a build script gets.

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::{env, fs};

use prost::Message;
use prost_types::FileDescriptorSet;

/// A folder of this process.
fn folder(name: &str) -> PathBuf {
    let name = format!("{name}-{}", process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn protos(names: &[&str]) -> Vec<PathBuf> {
    names
        .iter()
        .map(|name| protos_folder().join(name))
        .collect()
}

fn protos_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protos")
}

#[test]
fn each_call_keeps_its_descriptors() {
    let out = folder("descriptors");
    for names in [
        ["first.proto", "last.proto"],
        ["second.proto", "last.proto"],
    ] {
        let builder = grpcxx_build::configure().out_dir(&out);
        let made = builder.compile_protos(&protos(&names), &[protos_folder()]);
        made.unwrap();
    }
    for package in ["first", "second"] {
        let code = fs::read_to_string(out.join(format!("{package}.rs"))).unwrap();
        let (_, named) = code.split_once("include_bytes!(\"").unwrap();
        let (name, _) = named.split_once('"').unwrap();
        let descriptors = fs::read(out.join(name)).unwrap();
        let files = FileDescriptorSet::decode(&descriptors[..]).unwrap().file;
        assert!(files.iter().any(|file| file.package() == package), "{name}");
    }
}

/// The other tests are what a build script would be, as which this one runs one of them.
#[test]
fn imported_files_run_the_build_script_again() {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "each_call_keeps_its_descriptors", "--nocapture"])
        .env("CARGO", "cargo")
        .env("OUT_DIR", folder("announced"))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let announced = said
        .lines()
        .filter_map(|line| line.split_once("cargo:rerun-if-changed="));
    let mut announced: Vec<_> = announced.map(|(_, path)| PathBuf::from(path)).collect();
    announced.sort();
    announced.dedup();
    let all = ["first.proto", "last.proto", "second.proto", "shared.proto"];
    assert_eq!(announced, protos(&all), "{said}");
}

/// The file is there without any folder, and its message is a type of the runtime.
#[test]
fn tensors_are_imported_from_nowhere() {
    let out = folder("tensors");
    let made = grpcxx_build::configure()
        .out_dir(&out)
        .runtime_path("::there")
        .compile_protos(&protos(&["model.proto"]), &[protos_folder()]);
    made.unwrap();
    let code = fs::read_to_string(out.join("model.rs")).unwrap();
    let without_spaces: String = code.split_whitespace().collect();
    for made in [
        "pubweights:::core::option::Option<::there::TensorMessage>",
        "Tensor(::there::TensorMessage)",
        "::there::UnaryCall<::there::TensorMessage>",
    ] {
        assert!(without_spaces.contains(made), "{made} is not in {code}");
    }
    let (_, named) = code.split_once("include_bytes!(\"").unwrap();
    let (name, _) = named.split_once('"').unwrap();
    let files = FileDescriptorSet::decode(&fs::read(out.join(name)).unwrap()[..]).unwrap();
    assert_eq!(files.file[0].name(), "grpcxx/tensor.proto");
}
