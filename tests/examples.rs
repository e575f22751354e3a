//! The examples do what they say.
#![allow(
    dead_code,
    reason = "nobody calls the main functions of the examples here"
)]

#[path = "../examples/all_reduce.rs"]
mod all_reduce;
#[path = "../examples/client.rs"]
mod client;
#[path = "examples/collectives.rs"]
mod collectives;
#[path = "../runtime/tests/support/ports.rs"]
mod ports;
#[path = "../examples/rendezvous.rs"]
mod rendezvous;
#[path = "../examples/server.rs"]
mod server;

#[test]
fn the_client_calls_the_function_of_the_server() {
    let engine = server::start("127.0.0.1:0").unwrap();
    let address = engine.local_addr().unwrap().to_string();
    assert_eq!(
        client::scale(&address, vec![1.0, 2.0], 10.0).unwrap(),
        [10.0, 20.0]
    );
}

#[test]
fn the_pair_meets() {
    assert_eq!(rendezvous::meet(42).unwrap(), 42);
}
