//! Names the shared library, so that programs linked to it look for it by name and not by where it
//! was built.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgrpcxx_capi.so");
}
