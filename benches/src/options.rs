use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use grpcxx_fusion::PlanLimits;

use super::payload::{Mix, PayloadSpec};
use super::typed::MESSAGE_BYTES_MAX;

/// What a run measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// One call after the other.
    Latency,
    /// As many calls as the connections take.
    Rate,
    /// Steps that take all tensors from the server.
    Pull,
    /// Steps that give all tensors to the server.
    Push,
    /// Steps of a worker: take all tensors, then give as many.
    Ps,
    /// Calls of a function, one after the other, with a tensor each way.
    Call,
    /// Calls of a method of a service, one after the other, with a message each way.
    Unary,
    /// Messages that a method of a service streams.
    Stream,
}

/// From where functions and methods are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Api {
    /// From futures on the shards that have the connections.
    #[default]
    Shard,
    /// From an ordinary thread for each connection, which waits for its futures.
    Thread,
    /// From a tokio for each connection, of one thread.
    Tokio,
}

/// What a client does, and for how long.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What to measure.
    pub op: Op,
    /// From where it is called; functions and methods alone are called from anywhere but a shard.
    pub api: Api,
    /// The tensors of a step, or what a function or a method takes and gives.
    pub payload: PayloadSpec,
    /// Number of connections, over all servers.
    pub connections: usize,
    /// Steps under way at once on each connection.
    pub depth: usize,
    /// How long to measure, after a warm-up.
    pub duration: Duration,
    /// Steps begun each second over all connections; as many as possible if `None`.
    pub rate: Option<f64>,
    /// Which tensors share a call; `None`: each has a call of its own.
    pub fusion: Option<PlanLimits>,
    /// Compare what arrives with what was sent, on both sides.
    pub verify: bool,
    /// Keep the latencies of each connection apart.
    pub by_connection: bool,
    /// How long no call may end while some are under way, before the run is given up. Calls have no
    /// deadlines of their own, which would be part of what is measured.
    pub patience: Duration,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Latency,
        Self::Rate,
        Self::Pull,
        Self::Push,
        Self::Ps,
        Self::Call,
        Self::Unary,
        Self::Stream,
    ];

    /// The word on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Ps => "ps",
            Self::Call => "call",
            Self::Unary => "unary",
            Self::Stream => "stream",
        }
    }

    /// Whether a function or a method is called, as programs do from wherever they are.
    pub const fn has_api(self) -> bool {
        matches!(self, Self::Call | Self::Unary | Self::Stream)
    }

    /// Whether tensors or messages come from the server.
    pub const fn pulls(self) -> bool {
        !matches!(self, Self::Push)
    }

    /// Whether tensors or messages go to the server.
    pub const fn pushes(self) -> bool {
        matches!(self, Self::Push | Self::Ps | Self::Call | Self::Unary)
    }

    /// How often the payload crosses the link in one step.
    pub const fn crossings(self) -> u64 {
        self.pulls() as u64 + self.pushes() as u64
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| {
                format!(
                    "{text:?} is no operation; write latency, rate, pull, push or ps, or call, \
                     unary or stream"
                )
            })
    }
}

impl FromStr for Api {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shard" => Ok(Self::Shard),
            "thread" => Ok(Self::Thread),
            "tokio" => Ok(Self::Tokio),
            _ => Err(format!(
                "{text:?} is no place to call from; write shard, thread or tokio"
            )),
        }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shard => "shard",
            Self::Thread => "thread",
            Self::Tokio => "tokio",
        })
    }
}

impl RunOptions {
    /// Refuses what cannot be run, before anything is sent.
    ///
    /// # Errors
    /// A text that names the option, its value and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        within("connections", self.connections, CONNECTIONS_MAX)?;
        within("depth", self.depth, DEPTH_MAX)?;
        within(
            "connections x depth",
            self.connections * self.depth,
            SLOTS_MAX,
        )?;
        if self.duration.is_zero() || self.duration > DURATION_MAX {
            return Err(format!(
                "cannot measure for {:?}; write more than 0 and at most {} seconds",
                self.duration,
                DURATION_MAX.as_secs()
            ));
        }
        self.check_api()?;
        match self.rate {
            Some(rate) if !(RATE_MIN..=RATE_MAX).contains(&rate) => Err(format!(
                "cannot begin {rate} steps a second; write {RATE_MIN} to {RATE_MAX}"
            )),
            _ => self.payload.check(),
        }
    }

    fn check_api(&self) -> Result<(), String> {
        let (op, api, payload) = (self.op, self.api, &self.payload);
        if !op.has_api() {
            return match api {
                Api::Shard => Ok(()),
                _ => Err(format!(
                    "{op} is measured from the shard; write call, unary or stream to call from a \
                     {api}"
                )),
            };
        }
        if payload.count != 1 || payload.mix != Mix::Same || payload.serialized {
            return Err(format!(
                "{op} has one message of one size; leave out what is of many"
            ));
        }
        if payload.size_bytes > MESSAGE_BYTES_MAX {
            return Err(format!(
                "a message of {} bytes; at most {MESSAGE_BYTES_MAX} are measured",
                payload.size_bytes
            ));
        }
        if self.rate.is_some() {
            return Err(format!("{op} goes as fast as it can; leave out the rate"));
        }
        if api != Api::Shard && self.connections > CALLERS_MAX {
            return Err(format!(
                "{} connections, each with a {api} of its own; at most {CALLERS_MAX} are made",
                self.connections
            ));
        }
        Ok(())
    }
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            op: Op::Latency,
            api: Api::Shard,
            payload: PayloadSpec::default(),
            connections: 1,
            depth: 1,
            duration: Duration::from_secs(3),
            rate: None,
            fusion: Some(PlanLimits::between_grpcxx()),
            verify: false,
            by_connection: false,
            patience: Duration::from_secs(60),
        }
    }
}

fn within(name: &str, value: usize, max: usize) -> Result<(), String> {
    if (1..=max).contains(&value) {
        return Ok(());
    }
    Err(format!("{name} is {value}; it must be 1 to {max}"))
}

/// As many as an engine has peers.
pub const CONNECTIONS_MAX: usize = 65_536;
/// As many calls as a connection has slots for.
pub const DEPTH_MAX: usize = 65_536;
/// Threads that call at once.
const CALLERS_MAX: usize = 256;
/// Steps under way at once.
const SLOTS_MAX: usize = 1 << 18;
/// The longest run.
const DURATION_MAX: Duration = Duration::from_secs(24 * 3600);
const RATE_MIN: f64 = 0.01;
const RATE_MAX: f64 = 1e7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_read_by_name() {
        for op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        assert!("ping".parse::<Op>().unwrap_err().contains("latency, rate"));
        assert_eq!((Op::Push.crossings(), Op::Ps.crossings()), (1, 2));
    }

    #[test]
    fn what_cannot_run_is_refused_by_name() {
        let refused = |change: fn(&mut RunOptions)| {
            let mut options = RunOptions::default();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert_eq!(RunOptions::default().check(), Ok(()));
        assert!(refused(|options| options.depth = 0).contains("depth is 0"));
        assert!(
            refused(|options| options.connections = 1 << 20).contains("connections is 1048576")
        );
        assert!(refused(|options| options.duration = Duration::ZERO).contains("cannot measure"));
        assert!(refused(|options| options.rate = Some(0.0)).contains("0 steps"));
        let typed = |change: fn(&mut RunOptions)| {
            let mut options = RunOptions {
                op: Op::Unary,
                api: Api::Tokio,
                ..RunOptions::default()
            };
            assert_eq!(options.check(), Ok(()));
            change(&mut options);
            options.check().unwrap_err()
        };
        assert!(typed(|options| options.op = Op::Pull).contains("unary or stream"));
        assert!(typed(|options| options.payload.count = 2).contains("one message"));
        assert!(typed(|options| options.payload.size_bytes = 1 << 30).contains("67108864"));
        assert!(typed(|options| options.rate = Some(1.0)).contains("rate"));
        assert!(typed(|options| options.connections = 257).contains("257 connections"));
        assert!(
            "fiber"
                .parse::<Api>()
                .unwrap_err()
                .contains("thread or tokio")
        );
        let both = refused(|options| {
            options.connections = 10_000;
            options.depth = 100;
        });
        assert!(both.contains("connections x depth is 1000000"));
    }
}
