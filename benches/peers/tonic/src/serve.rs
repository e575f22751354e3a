use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tower_service::Service;

use crate::codec::{BytesCodec, Parts};
use crate::keyvalue::Served;
use crate::keyvalue::proto::key_value_server::KeyValueServer;
use crate::lookup::Table;
use crate::typed::Answers;
use crate::typed::proto::typed_server::TypedServer;
use crate::{Failure, HEAD_BYTES, LOOKUP, Options, PULL, USAGE, cpu_time};

/// Tensors that were asked for before, by size and count.
type Tensors = Arc<Mutex<HashMap<(usize, usize), Parts>>>;

/// Answers on the path `/bench/Call`.
#[derive(Clone, Default)]
struct Bench {
    tensors: Tensors,
    table: Arc<Mutex<Option<Table>>>,
}

impl NamedService for Bench {
    const NAME: &'static str = "bench";
}

impl Service<http::Request<Body>> for Bench {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let bench = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(BytesCodec)
                .max_decoding_message_size(usize::MAX)
                .max_encoding_message_size(usize::MAX);
            Ok(grpc.unary(bench, request).await)
        })
    }
}

impl UnaryService<Bytes> for Bench {
    type Response = Parts;
    type Future = std::future::Ready<Result<Response<Parts>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        std::future::ready(self.answer(request.into_inner()).map(Response::new))
    }
}

impl Bench {
    fn answer(&self, mut request: Bytes) -> Result<Parts, Status> {
        if request.len() < HEAD_BYTES {
            return Err(Status::invalid_argument("a request has at least 64 bytes"));
        }
        let kind = request.get_u64_le();
        let size = request.get_u64_le() as usize;
        let count = request.get_u64_le() as usize;
        Ok(match kind {
            PULL => {
                let mut tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
                let make = || (0..count).map(|_| Bytes::from(vec![9; size])).collect();
                tensors.entry((size, count)).or_insert_with(make).clone()
            }
            USAGE => vec![Bytes::copy_from_slice(
                &cpu_time().as_secs_f64().to_le_bytes(),
            )],
            LOOKUP => {
                request.advance(HEAD_BYTES - 24);
                let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
                let table = table.get_or_insert_with(|| Table::new(size));
                vec![table.rows(request)]
            }
            _ => vec![Bytes::from_static(&[0; HEAD_BYTES])],
        })
    }
}

#[expect(clippy::print_stdout, reason = "the ready notice")]
pub(crate) async fn serve(options: Options) -> Result<(), Failure> {
    let listener = TcpListener::bind(&options.address).await?;
    println!("ready star={}", listener.local_addr()?);
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .add_service(Bench::default())
        .add_service(KeyValueServer::new(Served::new()))
        .add_service(
            TypedServer::new(Answers)
                .max_decoding_message_size(usize::MAX)
                .max_encoding_message_size(usize::MAX),
        )
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?;
    Ok(())
}

/// As large as HTTP/2 allows, so that windows are not what is measured.
pub(crate) const WINDOW_BYTES: u32 = (1 << 31) - 1;
pub(crate) const FRAME_BYTES: u32 = (1 << 24) - 1;
