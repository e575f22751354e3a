//! Certificates from files: read at the start, and again when they change.

mod plain;

use std::fmt;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use grpcxx_rpc::OtherTask;
use grpcxx_tls::{
    Credentials, CredentialsError, PemTexts, SharedCredentials, TlsMode, TlsOptions, task_name,
};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ServerConfig};

use crate::cluster::TaskId;
use crate::policy::Identity;
use crate::regular_file::open_regular_file;

pub use plain::PlainForbidden;

/// What connections do with TLS, and where the certificates are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsSettings {
    /// Which connections are TLS, and their limits.
    pub options: TlsOptions,
    /// The PEM file of this task's certificate, and of those between it and the authority.
    pub certificate: Option<PathBuf>,
    /// The PEM file of its key.
    pub key: Option<PathBuf>,
    /// The PEM file of the authorities whose certificates peers have.
    pub authorities: Option<PathBuf>,
    /// Whether peers must have a certificate, where there are authorities.
    pub is_mutual: bool,
    /// Whether connections that are TLS may go on over RDMA, which carries their bytes in the
    /// clear.
    pub trusts_rdma: bool,
}

impl TlsSettings {
    /// These settings with what `change` sets; fields that it leaves alone keep their values.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            options: TlsOptions::default(),
            certificate: None,
            key: None,
            authorities: None,
            is_mutual: true,
            trusts_rdma: false,
        }
    }
}

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that is needed is not named.
    #[error("GRPCXX_TLS={mode} needs {name}, the path of a PEM file")]
    Unnamed {
        /// The mode that needs it.
        mode: TlsMode,
        /// The variable that names it.
        name: &'static str,
    },
    /// A file cannot be read.
    #[error("{} cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// What the files hold is not what it should be.
    #[error("the files of GRPCXX_TLS_CERT, GRPCXX_TLS_KEY and GRPCXX_TLS_CA: {0}")]
    Content(CredentialsError),
    /// The thread that looks for new files did not start.
    #[error("the thread that looks for new certificates: {0}")]
    Thread(io::Error),
}

/// The certificates of a task, as new as their files.
pub struct Certificates {
    shared: SharedCredentials,
    options: TlsOptions,
    trusts_rdma: bool,
    /// Dropped at the end, which ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The files that credentials are made of.
#[derive(Clone)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    authorities: Option<PathBuf>,
    is_mutual: bool,
}

/// What tells whether a file has changed.
type Stamp = Option<FileStamp>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    /// Seconds and nanoseconds. Owners and rights count too, and nobody sets it back.
    changed: (i64, i64),
    bytes: u64,
}

/// What was seen of the files.
struct Seen {
    /// Of the files that are in use.
    stamps: [Stamp; 3],
    /// Why others are not, as it was told last.
    told: String,
}

impl Seen {
    fn of(files: &Files) -> Self {
        Self {
            stamps: files.stamps(),
            told: String::new(),
        }
    }
}

impl Certificates {
    /// Reads the files, and looks for new ones from now on. `None` if TLS is off.
    ///
    /// # Errors
    /// A file is not named, cannot be read, or is not what it should be.
    pub fn open(settings: &TlsSettings) -> Result<Option<Self>, TlsError> {
        Self::open_with(settings, RELOAD_CHECK)
    }

    fn open_with(settings: &TlsSettings, every: Duration) -> Result<Option<Self>, TlsError> {
        let mode = settings.options.mode;
        if mode == TlsMode::Off {
            return Ok(None);
        }
        let named =
            |path: &Option<PathBuf>, name| path.clone().ok_or(TlsError::Unnamed { mode, name });
        let files = Files {
            certificate: named(&settings.certificate, "GRPCXX_TLS_CERT")?,
            key: named(&settings.key, "GRPCXX_TLS_KEY")?,
            authorities: match mode.dials() {
                true => Some(named(&settings.authorities, "GRPCXX_TLS_CA")?),
                false => settings.authorities.clone(),
            },
            is_mutual: settings.is_mutual,
        };
        let mut seen = Seen::of(&files);
        let shared: SharedCredentials = Arc::new(ArcSwap::from_pointee(files.read()?));
        let (stop, stopped) = channel();
        let watched = Arc::clone(&shared);
        let watch = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                files.renew(&watched, &mut seen);
            }
        };
        let thread = std::thread::Builder::new().name("grpcxx-tls".to_owned());
        Ok(Some(Self {
            shared,
            options: settings.options.clone(),
            trusts_rdma: settings.trusts_rdma,
            stop: Some(stop),
            thread: Some(thread.spawn(watch).map_err(TlsError::Thread)?),
        }))
    }

    /// What links take for each handshake.
    pub fn shared(&self) -> SharedCredentials {
        Arc::clone(&self.shared)
    }

    /// Which connections are TLS, and their limits.
    pub fn options(&self) -> &TlsOptions {
        &self.options
    }

    /// Whether connections that are TLS may go on over RDMA.
    pub fn trusts_rdma(&self) -> bool {
        self.trusts_rdma
    }

    /// What a server needs for its next connection, of a protocol with these names: `h2`.
    pub fn server_config(&self, protocols: &[&[u8]]) -> Arc<ServerConfig> {
        self.shared.load().server_config(protocols)
    }

    /// What a client of such a protocol needs for its next connection; `None` without authorities
    /// to check servers by.
    pub fn client_config(&self, protocols: &[&[u8]]) -> Option<Arc<ClientConfig>> {
        self.shared.load().client_config(protocols)
    }

    /// Whether a peer may come without TLS.
    pub fn takes_plain(&self, peer: IpAddr) -> bool {
        self.options.mode.takes_plain() || (self.options.plain_peers)(peer)
    }

    /// Whether a peer is dialled by TLS.
    pub fn dials(&self, peer: IpAddr) -> bool {
        self.options.mode.dials() && !(self.options.plain_peers)(peer)
    }

    /// Warns if the certificate is not that of this task, which others will not believe.
    pub(crate) fn warn_of_other_task(&self, task: &TaskId) {
        let credentials = self.shared.load();
        if let Some(name) = credentials.name().filter(|_| task.is_of_cluster())
            && task.check_name(name).is_err()
        {
            tracing::warn!(
                task = task.in_certificates(),
                %name,
                "the certificate is that of another task, so others refuse this one; give it its \
                 own (GRPCXX_TLS_CERT, GRPCXX_TLS_KEY), or start it as the task of its certificate"
            );
        }
    }

    /// Checks that the server which has shown this chain of certificates is the task that was
    /// called.
    ///
    /// # Errors
    /// Its certificate names another one.
    pub fn check_server(
        called: &TaskId,
        chain: Option<&[CertificateDer<'_>]>,
    ) -> Result<(), Box<OtherTask>> {
        let name = chain.and_then(<[_]>::first).and_then(task_name);
        name.map_or(Ok(()), |name| called.check_name(&name))
    }

    /// Who a peer is after a handshake in which it has shown this chain of certificates, if any.
    pub fn identify(peer: Identity, chain: Option<&[CertificateDer<'_>]>) -> Identity {
        match chain.and_then(<[_]>::first) {
            Some(certificate) => peer.certified(task_name(certificate).as_ref()),
            None => peer,
        }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It has logged what was wrong with it.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.options.mode)?;
        match self.shared.load().name() {
            Some(name) => write!(f, " ({name})"),
            None => f.write_str(" (the certificate names no task)"),
        }
    }
}

impl Files {
    fn stamps(&self) -> [Stamp; 3] {
        let stamp = |path: &Path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some(FileStamp {
                device: metadata.dev(),
                inode: metadata.ino(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
                bytes: metadata.len(),
            })
        };
        [
            stamp(&self.certificate),
            stamp(&self.key),
            self.authorities.as_deref().and_then(stamp),
        ]
    }

    fn read(&self) -> Result<Credentials, TlsError> {
        let certificates = read(&self.certificate)?;
        let key = read(&self.key)?;
        let authorities = self.authorities.as_deref().map(read).transpose()?;
        Credentials::from_pem(PemTexts {
            certificates: &certificates,
            key: &key,
            authorities: authorities.as_deref(),
            is_mutual: self.is_mutual,
        })
        .map_err(TlsError::Content)
    }

    /// Takes the files again if they have changed. What cannot be used is told once and tried again
    /// at the next look, for it may have been half written; what was there before stays.
    fn renew(&self, shared: &SharedCredentials, seen: &mut Seen) {
        let stamps = self.stamps();
        if stamps == seen.stamps {
            return;
        }
        match self.read() {
            Ok(credentials) => {
                shared.store(Arc::new(credentials));
                seen.stamps = stamps;
                seen.told.clear();
                tracing::info!("new certificates are in use for new connections");
            }
            Err(error) => {
                let error = error.to_string();
                if error != seen.told {
                    tracing::warn!(%error, "new certificates are not used; the former ones stay");
                    seen.told = error;
                }
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let fail = |error| TlsError::File {
        path: path.to_owned(),
        error,
    };
    let file = open_regular_file(path).map_err(fail)?;
    let mut text = Vec::new();
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text);
    let bytes = read.map_err(fail)? as u64;
    if bytes > FILE_BYTES_MAX {
        let text = format!("it has more than {FILE_BYTES_MAX} bytes, which no certificate has");
        return Err(fail(io::Error::new(io::ErrorKind::InvalidData, text)));
    }
    Ok(text)
}

/// How often is looked whether the files have changed.
const RELOAD_CHECK: Duration = Duration::from_secs(5);

/// Longest file: a bundle of all authorities that browsers know has a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::time::Instant;

    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    /// Writes a certificate of this task and its key.
    fn write(folder: &Path, name: &str) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
        std::fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    }

    /// Settings with the files of a folder, where the certificate is its own authority.
    fn settings(path: &Path, change: impl FnOnce(&mut TlsOptions)) -> TlsSettings {
        TlsSettings::default().with(|settings| {
            change(&mut settings.options);
            settings.certificate = Some(path.join("cert.pem"));
            settings.key = Some(path.join("key.pem"));
            settings.authorities = Some(path.join("cert.pem"));
        })
    }

    /// Certificates with these options.
    pub(super) fn certificates(change: impl FnOnce(&mut TlsOptions)) -> Certificates {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "grpcxx://c/ps/0");
        let settings = settings(folder.path(), change);
        Certificates::open(&settings).unwrap().unwrap()
    }

    #[test]
    fn new_files_are_taken_while_they_run_and_bad_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        write(path, "grpcxx://c/ps/1");
        let settings = settings(path, |options| options.mode = TlsMode::Accept);
        let every = Duration::from_millis(5);
        let certificates = Certificates::open_with(&settings, every).unwrap().unwrap();
        assert_eq!(certificates.to_string(), "accept (grpcxx://c/ps/1)");
        std::fs::write(path.join("cert.pem"), "nothing").unwrap();
        std::thread::sleep(20 * every);
        assert_eq!(certificates.to_string(), "accept (grpcxx://c/ps/1)");
        write(path, "grpcxx://c/ps/2");
        let end = Instant::now() + Duration::from_secs(20);
        while certificates.to_string() != "accept (grpcxx://c/ps/2)" {
            assert!(Instant::now() < end, "{certificates}");
            std::thread::sleep(every);
        }
    }

    #[test]
    fn files_that_did_not_fit_once_are_tried_again_though_they_look_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let (cert, key) = (path.join("cert.pem"), path.join("key.pem"));
        write(path, "grpcxx://c/ps/1");
        let settings = settings(path, |options| options.mode = TlsMode::Accept);
        let never = Duration::from_secs(3600);
        let certificates = Certificates::open_with(&settings, never).unwrap().unwrap();
        let files = Files {
            certificate: cert.clone(),
            key: key.clone(),
            authorities: None,
            is_mutual: true,
        };
        let (shared, mut seen) = (certificates.shared(), Seen::of(&files));
        let other_key = std::fs::read_to_string(&key).unwrap();
        write(path, "grpcxx://c/ps/2");
        let right_key = std::fs::read_to_string(&key).unwrap();
        let modified = std::fs::metadata(&key).unwrap().modified().unwrap();
        for (text, expected) in [(other_key, "ps/1"), (right_key, "ps/2")] {
            std::fs::write(&key, text).unwrap();
            let opened = File::options().write(true).open(&key).unwrap();
            opened.set_modified(modified).unwrap();
            files.renew(&shared, &mut seen);
            assert_eq!(
                certificates.to_string(),
                format!("accept (grpcxx://c/{expected})")
            );
        }
    }

    #[test]
    fn files_that_are_no_certificates_are_not_read_for_ever() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        let mut long = tempfile::NamedTempFile::new().unwrap();
        let bytes = vec![b'-'; FILE_BYTES_MAX as usize + 1];
        std::io::Write::write_all(&mut long, &bytes).unwrap();
        let error = read(long.path()).unwrap_err().to_string();
        assert!(error.contains("more than 1048576 bytes"), "{error}");
    }
}
