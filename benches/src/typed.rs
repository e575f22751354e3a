//! The service of typed calls and streams, as a server of benches has it.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::{Stream, stream};
use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::service::{Request, Response};

use self::proto::{Load, Order, Typed};

#[expect(unreachable_pub, reason = "generated code is for everybody")]
pub(super) mod proto {
    include!(concat!(env!("OUT_DIR"), "/bench.rs"));
}

/// Most bytes of a message of a service.
pub const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// What a message of so many bytes holds.
pub(super) fn contents(bytes: u64) -> Bytes {
    (0..bytes).map(|place| place as u8).collect()
}

/// Answers typed calls.
pub(super) struct Answers;

impl Typed for Answers {
    async fn echo(&self, request: Request<Load>) -> Result<Response<Load>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type FloodStream = Pin<Box<dyn Stream<Item = Result<Load, Status>> + Send>>;

    async fn flood(&self, request: Request<Order>) -> Result<Response<Self::FloodStream>, Status> {
        let bytes = request.get_ref().bytes;
        if bytes > MESSAGE_BYTES_MAX {
            let text = format!("{bytes} bytes; a message has at most {MESSAGE_BYTES_MAX}");
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let data = contents(bytes);
        let loads = stream::repeat_with(move || Ok(Load { data: data.clone() }));
        Ok(Response::new(Box::pin(loads)))
    }
}
