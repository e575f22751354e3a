//! What a channel does when its connection comes, goes and comes again.

use proptest::prelude::*;

use super::*;

const ADDRESS: &str = "10.0.0.1:7777";

/// A channel under a clock of its own, and the calls that came out of it.
struct Bench {
    channel: Channel<u32>,
    now: Time,
    dials: Vec<Duration>,
    released: Vec<u32>,
    failed: Vec<(u32, Duration, Status)>,
}

impl Bench {
    fn new(change: impl FnOnce(&mut ChannelOptions)) -> Self {
        let mut options = ChannelOptions {
            redial_jitter: Duration::ZERO,
            ..ChannelOptions::default()
        };
        change(&mut options);
        Self {
            channel: Channel::new(Text::from(ADDRESS), options),
            now: Time::ZERO,
            dials: Vec::new(),
            released: Vec::new(),
            failed: Vec::new(),
        }
    }

    fn admit(&mut self, call: u32, timeout_ms: u64) -> bool {
        let timeout = Some(Duration::from_millis(timeout_ms));
        match self.channel.admit(self.now, call, timeout) {
            Admission::SendNow(sent) => {
                assert_eq!(sent, call);
                return true;
            }
            Admission::Waiting => {}
            Admission::Refused(rejected) => panic!("{rejected}"),
        }
        self.drain();
        false
    }

    fn drain(&mut self) {
        let at = self.now.since(Time::ZERO);
        while let Some(action) = self.channel.poll_action(self.now) {
            match action {
                Action::Dial => self.dials.push(at),
                Action::Release(call) => self.released.push(call),
                Action::Fail(call, status) => self.failed.push((call, at, status)),
            }
        }
    }

    fn connect(&mut self) {
        assert!(self.channel.handle_connected());
        self.drain();
    }

    fn close(&mut self) {
        assert!(self.channel.handle_closed(self.now, "connection refused"));
        self.drain();
    }

    /// Lets the time pass; each dial fails until the target is up, then succeeds.
    fn run(&mut self, until_ms: u64, up_at_ms: u64) {
        let until = Time::from_nanos(until_ms * 1_000_000);
        let up_at = Time::from_nanos(up_at_ms * 1_000_000);
        loop {
            if self.channel.state == State::Dialling {
                if self.now >= up_at {
                    self.connect();
                } else {
                    self.close();
                }
            }
            match self.channel.poll_timeout() {
                Some(next) if next <= until => {
                    assert!(next > self.now, "a timer that does nothing");
                    self.now = next;
                }
                _ => break,
            }
            self.drain();
        }
        self.now = until;
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn calls_to_a_target_that_must_not_be_called_end_at_once() {
    let mut bench = Bench::new(|_| {});
    bench.admit(1, 60_000);
    bench.admit(2, 60_000);
    assert!(bench.channel.handle_closed(bench.now, "a bad certificate"));
    let refusal = Status::new(Code::Unauthenticated, "a bad certificate".to_owned());
    bench.channel.refuse(refusal.clone());
    bench.drain();
    bench.admit(3, 60_000);
    let failed = std::mem::take(&mut bench.failed);
    let calls: Vec<_> = failed.iter().map(|(call, at, _)| (*call, *at)).collect();
    assert_eq!(calls, [1, 2, 3].map(|call| (call, Duration::ZERO)));
    assert!(failed.iter().all(|(_, _, status)| *status == refusal));

    // The next dial may find another server there.
    let wait = bench.channel.poll_timeout().unwrap();
    bench.now = wait;
    bench.drain();
    assert_eq!(bench.dials.len(), 2);
    bench.admit(4, 60_000);
    bench.connect();
    assert_eq!(bench.released, [4]);
    bench.channel.refuse(refusal);
    assert!(bench.admit(5, 60_000));
    assert!(bench.failed.is_empty());
}

#[test]
fn checklist_15_dials_lazily_and_again_each_second_until_the_peer_is_up() {
    let mut bench = Bench::new(|_| {});
    bench.run(5_000, 0);
    assert!(bench.dials.is_empty(), "nothing was asked for");
    assert!(!bench.admit(1, 0) && !bench.admit(2, 0) && !bench.admit(3, 0));
    assert_eq!(bench.dials, [ms(5_000)], "one dial for all");
    bench.run(10_000, 7_500);
    assert_eq!(bench.dials, [5_000, 6_000, 7_000, 8_000].map(ms));
    assert_eq!(bench.released, [1, 2, 3], "in order, without an error");
    assert!(bench.failed.is_empty());
    assert!(bench.admit(4, 0), "connected");
    assert_eq!(bench.channel.poll_timeout(), None);
}

#[test]
fn checklist_15_redials_for_ever_also_when_nobody_waits() {
    let mut bench = Bench::new(|_| {});
    bench.admit(1, 10);
    bench.run(1_000_000, u64::MAX / 1_000_000);
    assert_eq!(bench.dials.len(), 1_001, "at 0 s to 1000 s");
    assert_eq!(bench.channel.waiting_calls(), 0);
    assert_eq!(bench.channel.last_failure(), Some("connection refused"));
}

#[test]
fn checklist_15_the_jitter_is_small_and_comes_from_the_seed() {
    let dials = |seed| {
        let mut bench = Bench::new(|options| {
            options.redial_jitter = ms(50);
            options.jitter_seed = seed;
        });
        bench.admit(1, 0);
        bench.run(100_000, u64::MAX / 1_000_000);
        bench.dials
    };
    let times = dials(1);
    for pair in times.windows(2) {
        let delay = pair[1] - pair[0];
        assert!(delay >= ms(1_000) && delay < ms(1_050), "{delay:?}");
    }
    assert_eq!(times, dials(1));
    assert_ne!(times, dials(2));
}

#[test]
fn checklist_16_a_call_waits_its_own_timeout_or_the_default_then_is_internal() {
    let mut bench = Bench::new(|_| {});
    bench.admit(1, 0);
    bench.admit(2, 2_500);
    bench.run(200_000, u64::MAX / 1_000_000);
    let failed: Vec<(u32, Duration)> = bench.failed.iter().map(|f| (f.0, f.1)).collect();
    assert_eq!(failed, [(2, ms(2_500)), (1, ms(120_000))]);
    for (_, _, status) in &bench.failed {
        assert_eq!(status.code, Code::Internal);
        assert_eq!(status.reason, Reason::NoConnection);
        assert_eq!(
            status.message,
            "Seastar channel: connection is timeout. connection is : 10.0.0.1:7777 (connection \
             refused)"
        );
    }
}

#[test]
fn no_call_waits_longer_than_the_most() {
    let mut bench = Bench::new(|options| options.connection_timeout_max = ms(3_000));
    bench.admit(1, 0);
    bench.admit(2, 2_500);
    bench.admit(3, 30_000);
    bench.run(200_000, u64::MAX / 1_000_000);
    let failed: Vec<(u32, Duration)> = bench.failed.iter().map(|f| (f.0, f.1)).collect();
    assert_eq!(failed, [(2, ms(2_500)), (1, ms(3_000)), (3, ms(3_000))]);
}

#[test]
fn calls_wait_for_a_single_dial_where_none_waits_for_a_connection() {
    let mut bench = Bench::new(|options| options.connection_timeout = Duration::ZERO);
    bench.admit(1, 5_000);
    bench.close();
    let (call, at, status) = bench.failed.pop().unwrap();
    assert_eq!((call, at, status.reason), (1, ms(0), Reason::NoConnection));
    assert!(status.message.contains("(connection refused)"), "{status}");
    // Those that come between two dials wait for the next one.
    bench.admit(2, 5_000);
    assert_eq!(bench.failed, []);
    bench.run(2_000, u64::MAX / 1_000_000);
    assert_eq!((bench.failed[0].0, bench.failed[0].1), (2, ms(1_000)));
    // A dial that succeeds is worth the wait.
    bench.admit(3, 5_000);
    bench.run(4_000, 3_000);
    assert_eq!(bench.released, [3]);
}

#[test]
fn checklist_16_a_broken_connection_and_a_late_one_have_texts_of_their_own() {
    let mut bench = Bench::new(|_| {});
    bench.admit(1, 0);
    bench.connect();
    bench.close();
    bench.admit(2, 10);
    bench.run(1_000, u64::MAX / 1_000_000);
    assert_eq!(bench.failed[0].2.reason, Reason::NoConnection);
    let broken = &bench.failed[0].2.message;
    assert!(
        broken.starts_with("Seastar channel: connection is broken. connection is : 10.0.0.1:7777"),
        "{broken}"
    );

    let mut bench = Bench::new(|_| {});
    bench.admit(1, 10);
    bench.now = bench.now + ms(10);
    bench.connect();
    assert!(bench.released.is_empty());
    assert_eq!(bench.failed[0].2.reason, Reason::Deadline);
    assert_eq!(
        bench.failed[0].2.message,
        "Seastar channel: unknown error. connection is : 10.0.0.1:7777"
    );
}

#[test]
fn checklist_17_after_a_loss_the_next_call_dials_at_once() {
    let mut bench = Bench::new(|_| {});
    bench.admit(1, 0);
    bench.connect();
    bench.close();
    assert!(!bench.channel.is_connected());
    bench.run(3_000, 0);
    assert_eq!(bench.dials.len(), 1, "nothing is dialled for nobody");
    assert!(!bench.admit(2, 0), "not sent before it is connected");
    assert_eq!(bench.dials, [ms(0), ms(3_000)]);
    bench.run(4_000, 0);
    assert_eq!(bench.released, [1, 2]);
}

#[test]
fn calls_that_wait_are_bounded_and_can_be_taken_back() {
    let mut bench = Bench::new(|options| options.waiting_calls = 2);
    bench.admit(1, 0);
    bench.admit(2, 0);
    match bench.channel.admit(bench.now, 3, None) {
        Admission::Refused(rejected) => {
            assert_eq!(rejected.value, 3);
            assert_eq!(rejected.status.code, Code::ResourceExhausted);
            assert_eq!(rejected.status.reason, Reason::TooManyCalls);
            assert!(rejected.status.message.contains("waiting_calls"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bench.channel.take_waiting(|&call| call == 1), Some(1));
    assert_eq!(bench.channel.take_waiting(|&call| call == 1), None);
    bench.admit(4, 0);
    bench.connect();
    assert_eq!(bench.released, [2, 4]);
}

#[test]
fn a_lost_connection_can_be_made_anew_without_a_call() {
    let mut bench = Bench::new(|_| {});
    assert!(bench.channel.redial());
    assert!(!bench.channel.redial());
    bench.drain();
    assert!(bench.channel.handle_connected());
    assert!(!bench.channel.redial());
    assert!(bench.channel.handle_closed(bench.now, "gone"));
    assert!(bench.channel.redial());
    bench.drain();
    assert_eq!(bench.dials.len(), 2);
}

#[test]
fn a_call_does_not_overtake_those_that_still_wait() {
    let mut bench = Bench::new(|_| {});
    bench.admit(1, 0);
    assert!(bench.channel.handle_connected());
    let second = bench.channel.admit(bench.now, 2, None);
    assert_eq!(second, Admission::Waiting);
    bench.drain();
    assert_eq!(bench.released, [1, 2]);

    assert!(bench.channel.handle_closed(bench.now, "gone"));
    bench.admit(3, 0);
    assert!(bench.channel.handle_connected());
    assert!(bench.channel.handle_closed(bench.now, "gone again"));
    bench.drain();
    assert_eq!(bench.dials.len(), 3, "it still waits for a connection");
}

#[test]
fn reports_that_fit_no_dial_change_nothing() {
    let mut bench = Bench::new(|_| {});
    assert!(!bench.channel.handle_connected());
    assert!(!bench.channel.handle_closed(bench.now, "what"));
    bench.admit(1, 0);
    bench.close();
    assert!(!bench.channel.handle_closed(bench.now, "twice"));
    assert!(!bench.channel.handle_connected());
    bench.run(999, 0);
    assert_eq!(bench.dials.len(), 1);
}
#[derive(Clone, Debug)]
enum Event {
    Admit { timeout_ms: u64 },
    Connected,
    Closed,
    TakeBack(u32),
    Wait { ms: u64 },
    Drain,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0u64..3000).prop_map(|timeout_ms| Event::Admit { timeout_ms }),
        2 => Just(Event::Connected),
        2 => Just(Event::Closed),
        1 => (0u32..60).prop_map(Event::TakeBack),
        3 => (1u64..2000).prop_map(|ms| Event::Wait { ms }),
        3 => Just(Event::Drain),
    ];
    proptest::collection::vec(event, 1..60)
}

proptest! {
    #[test]
    fn each_call_comes_out_once_and_in_order(events in events()) {
        let mut bench = Bench::new(|options| options.waiting_calls = 5);
        let (mut calls, mut refused) = (0, 0);
        let (mut sent, mut taken) = (Vec::new(), Vec::new());
        for event in events {
            let state = bench.channel.state;
            match event {
                Event::Admit { timeout_ms } => {
                    calls += 1;
                    let timeout = Some(ms(timeout_ms));
                    match bench.channel.admit(bench.now, calls, timeout) {
                        Admission::SendNow(call) => {
                            prop_assert_eq!(state, State::Connected);
                            sent.push(call);
                        }
                        Admission::Waiting => prop_assert!(bench.channel.state != State::Idle),
                        Admission::Refused(rejected) => {
                            prop_assert_eq!(rejected.value, calls);
                            refused += 1;
                        }
                    }
                }
                Event::Connected => {
                    let taken = bench.channel.handle_connected();
                    prop_assert_eq!(taken, state == State::Dialling);
                }
                Event::Closed => {
                    let taken = bench.channel.handle_closed(bench.now, "closed");
                    prop_assert_eq!(taken, matches!(state, State::Dialling | State::Connected));
                }
                Event::TakeBack(call) => {
                    taken.extend(bench.channel.take_waiting(|&waiting| waiting == call));
                }
                Event::Wait { ms: pause } => bench.now = bench.now + ms(pause),
                Event::Drain => {
                    let dials = bench.dials.len();
                    bench.drain();
                    prop_assert!(bench.dials.len() <= dials + 1);
                    prop_assert!(bench.channel.poll_timeout() > Some(bench.now)
                        || bench.channel.poll_timeout().is_none());
                }
            }
            prop_assert!(bench.channel.waiting_calls() <= 5);
            prop_assert_eq!(bench.channel.expiries.len(), bench.channel.waiting_calls());
        }
        bench.now = bench.now + ms(200_000);
        bench.drain();
        prop_assert_eq!(bench.channel.waiting_calls(), 0);
        let mut all = sent;
        all.extend(&taken);
        all.extend(bench.failed.iter().map(|failed| failed.0));
        let ascending = |released: &[u32]| released.windows(2).all(|pair| pair[0] < pair[1]);
        prop_assert!(ascending(&bench.released));
        all.extend(&bench.released);
        let outcomes = all.len();
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(outcomes, all.len(), "no call comes out twice");
        prop_assert_eq!(all.len() as u32 + refused, calls);
    }
}

#[test]
fn calls_that_come_while_a_connection_is_left_wait_for_the_next() {
    let mut bench = Bench::new(|_| ());
    assert!(!bench.admit(1, 1000));
    bench.connect();
    assert!(bench.channel.handle_leaving());
    assert!(!bench.channel.handle_leaving());
    assert!(!bench.admit(7, 1000));
    assert_eq!((bench.dials.len(), &bench.released[..]), (1, &[1][..]));
    let now = bench.now;
    assert!(bench.channel.handle_closed(now, "closed by this side"));
    bench.drain();
    assert_eq!(bench.dials.len(), 2);
    bench.connect();
    assert_eq!(bench.released, [1, 7]);
}

#[test]
fn a_connection_that_is_left_without_calls_is_not_dialled_again() {
    let mut bench = Bench::new(|_| ());
    bench.admit(1, 1000);
    bench.connect();
    assert!(bench.channel.handle_leaving());
    let now = bench.now;
    assert!(bench.channel.handle_closed(now, "closed by this side"));
    bench.drain();
    assert_eq!(bench.dials.len(), 1);
    assert!(!bench.channel.handle_leaving());
}
