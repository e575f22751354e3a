//! An eventfd that ends the sleep of a transport.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// Ends the sleep of a transport from any thread.
#[derive(Debug)]
pub(crate) struct WakeUp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    is_used: AtomicBool,
    event: OwnedFd,
}

impl WakeUp {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            shared: Arc::new(Shared {
                is_used: AtomicBool::new(false),
                event: eventfd(0, flags)?,
            }),
        })
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.shared))
    }

    /// Whether it was used since the last time that this was asked.
    pub(crate) fn take(&self) -> bool {
        let shared = &self.shared;
        if !shared.is_used.load(Ordering::Relaxed) {
            return false;
        }
        // In this order: a use in between is seen next time.
        let _ = rustix::io::read(&shared.event, &mut [0; 8]);
        shared.is_used.swap(false, Ordering::SeqCst)
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_used.swap(true, Ordering::SeqCst) {
            // A full counter is readable all the same, and nothing else can fail.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}
