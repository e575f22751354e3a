//! What a fuzzer does with texts that say which tasks there are, and with tensors in messages. A
//! file of its own, so that the fuzzer needs nothing else of these tests.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with a fuzzer"
)]

use std::path::Path;

use grpcxx_rpc::Tensor;
use grpcxx_runtime::cluster::{ClusterSpec, TfConfig, listen_ip_by};
use grpcxx_runtime::endpoint_map::{ENTRIES_MAX, EndpointMap, LINE_BYTES_MAX};
use grpcxx_runtime::service::TensorMessage;
use prost::Message;

/// Whatever is a cluster is the same one when it is written again, in each of the three syntaxes.
pub fn cluster_spec(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(cluster) = ClusterSpec::parse(&text) {
        assert_eq!(
            ClusterSpec::parse(&cluster.to_string()),
            Ok(cluster.clone())
        );
        check(&cluster);
    }
    if let Ok(cluster) = ClusterSpec::from_json(&text) {
        check(&cluster);
    }
    if let Ok(cluster) = TfConfig::parse(&text).and_then(TfConfig::into_cluster) {
        check(&cluster);
    }
}

/// What is true of every cluster.
fn check(cluster: &ClusterSpec) {
    assert_eq!(cluster.tasks().count(), cluster.total_tasks());
    for (task, address) in cluster.tasks() {
        assert_eq!(cluster.require(&task).as_deref(), Ok(address));
        let _ = listen_ip_by(address, |_| Vec::new());
    }
    let again = ClusterSpec::parse(&cluster.to_string()).expect("a cluster can be written");
    let addresses = |cluster: &ClusterSpec| -> Vec<String> {
        cluster.tasks().map(|task| task.1.to_owned()).collect()
    };
    // Indices with gaps have no place in that syntax.
    assert_eq!(addresses(&again), addresses(cluster));
    let map = EndpointMap::generate(cluster, |_, _, port| Ok(port ^ 1));
    if let Ok(map) = map {
        assert!(map.check(cluster).wrong.is_empty());
    }
}

/// Whatever is a map has the same entries when it is written again, and fits a cluster or says why
/// not. What is before the first NUL is the cluster.
pub fn endpoint_map(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == 0);
    let (Some(cluster), Some(map)) = (parts.next(), parts.next()) else {
        return;
    };
    let map = match EndpointMap::parse(Path::new("map"), map) {
        Ok(map) => map,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(map.entries().len() <= ENTRIES_MAX);
    let text = map.to_string();
    let pairs = |map: &EndpointMap| -> Vec<(String, String)> {
        let entries = map.entries().iter();
        entries
            .map(|entry| (entry.key.clone(), entry.value.clone()))
            .collect()
    };
    // Bytes that are no UTF-8 are replaced by longer ones.
    if text.lines().all(|line| line.len() <= LINE_BYTES_MAX) {
        let again = EndpointMap::parse(Path::new("map"), text.as_bytes()).expect("it is a map");
        assert_eq!(pairs(&again), pairs(&map));
    }
    let Ok(cluster) = ClusterSpec::parse(&String::from_utf8_lossy(cluster)) else {
        return;
    };
    let report = map.check(&cluster);
    match map.star_addresses(&cluster) {
        Ok(addresses) => {
            assert_eq!(addresses.len(), cluster.total_tasks());
            assert!(report.wrong.is_empty());
        }
        Err(_) => assert!(!report.wrong.is_empty()),
    }
}

/// Whatever can be read is the same when it is written again, and so is a tensor that it is.
pub fn tensor_message(data: &[u8]) {
    let Ok(message) = TensorMessage::decode(data) else {
        return;
    };
    let bytes = message.encode_to_vec();
    assert_eq!(bytes.len(), message.encoded_len());
    assert_eq!(TensorMessage::decode(&bytes[..]), Ok(message.clone()));
    if let Ok(tensor) = Tensor::try_from(message.clone()) {
        assert_eq!(TensorMessage::from(tensor), message);
    }
}
