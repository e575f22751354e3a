//! Whether the shards of an engine still answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, Reason, Status};

use crate::client::Client;

/// Asks shards for a sign of life, one question at a time, and waits for none of them.
#[derive(Clone)]
pub struct Liveness {
    client: Client,
    /// Since when each shard owes an answer.
    owed: Arc<[Mutex<Option<Instant>>]>,
}

impl Liveness {
    /// Of the engine of this client.
    pub fn new(client: Client) -> Self {
        let owed = (0..client.shards()).map(|_| Mutex::default()).collect();
        Self { client, owed }
    }

    /// Whether the engine is alive. Asks the shards that owe no answer, and returns at once: a
    /// shard that hangs shows 30 seconds after the first question to it. An engine that stops is
    /// alive.
    ///
    /// # Errors
    /// `UNAVAILABLE`: a shard has died, or has not answered for 30 seconds.
    pub fn check(&self) -> Result<(), Status> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), Status> {
        if let Some(status) = self.client.ended() {
            return match status.reason {
                Reason::ShardDied => Err(status),
                _ => Ok(()),
            };
        }
        let silences = (0..self.owed.len()).map(|shard| (self.ask(shard, now), shard));
        match silences.max() {
            Some((silence, shard)) if silence >= SILENCE_MAX => Err(Status::new(
                Code::Unavailable,
                format!("shard {shard} has not answered for {} s", silence.as_secs()),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// How long a shard has owed an answer; asks it if it owes none.
    fn ask(&self, shard: usize, now: Instant) -> Duration {
        let mut owed = lock(&self.owed[shard]);
        if let Some(since) = *owed {
            return now.saturating_duration_since(since);
        }
        *owed = Some(now);
        drop(owed);
        let all = Arc::clone(&self.owed);
        self.client
            .ask_shard(shard, move || *lock(&all[shard]) = None);
        Duration::ZERO
    }
}

fn lock(owed: &Mutex<Option<Instant>>) -> MutexGuard<'_, Option<Instant>> {
    owed.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a shard may take to answer: far longer than any code takes that does not hang.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::engine::{Engine, EngineOptions};

    #[test]
    fn a_shard_that_hangs_is_told_until_it_goes_on() {
        let options = EngineOptions::default().with(|options| options.shards = 1);
        let engine = Engine::start(options).unwrap();
        let liveness = Liveness::new(engine.client());
        let (open, gate) = channel::<()>();
        engine
            .run_on(0, move |_| assert!(gate.recv().is_err()))
            .unwrap();
        let asked = Instant::now();
        liveness.check_at(asked).unwrap();
        liveness.check_at(asked + SILENCE_MAX / 2).unwrap();
        let silent = liveness.check_at(asked + SILENCE_MAX).unwrap_err();
        assert!(
            silent.message.contains("shard 0 has not answered for 30 s"),
            "{silent}"
        );
        drop(open);
        let end = Instant::now() + Duration::from_secs(30);
        while liveness.check_at(asked + SILENCE_MAX).is_err() {
            assert!(Instant::now() < end, "the shard goes on");
            std::thread::yield_now();
        }
        engine.shutdown(Duration::ZERO).unwrap();
        liveness.check_at(asked + 9 * SILENCE_MAX).unwrap();
    }

    #[test]
    fn a_shard_that_died_is_told_at_once() {
        let engine = Engine::start(EngineOptions::default()).unwrap();
        let liveness = Liveness::new(engine.client());
        engine.run_on(0, |_| panic!("asked to die")).unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while liveness.check().is_ok() {
            assert!(Instant::now() < end, "the death is told");
            std::thread::yield_now();
        }
        assert!(engine.shutdown(Duration::ZERO).is_err());
    }
}
