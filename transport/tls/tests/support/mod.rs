//! Authorities and certificates for tests, made when they run.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test binary uses a part"
)]

pub mod peer;
pub mod side;

use std::sync::Arc;

use arc_swap::ArcSwap;
use grpcxx_tls::{Credentials, PemTexts, SharedCredentials};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};

/// An authority that signs certificates.
pub struct Authority {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM.
pub struct Pem {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        // OpenSSL takes a certificate for its own authority if both have one name.
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate with these names, valid for so many days around today.
    pub fn sign(&self, names: Vec<SanType>) -> Pem {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Pem {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    /// A certificate of a task.
    pub fn sign_task(&self, name: &str) -> Pem {
        self.sign(vec![SanType::URI(name.try_into().unwrap())])
    }

    /// Credentials of a task, which trusts this authority.
    pub fn task(&self, name: &str) -> SharedCredentials {
        share(self.credentials(&self.sign_task(name)))
    }

    /// What a certificate makes that trusts this authority.
    pub fn credentials(&self, pem: &Pem) -> Credentials {
        Credentials::from_pem(PemTexts {
            certificates: pem.certificate.as_bytes(),
            key: pem.key.as_bytes(),
            authorities: Some(self.certificate.as_bytes()),
            is_mutual: true,
        })
        .unwrap()
    }
}

pub fn share(credentials: Credentials) -> SharedCredentials {
    Arc::new(ArcSwap::from_pointee(credentials))
}
