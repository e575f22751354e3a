//! A handshake, step by step, by rustls: bytes of the peer in, bytes for the peer out, keys at the
//! end.

use std::net::IpAddr;

use grpcxx_transport::PeerName;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{CommonState, ConnectionTrafficSecrets, Error, ExtractedSecrets};

use crate::Credentials;
use crate::record::{HEADER_BYTES, is_alert_of_certificates};
use crate::verify::task_name;

/// One end of a handshake.
pub struct Handshake {
    side: Side,
    /// Bytes of the peer that rustls is not done with, and some that it has not seen.
    incoming: Vec<u8>,
    /// So many of them it has seen: whole records, since what follows the last of the handshake is
    /// not for it.
    seen_bytes: usize,
}

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// What rustls keeps once the handshake is over: from what the next keys are made.
pub(crate) enum KeySource {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// What a handshake has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// It needs bytes of the peer.
    Wait,
    /// It is over.
    Done,
}

/// What a handshake ends in.
pub(crate) struct Agreement {
    pub(crate) secrets: ExtractedSecrets,
    pub(crate) source: KeySource,
    /// Whether the peer has a certificate that is good.
    pub(crate) is_proven: bool,
    pub(crate) name: Option<PeerName>,
    /// What followed the handshake already.
    pub(crate) rest: Vec<u8>,
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HandshakeError {
    /// rustls refused.
    #[error(transparent)]
    Refused(#[from] Error),
    /// The peer sends more than a handshake has.
    #[error("the handshake has more than {INCOMING_BYTES_MAX} bytes")]
    TooLong,
    /// The peer ended the connection in the middle.
    #[error("the peer left before the handshake was over")]
    Left,
    /// There are no authorities to check servers by.
    #[error("no authorities are known to check the server by; set GRPCXX_TLS_CA")]
    NoAuthorities,
    /// rustls is in a state that this program does not know.
    #[error("the handshake came to a state that is unknown here")]
    UnknownState,
}

impl HandshakeError {
    /// Whether one end does not accept the certificate of the other, or misses one.
    pub(crate) fn is_of_certificates(&self) -> bool {
        match self {
            Self::Refused(
                Error::InvalidCertificate(_)
                | Error::InvalidCertRevocationList(_)
                | Error::NoCertificatesPresented,
            ) => true,
            Self::Refused(Error::AlertReceived(alert)) => is_alert_of_certificates((*alert).into()),
            Self::NoAuthorities => true,
            Self::Refused(_) | Self::TooLong | Self::Left | Self::UnknownState => false,
        }
    }
}

impl Handshake {
    /// The end that dialled `peer`.
    ///
    /// # Errors
    /// There are no authorities to check servers by.
    pub fn client(credentials: &Credentials, peer: IpAddr) -> Result<Self, HandshakeError> {
        let config = credentials.client.clone();
        let config = config.ok_or(HandshakeError::NoAuthorities)?;
        let name = ServerName::IpAddress(peer.into());
        let connection = UnbufferedClientConnection::new(config, name)?;
        Ok(Self::of(Side::Client(connection)))
    }

    /// The end that was dialled.
    ///
    /// # Errors
    /// The configuration is none for this.
    pub fn server(credentials: &Credentials) -> Result<Self, HandshakeError> {
        let connection = UnbufferedServerConnection::new(credentials.server.clone())?;
        Ok(Self::of(Side::Server(connection)))
    }

    fn of(side: Side) -> Self {
        Self {
            side,
            incoming: Vec::new(),
            seen_bytes: 0,
        }
    }

    /// Takes bytes of the peer.
    ///
    /// # Errors
    /// They are more than a handshake has.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), HandshakeError> {
        if self.incoming.len() + bytes.len() > INCOMING_BYTES_MAX {
            return Err(HandshakeError::TooLong);
        }
        self.incoming.extend_from_slice(bytes);
        Ok(())
    }

    /// Goes as far as the bytes of the peer allow. What it has to say is appended to `out`, also if
    /// it fails: the alert.
    ///
    /// # Errors
    /// The peer proves nothing, or speaks something else.
    pub fn step(&mut self, out: &mut Vec<u8>) -> Result<HandshakeStep, HandshakeError> {
        loop {
            match self.process(out) {
                Ok(Some(step)) => return Ok(step),
                Ok(None) => {}
                Err(error) => {
                    // Nothing was left to say before it, so what is left is one alert at most. A
                    // further look at what is wrong would be a fault of ours, for rustls.
                    let _ = self.process(out);
                    return Err(error);
                }
            }
        }
    }

    /// Lets rustls do one thing.
    fn process(&mut self, out: &mut Vec<u8>) -> Result<Option<HandshakeStep>, HandshakeError> {
        let seen = &mut self.incoming[..self.seen_bytes];
        let (discard_bytes, stage) = match &mut self.side {
            Side::Client(connection) => take_status(connection.process_tls_records(seen), out),
            Side::Server(connection) => take_status(connection.process_tls_records(seen), out),
        };
        self.incoming.drain(..discard_bytes);
        self.seen_bytes -= discard_bytes;
        match stage? {
            Stage::Goes => Ok(None),
            Stage::Open if !self.common().is_handshaking() => Ok(Some(HandshakeStep::Done)),
            Stage::Open | Stage::Blocked => Ok(self.see_more()?.then_some(HandshakeStep::Wait)),
        }
    }

    /// Shows rustls one more record. True if none is whole.
    fn see_more(&mut self) -> Result<bool, HandshakeError> {
        let fresh = &self.incoming[self.seen_bytes..];
        let Some([_, _, _, high, low]) = fresh.first_chunk::<HEADER_BYTES>() else {
            return Ok(true);
        };
        let record_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([*high, *low]));
        if record_bytes > INCOMING_BYTES_MAX {
            return Err(HandshakeError::TooLong);
        }
        if record_bytes > fresh.len() {
            return Ok(true);
        }
        self.seen_bytes += record_bytes;
        Ok(false)
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Client(connection) => connection,
            Side::Server(connection) => connection,
        }
    }

    /// Takes keys and names of a handshake that is over.
    pub(crate) fn finish(self) -> Result<Agreement, HandshakeError> {
        let certificates = self.common().peer_certificates();
        let is_proven = certificates.is_some();
        let name = certificates.and_then(|chain| task_name(chain.first()?));
        let (secrets, source) = match self.side {
            Side::Client(connection) => {
                let (secrets, source) = connection.dangerous_into_kernel_connection()?;
                (secrets, KeySource::Client(source))
            }
            Side::Server(connection) => {
                let (secrets, source) = connection.dangerous_into_kernel_connection()?;
                (secrets, KeySource::Server(source))
            }
        };
        Ok(Agreement {
            secrets,
            source,
            is_proven,
            name,
            rest: self.incoming,
        })
    }
}

impl KeySource {
    /// The next key to seal with.
    pub(crate) fn next_to_seal(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Client(source) => source.update_tx_secret(),
            Self::Server(source) => source.update_tx_secret(),
        }
    }

    /// The next key to open with.
    pub(crate) fn next_to_open(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Self::Client(source) => source.update_rx_secret(),
            Self::Server(source) => source.update_rx_secret(),
        }
    }
}

enum Stage {
    /// There is more to do.
    Goes,
    /// The peer must say something.
    Blocked,
    /// Data may be sent.
    Open,
}

/// Does what rustls asks for. Returns how many bytes of the peer it is done with.
fn take_status<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
) -> (usize, Result<Stage, HandshakeError>) {
    let stage = match status.state {
        Ok(ConnectionState::EncodeTlsData(message)) => {
            encode(message, out);
            Ok(Stage::Goes)
        }
        Ok(ConnectionState::TransmitTlsData(message)) => {
            message.done();
            Ok(Stage::Goes)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Stage::Blocked),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Stage::Open),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Err(HandshakeError::Left),
        Ok(_) => Err(HandshakeError::UnknownState),
        Err(error) => Err(error.into()),
    };
    (status.discard, stage)
}

/// Appends a message of rustls.
fn encode<Data>(mut message: EncodeTlsData<'_, Data>, out: &mut Vec<u8>) {
    let Err(EncodeError::InsufficientSize(needed)) = message.encode(&mut []) else {
        return;
    };
    let start = out.len();
    out.resize(start + needed.required_size, 0);
    let encoded = message.encode(&mut out[start..]);
    out.truncate(start + encoded.unwrap_or(0));
}

/// Most bytes of a peer that wait for the rest of a message: more than any certificate that is
/// used.
const INCOMING_BYTES_MAX: usize = 64 << 10;
