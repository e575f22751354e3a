//! How long calls and requests of star took, and what went over links, in Prometheus' text format:
//! by shard, and by peer.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::text::{begin, histogram, write_number};
use crate::latency::{CallLatency, CallSide, Latency, LinkTraffic, ShardCalls};

/// Adds what shards have told.
pub(super) fn write(told: &[ShardCalls], silent: usize, text: &mut String) -> fmt::Result {
    let latencies = || told.iter().flat_map(|told| &told.latencies);
    for (side, name, meaning) in [
        (
            CallSide::Client,
            "grpcxx_call_seconds",
            "Time of calls of this task, from the turn in which a shard took one to that of its end.",
        ),
        (
            CallSide::Server,
            "grpcxx_request_seconds",
            "Time of requests of peers, from the turn that read one to that of its answer.",
        ),
    ] {
        let calls = latencies().filter(|call| call.side == side);
        let by_shard = sums(calls, |call| {
            let CallLatency {
                shard,
                method,
                medium,
                ..
            } = call;
            format!("method=\"{method}\",medium=\"{medium}\",shard=\"{shard}\"")
        });
        write_histograms(name, meaning, &by_shard, text)?;
    }
    for (side, name, meaning) in [
        (
            CallSide::Client,
            "grpcxx_peer_call_seconds",
            "Time of calls of this task, by the peer that was called.",
        ),
        (
            CallSide::Server,
            "grpcxx_peer_request_seconds",
            "Time of requests, by the peer that asked.",
        ),
    ] {
        let calls = latencies().filter(|call| call.side == side && call.peer.is_some());
        let by_peer = sums(calls, |call| {
            let (method, medium) = (call.method, call.medium);
            let peer = call.peer.as_deref().unwrap_or_default();
            format!("peer=\"{peer}\",method=\"{method}\",medium=\"{medium}\"")
        });
        write_histograms(name, meaning, &by_peer, text)?;
    }
    write_traffic(told, text)?;
    let meaning = "Shards that did not tell in time how long their calls and requests took.";
    let silent = silent as u64;
    write_number("grpcxx_shards_silent", "gauge", meaning, silent, text);
    Ok(())
}

type Bytes = fn(&LinkTraffic) -> u64;

fn write_traffic(told: &[ShardCalls], text: &mut String) -> fmt::Result {
    let links = || told.iter().flat_map(|told| &told.traffic);
    let received = |link: &LinkTraffic| link.received_bytes;
    let sent = |link: &LinkTraffic| link.sent_bytes;
    let numbers: [(&str, &str, Bytes); 2] = [
        ("received", "Bytes of star that came", received),
        ("sent", "Bytes of star that left", sent),
    ];
    for (what, meaning, bytes) in numbers {
        let name = format!("grpcxx_{what}_bytes_total");
        let meaning = format!("{meaning}, by what carried them.");
        let mut sums = BTreeMap::<String, u64>::new();
        for link in links() {
            let labels = format!("medium=\"{}\",shard=\"{}\"", link.medium, link.shard);
            *sums.entry(labels).or_default() += bytes(link);
        }
        write_sums(&name, &meaning, &sums, text)?;
    }
    for (what, meaning, bytes) in numbers {
        let name = format!("grpcxx_peer_{what}_bytes_total");
        let meaning = format!("{meaning}, by peer and by which end had dialled.");
        let mut sums = BTreeMap::<String, u64>::new();
        for link in links() {
            if let Some(peer) = &link.peer {
                let (side, medium) = (link.side.name(), link.medium);
                let labels = format!("peer=\"{peer}\",side=\"{side}\",medium=\"{medium}\"");
                *sums.entry(labels).or_default() += bytes(link);
            }
        }
        write_sums(&name, &meaning, &sums, text)?;
    }
    Ok(())
}

fn sums<'a>(
    calls: impl Iterator<Item = &'a CallLatency>,
    labels: impl Fn(&CallLatency) -> String,
) -> BTreeMap<String, Latency> {
    let mut sums = BTreeMap::<String, Latency>::new();
    for call in calls {
        sums.entry(labels(call)).or_default().add(&call.latency);
    }
    sums
}

fn write_histograms(
    name: &str,
    meaning: &str,
    sums: &BTreeMap<String, Latency>,
    text: &mut String,
) -> fmt::Result {
    begin(text, name, "histogram", meaning)?;
    for (labels, latency) in sums {
        histogram(text, name, labels, latency)?;
    }
    Ok(())
}

fn write_sums(
    name: &str,
    meaning: &str,
    sums: &BTreeMap<String, u64>,
    text: &mut String,
) -> fmt::Result {
    begin(text, name, "counter", meaning)?;
    for (labels, sum) in sums {
        writeln!(text, "{name}{{{labels}}} {sum}")?;
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn shards_are_told_apart_and_summed_by_peer() {
        let shard = |shard: usize, peer: Option<&str>| {
            let mut latency = Latency::default();
            latency.record(1_500, 1 + shard as u64);
            let peer: Option<Arc<str>> = peer.map(Arc::from);
            ShardCalls {
                latencies: vec![CallLatency {
                    shard,
                    side: CallSide::Server,
                    peer: peer.clone(),
                    method: "RecvTensor",
                    medium: "shm",
                    latency,
                }],
                traffic: vec![LinkTraffic {
                    shard,
                    side: CallSide::Server,
                    peer,
                    medium: "shm",
                    received_bytes: 10,
                    sent_bytes: 100 + shard as u64,
                }],
            }
        };
        let told = [
            shard(0, Some("10.0.0.1")),
            shard(1, Some("10.0.0.1")),
            shard(1, None),
        ];
        let mut text = String::new();
        write(&told, 1, &mut text).unwrap();
        for line in [
            "grpcxx_request_seconds_count{method=\"RecvTensor\",medium=\"shm\",shard=\"0\"} 1",
            "grpcxx_request_seconds_count{method=\"RecvTensor\",medium=\"shm\",shard=\"1\"} 4",
            "grpcxx_peer_request_seconds_count{peer=\"10.0.0.1\",method=\"RecvTensor\",medium=\"shm\"} 3",
            "grpcxx_received_bytes_total{medium=\"shm\",shard=\"1\"} 20",
            "grpcxx_peer_received_bytes_total{peer=\"10.0.0.1\",side=\"server\",medium=\"shm\"} 20",
            "grpcxx_peer_sent_bytes_total{peer=\"10.0.0.1\",side=\"server\",medium=\"shm\"} 201",
            "# TYPE grpcxx_peer_call_seconds histogram",
            "grpcxx_shards_silent 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
