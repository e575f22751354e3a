//! Authorities and certificates in files, and what a task reads of them.

use std::path::Path;
use std::sync::Arc;

use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::config::Config;
use grpcxx_runtime::{Certificates, EngineOptions};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};

/// An authority that signs certificates, in a folder with its own.
pub(crate) struct Issuers {
    pub(crate) folder: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Issuers {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Self { folder, issuer }
    }

    /// The path of a file in the folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Signs a certificate for a task on this machine, into `<file>.pem` and `<file>.key`.
    pub(crate) fn sign(&self, file: &str, task: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![
            SanType::URI(task.try_into().unwrap()),
            SanType::IpAddress([127, 0, 0, 1].into()),
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }

    /// What a task has whose variables name a certificate of `sign`, and say `more`.
    pub(crate) fn certificates(
        &self,
        file: &str,
        more: &[(&'static str, &str)],
    ) -> Arc<Certificates> {
        self.checked_by(file, &self.path("ca.pem"), more)
    }

    /// As [`Self::certificates`], with the authority in this file.
    pub(crate) fn checked_by(
        &self,
        file: &str,
        authority: &str,
        more: &[(&'static str, &str)],
    ) -> Arc<Certificates> {
        let mut set = vec![
            ("GRPCXX_TLS", "require".to_owned()),
            ("GRPCXX_TLS_CERT", self.path(&format!("{file}.pem"))),
            ("GRPCXX_TLS_KEY", self.path(&format!("{file}.key"))),
            ("GRPCXX_TLS_CA", authority.to_owned()),
        ];
        for (name, value) in more {
            set.retain(|(known, _)| known != name);
            set.push((name, (*value).to_owned()));
        }
        let lookup = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        };
        let (config, _) = Config::read(lookup, std::iter::empty::<&str>()).unwrap();
        let options = EngineOptions::from_config(&config, TaskId::new("ps", 0), 1);
        let certificates = Certificates::open(&options.tls.unwrap()).unwrap();
        assert!(Path::new(authority).is_file());
        Arc::new(certificates.unwrap())
    }
}
