use crate::completion::{Completion, Target};

/// Where the results of calls go of which only their connections know.
///
/// Such a call is named by its place alone: its connection names it once, when it ends, so no stale name comes.
/// Invariants: `free` heads a list of all vacant places; `occupied` counts the others.
#[derive(Debug)]
pub(super) struct Targets {
    places: Vec<Place>,
    free: u32,
    occupied: usize,
    limit: usize,
}

#[derive(Debug)]
struct Place {
    /// Nobody, if this place is vacant.
    target: Target,
    /// The next vacant place, if this one is vacant.
    next_free: u32,
}

/// A vacant place, which has a number before it has a target.
#[derive(Debug)]
pub(super) struct Room<'a> {
    number: u32,
    place: &'a mut Place,
    free: &'a mut u32,
    occupied: &'a mut usize,
}

impl Targets {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
            occupied: 0,
            limit,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.occupied
    }

    /// The place of the next target, unless all are taken.
    #[inline]
    pub(super) fn room(&mut self) -> Option<Room<'_>> {
        if self.free == NONE {
            self.grow();
        }
        let number = self.free;
        Some(Room {
            number,
            place: self.places.get_mut(number as usize)?,
            free: &mut self.free,
            occupied: &mut self.occupied,
        })
    }

    /// Makes a place where none is vacant, unless there are as many as there may be.
    #[cold]
    fn grow(&mut self) {
        if self.places.len() >= self.limit {
            return;
        }
        self.free = u32::try_from(self.places.len()).expect("limits are below 2^32");
        self.places.push(Place {
            target: Target::Nobody,
            next_free: NONE,
        });
    }

    pub(super) fn get(&self, number: u32) -> Option<&Target> {
        let place = self.places.get(number as usize)?;
        Some(&place.target)
    }

    /// Takes a target out, or nobody where none is.
    #[inline(always)]
    pub(super) fn take(&mut self, number: u32) -> Target {
        let Some(place) = self.places.get_mut(number as usize) else {
            return Target::Nobody;
        };
        let target = std::mem::take(&mut place.target);
        if !matches!(target, Target::Nobody) {
            place.next_free = self.free;
            self.free = number;
            self.occupied -= 1;
        }
        target
    }

    /// Takes all targets out.
    pub(super) fn take_all(&mut self) -> Vec<Target> {
        let numbers = 0..self.places.len() as u32;
        let mut all: Vec<Target> = numbers.map(|number| self.take(number)).collect();
        all.retain(|target| !matches!(target, Target::Nobody));
        all
    }
}

impl Room<'_> {
    #[inline]
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Takes a target in, which is not nobody. Inlined, so that it is made where it stays: a move waits until its parts are
    /// written.
    #[inline(always)]
    pub(super) fn fill(self, target: Target) {
        debug_assert!(!matches!(target, Target::Nobody));
        // A vacant place has nothing to drop.
        std::mem::forget(std::mem::replace(&mut self.place.target, target));
        *self.free = self.place.next_free;
        *self.occupied += 1;
    }
}

/// A shard that is dropped with calls under way ends them.
impl Drop for Targets {
    fn drop(&mut self) {
        for target in self.take_all() {
            drop(Completion::new(target));
        }
    }
}

const NONE: u32 = u32::MAX;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::call::{CallResult, CallSink};
    use crate::shard::ShardContext;

    /// Adds up the tokens of calls that ended.
    #[derive(Default)]
    struct Sum(AtomicU64);

    impl CallSink for Sum {
        fn finished(self: Arc<Self>, token: u64, _: CallResult, _: &mut ShardContext<'_>) {
            self.0.fetch_add(token, Ordering::Relaxed);
        }
    }

    fn target(sink: &Arc<Sum>, token: u64) -> Target {
        let sink: Arc<dyn CallSink> = sink.clone();
        Target::Sink { sink, token }
    }

    fn token(target: &Target) -> Option<u64> {
        match target {
            Target::Sink { token, .. } => Some(*token),
            _ => None,
        }
    }

    #[test]
    fn places_are_used_again_and_the_limit_holds() {
        let sink = Arc::new(Sum::default());
        let mut targets = Targets::new(2);
        for number in 0..2 {
            let room = targets.room().unwrap();
            assert_eq!(room.number(), number);
            room.fill(target(&sink, 10 + u64::from(number)));
        }
        assert!(targets.room().is_none());
        assert_eq!(targets.get(1).and_then(token), Some(11));
        assert_eq!(token(&targets.take(0)), Some(10));
        for vacant in [0, 2, NONE] {
            assert_eq!(token(&targets.take(vacant)), None);
        }
        assert_eq!(targets.len(), 1);
        // Room that is not used stays.
        assert_eq!(targets.room().unwrap().number(), 0);
        targets.room().unwrap().fill(target(&sink, 20));
        assert!(targets.room().is_none());
        assert_eq!(targets.len(), 2);
    }

    #[test]
    fn calls_end_with_their_shard_unless_they_ended_before() {
        let sink = Arc::new(Sum::default());
        let mut targets = Targets::new(8);
        for number in 0..4 {
            targets.room().unwrap().fill(target(&sink, 1 << number));
        }
        drop(targets.take(1));
        let taken = targets.take_all();
        assert_eq!(taken.iter().filter_map(token).sum::<u64>(), 0b1101);
        assert_eq!(targets.len(), 0);
        targets.room().unwrap().fill(target(&sink, 1 << 4));
        drop(targets);
        assert_eq!(sink.0.load(Ordering::Relaxed), 1 << 4);
    }
}
