//! A client's way to one peer: dialling, redialling, and the calls that wait for a connection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grpcxx_transport::Time;

use crate::{Code, Reason, Rejected, Status, Text};

/// The connection to one target as its callers see it: dialled when it is first needed, dialled
/// again for as long as it fails, with calls waiting for it for a bounded time.
///
/// The state machine does no I/O. Its owner reports what became of a dial
/// ([`Channel::handle_connected`], [`Channel::handle_closed`]), and carries out what
/// [`Channel::poll_action`] says until it says no more, after each call of another method and when
/// the time of [`Channel::poll_timeout`] has come. `T` is a call.
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
    /// Why the target was not called at the last dial, though it could be reached.
    refusal: Option<Status>,
    waiting: BTreeMap<u64, Waiting<T>>,
    expiries: BTreeSet<(Time, u64)>,
    next_ticket: u64,
    /// Calls with tickets below have seen the one dial fail that they wait for.
    given_up: u64,
    jitter: u64,
}

/// How a [`Channel`] dials and lets calls wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChannelOptions {
    /// Time from a failed dial to the next.
    pub redial_delay: Duration,
    /// Up to so much is added to [`ChannelOptions::redial_delay`], so that the callers of a target
    /// that comes back do not all dial at once.
    pub redial_jitter: Duration,
    /// What the jitter is drawn from; equal seeds give equal times.
    pub jitter_seed: u64,
    /// How long a call without a timeout of its own waits (`NETWORK_MAX_CONNECTION_TIMEOUT`). If
    /// it is zero, calls with one wait for a single dial.
    pub connection_timeout: Duration,
    /// How long any call waits at most, also one with a longer timeout of its own.
    pub connection_timeout_max: Duration,
    /// Most calls that wait.
    pub waiting_calls: usize,
}

impl ChannelOptions {
    /// These options with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_rpc::ChannelOptions;
    ///
    /// let options = ChannelOptions::default().with(|options| options.waiting_calls = 64);
    /// assert_eq!(options.waiting_calls, 64);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
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
    /// There is one that its owner closes; the next is dialled once it is gone.
    Leaving,
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
            refusal: None,
            waiting: BTreeMap::new(),
            expiries: BTreeSet::new(),
            next_ticket: 0,
            given_up: 0,
            jitter: options.jitter_seed,
        }
    }

    /// Whether calls may be sent.
    pub fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    /// Whether [`Channel::admit`] would let a call be sent now.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.state == State::Connected && self.waiting.is_empty()
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
    #[inline]
    pub fn admit(&mut self, now: Time, call: T, timeout: Option<Duration>) -> Admission<T> {
        if self.is_open() {
            return Admission::SendNow(call);
        }
        self.wait(now, call, timeout)
    }

    #[cold]
    fn wait(&mut self, now: Time, call: T, timeout: Option<Duration>) -> Admission<T> {
        if self.waiting.len() >= self.options.waiting_calls {
            return Admission::Refused(Rejected {
                value: call,
                status: Status::new(
                    Code::ResourceExhausted,
                    format!(
                        "{} calls wait for a connection to {} already, the limit waiting_calls; \
                         try again later",
                        self.waiting.len(),
                        self.address
                    ),
                )
                .because(Reason::TooManyCalls),
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

    /// The owner has begun to close the connection: calls that come now wait for the next one.
    /// Returns false, and changes nothing, if there is no connection.
    pub fn handle_leaving(&mut self) -> bool {
        let is_connected = self.is_connected();
        if is_connected {
            self.state = State::Leaving;
        }
        is_connected
    }

    /// The dial failed, or the connection is lost. Returns false, and changes nothing, if there was
    /// neither.
    pub fn handle_closed(&mut self, now: Time, reason: &str) -> bool {
        self.state = match self.state {
            State::Dialling => {
                if self.options.connection_timeout.is_zero() {
                    self.given_up = self.next_ticket;
                }
                let delay = self.options.redial_delay + self.draw_jitter();
                State::Backoff(now + delay)
            }
            // Calls that were not released yet need the connection as much as a new call would.
            State::Connected | State::Leaving if !self.waiting.is_empty() => State::DialDue,
            State::Connected | State::Leaving => State::Idle,
            State::Idle | State::DialDue | State::Backoff(_) => return false,
        };
        self.last_failure = Some(reason.to_owned());
        true
    }

    /// The target was reached, and must not be called: calls that wait, and those that come before
    /// the next dial, end with `status` at once. For a dial that
    /// [`Channel::handle_closed`] was told of; does nothing without one.
    pub fn refuse(&mut self, status: Status) {
        if matches!(self.state, State::Backoff(_)) {
            self.refusal = Some(status);
        }
    }

    /// Dials though no call waits yet. Returns false, and changes nothing, if there is a connection
    /// or one is on its way.
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
            State::Backoff(_) if self.has_given_up() => {
                let (&ticket, _) = self.waiting.first_key_value()?;
                let failure = || self.timeout_status();
                let status = self.refusal.clone().unwrap_or_else(failure);
                Some(Action::Fail(self.take(ticket)?, status))
            }
            State::Connected => self.release(now),
            State::DialDue => {
                self.state = State::Dialling;
                Some(Action::Dial)
            }
            State::Backoff(until) if until <= now => {
                self.state = State::Dialling;
                self.refusal = None;
                Some(Action::Dial)
            }
            State::Backoff(_) if self.refusal.is_some() => {
                let (&ticket, _) = self.waiting.first_key_value()?;
                let status = self.refusal.clone()?;
                Some(Action::Fail(self.take(ticket)?, status))
            }
            State::Backoff(_) | State::Dialling | State::Idle | State::Leaving => self.expire(now),
        }
    }

    /// When [`Channel::poll_action`] will next have something to do, if nothing is reported before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let expiry = self.expiries.first().map(|&(expiry, _)| expiry);
        match self.state {
            State::Backoff(until) => Some(expiry.map_or(until, |expiry| expiry.min(until))),
            State::Idle | State::DialDue | State::Dialling | State::Connected | State::Leaving => {
                expiry
            }
        }
    }

    /// Takes the first waiting call that `is_wanted` picks, because its caller has gone.
    pub fn take_waiting(&mut self, mut is_wanted: impl FnMut(&T) -> bool) -> Option<T> {
        let (&ticket, _) = self.waiting.iter().find(|(_, w)| is_wanted(&w.call))?;
        self.take(ticket)
    }

    /// Whether the call that waits longest waits for a dial that has failed.
    fn has_given_up(&self) -> bool {
        let first = self.waiting.first_key_value();
        first.is_some_and(|(&ticket, _)| ticket < self.given_up)
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
        let (what, reason) = match (self.is_connected(), self.was_connected) {
            // The connection came when the call's time was over already.
            (true, _) => ("unknown error", Reason::Deadline),
            (false, true) => ("connection is broken", Reason::NoConnection),
            (false, false) => ("connection is timeout", Reason::NoConnection),
        };
        let mut text = format!("Seastar channel: {what}. connection is : {}", self.address);
        if let Some(failure) = &self.last_failure {
            text.push_str(" (");
            text.push_str(failure);
            text.push(')');
        }
        Status::new(Code::Internal, text).because(reason)
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
mod tests;
