//! The page that Prometheus reads, the one for health, and the one for people.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use grpcxx_memory::forks::Mark;
use grpcxx_rpc::{Account, Places};
use grpcxx_runtime::policy::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use crate::Backend;
use crate::handshakes::Handshakes;
use crate::incoming::concerns_one_peer;
use crate::limits::{
    ACCEPT_RETRY_DELAY, METRICS_BACKEND_TIMEOUT, METRICS_CONNECTION_TIMEOUT,
    METRICS_REQUEST_TIMEOUT, METRICS_SHARE_PERCENT,
};
use crate::link::Link;
use crate::live_page::live_page;
use crate::lock::lock;
use crate::metrics::{GaveWay, Metrics};

/// The page that Prometheus reads, and one that says whether the server is well.
#[derive(Clone)]
pub(crate) struct MetricsPage {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) handshakes: Arc<Handshakes>,
    /// Connections open at once; a further one closes the oldest.
    pub(crate) connections_max: usize,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stopping: watch::Receiver<bool>,
    pub(crate) failure: watch::Receiver<bool>,
}

impl MetricsPage {
    /// Serves the pages until dropped. Who connects and asks nothing gives way to others.
    pub(crate) async fn serve(self, listener: TcpListener) {
        // Dropped before the listener, which is an argument.
        let _mark = Mark::of(&listener);
        let places = Places::new(self.connections_max, METRICS_SHARE_PERCENT);
        let places = Arc::new(Mutex::new(places));
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok((_, peer)) if !self.authority.admits(peer) => continue,
                Ok(accepted) => accepted,
                Err(error) if concerns_one_peer(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the metrics page");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            let (close, closing) = oneshot::channel();
            let taken = lock(&places).take(Account::of(peer.ip()), close, Instant::now());
            let Ok(given) = taken else {
                continue;
            };
            if let Some(oldest) = given.gave_way {
                self.metrics.gave_way(GaveWay::Page);
                // It may just have ended by itself.
                let _ = oldest.send(());
            }
            let (page, places) = (self.clone(), places.clone());
            tokio::spawn(async move {
                let served = async {
                    if let Some((link, _)) = page.handshakes.pass(stream, peer).await {
                        page.serve_one(link).await;
                    }
                };
                tokio::select! {
                    _ = closing => {}
                    _ = timeout(METRICS_CONNECTION_TIMEOUT, served) => {}
                }
                lock(&places).release(given.place);
            });
        }
    }

    /// Serves one request: scrapes are rare, and an idle client keeps no place.
    async fn serve_one(&self, link: Link) {
        let service = service_fn(move |request| {
            let page = self.clone();
            async move { Ok::<_, Infallible>(page.answer(&request).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(METRICS_REQUEST_TIMEOUT)
            .keep_alive(false)
            .serve_connection(TokioIo::new(link), service);
        if let Err(error) = served.await {
            tracing::debug!(%error, "a connection to the metrics page failed");
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return page(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        }
        match request.uri().path() {
            "/" => live_page(),
            "/metrics" => page(StatusCode::OK, self.metrics_text().await),
            "/healthz" if *self.failure.borrow() => {
                page(StatusCode::SERVICE_UNAVAILABLE, "failed\n")
            }
            "/healthz" if *self.stopping.borrow() => {
                page(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
            }
            "/healthz" => page(StatusCode::OK, "serving\n"),
            "/livez" => match self.backend.liveness() {
                Ok(()) => page(StatusCode::OK, "alive\n"),
                Err(status) => page(
                    StatusCode::SERVICE_UNAVAILABLE,
                    format!("{}\n", status.message),
                ),
            },
            _ => page(
                StatusCode::NOT_FOUND,
                "here are / (graphs), /metrics (Prometheus), /healthz and /livez\n",
            ),
        }
    }

    /// The numbers of the engine, then those of the endpoint.
    async fn metrics_text(&self) -> String {
        let answer = tokio::time::timeout(METRICS_BACKEND_TIMEOUT, self.backend.metrics_text());
        let (mut text, answers) = match answer.await {
            Ok(Ok(text)) => (text, 1),
            Ok(Err(status)) => {
                tracing::warn!(%status, "the engine gave no metrics");
                (String::new(), 0)
            }
            Err(_) => {
                tracing::warn!(timeout = ?METRICS_BACKEND_TIMEOUT, "the engine gave no metrics in time");
                (String::new(), 0)
            }
        };
        // The end mark of OpenMetrics must not stand in the middle.
        text.truncate(text.trim_end().trim_end_matches(END_MARK).trim_end().len());
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(ENGINE_ANSWERS);
        text.push_str(if answers == 1 { "1\n" } else { "0\n" });
        text.push_str(&self.metrics.text());
        text
    }
}

fn page(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(TEXT_FORMAT));
    response
}

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

const END_MARK: &str = "# EOF";

const ENGINE_ANSWERS: &str = "# HELP grpcxx_control_engine_answers Whether the engine gave its metrics in time\n\
    # TYPE grpcxx_control_engine_answers gauge\n\
    grpcxx_control_engine_answers ";
