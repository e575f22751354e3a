//! An authority for tests, and certificates that it signs.

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};

use crate::{Credentials, PemTexts};

/// An authority that signs certificates of tasks.
pub(crate) struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().pem();
        Self {
            certificate,
            issuer: Issuer::new(params, key),
        }
    }

    /// Credentials of a task, whose peers must have some of the same authority.
    pub(crate) fn task(&self, cluster: &str, job: &str, index: u32) -> Credentials {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        let name = format!("grpcxx://{cluster}/{job}/{index}");
        params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Credentials::from_pem(PemTexts {
            certificates: certificate.pem().as_bytes(),
            key: key.serialize_pem().as_bytes(),
            authorities: Some(self.certificate.as_bytes()),
            is_mutual: true,
        })
        .unwrap()
    }
}
