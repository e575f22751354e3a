#![expect(
    unsafe_code,
    reason = "glommio waits only for descriptors that it was given in raw form"
)]

use std::future::Future;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::AsyncRead;
use glommio::net::UnixStream;

/// Waits inside glommio until a descriptor is readable. Takes nothing from it.
///
/// glommio has no public way to wait for a foreign descriptor, but each of its streams begins with
/// a poll for readability, and a read of no bytes ends when that poll does. What the read itself
/// answers does not matter.
pub(super) struct Readable {
    stream: UnixStream,
}

impl Readable {
    pub(super) fn new(descriptor: BorrowedFd<'_>) -> io::Result<Self> {
        let own = descriptor.try_clone_to_owned()?.into_raw_fd();
        // SAFETY: `own` is open, and nothing else closes it: `into_raw_fd` gave its ownership away.
        let stream = unsafe { UnixStream::from_raw_fd(own) };
        Ok(Self { stream })
    }
}

impl Future for Readable {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.stream)
            .poll_read(context, &mut [])
            .map(|_answer| ())
    }
}
