use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// Ends the sleep of one transport from any thread; costs one atomic operation while nobody sleeps.
#[derive(Debug)]
pub(crate) struct WakeUp {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: AtomicU8,
    /// Readable ends a sleep in the transport's own system call.
    inside: OwnedFd,
    /// Readable ends a sleep on the descriptor that the transport lent out.
    outside: OwnedFd,
}

/// Where the owner sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    Inside,
    Outside,
}

impl WakeUp {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            shared: Arc::new(Shared {
                state: AtomicU8::new(AWAKE),
                inside: eventfd(0, flags)?,
                outside: eventfd(0, flags)?,
            }),
        })
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.shared))
    }

    pub(crate) fn inside(&self) -> BorrowedFd<'_> {
        self.shared.inside.as_fd()
    }

    pub(crate) fn outside(&self) -> BorrowedFd<'_> {
        self.shared.outside.as_fd()
    }

    /// Announces a sleep. False if the waker was used since the last one: then there is no sleep.
    pub(crate) fn fall_asleep(&self, sleep: Sleep) -> bool {
        let asleep = match sleep {
            Sleep::Inside => ASLEEP_INSIDE,
            Sleep::Outside => ASLEEP_OUTSIDE,
        };
        let state = &self.shared.state;
        let fell = state.compare_exchange(AWAKE, asleep, Ordering::SeqCst, Ordering::SeqCst);
        if fell.is_err() {
            state.store(AWAKE, Ordering::SeqCst);
        }
        fell.is_ok()
    }

    /// Ends the sleep. Every use of the waker before this call is taken care of by it.
    pub(crate) fn end_sleep(&self) {
        // Not a plain store: who looks for work behind this sees what was said before each use.
        let _was = self.shared.state.swap(AWAKE, Ordering::SeqCst);
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let fd = match self.state.swap(RUNG, Ordering::SeqCst) {
            ASLEEP_INSIDE => &self.inside,
            ASLEEP_OUTSIDE => &self.outside,
            _ => return,
        };
        // A full counter is readable all the same, and nothing else can fail.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

/// Makes an event descriptor unreadable again.
pub(crate) fn silence(fd: BorrowedFd<'_>) {
    let mut count = [0; 8];
    // Fails only if it is silent already.
    let _ = rustix::io::read(fd, &mut count);
}

const AWAKE: u8 = 0;
const ASLEEP_INSIDE: u8 = 1;
const ASLEEP_OUTSIDE: u8 = 2;
const RUNG: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        rustix::io::read(fd, &mut [0; 8]).is_ok()
    }

    #[test]
    fn a_wake_before_the_sleep_prevents_it_once() {
        let wake_up = WakeUp::new().unwrap();
        wake_up.waker().wake();
        assert!(!is_readable(wake_up.inside()), "costs no system call");
        assert!(!wake_up.fall_asleep(Sleep::Inside));
        assert!(wake_up.fall_asleep(Sleep::Inside));
        wake_up.waker().wake_by_ref();
        wake_up.waker().wake_by_ref();
        assert!(is_readable(wake_up.inside()));
        assert!(!is_readable(wake_up.outside()));
        wake_up.end_sleep();
        assert!(wake_up.fall_asleep(Sleep::Outside));
        wake_up.waker().wake();
        assert!(is_readable(wake_up.outside()));
    }
}
