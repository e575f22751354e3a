use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// Ends the sleep of a transport from any thread.
#[derive(Debug)]
pub(crate) struct Bell {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    has_rung: AtomicBool,
    event: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            shared: Arc::new(Shared {
                has_rung: AtomicBool::new(false),
                event: eventfd(0, flags)?,
            }),
        })
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.shared))
    }

    /// Whether it has rung since the last time that this was asked.
    pub(crate) fn take(&self) -> bool {
        let shared = &self.shared;
        if !shared.has_rung.load(Ordering::Relaxed) {
            return false;
        }
        // In this order: a ring in between is seen next time.
        let _ = rustix::io::read(&shared.event, &mut [0; 8]);
        shared.has_rung.swap(false, Ordering::SeqCst)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.has_rung.swap(true, Ordering::SeqCst) {
            // A full counter is readable all the same, and nothing else can fail.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}
