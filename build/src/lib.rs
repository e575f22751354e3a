//! Makes services of grpcxx out of .proto files, in a build script and without `protoc`.
//!
//! ```no_run
//! // build.rs
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     grpcxx_build::compile_protos("proto/helloworld.proto")?;
//!     Ok(())
//! }
//! ```
//!
//! For each service there is a trait to implement (`Greeter`), what an engine is given
//! (`GreeterServer`), and a client (`GreeterClient`), the first two also in the module
//! `greeter_server` and the third in `greeter_client`, where tonic has them. `docs/services.md`
//! shows all three.

#![forbid(unsafe_code)]

mod generate;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use prost::Message;
use prost_build::Config;
use prost_types::FileDescriptorSet;
use protox::Compiler;
use protox::file::{
    ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver,
};

use crate::generate::Generator;

/// Compiles one .proto file; what it imports is found beside it.
///
/// # Errors
/// The text of the failure names the file and the place in it.
pub fn compile_protos(proto: impl AsRef<Path>) -> io::Result<()> {
    let proto = proto.as_ref();
    let folder = proto.parent().unwrap_or(Path::new("."));
    configure().compile_protos(&[proto], &[folder])
}

/// How services are made, to be changed and carried out.
pub fn configure() -> Builder {
    let mut config = Config::new();
    config.bytes(["."]);
    Builder {
        config,
        runtime_path: "::grpcxx::service".to_owned(),
        out_dir: None,
        are_sent: true,
    }
}

/// How services are made.
#[derive(Debug)]
pub struct Builder {
    config: Config,
    runtime_path: String,
    out_dir: Option<PathBuf>,
    are_sent: bool,
}

impl Builder {
    /// Writes into this folder in place of that of the build script.
    #[must_use]
    pub fn out_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(folder.into());
        self
    }

    /// Where the generated code finds the module `service`, for crates that do not depend on the
    /// crate `grpcxx`.
    #[must_use]
    pub fn runtime_path(mut self, path: impl Into<String>) -> Self {
        self.runtime_path = path.into();
        self
    }

    /// Lets futures and streams of methods hold what must not go to another thread, such as an
    /// `Rc`. The services run on the shards then, and not on the compute pool.
    #[must_use]
    pub fn on_shards_only(mut self) -> Self {
        self.are_sent = false;
        self
    }

    /// Makes fields of the type `bytes` as `Vec<u8>`, as tonic does. Each is copied out of the
    /// memory that its message landed in, which `bytes::Bytes` share.
    #[must_use]
    pub fn bytes_as_vec(self) -> Self {
        self.with_config(|config| {
            config.bytes::<_, &str>([]);
        })
    }

    /// Changes how prost makes the messages.
    #[must_use]
    pub fn with_config(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }

    /// Compiles .proto files; what they import is found in these folders. Cargo runs the build
    /// script again when one of all these files has changed.
    ///
    /// # Errors
    /// The text of the failure names the file and the place in it.
    pub fn compile_protos(
        mut self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> io::Result<()> {
        let files = read(protos, includes).map_err(|error| {
            // Shown with the line that it is about.
            io::Error::new(io::ErrorKind::InvalidInput, format!("{error:?}"))
        })?;
        announce(&files, includes);
        let out_dir = match &self.out_dir {
            Some(folder) => folder.clone(),
            None => env::var_os("OUT_DIR")
                .map(PathBuf::from)
                .ok_or_else(|| io::Error::other("OUT_DIR is set for build scripts alone"))?,
        };
        let name = descriptor_name(&files);
        let generator = Generator::new(self.runtime_path.clone(), name.clone(), self.are_sent);
        fs::write(out_dir.join(name), files.encode_to_vec())?;
        let tensor = format!("{}::TensorMessage", self.runtime_path);
        self.config
            .out_dir(&out_dir)
            .extern_path(".grpcxx.v1.Tensor", tensor)
            .enable_type_names()
            .service_generator(Box::new(generator))
            .compile_fds(files)
    }
}

/// Reads .proto files and what they import: from these folders, or of those that are always there.
fn read(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<FileDescriptorSet, protox::Error> {
    let mut resolver = ChainFileResolver::new();
    for folder in includes {
        resolver.add(IncludeFileResolver::new(folder.as_ref().to_owned()));
    }
    resolver.add(Included);
    resolver.add(GoogleFileResolver::new());
    let mut compiler = Compiler::with_file_resolver(resolver);
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(protos)?;
    Ok(compiler.file_descriptor_set())
}

/// The files of grpcxx itself, for all to import.
#[derive(Debug)]
struct Included;

impl FileResolver for Included {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            "grpcxx/tensor.proto" => File::from_source(name, TENSOR_PROTO),
            _ => Err(protox::Error::file_not_found(name)),
        }
    }
}

/// The file `grpcxx/tensor.proto`, which every .proto file can import: tensors as fields of
/// messages. Programs in other languages compile it too.
pub const TENSOR_PROTO: &str = include_str!("../proto/grpcxx/tensor.proto");

/// Lets cargo run the build script again when one of the files has changed, also one that others
/// import.
#[expect(clippy::print_stdout, reason = "cargo reads this")]
fn announce(files: &FileDescriptorSet, includes: &[impl AsRef<Path>]) {
    if env::var_os("CARGO").is_none() || env::var_os("OUT_DIR").is_none() {
        return;
    }
    for file in &files.file {
        let mut found = includes
            .iter()
            .map(|folder| folder.as_ref().join(file.name()));
        // Files of protobuf and of grpcxx lie nowhere.
        if let Some(path) = found.find(|path| path.is_file()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
}

/// The file of the descriptors, which has the name of the last package that was compiled, and a
/// number that tells it from others of that package.
fn descriptor_name(files: &FileDescriptorSet) -> String {
    let mut hasher = DefaultHasher::new();
    for file in &files.file {
        file.name().hash(&mut hasher);
    }
    let last = files.file.last();
    let package = last.map_or("", |file| file.package());
    format!("{package}-{:016x}.descriptors", hasher.finish())
}
