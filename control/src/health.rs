//! How it is with the task and its services, as gRPC's service for that tells it.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, watch};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::Backend;
use crate::methods::HEALTH_SERVICES;

/// The health of all services, those too that the program registers later.
pub(crate) struct Health {
    backend: Arc<dyn Backend>,
    reporter: HealthReporter,
    /// Whether nothing is served any more.
    is_over: AtomicBool,
    /// What was told of each service. Whoever holds it tells, so nobody takes for told what is not.
    told: Mutex<HashMap<&'static str, ServingStatus>>,
}

impl Health {
    pub(crate) fn new(backend: Arc<dyn Backend>, reporter: HealthReporter) -> Arc<Self> {
        Arc::new(Self {
            backend,
            reporter,
            is_over: AtomicBool::new(false),
            told: Mutex::default(),
        })
    }

    /// Tells of the services that are there now. Those of which all was told are left alone:
    /// whoever watches one hears of each time.
    pub(crate) async fn tell(&self) {
        let mut told = self.told.lock().await;
        let status = match self.is_over.load(Ordering::SeqCst) {
            true => ServingStatus::NotServing,
            false => ServingStatus::Serving,
        };
        let registered = self.backend.services().into_iter();
        let registered = registered.map(|service| service.name);
        for name in iter::once("").chain(HEALTH_SERVICES).chain(registered) {
            if told.get(name) != Some(&status) {
                self.reporter.set_service_status(name, status).await;
                told.insert(name, status);
            }
        }
    }

    /// Tells that nothing is served any more.
    pub(crate) async fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.tell().await;
    }

    /// Ends it as soon as there is a failure.
    pub(crate) async fn end_with(&self, mut failure: watch::Receiver<bool>) {
        if failure.wait_for(|&has_failed| has_failed).await.is_ok() {
            self.end().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use tonic::Request;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_server::Health as _;
    use tonic_health::server::HealthService;

    use super::*;
    use crate::fuzz::Nothing;

    #[tokio::test]
    async fn who_asks_while_another_is_told_hears_of_each_service() {
        let reporter = HealthReporter::new();
        let service = HealthService::from_health_reporter(reporter.clone());
        let health = Health::new(Arc::new(Nothing), reporter);
        let mut others = pin!(health.tell());
        poll_fn(|context| {
            // A task that has used up its budget stops at the next lock.
            while pin!(tokio::task::consume_budget()).poll(context).is_ready() {}
            assert!(others.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        tokio::task::yield_now().await;
        let asks = async {
            health.tell().await;
            for name in HEALTH_SERVICES {
                let asked = HealthCheckRequest {
                    service: name.to_owned(),
                };
                let status = service.check(Request::new(asked)).await;
                let status = status.unwrap().into_inner().status;
                assert_eq!(status, ServingStatus::Serving as i32);
            }
        };
        tokio::join!(others, asks);
    }

    #[tokio::test]
    async fn what_is_told_behind_the_end_is_the_end() {
        let reporter = HealthReporter::new();
        let service = HealthService::from_health_reporter(reporter.clone());
        let health = Health::new(Arc::new(Nothing), reporter);
        health.end().await;
        health.tell().await;
        let asked = Request::new(HealthCheckRequest::default());
        let status = service.check(asked).await.unwrap().into_inner().status;
        assert_eq!(status, ServingStatus::NotServing as i32);
    }
}
