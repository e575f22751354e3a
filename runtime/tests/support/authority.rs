//! Certificates for tasks, and engines with them.

use std::net::SocketAddr;

use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::config::Config;
use grpcxx_runtime::{Engine, EngineOptions};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};
use tempfile::TempDir;

/// An authority, and a folder with its certificate and those of tasks.
pub(crate) struct Authority {
    pub(crate) folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let folder = tempfile::tempdir().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        std::fs::write(folder.path().join("ca.pem"), certificate).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes a certificate for the task that `name` names, in the files of `job`.
    pub(crate) fn sign(&self, job: &str, name: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |what: &str| self.folder.path().join(format!("{job}.{what}"));
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        std::fs::write(file("pem"), certificate.pem()).unwrap();
    }

    /// The options of a task as its variables say, with more variables.
    pub(crate) fn options(&self, job: &str, more: &[(&str, &str)]) -> EngineOptions {
        let path = |file: String| self.folder.path().join(file).display().to_string();
        let files = [
            ("GRPCXX_TLS_CERT", path(format!("{job}.pem"))),
            ("GRPCXX_TLS_KEY", path(format!("{job}.key"))),
            ("GRPCXX_TLS_CA", path("ca.pem".to_owned())),
        ];
        let lookup = |name: &str| {
            let more = more.iter().find(|(known, _)| *known == name);
            let file = files.iter().find(|(known, _)| *known == name);
            more.map(|(_, value)| (*value).to_owned())
                .or_else(|| file.map(|(_, value)| value.clone()))
        };
        let (config, _) = Config::read(lookup, [""; 0]).unwrap();
        EngineOptions::from_config(&config, TaskId::new(job, 0), 2).with(|options| {
            options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
            options.arena = None;
        })
    }

    pub(crate) fn start(&self, job: &str, more: &[(&str, &str)]) -> Engine {
        self.sign(job, &format!("grpcxx://c/{job}/0"));
        Engine::start(self.options(job, more)).unwrap()
    }
}
