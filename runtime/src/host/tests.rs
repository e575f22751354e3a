#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "latencies and what was left out are for whoever reads the test's output"
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use grpcxx_transport::Time;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::*;
use crate::idle::IdlePolicy;
use crate::mesh::{Inbox, InboxSender, Sleeper, doorbell, inbox};

/// A shard whose work is numbers in an inbox and whose bed is an eventfd.
struct Toy {
    event: Arc<Event>,
    sleeper: Sleeper,
    inbox: Inbox<Message>,
    timeout: Option<Time>,
    patience: Option<Duration>,
    timeouts: Arc<AtomicU64>,
    turns: Arc<AtomicU64>,
    is_finished: bool,
    death: Arc<Mutex<Option<HostError>>>,
}

enum Message {
    Answer(mpsc::Sender<u64>, u64),
    WakeUpAfter(Duration),
    BePatient(Option<Duration>),
    Panic,
    Finish,
}

struct Event(OwnedFd);

impl Wake for Event {
    fn wake(self: Arc<Self>) {
        rustix::io::write(&self.0, &1_u64.to_ne_bytes()).expect("an eventfd takes a wake-up");
    }
}

impl Toy {
    fn sleep(&mut self, timeout: Option<Duration>) {
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).expect("short"));
        let mut fds = [PollFd::new(&self.event.0, PollFlags::IN)];
        poll(&mut fds, timeout.as_ref()).expect("an eventfd can be polled");
    }
}

impl ShardLoop for Toy {
    fn turn(&mut self, now: Time) -> usize {
        self.turns.fetch_add(1, Ordering::Release);
        let mut events = 0;
        while let Some(message) = self.inbox.pop() {
            events += 1;
            match message {
                Message::Answer(answers, value) => answers.send(value).expect("the test listens"),
                Message::WakeUpAfter(delay) => self.timeout = Some(now + delay),
                Message::BePatient(patience) => self.patience = patience,
                Message::Panic => panic!("asked to panic"),
                Message::Finish => self.is_finished = true,
            }
        }
        if self.timeout.is_some_and(|timeout| timeout <= now) {
            self.timeout = None;
            self.timeouts.fetch_add(1, Ordering::Release);
            events += 1;
        }
        events
    }

    fn next_timeout(&self) -> Option<Time> {
        self.timeout
    }

    fn park(&mut self, timeout: Option<Duration>) {
        let Self { sleeper, inbox, .. } = self;
        if sleeper.may_sleep(|| !inbox.is_empty()) {
            self.sleep(timeout);
            self.unpark();
        }
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        let Self { sleeper, inbox, .. } = self;
        sleeper
            .may_sleep(|| !inbox.is_empty())
            .then(|| self.event.0.as_fd())
    }

    fn patience(&mut self) -> Option<Duration> {
        self.patience
    }

    fn unpark(&mut self) {
        self.sleeper.awake();
        let _was_empty = rustix::io::read(&self.event.0, &mut [0; 8]);
    }

    fn waker(&self) -> Waker {
        self.event.clone().into()
    }

    fn is_finished(&self) -> bool {
        self.is_finished
    }

    fn die(self, error: &HostError) {
        assert!(matches!(error, HostError::Panicked { .. }), "{error}");
        *self.death.lock().expect("a test") = Some(error.clone());
    }
}

struct Running {
    handle: HostHandle,
    spawner: TaskSpawner,
    sender: InboxSender<Message>,
    timeouts: Arc<AtomicU64>,
    turns: Arc<AtomicU64>,
    death: Arc<Mutex<Option<HostError>>>,
}

impl Running {
    fn start(kind: HostKind, idle: IdlePolicy) -> Self {
        Self::start_lending(kind, idle, None)
    }

    fn start_lending(kind: HostKind, idle: IdlePolicy, lend: Option<Lend<Toy>>) -> Self {
        let (bell, mut sleeper) = doorbell();
        let (sender, inbox) = inbox(64, bell);
        let timeouts = Arc::new(AtomicU64::new(0));
        let counted = timeouts.clone();
        let turns = Arc::new(AtomicU64::new(0));
        let turned = Arc::clone(&turns);
        let death = Arc::default();
        let dead = Arc::clone(&death);
        let make = move || {
            let event = eventfd(0, EventfdFlags::NONBLOCK).map_err(|error| error.to_string())?;
            let event = Arc::new(Event(event));
            sleeper.install(event.clone().into());
            Ok(Toy {
                event,
                sleeper,
                inbox,
                timeout: None,
                patience: None,
                timeouts: counted,
                turns: turned,
                is_finished: false,
                death: dead,
            })
        };
        let (spawner, jobs) = jobs();
        let handle = spawn_with(options(kind, idle), jobs, make, lend, ()).unwrap();
        handle.wait_started().unwrap();
        Self {
            handle,
            spawner,
            sender,
            timeouts,
            turns,
            death,
        }
    }

    fn tell(&self, message: Message) {
        assert!(self.sender.push(message, drop).is_ok());
    }

    fn finish(self) {
        self.tell(Message::Finish);
        self.handle.join().unwrap();
    }

    /// The median of some round trips, in nanoseconds.
    fn round_trip_ns(&self, pause: Duration) -> u64 {
        let (answers, answered) = mpsc::channel();
        let mut times: Vec<_> = (0..ROUND_TRIPS)
            .map(|value| {
                thread::sleep(pause);
                let begin = Instant::now();
                self.tell(Message::Answer(answers.clone(), value));
                assert_eq!(answered.recv_timeout(PATIENCE), Ok(value));
                begin.elapsed().as_nanos() as u64
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2]
    }
}

fn options(kind: HostKind, idle: IdlePolicy) -> HostOptions {
    HostOptions {
        name: format!("toy-{}", kind.name()),
        kind,
        cpu: None,
        idle,
        clock: Clock::start(),
    }
}

/// The hosts that can run here; glommio is left out, loudly, where it cannot start.
fn hosts() -> Vec<HostKind> {
    let choice = HostChoice::choose(HostSetting::Auto).unwrap();
    if choice.kind == HostKind::Native {
        eprintln!("SKIPPED the glommio host: {choice}");
        return vec![HostKind::Native];
    }
    vec![HostKind::Native, HostKind::Glommio]
}

#[test]
fn a_shard_answers_awake_and_asleep() {
    for kind in hosts() {
        for (idle, has_futures) in POLICIES
            .into_iter()
            .flat_map(|idle| [(idle, false), (idle, true)])
        {
            let running = Running::start(kind, idle);
            if has_futures {
                let forever = std::future::pending;
                running.spawner.spawn_local(forever).unwrap();
            }
            let futures = if has_futures { "with" } else { "without" };
            let busy_ns = running.round_trip_ns(Duration::ZERO);
            let rested_ns = running.round_trip_ns(Duration::from_micros(300));
            println!(
                "{} host {futures} futures, {idle}: thread to shard and back {:.1} us, after a rest {:.1} us",
                kind.name(),
                busy_ns as f64 / 1e3,
                rested_ns as f64 / 1e3
            );
            running.finish();
        }
    }
}

#[test]
fn a_sleeping_shard_wakes_for_its_timeout() {
    for kind in hosts() {
        for idle in POLICIES {
            let running = Running::start(kind, idle);
            let begin = Instant::now();
            running.tell(Message::WakeUpAfter(Duration::from_millis(100)));
            while running.timeouts.load(Ordering::Acquire) == 0 {
                assert!(begin.elapsed() < PATIENCE, "{kind:?} {idle}: no timeout");
                thread::sleep(Duration::from_millis(1));
            }
            // The shard counts from the start of its turn, in which it may have had to wait for the
            // CPU.
            assert!(begin.elapsed() >= Duration::from_millis(50));
            running.finish();
        }
    }
}

#[test]
fn a_sleeping_shard_looks_at_what_only_a_clock_tells_and_does_not_spin() {
    for kind in hosts() {
        for (is_lent, has_futures) in [(false, false), (false, true), (true, false)] {
            let lend = is_lent.then(|| Box::new(|_: &_| {}) as Lend<Toy>);
            let running = Running::start_lending(kind, IdlePolicy::Park, lend);
            if has_futures {
                let forever = std::future::pending;
                running.spawner.spawn_local(forever).unwrap();
            }
            running.tell(Message::BePatient(Some(Duration::from_millis(20))));
            thread::sleep(Duration::from_millis(100));
            let begun = running.turns.load(Ordering::Acquire);
            thread::sleep(Duration::from_millis(400));
            let turns = running.turns.load(Ordering::Acquire) - begun;
            // 20 looks with some turns each, or fewer on a busy CPU.
            assert!(
                (4..1000).contains(&turns),
                "{kind:?} {is_lent}: {turns} turns"
            );
            running.finish();
        }
    }
}

#[test]
fn futures_run_on_the_thread_of_their_shard() {
    for kind in hosts() {
        for idle in POLICIES {
            let running = Running::start(kind, idle);
            let (ask, asked) = oneshot::channel::<u32>();
            let (answer, answered) = mpsc::channel();
            running
                .spawner
                .spawn_local(move || async move {
                    let value = asked.await.expect("the test asks");
                    let name = thread::current().name().map(str::to_owned);
                    answer.send((value, name)).expect("the test listens");
                })
                .unwrap();
            thread::sleep(Duration::from_millis(2));
            ask.send(7).unwrap();
            let (value, name) = answered.recv_timeout(PATIENCE).unwrap();
            assert_eq!((value, name), (7, Some(format!("toy-{}", kind.name()))));
            running.finish();
        }
    }
}

#[cfg(not(target_env = "musl"))]
#[test]
fn glommio_timers_run_beside_a_shard_that_spins_and_one_that_sleeps() {
    if !hosts().contains(&HostKind::Glommio) {
        return;
    }
    for idle in POLICIES {
        let running = Running::start(HostKind::Glommio, idle);
        let (answer, answered) = mpsc::channel();
        let begin = Instant::now();
        running
            .spawner
            .spawn_local(move || async move {
                ::glommio::timer::sleep(Duration::from_millis(5)).await;
                answer.send(()).expect("the test listens");
            })
            .unwrap();
        answered.recv_timeout(PATIENCE).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(5));
        running.finish();
    }
}

#[test]
fn a_panic_of_a_shard_is_an_error_of_its_host() {
    for kind in hosts() {
        let running = Running::start(kind, IdlePolicy::Park);
        running.tell(Message::Panic);
        let error = running.handle.join().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "shard `toy-{}` panicked in the engine's own code (please report this): \
                 asked to panic",
                kind.name()
            )
        );
        assert_eq!(*running.death.lock().unwrap(), Some(error));
        assert!(running.sender.is_closed());
    }
}

#[test]
fn a_panic_of_a_future_is_an_error_of_its_host() {
    for kind in hosts() {
        let running = Running::start(kind, IdlePolicy::Park);
        let (ask, asked) = oneshot::channel::<()>();
        running
            .spawner
            .spawn_local(|| async {
                asked.await.expect("the test asks");
                panic!("a bad future")
            })
            .unwrap();
        thread::sleep(Duration::from_millis(2));
        ask.send(()).unwrap();
        let error = running.handle.join().unwrap_err();
        assert!(error.to_string().contains("a bad future"), "{error}");
        assert!(error.to_string().contains("that was spawned"), "{error}");
        assert_eq!(*running.death.lock().unwrap(), Some(error));
        assert!(running.sender.is_closed());
    }
}

#[test]
fn the_longest_limit_is_none() {
    assert_eq!(block_on(async { 1 }, Some(Duration::MAX)), Some(1));
}

#[test]
fn a_shard_that_cannot_be_made_says_why() {
    for kind in hosts() {
        let make = || Err::<Toy, _>(ShardError::from("no descriptor is left".to_owned()));
        let (handle, _spawner) = spawn(options(kind, IdlePolicy::Park), make).unwrap();
        let error = handle.wait_started().unwrap_err();
        assert!(error.to_string().contains("no descriptor is left"));
        assert_eq!(handle.join().unwrap_err(), error);
    }
}

#[test]
fn a_cpu_that_cannot_be_had_is_an_error() {
    let mut options = options(HostKind::Native, IdlePolicy::Park);
    options.cpu = Some(1023);
    let make = || Err::<Toy, _>(ShardError::from("not reached".to_owned()));
    let (handle, _spawner) = spawn(options, make).unwrap();
    let error = handle.wait_started().unwrap_err();
    assert!(matches!(error, HostError::Placement(_)), "{error}");
}

#[test]
fn the_choice_says_why() {
    let choice = HostChoice::choose(HostSetting::Native).unwrap();
    assert_eq!(choice.to_string(), "native (set by GRPCXX_HOST)");
    let choice = HostChoice::choose(HostSetting::Auto).unwrap();
    assert!(!choice.why.is_empty());
    match HostChoice::choose(HostSetting::Glommio) {
        Ok(choice) => assert_eq!(choice.kind, HostKind::Glommio),
        Err(error) => assert!(error.contains("set auto or native"), "{error}"),
    }
}

const POLICIES: [IdlePolicy; 3] = [
    IdlePolicy::Spin,
    IdlePolicy::SpinThenPark(Duration::from_micros(30)),
    IdlePolicy::Park,
];
const ROUND_TRIPS: u64 = 200;
const PATIENCE: Duration = Duration::from_secs(20);
