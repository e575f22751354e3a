use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grpcxx_transport::Time;

use crate::{Code, Rejected, Status, Text};

/// The connection to one target as its callers see it: dialled when it is first needed, dialled again for as
/// long as it fails, with calls waiting for it for a bounded time.
///
/// The state machine does no I/O. Its owner reports what became of a dial ([`Channel::handle_connected`],
/// [`Channel::handle_closed`]), and carries out what [`Channel::poll_action`] says until it says no more,
/// after each call of another method and when the time of [`Channel::poll_timeout`] has come. `T` is a call.
///
/// A channel is healthy only while it is connected. A loss starts no dial; the next call does, or
/// [`Channel::redial`]. A dial that
/// fails is repeated after [`ChannelOptions::redial_delay`], for ever, whether calls wait or not.
///
/// ```
/// use grpcxx_rpc::{Action, Admission, Channel, ChannelOptions, Text};
/// use grpcxx_transport::Time;
///
/// let now = Time::ZERO;
/// let mut channel = Channel::new(Text::from("10.0.0.1:7777"), ChannelOptions::default());
/// assert_eq!(channel.admit(now, "first call", None), Admission::Waiting);
/// assert_eq!(channel.poll_action(now), Some(Action::Dial));
/// assert_eq!(channel.poll_action(now), None);
///
/// assert!(channel.handle_connected());
/// assert_eq!(channel.poll_action(now), Some(Action::Release("first call")));
/// assert_eq!(channel.admit(now, "second", None), Admission::SendNow("second"));
/// ```
#[derive(Debug)]
pub struct Channel<T> {
    address: Text,
    options: ChannelOptions,
    state: State,
    was_connected: bool,
    last_failure: Option<String>,
    waiting: BTreeMap<u64, Waiting<T>>,
    expiries: BTreeSet<(Time, u64)>,
    next_ticket: u64,
    jitter: u64,
}

/// How a [`Channel`] dials and lets calls wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelOptions {
    /// Time from a failed dial to the next.
    pub redial_delay: Duration,
    /// Up to so much is added to [`ChannelOptions::redial_delay`], so that the callers of a target that comes
    /// back do not all dial at once.
    pub redial_jitter: Duration,
    /// What the jitter is drawn from; equal seeds give equal times.
    pub jitter_seed: u64,
    /// How long a call without a timeout of its own waits (`NETWORK_MAX_CONNECTION_TIMEOUT`).
    pub connection_timeout: Duration,
    /// How long any call waits at most, also one with a longer timeout of its own.
    pub connection_timeout_max: Duration,
    /// Most calls that wait.
    pub waiting_calls: usize,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            redial_delay: Duration::from_secs(1),
            redial_jitter: Duration::from_millis(50),
            jitter_seed: 0,
            connection_timeout: Duration::from_millis(120_000),
            connection_timeout_max: Duration::MAX,
            waiting_calls: 4096,
        }
    }
}

/// What became of a call that was shown to a [`Channel`].
#[derive(Debug, PartialEq, Eq)]
pub enum Admission<T> {
    /// The channel is connected and nobody waits: send it.
    SendNow(T),
    /// It waits; an [`Action::Release`] or [`Action::Fail`] will hand it back.
    Waiting,
    /// Too many calls wait.
    Refused(Rejected<T>),
}

/// What the owner of a [`Channel`] shall do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Dial the target and report how that went.
    Dial,
    /// Send this call.
    Release(T),
    /// End this call with this status.
    Fail(T, Status),
}

/// Whether a [`Channel`] has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// None, and none is wanted before the next call.
    Idle,
    /// None; the owner is yet to be told to dial.
    DialDue,
    /// A dial is under way.
    Dialling,
    /// A dial failed; the next is due at this time.
    Backoff(Time),
    /// There is one.
    Connected,
}

#[derive(Debug)]
struct Waiting<T> {
    call: T,
    expiry: Time,
}

impl<T> Channel<T> {
    /// A channel to a target that is not dialled yet. The address appears in texts only.
    pub fn new(address: Text, options: ChannelOptions) -> Self {
        Self {
            address,
            options,
            state: State::Idle,
            was_connected: false,
            last_failure: None,
            waiting: BTreeMap::new(),
            expiries: BTreeSet::new(),
            next_ticket: 0,
            jitter: options.jitter_seed,
        }
    }

    /// Whether calls may be sent.
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Calls that wait.
    pub fn waiting_calls(&self) -> usize {
        self.waiting.len()
    }

    /// Why there is no connection, as far as is known.
    pub fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    /// Shows a call. `timeout` is the call's own; without one, or with zero, it waits as long as
    /// [`ChannelOptions::connection_timeout`].
    pub fn admit(&mut self, now: Time, call: T, timeout: Option<Duration>) -> Admission<T> {
        if self.state == State::Connected && self.waiting.is_empty() {
            return Admission::SendNow(call);
        }
        if self.waiting.len() >= self.options.waiting_calls {
            return Admission::Refused(Rejected {
                value: call,
                status: Status::new(
                    Code::ResourceExhausted,
                    format!(
                        "{} calls wait for a connection to {} already, the limit waiting_calls; try again later",
                        self.waiting.len(),
                        self.address
                    ),
                ),
            });
        }
        if self.state == State::Idle {
            self.state = State::DialDue;
        }
        let wait = timeout
            .filter(|timeout| !timeout.is_zero())
            .unwrap_or(self.options.connection_timeout)
            .min(self.options.connection_timeout_max);
        let expiry = now + wait;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.expiries.insert((expiry, ticket));
        self.waiting.insert(ticket, Waiting { call, expiry });
        Admission::Waiting
    }

    /// The dial succeeded. Returns false, and changes nothing, if none was under way.
    pub fn handle_connected(&mut self) -> bool {
        if self.state != State::Dialling {
            return false;
        }
        self.state = State::Connected;
        self.was_connected = true;
        self.last_failure = None;
        true
    }

    /// The dial failed, or the connection is lost. Returns false, and changes nothing, if there was neither.
    pub fn handle_closed(&mut self, now: Time, reason: &str) -> bool {
        self.state = match self.state {
            State::Dialling => {
                let delay = self.options.redial_delay + self.draw_jitter();
                State::Backoff(now + delay)
            }
            // Calls that were not released yet need the connection as much as a new call would.
            State::Connected if !self.waiting.is_empty() => State::DialDue,
            State::Connected => State::Idle,
            State::Idle | State::DialDue | State::Backoff(_) => return false,
        };
        self.last_failure = Some(reason.to_owned());
        true
    }

    /// Dials though no call waits yet. Returns false, and changes nothing, if there is a connection or one is on its
    /// way.
    pub fn redial(&mut self) -> bool {
        let is_idle = self.state == State::Idle;
        if is_idle {
            self.state = State::DialDue;
        }
        is_idle
    }

    /// The next thing to do. Ask until there is none.
    pub fn poll_action(&mut self, now: Time) -> Option<Action<T>> {
        match self.state {
            State::Connected => self.release(now),
            State::DialDue => {
                self.state = State::Dialling;
                Some(Action::Dial)
            }
            State::Backoff(until) if until <= now => {
                self.state = State::Dialling;
                Some(Action::Dial)
            }
            State::Backoff(_) | State::Dialling | State::Idle => self.expire(now),
        }
    }

    /// When [`Channel::poll_action`] will next have something to do, if nothing is reported before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let expiry = self.expiries.first().map(|&(expiry, _)| expiry);
        match self.state {
            State::Backoff(until) => Some(expiry.map_or(until, |expiry| expiry.min(until))),
            State::Idle | State::DialDue | State::Dialling | State::Connected => expiry,
        }
    }

    /// Takes the first waiting call that `is_wanted` picks, because its caller has gone.
    pub fn take_waiting(&mut self, mut is_wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let (&ticket, _) = self.waiting.iter().find(|(_, w)| is_wanted(&w.call))?;
        self.take(ticket)
    }

    fn release(&mut self, now: Time) -> Option<Action<T>> {
        let (&ticket, waiting) = self.waiting.first_key_value()?;
        if waiting.expiry <= now {
            return self.fail(ticket);
        }
        self.take(ticket).map(Action::Release)
    }

    fn expire(&mut self, now: Time) -> Option<Action<T>> {
        let &(expiry, ticket) = self.expiries.first()?;
        if expiry > now {
            return None;
        }
        self.fail(ticket)
    }

    fn fail(&mut self, ticket: u64) -> Option<Action<T>> {
        let status = self.timeout_status();
        let call = self.take(ticket)?;
        Some(Action::Fail(call, status))
    }

    fn take(&mut self, ticket: u64) -> Option<T> {
        let waiting = self.waiting.remove(&ticket)?;
        self.expiries.remove(&(waiting.expiry, ticket));
        Some(waiting.call)
    }

    fn timeout_status(&self) -> Status {
        let what = match (self.is_connected(), self.was_connected) {
            // The connection came when the call's time was over already.
            (true, _) => "unknown error",
            (false, true) => "connection is broken",
            (false, false) => "connection is timeout",
        };
        let mut text = format!("Seastar channel: {what}. connection is : {}", self.address);
        if let Some(failure) = &self.last_failure {
            text.push_str(" (");
            text.push_str(failure);
            text.push(')');
        }
        Status::new(Code::Internal, text)
    }

    /// A duration below [`ChannelOptions::redial_jitter`], by SplitMix64.
    fn draw_jitter(&mut self) -> Duration {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.jitter;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let parts = u32::try_from(word >> 32).unwrap_or(u32::MAX);
        self.options
            .redial_jitter
            .mul_f64(f64::from(parts) / (f64::from(u32::MAX) + 1.0))
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(
                status.message,
                "Seastar channel: connection is timeout. connection is : 10.0.0.1:7777 (connection refused)"
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
    fn checklist_16_a_broken_connection_and_a_late_one_have_texts_of_their_own() {
        let mut bench = Bench::new(|_| {});
        bench.admit(1, 0);
        bench.connect();
        bench.close();
        bench.admit(2, 10);
        bench.run(1_000, u64::MAX / 1_000_000);
        let broken = &bench.failed[0].2.message;
        assert!(
            broken.starts_with(
                "Seastar channel: connection is broken. connection is : 10.0.0.1:7777"
            ),
            "{broken}"
        );

        let mut bench = Bench::new(|_| {});
        bench.admit(1, 10);
        bench.now = bench.now + ms(10);
        bench.connect();
        assert!(bench.released.is_empty());
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
}
