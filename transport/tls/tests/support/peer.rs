//! A peer that is rustls alone: another record layer than ours.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig};
use rustls::{ServerConnection, SupportedCipherSuite};

use super::{Authority, Pem};

/// A peer, and what it has heard.
pub struct Peer {
    pub stream: TcpStream,
    pub tls: Connection,
    /// Sealed bytes that have not left.
    pub outbox: Vec<u8>,
    pub heard: Vec<u8>,
    /// The other side has said that it is done.
    pub is_done: bool,
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.certificate.as_bytes());
    roots.add(certificate.unwrap()).unwrap();
    Arc::new(roots)
}

fn chain_and_key(pem: &Pem) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_slice_iter(pem.certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes());
    (chain.collect::<Result<_, _>>().unwrap(), key.unwrap())
}

impl Peer {
    /// A client, with a certificate or without, that knows one cipher alone if told so.
    pub fn client(
        stream: TcpStream,
        authority: &Authority,
        pem: Option<&Pem>,
        cipher: Option<SupportedCipherSuite>,
    ) -> Self {
        let mut provider = default_provider();
        if let Some(cipher) = cipher {
            provider.cipher_suites = vec![cipher];
        }
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots(authority));
        let config = match pem.map(chain_and_key) {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
            None => config.with_no_client_auth(),
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        Self::new(stream, tls.into())
    }

    /// A server that gives out tickets, as servers do.
    pub fn server(stream: TcpStream, authority: &Authority, pem: &Pem) -> Self {
        let provider = Arc::new(default_provider());
        let roots = roots(authority);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let (chain, key) = chain_and_key(pem);
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap();
        let tls = ServerConnection::new(Arc::new(config)).unwrap();
        Self::new(stream, tls.into())
    }

    fn new(stream: TcpStream, tls: Connection) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self {
            stream,
            tls,
            outbox: Vec::new(),
            heard: Vec::new(),
            is_done: false,
        }
    }

    /// Seals bytes; they leave with [`Peer::pump`].
    pub fn say(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).unwrap();
        self.collect();
    }

    /// Moves sealed bytes to the outbox.
    pub fn collect(&mut self) {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.outbox).unwrap();
        }
    }

    /// Writes up to so many bytes, and takes what has come. An error is the peer's.
    pub fn pump(&mut self, bytes_max: usize) -> Result<(), String> {
        self.collect();
        let bytes = bytes_max.min(self.outbox.len());
        match self.stream.write(&self.outbox[..bytes]) {
            Ok(written) => drop(self.outbox.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.to_string()),
        }
        match self.tls.read_tls(&mut self.stream) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.to_string()),
        }
        let state = self
            .tls
            .process_new_packets()
            .map_err(|error| error.to_string())?;
        let mut heard = vec![0; state.plaintext_bytes_to_read()];
        self.tls.reader().read_exact(&mut heard).unwrap();
        self.heard.extend_from_slice(&heard);
        self.is_done = state.peer_has_closed();
        Ok(())
    }
}
