//! A model that is pushed in many calls, and to several tasks, arrives as a whole or not at all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use grpcxx::rpc::{Code, Status, Tensor, TensorMeta, Text};
use grpcxx::runtime::{Peer, STORE_COMMIT, STORE_STAGE};
use grpcxx::store::{Remote, TransferLimits, Transferred, push};
use grpcxx::{Engine, GraphCall};

/// Tensors of the model, each in a call of its own.
const TENSORS: usize = 24;

struct Cluster {
    servers: Vec<Engine>,
    caller: Engine,
    peers: Vec<Peer>,
    names: Vec<String>,
}

impl Cluster {
    /// Tasks that hold a model of zeros.
    fn start(servers: usize) -> Self {
        let start = |_| Engine::builder().listen("127.0.0.1:0").start().unwrap();
        let servers: Vec<Engine> = (0..servers).map(start).collect();
        let names: Vec<String> = (0..TENSORS).map(|index| format!("w{index:02}")).collect();
        for (index, name) in names.iter().enumerate() {
            let tensor = (Text::from(name.as_str()), Tensor::scalar(0_u64));
            servers[index % servers.len()]
                .store_put(vec![tensor])
                .unwrap();
        }
        let caller = Engine::builder().start().unwrap();
        let address = |server: &Engine| server.local_addr().unwrap().to_string();
        let peer = |server| caller.client().peer(&address(server)).unwrap();
        Self {
            peers: servers.iter().map(peer).collect(),
            servers,
            caller,
            names,
        }
    }

    /// Pushes `value` as each tensor; `before` sees each, and may refuse.
    fn push(
        &self,
        value: u64,
        before: impl Fn(usize) -> Result<(), Status>,
    ) -> Result<Transferred, Status> {
        let meta: TensorMeta = Tensor::scalar(value).meta();
        let remotes: Vec<Remote<'_>> = (self.names.iter().enumerate())
            .map(|(index, name)| Remote {
                peer: &self.peers[index % self.peers.len()],
                name,
                meta: &meta,
            })
            .collect();
        let mut limits = TransferLimits {
            calls: 4,
            timeout: Some(Duration::from_secs(20)),
            ..TransferLimits::default()
        };
        limits.plan.shared_tensors_min = usize::MAX;
        let load = |index| before(index).map(|()| Tensor::scalar(value));
        push(&self.caller.client(), &remotes, &limits, load, |_| {})
    }

    /// The values that a reader sees of the model.
    fn values(&self) -> Vec<u64> {
        let stored = self.servers.iter().flat_map(Engine::stored);
        stored.map(|(_, tensor)| tensor.value().unwrap()).collect()
    }

    fn staged_bytes(&self) -> u64 {
        let bytes = |server: &Engine| {
            let page = server.exposition().text().into_string();
            let line = page
                .lines()
                .find(|line| line.starts_with("grpcxx_staged_bytes "));
            line.unwrap()
                .rsplit(' ')
                .next()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        self.servers.iter().map(bytes).sum()
    }

    /// Waits until the tasks have let go of all that was staged.
    fn await_nothing_staged(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.staged_bytes() > 0 {
            assert!(Instant::now() < end, "{} bytes", self.staged_bytes());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_push_that_fails_in_the_middle_changes_nothing() {
    let cluster = Cluster::start(2);
    let failed = cluster.push(1, |index| match index {
        20 => Err(Status::new(Code::DataLoss, "the file ends here")),
        _ => Ok(()),
    });
    assert_eq!(failed.unwrap_err().code, Code::DataLoss);
    assert_eq!(cluster.values(), [0; TENSORS]);
    cluster.await_nothing_staged();
}

#[test]
fn a_push_of_many_calls_to_several_tasks_becomes_visible_at_its_end() {
    let cluster = Cluster::start(3);
    let seen = AtomicUsize::new(0);
    let pushed = cluster.push(1, |_| {
        assert_eq!(cluster.values(), [0; TENSORS]);
        seen.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(pushed.unwrap().calls, TENSORS);
    assert_eq!(seen.load(Ordering::Relaxed), TENSORS);
    assert_eq!(cluster.values(), [1; TENSORS]);
    assert_eq!(cluster.staged_bytes(), 0);
}

#[test]
fn a_task_that_fails_at_the_end_is_named_and_the_others_are_counted() {
    let cluster = Cluster::start(3);
    refuse(&cluster.servers[1], STORE_COMMIT, Code::Aborted);
    let failed = cluster.push(1, |_| Ok(())).unwrap_err();
    assert_eq!(failed.code, Code::Aborted);
    let address = cluster.peers[1].address();
    assert!(failed.message.starts_with(address), "{failed}");
    assert!(
        failed.message.contains("visible at 2 of 3 tasks"),
        "{failed}"
    );
    assert_eq!(cluster.values().iter().sum::<u64>(), 16);
}

#[test]
fn a_task_that_stages_nothing_gets_what_it_can_take() {
    let cluster = Cluster::start(2);
    // As a version that does not know the function.
    refuse(&cluster.servers[0], STORE_STAGE, Code::NotFound);
    cluster.push(1, |_| Ok(())).unwrap();
    assert_eq!(cluster.values(), [1; TENSORS]);
}

/// Lets a task answer all calls of a function with this code.
fn refuse(server: &Engine, function: &'static str, code: Code) {
    server.register_fn(function, move |_: GraphCall| {
        Err::<[(&str, Tensor); 0], Status>(Status::new(code, "not here"))
    });
}
