//! `docs/grpc.md` names what there is.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use grpcxx_control::services::DESCRIPTORS;
use grpcxx_control::{Control, limits};
use prost::Message;

use crate::support::{Fake, connect, loopback};

const PAGE: &str = include_str!("../../docs/grpc.md");

#[test]
fn every_method_is_in_a_table() {
    let descriptors = prost_types::FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let services = descriptors.file.iter().flat_map(|file| &file.service);
    let mut methods = 0;
    for service in services {
        let table = PAGE
            .split_once(&format!("| `tensorflow.{}` | answer |", service.name()))
            .unwrap()
            .1;
        let table = table.split("\n\n").next().unwrap();
        for method in &service.method {
            let listed = table
                .lines()
                .filter_map(|row| row.split('|').nth(1))
                .flat_map(|cell| cell.split(','))
                .any(|name| name.trim() == method.name());
            assert!(listed, "{} is missing", method.name());
            methods += 1;
        }
    }
    assert_eq!(methods, 27);
}

#[tokio::test]
async fn every_metric_is_in_the_table() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let control = Control::start(loopback().metrics_on(any), Fake::new()).unwrap();
    connect(&control).await.get_status().await.unwrap();
    let mut stream = TcpStream::connect(control.metrics_addr().unwrap()).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let served: BTreeSet<_> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter(|family| family.starts_with("grpcxx_control_"))
        .map(|family| family.split_once(' ').unwrap())
        .collect();
    let documented: BTreeSet<_> = PAGE
        .lines()
        .filter_map(|line| line.strip_prefix("| `grpcxx_control_"))
        .map(|row| {
            let (name, rest) = row.split_once("` | ").unwrap();
            (name, rest.split_once(' ').unwrap().0)
        })
        .collect();
    let served: BTreeSet<_> = served
        .iter()
        .map(|(name, kind)| (name.strip_prefix("grpcxx_control_").unwrap(), *kind))
        .collect();
    assert_eq!(documented, served);
}

#[test]
fn limits_are_as_stated() {
    assert_eq!(limits::MESSAGE_BYTES_MAX, (1 << 31) - 1);
    let page = PAGE.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("an answer 2^31 - 1 bytes"));
    let rows = [
        format!(
            "A request has at most {} MiB",
            limits::REQUEST_MESSAGE_BYTES_MAX >> 20
        ),
        format!(
            "whose request is on its way | {} |",
            limits::ARRIVING_CALLS_MAX
        ),
        format!(
            "beyond the first {} KiB of each | {} MiB |",
            limits::FREE_REQUEST_BYTES >> 10,
            limits::REQUEST_BYTES_MAX >> 20
        ),
        format!("wait for tensors | {} |", limits::TENSOR_CALLS_MAX),
        format!("from one address wait | {} |", limits::WAITING_STEPS_MAX),
        format!("the master service | {} |", limits::SERVICE_CALLS_MAX),
        format!(
            "unary and streaming together | {} |",
            limits::REGISTERED_CALLS_MAX
        ),
        format!("reflection calls | {} |", limits::OBSERVER_CALLS_MAX),
        format!(
            "metrics page | {}, of {} s each |",
            limits::METRICS_CONNECTIONS_MAX,
            limits::METRICS_CONNECTION_TIMEOUT.as_secs()
        ),
    ];
    for row in rows {
        assert!(page.contains(&row), "docs/grpc.md lacks {row}");
    }
    let text = format!("cut at {} bytes", limits::ERROR_TEXT_BYTES_MAX);
    assert!(page.contains(&text), "{text}");
}
