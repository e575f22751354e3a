//! Tests of links over shared memory: one program, which is compiled and linked once. A test that
//! starts itself as another process is a program of its own, see `Cargo.toml`.

mod bouncing;
mod conformance;
mod hostile;
mod lending;
mod mapped;
mod migrating;
mod support;
