//! Functions that prove to be short run on the threads of shards, and the shards go on whatever
//! the functions do there.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, Fetched, GraphCall, NamedTensors, Status, Tensor};
use grpcxx_runtime::{Engine, Remote};

/// A server with a function that names its thread. On the shard it does first what it is told to.
struct Scene {
    server: Engine,
    _client: Engine,
    remote: Remote,
    errand: Arc<Mutex<Option<Errand>>>,
}

type Errand = Box<dyn FnOnce() + Send>;

impl Scene {
    fn start() -> Self {
        Self::with(Engine::builder().listen("127.0.0.1:0").start().unwrap())
    }

    fn with(server: Engine) -> Self {
        let client = Engine::builder().start().unwrap();
        let address = server.start_report().star_address.unwrap().to_string();
        let remote = client.connect(address.as_str()).unwrap();
        let scene = Self {
            server,
            _client: client,
            remote: remote.with_timeout(PATIENCE),
            errand: Arc::default(),
        };
        scene.register();
        scene
    }

    /// Registers the function, of which nothing is known then.
    fn register(&self) {
        let errand = Arc::clone(&self.errand);
        self.server.register_fn("thread", move |_| {
            let is_on_shard = thread_name() == SHARD;
            let errand = is_on_shard.then(|| errand.lock().unwrap().take());
            if let Some(errand) = errand.flatten() {
                errand();
            }
            named_thread()
        });
    }

    /// The way from an engine to the server.
    fn remote_of(&self, engine: &Engine) -> Remote {
        let address = self.server.start_report().star_address.unwrap();
        let remote = engine.connect(address.to_string().as_str()).unwrap();
        remote.with_timeout(PATIENCE)
    }

    /// The thread that runs the next call.
    fn thread(&self) -> String {
        thread_of(&self.remote, "thread").unwrap()
    }

    /// Calls the function until it runs on the thread of the shard.
    fn prove_short(&self) {
        let until = Instant::now() + PATIENCE;
        while self.thread() != SHARD {
            assert!(Instant::now() < until, "it is short");
        }
    }

    /// Lets another thread call the function until that does the errand on the thread of the shard.
    /// The result is that of the call which did.
    fn run_on_shard(
        &self,
        errand: impl FnOnce() + Send + 'static,
    ) -> thread::JoinHandle<Result<String, Status>> {
        *self.errand.lock().unwrap() = Some(Box::new(errand));
        let (remote, errand) = (self.remote.clone(), Arc::clone(&self.errand));
        thread::spawn(move || {
            loop {
                let called = thread_of(&remote, "thread");
                if errand.lock().unwrap().is_none() {
                    return called;
                }
            }
        })
    }

    /// Does so with an errand that blocks until the sender is used or dropped.
    fn block(&self) -> (thread::JoinHandle<Result<String, Status>>, Sender<()>) {
        let (entered, has_entered) = channel();
        let (go, gone) = channel();
        let call = self.run_on_shard(move || {
            entered.send(()).unwrap();
            let _ = gone.recv();
        });
        has_entered.recv_timeout(PATIENCE).unwrap();
        (call, go)
    }
}

/// The thread that runs a call of the function.
fn thread_of(remote: &Remote, function: &str) -> Result<String, Status> {
    let call = GraphCall::new(function).with_fetch("thread");
    remote.run(call).wait().map(|fetched| name_in(&fetched))
}

fn name_in(fetched: &Fetched) -> String {
    let names = fetched.get("thread").unwrap().strings().unwrap();
    String::from_utf8_lossy(&names[0]).into_owned()
}

fn thread_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

fn named_thread() -> Result<NamedTensors, Status> {
    let name = Tensor::from_strings(
        grpcxx_rpc::Shape::new(&[1]).unwrap(),
        [thread_name().as_bytes()],
    )?;
    Ok(vec![("thread".into(), name)].into())
}

const SHARD: &str = "grpcxx-0";
const POOL: &str = "compute-";
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_function_that_proved_to_be_short_runs_on_the_shard() {
    let scene = Scene::start();
    assert!(scene.thread().starts_with(POOL));
    scene.prove_short();
}

#[test]
fn a_shard_goes_on_while_a_function_blocks_its_thread() {
    let scene = Scene::start();
    scene.server.register_fn("other", |_| named_thread());
    let (blocked, go) = scene.block();
    // Fewer than prove that it is short again.
    for _ in 0..20 {
        thread_of(&scene.remote, "other").unwrap();
        assert!(scene.thread().starts_with(POOL), "it is long");
    }
    go.send(()).unwrap();
    assert_eq!(blocked.join().unwrap().unwrap(), SHARD);
    scene.prove_short();
    assert!(scene.server.counters().owners_replaced >= 1);
}

#[test]
fn threads_that_were_replaced_leave_nothing_behind() {
    let scene = Scene::start();
    let replace = || {
        scene.register();
        let replaced = || scene.server.counters().owners_replaced;
        let before = replaced();
        let (blocked, go) = scene.block();
        let until = Instant::now() + PATIENCE;
        while replaced() == before && Instant::now() < until {
            thread::yield_now();
        }
        drop(go);
        blocked.join().unwrap().unwrap();
    };
    let mappings = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count()
    };
    (0..5).for_each(|_| replace());
    let before = mappings();
    (0..40).for_each(|_| replace());
    let after = mappings();
    assert!(after < before + 40, "{before} mappings became {after}");
}

#[test]
fn a_function_may_want_a_lock_that_somebody_holds_who_waits_for_the_shard() {
    let scene = Scene::start();
    let lock = Arc::new(Mutex::new(()));
    let held = lock.lock().unwrap();
    let wanted = Arc::clone(&lock);
    let (entered, has_entered) = channel();
    let call = scene.run_on_shard(move || {
        entered.send(()).unwrap();
        drop(wanted.lock().unwrap());
    });
    has_entered.recv_timeout(PATIENCE).unwrap();
    scene.thread();
    drop(held);
    assert_eq!(call.join().unwrap().unwrap(), SHARD);
}

#[test]
fn a_function_may_wait_for_a_call_that_its_own_shard_carries() {
    let scene = Scene::start();
    check_function_that_waits(&scene, scene.remote_of(&scene.server));
}

/// Another engine lends its shard to the function, which so turns that one while it waits.
#[test]
fn a_function_may_wait_for_a_call_of_another_engine() {
    let scene = Scene::start();
    let other = Engine::builder().start().unwrap();
    let remote = scene.remote_of(&other);
    for _ in 0..100 {
        assert!(thread_of(&remote, "thread").is_ok());
    }
    check_function_that_waits(&scene, remote);
}

/// Lets a function on the shard wait for a call to its own server. From then on it has the pool.
fn check_function_that_waits(scene: &Scene, remote: Remote) {
    let (told, hears) = channel();
    let call = scene.run_on_shard(move || told.send(thread_of(&remote, "thread")).unwrap());
    assert_eq!(call.join().unwrap().unwrap(), SHARD);
    assert!(hears.recv().unwrap().is_ok());
    for _ in 0..200 {
        assert!(scene.thread().starts_with(POOL), "it has waited");
    }
}

#[test]
fn a_panic_of_a_short_function_ends_its_call_alone() {
    let scene = Scene::start();
    let call = scene.run_on_shard(|| panic!("as the test wants"));
    let error = call.join().unwrap().unwrap_err();
    assert_eq!(error.code, Code::Internal, "{error}");
    assert!(error.message.contains("as the test wants"), "{error}");
    scene.prove_short();
}

#[test]
fn an_engine_ends_in_time_while_a_short_function_blocks() {
    let scene = Scene::start();
    let (blocked, go) = scene.block();
    scene.server.shutdown(Duration::ZERO).unwrap();
    assert!(blocked.join().unwrap().is_err());
    go.send(()).unwrap();
}

#[test]
fn functions_stay_on_the_pool_where_code_relies_on_shards_or_threads_are_counted() {
    let counted = Engine::builder().listen("127.0.0.1:0").compute_threads(1);
    let counted = Scene::with(counted.start().unwrap());
    let bound = Scene::start();
    bound.server.register_short("short", |_| named_thread());
    for scene in [counted, bound] {
        for _ in 0..200 {
            assert!(scene.thread().starts_with(POOL));
        }
    }
}

#[test]
fn code_of_the_program_runs_on_a_shard_whose_thread_is_blocked() {
    let scene = Scene::start();
    let (blocked, go) = scene.block();
    let shards = scene.server.shards();
    let own = shards.clone();
    let shard = shards.invoke_on(0, move || own.current()).wait();
    assert_eq!(shard, Ok(Some(0)));
    let counted = scene.server.exposition().text();
    assert!(counted.into_string().contains("grpcxx_request_seconds"));
    scene.server.register_short("short", |_| named_thread());
    assert_eq!(thread_of(&scene.remote, "short").unwrap(), SHARD);
    go.send(()).unwrap();
    blocked.join().unwrap().unwrap();
    assert_eq!(thread_of(&scene.remote, "short").unwrap(), SHARD);
}

#[test]
fn a_function_may_wait_for_code_on_its_own_shard() {
    let scene = Scene::start();
    let shards = scene.server.shards();
    let (told, hears) = channel();
    let call = scene.run_on_shard(move || {
        let own = shards.clone();
        let there = shards.invoke_on(0, move || own.current()).wait();
        told.send((shards.current(), there)).unwrap();
    });
    assert_eq!(call.join().unwrap().unwrap(), SHARD);
    assert_eq!(hears.recv().unwrap(), (None, Ok(Some(0))));
}

#[test]
fn a_function_may_use_an_engine_without_threads() {
    let scene = Scene::start();
    let call = scene.run_on_shard(|| {
        let local = Engine::builder().start_local().unwrap();
        local.block_on(async { grpcxx_runtime::local::sleep(Duration::from_micros(10)).await });
    });
    assert_eq!(call.join().unwrap().unwrap(), SHARD);
    let shards = scene.server.shards();
    let own = shards.clone();
    let shard = shards.invoke_on(0, move || own.current()).wait();
    assert_eq!(shard, Ok(Some(0)));
}

#[test]
fn calls_hear_of_the_death_of_a_shard_whose_former_thread_is_blocked() {
    let scene = Scene::start();
    let (blocked, go) = scene.block();
    let spawner = scene.server.spawner(0).unwrap();
    spawner
        .spawn_local(|| async { panic!("as the test wants") })
        .unwrap();
    let lost = blocked.join().unwrap();
    assert!(lost.is_err(), "{lost:?}");
    assert!(scene.server.shutdown(Duration::ZERO).is_err());
    go.send(()).unwrap();
}

#[test]
fn a_function_leaves_the_shard_to_code_that_relies_on_it() {
    let scene = Scene::start();
    scene.prove_short();
    scene.server.register_short("short", |_| named_thread());
    assert!(scene.thread().starts_with(POOL));
    assert_eq!(thread_of(&scene.remote, "short").unwrap(), SHARD);
}
