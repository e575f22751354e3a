//! Tests of connections without links between them: one program, which is compiled and linked once.
//! Those of an extension lie beside it.

mod allocations;
#[path = "../src/extensions/bundles/tests/main.rs"]
mod bundles;
mod captured;
mod checklist;
#[path = "../src/extensions/chunks/tests/main.rs"]
mod chunks;
mod connections;
mod corpus;
#[path = "../src/extensions/element_types/tests/main.rs"]
mod element_types;
mod frames;
mod frames_of_originals;
#[path = "../src/extensions/heads_first/tests/main.rs"]
mod heads_first;
mod immediate_hits;
#[path = "../src/extensions/key_lists/tests/main.rs"]
mod key_lists;
mod landings_beside;
mod many_tensors;
mod originals;
#[path = "../src/extensions/packed_shapes/tests/main.rs"]
mod packed_shapes;
mod proto;
mod rendezvous_allocations;
mod rendezvous_model;
mod rights;
#[path = "../src/extensions/services/tests/main.rs"]
mod services;
#[path = "../src/extensions/status_details/tests/main.rs"]
mod status_details;
#[path = "../src/extensions/streams/tests/main.rs"]
mod streams;
mod support;
#[path = "../src/extensions/token/tests/main.rs"]
mod token;
#[path = "../src/extensions/traces/tests/main.rs"]
mod traces;
mod unsent;
mod windows;
