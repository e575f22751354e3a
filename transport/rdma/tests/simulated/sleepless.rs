use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use grpcxx_transport::sim::{SimAccepted, SimTransport};
use grpcxx_transport::{
    Frame, LinkHandler, LinkId, ListenerId, Next, Park, Refused, Time, Transport, TransportError,
};

/// A simulated transport whose thread never sleeps, where one that can is asked for.
pub(crate) struct Sleepless(pub(crate) SimTransport);

impl Transport for Sleepless {
    type Accepted = SimAccepted;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError> {
        self.0.listen(address)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.0.unlisten(listener);
    }

    fn adopt(&mut self, accepted: SimAccepted, next: Next) -> Result<LinkId, TransportError> {
        self.0.adopt(accepted, next)
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        self.0.connect(peer)
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        self.0.send(link, frame)
    }

    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>> {
        self.0.resume(link, next)
    }

    fn close(&mut self, link: LinkId, flush: bool) {
        self.0.close(link, flush);
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<SimAccepted>) -> usize {
        self.0.turn(now, handler)
    }

    fn frames_in_flight(&self) -> usize {
        self.0.frames_in_flight()
    }
}

impl Park for Sleepless {
    fn park(&mut self, _: Option<Duration>) -> Result<(), TransportError> {
        Ok(())
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn unpark(&mut self) {}

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn watch(&mut self, _: BorrowedFd<'_>) -> Result<(), TransportError> {
        Ok(())
    }
}
