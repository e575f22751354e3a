//! Names the library as the C interface names it, since it takes its place in the Python package:
//! the plugin for TensorFlow looks for it by that name, and a process has one engine library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libgrpcxx_capi.so");
}
