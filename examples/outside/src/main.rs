//! Calls a function of tensors and a service, and keeps a value on each shard.

use std::cell::Cell;

use grpcxx::service::{Request, Response, Status};
use grpcxx::{Engine, GraphCall, Tensor};

/// What `helloworld.proto` describes.
mod helloworld {
    include!(concat!(env!("OUT_DIR"), "/helloworld.rs"));
}

use helloworld::{Greeter, GreeterClient, GreeterServer, HelloReply, HelloRequest};

struct Polite;

impl Greeter for Polite {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello {}!", request.get_ref().name);
        Ok(Response::new(HelloReply { message }))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let task = Engine::builder().task("ps", 0).listen("127.0.0.1:0");
    let server = task.start_with(|server| {
        server.register_fn("double", |call: GraphCall| {
            let x: f32 = call.feed("x")?.value()?;
            Ok([("y", Tensor::scalar(2.0 * x))])
        });
        server.add_service(GreeterServer::new(Polite));
    })?;

    let engine = Engine::builder().start()?;
    let address = server.local_addr().ok_or("the server does not listen")?;
    let remote = engine.connect(&address.to_string())?;
    let call = GraphCall::new("double")
        .with_feed("x", Tensor::scalar(1.5f32))
        .with_fetch("y");
    assert_eq!(remote.run(call).wait()?.get("y")?.value::<f32>()?, 3.0);

    let name = "packages".to_owned();
    let reply = GreeterClient::new(remote).say_hello(HelloRequest { name });
    println!("{}", reply.wait()?.into_inner().message);

    let counts = engine.sharded(|_shard| Cell::new(1))?;
    let counted = counts.invoke_on(0, |count| count.replace(2)).wait()?;
    assert_eq!(counted, 1);
    Ok(())
}
