//! Where the owner of a lent shard sleeps: on the shard's descriptor, on a bell and on a clock.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

/// The place where an owner sleeps.
pub(super) struct Bed {
    epoll: OwnedFd,
    bell: Arc<Bell>,
    alarm: OwnedFd,
    /// A copy of the shard's descriptor.
    shard: OnceLock<OwnedFd>,
    /// The shard's descriptor may end a sleep, and has not done so.
    listens: AtomicBool,
}

struct Bell(OwnedFd);

/// What has ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The bell, the shard, or a limit.
    Up,
    /// The alarm, and nothing else.
    ByAlarm,
}

impl Bed {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, &bell, data, epoll::EventFlags::IN)?;
        let alarm = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        let data = epoll::EventData::new_u64(ALARM);
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &alarm, data, flags)?;
        Ok(Self {
            epoll,
            alarm,
            bell: Arc::new(Bell(bell)),
            shard: OnceLock::new(),
            listens: AtomicBool::new(false),
        })
    }

    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }

    /// Ends a sleep, present or next.
    pub(super) fn wake(&self) {
        self.bell.ring();
    }

    /// Lets a sleep end when the shard's descriptor is readable, which is always the same one.
    pub(super) fn listen(&self, shard: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let data = epoll::EventData::new_u64(SHARD);
        // Before it can end a sleep.
        self.listens.store(true, Ordering::Relaxed);
        if let Some(known) = self.shard.get() {
            return Ok(epoll::modify(&self.epoll, known, data, flags)?);
        }
        let copy = shard.try_clone_to_owned()?;
        epoll::add(&self.epoll, &copy, data, flags)?;
        // Whoever listens has the shard's lock, so nobody was faster.
        let _first = self.shard.set(copy);
        Ok(())
    }

    /// Ends what [`Bed::listen`] began.
    pub(super) fn silence(&self) {
        if self.listens.swap(false, Ordering::Relaxed)
            && let Some(shard) = self.shard.get()
        {
            let data = epoll::EventData::new_u64(SHARD);
            // It is there; a failure would cost a vain wake-up.
            let _ = epoll::modify(&self.epoll, shard, data, epoll::EventFlags::empty());
        }
    }

    /// Ends a sleep after `delay`, or not if that is zero, in place of an alarm set before.
    pub(super) fn set_alarm(&self, delay: Duration) {
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let timer = Itimerspec {
            it_interval: never,
            it_value: timespec(delay),
        };
        // The values are in range and the descriptor is ours, so this cannot fail.
        let _ = timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &timer);
    }

    /// Sleeps until the bell was rung, the shard's descriptor is readable, the alarm has gone off,
    /// or the time is over.
    pub(super) fn sleep(&self, limit: Option<Duration>) -> Woken {
        let limit = limit.map(timespec);
        let mut events = [MaybeUninit::uninit(); 3];
        // What else could fail ends the sleep too, and the shard is looked at.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, limit.as_ref()) else {
            return Woken::Up;
        };
        for event in &*events {
            match event.data.u64() {
                BELL => self.bell.silence(),
                // It ends one sleep.
                SHARD => self.listens.store(false, Ordering::Relaxed),
                _ => {}
            }
        }
        match *events {
            [event] if event.data.u64() == ALARM => Woken::ByAlarm,
            _ => Woken::Up,
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs())
            .unwrap_or(i64::MAX)
            .min(SLEEP_SECONDS_MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}

impl Bell {
    fn ring(&self) {
        // A full counter is readable all the same, and nothing else can fail.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn silence(&self) {
        // Fails only if it is silent already.
        let _ = rustix::io::read(self.0.as_fd(), &mut [0; 8]);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

const BELL: u64 = 0;
const SHARD: u64 = 1;
const ALARM: u64 = 2;

/// Longest sleep; the system call takes no more.
const SLEEP_SECONDS_MAX: i64 = 24 * 60 * 60;
