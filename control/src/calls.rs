use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use grpcxx_rpc::{Code, Status};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::limits::{OBSERVER_CALLS_MAX, REQUEST_BYTES_MAX, SERVICE_CALLS_MAX, TENSOR_CALLS_MAX};
use crate::methods::{Class, Method};
use crate::metrics::Metrics;

/// The calls under way: how many there may be, and when the last one has ended.
#[derive(Debug)]
pub(crate) struct Calls {
    tensor: Arc<Semaphore>,
    service: Arc<Semaphore>,
    observer: Arc<Semaphore>,
    request_bytes: Arc<AtomicUsize>,
    /// Calls under way that end by themselves; observers may stay as long as they like.
    unanswered: watch::Sender<usize>,
    metrics: Arc<Metrics>,
}

/// A call under way. It ends when this is dropped: after its answer has been handed to the connection.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
    method: &'static Method,
    started: Instant,
    /// Number of the status code, once known.
    code: Option<i32>,
    _place: Option<OwnedSemaphorePermit>,
    request: Arc<RequestBytes>,
}

/// The part of the budget for requests that one call has taken.
#[derive(Debug)]
pub(crate) struct RequestBytes {
    all: Arc<AtomicUsize>,
    taken: AtomicUsize,
}

impl Calls {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            tensor: Arc::new(Semaphore::new(TENSOR_CALLS_MAX)),
            service: Arc::new(Semaphore::new(SERVICE_CALLS_MAX)),
            observer: Arc::new(Semaphore::new(OBSERVER_CALLS_MAX)),
            request_bytes: Arc::default(),
            unanswered: watch::Sender::new(0),
            metrics,
        })
    }

    /// Begins a call of `method`.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if as many calls of its class are under way as may be, `UNIMPLEMENTED` if it is
    /// not served; counted either way.
    pub(crate) fn begin(self: &Arc<Self>, method: &'static Method) -> Result<Call, Status> {
        let (places, places_max) = match method.class {
            Class::Tensor => (Some(&self.tensor), TENSOR_CALLS_MAX),
            Class::Service => (Some(&self.service), SERVICE_CALLS_MAX),
            Class::Observer => (Some(&self.observer), OBSERVER_CALLS_MAX),
            // Ends at once, so it needs no place.
            Class::Unserved(_) => (None, 0),
        };
        let place = places.map(|places| places.clone().try_acquire_owned());
        let full = matches!(place, Some(Err(_)));
        self.metrics.call_started(method);
        if method.class != Class::Observer {
            self.unanswered.send_modify(|calls| *calls += 1);
        }
        let mut call = Call {
            calls: self.clone(),
            method,
            started: Instant::now(),
            code: None,
            _place: place.and_then(Result::ok),
            request: Arc::new(RequestBytes {
                all: self.request_bytes.clone(),
                taken: AtomicUsize::new(0),
            }),
        };
        let refused = match method.class {
            Class::Unserved(text) => Status::new(Code::Unimplemented, text),
            _ if full => Status::new(
                Code::ResourceExhausted,
                format!(
                    "{places_max} calls like {} are under way, as many as are allowed: try again later",
                    method.name
                ),
            ),
            _ => return Ok(call),
        };
        call.ended_with(refused.code as i32);
        Err(refused)
    }

    /// Returns when no call is under way but those of observers.
    pub(crate) async fn all_answered(&self) {
        let mut unanswered = self.unanswered.subscribe();
        // The sender lives in `self`, so this fails never.
        let _ = unanswered.wait_for(|&calls| calls == 0).await;
    }

    /// Calls under way, without those of observers.
    pub(crate) fn unanswered(&self) -> usize {
        *self.unanswered.borrow()
    }
}

impl Call {
    /// Says with which status code the call ends; the first one counts.
    pub(crate) fn ended_with(&mut self, code: i32) {
        self.code.get_or_insert(code);
    }

    /// The budget from which the request's memory is taken until the call ends.
    pub(crate) fn request_bytes(&self) -> Arc<RequestBytes> {
        self.request.clone()
    }

    pub(crate) fn count_tensor_bytes(&self, bytes: u64) {
        self.calls.metrics.tensor_bytes.inc_by(bytes);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // Who hangs up before the end of the answer has cancelled the call.
        let code = self.code.unwrap_or(Code::Cancelled as i32);
        self.calls
            .metrics
            .call_ended(self.method, code, self.started.elapsed());
        if self.method.class != Class::Observer {
            self.calls.unanswered.send_modify(|calls| *calls -= 1);
        }
    }
}

impl RequestBytes {
    /// Takes room for a message that is announced to have `bytes` bytes.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the requests under way leave less.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), Status> {
        let fits = |taken: usize| {
            taken
                .checked_add(bytes)
                .filter(|&sum| sum <= REQUEST_BYTES_MAX)
        };
        self.all
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|taken| {
                Status::new(
                    Code::ResourceExhausted,
                    format!(
                        "a request of {bytes} bytes does not fit: requests under way have {taken} bytes, allowed are {REQUEST_BYTES_MAX}; try again later"
                    ),
                )
            })?;
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        // The reader of the message will allocate it whole, and a failure there would end the process.
        let mut probe = Vec::<u8>::new();
        probe.try_reserve_exact(bytes).map_err(|_| {
            Status::new(
                Code::ResourceExhausted,
                format!("this machine has no memory for a request of {bytes} bytes"),
            )
        })
    }
}

impl Drop for RequestBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.taken.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods;

    #[test]
    fn each_class_has_places_of_its_own() {
        let calls = Calls::new(Metrics::new());
        let tensor = methods::find("/tensorflow.WorkerService/RecvTensor");
        let waiting: Vec<_> = (0..TENSOR_CALLS_MAX)
            .map(|_| calls.begin(tensor).unwrap())
            .collect();
        let refused = calls.begin(tensor).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        let status = methods::find("/tensorflow.WorkerService/GetStatus");
        let health = methods::find("/grpc.health.v1.Health/Check");
        drop((calls.begin(status).unwrap(), calls.begin(health).unwrap()));
        assert_eq!(calls.unanswered(), TENSOR_CALLS_MAX);
        drop(waiting);
        assert_eq!(calls.unanswered(), 0);
        assert!(calls.begin(tensor).is_ok());
    }

    #[test]
    fn unserved_methods_say_what_to_use() {
        let calls = Calls::new(Metrics::new());
        let refused = calls
            .begin(methods::find("/tensorflow.MasterService/RunStep"))
            .unwrap_err();
        assert_eq!(refused.code, Code::Unimplemented);
        assert!(refused.message.contains("StarRunGraph"));
        assert_eq!(calls.unanswered(), 0);
    }

    #[test]
    fn announced_requests_share_one_budget() {
        let calls = Calls::new(Metrics::new());
        let begin = || {
            calls
                .begin(methods::find("/tensorflow.WorkerService/GetStatus"))
                .unwrap()
        };
        let (first, second) = (begin(), begin());
        first.request_bytes().take(REQUEST_BYTES_MAX).unwrap();
        let refused = second.request_bytes().take(1).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        drop(first);
        second.request_bytes().take(1).unwrap();
    }
}
