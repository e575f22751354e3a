//! Which certificates of peers are good: signed by the authority, of our cluster, and of the server
//! that was dialled.

use std::fmt;
use std::sync::Arc;

use grpcxx_transport::PeerName;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

/// The name of the task that a certificate is for: the first of its names that is one.
pub fn task_name(certificate: &CertificateDer<'_>) -> Option<PeerName> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    certificate
        .valid_uri_names()
        .find_map(|name| name.parse().ok())
}

/// Checks certificates of servers.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
    /// The cluster of our own certificate.
    pub(crate) cluster: Option<Arc<str>>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        match task_name(end_entity) {
            Some(name) => check_cluster(self.cluster.as_ref(), &name)?,
            None => verify_server_name(&certificate, server_name)?,
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(
            rustls::PeerIncompatible::Tls12NotOffered,
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Checks certificates of clients.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) chain: Arc<dyn ClientCertVerifier>,
    /// The cluster of our own certificate.
    pub(crate) cluster: Option<Arc<str>>,
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = (self.chain).verify_client_cert(end_entity, intermediates, now)?;
        if let Some(name) = task_name(end_entity) {
            check_cluster(self.cluster.as_ref(), &name)?;
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.chain).verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        (self.chain).verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// A certificate of a task that belongs to another cluster.
#[derive(thiserror::Error)]
#[error("the certificate is of {name}, this task is of cluster {cluster}")]
struct OtherCluster {
    name: PeerName,
    cluster: Arc<str>,
}

// rustls prints its errors in this form.
impl fmt::Debug for OtherCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Tasks of one cluster alone talk to each other, though one authority may sign for several.
fn check_cluster(own: Option<&Arc<str>>, name: &PeerName) -> Result<(), Error> {
    let Some(cluster) = own.filter(|cluster| **cluster != name.cluster) else {
        return Ok(());
    };
    let other = OtherCluster {
        name: name.clone(),
        cluster: Arc::clone(cluster),
    };
    Err(Error::InvalidCertificate(CertificateError::Other(
        OtherError(Arc::new(other)),
    )))
}
