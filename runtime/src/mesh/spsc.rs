use grpcxx_transport::{Refusal, Refused};
use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::Doorbell;

/// One shard's ends of the rings to and from all other shards of an engine: one fixed ring for each
/// ordered pair. The ends cannot be cloned.
///
/// Values sent in a turn are announced together by [`Mesh::flush`].
#[derive(Debug)]
pub struct Mesh<T> {
    shard: usize,
    outgoing: Vec<Option<Outgoing<T>>>,
    incoming: Vec<Option<Consumer<T>>>,
    next_source: usize,
}

#[derive(Debug)]
struct Outgoing<T> {
    ring: Producer<T>,
    doorbell: Doorbell,
    is_unannounced: bool,
}

/// The meshes of as many shards as there are doorbells, with rings of `capacity` values.
///
/// # Panics
/// If `capacity` is 0.
pub fn mesh<T>(capacity: usize, doorbells: &[Doorbell]) -> Vec<Mesh<T>> {
    assert!(capacity > 0, "a ring needs room for a value");
    let shards = doorbells.len();
    let mut meshes: Vec<Mesh<T>> = (0..shards)
        .map(|shard| Mesh {
            shard,
            outgoing: (0..shards).map(|_| None).collect(),
            incoming: (0..shards).map(|_| None).collect(),
            next_source: 0,
        })
        .collect();
    for source in 0..shards {
        for (target, doorbell) in doorbells.iter().enumerate() {
            if source == target {
                continue;
            }
            let (producer, consumer) = RingBuffer::new(capacity);
            meshes[source].outgoing[target] = Some(Outgoing {
                ring: producer,
                doorbell: doorbell.clone(),
                is_unannounced: false,
            });
            meshes[target].incoming[source] = Some(consumer);
        }
    }
    meshes
}

impl<T> Mesh<T> {
    /// The shard that owns these ends.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Number of shards of the engine.
    pub fn shards(&self) -> usize {
        self.outgoing.len()
    }

    /// Queues a value for another shard. The other shard may learn of it only with [`Mesh::flush`].
    ///
    /// # Errors
    /// The value comes back: the ring is full, the other shard has ended, or there is no such other
    /// shard.
    pub fn send(&mut self, target: usize, value: T) -> Result<(), Refused<T>> {
        let Some(Some(outgoing)) = self.outgoing.get_mut(target) else {
            return Err(Refused {
                value,
                refusal: Refusal::WrongState,
            });
        };
        if outgoing.ring.is_abandoned() {
            return Err(Refused {
                value,
                refusal: Refusal::NotOpen,
            });
        }
        match outgoing.ring.push(value) {
            Ok(()) => {
                outgoing.is_unannounced = true;
                Ok(())
            }
            Err(PushError::Full(value)) => {
                outgoing.is_unannounced = true;
                Err(Refused {
                    value,
                    refusal: Refusal::Full,
                })
            }
        }
    }

    /// Wakes each shard that was sent something since the last call.
    pub fn flush(&mut self) {
        for outgoing in self.outgoing.iter_mut().flatten() {
            if outgoing.is_unannounced {
                outgoing.is_unannounced = false;
                outgoing.doorbell.ring();
            }
        }
    }

    /// Hands values to `take` with the number of their shard: at most `limit_per_shard` from each,
    /// and from a different shard first in each call. Returns how many there were.
    pub fn drain(&mut self, limit_per_shard: usize, mut take: impl FnMut(usize, T)) -> usize {
        let shards = self.incoming.len();
        if shards <= 1 {
            return 0;
        }
        let mut count = 0;
        for offset in 0..shards {
            let source = (self.next_source + offset) % shards;
            let Some(ring) = &mut self.incoming[source] else {
                continue;
            };
            for _ in 0..limit_per_shard {
                let Ok(value) = ring.pop() else { break };
                take(source, value);
                count += 1;
            }
        }
        self.next_source = (self.next_source + 1) % shards;
        count
    }

    /// Whether nothing waits for this shard.
    pub fn is_empty(&self) -> bool {
        self.incoming.iter().flatten().all(Consumer::is_empty)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mesh::{Sleeper, doorbell};

    fn bells(count: usize) -> (Vec<Doorbell>, Vec<Sleeper>) {
        (0..count).map(|_| doorbell()).unzip()
    }

    #[test]
    fn each_value_arrives_once_and_in_order_at_its_shard() {
        let (bells, _sleepers) = bells(3);
        let mut meshes = mesh(8, &bells);
        for value in 0..5 {
            meshes[0].send(2, value).unwrap();
            meshes[1].send(2, value + 100).unwrap();
        }
        assert!(meshes[1].is_empty());
        let mut taken = Vec::new();
        assert_eq!(
            meshes[2].drain(3, |source, value| taken.push((source, value))),
            6
        );
        assert_eq!(
            meshes[2].drain(3, |source, value| taken.push((source, value))),
            4
        );
        assert!(meshes[2].is_empty());
        for source in 0..2 {
            let from: Vec<_> = taken
                .iter()
                .filter(|t| t.0 == source)
                .map(|t| t.1)
                .collect();
            let first = source as i32 * 100;
            assert_eq!(from, (first..first + 5).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_refused_value_comes_back() {
        let (bells, _sleepers) = bells(2);
        let mut meshes = mesh(1, &bells);
        assert_eq!(
            meshes[0].send(0, 1).unwrap_err().refusal,
            Refusal::WrongState
        );
        assert_eq!(
            meshes[0].send(7, 2).unwrap_err().refusal,
            Refusal::WrongState
        );
        meshes[0].send(1, 3).unwrap();
        let refused = meshes[0].send(1, 4).unwrap_err();
        assert_eq!((refused.value, refused.refusal), (4, Refusal::Full));
        meshes.pop();
        assert_eq!(meshes[0].send(1, 5).unwrap_err().refusal, Refusal::NotOpen);
    }

    #[test]
    fn a_lone_shard_has_an_empty_mesh() {
        let (bells, _sleepers) = bells(1);
        let mut meshes = mesh::<u8>(1, &bells);
        assert!(meshes[0].is_empty());
        assert_eq!(meshes[0].drain(4, |_, _| ()), 0);
        meshes[0].flush();
    }
}
