//! One side of a test: links over TLS, and a handler that sends each message back.
//!
//! A message is its length in 8 bytes, and so many bytes.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_tcp::{Accepted, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_tls::{SharedCredentials, Tls, TlsOptions};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};

/// What a [`Side`] has been told.
#[derive(Default)]
pub struct Seen {
    pub accepted: Vec<Accepted>,
    pub connected: Vec<LinkId>,
    pub messages: Vec<(LinkId, Vec<u8>)>,
    pub closed: HashMap<LinkId, CloseReason>,
    pub landings_out: i64,
    /// Links whose peers speak something else.
    pub garbage: Vec<LinkId>,
}

impl LinkHandler<Accepted> for Seen {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: Accepted) {
        self.accepted.push(accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.connected.push(link);
        HEAD
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        let mut consumed_bytes = 0;
        while let Some(head) = bytes[consumed_bytes..].first_chunk() {
            consumed_bytes += 8;
            let len = u64::from_le_bytes(*head) as usize;
            if len > MESSAGE_BYTES_MAX {
                self.garbage.push(link);
                return Progress {
                    consumed_bytes: bytes.len(),
                    next: Next::Pause,
                };
            }
            if len > 0 {
                self.landings_out += 1;
                return Progress {
                    consumed_bytes,
                    next: Next::Land(Landing::new(BufferMut::zeroed(len))),
                };
            }
            self.messages.push((link, Vec::new()));
        }
        Progress {
            consumed_bytes,
            next: HEAD,
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        self.landings_out -= 1;
        if outcome == Outcome::Done {
            self.messages.push((link, landing.into_buffer().to_vec()));
        }
        HEAD
    }

    fn sent(&mut self, link: LinkId, _: Box<Frame>, _: Outcome) {
        assert!(!self.closed.contains_key(&link));
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        assert!(self.closed.insert(link, reason.clone()).is_none());
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// A transport with what it has told.
pub struct Side {
    pub transport: Tls<TcpTransport>,
    pub seen: Seen,
    pub address: SocketAddr,
    /// How many messages were sent back.
    echoed: usize,
    start: Instant,
}

impl Side {
    pub fn new(options: TlsOptions, credentials: SharedCredentials) -> Self {
        let tcp = TcpOptions::default().with(|options| options.driver = DriverRequest::Epoll);
        let mut transport = Tls::new(TcpTransport::open(tcp).unwrap().0);
        transport.enable(options, credentials);
        let any = "127.0.0.1:0".parse().unwrap();
        let (_, address) = transport.listen(any).unwrap();
        Self {
            transport,
            seen: Seen::default(),
            address,
            echoed: 0,
            start: Instant::now(),
        }
    }

    pub fn turn(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        if self.transport.turn(now, &mut self.seen) == 0 {
            std::thread::yield_now();
        }
        for link in self.seen.garbage.drain(..) {
            self.transport.close(link, false);
        }
        for accepted in self.seen.accepted.drain(..) {
            self.transport.adopt(accepted, HEAD).unwrap();
        }
    }

    /// Sends back what came since the last call.
    pub fn echo(&mut self) {
        while let Some((link, bytes)) = self.seen.messages.get(self.echoed) {
            // A link that is gone takes nothing.
            let _ = self.transport.send(*link, message(bytes));
            self.echoed += 1;
        }
        self.transport.submit();
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "waited too long until {what}");
            self.turn();
            self.echo();
        }
    }

    /// Why the one link of this side is gone, once it is.
    pub fn end(&mut self) -> CloseReason {
        self.until("the link is gone", |side| !side.seen.closed.is_empty());
        assert_eq!((self.seen.closed.len(), self.seen.landings_out), (1, 0));
        self.seen.closed.values().next().unwrap().clone()
    }

    /// The error that the one link of this side ended by.
    pub fn failure(&mut self) -> String {
        match self.end() {
            CloseReason::Failed(error) => error.to_string(),
            reason => panic!("no failure, but {reason}"),
        }
    }

    /// The error that the one link of this side ended by, for a certificate.
    pub fn distrust(&mut self) -> String {
        match self.end() {
            CloseReason::Untrusted(error) => error.to_string(),
            reason => panic!("not for a certificate, but {reason}"),
        }
    }

    /// A connection to this side, without TLS.
    pub fn connection(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }
}

pub fn message(bytes: &[u8]) -> Box<Frame> {
    let mut frame = Box::new(Frame::new());
    let head = (bytes.len() as u64).to_le_bytes();
    frame.bytes_mut().extend_from_slice(&head);
    frame.attach(Buffer::from(bytes.to_vec()));
    frame
}

/// The same as a peer writes it.
pub fn message_bytes(bytes: &[u8]) -> Vec<u8> {
    message(bytes).segments().collect::<Vec<_>>().concat()
}

const MESSAGE_BYTES_MAX: usize = 16 << 20;

pub const HEAD: Next = Next::Head { at_least_bytes: 8 };

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
