use std::sync::OnceLock;

use super::ffi::{Functions, RegisterDmabuf};

/// libibverbs, loaded once for the process and never unloaded, since its threads and drivers may be
/// in use.
pub(super) struct Library {
    pub(super) functions: Functions,
    pub(super) register_dmabuf: Option<RegisterDmabuf>,
    /// Keeps it loaded: the only value of this type is never dropped.
    _handle: libloading::Library,
}

/// The library, or why it is not there.
pub(super) fn library() -> Result<&'static Library, &'static str> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| {
        load().map_err(|error| match std::error::Error::source(&error) {
            // What the linker says is more than that it failed.
            Some(source) => source.to_string(),
            None => error.to_string(),
        })
    });
    loaded.as_ref().map_err(String::as_str)
}

fn load() -> Result<Library, libloading::Error> {
    // SAFETY: the initialisers of libibverbs and of its drivers may run at any time in a process.
    let library = unsafe { libloading::Library::new(NAME)? };
    // SAFETY: the name is that of libibverbs, and the caller keeps the handle for ever.
    let functions = unsafe { Functions::load(&library)? };
    // SAFETY: the type is that of the header; older libraries have no such symbol.
    let register_dmabuf = unsafe { library.get::<RegisterDmabuf>(b"ibv_reg_dmabuf_mr\0") };
    let register_dmabuf = register_dmabuf.ok().map(|symbol| *symbol);
    Ok(Library {
        functions,
        register_dmabuf,
        _handle: library,
    })
}

/// The name that all distributions give it; 1 is the version of its interface.
const NAME: &str = "libibverbs.so.1";
