//! Certificate, key and authority of a task, and what rustls makes of them.

use std::sync::Arc;

use grpcxx_transport::PeerName;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite};

use crate::verify::{ClientVerifier, ServerVerifier, task_name};

/// What a task proves itself with, as PEM texts.
#[derive(Clone, Copy, Debug)]
pub struct PemTexts<'a> {
    /// The certificate of the task, and those between it and the authority.
    pub certificates: &'a [u8],
    /// The key of the certificate.
    pub key: &'a [u8],
    /// The authorities whose certificates peers have. Without them nobody can be dialled, and
    /// diallers prove nothing.
    pub authorities: Option<&'a [u8]>,
    /// Whether diallers must have a certificate, where there are authorities.
    pub is_mutual: bool,
}

/// Certificate, key and authorities, ready for handshakes. New ones replace the whole.
#[derive(Debug)]
pub struct Credentials {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Option<Arc<ClientConfig>>,
    name: Option<PeerName>,
}

/// Why texts are no credentials.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A text that is no PEM, or holds nothing of what it should.
    #[error("{what}: {message}")]
    Pem {
        /// Which of them.
        what: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// Certificate, key and authorities that do not fit together.
    #[error("{what}: {error}")]
    Unfit {
        /// What was to be made of them.
        what: &'static str,
        /// Why that does not go.
        error: rustls::Error,
    },
}

impl Credentials {
    /// Makes credentials of PEM texts.
    ///
    /// # Errors
    /// A text is no PEM, lacks what it should hold, or does not fit the others.
    pub fn from_pem(texts: PemTexts<'_>) -> Result<Self, CredentialsError> {
        let chain = certificates("the certificate", texts.certificates)?;
        let key =
            PrivateKeyDer::from_pem_slice(texts.key).map_err(|error| pem("the key", error))?;
        let name = chain.first().and_then(task_name);
        let provider = Arc::new(provider());
        let roots = texts.authorities.map(roots).transpose()?;
        let verifier = match &roots {
            Some(roots) if texts.is_mutual => client_verifier(roots, &provider, name.as_ref())?,
            _ => WebPkiClientVerifier::no_client_auth(),
        };
        let server = server_config(Arc::clone(&provider), verifier, &chain, &key)
            .map_err(unfit("a server of certificate and key"))?;
        let client = roots
            .map(|roots| client_config(provider, roots, name.as_ref(), chain, key))
            .transpose()
            .map_err(unfit("a client of certificate and key"))?;
        Ok(Self {
            server: Arc::new(server),
            client: client.map(Arc::new),
            name,
        })
    }

    /// The name of the task that the certificate is for.
    pub fn name(&self) -> Option<&PeerName> {
        self.name.as_ref()
    }

    /// Whether there are authorities to check servers by.
    pub fn can_dial(&self) -> bool {
        self.client.is_some()
    }

    /// The side of a server for a protocol above TLS with a name of its own: `h2`.
    pub fn server_config(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.server);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.enable_secret_extraction = false;
        Arc::new(config)
    }

    /// The side of a client for such a protocol; `None` without authorities to check servers by.
    pub fn client_config(&self, protocols: &[&[u8]]) -> Option<Arc<ClientConfig>> {
        let mut config = ClientConfig::clone(self.client.as_deref()?);
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.enable_secret_extraction = false;
        Some(Arc::new(config))
    }
}

fn server_config(
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.to_vec(), key.clone_key())?;
    // Links live for days, and whoever resumes is not checked again.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.enable_secret_extraction = true;
    Ok(config)
}

fn client_config(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    name: Option<&PeerName>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let verifier = ServerVerifier {
        roots,
        algorithms: provider.signature_verification_algorithms,
        cluster: name.map(|name| Arc::clone(&name.cluster)),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)?;
    config.resumption = Resumption::disabled();
    config.enable_secret_extraction = true;
    Ok(config)
}

fn client_verifier(
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    name: Option<&PeerName>,
) -> Result<Arc<dyn ClientCertVerifier>, CredentialsError> {
    let chain =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
    let chain = chain
        .build()
        .map_err(|error| pem("the authorities", error))?;
    Ok(Arc::new(ClientVerifier {
        chain,
        cluster: name.map(|name| Arc::clone(&name.cluster)),
    }))
}

/// The ciphers of ring, the fastest of this CPU first.
fn provider() -> CryptoProvider {
    let aes = [
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    let chacha = [cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    let (first, last): (&[SupportedCipherSuite], &[_]) = if has_aes() {
        (&aes, &chacha)
    } else {
        (&chacha, &aes)
    };
    CryptoProvider {
        cipher_suites: [first, last].concat(),
        ..default_provider()
    }
}

#[cfg(target_arch = "x86_64")]
fn has_aes() -> bool {
    std::arch::is_x86_feature_detected!("aes")
}

#[cfg(target_arch = "aarch64")]
fn has_aes() -> bool {
    std::arch::is_aarch64_feature_detected!("aes")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn has_aes() -> bool {
    false
}

fn certificates(
    what: &'static str,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| pem(what, error))?;
    if found.is_empty() {
        return Err(pem(what, "no `BEGIN CERTIFICATE` is in it"));
    }
    Ok(found)
}

fn roots(text: &[u8]) -> Result<Arc<RootCertStore>, CredentialsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the authorities", text)? {
        roots
            .add(certificate)
            .map_err(|error| pem("the authorities", error))?;
    }
    Ok(Arc::new(roots))
}

fn pem(what: &'static str, message: impl ToString) -> CredentialsError {
    CredentialsError::Pem {
        what,
        message: message.to_string(),
    }
}

fn unfit(what: &'static str) -> impl FnOnce(rustls::Error) -> CredentialsError {
    move |error| CredentialsError::Unfit { what, error }
}
