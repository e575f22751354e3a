//! What a connection passes before it carries anything: whether it is TLS, and its handshake.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use grpcxx_rpc::{Account, Places};
use grpcxx_runtime::Certificates;
use grpcxx_runtime::policy::Identity;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;

use crate::limits::HANDSHAKES_MAX;
use crate::link::Link;
use crate::lock::lock;
use crate::metrics::{GaveWay, HandshakeRefused, Metrics};

/// The handshakes of one port. Who has begun none for longest gives way where there are too many.
pub(crate) struct Handshakes {
    /// None if TLS is off.
    certificates: Option<Arc<Certificates>>,
    spoken: Spoken,
    /// Each with what ends it.
    places: Mutex<Places<oneshot::Sender<()>, Instant>>,
    metrics: Arc<Metrics>,
}

/// What a port speaks above TLS.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spoken {
    Http1,
    Http2,
}

/// Why a connection goes no further.
enum Refused {
    /// The peer left without a word.
    Left,
    Plain,
    Failed(io::Error),
}

/// The place of a handshake under way, which is free again when this is dropped.
struct HandshakePlace<'a> {
    handshakes: &'a Handshakes,
    place: u64,
}

impl Spoken {
    /// Its name in a handshake.
    pub(crate) fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

impl Handshakes {
    pub(crate) fn new(
        certificates: Option<Arc<Certificates>>,
        spoken: Spoken,
        share_percent: u8,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            certificates,
            spoken,
            places: Mutex::new(Places::new(HANDSHAKES_MAX, share_percent)),
            metrics,
        })
    }

    /// Whether all connections are without TLS.
    pub(crate) fn are_off(&self) -> bool {
        self.certificates.is_none()
    }

    /// The connection and who is at its other end, once that is known; `None` if it must end.
    pub(crate) async fn pass(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Option<(Link, Identity)> {
        let Some(certificates) = &self.certificates else {
            return Some((Link::Plain(stream), Identity::at(peer)));
        };
        let (close, closing) = oneshot::channel();
        let _place = self.take(peer, close)?;
        let shaken = self.shake_hands(certificates, stream, peer);
        let shaken = tokio::select! {
            biased;
            _ = closing => return None,
            shaken = timeout(certificates.options().handshake_time, shaken) => shaken,
        };
        let (why, error) = match shaken {
            Ok(Ok(passed)) => return Some(passed),
            Ok(Err(Refused::Left)) => return None,
            Ok(Err(Refused::Plain)) => (HandshakeRefused::Plain, WANTS_TLS.to_owned()),
            Ok(Err(Refused::Failed(error))) => (HandshakeRefused::Failed, error.to_string()),
            Err(_) => (HandshakeRefused::Late, "its time is over".to_owned()),
        };
        self.metrics.handshake_refused(why);
        tracing::warn!(%peer, error, "a connection to the gRPC endpoint is refused by TLS");
        None
    }

    /// A place for one more handshake, if there can be one.
    fn take(&self, peer: SocketAddr, close: oneshot::Sender<()>) -> Option<HandshakePlace<'_>> {
        let taken = lock(&self.places).take(Account::of(peer.ip()), close, Instant::now());
        let given = taken.ok()?;
        if let Some(oldest) = given.gave_way {
            self.metrics.gave_way(GaveWay::Handshake);
            // It may just have ended by itself.
            let _ = oldest.send(());
        }
        Some(HandshakePlace {
            handshakes: self,
            place: given.place,
        })
    }

    async fn shake_hands(
        &self,
        certificates: &Certificates,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Result<(Link, Identity), Refused> {
        let identity = Identity::at(peer);
        let mut first = [0];
        if stream.peek(&mut first).await.map_err(|_| Refused::Left)? == 0 {
            return Err(Refused::Left);
        }
        if first != [FIRST_BYTE_OF_TLS] {
            return match certificates.takes_plain(identity.address) {
                true => Ok((Link::Plain(stream), identity)),
                false => Err(Refused::Plain),
            };
        }
        let acceptor = TlsAcceptor::from(certificates.server_config(&[self.spoken.name()]));
        let stream = acceptor.accept(stream).await.map_err(Refused::Failed)?;
        let identity = Certificates::identify(identity, stream.get_ref().1.peer_certificates());
        self.metrics.handshakes.inc();
        Ok((Link::Tls(Box::new(stream.into())), identity))
    }
}

impl Drop for HandshakePlace<'_> {
    fn drop(&mut self) {
        lock(&self.handshakes.places).release(self.place);
    }
}

/// The kind of the first record of TLS; HTTP begins with a letter.
const FIRST_BYTE_OF_TLS: u8 = 0x16;

const WANTS_TLS: &str = "it came without TLS, which GRPCXX_TLS=require asks for";
