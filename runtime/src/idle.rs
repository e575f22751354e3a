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
///
/// Whether looking for work pays depends on what shares the CPU: a peer on the same one cannot even
/// begin its answer before this shard sleeps. So a shard that looked in vain some times in a row
/// goes to sleep at once, for a growing number of times, before it tries again.
#[derive(Clone, Debug)]
pub struct Idle {
    policy: IdlePolicy,
    state: State,
    vain_spins: u32,
    spins_to_skip: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Busy,
    Spinning { since: Time },
    Asleep,
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
    /// The policy of each of `shards` shards that share `allowed_cpus` CPUs. With more shards than
    /// CPUs none spins, because it would only take the CPU from those with work.
    pub fn choose(polling: bool, spin: Duration, shards: usize, allowed_cpus: usize) -> Self {
        match (shards > allowed_cpus, polling) {
            (true, _) => Self::Park,
            (false, true) => Self::Spin,
            (false, false) if spin.is_zero() => Self::Park,
            (false, false) => Self::SpinThenPark(spin),
        }
    }
}

/// Why shards do not poll though they were told to: a shard that never sleeps needs the whole time
/// of a CPU, and one that used up its time early in a period waits for the next one.
pub fn polling_left_out(shards: usize, cpu_time: f64) -> Option<String> {
    (shards as f64 > cpu_time).then(|| {
        format!(
            "polling is left out: it needs a CPU for each shard, of which there are {shards}, and \
             this process has the time of {cpu_time}; raise its limit, run fewer shards \
             (GRPCXX_SHARDS), or unset PS_ENABLE_POLLING and WORKER_ENABLE_POLLING"
        )
    })
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
            state: State::Busy,
            vain_spins: 0,
            spins_to_skip: 0,
        }
    }

    /// Decides after a turn that began at `now` and brought `events` events.
    pub fn after_turn(&mut self, now: Time, events: usize) -> IdleStep {
        if events > 0 {
            self.note_event();
            return IdleStep::Turn;
        }
        match self.policy {
            IdlePolicy::Spin => IdleStep::Turn,
            IdlePolicy::Park => IdleStep::Park,
            IdlePolicy::SpinThenPark(spin) => self.spin_or_park(now, spin),
        }
    }

    /// There was something to do.
    pub fn note_event(&mut self) {
        if let State::Spinning { .. } = self.state {
            self.vain_spins = 0;
        }
        self.state = State::Busy;
    }

    fn spin_or_park(&mut self, now: Time, spin: Duration) -> IdleStep {
        match self.state {
            State::Asleep => return IdleStep::Park,
            State::Spinning { since } if now.since(since) < spin => return IdleStep::Turn,
            State::Spinning { .. } => {
                self.vain_spins += 1;
                self.spins_to_skip = spins_to_skip(self.vain_spins);
            }
            State::Busy if self.spins_to_skip > 0 => self.spins_to_skip -= 1,
            State::Busy => {
                self.state = State::Spinning { since: now };
                return IdleStep::Turn;
            }
        }
        self.state = State::Asleep;
        IdleStep::Park
    }
}

/// How often a shard goes to sleep at once after it has looked in vain `vain_spins` times in a row.
fn spins_to_skip(vain_spins: u32) -> u32 {
    match vain_spins.checked_sub(VAIN_SPINS_ALLOWED) {
        None => 0,
        Some(exponent) => 1_u32
            .checked_shl(exponent)
            .map_or(SPINS_SKIPPED_MAX, |skips| skips.min(SPINS_SKIPPED_MAX)),
    }
}

/// Vain spins in a row, from which on some are left out.
const VAIN_SPINS_ALLOWED: u32 = 3;
/// Most spins left out before the next try.
const SPINS_SKIPPED_MAX: u32 = 256;

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
    fn polling_needs_a_cpu_for_each_shard() {
        assert_eq!(polling_left_out(2, 2.0), None);
        assert_eq!(polling_left_out(1, 1.5), None);
        let told = polling_left_out(1, 0.5).unwrap();
        assert!(told.contains("the time of 0.5;"), "{told}");
        assert!(polling_left_out(2, 1.0).is_some());
    }

    /// Goes idle at `us`, and says after how many microseconds the shard sleeps.
    fn sleeps_after_us(idle: &mut Idle, us: u64) -> u64 {
        assert_eq!(idle.after_turn(at(us), 1), IdleStep::Turn);
        (0..)
            .find(|passed| idle.after_turn(at(us + passed), 0) == IdleStep::Park)
            .unwrap()
    }

    #[test]
    fn the_default_spins_after_an_event_then_parks() {
        let mut idle = Idle::new(IdlePolicy::choose(false, SPIN, 2, 2));
        assert_eq!(sleeps_after_us(&mut idle, 100), 30);
        assert_eq!(idle.after_turn(at(900), 0), IdleStep::Park);
        assert_eq!(sleeps_after_us(&mut idle, 1000), 30);
    }

    #[test]
    fn spinning_in_vain_becomes_rare_until_it_pays() {
        let mut idle = Idle::new(IdlePolicy::SpinThenPark(SPIN));
        let times: Vec<u64> = (0..600)
            .map(|period| sleeps_after_us(&mut idle, period * 1000))
            .collect();
        let spins: Vec<usize> = (0..600).filter(|period| times[*period] > 0).collect();
        assert_eq!(spins, [0, 1, 2, 4, 7, 12, 21, 38, 71, 136, 265, 522]);
        let mut period = 1000;
        while sleeps_after_us(&mut idle, period * 1000) == 0 {
            period += 1;
        }
        assert!(period <= 1000 + u64::from(SPINS_SKIPPED_MAX));
        idle.spins_to_skip = 0;
        idle.after_turn(at(9_000_000), 1);
        assert_eq!(idle.after_turn(at(9_000_001), 0), IdleStep::Turn);
        assert_eq!(idle.after_turn(at(9_000_002), 1), IdleStep::Turn);
        assert_eq!(sleeps_after_us(&mut idle, 9_000_003), 30);
        assert_eq!(sleeps_after_us(&mut idle, 9_001_000), 30);
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
