//! The sockets of a shard's links, of which the kernel tells when they have something to say.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use grpcxx_transport::LinkId;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// The sockets of links and of rendezvous, of which the kernel tells when they have something to
/// say.
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Poller").field(&self.epoll).finish()
    }
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Link(LinkId),
    /// Something that is no link: all of its kind are looked at.
    Other,
}

impl Poller {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    pub(crate) fn watch(&self, fd: impl AsFd, subject: Subject) -> rustix::io::Result<()> {
        use epoll::EventFlags;
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(subject.pack()),
            flags,
        )
    }

    /// Changes the subject of a descriptor that is watched already.
    pub(crate) fn watch_as(&self, fd: impl AsFd, subject: Subject) -> rustix::io::Result<()> {
        use epoll::EventFlags;
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::modify(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(subject.pack()),
            flags,
        )
    }

    pub(crate) fn forget(&self, fd: impl AsFd) {
        // Fails only if it was never watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Takes what is ready, and waits for it up to `timeout`; `None` is without end.
    pub(crate) fn poll(
        &mut self,
        timeout: Option<Duration>,
        mut each: impl FnMut(Subject),
    ) -> rustix::io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs())
                .unwrap_or(i64::MAX)
                .min(SLEEP_SECONDS_MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut buffer = [MaybeUninit::uninit(); EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut buffer, timeout.as_ref()) {
            Ok((events, _)) => {
                let subjects = events.iter().map(|event| event.data.u64());
                subjects.for_each(|packed| each(Subject::unpack(packed)));
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Subject {
    fn pack(self) -> u64 {
        match self {
            Self::Link(link) => u64::from(link.generation) << 32 | u64::from(link.slot),
            Self::Other => u64::MAX,
        }
    }

    fn unpack(token: u64) -> Self {
        match token {
            u64::MAX => Self::Other,
            token => Self::Link(LinkId {
                slot: token as u32,
                generation: (token >> 32) as u32,
            }),
        }
    }
}

/// Watches the socket of a link, which may have been watched before it was known whose it is.
pub(crate) fn watch_link(
    poller: &Poller,
    socket: BorrowedFd<'_>,
    id: LinkId,
) -> rustix::io::Result<()> {
    match poller.watch(socket, Subject::Link(id)) {
        Err(Errno::EXIST) => poller.watch_as(socket, Subject::Link(id)),
        watched => watched,
    }
}

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// Links for which there is room before they have something to say.
pub(crate) const READABLE_AT_ONCE: usize = 64;

/// Longest sleep; the system call takes no more.
const SLEEP_SECONDS_MAX: i64 = 24 * 60 * 60;
