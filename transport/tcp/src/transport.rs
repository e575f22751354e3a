use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::{
    Ends, Frame, LinkHandler, LinkId, ListenerId, Next, Park, Reading, Refused, Time, Transport,
    TransportError, links_stay,
};

use rustix::io::Errno;
use send_wrapper::SendWrapper;

use crate::epoll::EpollDriver;
use crate::uring::UringDriver;
use crate::{Accepted, Driver, DriverChoice, DriverRequest, TcpCounters, TcpOptions, socket};

/// TCP links of one shard, driven by io_uring or epoll.
///
/// Over io_uring it stays on the thread that opened it, since the kernel takes a ring's entries
/// from one thread only; a use on another thread panics. Over epoll it may move.
pub struct TcpTransport {
    driver: AnyDriver,
}

enum AnyDriver {
    Epoll(Box<EpollDriver>),
    Uring(SendWrapper<Box<UringDriver>>),
}

/// Calls the same method of whichever driver is there.
macro_rules! either {
    ($transport:expr, $driver:ident => $call:expr) => {
        match &$transport.driver {
            AnyDriver::Epoll($driver) => $call,
            AnyDriver::Uring($driver) => $call,
        }
    };
    (mut $transport:expr, $driver:ident => $call:expr) => {
        match &mut $transport.driver {
            AnyDriver::Epoll($driver) => $call,
            AnyDriver::Uring($driver) => $call,
        }
    };
}

impl TcpTransport {
    /// Opens a transport with the driver that the options ask for, and tells which one it is and
    /// why.
    ///
    /// # Errors
    /// The system refuses what every driver needs, or the one driver that was asked for.
    pub fn open(options: TcpOptions) -> Result<(Self, DriverChoice), TransportError> {
        let why = match options.driver {
            DriverRequest::Epoll => "asked for".to_owned(),
            DriverRequest::IoUring => return Self::open_ring(options).map_err(explain),
            DriverRequest::Auto => match Self::open_ring(options.clone()) {
                Ok(opened) => return Ok(opened),
                Err(error) => explain(error).to_string(),
            },
        };
        let choice = DriverChoice {
            driver: Driver::Epoll,
            why,
        };
        let driver = AnyDriver::Epoll(Box::new(EpollDriver::open(options)?));
        Ok((Self { driver }, choice))
    }

    fn open_ring(options: TcpOptions) -> Result<(Self, DriverChoice), TransportError> {
        let (driver, why) = UringDriver::open(options)?;
        let choice = DriverChoice {
            driver: Driver::IoUring,
            why: why.to_owned(),
        };
        let driver = AnyDriver::Uring(SendWrapper::new(Box::new(driver)));
        Ok((Self { driver }, choice))
    }

    /// What the transport has done so far.
    pub fn counters(&self) -> TcpCounters {
        either!(self, driver => driver.counters())
    }

    /// The socket of a link, for options and statistics of the system; `None` if the link is gone.
    /// Bytes that are read or written here are missing, or too many, in the link's stream.
    pub fn socket(&self, link: LinkId) -> Option<BorrowedFd<'_>> {
        either!(self, driver => driver.socket(link))
    }
}

impl Transport for TcpTransport {
    type Accepted = Accepted;

    links_stay!();

    fn name(&self) -> &'static str {
        either!(self, driver => driver.name())
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        either!(mut self, driver => driver.listen(address))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        either!(mut self, driver => driver.unlisten(listener));
    }

    fn adopt(&mut self, accepted: Accepted, next: Next) -> Result<LinkId, TransportError> {
        either!(mut self, driver => driver.adopt(accepted, next))
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        either!(mut self, driver => driver.connect(peer))
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        either!(mut self, driver => driver.send(link, frame))
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        either!(mut self, driver => driver.resume(link, next))
    }

    fn end_stream(&mut self, link: LinkId) {
        either!(mut self, driver => driver.end_stream(link));
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        either!(mut self, driver => driver.close(link, flush));
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<Accepted>) -> usize {
        either!(mut self, driver => driver.turn(now, handler))
    }

    fn submit(&mut self) {
        either!(mut self, driver => driver.submit());
    }

    fn frames_in_flight(&self) -> usize {
        either!(self, driver => driver.frames_in_flight())
    }

    fn ends(&mut self, link: LinkId) -> Option<Ends> {
        socket::ends(self.socket(link)?)
    }

    fn reading(&mut self, link: LinkId) -> Option<Reading> {
        either!(mut self, driver => driver.reading(link))
    }
}

impl Park for TcpTransport {
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        either!(mut self, driver => driver.park(timeout))
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        either!(mut self, driver => driver.park_fd())
    }

    fn park_fd_ahead(&mut self) -> Option<BorrowedFd<'_>> {
        either!(mut self, driver => driver.park_fd_ahead())
    }

    fn patience(&mut self) -> Option<Duration> {
        either!(mut self, driver => driver.patience())
    }

    fn unpark(&mut self) {
        either!(mut self, driver => driver.unpark());
    }

    fn waker(&self) -> Waker {
        either!(self, driver => driver.waker())
    }

    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError> {
        either!(mut self, driver => driver.watch(companion))
    }
}

/// Adds to an error of the ring what to do about it.
fn explain(mut error: TransportError) -> TransportError {
    let advice = match Errno::from_raw_os_error(error.errno) {
        Errno::PERM | Errno::ACCESS => {
            "blocked by a seccomp profile or kernel.io_uring_disabled; allow io_uring there, or ask for epoll"
        }
        Errno::NOSYS => "this kernel is built without io_uring; ask for epoll",
        Errno::NOMEM => {
            "too little lockable memory; raise RLIMIT_MEMLOCK to 8 MiB (ulimit -l 8192), or ask for epoll"
        }
        Errno::INVAL | Errno::OPNOTSUPP => "this kernel is older than Linux 5.19; ask for epoll",
        _ => "ask for epoll to do without io_uring",
    };
    error.message = format!("{} ({advice})", error.message);
    error
}

impl fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpTransport")
            .field("name", &self.name())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
