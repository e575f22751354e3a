//! A server of `helloworld.Greeter`, and a client that calls it: `greeter serve ADDRESS`, and
//! `greeter call ADDRESS NAME`.

use std::env;

use grpcxx::Engine;
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterClient, GreeterServer, HelloRequest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address] => serve(address),
        ["call", address, name] => call(address, name),
        _ => Err("say: serve ADDRESS, or: call ADDRESS NAME".into()),
    }
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
fn serve(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder()
        .task("greeter", 0)
        .listen(address)
        .start()?;
    engine.add_service(GreeterServer::new(MyGreeter));
    println!("listening on {address}");
    loop {
        std::thread::park();
    }
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
fn call(address: &str, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::builder().start()?;
    let client = GreeterClient::new(engine.connect(address)?);
    let name = name.to_owned();
    let reply = client.say_hello(HelloRequest { name }).wait()?;
    println!("{}", reply.into_inner().message);
    Ok(())
}
