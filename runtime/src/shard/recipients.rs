use std::ops::Range;

use crate::completion::{Completion, Recipient, Target};
use crate::limits;

/// Who takes the results of calls of which only their connections know.
///
/// Such a call is named by its place alone: its connection does not name it again once it has told its end. A shard that
/// stops takes all out and fills no place again, so what its connections name later finds nothing.
///
/// Invariants: `free` heads a list of all vacant places; `occupied` counts the others.
#[derive(Debug)]
pub(super) struct Recipients {
    places: Vec<Place>,
    free: u32,
    occupied: usize,
    limit: usize,
}

#[derive(Debug)]
struct Place {
    recipient: Option<Recipient>,
    /// The next vacant place, if this one is vacant.
    next_free: u32,
}

/// A vacant place, which has a number before somebody is there.
#[derive(Debug)]
pub(super) struct Room<'a> {
    number: u32,
    place: &'a mut Place,
    free: &'a mut u32,
    occupied: &'a mut usize,
}

impl Recipients {
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

    /// The place of the next recipient, unless all are taken.
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
            recipient: None,
            next_free: NONE,
        });
    }

    pub(super) fn get(&self, number: u32) -> Option<&Recipient> {
        self.places.get(number as usize)?.recipient.as_ref()
    }

    #[inline(always)]
    pub(super) fn take(&mut self, number: u32) -> Option<Recipient> {
        let place = self.places.get_mut(number as usize)?;
        let recipient = place.recipient.take()?;
        place.next_free = self.free;
        self.free = number;
        self.occupied -= 1;
        Some(recipient)
    }

    /// The numbers that a recipient may have.
    pub(super) fn numbers(&self) -> Range<u32> {
        0..self.places.len() as u32
    }
}

impl Room<'_> {
    /// The mark of the call at its connection. No call of the other table has it.
    #[inline]
    pub(super) fn token(&self) -> u64 {
        u64::from(self.number) | RECIPIENT
    }

    /// Inlined, so that the recipient is put together where it stays: a move waits until its parts are written.
    #[inline(always)]
    pub(super) fn fill(self, recipient: Recipient) {
        debug_assert!(self.place.recipient.is_none());
        // A vacant place has nothing to drop.
        std::mem::forget(self.place.recipient.replace(recipient));
        *self.free = self.place.next_free;
        *self.occupied += 1;
    }
}

/// A shard that is dropped with calls under way ends them.
impl Drop for Recipients {
    fn drop(&mut self) {
        for number in self.numbers() {
            if let Some(recipient) = self.take(number) {
                drop(Completion::new(Target::Sink(recipient)));
            }
        }
    }
}

/// The number of the recipient that this token of a call stands for, if the call has one.
#[inline]
pub(super) fn recipient_number(token: u64) -> Option<u32> {
    (token & RECIPIENT != 0).then_some((token & !RECIPIENT) as u32)
}

/// Bit of tokens that are numbers of recipients. Slots of the other table do not reach it.
const RECIPIENT: u64 = 1 << 31;

const _: () = assert!(limits::CALLS_PER_SHARD as u64 <= RECIPIENT);

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

    fn recipient(sink: &Arc<Sum>, token: u64) -> Recipient {
        let sink: Arc<dyn CallSink> = sink.clone();
        Recipient { sink, token }
    }

    #[test]
    fn places_are_used_again_and_the_limit_holds() {
        let sink = Arc::new(Sum::default());
        let mut recipients = Recipients::new(2);
        for number in 0..2 {
            let room = recipients.room().unwrap();
            assert_eq!(recipient_number(room.token()), Some(number));
            room.fill(recipient(&sink, 10 + u64::from(number)));
        }
        assert!(recipients.room().is_none());
        assert_eq!(recipients.get(1).unwrap().token, 11);
        assert_eq!(recipients.take(0).unwrap().token, 10);
        for vacant in [0, 2, NONE] {
            assert!(recipients.take(vacant).is_none());
        }
        assert_eq!(recipients.len(), 1);
        // Room that is not used stays.
        let token = recipients.room().unwrap().token();
        assert_eq!(recipient_number(token), Some(0));
        recipients.room().unwrap().fill(recipient(&sink, 20));
        assert!(recipients.room().is_none());
        assert_eq!(recipients.len(), 2);
    }

    #[test]
    fn calls_end_with_their_shard_unless_they_ended_before() {
        let sink = Arc::new(Sum::default());
        let mut recipients = Recipients::new(8);
        for number in 0..4 {
            recipients
                .room()
                .unwrap()
                .fill(recipient(&sink, 1 << number));
        }
        assert!(recipients.take(1).is_some());
        assert_eq!(recipients.numbers(), 0..4);
        drop(recipients);
        assert_eq!(sink.0.load(Ordering::Relaxed), 0b1101);
    }
}
