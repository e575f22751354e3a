//! Servers of a key-value store, called over star.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_executor::block_on;
use grpcxx::{Code, Engine, Status};
use grpcxx_keyvalue::proto::{DeleteRequest, Entry, GetRequest, PutRequest};
use grpcxx_keyvalue::proto::{KeyValueClient, ScanRequest};
use grpcxx_keyvalue::store::{ENTRY_BYTES, end_of_prefix};
use grpcxx_keyvalue::{Limits, Server};
use proptest::prelude::*;

use crate::ports;

/// A server, and a client of it.
struct Both {
    client: KeyValueClient,
    server: Server,
    _engine: Engine,
}

impl Both {
    fn start(shards: usize, limits: Limits) -> Self {
        let task = Engine::builder().task("keyvalue", 0).listen("127.0.0.1:0");
        let server = Server::start(task.shards(shards).pin(false), limits).unwrap();
        let engine = Engine::builder().shards(1).pin(false).start().unwrap();
        let address = server.engine().local_addr().unwrap().to_string();
        Self {
            client: KeyValueClient::new(engine.connect(&address).unwrap()),
            server,
            _engine: engine,
        }
    }

    fn get(&self, key: &[u8]) -> Result<Bytes, Status> {
        let key = Bytes::copy_from_slice(key);
        let reply = self.client.get(GetRequest { key }).wait()?;
        Ok(reply.into_inner().value)
    }

    fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, Status> {
        let [key, value] = [key, value].map(Bytes::copy_from_slice);
        let reply = self.client.put(PutRequest { key, value }).wait()?;
        Ok(reply.into_inner().replaced)
    }

    fn delete(&self, key: &[u8]) -> Result<bool, Status> {
        let key = Bytes::copy_from_slice(key);
        let reply = self.client.delete(DeleteRequest { key }).wait()?;
        Ok(reply.into_inner().deleted)
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: u64) -> Result<Vec<Entry>, Status> {
        let [start, end] = [start, end].map(Bytes::copy_from_slice);
        let call = self.client.scan(ScanRequest { start, end, limit });
        let mut entries = call.wait()?.into_inner();
        let mut scanned = Vec::new();
        while let Some(entry) = entries.wait_message()? {
            scanned.push(entry);
        }
        Ok(scanned)
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, Status>) -> Code {
    result.unwrap_err().code
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Get(Vec<u8>),
    Scan(Vec<u8>, Vec<u8>, u64),
}

/// Keys that often are the same, or the begin of one another.
fn keys() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0_u8), Just(7), Just(254), Just(255)], 1..4)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let values = proptest::collection::vec(any::<u8>(), 0..200);
    let step = prop_oneof![
        4 => (keys(), values).prop_map(|(key, value)| Step::Put(key, value)),
        2 => keys().prop_map(Step::Delete),
        2 => keys().prop_map(Step::Get),
        1 => (keys(), keys(), 0..9_u64).prop_map(|(one, other, limit)| {
            let (start, end) = if one <= other { (one, other) } else { (other, one) };
            Step::Scan(start, end, limit)
        }),
    ];
    proptest::collection::vec(step, 1..60)
}

#[test]
fn a_call_that_waits_for_its_server_finds_the_service() {
    for _ in 0..20 {
        let address = ports::held_address().to_string();
        let engine = Engine::builder().redial_delay(Duration::from_micros(100));
        let engine = engine.start().unwrap();
        let client = KeyValueClient::new(engine.connect(&address).unwrap());
        let call = client.get(GetRequest { key: "k".into() });
        let task = Engine::builder().listen(address.as_str());
        let server = Server::start(task.shards(2).pin(false), Limits::default()).unwrap();
        let missing = call.wait().unwrap_err();
        assert_eq!(missing.code, Code::NotFound, "{missing}");
        assert!(missing.message.contains("key"), "{missing}");
        server.stop().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_store_is_what_a_plain_map_would_be(steps in steps(), shards in 1_usize..4) {
        let both = Both::start(shards, Limits::default());
        let mut plain: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(key, value) => {
                    let replaced = both.put(&key, &value).unwrap();
                    prop_assert_eq!(replaced, plain.insert(key, value).is_some());
                }
                Step::Delete(key) => {
                    prop_assert_eq!(both.delete(&key).unwrap(), plain.remove(&key).is_some());
                }
                Step::Get(key) => match plain.get(&key) {
                    Some(value) => prop_assert_eq!(&both.get(&key).unwrap(), value),
                    None => prop_assert_eq!(code(both.get(&key)), Code::NotFound),
                },
                Step::Scan(start, end, limit) => {
                    let max = if limit == 0 { usize::MAX } else { limit as usize };
                    let expected = plain.range(start.clone()..end.clone()).take(max);
                    let scanned = both.scan(&start, &end, limit).unwrap();
                    prop_assert!(scanned.iter().map(|entry| (&*entry.key, &*entry.value))
                        .eq(expected.map(|(key, value)| (&**key, &**value))));
                }
            }
        }
        let taken = plain.iter().map(|(key, value)| ENTRY_BYTES + (key.len() + value.len()) as u64);
        prop_assert_eq!(both.server.memory_bytes(), taken.sum::<u64>());
    }
}

#[test]
fn keys_lie_on_all_shards_and_a_scan_merges_their_pages_in_order() {
    let both = Both::start(3, Limits::default());
    // Numbers that do not come in order, with values that make pages of many lengths.
    let number = |index: u32| index.wrapping_mul(2_654_435_761) % 1_000_003;
    let value = |number: u32| vec![number as u8; (number % 700) as usize];
    let mut expected = BTreeMap::new();
    for index in 0..5000 {
        let number = number(index);
        let key = format!("{number:07}");
        both.put(key.as_bytes(), &value(number)).unwrap();
        expected.insert(key, number);
    }
    let counts = block_on(both.server.keys_by_shard()).unwrap();
    assert_eq!(counts.iter().sum::<usize>(), expected.len());
    assert!(counts.iter().all(|count| *count > 1000), "{counts:?}");

    let scanned = both.scan(b"", b"", 0).unwrap();
    assert_eq!(scanned.len(), expected.len());
    for (entry, (key, number)) in scanned.iter().zip(&expected) {
        assert_eq!(
            (&*entry.key, &*entry.value),
            (key.as_bytes(), &*value(*number))
        );
    }
    let prefix = b"0123";
    let scanned = both.scan(prefix, &end_of_prefix(prefix), 0).unwrap();
    let expected = expected.keys().filter(|key| key.starts_with("0123"));
    assert!(
        scanned
            .iter()
            .map(|entry| &*entry.key)
            .eq(expected.map(String::as_bytes))
    );
}

#[test]
fn the_end_of_a_prefix_is_before_all_longer_keys_of_others() {
    assert_eq!(end_of_prefix(b""), b"");
    assert_eq!(end_of_prefix(b"a"), b"b");
    assert_eq!(end_of_prefix(b"a\xff"), b"b");
    assert_eq!(end_of_prefix(b"a\xfe\xff"), b"a\xff");
    assert_eq!(end_of_prefix(b"\xff\xff"), b"");
}

#[test]
fn a_scan_has_each_key_once_that_was_there_all_the_time() {
    let both = Both::start(2, Limits::default());
    let key = |number: u32| format!("{number:06}");
    for number in (0..6000).step_by(2) {
        both.put(key(number).as_bytes(), &[1; 100]).unwrap();
    }
    let (mut scans, mut changed) = (0, 1);
    while scans < 5 {
        let call = both.client.scan(ScanRequest::default());
        let mut entries = call.wait().unwrap().into_inner();
        let mut scanned: Vec<Bytes> = Vec::new();
        while let Some(entry) = entries.wait_message().unwrap() {
            if scanned.len().is_multiple_of(20) {
                // Keys between those that stay come and go.
                both.put(key(changed % 6000).as_bytes(), &[2; 1000])
                    .unwrap();
                both.delete(key((changed + 3000) % 6000).as_bytes())
                    .unwrap();
                changed += 14;
            }
            scanned.push(entry.key);
        }
        assert!(scanned.is_sorted_by(|one, other| one < other));
        let is_even = |key: &Bytes| (key[5] - b'0').is_multiple_of(2);
        scanned.retain(is_even);
        let expected: Vec<String> = (0..6000).step_by(2).map(key).collect();
        assert_eq!(scanned, expected);
        scans += 1;
    }
}

#[test]
fn bad_input_gets_a_status_that_says_what_is_allowed() {
    let both = Both::start(2, Limits::default());
    for (key, value) in [
        (&b""[..], 1),
        (&[b'k'; 4097][..], 1),
        (b"key", (1 << 20) + 1),
    ] {
        let status = both.put(key, &vec![0; value]).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument, "{status}");
        assert!(
            status.message.contains("4096") || status.message.contains("1048576"),
            "{status}"
        );
    }
    for key in [&b""[..], &[b'k'; 4097][..]] {
        assert_eq!(code(both.get(key)), Code::InvalidArgument);
        assert_eq!(code(both.delete(key)), Code::InvalidArgument);
    }
    let status = both.get(b"a\nb").unwrap_err();
    assert_eq!(
        (status.code, &*status.message),
        (Code::NotFound, r#"there is no key "a\nb""#)
    );
    assert_eq!(code(both.scan(b"b", b"a", 0)), Code::InvalidArgument);
    assert_eq!(
        code(both.scan(&[b'k'; 4097], b"", 0)),
        Code::InvalidArgument
    );
    assert_eq!(both.scan(b"a", b"a", 0).unwrap(), []);
    assert_eq!(both.server.memory_bytes(), 0);

    let longest = ([b'k'; 4096], vec![7; 1 << 20]);
    assert!(!both.put(&longest.0, &longest.1).unwrap());
    assert_eq!(both.get(&longest.0).unwrap(), longest.1);
}

#[test]
fn a_full_server_refuses_puts_and_keeps_what_it_has() {
    let limits = Limits {
        memory_bytes_max: 10 * (ENTRY_BYTES + 1004),
        ..Limits::default()
    };
    let both = Both::start(2, limits);
    let key = |number: usize| format!("k{number:03}");
    for number in 0..10 {
        both.put(key(number).as_bytes(), &[1; 1000]).unwrap();
    }
    assert_eq!(both.server.memory_bytes(), limits.memory_bytes_max);
    let status = both.put(b"more", b"").unwrap_err();
    assert_eq!(status.code, Code::ResourceExhausted, "{status}");
    assert_eq!(code(both.put(b"k000", &[2; 1001])), Code::ResourceExhausted);
    assert_eq!(both.get(b"k000").unwrap(), vec![1; 1000]);
    assert_eq!(both.scan(b"", b"", 0).unwrap().len(), 10);

    assert!(both.put(b"k000", &[2; 1000]).unwrap());
    assert!(both.delete(b"k001").unwrap());
    assert!(!both.put(b"more", b"").unwrap());
    assert!(both.put(b"more", &[3; 1000]).unwrap());
    assert_eq!(both.server.memory_bytes(), limits.memory_bytes_max);
}

#[test]
fn a_scan_that_nobody_reads_holds_up_nothing() {
    let both = Both::start(2, Limits::default());
    for number in 0..200_u32 {
        both.put(&number.to_be_bytes(), &vec![1; 256 << 10])
            .unwrap();
    }
    let scan = both.client.scan(ScanRequest::default());
    let mut unread = scan.wait().unwrap().into_inner();
    assert!(unread.wait_message().unwrap().is_some());
    for number in 0..200_u32 {
        assert_eq!(both.get(&number.to_be_bytes()).unwrap().len(), 256 << 10);
    }
    assert_eq!(both.scan(b"", b"", 0).unwrap().len(), 200);
    let scans_under_way = || {
        let reports = both.server.engine().method_reports();
        let scan = reports.iter().find(|report| report.path.ends_with("Scan"));
        scan.unwrap().in_flight
    };
    assert_eq!(scans_under_way(), 1);
    drop(unread);
    let limit = Instant::now() + Duration::from_secs(20);
    while scans_under_way() > 0 {
        assert!(Instant::now() < limit, "the scan goes on");
        thread::sleep(Duration::from_millis(1));
    }
}
