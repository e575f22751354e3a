//! What a fuzzer does with bytes that stand for a handshake. A file of its own, so that the fuzzer
//! needs nothing else of these tests.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "shared with a fuzzer"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

use grpcxx_tls::{Credentials, Handshake, HandshakeStep, PemTexts};
use rcgen::{CertificateParams, KeyPair};

/// Credentials that sign themselves.
fn credentials() -> &'static Credentials {
    static CREDENTIALS: OnceLock<Credentials> = OnceLock::new();
    CREDENTIALS.get_or_init(|| {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default()
            .self_signed(&key)
            .unwrap()
            .pem();
        Credentials::from_pem(PemTexts {
            certificates: certificate.as_bytes(),
            key: key.serialize_pem().as_bytes(),
            authorities: Some(certificate.as_bytes()),
            is_mutual: true,
        })
        .unwrap()
    })
}

/// One end of a handshake.
pub fn end(is_client: bool) -> Handshake {
    let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
    if is_client {
        Handshake::client(credentials(), peer).unwrap()
    } else {
        Handshake::server(credentials()).unwrap()
    }
}

/// Takes the first byte for the side and the length of the pieces in which the others come. Nobody
/// can finish a handshake without the secrets of this run.
pub fn tls_handshake(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else {
        return;
    };
    let mut end = end(first & 1 == 1);
    let piece_bytes = 1 + usize::from(first >> 1) * 8;
    let mut said = Vec::new();
    if end.step(&mut said).is_err() {
        return;
    }
    for piece in bytes.chunks(piece_bytes) {
        if end.take(piece).is_err() {
            return;
        }
        match end.step(&mut said) {
            Ok(HandshakeStep::Wait) => {}
            Ok(HandshakeStep::Done) => panic!("a stranger finished the handshake"),
            Err(_) => return,
        }
    }
}
