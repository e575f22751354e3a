//! The calls under way: how many there may be, whose, and when the last one has ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use grpcxx_rpc::{Account, Code, Places, Status};
use tokio::sync::watch;

use crate::ControlLimits;
use crate::connections::Caller;
use crate::limits::{
    ARRIVING_CALLS_MAX, FREE_REQUEST_BYTES, OBSERVER_CALLS_MAX, REGISTERED_CALLS_MAX,
    REQUEST_BYTES_MAX, REQUEST_MESSAGE_BYTES_MAX, SERVICE_CALLS_MAX, TENSOR_CALLS_MAX,
};
use crate::lock::lock;
use crate::methods::{Class, Method};
use crate::metrics::{GaveWay, Metrics};
use crate::unsent::Unsent;

/// The calls under way. A call has a place among those that arrive until its request is there, and
/// then one among those of its class, so that half requests keep nobody from being served.
#[derive(Debug)]
pub(crate) struct Calls {
    arriving: CallPlaces,
    tensor: CallPlaces,
    service: CallPlaces,
    registered: CallPlaces,
    observer: CallPlaces,
    request_bytes: Mutex<RequestBytes>,
    request_time: Duration,
    unsent: Arc<Unsent>,
    /// Calls under way that end by themselves; observers may stay as long as they like.
    unanswered: watch::Sender<usize>,
    metrics: Arc<Metrics>,
}

type CallPlaces = Mutex<Places<Arc<watch::Sender<Stage>>, tokio::time::Instant>>;

/// A call under way. It ends when this is dropped: after its answer has been handed to the
/// connection.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
    method: &'static Method,
    started: Instant,
    /// Number of the status code, once known.
    code: Option<i32>,
    arrival: Option<Arc<Arrival>>,
}

/// What a call holds because of its request, until the call and its request are over.
#[derive(Debug)]
pub(crate) struct Arrival {
    calls: Arc<Calls>,
    method: &'static Method,
    caller: Caller,
    stage: Arc<watch::Sender<Stage>>,
    held: Mutex<HeldByCall>,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Arriving,
    Arrived,
    /// Its place was given to another call.
    GaveWay,
}

#[derive(Debug)]
struct HeldByCall {
    place: u64,
    has_arrived: bool,
    bytes: usize,
    /// The part of `bytes` that is taken from the budget.
    budget_bytes: usize,
}

/// The bytes of requests that have come and are not answered.
#[derive(Debug, Default)]
struct RequestBytes {
    all: usize,
    by_account: HashMap<Account, usize>,
    share_max: usize,
}

impl Calls {
    pub(crate) fn new(metrics: Arc<Metrics>, limits: &ControlLimits) -> Arc<Self> {
        let share_percent = limits.share_percent;
        let places = |places_max| Mutex::new(Places::new(places_max, share_percent));
        Arc::new(Self {
            arriving: places(ARRIVING_CALLS_MAX),
            tensor: places(TENSOR_CALLS_MAX),
            service: places(SERVICE_CALLS_MAX),
            registered: places(REGISTERED_CALLS_MAX),
            observer: places(OBSERVER_CALLS_MAX),
            request_bytes: Mutex::new(RequestBytes {
                share_max: REQUEST_BYTES_MAX / 100 * usize::from(share_percent),
                ..RequestBytes::default()
            }),
            request_time: limits.request_time,
            unsent: Unsent::new(limits.peer_unsent_bytes),
            unanswered: watch::Sender::new(0),
            metrics,
        })
    }

    /// Begins a call of `method`, of which the request is still to come.
    ///
    /// # Errors
    /// `UNIMPLEMENTED` if it is not served; counted in any case.
    pub(crate) fn begin(
        self: &Arc<Self>,
        method: &'static Method,
        caller: Caller,
    ) -> Result<Call, Status> {
        self.metrics.call_started(method);
        if method.class != Class::Observer {
            self.unanswered.send_modify(|calls| *calls += 1);
        }
        let mut call = Call {
            calls: self.clone(),
            method,
            started: Instant::now(),
            code: None,
            arrival: None,
        };
        if let Class::Unserved(text) = method.class {
            call.ended_with(Code::Unimplemented as i32);
            return Err(Status::new(Code::Unimplemented, text));
        }
        let stage = Arc::new(watch::Sender::new(Stage::Arriving));
        match self.take_place(&self.arriving, caller.account, &stage) {
            Ok(place) => {
                call.arrival = Some(Arc::new(Arrival {
                    calls: self.clone(),
                    method,
                    caller,
                    stage,
                    held: Mutex::new(HeldByCall {
                        place,
                        has_arrived: false,
                        bytes: 0,
                        budget_bytes: 0,
                    }),
                }));
                Ok(call)
            }
            Err(refused) => {
                call.ended_with(refused.code as i32);
                Err(refused)
            }
        }
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

    /// The part of the budget that requests under way hold.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn request_bytes(&self) -> usize {
        lock(&self.request_bytes).all
    }

    fn take_place(
        &self,
        places: &CallPlaces,
        account: Account,
        stage: &Arc<watch::Sender<Stage>>,
    ) -> Result<u64, Status> {
        let mut places = lock(places);
        let now = tokio::time::Instant::now();
        let Ok(given) = places.take(account, stage.clone(), now) else {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "as many calls of this kind are under way as are allowed: {} in all, {} from \
                     one address; try again later",
                    places.places_max(),
                    places.share_max()
                ),
            ));
        };
        if let Some(idlest) = given.gave_way {
            self.metrics.gave_way(GaveWay::Call);
            idlest.send_replace(Stage::GaveWay);
        }
        Ok(given.place)
    }

    fn places_of(&self, class: Class) -> &CallPlaces {
        match class {
            Class::Tensor => &self.tensor,
            Class::Registered => &self.registered,
            Class::Observer => &self.observer,
            Class::Service | Class::Unserved(_) => &self.service,
        }
    }
}

impl Call {
    /// Says with which status code the call ends; the first one counts.
    pub(crate) fn ended_with(&mut self, code: i32) {
        self.code.get_or_insert(code);
    }

    /// What the request of this call moves on; none if it is not read.
    pub(crate) fn arrival(&self) -> Option<Arc<Arrival>> {
        self.arrival.clone()
    }

    /// Lets a request that may have several messages count as there: it comes for as long as its
    /// caller likes, and each message counts by itself.
    ///
    /// # Errors
    /// As of [`Arrival::complete`].
    pub(crate) fn begin_stream(&self) -> Result<(), Status> {
        match &self.arrival {
            Some(arrival) if arrival.is_stream() => arrival.complete(),
            _ => Ok(()),
        }
    }

    /// Returns, with the reason, when the call has to end: its request does not come, or its place
    /// was given to another.
    pub(crate) fn must_end(&self) -> impl Future<Output = Status> + Send + use<> {
        let stage = self
            .arrival
            .as_ref()
            .map(|arrival| arrival.stage.subscribe());
        let request_time = self.calls.request_time;
        async move {
            let Some(mut stage) = stage else {
                return std::future::pending().await;
            };
            let arrived = stage.wait_for(|&stage| stage != Stage::Arriving);
            if tokio::time::timeout(request_time, arrived).await.is_err() {
                let text = format!(
                    "the request had not come after {} ms",
                    request_time.as_millis()
                );
                return Status::new(Code::DeadlineExceeded, text);
            }
            if stage
                .wait_for(|&stage| stage == Stage::GaveWay)
                .await
                .is_err()
            {
                return std::future::pending().await;
            }
            let text = "too many calls are under way, and this one was idle for longest";
            Status::new(Code::ResourceExhausted, text)
        }
    }

    /// Counts a part of the answer until it has left. The tensors of a step are there in any case.
    ///
    /// # Errors
    /// As of [`Unsent::owe`].
    pub(crate) fn owe(&self, data: Bytes) -> Result<Bytes, Status> {
        match &self.arrival {
            Some(arrival) if self.method.class != Class::Tensor => {
                self.calls.unsent.owe(arrival.caller.account, data)
            }
            _ => Ok(data),
        }
    }

    /// Where its answer counts by whole messages, and for whom.
    pub(crate) fn debts(&self) -> Option<(Arc<Unsent>, Account)> {
        let arrival = self.arrival.as_ref()?;
        Some((Arc::clone(&self.calls.unsent), arrival.caller.account))
    }

    /// Whether its place can be given to another while it is answered.
    pub(crate) fn is_observer(&self) -> bool {
        self.method.class == Class::Observer
    }

    #[cfg(test)]
    pub(crate) fn has_arrived(&self) -> bool {
        let arrival = self.arrival.as_ref();
        arrival.is_some_and(|arrival| lock(&arrival.held).has_arrived)
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

impl Arrival {
    /// Whether the caller may send more than one message.
    pub(crate) fn is_stream(&self) -> bool {
        self.method.is_stream
    }

    /// How long a request, or a message of a stream, may take to come.
    pub(crate) fn request_time(&self) -> Duration {
        self.calls.request_time
    }

    /// Hears how long the message is going to be.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if that is too long.
    pub(crate) fn announced(&self, bytes: usize) -> Result<(), Status> {
        if bytes <= REQUEST_MESSAGE_BYTES_MAX {
            return Ok(());
        }
        let text = format!(
            "a request of {bytes} bytes is too long, allowed are {REQUEST_MESSAGE_BYTES_MAX}"
        );
        Err(Status::new(Code::ResourceExhausted, text))
    }

    /// Takes room for bytes that have come. A short request needs none.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the requests under way leave less.
    pub(crate) fn came(&self, bytes: usize) -> Result<(), Status> {
        let mut held = lock(&self.held);
        held.bytes = held.bytes.saturating_add(bytes);
        let wanted = held.bytes.saturating_sub(FREE_REQUEST_BYTES) - held.budget_bytes;
        if wanted == 0 {
            return Ok(());
        }
        let mut budget = lock(&self.calls.request_bytes);
        let share_max = budget.share_max;
        let of_account = budget.by_account.get(&self.caller.account);
        let of_account = of_account.copied().unwrap_or_default() + wanted;
        if of_account > share_max || budget.all + wanted > REQUEST_BYTES_MAX {
            let text = format!(
                "requests under way have {} bytes, allowed are {REQUEST_BYTES_MAX} in all and \
                 {share_max} from one address; try again later",
                budget.all
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        budget.by_account.insert(self.caller.account, of_account);
        budget.all += wanted;
        held.budget_bytes += wanted;
        Ok(())
    }

    /// Gives back the room of bytes that are no longer held.
    pub(crate) fn left(&self, bytes: usize) {
        let mut held = lock(&self.held);
        held.bytes = held.bytes.saturating_sub(bytes);
        let wanted = held.bytes.saturating_sub(FREE_REQUEST_BYTES);
        let too_much = held.budget_bytes.saturating_sub(wanted);
        held.budget_bytes -= too_much;
        lock(&self.calls.request_bytes).give_back(self.caller.account, too_much);
    }

    /// The request is there: it gets a place among the calls of its class.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if as many of these are under way as may be.
    pub(crate) fn complete(&self) -> Result<(), Status> {
        let mut held = lock(&self.held);
        if held.has_arrived {
            return Ok(());
        }
        let places = self.calls.places_of(self.method.class);
        let account = self.caller.account;
        let place = (self.calls).take_place(places, account, &self.stage)?;
        if self.method.class != Class::Observer {
            lock(places).begin_use(place);
        }
        lock(&self.calls.arriving).release(held.place);
        (held.place, held.has_arrived) = (place, true);
        self.caller.begin_use();
        // One that gave way in this very moment has not arrived.
        self.stage.send_if_modified(|stage| {
            let is_arriving = *stage == Stage::Arriving;
            if is_arriving {
                *stage = Stage::Arrived;
            }
            is_arriving
        });
        Ok(())
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let held = lock(&self.held);
        if held.has_arrived {
            lock(self.calls.places_of(self.method.class)).release(held.place);
            self.caller.end_use();
        } else {
            lock(&self.calls.arriving).release(held.place);
        }
        lock(&self.calls.request_bytes).give_back(self.caller.account, held.budget_bytes);
    }
}

impl RequestBytes {
    fn give_back(&mut self, account: Account, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.all -= bytes;
        if let Some(of_account) = self.by_account.get_mut(&account) {
            *of_account -= bytes;
            if *of_account == 0 {
                self.by_account.remove(&account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods;

    fn calls() -> Arc<Calls> {
        let limits = ControlLimits {
            share_percent: 100,
            ..ControlLimits::default()
        };
        Calls::new(Metrics::new(), &limits)
    }

    fn begin(calls: &Arc<Calls>, path: &str) -> Call {
        calls.begin(methods::find(path), Caller::unknown()).unwrap()
    }

    fn arrive(calls: &Arc<Calls>, path: &str) -> Result<Call, Status> {
        let call = begin(calls, path);
        call.arrival().unwrap().complete()?;
        Ok(call)
    }

    #[test]
    fn each_class_has_places_of_its_own() {
        let calls = calls();
        let tensor = "/tensorflow.WorkerService/RecvTensor";
        let waiting: Vec<_> = (0..TENSOR_CALLS_MAX)
            .map(|_| arrive(&calls, tensor).unwrap())
            .collect();
        let refused = arrive(&calls, tensor).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        arrive(&calls, "/tensorflow.WorkerService/GetStatus").unwrap();
        arrive(&calls, "/grpc.health.v1.Health/Check").unwrap();
        assert_eq!(calls.unanswered(), TENSOR_CALLS_MAX);
        drop(waiting);
        assert_eq!(calls.unanswered(), 0);
        assert!(arrive(&calls, tensor).is_ok());
    }

    #[test]
    fn streams_of_services_that_last_leave_the_endpoint_its_places() {
        let calls = calls();
        let begin_stream = || {
            let call = calls.begin(&methods::REGISTERED_STREAM, Caller::unknown())?;
            call.begin_stream()?;
            Ok::<_, Status>(call)
        };
        let _lasting: Vec<_> = (0..REGISTERED_CALLS_MAX)
            .map(|_| begin_stream().unwrap())
            .collect();
        let refused = begin_stream().unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        arrive(&calls, "/tensorflow.WorkerService/GetStatus").unwrap();
        arrive(&calls, "/grpcxx.v1.Inspector/Inspect").unwrap();
    }

    #[tokio::test]
    async fn half_requests_and_observers_give_way_to_newer_ones() {
        let calls = calls();
        let status = "/tensorflow.WorkerService/GetStatus";
        let half: Vec<_> = (0..ARRIVING_CALLS_MAX)
            .map(|_| begin(&calls, status))
            .collect();
        let _whole = arrive(&calls, status).unwrap();
        let ended = half[0].must_end().await;
        assert_eq!(ended.code, Code::ResourceExhausted);
        let watch = "/grpc.health.v1.Health/Watch";
        let watching: Vec<_> = (0..OBSERVER_CALLS_MAX)
            .map(|_| arrive(&calls, watch).unwrap())
            .collect();
        let _check = arrive(&calls, "/grpc.health.v1.Health/Check").unwrap();
        let ended = watching[0].must_end().await;
        assert_eq!(ended.code, Code::ResourceExhausted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_come_ends_its_call() {
        let calls = calls();
        let call = begin(&calls, "/tensorflow.WorkerService/GetStatus");
        assert_eq!(call.must_end().await.code, Code::DeadlineExceeded);
        let whole = arrive(&calls, "/tensorflow.WorkerService/RecvTensor").unwrap();
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, whole.must_end()).await.is_err());
    }

    #[test]
    fn unserved_methods_say_what_to_use() {
        let calls = calls();
        let method = methods::find("/tensorflow.MasterService/RunStep");
        let refused = calls.begin(method, Caller::unknown()).unwrap_err();
        assert_eq!(refused.code, Code::Unimplemented);
        assert!(refused.message.contains("StarRunGraph"));
        assert_eq!(calls.unanswered(), 0);
    }

    #[test]
    fn the_bytes_that_have_come_share_one_budget_and_short_requests_need_none() {
        let calls = calls();
        let begin = || begin(&calls, "/tensorflow.WorkerService/GetStatus");
        let (first, second) = (begin(), begin());
        let arrivals = [&first, &second].map(|call| call.arrival().unwrap());
        arrivals[0].came(REQUEST_BYTES_MAX).unwrap();
        arrivals[1].came(FREE_REQUEST_BYTES).unwrap();
        arrivals[0].came(FREE_REQUEST_BYTES / 2).unwrap();
        let refused = arrivals[1].came(FREE_REQUEST_BYTES).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(arrivals[0].announced(REQUEST_MESSAGE_BYTES_MAX).is_ok());
        assert!(
            arrivals[0]
                .announced(REQUEST_MESSAGE_BYTES_MAX + 1)
                .is_err()
        );
        let [large, small] = arrivals;
        drop((first, large));
        small.came(FREE_REQUEST_BYTES).unwrap();
        drop((second, small));
        let budget = lock(&calls.request_bytes);
        assert_eq!((budget.all, budget.by_account.len()), (0, 0));
    }
}
