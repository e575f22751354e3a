//! A server of `helloworld.Greeter`, and a client that calls it: `serve ADDRESS`, or
//! `serve ADDRESS --grpc HOST:PORT` for clients of gRPC too, and `call ADDRESS NAME`.

use std::env;

use grpcxx::server::{Server, ServerOptions};
use grpcxx::topology::Topology;
use grpcxx::{ClusterSpec, Config, Engine, Protocol, TaskId};
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterClient, GreeterServer, HelloRequest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", address] => serve(address),
        ["serve", address, "--grpc", grpc] => serve_grpc(address, grpc),
        ["call", address, name] => call(address, name),
        _ => Err("say: serve ADDRESS [--grpc HOST:PORT], or: call ADDRESS NAME".into()),
    }
}

#[expect(clippy::print_stdout, reason = "this is what the program is for")]
fn serve(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let task = Engine::builder().task("greeter", 0).listen(address);
    let _engine = task.start_with(|engine| engine.add_service(GreeterServer::new(MyGreeter)))?;
    println!("listening on {address}");
    loop {
        std::thread::park();
    }
}

/// Serves as a task of a cluster, which has a gRPC endpoint beside its star port.
#[expect(clippy::print_stdout, reason = "this is what the program is for")]
fn serve_grpc(star: &str, grpc: &str) -> Result<(), Box<dyn std::error::Error>> {
    let cluster = ClusterSpec::parse(&format!("greeter|{grpc}"))?;
    let topology = Topology::told(&cluster, &format!("{grpc}={star}\n"))?;
    let (config, _warnings) = Config::from_env()?;
    let options = ServerOptions {
        config,
        cluster,
        task: TaskId::new("greeter", 0),
        protocol: Protocol::GrpcPlusPlus,
        topology: Some(topology),
        metrics: None,
        model: None,
    };
    let add_service = |engine: &Engine| engine.add_service(GreeterServer::new(MyGreeter));
    let server = Server::start_with(options, add_service)?;
    println!("listening on {star}, for gRPC on {}", server.grpc_address());
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
