//! A page over HTTP for processes without a gRPC endpoint: `/metrics` for Prometheus, `/inspect`
//! with what waits, `/healthz`, `/livez`.
//!
//! Scrapes are rare, so each connection has a thread for its one request. Who connects and asks
//! nothing gives way to others, and nobody has a connection for longer than
//! [`METRICS_CONNECTION_TIME`].

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Scope};
use std::time::{Duration, Instant};

use grpcxx_memory::forks::{self, Mark};
use grpcxx_rpc::{Account, Places, Right};
use rustls::{ServerConnection, StreamOwned};

use super::text::MetricsText;
use super::waiting::MoreAwaited;
use super::{Exposition, Health, Liveness};
use crate::blame::survive;
use crate::limits::{
    METRICS_CONNECTION_TIME, METRICS_CONNECTIONS, METRICS_HEADERS, METRICS_LEFT_BYTES,
    METRICS_REQUEST_BYTES, METRICS_REQUEST_TIME, METRICS_SHARE_PERCENT, METRICS_THREADS,
};
use crate::policy::{Identity, Proof};
use crate::tls::Certificates;

/// Adds numbers of the program to those of the engine, on a thread of the page.
pub type MoreMetrics = Arc<dyn Fn(&mut MetricsText) + Send + Sync>;

/// What a program adds to what its engine tells.
#[derive(Clone, Default)]
pub struct ProgramPage {
    /// Numbers.
    pub metrics: Option<MoreMetrics>,
    /// Tensors that it waits for.
    pub awaited: Option<MoreAwaited>,
}

/// A page that shows what an engine has counted, until it is dropped.
pub struct MetricsPage {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Of the process that serves it.
    generation: u32,
}

/// What the threads of a page share.
struct Shared {
    // Before what it marks.
    _mark: Mark,
    listener: TcpListener,
    metrics: Exposition,
    liveness: Liveness,
    program: ProgramPage,
    certificates: Option<Arc<Certificates>>,
    is_stopping: AtomicBool,
    threads: AtomicUsize,
    places: Mutex<Places<TcpStream, Instant>>,
}

/// A connection whose operations all end by a moment.
struct Timed {
    stream: TcpStream,
    end: Instant,
}

/// What is asked of the page.
struct Asked {
    path: String,
    is_head: bool,
}

struct Answer {
    code: &'static str,
    content_type: &'static str,
    body: String,
    /// Whether the body is left out.
    is_head: bool,
}

impl MetricsPage {
    /// Serves the numbers of an engine at `address`; port 0 takes a free one. Whoever
    /// the engine's policy and its TLS settings let connect may read them.
    ///
    /// # Errors
    /// The address cannot be listened on, or there is no thread.
    pub fn start(
        address: SocketAddr,
        metrics: Exposition,
        certificates: Option<Arc<Certificates>>,
        program: ProgramPage,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            _mark: Mark::of(&listener),
            listener,
            liveness: Liveness::new(metrics.client.clone()),
            metrics,
            program,
            certificates,
            is_stopping: AtomicBool::new(false),
            threads: AtomicUsize::new(0),
            places: Mutex::new(Places::new(METRICS_CONNECTIONS, METRICS_SHARE_PERCENT)),
        });
        let accepting = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("grpcxx-metrics".to_owned())
            .spawn(move || thread::scope(|scope| accepting.accept_all(scope)))?;
        Ok(Self {
            address,
            shared,
            thread: Some(thread),
            generation: forks::generation(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsPage {
    fn drop(&mut self) {
        if self.generation != forks::generation() {
            // In a forked child, where nobody serves it.
            std::mem::forget(self.thread.take());
            return;
        }
        self.shared.is_stopping.store(true, Ordering::Release);
        // Linux wakes who waits for a connection.
        if let Err(error) =
            rustix::net::shutdown(&self.shared.listener, rustix::net::Shutdown::Both)
        {
            tracing::debug!(%error, "the metrics page was not listening any more");
        }
        self.shared.close_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the metrics page has panicked");
        }
    }
}

impl Shared {
    fn accept_all<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        loop {
            let accepted = self.listener.accept();
            if self.is_stopping.load(Ordering::Acquire) {
                return;
            }
            match accepted {
                Ok((stream, peer)) => self.admit(scope, stream, peer),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the metrics page");
                    thread::sleep(ACCEPT_RETRY_DELAY);
                }
            }
        }
    }

    /// Gives a connection a place and a thread, if it may have them.
    fn admit<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        stream: TcpStream,
        peer: SocketAddr,
    ) {
        if !self.metrics.authority.admits(peer) {
            return;
        }
        // Those that gave way are ending.
        if self.threads.load(Ordering::Acquire) >= METRICS_THREADS {
            tracing::warn!(%peer, "too many connections to the metrics page: one was closed");
            return;
        }
        let Ok(close) = stream.try_clone() else {
            return;
        };
        let Ok(given) = self
            .places()
            .take(Account::of(peer.ip()), close, Instant::now())
        else {
            return;
        };
        if let Some(oldest) = given.gave_way {
            end(&oldest);
        }
        // `close_all` may have run before the place was taken.
        if self.is_stopping.load(Ordering::Acquire) {
            return;
        }
        self.threads.fetch_add(1, Ordering::AcqRel);
        let serve = move || {
            // It asks the program too, whose code may panic.
            survive("a scrape of the metrics page", || {
                if let Err(error) = self.serve(stream, peer) {
                    tracing::debug!(%peer, %error, "a connection to the metrics page failed");
                }
            });
            self.places().release(given.place);
            self.threads.fetch_sub(1, Ordering::AcqRel);
        };
        let name = "grpcxx-scrape".to_owned();
        let spawned = thread::Builder::new().name(name).spawn_scoped(scope, serve);
        if let Err(error) = spawned {
            tracing::warn!(%error, "a scrape of the metrics page got no thread");
            self.places().release(given.place);
            self.threads.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Serves the one request of a connection.
    fn serve(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let now = Instant::now();
        let end = now + METRICS_CONNECTION_TIME;
        let mut timed = Timed {
            stream,
            end: now + METRICS_REQUEST_TIME,
        };
        let by_tls = match &self.certificates {
            Some(certificates) if timed.is_tls()? => Some(certificates),
            Some(certificates) if !certificates.takes_plain(peer.ip()) => {
                tracing::warn!(%peer, "a connection to the metrics page is refused: {PLAIN}");
                return Ok(());
            }
            Some(_) | None => None,
        };
        let Some(certificates) = by_tls else {
            let answer = self.answer(read_request(&mut timed)?, &Identity::at(peer));
            timed.end = end;
            answer.write(&mut timed)?;
            return timed.leave();
        };
        let tls = ServerConnection::new(certificates.server_config(&[b"http/1.1"]));
        let mut sealed = StreamOwned::new(tls.map_err(io::Error::other)?, timed);
        let asked = read_request(&mut sealed)?;
        let mut identity = Identity::at(peer);
        if sealed.conn.peer_certificates().is_some() {
            identity = identity.proven(Proof::Certificate);
        }
        let answer = self.answer(asked, &identity);
        sealed.sock.end = end;
        answer.write(&mut sealed)?;
        sealed.conn.send_close_notify();
        sealed.flush()?;
        sealed.sock.leave()
    }

    fn answer(&self, asked: Result<Asked, &'static str>, from: &Identity) -> Answer {
        let Asked { path, is_head } = match asked {
            Ok(asked) => asked,
            Err(code) => return Answer::text(code, format!("{code}\n"), false),
        };
        let waiting = || format!("{:#}\n", self.metrics.waiting(&self.program));
        let (code, text) = match path.as_str() {
            "/metrics" => (OK, self.metrics.text_with(&self.program)),
            // Keys of tensors open the steps of others.
            "/inspect" if !self.metrics.authority.rights(from).has(Right::Admin) => {
                (FORBIDDEN, NOT_ADMIN.to_owned())
            }
            "/inspect" => {
                return Answer {
                    content_type: "application/json",
                    ..Answer::text(OK, waiting(), is_head)
                };
            }
            "/healthz" => match self.metrics.health() {
                Health::Serving => (OK, "serving\n".to_owned()),
                Health::Stopping => (UNAVAILABLE, "stopping\n".to_owned()),
                Health::Failed => (UNAVAILABLE, "failed\n".to_owned()),
            },
            "/livez" => match self.liveness.check() {
                Ok(()) => (OK, "alive\n".to_owned()),
                Err(status) => (UNAVAILABLE, format!("{}\n", status.message)),
            },
            _ => (
                NOT_FOUND,
                "here are /metrics (Prometheus), /inspect (JSON), /healthz and /livez\n".to_owned(),
            ),
        };
        Answer::text(code, text, is_head)
    }

    fn close_all(&self) {
        let mut places = self.places();
        while let Some(stream) = places.take_any() {
            end(&stream);
        }
    }

    fn places(&self) -> MutexGuard<'_, Places<TcpStream, Instant>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Timed {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::Error::from(io::ErrorKind::TimedOut)),
            left => Ok(Some(left)),
        }
    }

    /// Whether the peer begins with a handshake of TLS.
    fn is_tls(&self) -> io::Result<bool> {
        self.stream.set_read_timeout(self.left()?)?;
        let mut first = [0];
        Ok(self.stream.peek(&mut first)? == 1 && first == [FIRST_BYTE_OF_TLS])
    }

    /// Ends the connection, once the peer has had its answer: what it has sent and nobody has read
    /// would take the answer away from it.
    fn leave(mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        self.end = Instant::now() + LEAVE_TIME;
        let mut rest = self.take(METRICS_LEFT_BYTES);
        // Whatever comes of it, the answer is out.
        let _ = io::copy(&mut rest, &mut io::sink());
        Ok(())
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn end(stream: &TcpStream) {
    // It may just have ended by itself.
    let _ = stream.shutdown(Shutdown::Both);
}

/// What a request asks for, or with which code it is refused.
fn read_request(stream: &mut impl Read) -> io::Result<Result<Asked, &'static str>> {
    let mut bytes = [0; METRICS_REQUEST_BYTES];
    let mut length = 0;
    loop {
        if length == bytes.len() {
            return Ok(Err("431 Request Header Fields Too Large"));
        }
        let read = stream.read(&mut bytes[length..])?;
        if read == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        length += read;
        if let Some(asked) = parse(&bytes[..length]) {
            return Ok(asked);
        }
    }
}

/// What a request asks for, if it is there as a whole.
fn parse(bytes: &[u8]) -> Option<Result<Asked, &'static str>> {
    let mut headers = [httparse::EMPTY_HEADER; METRICS_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Ok(httparse::Status::Complete(_)) => Some(match request.method {
            Some(method @ ("GET" | "HEAD")) => Ok(Asked {
                path: request
                    .path
                    .unwrap_or_default()
                    .split('?')
                    .next()?
                    .to_owned(),
                is_head: method == "HEAD",
            }),
            _ => Err("405 Method Not Allowed"),
        }),
        Err(_) => Some(Err("400 Bad Request")),
    }
}

impl Answer {
    /// One in the format of Prometheus, or plain text.
    fn text(code: &'static str, body: String, is_head: bool) -> Self {
        Self {
            code,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body,
            is_head,
        }
    }

    fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.code,
            self.content_type,
            self.body.len()
        );
        stream.write_all(head.as_bytes())?;
        if !self.is_head {
            stream.write_all(self.body.as_bytes())?;
        }
        stream.flush()
    }
}

const OK: &str = "200 OK";
const FORBIDDEN: &str = "403 Forbidden";
const NOT_FOUND: &str = "404 Not Found";
const UNAVAILABLE: &str = "503 Service Unavailable";

/// The kind of the first record of TLS; HTTP begins with a letter.
const FIRST_BYTE_OF_TLS: u8 = 0x16;

const NOT_ADMIN: &str = "what a task waits for is told to those with the right admin: see \
                         GRPCXX_ADMIN and docs/security.md\n";

const PLAIN: &str = "it came without TLS, which GRPCXX_TLS=require asks for";

/// How long to wait before accepting again when the process has run out of what connections need.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// How long what a peer still sends is taken after its answer.
const LEAVE_TIME: Duration = Duration::from_secs(1);
