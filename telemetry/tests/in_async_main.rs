//! A program whose `main` is asynchronous exports spans like others.

use grpcxx_telemetry::{Settings, Telemetry, TelemetryError};

#[tokio::test]
async fn an_asynchronous_program_may_begin_and_end_its_export() {
    // Nobody listens there, which costs the spans and nothing else.
    let settings = Settings::new("http://127.0.0.1:1", "asynchronous");
    let nowhere = Settings::new("nowhere at all", "asynchronous");
    let refused = Telemetry::start(&nowhere).unwrap_err();
    assert!(matches!(refused, TelemetryError::Exporter(_)));
    let telemetry = Telemetry::start(&settings).unwrap();
    let second = Telemetry::start(&settings).unwrap_err();
    assert!(matches!(second, TelemetryError::PropagatorIsSet(_)));
    drop(telemetry);
}
