//! The service that typed calls and streams are measured with, and what is measured of it.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use self::proto::typed_client::TypedClient;
use self::proto::typed_server::Typed;
use self::proto::{Load, Order};
use crate::run::Times;
use crate::{Failure, Options};

pub(crate) mod proto {
    tonic::include_proto!("bench");
}

pub(crate) struct Answers;

#[tonic::async_trait]
impl Typed for Answers {
    async fn echo(&self, request: Request<Load>) -> Result<Response<Load>, Status> {
        Ok(Response::new(request.into_inner()))
    }

    type FloodStream = Pin<Box<dyn Stream<Item = Result<Load, Status>> + Send>>;

    async fn flood(&self, request: Request<Order>) -> Result<Response<Self::FloodStream>, Status> {
        let data = contents(request.get_ref().bytes as usize);
        let loads = stream::repeat_with(move || Ok(Load { data: data.clone() }));
        Ok(Response::new(Box::pin(loads)))
    }
}

/// One call behind the other, or one message, until the time is over.
pub(crate) async fn steps(
    channel: Channel,
    options: Rc<Options>,
    times: Rc<RefCell<Times>>,
) -> Result<(), Failure> {
    let mut client = TypedClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    let data = contents(options.size);
    let mut loads = None;
    if options.op == "stream" {
        let bytes = options.size as u64;
        loads = Some(client.flood(Order { bytes }).await?.into_inner());
    }
    loop {
        let begin = Instant::now();
        let load = match &mut loads {
            Some(loads) => loads.message().await?.ok_or("a stream ended")?,
            None => client.echo(Load { data: data.clone() }).await?.into_inner(),
        };
        if load.data.len() != options.size {
            return Err("a message has the wrong length".into());
        }
        let end = Instant::now();
        let mut times = times.borrow_mut();
        times.record(begin, end);
        if times.is_over(end) {
            return Ok(());
        }
    }
}

fn contents(bytes: usize) -> Bytes {
    (0..bytes).map(|place| place as u8).collect()
}
