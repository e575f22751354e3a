//! Spans of calls for OpenTelemetry: exported by OTLP, and joined over processes.
//!
//! A program that has a subscriber of `tracing` adds [`Telemetry::layer`] to it. One that exports
//! spans by itself, through `tracing-opentelemetry`, sets [`OpenTelemetry`] as the propagator of
//! its engines and needs nothing else of this crate.

#![forbid(unsafe_code)]

mod propagator;
mod settings;

use std::time::Duration;

use grpcxx_runtime::trace::{PropagatorIsSet, TARGET, set_propagator};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use thiserror::Error;
use tokio::runtime::{self, Runtime};
use tracing::Subscriber;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;

pub use propagator::OpenTelemetry;
pub use settings::{BadSetting, Settings};

/// The export of this process. When it is dropped, the last spans get a short time to be sent.
#[derive(Debug)]
#[must_use = "the last spans are sent when this is dropped"]
pub struct Telemetry {
    provider: SdkTracerProvider,
    _background: Background,
}

/// Where the connection to the collector lives.
#[derive(Debug)]
struct Background(Option<Runtime>);

/// Why spans cannot be exported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The thread of the connection did not start.
    #[error("cannot start the thread that sends spans: {0}")]
    Thread(std::io::Error),
    /// The settings were refused.
    #[error("cannot send spans: {0}")]
    Exporter(ExporterBuildError),
    /// Another part of the process exports already.
    #[error(transparent)]
    PropagatorIsSet(#[from] PropagatorIsSet),
}

impl Telemetry {
    /// Begins to export the spans of all calls that begin from here on. A collector that is away
    /// costs the spans, and nothing else: they wait in a bounded queue, and the log says that they
    /// are lost.
    ///
    /// # Errors
    /// The thread does not start, the endpoint is none, or the process exports already.
    pub fn start(settings: &Settings) -> Result<Self, TelemetryError> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("grpcxx-spans")
            .enable_all()
            .build()
            .map_err(TelemetryError::Thread)?;
        let handle = runtime.handle().clone();
        let background = Background(Some(runtime));
        let entered = handle.enter();
        let exporter = SpanExporter::builder()
            .with_tonic()
            .with_endpoint(&settings.endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(TelemetryError::Exporter)?;
        drop(entered);
        let resource = Resource::builder()
            .with_service_name(settings.service_name.clone())
            .build();
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource)
            .build();
        set_propagator(OpenTelemetry)?;
        Ok(Self {
            provider,
            _background: background,
        })
    }

    /// What takes the spans, for a subscriber of `tracing`. It takes those of calls alone.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("grpcxx"))
            .with_location(false)
            .with_threads(false)
            .with_filter(filter_fn(|metadata| metadata.target() == TARGET))
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // The log has said why, if it fails.
        let _ = self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // An asynchronous program must not wait here, and what was to be sent is sent.
            runtime.shutdown_background();
        }
    }
}

/// How long one request to the collector may take.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the end of the process waits for the last spans.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
