//! The memory that a device may touch while requests are posted: slots for messages, and landings
//! being read.

mod reads;

use std::collections::VecDeque;

use grpcxx_memory::BufferMut;
use grpcxx_transport::TransportError;

use self::reads::Reading;
pub(crate) use self::reads::Target;
use crate::adapter::{Queue, Receive, Request, Work};

/// One link's queue with all memory that is posted to it.
///
/// Invariant: the device may touch a receive slot while `receives` calls it posted, a send slot
/// while it is neither free nor prepared, the staging part and the landings of `readings` while
/// they are there. Nothing here hands out a reference to such memory, and the queue is dropped
/// before the memory is.
#[derive(Debug)]
pub(crate) struct QueueContext<Q> {
    queue: Q,
    memory: Slots,
    receives: Vec<Slot>,
    reposts: Vec<Receive>,
    free_sends: Vec<u16>,
    requests: Vec<Request>,
    posted: VecDeque<Posted>,
    unsignalled: usize,
    depth: usize,
    /// Oldest first; only the last has a link's receiving half.
    readings: VecDeque<Reading>,
    reads_max: usize,
    /// Reads posted and not completed.
    reads_outstanding: usize,
    inline_bytes_max: usize,
}

/// How the memory of a link is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) slot_bytes: usize,
    pub(crate) receives: u16,
    pub(crate) sends: u16,
    pub(crate) staging_bytes: usize,
}

/// Bounds of a [`QueueContext`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueContextLimits {
    pub(crate) requests: usize,
    pub(crate) reads: usize,
    pub(crate) inline_bytes: usize,
}

#[derive(Debug)]
struct Slots {
    /// Never looked at through this field while the queue exists.
    buffer: BufferMut,
    start: *mut u8,
    key: u32,
    layout: Layout,
}

// SAFETY: it owns the buffer that the pointer leads into.
unsafe impl Send for Slots {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Posted,
    Taken,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    kind: Kind,
    signalled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Send(u16),
    Immediate,
    Read,
}

impl Layout {
    pub(crate) fn len_bytes(&self) -> usize {
        self.slot_bytes * (usize::from(self.receives) + usize::from(self.sends))
            + self.staging_bytes
    }
}

impl<Q: Queue> QueueContext<Q> {
    /// A context whose receives are all posted.
    ///
    /// # Panics
    /// If `memory` is shorter than the layout.
    pub(crate) fn new(
        queue: Q,
        mut buffer: BufferMut,
        key: u32,
        layout: Layout,
        limits: QueueContextLimits,
    ) -> Result<Self, TransportError> {
        assert!(
            buffer.len() >= layout.len_bytes(),
            "a link has all of its memory"
        );
        let start = buffer.as_mut_ptr();
        let receives = usize::from(layout.receives);
        let mut context = Self {
            queue,
            memory: Slots {
                buffer,
                start,
                key,
                layout,
            },
            receives: vec![Slot::Taken; receives],
            reposts: Vec::with_capacity(receives),
            free_sends: (0..layout.sends).rev().collect(),
            requests: Vec::with_capacity(limits.requests),
            posted: VecDeque::with_capacity(limits.requests),
            unsignalled: 0,
            depth: limits.requests,
            readings: VecDeque::new(),
            reads_max: limits.reads,
            reads_outstanding: 0,
            inline_bytes_max: limits.inline_bytes,
        };
        for index in 0..layout.receives {
            context.repost(index);
        }
        context.flush()?;
        Ok(context)
    }

    pub(crate) fn queue(&mut self) -> &mut Q {
        &mut self.queue
    }

    pub(crate) fn set_reads_max(&mut self, reads: usize) {
        self.reads_max = self.reads_max.min(reads).max(1);
    }

    /// Notes that the receive completed, so that its memory is ours. False if it was not posted.
    pub(crate) fn take(&mut self, index: u16) -> bool {
        match self.receives.get_mut(usize::from(index)) {
            Some(slot @ Slot::Posted) => {
                *slot = Slot::Taken;
                true
            }
            _ => false,
        }
    }

    /// The message in a slot that was taken.
    ///
    /// # Panics
    /// If the slot was not taken, or is shorter.
    pub(crate) fn message(&self, index: u16, len_bytes: usize) -> &[u8] {
        assert_eq!(self.receives[usize::from(index)], Slot::Taken);
        assert!(len_bytes <= self.memory.layout.slot_bytes);
        // SAFETY: the slot lies in the memory, its receive has completed, and posting it again
        // needs `self` mutably.
        unsafe { std::slice::from_raw_parts(self.memory.receive(index), len_bytes) }
    }

    /// Posts a slot that was taken for another message, with the next [`QueueContext::flush`].
    pub(crate) fn repost(&mut self, index: u16) {
        let slot = &mut self.receives[usize::from(index)];
        assert_eq!(*slot, Slot::Taken, "a slot is posted once");
        *slot = Slot::Posted;
        self.reposts.push(Receive {
            index,
            address: self.memory.receive(index).expose_provenance(),
            len_bytes: self.memory.layout.slot_bytes as u32,
            key: self.memory.key,
        });
    }

    /// Whether one more request has room.
    pub(crate) fn has_room(&self) -> bool {
        self.posted.len() < self.depth
    }

    /// A slot for the next message, to be sent by [`QueueContext::send`]; `None` if all are on
    /// their way.
    pub(crate) fn slot(&mut self) -> Option<&mut [u8]> {
        if !self.has_room() {
            return None;
        }
        let index = *self.free_sends.last()?;
        // SAFETY: the slot lies in the memory, no request uses a free slot, and `self` is borrowed
        // mutably.
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.memory.send(index), self.memory.layout.slot_bytes)
        })
    }

    /// Sends the first bytes of the slot of the last [`QueueContext::slot`], with the next
    /// [`QueueContext::flush`].
    pub(crate) fn send(&mut self, len_bytes: usize, is_last: bool) {
        assert!(len_bytes <= self.memory.layout.slot_bytes);
        let index = self.free_sends.pop().expect("a slot was taken");
        let work = Work::Send {
            address: self.memory.send(index).expose_provenance(),
            len_bytes: len_bytes as u32,
            key: self.memory.key,
            inline: len_bytes <= self.inline_bytes_max,
        };
        let is_short = self.free_sends.len() * 2 <= usize::from(self.memory.layout.sends);
        self.request(Kind::Send(index), work, is_last || is_short);
    }

    /// Sends 32 bits, with the next [`QueueContext::flush`].
    pub(crate) fn send_immediate(&mut self, bits: u32, is_last: bool) {
        self.request(Kind::Immediate, Work::Immediate(bits), is_last);
    }

    /// What the last staged read brought.
    ///
    /// # Panics
    /// If a read is on its way.
    pub(crate) fn staged(&self, len_bytes: usize) -> &[u8] {
        assert!(self.readings.is_empty() && len_bytes <= self.memory.layout.staging_bytes);
        // SAFETY: staging lies in the memory, nothing but a read touches it, there is none, and
        // beginning one needs `self` mutably.
        unsafe { std::slice::from_raw_parts(self.memory.staging(), len_bytes) }
    }

    /// Posts what was prepared.
    pub(crate) fn flush(&mut self) -> Result<(), TransportError> {
        self.queue_reads();
        if !self.reposts.is_empty() {
            // SAFETY: the slots lie in memory that outlives the queue, and are neither read nor
            // written until `take` says that they completed.
            unsafe { self.queue.post_receives(&self.reposts)? };
            self.reposts.clear();
        }
        if !self.requests.is_empty() {
            // SAFETY: send slots are written only while they are free, which they are after
            // completion. Reads go to staging memory or into a landing that `readings` has; neither
            // is touched until all its reads completed or the queue is gone.
            unsafe { self.queue.post_sends(&self.requests)? };
            self.requests.clear();
        }
        Ok(())
    }

    /// Notes that the oldest signalled request succeeded, with all before it.
    pub(crate) fn done(&mut self) {
        while let Some(posted) = self.posted.pop_front() {
            match posted.kind {
                Kind::Send(index) => self.free_sends.push(index),
                Kind::Immediate => {}
                Kind::Read => {
                    self.reads_outstanding -= 1;
                    // They complete in the order in which they were posted.
                    let mut readings = self.readings.iter_mut();
                    if let Some(reading) = readings.find(|reading| reading.outstanding > 0) {
                        reading.outstanding -= 1;
                    }
                }
            }
            if posted.signalled {
                return;
            }
        }
    }

    /// Whether every request that was posted has completed, or would be known only with a later
    /// one.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.requests.is_empty() && !self.posted.iter().any(|posted| posted.signalled)
    }

    /// Destroys the queue, after which the device touches nothing, and gives back what reads held,
    /// oldest first.
    pub(crate) fn close(self) -> impl Iterator<Item = Target> {
        let Self {
            mut queue,
            memory,
            readings,
            ..
        } = self;
        queue.stop();
        drop(queue);
        drop(memory.buffer);
        readings.into_iter().map(|reading| reading.into)
    }

    fn request(&mut self, kind: Kind, work: Work, is_wanted: bool) {
        assert!(self.posted.len() < self.depth, "the room was looked at");
        self.unsignalled += 1;
        let signalled = is_wanted
            || self.unsignalled >= UNSIGNALLED_MAX
            || self.posted.len() + 1 + UNSIGNALLED_MAX > self.depth;
        if signalled {
            self.unsignalled = 0;
        }
        self.posted.push_back(Posted { kind, signalled });
        self.requests.push(Request {
            index: 0,
            signalled,
            work,
        });
    }
}

impl Slots {
    fn at(&self, offset_bytes: usize) -> *mut u8 {
        debug_assert!(offset_bytes <= self.layout.len_bytes());
        self.start.wrapping_add(offset_bytes)
    }

    fn receive(&self, index: u16) -> *mut u8 {
        assert!(index < self.layout.receives);
        self.at(usize::from(index) * self.layout.slot_bytes)
    }

    fn send(&self, index: u16) -> *mut u8 {
        assert!(index < self.layout.sends);
        let before = usize::from(self.layout.receives) + usize::from(index);
        self.at(before * self.layout.slot_bytes)
    }

    fn staging(&self) -> *mut u8 {
        let slots = usize::from(self.layout.receives) + usize::from(self.layout.sends);
        self.at(slots * self.layout.slot_bytes)
    }
}

/// Requests in a row that complete unseen; each signalled one costs an entry of the completion
/// queue.
const UNSIGNALLED_MAX: usize = 8;
