//! Engines whose connections go on over RDMA. Without a device that part is skipped, and says so;
//! `scripts/rdma-guest` runs it where one is.

#[path = "support/gpu.rs"]
mod gpu;
mod support;

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use grpcxx_memory::{DeviceBuffer, DeviceMemory};
use grpcxx_rpc::{DType, Method, Request, Response, Shape, Tensor};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::host::HostSetting;
use grpcxx_runtime::{Engine, EngineOptions, LinkMedium, Peer, Rdma};

use support::{floats, key, receive, state};

/// Shared memory would be nearer.
fn options(job: &str) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shm = None;
        options.arena = Some(grpcxx_memory::ArenaOptions::default().with(|options| {
            options.capacity_bytes = 128 << 20;
            options.huge_pages = false;
        }));
    })
}

fn pair(with: impl Fn(&str) -> EngineOptions) -> (Engine, Engine, Peer) {
    let server = Engine::start(with("ps")).unwrap();
    let worker = Engine::start(with("worker")).unwrap();
    let address = server.local_addr().unwrap().to_string();
    let peer = worker.client().peer(&address).unwrap();
    (server, worker, peer)
}

#[allow(clippy::print_stderr)]
fn has_rdma(engine: &Engine) -> bool {
    let Rdma::Off { why } = &engine.start_report().rdma else {
        return true;
    };
    assert!(!why.is_empty());
    assert!(
        std::env::var_os("GRPCXX_RDMA_REQUIRED").is_none(),
        "GRPCXX_RDMA_REQUIRED is set, but: {why}"
    );
    eprintln!("SKIPPED, RDMA was not tested: {why}");
    false
}

fn exchange(server: &Engine, worker: &Engine, peer: &Peer, step_id: i64, lens: &[usize]) {
    let mut calls = Vec::new();
    for index in 0..200 {
        let key = key(server, index);
        let tensor = floats(lens[index % lens.len()], index as f32);
        if index % 3 == 0 {
            server.send(step_id, key.clone(), tensor).unwrap();
            calls.push(receive(worker, peer, step_id, key));
        } else {
            calls.push(receive(worker, peer, step_id, key.clone()));
            server.send(step_id, key, tensor).unwrap();
        }
    }
    for (index, call) in calls.into_iter().enumerate() {
        let Response::Tensors(tensors) = call.wait().unwrap() else {
            panic!("a tensor was asked for");
        };
        assert_eq!(tensors[0], floats(lens[index % lens.len()], index as f32));
    }
}

fn wait_for(engine: &Engine, peer: &Peer, medium: LinkMedium) {
    let end = Instant::now() + Duration::from_secs(60);
    while state(engine, peer).medium != medium {
        assert!(Instant::now() < end, "{:?}", state(engine, peer));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls that are under way when the connection moves end once each, with their own answers, and so
/// do those after.
#[test]
fn connections_move_to_rdma_under_their_calls() {
    for host in [HostSetting::Native, HostSetting::Auto] {
        let (server, worker, peer) = pair(|job| options(job).with(|options| options.host = host));
        if !has_rdma(&server) {
            return;
        }
        exchange(&server, &worker, &peer, 1, &[1, 100, 5000, 70_000]);
        wait_for(&worker, &peer, LinkMedium::Rdma);
        exchange(&server, &worker, &peer, 2, &[1, 3000, 300_000]);
        // A pause lets the shards sleep, from which messages wake them.
        std::thread::sleep(Duration::from_millis(100));
        exchange(&server, &worker, &peer, 3, &[10]);
        assert_eq!(worker.counters().links_moved, 1);
        assert_eq!(server.counters().links_moved, 1);
    }
}

/// Between processes of one host shared memory is nearer, if both can.
#[test]
fn shared_memory_goes_first_where_both_ends_have_it() {
    for (worker_shares, medium) in [(true, LinkMedium::SharedMemory), (false, LinkMedium::Rdma)] {
        let (server, worker, peer) = pair(|job| {
            let mut options = options(job);
            if job == "ps" || worker_shares {
                options.shm = EngineOptions::default().shm;
            }
            options
        });
        if !has_rdma(&server) {
            return;
        }
        exchange(&server, &worker, &peer, 1, &[1, 5000]);
        wait_for(&worker, &peer, medium);
        exchange(&server, &worker, &peer, 2, &[1, 5000]);
    }
}

#[test]
fn whoever_has_no_device_says_why_and_stays_on_tcp() {
    let (server, worker, peer) = pair(|job| {
        let mut options = options(job);
        if job == "ps" {
            options.rdma = None;
        } else if let Some(rdma) = &mut options.rdma {
            rdma.device = Some("nonesuch0".to_owned());
        }
        options
    });
    for (engine, reason) in [(&server, "GRPCXX_RDMA"), (&worker, "RDMA")] {
        let Rdma::Off { why } = &engine.start_report().rdma else {
            panic!("there is no such device");
        };
        assert!(why.contains(reason) || why.contains("libibverbs"), "{why}");
    }
    exchange(&server, &worker, &peer, 1, &[1, 70_000]);
    assert_eq!(state(&worker, &peer).medium, LinkMedium::Tcp);
}

/// From memory that no CPU can read, over the staging path, into such memory: over TCP, and over
/// RDMA if it can be had.
#[test]
fn a_tensor_in_device_memory_takes_the_staging_path() {
    for over_rdma in [false, true] {
        let (server, worker, peer) = pair(|job| {
            let mut options = options(job);
            options.rdma = options.rdma.filter(|_| over_rdma);
            options
        });
        if over_rdma && !has_rdma(&server) {
            return;
        }
        exchange(&server, &worker, &peer, 1, &[1]);
        let medium = match over_rdma {
            true => LinkMedium::Rdma,
            false => LinkMedium::Tcp,
        };
        wait_for(&worker, &peer, medium);
        for (edge, len_bytes) in [40, 9000, 100_000, 3 << 20].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len_bytes).map(|at| (at * 7 + at / 251) as u8).collect();
            let source = gpu::Gpu::new(bytes.clone());
            let target = gpu::Gpu::new(vec![0; len_bytes]);
            let data = DeviceBuffer::new(source, 0, len_bytes).unwrap();
            let shape = Shape::new(&[len_bytes as u64]).unwrap();
            let tensor = Tensor::from_device(DType::UInt8, shape, &data).unwrap();
            let key = key(&server, edge);
            server.send(2, key.clone(), tensor).unwrap();
            let Response::Tensors(tensors) = receive(&worker, &peer, 2, key).wait().unwrap() else {
                panic!("a tensor was asked for");
            };
            target.copy_from_host(0, &tensors[0].data).unwrap();
            assert!(*target.0.lock().unwrap() == bytes, "{len_bytes} bytes");
        }
    }
}

/// The network device below an RDMA device.
fn network_device(engine: &Engine) -> String {
    let Rdma::On { device, .. } = &engine.start_report().rdma else {
        panic!("it has a device");
    };
    let name = device.split(' ').next().unwrap();
    let attributes = format!("/sys/class/infiniband/{name}/ports/1/gid_attrs/ndevs/0");
    let name = std::fs::read_to_string(attributes).expect("RoCE has a network device");
    name.trim().to_owned()
}

fn set_network(device: &str, state: &str) {
    let done = Command::new("ip")
        .args(["link", "set", device, state])
        .status();
    assert!(done.expect("the program ip is there").success());
}

/// How long a call takes, and whether it succeeds.
fn ask(engine: &Engine, peer: &Peer) -> (Duration, bool) {
    let request = Request::Message {
        method: Method::GetStatus,
        body: grpcxx_memory::Buffer::new(),
    };
    let start = Instant::now();
    let call = engine
        .client()
        .call(peer, request, Some(Duration::from_secs(30)));
    let is_done = call.wait().is_ok();
    (start.elapsed(), is_done)
}

/// Takes the network below the device away and gives it back, so `scripts/rdma-guest` runs it
/// alone, in a guest.
#[test]
#[ignore = "takes the network of the device away"]
#[allow(clippy::print_stderr)]
fn calls_go_on_over_tcp_while_rdma_is_away() {
    let (server, worker, peer) = pair(options);
    if !has_rdma(&server) {
        return;
    }
    exchange(&server, &worker, &peer, 1, &[1, 5000]);
    wait_for(&worker, &peer, LinkMedium::Rdma);
    let network = network_device(&server);
    set_network(&network, "down");

    let (noticed, is_done) = ask(&worker, &peer);
    assert!(!is_done, "the call was on a link that carries nothing");
    let (back, is_done) = ask(&worker, &peer);
    assert!(is_done);
    eprintln!("the failure was known after {noticed:?}; the next call took {back:?}");
    assert!(back < Duration::from_secs(1), "{back:?}");
    assert_eq!(state(&worker, &peer).medium, LinkMedium::Tcp);
    let fallen = worker.counters().links_fallen_back + server.counters().links_fallen_back;
    assert_eq!(fallen, 1);
    exchange(&server, &worker, &peer, 2, &[1, 5000, 70_000]);

    set_network(&network, "up");
    let end = Instant::now() + Duration::from_secs(120);
    while state(&worker, &peer).medium != LinkMedium::Rdma {
        assert!(Instant::now() < end, "{:?}", state(&worker, &peer));
        std::thread::sleep(Duration::from_millis(10));
    }
    exchange(&server, &worker, &peer, 3, &[1, 5000, 70_000]);
}
