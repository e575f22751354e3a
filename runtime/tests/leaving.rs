//! Engines beside a peer that plays an original: they leave it so that it goes on, and take what it
//! sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, Method, Reason, Request, Response, Status};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Call, DrainLimits, Engine, EngineOptions, Peer};
use grpcxx_tcp::{DriverRequest, TcpOptions, TcpTransport};

use crate::original::encode::{self, UINT8};
use crate::original::{Asked, Original, PATIENCE, Packet};

/// What waits for nobody ends within this time, however busy the machine is.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Runs a test with each driver that works here.
fn with_each_driver(run: impl Fn(DriverRequest)) {
    run(DriverRequest::Epoll);
    let ring = TcpOptions::default().with(|options| options.driver = DriverRequest::IoUring);
    if TcpTransport::open(ring).is_ok() {
        run(DriverRequest::IoUring);
    }
}

fn engine_with(driver: DriverRequest, drain: DrainLimits) -> Engine {
    Engine::start(EngineOptions::default().with(|options| {
        options.task = TaskId::new("worker", 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.tcp = TcpOptions::default().with(|options| options.driver = driver);
        options.drain = drain;
    }))
    .unwrap()
}

fn engine(driver: DriverRequest) -> Engine {
    engine_with(driver, DrainLimits::default())
}

/// An engine that would wait for much longer than [`AT_ONCE`] if it waited for a peer at all.
fn patient_engine(driver: DriverRequest) -> Engine {
    let drain = DrainLimits::default().with(|limits| {
        limits.time = 6 * AT_ONCE;
        limits.quiet = 3 * AT_ONCE;
    });
    engine_with(driver, drain)
}

fn receive(engine: &Engine, peer: &Peer, key: &str) -> Call {
    let request = Request::RecvTensor {
        step_id: 1,
        key: key.into(),
    };
    engine.client().call(peer, request, Some(PATIENCE))
}

/// Asks a peer for its status.
fn status_call(engine: &Engine, peer: &Peer) -> Call {
    let request = Request::Message {
        method: Method::GetStatus,
        body: Vec::new().into(),
    };
    engine.client().call(peer, request, Some(PATIENCE))
}

fn peer_of(engine: &Engine, original: &Original) -> Peer {
    let address = original.address.to_string();
    engine.client().peer(&address).unwrap()
}

fn status_of(call: Call) -> Status {
    call.wait().unwrap_err()
}

fn tensor_bytes(call: Call) -> usize {
    match call.wait().unwrap() {
        Response::Tensors(tensors) => tensors[0].data.len(),
        other => panic!("{other:?}"),
    }
}

/// Answers the status as an original does, and each receive with a tensor of so many bytes.
fn tensors_of(bytes: usize) -> impl Fn(&Asked) -> Vec<Packet> {
    move |asked| {
        let payload = match asked.method {
            encode::RECV_TENSOR => encode::record(UINT8, bytes as u32, &vec![7; bytes]),
            _ => Vec::new(),
        };
        vec![Packet::now(encode::response(asked.tag, 0, 0, &payload))]
    }
}

/// A slow writer with eight answers of 4 MiB, of which the first is half written.
fn slow_writer() -> Original {
    Original::start(Duration::from_millis(1), tensors_of(4 << 20))
}

fn eight_calls(engine: &Engine, original: &Original) -> (Peer, Vec<Call>) {
    let peer = peer_of(engine, original);
    let calls = (0..8).map(|_| receive(engine, &peer, "k")).collect();
    original.until_written(2 << 20);
    (peer, calls)
}

#[test]
fn a_reset_wedges_the_original_of_these_tests() {
    let original = slow_writer();
    let mut stream = TcpStream::connect(original.address).unwrap();
    for tag in 0..8 {
        let request = encode::request(encode::RECV_TENSOR, tag, 0, b"");
        stream.write_all(&request).unwrap();
    }
    original.until_written(1 << 20);
    original.until_queued(2);
    drop(stream);
    original.until_wedged();
}

#[test]
fn disconnect_leaves_an_original_that_goes_on() {
    with_each_driver(|driver| {
        let original = slow_writer();
        let engine = engine(driver);
        let (peer, calls) = eight_calls(&engine, &original);
        engine.client().disconnect(&peer);
        for call in calls {
            let status = status_of(call);
            assert_eq!(status.code, Code::Unavailable, "{status}");
            assert!(status.message.ends_with("closed by this side"), "{status}");
        }
        assert!(
            original.written_bytes() < 8 * (4 << 20),
            "calls end before the original has sent all"
        );
        assert_eq!(tensor_bytes(receive(&engine, &peer, "k")), 4 << 20);
        assert!(original.answers_others());
        assert!(!original.is_wedged());
    });
}

#[test]
fn shutdown_without_grace_leaves_an_original_that_goes_on() {
    with_each_driver(|driver| {
        let original = slow_writer();
        let engine = engine(driver);
        let (_, calls) = eight_calls(&engine, &original);
        engine.shutdown(Duration::ZERO).unwrap();
        assert!(
            original.written_bytes() > 8 * (4 << 20),
            "it could send all"
        );
        for call in calls {
            assert_eq!(status_of(call).code, Code::Unavailable);
        }
        assert!(original.answers_others());
        assert!(!original.is_wedged());
    });
}

/// checklist 18: nobody owes an answer, so nothing is waited for, though an original never closes
/// its side.
#[test]
fn an_idle_original_is_left_at_once() {
    with_each_driver(|driver| {
        let original = Original::start(Duration::ZERO, tensors_of(100));
        let engine = patient_engine(driver);
        let peer = peer_of(&engine, &original);
        assert_eq!(tensor_bytes(receive(&engine, &peer, "k")), 100);
        let start = Instant::now();
        engine.shutdown(Duration::ZERO).unwrap();
        assert!(start.elapsed() < AT_ONCE);
    });
}

/// An answer that comes hours later is waited for as long as is stated, and no longer.
#[test]
fn an_original_that_owes_an_answer_is_left_in_the_stated_time() {
    with_each_driver(|driver| {
        let original = Original::start(Duration::ZERO, |asked: &Asked| match asked.method {
            encode::RECV_TENSOR => Vec::new(),
            _ => vec![Packet::now(encode::response(asked.tag, 0, 0, b""))],
        });
        let drain = DrainLimits::default().with(|limits| {
            limits.time = Duration::from_millis(300);
            limits.quiet = 3 * AT_ONCE;
        });
        let engine = engine_with(driver, drain);
        let peer = peer_of(&engine, &original);
        let call = receive(&engine, &peer, "k");
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        engine.shutdown(Duration::ZERO).unwrap();
        let took = start.elapsed();
        assert!(
            (Duration::from_millis(300)..AT_ONCE).contains(&took),
            "{took:?}"
        );
        assert_eq!(status_of(call).code, Code::Unavailable);
    });
}

/// What broke the protocol reaches the caller; what the original still has to send is taken.
#[test]
fn a_violation_is_told_to_callers_and_drained() {
    with_each_driver(|driver| {
        const CALLS: usize = 8;
        let held = Mutex::new(Vec::new());
        let original = Original::start(Duration::from_millis(1), move |asked: &Asked| {
            let mut packets = tensors_of(2 << 20)(asked);
            if asked.method != encode::RECV_TENSOR {
                return packets;
            }
            // A rank that no form holds.
            packets[0].bytes[encode::HEADER_BYTES + 5 + 14] = 9;
            // Answers begin once all calls are there: later ones would dial again.
            let mut held = held.lock().unwrap();
            held.push(packets);
            match held.len() < CALLS {
                true => Vec::new(),
                false => held.drain(..).flatten().collect(),
            }
        });
        let engine = engine(driver);
        let peer = peer_of(&engine, &original);
        let calls: Vec<Call> = (0..CALLS).map(|_| receive(&engine, &peer, "k")).collect();
        for call in calls {
            let status = status_of(call);
            assert_eq!(status.code, Code::Unavailable);
            assert_eq!(status.reason, Reason::PeerViolation);
            let what = "broke the protocol, and was cut off: tensor record 0: the rank is 9";
            assert!(status.message.contains(what), "{status}");
        }
        assert!(original.answers_others());
        assert!(!original.is_wedged());
        assert_eq!(engine.counters().violations, 1);
        engine.shutdown(Duration::ZERO).unwrap();
        assert!(!original.is_wedged());
    });
}

/// Seven dimensions end one call; the link and the other calls go on.
#[test]
fn seven_dimensions_of_an_original_end_one_call() {
    let original = Original::start(Duration::ZERO, |asked: &Asked| {
        let is_wide = asked.payload.windows(4).any(|bytes| bytes == b"wide");
        if asked.method == encode::RECV_TENSOR && is_wide {
            let record = encode::record_out_of_line(UINT8, 1 << 20, &vec![7; 1 << 20]);
            return vec![Packet::now(encode::response(asked.tag, 0, 0, &record))];
        }
        tensors_of(1 << 20)(asked)
    });
    let engine = engine(DriverRequest::Auto);
    let peer = peer_of(&engine, &original);
    let calls: Vec<Call> = ["a", "wide", "b"]
        .map(|key| receive(&engine, &peer, key))
        .into();
    let mut calls = calls.into_iter();
    assert_eq!(tensor_bytes(calls.next().unwrap()), 1 << 20);
    let status = status_of(calls.next().unwrap());
    assert_eq!(status.code, Code::Unimplemented);
    assert!(status.message.contains("\"wide\""), "{status}");
    assert_eq!(tensor_bytes(calls.next().unwrap()), 1 << 20);
    assert_eq!(engine.counters().links_lost, 0);
}

/// The stream ends in the header, behind it, in the record, in small and in large data. Originals
/// hang there.
#[test]
fn an_answer_cut_anywhere_ends_its_call_and_the_next_one_connects_anew() {
    for cut in [1, 31, 32, 33, 68, 69, 100, 50_000] {
        let original = Original::start(Duration::ZERO, move |asked: &Asked| {
            let mut packets = tensors_of(100_000)(asked);
            if asked.payload.windows(3).any(|bytes| bytes == b"cut") {
                packets[0].bytes.truncate(cut);
                packets[0].ends_stream = true;
            }
            packets
        });
        let engine = engine(DriverRequest::Auto);
        let peer = peer_of(&engine, &original);
        let status = status_of(receive(&engine, &peer, "cut"));
        assert_eq!(status.code, Code::Unavailable, "{status}");
        assert_eq!(tensor_bytes(receive(&engine, &peer, "k")), 100_000);
    }
}

#[test]
fn an_empty_error_text_gets_one_of_ours_and_the_link_goes_on() {
    let original = Original::start(Duration::ZERO, |asked: &Asked| {
        if asked.payload.windows(5).any(|bytes| bytes == b"fails") {
            return vec![Packet::now(encode::response(asked.tag, 10, 0, b""))];
        }
        tensors_of(100)(asked)
    });
    let engine = engine(DriverRequest::Auto);
    let peer = peer_of(&engine, &original);
    let status = status_of(receive(&engine, &peer, "fails"));
    assert_eq!(status.code, Code::Aborted);
    assert!(!status.message.is_empty());
    assert_eq!(tensor_bytes(receive(&engine, &peer, "k")), 100);
    assert_eq!(engine.counters().links_lost, 0);
}

/// An answer that comes when nobody waits for it any more is taken off the link.
#[test]
fn a_late_answer_is_dropped_and_the_link_goes_on() {
    let original = Original::start(Duration::ZERO, |asked: &Asked| {
        let mut packets = tensors_of(100_000)(asked);
        if asked.payload.windows(4).any(|bytes| bytes == b"late") {
            packets[0].after = Duration::from_millis(150);
        }
        packets
    });
    let engine = engine(DriverRequest::Auto);
    let peer = peer_of(&engine, &original);
    let request = Request::RecvTensor {
        step_id: 1,
        key: "late".into(),
    };
    let timeout = Some(Duration::from_millis(20));
    let late = engine.client().call(&peer, request, timeout);
    assert_eq!(status_of(late).code, Code::DeadlineExceeded);
    original.until_written(100_000);
    assert_eq!(tensor_bytes(receive(&engine, &peer, "k")), 100_000);
    assert_eq!(engine.counters().links_lost, 0);
}

/// A client that is an original and still writes a long request when we stop can write all of it,
/// and sees our end.
#[test]
fn shutdown_takes_what_an_original_client_still_writes() {
    with_each_driver(|driver| {
        let engine = engine(driver);
        let mut stream = TcpStream::connect(engine.local_addr().unwrap()).unwrap();
        let metadata = encode::graph_metadata("f", &["x"]);
        let feed = encode::record(UINT8, 24 << 20, &vec![7; 24 << 20]);
        let payload = [&metadata[..], &feed].concat();
        let metadata_bytes = i32::try_from(metadata.len()).unwrap();
        let request = encode::request(encode::STAR_RUN_GRAPH, 1, metadata_bytes, &payload);
        let (halfway, is_halfway) = channel();
        let writer = thread::spawn(move || {
            for (index, piece) in request.chunks(256 << 10).enumerate() {
                if index == 20 {
                    halfway.send(()).unwrap();
                }
                stream.write_all(piece).expect("nobody resets an original");
                thread::sleep(Duration::from_millis(2));
            }
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).unwrap();
        });
        is_halfway.recv().unwrap();
        engine.shutdown(Duration::ZERO).unwrap();
        writer.join().unwrap();
    });
}

/// What a client still writes after its violation is taken, up to a limit.
#[test]
fn a_client_that_breaks_the_protocol_is_drained() {
    with_each_driver(|driver| {
        let drain = DrainLimits::default().with(|limits| limits.bytes = 8 << 20);
        let engine = engine_with(driver, drain);
        let mut stream = TcpStream::connect(engine.local_addr().unwrap()).unwrap();
        stream.write_all(&[b'X'; 4 << 20]).expect("it is taken");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty());
        let end = Instant::now() + PATIENCE;
        while stream.write_all(&[b'X'; 1 << 20]).is_ok() {
            assert!(Instant::now() < end, "there is no bound of bytes");
        }
    });
}

/// Peers that have announced themselves are left as quickly as before.
#[test]
fn a_peer_that_announced_itself_is_left_at_once() {
    with_each_driver(|driver| {
        let (server, client) = (patient_engine(driver), patient_engine(driver));
        let address = server.local_addr().unwrap().to_string();
        let peer = client.client().peer(&address).unwrap();
        let key = "/job:worker/replica:0/task:0/device:CPU:0;0;a;b;0:0";
        assert!(receive(&client, &peer, key).wait().is_err());
        let pending = receive(&client, &peer, key);
        drop(pending);
        let start = Instant::now();
        client.client().disconnect(&peer);
        client.shutdown(Duration::ZERO).unwrap();
        server.shutdown(Duration::ZERO).unwrap();
        assert!(start.elapsed() < AT_ONCE);
    });
}

/// A connection that is about to go on in shared memory, or just has, is left at once wherever it
/// is.
#[test]
fn a_link_that_migrates_is_left_at_once() {
    with_each_driver(|driver| {
        let (server, client) = (patient_engine(driver), patient_engine(driver));
        let address = server.local_addr().unwrap().to_string();
        let peer = client.client().peer(&address).unwrap();
        for moment in 0..30 {
            let call = status_call(&client, &peer);
            thread::sleep(Duration::from_micros(100 * moment));
            client.client().disconnect(&peer);
            // It may have been answered before.
            let _ = call.wait();
        }
        assert!(status_call(&client, &peer).wait().is_ok());
        let start = Instant::now();
        client.shutdown(Duration::ZERO).unwrap();
        server.shutdown(Duration::ZERO).unwrap();
        assert!(start.elapsed() < AT_ONCE);
    });
}
