//! What a shard does when a turn brought nothing: look again, or sleep.

use std::time::Duration;

use grpcxx_transport::Time;

/// How a shard waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Looks for ever; the CPU is this shard's own.
    Spin,
    /// Looks for this long after the last event, then sleeps.
    SpinThenPark(Duration),
    /// Sleeps at once.
    Park,
}

/// The idling of one shard.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    idle_since: Option<Time>,
}

/// What to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleStep {
    /// Take the next turn at once.
    Turn,
    /// Sleep until there may be work.
    Park,
}

impl IdlePolicy {
    /// The policy of each of `shards` shards that share `allowed_cpus` CPUs. With more shards than CPUs none
    /// spins, because it would only take the CPU from those with work.
    pub fn choose(polling: bool, spin: Duration, shards: usize, allowed_cpus: usize) -> Self {
        match (shards > allowed_cpus, polling) {
            (true, _) => Self::Park,
            (false, true) => Self::Spin,
            (false, false) if spin.is_zero() => Self::Park,
            (false, false) => Self::SpinThenPark(spin),
        }
    }
}

impl std::fmt::Display for IdlePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Spin => f.write_str("spin"),
            Self::SpinThenPark(spin) => write!(f, "spin {} us, then park", spin.as_micros()),
            Self::Park => f.write_str("park"),
        }
    }
}

impl Idle {
    /// A shard that has just started.
    pub fn new(policy: IdlePolicy) -> Self {
        Self {
            policy,
            idle_since: None,
        }
    }

    /// Decides after a turn that began at `now` and brought `events` events.
    pub fn after_turn(&mut self, now: Time, events: usize) -> IdleStep {
        if events > 0 {
            self.idle_since = None;
            return IdleStep::Turn;
        }
        match self.policy {
            IdlePolicy::Spin => IdleStep::Turn,
            IdlePolicy::Park => IdleStep::Park,
            IdlePolicy::SpinThenPark(spin) => {
                let since = *self.idle_since.get_or_insert(now);
                if now.since(since) < spin {
                    IdleStep::Turn
                } else {
                    IdleStep::Park
                }
            }
        }
    }

    /// Spends the moment between two turns without events. A CPU that is not this shard's own is offered to
    /// others, which may be the very peer whose answer it waits for.
    pub fn relax(&self) {
        match self.policy {
            IdlePolicy::Spin => std::hint::spin_loop(),
            IdlePolicy::SpinThenPark(_) | IdlePolicy::Park => std::thread::yield_now(),
        }
    }

    /// Notes that the shard woke up. `is_timeout` says that nothing but time woke it: then it does not spin
    /// again before it sleeps.
    pub fn after_park(&mut self, is_timeout: bool) {
        if !is_timeout {
            self.idle_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(30);

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1_000)
    }

    #[test]
    fn polling_spins_for_ever() {
        let mut idle = Idle::new(IdlePolicy::choose(true, SPIN, 2, 2));
        assert_eq!(idle.after_turn(at(0), 0), IdleStep::Turn);
        assert_eq!(idle.after_turn(at(10_000_000), 0), IdleStep::Turn);
    }

    #[test]
    fn the_default_spins_after_each_event_then_parks() {
        let mut idle = Idle::new(IdlePolicy::choose(false, SPIN, 2, 2));
        assert_eq!(idle.after_turn(at(100), 0), IdleStep::Turn);
        assert_eq!(idle.after_turn(at(129), 0), IdleStep::Turn);
        assert_eq!(idle.after_turn(at(129), 1), IdleStep::Turn);
        assert_eq!(idle.after_turn(at(131), 0), IdleStep::Turn);
        assert_eq!(idle.after_turn(at(161), 0), IdleStep::Park);
        idle.after_park(true);
        assert_eq!(idle.after_turn(at(170), 0), IdleStep::Park);
        idle.after_park(false);
        assert_eq!(idle.after_turn(at(180), 0), IdleStep::Turn);
    }

    #[test]
    fn more_shards_than_cpus_never_spin() {
        assert_eq!(IdlePolicy::choose(true, SPIN, 3, 2), IdlePolicy::Park);
        assert_eq!(IdlePolicy::choose(false, SPIN, 3, 2), IdlePolicy::Park);
        assert_eq!(
            Idle::new(IdlePolicy::Park).after_turn(at(0), 0),
            IdleStep::Park
        );
    }
}
