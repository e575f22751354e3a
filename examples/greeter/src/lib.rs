//! A service from a .proto file.

#![forbid(unsafe_code)]

/// What `helloworld.proto` describes.
#[expect(missing_docs, reason = "the messages are made out of a .proto file")]
pub mod helloworld {
    include!(concat!(env!("OUT_DIR"), "/helloworld.rs"));
}

/// What `probe.proto` describes, for the tests.
#[expect(missing_docs, reason = "the messages are made out of a .proto file")]
pub mod probe {
    include!(concat!(env!("OUT_DIR"), "/probe.rs"));
}

use grpcxx::service::{Request, Response, Status};

use crate::helloworld::{Greeter, HelloReply, HelloRequest};

/// Greets whoever says a name.
#[derive(Clone, Copy, Debug, Default)]
pub struct MyGreeter;

impl Greeter for MyGreeter {
    async fn say_hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloReply>, Status> {
        let message = format!("Hello {}!", request.get_ref().name);
        Ok(Response::new(HelloReply { message }))
    }
}
