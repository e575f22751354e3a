use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use grpcxx_transport::ReadTarget;
use io_uring::squeue::Flags;
use io_uring::types::{Fd, Timespec};
use io_uring::{cqueue, opcode};

use super::buffers::GROUP;
use super::ready_set::Membership;
use super::ring::Ring;
use crate::cpu_sharing::CpuSharing;
use crate::link::Link;

/// What the kernel is doing for a link. While a flag is set it may use the memory named there.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    /// A receive into the landing of the link's `inbound`, which nobody else touches meanwhile.
    pub(crate) landing: bool,
    /// A receive into whichever staging buffer the kernel picks.
    pub(crate) staging: bool,
    /// A send of the first pieces of the link's `outbound`, whose frames stay where they are
    /// meanwhile.
    pub(crate) sending: bool,
    /// A wait until the dial has ended.
    pub(crate) dialling: bool,
    /// Requests to cancel one of the others.
    pub(crate) cancels: u8,
    /// Describes the pieces of a send; kept until its completion.
    pub(crate) gather: Option<Gather>,
    /// More bytes were there when the last receive completed, as far as is known.
    pub(crate) more: bool,
    /// How often in a row the link was asked for bytes in vain.
    pub(crate) misses: u32,
    pub(crate) membership: Membership,
    /// Turns in a row in which the socket took none.
    pub(crate) full: u32,
}

impl Flight {
    /// Whether the kernel may still use memory of the link, or will still say something about it.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_operations() && self.cancels == 0
    }

    /// Whether there is something that a cancel could end.
    pub(crate) fn has_operations(&self) -> bool {
        self.receiving() || self.sending || self.dialling
    }

    pub(crate) fn receiving(&self) -> bool {
        self.landing || self.staging
    }
}

/// Pieces of frames as the kernel wants them described, at addresses that do not change when this
/// moves.
pub(crate) struct Gather {
    pieces: Vec<libc::iovec>,
    header: Box<libc::msghdr>,
}

impl Gather {
    pub(crate) fn new() -> Self {
        Self {
            pieces: Vec::with_capacity(PIECES_FIRST),
            // SAFETY: all fields are integers or pointers, for which zero is a value.
            header: Box::new(unsafe { std::mem::zeroed() }),
        }
    }
}

impl std::fmt::Debug for Gather {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gather")
            .field("pieces", &self.pieces.len())
            .finish_non_exhaustive()
    }
}

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Receive,
    Send,
    Dial,
    Cancel,
    Listener,
    WakeUp,
    Alarm,
    Companion,
    ReadySet,
}

/// Packs what a completion is about, and which link or listener.
const fn mark(kind: Kind, index: u32) -> u64 {
    (kind as u64) << 32 | index as u64
}

/// Undoes the packing.
pub(crate) fn unmark(completion: &cqueue::Entry) -> (Kind, u32) {
    let mark = completion.user_data();
    let kind = match mark >> 32 {
        0 => Kind::Receive,
        1 => Kind::Send,
        2 => Kind::Dial,
        3 => Kind::Cancel,
        4 => Kind::Listener,
        5 => Kind::WakeUp,
        6 => Kind::Alarm,
        7 => Kind::Companion,
        8 => Kind::ReadySet,
        other => unreachable!("no operation was marked with {other}"),
    };
    (kind, mark as u32)
}

/// Starts a receive where the link's orders want the next bytes. False if the ring has no room.
pub(crate) fn receive(
    ring: &mut Ring,
    slot: u32,
    link: &mut Link<Flight>,
    cpu_sharing: &mut CpuSharing,
) -> bool {
    assert!(!link.io.receiving(), "one receive at a time");
    link.prepare_to_wait(cpu_sharing);
    let Some(inbound) = &mut link.inbound else {
        return true;
    };
    let fd = Fd(link.socket.as_raw_fd());
    let poll_first = if link.io.more { 0 } else { RECEIVE_POLL_FIRST };
    let (entry, is_direct) = match inbound.target() {
        ReadTarget::Paused => return true,
        ReadTarget::Direct(target) => {
            let bytes = target.len().min(RECEIVE_BYTES_MAX) as u32;
            let entry = opcode::Recv::new(fd, target.as_mut_ptr(), bytes);
            (entry.ioprio(poll_first).build(), true)
        }
        ReadTarget::Staging => {
            let bytes = link.stage_bytes_max.min(RECEIVE_BYTES_MAX) as u32;
            let entry = opcode::Recv::new(fd, std::ptr::null_mut(), bytes);
            let entry = entry.ioprio(poll_first).buf_group(GROUP).build();
            (entry.flags(Flags::BUFFER_SELECT), false)
        }
    };
    // SAFETY: a landing's memory is on the heap or in an arena, and `inbound`, which owns it, is
    // not touched until the completion clears `landing`. Staging buffers live as long as the ring.
    let pushed = unsafe { ring.push(&entry.user_data(mark(Kind::Receive, slot))) };
    link.io.landing = pushed && is_direct;
    link.io.staging = pushed && !is_direct;
    pushed
}

/// Starts a send of what is queued. False if the ring has no room.
pub(crate) fn send(
    ring: &mut Ring,
    slot: u32,
    link: &mut Link<Flight>,
    spare: &mut Vec<Gather>,
) -> bool {
    assert!(!link.io.sending, "one send at a time");
    let fd = Fd(link.socket.as_raw_fd());
    let pieces = link.outbound.pieces(SEND_BYTES_MAX);
    let mut pieces = pieces.map(|piece| piece.bytes);
    let first = pieces.next().unwrap_or_default();
    let entry = if let Some(second) = pieces.next() {
        let gather = link
            .io
            .gather
            .insert(spare.pop().unwrap_or_else(Gather::new));
        gather.pieces.clear();
        let pieces = [first, second].into_iter().chain(pieces).take(PIECES_MAX);
        gather.pieces.extend(pieces.map(|piece| libc::iovec {
            iov_base: piece.as_ptr().cast_mut().cast(),
            iov_len: piece.len(),
        }));
        gather.header.msg_iov = gather.pieces.as_mut_ptr();
        gather.header.msg_iovlen = gather.pieces.len() as _;
        opcode::SendMsg::new(fd, &raw const *gather.header)
            .flags(libc::MSG_NOSIGNAL as u32)
            .build()
    } else {
        opcode::Send::new(fd, first.as_ptr(), first.len() as u32)
            .flags(libc::MSG_NOSIGNAL)
            .build()
    };
    // SAFETY: the pieces belong to frames that stay in `outbound`, unchanged, until the completion
    // clears `sending`; later frames are added behind them, and what a frame points to does not
    // move with it. The description stays in `gather` for as long.
    link.io.sending = unsafe { ring.push(&entry.user_data(mark(Kind::Send, slot))) };
    if !link.io.sending {
        spare.extend(link.io.gather.take());
    }
    link.io.sending
}

/// Starts to wait until a dial has ended. False if the ring has no room.
pub(crate) fn await_dial(ring: &mut Ring, slot: u32, link: &mut Link<Flight>) -> bool {
    let fd = Fd(link.socket.as_raw_fd());
    let entry = opcode::PollAdd::new(fd, libc::POLLOUT as u32).build();
    // SAFETY: the entry points to no memory.
    link.io.dialling = unsafe { ring.push(&entry.user_data(mark(Kind::Dial, slot))) };
    link.io.dialling
}

/// Asks the kernel to give up whatever it does for the link. False if the ring has no room.
pub(crate) fn cancel(ring: &mut Ring, slot: u32, flight: &mut Flight) -> bool {
    let operations = [
        (Kind::Receive, flight.receiving()),
        (Kind::Send, flight.sending),
        (Kind::Dial, flight.dialling),
    ];
    for (kind, _) in operations
        .into_iter()
        .filter(|(_, is_under_way)| *is_under_way)
    {
        if !cancel_one(ring, kind, slot) {
            return false;
        }
        flight.cancels += 1;
    }
    true
}

/// Asks the kernel to give up one operation. False if the ring has no room.
pub(crate) fn cancel_one(ring: &mut Ring, kind: Kind, index: u32) -> bool {
    // By its mark, which the kernel finds at once; by descriptor it would look at all operations.
    let entry = opcode::AsyncCancel::new(mark(kind, index)).build();
    // SAFETY: the entry points to no memory.
    unsafe { ring.push(&entry.user_data(mark(Kind::Cancel, index))) }
}

/// Starts to wait until a descriptor that is no link's is readable. False if the ring has no room.
pub(crate) fn await_readable(ring: &mut Ring, kind: Kind, index: u32, fd: BorrowedFd<'_>) -> bool {
    let entry = opcode::PollAdd::new(Fd(fd.as_raw_fd()), libc::POLLIN as u32).build();
    // SAFETY: the entry points to no memory.
    unsafe { ring.push(&entry.user_data(mark(kind, index))) }
}

/// A delay that the kernel may read at any time.
#[derive(Debug)]
pub(crate) struct Alarm {
    delay: Box<Timespec>,
    /// Whether the alarm is set.
    pub(crate) armed: bool,
}

impl Alarm {
    pub(crate) fn new() -> Self {
        Self {
            delay: Box::default(),
            armed: false,
        }
    }

    /// Sets the alarm, unless it is set already. False if the ring has no room.
    pub(crate) fn set(&mut self, ring: &mut Ring, delay: Duration) -> bool {
        if self.armed {
            return true;
        }
        *self.delay = Timespec::new()
            .sec(delay.as_secs())
            .nsec(delay.subsec_nanos());
        let entry = opcode::Timeout::new(&raw const *self.delay).build();
        // SAFETY: the delay stays where it is, unchanged while `armed`, which the completion
        // clears.
        self.armed = unsafe { ring.push(&entry.user_data(mark(Kind::Alarm, 0))) };
        self.armed
    }
}

/// Bytes that one receive takes at most: more would tempt the kernel to hand it to a thread of its
/// own.
pub(crate) const RECEIVE_BYTES_MAX: usize = 1 << 20;

/// Bytes that one send offers at most, so that links take turns.
pub(crate) const SEND_BYTES_MAX: usize = 1 << 20;

/// Pieces that one send takes; more are an error of the system.
const PIECES_MAX: usize = 1024;

/// Pieces that a description has room for from the start.
const PIECES_FIRST: usize = 64;

/// `IORING_RECVSEND_POLL_FIRST`: wait for bytes before the first try.
const RECEIVE_POLL_FIRST: u16 = 1;
