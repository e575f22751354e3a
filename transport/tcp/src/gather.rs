//! Sends by plain system calls.

use std::io::IoSlice;
use std::os::fd::AsFd;

use grpcxx_transport::Outbound;
use rustix::net::{SendAncillaryBuffer, SendFlags};

/// Memory for the system call that sends many pieces, used by one link at a time.
#[derive(Debug)]
pub(crate) struct Gather {
    slices: Vec<IoSlice<'static>>,
}

/// What one system call has sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: usize,
    /// The socket has taken all that it was offered.
    pub(crate) is_all: bool,
}

impl Gather {
    pub(crate) fn new() -> Self {
        Self {
            slices: Vec::with_capacity(PIECES_MAX),
        }
    }

    /// Sends what is queued, at most `bytes_max` bytes, as far as the socket takes it now.
    pub(crate) fn send(
        &mut self,
        socket: impl AsFd,
        outbound: &Outbound,
        bytes_max: usize,
    ) -> rustix::io::Result<Sent> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut pieces = outbound.pieces(bytes_max).map(|piece| piece.bytes);
        let first = pieces.next().unwrap_or_default();
        let Some(second) = pieces.next() else {
            if first.is_empty() {
                return Ok(Sent::of(0, 0));
            }
            let bytes = rustix::net::send(socket, first, flags)?;
            return Ok(Sent::of(bytes, first.len()));
        };
        let mut slices: Vec<IoSlice<'_>> = std::mem::take(&mut self.slices);
        let pieces = [first, second].into_iter().chain(pieces);
        slices.extend(pieces.take(PIECES_MAX).map(IoSlice::new));
        let asked_bytes = slices.iter().map(|slice| slice.len()).sum();
        let mut control = SendAncillaryBuffer::default();
        let sent = rustix::net::sendmsg(socket, &slices, &mut control, flags);
        self.slices = recycle(slices);
        Ok(Sent::of(sent?, asked_bytes))
    }
}

impl Sent {
    /// The socket has no room.
    pub(crate) const NOTHING: Self = Self {
        bytes: 0,
        is_all: false,
    };

    fn of(bytes: usize, asked_bytes: usize) -> Self {
        Self {
            bytes,
            is_all: bytes == asked_bytes,
        }
    }
}

/// Memory of slices, for slices of another lifetime.
fn recycle(mut slices: Vec<IoSlice<'_>>) -> Vec<IoSlice<'static>> {
    slices.clear();
    slices.into_iter().map(|_| IoSlice::new(&[])).collect()
}

/// Pieces that one `sendmsg` takes; more are an error of the system.
const PIECES_MAX: usize = 1024;
