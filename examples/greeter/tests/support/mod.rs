//! What the tests of services call.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use grpcxx::service::{Code, Metadata, Request, Response, Status, Streaming, Trailers};
use grpcxx_greeter::probe::{self, Load, Order, Probe, Span};

use crate::python::{grpcio_python, skip, text};

/// Futures that began to wait and were dropped or ended.
#[derive(Default)]
pub(crate) struct Waits {
    pub(crate) begun: AtomicUsize,
    pub(crate) over: AtomicUsize,
    /// Those that have counted all that their client had to send.
    pub(crate) counted: AtomicUsize,
}

/// What its failures have beside their texts.
pub(crate) const DETAILS: &[u8] = &[0, 255, b'd'];

/// The service of the tests.
#[derive(Default)]
pub(crate) struct MyProbe {
    pub(crate) waits: Arc<Waits>,
}

struct Over(Arc<Waits>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits without a runtime: another thread wakes the future.
async fn wait(span: Duration) {
    let (sender, receiver) = futures_channel::oneshot::channel();
    thread::spawn(move || {
        thread::sleep(span);
        sender.send(())
    });
    receiver.await.ok();
}

type Loads = Pin<Box<dyn Stream<Item = Result<Load, Status>> + Send>>;

impl Probe for MyProbe {
    async fn echo(&self, request: Request<Load>) -> Result<Response<Load>, Status> {
        let metadata = request.metadata().clone();
        let mut response = Response::new(request.into_inner());
        *response.metadata_mut() = metadata;
        Ok(response)
    }

    async fn wait(&self, request: Request<Span>) -> Result<Response<Load>, Status> {
        self.waits.begun.fetch_add(1, Ordering::SeqCst);
        let over = Over(Arc::clone(&self.waits));
        wait(Duration::from_millis(request.get_ref().milliseconds)).await;
        drop(over);
        Ok(Response::new(Load::default()))
    }

    async fn fail(&self, request: Request<probe::Code>) -> Result<Response<Load>, Status> {
        let code = Code::from_number(request.get_ref().number).unwrap_or(Code::Unknown);
        Err(Status::with_details(code, "as it was told", DETAILS.into()))
    }

    type EchoAllStream = Loads;

    async fn echo_all(&self, request: Request<Streaming<Load>>) -> Result<Response<Loads>, Status> {
        let metadata = request.metadata().clone();
        let mut response: Response<Loads> = Response::new(Box::pin(request.into_inner()));
        *response.metadata_mut() = metadata;
        Ok(response)
    }

    async fn count(&self, request: Request<Streaming<Load>>) -> Result<Response<Span>, Status> {
        self.waits.begun.fetch_add(1, Ordering::SeqCst);
        let _over = Over(Arc::clone(&self.waits));
        let mut loads = request.into_inner();
        let mut milliseconds = 0;
        while let Some(load) = loads.message().await? {
            milliseconds += load.data.len() as u64;
        }
        self.waits.counted.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(Span { milliseconds }))
    }

    type FloodStream = Loads;

    async fn flood(&self, request: Request<Order>) -> Result<Response<Loads>, Status> {
        self.waits.begun.fetch_add(1, Ordering::SeqCst);
        let over = Over(Arc::clone(&self.waits));
        let order = request.into_inner();
        let load = Load {
            data: vec![7; order.bytes as usize].into(),
            note: String::new(),
        };
        let end = Code::from_number(order.code)
            .map(|code| Err(Status::with_details(code, "as told", DETAILS.into())));
        let trailers = Trailers::default();
        let told = trailers.clone();
        let loads = (0..order.messages)
            .map(move |number| {
                let mut metadata = Metadata::default();
                metadata.insert("made", (number + 1).to_string())?;
                told.set(metadata);
                Ok(load.clone())
            })
            .chain(end);
        let loads = stream::iter(loads).inspect(move |_| {
            let _lives_as_long = &over;
        });
        let loads: Loads = match order.panics {
            false => Box::pin(loads),
            true => Box::pin(loads.chain(stream::once(async { panic!("on purpose") }))),
        };
        Ok(Response::new(loads).with_trailers(trailers))
    }

    async fn panic(&self, request: Request<Span>) -> Result<Response<Load>, Status> {
        let milliseconds = request.get_ref().milliseconds;
        if milliseconds > 0 {
            wait(Duration::from_millis(milliseconds)).await;
        }
        panic!("on purpose");
    }
}

/// A python with gRPC's own client, or nothing, loudly, where there is none.
pub(crate) fn grpcio() -> Option<PathBuf> {
    grpcio_python()
        .inspect_err(|reason| skip("grpcio", reason))
        .ok()
}

/// Runs a client of these tests, which has so many things to say that they passed.
pub(crate) fn run_client(python: &Path, script: &str, grpc: SocketAddr, passed: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop");
    let output = Command::new(python)
        .arg(folder.join(script))
        .arg(grpc.to_string())
        .output()
        .unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("passed ").count(), passed, "{said}");
}
