//! What the tests of services call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use grpcxx::service::{Code, Request, Response, Status};
use grpcxx_greeter::probe::{self, Load, Probe, Span};

/// Futures that began to wait and were dropped or ended.
#[derive(Default)]
pub(crate) struct Waits {
    pub(crate) begun: AtomicUsize,
    pub(crate) over: AtomicUsize,
}

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
        Err(Status::new(code, "as it was told"))
    }

    async fn panic(&self, request: Request<Span>) -> Result<Response<Load>, Status> {
        let milliseconds = request.get_ref().milliseconds;
        if milliseconds > 0 {
            wait(Duration::from_millis(milliseconds)).await;
        }
        panic!("on purpose");
    }
}
