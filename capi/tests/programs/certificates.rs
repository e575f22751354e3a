//! Certificates of tasks in files.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};

/// The authority of a cluster, and the folder for its certificate and those of tasks.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, whose certificate takes the place of that of one before.
    pub(crate) fn new(folder: &Path) -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("a certificate");
        std::fs::write(folder.join("ca.pem"), certificate.pem()).expect("writable");
        Self {
            folder: folder.to_owned(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes `<file>.key` and `<file>.pem`, for the task that `name` names.
    pub(crate) fn sign(&self, file: &str, name: &str) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(name.try_into().expect("a URI"))];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let signed = (params.signed_by(&key, &self.issuer)).expect("a certificate");
        for (kind, text) in [("key", key.serialize_pem()), ("pem", signed.pem())] {
            std::fs::write(self.folder.join(format!("{file}.{kind}")), text).expect("writable");
        }
    }

    /// The variables of a process with the files of that name.
    pub(crate) fn variables(&self, file: &str) -> [(&'static str, String); 4] {
        let path = |name: String| self.folder.join(name).display().to_string();
        [
            ("GRPCXX_TLS", "require".to_owned()),
            ("GRPCXX_TLS_CERT", path(format!("{file}.pem"))),
            ("GRPCXX_TLS_KEY", path(format!("{file}.key"))),
            ("GRPCXX_TLS_CA", path("ca.pem".to_owned())),
        ]
    }
}
