//! Engines that call each other allocate nothing once they are warm: no thread of the process does,
//! on either host and with either driver, over sockets and over shared memory, while shards spin
//! and park as they do by default.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grpcxx_memory::ArenaOptions;
use grpcxx_rpc::{GraphCall, RendezvousKey, Request, Response, Tensor, Text};
use grpcxx_runtime::host::HostSetting;
use grpcxx_runtime::{
    CallResult, CallSpec, CompletionHandler, Engine, EngineOptions, Peer, ShardContext,
};
use grpcxx_tcp::{DriverRequest, TcpOptions, TcpTransport};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator, with a count of allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every request goes unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// One call after the other, each begun on the shard by the result of the last.
struct Chain {
    peer: Peer,
    key: Text,
    /// What is called in place of a tensor that is received.
    call: Option<GraphCall>,
    progress: Mutex<Progress>,
    ended: Sender<u64>,
}

#[derive(Default)]
struct Progress {
    done: i64,
    allocations_when_warm: u64,
}

impl Chain {
    fn request(&self, step_id: i64) -> Request {
        Request::RecvTensor {
            step_id,
            key: self.key.clone(),
        }
    }

    /// Notes a result; the step of the next call if there is one.
    fn next(&self) -> Option<i64> {
        let mut progress = self.progress.lock().unwrap();
        progress.done += 1;
        if progress.done == WARM_UP {
            progress.allocations_when_warm = ALLOCATIONS.load(Ordering::Relaxed);
        }
        if progress.done == WARM_UP + CALLS {
            let count = ALLOCATIONS.load(Ordering::Relaxed) - progress.allocations_when_warm;
            self.ended.send(count).unwrap();
            return None;
        }
        Some(progress.done)
    }

    fn go_on(self: Arc<Self>, shard: &mut ShardContext<'_>) {
        if let Some(step_id) = self.next() {
            let (peer, handler) = (&self.peer, Arc::clone(&self));
            if let Some(call) = &self.call {
                return shard.run(peer, call, Some(TIMEOUT), handler, 0);
            }
            // The two ways to ask take turns.
            if step_id % 2 == 0 {
                shard.receive(peer, step_id, &self.key, Some(TIMEOUT), handler, 0);
            } else {
                let spec = CallSpec::new(peer, self.request(step_id)).with_timeout(TIMEOUT);
                shard.submit(spec, handler, 0);
            }
        }
    }
}

impl CompletionHandler for Chain {
    fn on_complete(self: Arc<Self>, _token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
        let is_right = match &result {
            Ok(Response::Tensors(_)) => self.call.is_none(),
            Ok(Response::Fetched(fetched)) => fetched.len() == 1 && self.call.is_some(),
            _ => false,
        };
        assert!(is_right, "{result:?}");
        drop(result);
        self.go_on(shard);
    }

    fn on_tensor(self: Arc<Self>, _token: u64, tensor: Tensor, shard: &mut ShardContext<'_>) {
        drop(tensor);
        self.go_on(shard);
    }
}

/// How engines are started.
#[derive(Clone, Copy, Debug)]
struct Setting {
    host: HostSetting,
    driver: DriverRequest,
    shm: bool,
}

/// Heap allocations of the whole process during [`CALLS`] calls, which receive tensors, or call a
/// function.
fn allocations(setting: Setting, bytes: usize, calls_function: bool) -> u64 {
    let Setting { host, driver, shm } = setting;
    let options = || {
        EngineOptions::default().with(|options| {
            options.shm = EngineOptions::default().shm.filter(|_| shm);
            options.host = host;
            options.tcp = TcpOptions::default().with(|options| {
                options.driver = driver;
                options.busy = false;
            });
            options.arena =
                Some(ArenaOptions::default().with(|options| options.capacity_bytes = 64 << 20));
            options.compute_threads = Some(1);
        })
    };
    let server = Engine::start(
        options().with(|options| options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)))),
    )
    .unwrap();
    let worker = Engine::start(options()).unwrap();
    let device = &server.device_attributes().name;
    let key = RendezvousKey::new(device, server.incarnation(), TARGET, "edge").unwrap();
    let key = key.to_text();
    let tensor = Tensor::from_slice(bytes_shape(bytes), &vec![7_u8; bytes]).unwrap();
    let call = calls_function.then(|| {
        let name = Text::from("x");
        let call = GraphCall::new("echo").with_feed(name.clone(), tensor.clone());
        let echo = move |mut call: GraphCall| Ok([(name.clone(), call.take_feed("x")?)]);
        server.register_short("echo", echo);
        call.with_fetch("x")
    });
    if call.is_none() {
        for step_id in 0..WARM_UP + CALLS {
            server.send(step_id, key.clone(), tensor.clone()).unwrap();
        }
    }
    let address = server.local_addr().unwrap().to_string();
    let client = worker.client();
    let (ended, count) = channel();
    let chain = Arc::new(Chain {
        peer: client.peer(&address).unwrap(),
        key,
        call,
        progress: Mutex::default(),
        ended,
    });
    let first = match &chain.call {
        Some(call) => Request::StarRunGraph(Box::new(call.clone())),
        None => chain.request(0),
    };
    let peer = chain.peer.clone();
    let spec = CallSpec::new(&peer, first).with_timeout(TIMEOUT);
    client.submit(spec, chain, 0).unwrap();
    count.recv_timeout(TIMEOUT).unwrap()
}

fn bytes_shape(bytes: usize) -> grpcxx_rpc::Shape {
    grpcxx_rpc::Shape::new(&[bytes as u64]).unwrap()
}

#[test]
fn received_tensors_cost_no_allocation_in_steady_state() {
    let _turn = TURN.lock();
    for setting in settings() {
        for bytes in [4, 64, 4096, 1 << 20] {
            assert_no_allocation(setting, bytes, false);
        }
    }
}

#[test]
fn small_graph_calls_cost_no_allocation_in_steady_state() {
    let _turn = TURN.lock();
    for setting in settings() {
        for bytes in [4, 64] {
            assert_no_allocation(setting, bytes, true);
        }
    }
}

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for host in [HostSetting::Native, HostSetting::Auto] {
        for driver in drivers() {
            settings.extend([false, true].map(|shm| Setting { host, driver, shm }));
        }
    }
    settings
}

fn assert_no_allocation(setting: Setting, bytes: usize, calls_function: bool) {
    // A queue may get longer than before where a thread loses its CPU; not each time.
    let mut counts = Vec::new();
    while counts.len() < TRIES && !counts.contains(&0) {
        counts.push(allocations(setting, bytes, calls_function));
    }
    assert!(
        counts.contains(&0),
        "{CALLS} calls with {bytes} bytes each, of a function: {calls_function}, {setting:?}: \
         {counts:?} allocations"
    );
}

#[expect(clippy::print_stderr, reason = "what is left out must be seen")]
fn drivers() -> Vec<DriverRequest> {
    let options = TcpOptions::default().with(|options| options.driver = DriverRequest::IoUring);
    match TcpTransport::open(options) {
        Ok(_) => vec![DriverRequest::IoUring, DriverRequest::Epoll],
        Err(error) => {
            eprintln!("SKIPPED the io_uring driver: {error}");
            vec![DriverRequest::Epoll]
        }
    }
}

/// Tests of one process would count each other's allocations.
static TURN: Mutex<()> = Mutex::new(());

const WARM_UP: i64 = 1000;
const CALLS: i64 = 1000;
const TRIES: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(60);
const TARGET: &str = "/job:worker/replica:0/task:0/device:CPU:0";
