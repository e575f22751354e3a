//! State per shard, and what runs beside a shard: the same on both hosts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use futures_executor::block_on;
use grpcxx_rpc::{Code, GraphCall, Reason, Status, Tensor};
use grpcxx_runtime::host::{HostChoice, HostKind, HostSetting};
use grpcxx_runtime::local::{self, Gate};
use grpcxx_runtime::{Engine, Sharded};

const SHARDS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(20);

#[expect(clippy::print_stderr, reason = "what is left out must be seen")]
fn hosts() -> Vec<HostSetting> {
    let choice = HostChoice::choose(HostSetting::Auto).unwrap();
    if choice.kind == HostKind::Native {
        eprintln!("SKIPPED the glommio host: {choice}");
        return vec![HostSetting::Native];
    }
    vec![HostSetting::Native, HostSetting::Glommio]
}

fn engine(host: HostSetting) -> Engine {
    let builder = Engine::builder().shards(SHARDS).host(host);
    builder.arena_bytes(16 << 20).start().unwrap()
}

#[test]
fn values_can_be_begun_before_an_engine_serves() {
    for host in hosts() {
        let mut begun = None;
        let builder = Engine::builder().shards(SHARDS).host(host);
        let builder = builder.arena_bytes(16 << 20).listen("127.0.0.1:0");
        let prepare = |engine: &Engine| {
            begun = Some(Sharded::begin(&engine.shards(), |shard| shard));
        };
        let _engine = builder.start_with(prepare).unwrap();
        let begun = begun.unwrap();
        for shard in 0..SHARDS {
            let value = begun.invoke_on(shard, |value| *value).wait();
            assert_eq!(value, Ok(shard));
        }
    }
}

#[test]
fn state_of_shards_is_made_while_an_engine_is_prepared() {
    for host in hosts() {
        let mut made = None;
        let builder = Engine::builder().shards(SHARDS).host(host);
        let builder = builder.arena_bytes(16 << 20).listen("127.0.0.1:0");
        let prepare = |engine: &Engine| made = Some(engine.sharded(|shard| shard));
        let _engine = builder.start_with(prepare).unwrap();
        let made = made.unwrap().unwrap();
        for shard in 0..SHARDS {
            let value = made.invoke_on(shard, |value| *value).wait();
            assert_eq!(value, Ok(shard));
        }
    }
}

/// Counts its ends, and says on which thread they were.
struct Value {
    shard: usize,
    made_on: thread::ThreadId,
    sum: Cell<u64>,
    dropped: Arc<AtomicUsize>,
}

impl Value {
    fn new(shard: usize, dropped: &Arc<AtomicUsize>) -> Self {
        Self {
            shard,
            made_on: thread::current().id(),
            sum: Cell::new(0),
            dropped: Arc::clone(dropped),
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        assert_eq!(self.made_on, thread::current().id());
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn values(engine: &Engine) -> (Sharded<Value>, Arc<AtomicUsize>) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dropped);
    let values = engine.sharded(move |shard| Value::new(shard, &counted));
    (values.unwrap(), dropped)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_shard_has_a_value_that_its_own_thread_makes_uses_and_drops() {
    for host in hosts() {
        let engine = engine(host);
        let (values, dropped) = values(&engine);
        assert!(values.local().is_none(), "this is no shard");
        for shard in 0..SHARDS {
            let add = move |value: &Value| {
                assert_eq!(
                    (value.shard, value.made_on),
                    (shard, thread::current().id())
                );
                value.sum.set(value.sum.get() + 1 + shard as u64);
            };
            values.invoke_on(shard, add).wait().unwrap();
            let later = values.submit_to(shard, |value| async move { value.sum.get() });
            assert_eq!(later.wait().unwrap(), 1 + shard as u64);
        }
        let sums = values.map_reduce(
            |value| value.sum.get(),
            Vec::new(),
            |mut all, sum| {
                all.push(sum);
                all
            },
        );
        assert_eq!(block_on(sums).unwrap(), [1, 2]);
        let refused = values.invoke_on(SHARDS, |_| ()).wait().unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        drop(values);
        wait_until("the values end with the handle", || {
            dropped.load(Ordering::SeqCst) == SHARDS
        });
    }
}

#[test]
fn values_end_with_their_engine_behind_the_futures_that_use_them() {
    for host in hosts() {
        let engine = engine(host);
        let (values, dropped) = values(&engine);
        let forever = values.submit_to(0, |value| async move {
            std::future::pending::<()>().await;
            value.sum.get()
        });
        values.invoke_on(0, |_| ()).wait().unwrap();
        engine.shutdown(Duration::ZERO).unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), SHARDS);
        let lost = forever.wait().unwrap_err();
        assert_eq!(
            (lost.code, lost.reason),
            (Code::Unavailable, Reason::Stopping)
        );
        let refused = values.invoke_on(0, |_| ()).wait().unwrap_err();
        assert_eq!(refused.reason, Reason::Stopping);
        let refused = values.submit_to(0, |_| async {}).wait().unwrap_err();
        assert_eq!(refused.reason, Reason::Stopping);
    }
}

#[test]
fn a_stop_lets_work_behind_the_gate_finish_and_nobody_else_in() {
    for host in hosts() {
        let engine = engine(host);
        let finished = Arc::new(AtomicUsize::new(0));
        let gates = engine.sharded(|_| Gate::new()).unwrap();
        let (entered, has_entered) = channel();
        let work: Vec<_> = (0..SHARDS)
            .map(|shard| {
                let (finished, entered) = (Arc::clone(&finished), entered.clone());
                gates.submit_to(shard, move |gate| async move {
                    let _guard = gate.enter()?;
                    entered.send(()).expect("the test listens");
                    local::sleep(Duration::from_millis(20)).await;
                    finished.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, Status>(())
                })
            })
            .collect();
        for _ in 0..SHARDS {
            has_entered.recv_timeout(PATIENCE).unwrap();
        }
        block_on(gates.stop(|gate| async move { gate.close().await })).unwrap();
        assert_eq!(finished.load(Ordering::SeqCst), SHARDS);
        for work in work {
            work.wait().unwrap().unwrap();
        }
        let refused = gates.invoke_on(0, |gate| gate.is_closed()).wait();
        assert_eq!(refused.unwrap_err().code, Code::FailedPrecondition);
        engine.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn timers_wake_a_shard_that_sleeps_and_do_not_come_early() {
    for host in hosts() {
        let engine = engine(host);
        let shards = engine.shards();
        let begin = Instant::now();
        let order = shards.submit_to(1, || async {
            let order = Rc::new(RefCell::new(Vec::new()));
            let sleeps: Vec<_> = [30, 10, 20]
                .into_iter()
                .map(|ms| {
                    let order = Rc::clone(&order);
                    local::spawn_local(async move {
                        local::sleep(Duration::from_millis(ms)).await;
                        order.borrow_mut().push(ms);
                    })
                })
                .collect();
            for sleep in sleeps {
                sleep.await?;
            }
            Ok::<_, Status>(order.take())
        });
        assert_eq!(order.wait().unwrap().unwrap(), [10, 20, 30]);
        assert!(begin.elapsed() >= Duration::from_millis(30));
        let begin = Instant::now();
        let ticks = shards.submit_to(0, || async {
            let mut interval = local::interval(Duration::from_millis(5));
            for _ in 0..4 {
                interval.tick().await;
            }
        });
        ticks.wait().unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(15));
        let late = shards.submit_to(0, || {
            local::timeout(Duration::from_millis(5), std::future::pending::<()>())
        });
        let over = late.wait().unwrap().unwrap_err();
        assert_eq!(
            (over.code, over.reason),
            (Code::DeadlineExceeded, Reason::Deadline)
        );
        let early = shards.submit_to(0, || local::timeout(PATIENCE, async { 7 }));
        assert_eq!(early.wait().unwrap(), Ok(7));
    }
}

#[test]
fn an_aborted_future_is_dropped_and_a_handle_that_is_dropped_ends_nothing() {
    for host in hosts() {
        let engine = engine(host);
        let shards = engine.shards();
        let aborted = shards.submit_to(0, std::future::pending::<()>);
        aborted.abort();
        assert_eq!(aborted.wait().unwrap_err().code, Code::Cancelled);
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        drop(shards.submit_to(0, || async move {
            local::sleep(Duration::from_millis(1)).await;
            count.fetch_add(1, Ordering::SeqCst);
        }));
        wait_until("it goes on", || ran.load(Ordering::SeqCst) == 1);
    }
}

#[test]
fn blocking_code_runs_off_the_shard_and_its_panic_is_a_status() {
    for host in hosts() {
        let engine = engine(host);
        let shards = engine.shards();
        let threads = shards.submit_to(0, || async {
            let here = thread::current().id();
            let there = local::spawn_blocking(|| thread::current().id()).await?;
            Ok::<_, Status>((here, there))
        });
        let (here, there) = threads.wait().unwrap().unwrap();
        assert_ne!(here, there);
        let bad = shards.spawn_blocking(|| panic!("bad code")).wait();
        let bad: Result<(), Status> = bad;
        let bad = bad.unwrap_err();
        assert_eq!((bad.code, bad.reason), (Code::Internal, Reason::Panicked));
        assert!(bad.message.contains("bad code"), "{bad}");
        assert_eq!(shards.invoke_on(0, || 7).wait(), Ok(7));
    }
}

#[test]
fn waiting_on_a_shard_is_an_error_and_no_deadlock() {
    let engine = engine(HostSetting::Native);
    let shards = engine.shards();
    let inner = shards.clone();
    let refused = shards.invoke_on(0, move || inner.invoke_on(0, || 7).wait());
    let refused = refused.wait().unwrap().unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert_eq!((shards.current(), shards.len()), (None, SHARDS));
}

#[test]
fn a_panic_in_code_of_a_shard_ends_the_engine_and_all_that_wait_hear_of_it() {
    for host in hosts() {
        let engine = engine(host);
        let (values, dropped) = values(&engine);
        let waiting = values.submit_to(1, |_| std::future::pending::<()>());
        let beside = values.submit_to(0, |_| std::future::pending::<()>());
        let bad = values.submit_to(0, |value| async move {
            assert!(value.shard > 7, "bad code");
        });
        let died = bad.wait().unwrap_err();
        assert_eq!(died.reason, Reason::ShardDied, "{died}");
        for waiting in [waiting, beside] {
            assert_eq!(waiting.wait().unwrap_err().reason, Reason::ShardDied);
        }
        let refused = values.invoke_on(1, |_| ()).wait().unwrap_err();
        assert_eq!(refused.reason, Reason::ShardDied);
        wait_until("values end with a dead engine", || {
            dropped.load(Ordering::SeqCst) == SHARDS
        });
    }
}

#[test]
fn a_panic_between_two_turns_is_told_to_whoever_waits_for_that_code() {
    for host in hosts() {
        let engine = engine(host);
        let bad = engine.shards().invoke_on(0, || panic!("bad code"));
        let bad: Result<(), Status> = bad.wait();
        assert_eq!(bad.unwrap_err().reason, Reason::ShardDied);
    }
}

#[test]
fn an_asynchronous_function_finds_the_value_of_its_shard() {
    for host in hosts() {
        let server = Engine::builder().task("ps", 0).listen("127.0.0.1:0");
        let server = server.host(host).arena_bytes(16 << 20).start().unwrap();
        let hits = server.sharded(|_| Cell::new(0_i64)).unwrap();
        server.register_async("hit", move |_call: GraphCall| {
            let hits = hits.local().expect("a function runs on a shard");
            async move {
                hits.set(hits.get() + 1);
                local::sleep(Duration::from_micros(100)).await;
                Ok([("hits", Tensor::scalar(hits.get()))])
            }
        });
        let client = engine(HostSetting::Native);
        let address = server.local_addr().unwrap().to_string();
        let remote = client.connect(&address).unwrap();
        for count in 1..=3_i64 {
            let call = GraphCall::new("hit").with_fetch("hits");
            let results = remote.run(call).wait().unwrap();
            assert_eq!(results.get("hits").unwrap().value::<i64>().unwrap(), count);
        }
    }
}
