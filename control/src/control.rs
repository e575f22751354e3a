//! The endpoint: its thread, its ports, and how it starts and stops.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use grpcxx_rpc::Places;
use grpcxx_runtime::Certificates;
use grpcxx_runtime::policy::Authority;
use prometheus::IntGauge;
use tokio::runtime;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::server::HealthReporter;

use crate::calls::Calls;
use crate::connections::Connections;
use crate::dispatch::Dispatch;
use crate::handshakes::{Handshakes, Spoken};
use crate::health::Health;
use crate::incoming::Incoming;
use crate::inspector::Inspector;
use crate::limits::{
    FLUSH_TIMEOUT, IDLE_LOOK_INTERVAL, KEEP_ALIVE_INTERVAL, KEEP_ALIVE_TIMEOUT, MESSAGE_BYTES_MAX,
    REQUEST_MESSAGE_BYTES_MAX, STREAMS_PER_CONNECTION_MAX,
};
use crate::listener::listen;
use crate::master::Master;
use crate::metrics::Metrics;
use crate::metrics_page::MetricsPage;
use crate::services::inspect::inspector_server::InspectorServer;
use crate::services::master_service_server::MasterServiceServer;
use crate::services::worker_service_server::WorkerServiceServer;
use crate::sessions::Sessions;
use crate::waiting::Waiting;
use crate::worker::Worker;
use crate::{Backend, ControlError, ControlLimits, ControlOptions};

/// The running gRPC endpoint of a task.
///
/// It lives on one thread of its own, which is not pinned, so that it answers while every shard is
/// busy. One is enough: tensors leave from where they lie and nothing is computed here, and a
/// second one would compete with the shards.
#[derive(Debug)]
pub struct Control {
    listening: SocketAddr,
    metrics: Option<SocketAddr>,
    stop: watch::Sender<Option<Instant>>,
    alarm: Alarm,
    thread: Option<JoinHandle<usize>>,
}

/// Tells everybody who asks for the health of the task that it has failed, from any thread.
#[derive(Clone, Debug)]
pub struct Alarm {
    has_failed: watch::Sender<bool>,
}

/// How the endpoint stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Calls that were under way when the grace was over and did not end with their own answer.
    /// Those that could still be told were answered UNAVAILABLE.
    pub unanswered_calls: usize,
}

impl Control {
    /// Starts the endpoint; when this returns, its ports are open.
    ///
    /// The thread takes the CPU affinity of the caller: call this before the caller is pinned.
    ///
    /// # Errors
    /// A port cannot be listened on, or the thread cannot be had; the text says what to do.
    pub fn start(options: ControlOptions, backend: Arc<dyn Backend>) -> Result<Self, ControlError> {
        let listeners = Listeners {
            grpc: listen("gRPC endpoint", options.listen)?,
            metrics: options
                .metrics
                .map(|address| listen("metrics page", address))
                .transpose()?,
        };
        let address = |listener: &TcpListener| listener.local_addr().map_err(ControlError::Thread);
        let listening = address(&listeners.grpc)?;
        let metrics = listeners.metrics.as_ref().map(address).transpose()?;

        let authority = options.authority;
        let certificates = options.certificates;
        let (stop, stop_asked) = watch::channel(None);
        let (has_failed, failure) = watch::channel(false);
        let (started, start_result) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(THREAD_NAME.to_owned())
            .spawn(move || {
                let endpoint = Endpoint {
                    backend,
                    limits: options.limits,
                    authority,
                    certificates,
                    stop_asked,
                    failure,
                };
                run(endpoint, listeners, &started)
            })
            .map_err(ControlError::Thread)?;
        let thread_ended = || Err(io::Error::other("the thread ended while it started"));
        start_result
            .recv()
            .unwrap_or_else(|_| thread_ended())
            .map_err(ControlError::Thread)?;
        Ok(Self {
            listening,
            metrics,
            stop,
            alarm: Alarm { has_failed },
            thread: Some(thread),
        })
    }

    /// The address of the gRPC endpoint, with the port that was chosen.
    pub fn local_addr(&self) -> SocketAddr {
        self.listening
    }

    /// The address of the metrics page, if there is one.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// What to raise when the task can serve no more: health is NOT_SERVING then and `/healthz`
    /// answers 503, while the endpoint goes on until it is stopped.
    pub fn alarm(&self) -> Alarm {
        self.alarm.clone()
    }

    /// Stops: no new connections, health NOT_SERVING, calls under way have `grace` to end. Those
    /// that do not are answered UNAVAILABLE, so that all is over within `grace` and half a second.
    pub fn shutdown(mut self, grace: Duration) -> Stopped {
        self.stop(grace)
    }

    fn stop(&mut self, grace: Duration) -> Stopped {
        let now = Instant::now();
        // A grace beyond the clock's range is one without end.
        let end = now.checked_add(grace).unwrap_or(now + FAR_AWAY);
        self.stop.send_replace(Some(end));
        let unanswered_calls = self
            .thread
            .take()
            .map_or(0, |thread| thread.join().unwrap_or_default());
        Stopped { unanswered_calls }
    }
}

impl Alarm {
    /// The task has failed, for good.
    pub fn raise(&self) {
        self.has_failed.send_replace(true);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop(Duration::ZERO);
        }
    }
}

/// What the thread of the endpoint needs.
struct Endpoint {
    backend: Arc<dyn Backend>,
    limits: ControlLimits,
    authority: Arc<Authority>,
    certificates: Option<Arc<Certificates>>,
    /// When to have stopped.
    stop_asked: watch::Receiver<Option<Instant>>,
    failure: watch::Receiver<bool>,
}

/// The ports of the endpoint. The sockets have no other owner, so that ports close when they are
/// dropped.
struct Listeners<L> {
    grpc: L,
    metrics: Option<L>,
}

/// The endpoint's thread; its result is the number of calls without an answer.
fn run(
    endpoint: Endpoint,
    listeners: Listeners<TcpListener>,
    started: &mpsc::SyncSender<io::Result<()>>,
) -> usize {
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = started.send(Err(error));
            return 0;
        }
    };
    let unanswered = runtime.block_on(async {
        let listeners = listeners.registered();
        let (listeners, result) = match listeners {
            Ok(listeners) => (Some(listeners), Ok(())),
            Err(error) => (None, Err(error)),
        };
        let _ = started.send(result);
        match listeners {
            Some(listeners) => endpoint.serve(listeners).await,
            None => 0,
        }
    });
    // Connections that clients keep open, as those that watch the health, end here.
    runtime.shutdown_background();
    unanswered
}

impl Listeners<TcpListener> {
    /// These sockets, known to the event loop in which this is called.
    fn registered(self) -> io::Result<Listeners<tokio::net::TcpListener>> {
        let registered = tokio::net::TcpListener::from_std;
        Ok(Listeners {
            grpc: registered(self.grpc)?,
            metrics: self.metrics.map(registered).transpose()?,
        })
    }
}

impl Endpoint {
    async fn serve(mut self, listeners: Listeners<tokio::net::TcpListener>) -> usize {
        let metrics = Metrics::new();
        let share_percent = self.limits.share_percent;
        let calls = Calls::new(metrics.clone(), &self.limits);
        let places = Places::new(self.limits.connections, share_percent);
        let idle_max = self.limits.connection_idle;
        let connections = Connections::new(places, idle_max, metrics.clone());
        let sessions = OpenSessions::new(&self.limits, &metrics);
        let handshakes = |spoken| {
            let certificates = self.certificates.clone();
            Handshakes::new(certificates, spoken, share_percent, metrics.clone())
        };
        let (stopping, stopping_seen) = watch::channel(false);
        let (stopped, stopped_seen) = watch::channel(false);
        let reporter = HealthReporter::new();

        if let Some(listener) = listeners.metrics {
            let page = MetricsPage {
                backend: self.backend.clone(),
                authority: self.authority.clone(),
                handshakes: handshakes(Spoken::Http1),
                connections_max: self.limits.page_connections,
                metrics: metrics.clone(),
                stopping: stopping_seen.clone(),
                failure: self.failure.clone(),
            };
            tokio::spawn(page.serve(listener));
        }
        let idle = tokio::spawn(close_idle(connections.clone(), sessions.clone()));
        let (backend, authority) = (self.backend.clone(), self.authority.clone());
        let routes = routes(backend, authority, sessions, reporter.clone());
        let health = Health::new(self.backend.clone(), reporter);
        health.tell().await;
        let dispatch = Dispatch::new(
            routes,
            (self.backend.clone(), health.clone()),
            calls.clone(),
            self.authority.clone(),
            stopped_seen,
        );
        let incoming = Incoming::new(
            listeners.grpc,
            connections,
            self.authority.clone(),
            handshakes(Spoken::Http2),
        );
        let mut drain = stopping_seen;
        let mut server = tokio::spawn(
            Server::builder()
                .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
                .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
                .serve_with_incoming_shutdown(dispatch, incoming, async move {
                    let _ = drain.wait_for(|&stopping| stopping).await;
                }),
        );

        let (failing, failure) = (health.clone(), self.failure);
        let failing = tokio::spawn(async move { failing.end_with(failure).await });
        let end = tokio::select! {
            end = asked_to_stop(&mut self.stop_asked) => end,
            ended = &mut server => {
                // It ends by itself only if the server is misconfigured.
                tracing::error!(?ended, "the gRPC endpoint ended");
                asked_to_stop(&mut self.stop_asked).await
            }
        };
        failing.abort();
        idle.abort();
        health.end().await;
        stopping.send_replace(true);
        let _ = tokio::time::timeout_at(end, calls.all_answered()).await;
        let unanswered = calls.unanswered();
        stopped.send_replace(true);
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, calls.all_answered()).await;
        if !server.is_finished() {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, &mut server).await;
        }
        unanswered
    }
}

async fn asked_to_stop(stop_asked: &mut watch::Receiver<Option<Instant>>) -> Instant {
    match stop_asked.wait_for(Option::is_some).await {
        Ok(end) => end.unwrap_or_else(Instant::now),
        Err(_) => Instant::now(),
    }
}

/// The sessions of each kind.
#[derive(Clone)]
pub(crate) struct OpenSessions {
    worker: Arc<Sessions>,
    master: Arc<Sessions>,
}

impl OpenSessions {
    pub(crate) fn new(limits: &ControlLimits, metrics: &Arc<Metrics>) -> Self {
        let of_kind = |count: &IntGauge| {
            let places = Places::new(limits.sessions, limits.share_percent);
            let (count, metrics) = (count.clone(), metrics.clone());
            Arc::new(Sessions::new(places, limits.session_idle, count, metrics))
        };
        Self {
            worker: of_kind(&metrics.worker_sessions),
            master: of_kind(&metrics.master_sessions),
        }
    }
}

/// Closes, for ever, what has been idle for too long.
async fn close_idle(connections: Arc<Connections>, sessions: OpenSessions) {
    loop {
        tokio::time::sleep(IDLE_LOOK_INTERVAL).await;
        connections.close_idle();
        sessions.worker.close_idle();
        sessions.master.close_idle();
    }
}

pub(crate) fn routes(
    backend: Arc<dyn Backend>,
    authority: Arc<Authority>,
    sessions: OpenSessions,
    reporter: HealthReporter,
) -> Routes {
    let worker = Worker {
        backend: backend.clone(),
        authority,
        sessions: sessions.worker.clone(),
        waiting: Waiting::default(),
    };
    let inspector = Inspector {
        backend: backend.clone(),
    };
    let master = Master {
        backend,
        sessions: sessions.master,
        worker_sessions: sessions.worker,
    };
    Routes::default()
        .add_service(
            WorkerServiceServer::new(worker)
                .max_decoding_message_size(REQUEST_MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(
            MasterServiceServer::new(master)
                .max_decoding_message_size(REQUEST_MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(InspectorServer::new(inspector))
        .add_service(tonic_health::pb::health_server::HealthServer::new(
            tonic_health::server::HealthService::from_health_reporter(reporter),
        ))
}

const THREAD_NAME: &str = "grpcxx-control";

/// What a peer may send on one call before it is read: requests are small.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// What a peer may send on all calls of a connection before it is read.
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// A time that no stop waits for.
const FAR_AWAY: Duration = Duration::from_secs(86_400 * 365);
