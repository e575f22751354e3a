use std::sync::OnceLock;

use super::ffi::{Functions, RegisterDmabuf};

/// libibverbs, loaded once for the process and never unloaded, since its threads and drivers may be in use.
pub(super) struct Library {
    pub(super) functions: Functions,
    pub(super) register_dmabuf: Option<RegisterDmabuf>,
}

/// The library, or why it is not there.
pub(super) fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| load().map_err(|error| error.to_string()));
    loaded.as_ref().map_err(String::as_str)
}

fn load() -> Result<Library, libloading::Error> {
    // SAFETY: the initialisers of libibverbs and of its drivers may run at any time in a process.
    let library = unsafe { libloading::Library::new(NAME)? };
    // A handle that is never dropped: what it holds stays as long as the process.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    // SAFETY: the name is that of libibverbs, and the library is never unloaded.
    let functions = unsafe { Functions::load(library)? };
    // SAFETY: the type is that of the header; older libraries have no such symbol.
    let register_dmabuf = unsafe { library.get::<RegisterDmabuf>(b"ibv_reg_dmabuf_mr\0") };
    Ok(Library {
        functions,
        register_dmabuf: register_dmabuf.ok().map(|symbol| *symbol),
    })
}

/// The name that all distributions give it; 1 is the version of its interface.
const NAME: &str = "libibverbs.so.1";
