//! The endpoint's own numbers.

use std::sync::Arc;
use std::time::Duration;

use grpcxx_rpc::Code;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use crate::methods::Method;

/// The endpoint's own numbers.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    calls: IntCounterVec,
    call_seconds: HistogramVec,
    calls_in_flight: IntGaugeVec,
    /// Bytes of tensors handed to gRPC peers.
    pub(crate) tensor_bytes: IntCounter,
    /// Open connections.
    pub(crate) connections: IntGauge,
    /// Connections closed because too many carried calls.
    pub(crate) connections_refused: IntCounter,
    gave_way: IntCounterVec,
    /// Handshakes of TLS that led to a connection.
    pub(crate) handshakes: IntCounter,
    handshakes_refused: IntCounterVec,
    /// Open worker sessions.
    pub(crate) worker_sessions: IntGauge,
    /// Open master sessions.
    pub(crate) master_sessions: IntGauge,
}

/// What was closed or ended because it was idle for longest, or too long.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GaveWay {
    Connection,
    Call,
    Session,
    Page,
    Handshake,
}

/// Why a connection was closed before it could carry anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeRefused {
    /// The peer proves nothing, or speaks something else.
    Failed,
    /// It took too long.
    Late,
    /// The peer speaks without TLS, and may not.
    Plain,
}

impl GaveWay {
    const ALL: [Self; 5] = [
        Self::Connection,
        Self::Call,
        Self::Session,
        Self::Page,
        Self::Handshake,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Call => "call",
            Self::Session => "session",
            Self::Page => "page",
            Self::Handshake => "handshake",
        }
    }
}

impl HandshakeRefused {
    const ALL: [Self; 3] = [Self::Failed, Self::Late, Self::Plain];

    fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Late => "late",
            Self::Plain => "plain",
        }
    }
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        Self::registered()
            .map(Arc::new)
            .expect("the names and labels are constants, valid and different from each other")
    }

    fn registered() -> prometheus::Result<Self> {
        let metrics = Self {
            registry: Registry::new(),
            calls: IntCounterVec::new(
                Opts::new(
                    "grpcxx_control_calls_total",
                    "gRPC calls that have ended, by status code",
                ),
                &["service", "method", "code"],
            )?,
            call_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "grpcxx_control_call_seconds",
                    "Time from the headers of a gRPC call to the end of its answer",
                )
                .buckets(CALL_SECONDS.to_vec()),
                &["service", "method"],
            )?,
            calls_in_flight: IntGaugeVec::new(
                Opts::new(
                    "grpcxx_control_calls_in_flight",
                    "gRPC calls that have not ended",
                ),
                &["service"],
            )?,
            tensor_bytes: IntCounter::new(
                "grpcxx_control_tensor_bytes_total",
                "Bytes of tensors sent over gRPC to peers without star",
            )?,
            connections: IntGauge::new("grpcxx_control_connections", "Open gRPC connections")?,
            connections_refused: IntCounter::new(
                "grpcxx_control_connections_refused_total",
                "gRPC connections closed because too many carried calls",
            )?,
            gave_way: IntCounterVec::new(
                Opts::new(
                    "grpcxx_control_gave_way_total",
                    "Connections, handshakes, calls, sessions and page loads that gave way to newer ones, or were idle too long",
                ),
                &["what"],
            )?,
            handshakes: IntCounter::new(
                "grpcxx_control_tls_handshakes_total",
                "TLS handshakes that led to a connection",
            )?,
            handshakes_refused: IntCounterVec::new(
                Opts::new(
                    "grpcxx_control_tls_refused_total",
                    "Connections closed before they carried anything: their handshake failed or was late, or they came without TLS",
                ),
                &["why"],
            )?,
            worker_sessions: IntGauge::new(
                "grpcxx_control_worker_sessions",
                "Sessions that masters have opened on this worker",
            )?,
            master_sessions: IntGauge::new(
                "grpcxx_control_master_sessions",
                "Sessions that clients have opened on this master",
            )?,
        };
        let registry = &metrics.registry;
        registry.register(Box::new(metrics.calls.clone()))?;
        registry.register(Box::new(metrics.call_seconds.clone()))?;
        registry.register(Box::new(metrics.calls_in_flight.clone()))?;
        registry.register(Box::new(metrics.tensor_bytes.clone()))?;
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.connections_refused.clone()))?;
        registry.register(Box::new(metrics.gave_way.clone()))?;
        for what in GaveWay::ALL {
            metrics.gave_way.with_label_values(&[what.name()]);
        }
        registry.register(Box::new(metrics.handshakes.clone()))?;
        registry.register(Box::new(metrics.handshakes_refused.clone()))?;
        for why in HandshakeRefused::ALL {
            metrics.handshakes_refused.with_label_values(&[why.name()]);
        }
        registry.register(Box::new(metrics.worker_sessions.clone()))?;
        registry.register(Box::new(metrics.master_sessions.clone()))?;
        Ok(metrics)
    }

    /// Counts a call that begins.
    pub(crate) fn call_started(&self, method: &Method) {
        self.calls_in_flight
            .with_label_values(&[method.service])
            .inc();
    }

    /// Counts a call that was started and has ended with the code of this number.
    pub(crate) fn call_ended(&self, method: &Method, code: i32, duration: Duration) {
        self.calls_in_flight
            .with_label_values(&[method.service])
            .dec();
        self.call_seconds
            .with_label_values(&[method.service, method.name])
            .observe(duration.as_secs_f64());
        let code = match code {
            0 => "OK",
            _ => Code::from_number(code).unwrap_or(Code::Unknown).name(),
        };
        self.calls
            .with_label_values(&[method.service, method.name, code])
            .inc();
    }

    /// Counts what was closed or ended so that something newer has its place.
    pub(crate) fn gave_way(&self, what: GaveWay) {
        self.gave_way.with_label_values(&[what.name()]).inc();
    }

    /// Counts a connection that was closed before it could carry anything.
    pub(crate) fn handshake_refused(&self, why: HandshakeRefused) {
        self.handshakes_refused
            .with_label_values(&[why.name()])
            .inc();
    }

    /// All numbers in Prometheus' text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        TextEncoder::new()
            .encode_utf8(&self.registry.gather(), &mut text)
            .expect("a string takes any text, and every family has a value");
        text
    }
}

/// Upper ends of the classes of call durations, in seconds.
const CALL_SECONDS: [f64; 11] = [
    0.000_25, 0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 16.0, 60.0, 600.0,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods;

    #[test]
    fn every_family_has_help_and_type() {
        let metrics = Metrics::new();
        let method = methods::find("/tensorflow.WorkerService/GetStatus");
        metrics.call_started(method);
        metrics.call_ended(method, 14, Duration::from_millis(2));
        let text = metrics.text();
        assert!(text.contains(
            r#"grpcxx_control_calls_total{code="UNAVAILABLE",method="GetStatus",service="tensorflow.WorkerService"} 1"#
        ));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            assert!(text.contains(&format!("# HELP {family} ")), "{line}");
            assert!(text.contains(&format!("# TYPE {family} ")), "{line}");
            assert!(name.starts_with("grpcxx_control_"), "{line}");
        }
    }
}
