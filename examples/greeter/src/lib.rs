//! A service from a .proto file.

#![forbid(unsafe_code)]

/// What `helloworld.proto` describes.
#[expect(missing_docs, reason = "the messages are made out of a .proto file")]
pub mod helloworld {
    grpcxx::include_proto!("helloworld");
}

/// What `probe.proto` describes, for the tests.
#[expect(missing_docs, reason = "the messages are made out of a .proto file")]
pub mod probe {
    grpcxx::include_proto!("probe");
}

/// What `model.proto` describes, for the tests: messages with tensors.
#[expect(missing_docs, reason = "the messages are made out of a .proto file")]
pub mod model {
    grpcxx::include_proto!("model");
}

/// What `corner.proto` describes, for the tests: a service whose futures stay on their thread.
#[expect(missing_docs, reason = "the messages are made out of a .proto file")]
pub mod corner {
    grpcxx::include_proto!("corner");
}

use std::pin::Pin;

use futures_util::{Stream, TryStreamExt, stream};
use grpcxx::service::{Request, Response, Status, Streaming};

use crate::helloworld::{Greeter, HelloReply, HelloRequest, HellosRequest};

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

    type SayHellosStream = Replies;

    async fn say_hellos(
        &self,
        request: Request<HellosRequest>,
    ) -> Result<Response<Replies>, Status> {
        let HellosRequest { name, times } = request.into_inner();
        let replies = (1..=times).map(move |time| {
            let message = format!("Hello {name}, {time} of {times}!");
            Ok(HelloReply { message })
        });
        Ok(Response::new(Box::pin(stream::iter(replies))))
    }

    type ChatStream = Replies;

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Result<Response<Replies>, Status> {
        let replies = request.into_inner().map_ok(|request| HelloReply {
            message: format!("Hello {}!", request.name),
        });
        Ok(Response::new(Box::pin(replies)))
    }
}

type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;
