//! How an engine starts that a program in another language holds.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::exposition::{MetricsPage, ProgramPage, ToldMore};
use grpcxx_runtime::{Engine, EngineError, EngineOptions, proxies};

use crate::boundary::invalid;
use crate::log;

/// Reads where an engine shall listen: an address, or a name of this host, which is looked up.
///
/// # Errors
/// `INVALID_ARGUMENT` if the text is neither with a port, or nobody knows the name.
pub fn listen_address(text: &str) -> Result<SocketAddr, Status> {
    let refused = |why: &dyn Display| {
        invalid(format!(
            "cannot listen on \"{text}\"{why}; write an IP address or a name of this host, and a \
             port, as in 0.0.0.0:0"
        ))
    };
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| refused(&format_args!(" ({error})")))?;
    found.next().ok_or_else(|| refused(&""))
}

/// Starts an engine, and tells the log what it has, and whether strangers can reach it. It serves
/// nobody before it is opened.
///
/// # Errors
/// `FAILED_PRECONDITION` if the engine does not start. What it logged is written by then.
pub fn start(options: EngineOptions) -> Result<Engine, Status> {
    let tasks = options.policy.tasks.clone();
    let engine = Engine::start_closed(options).map_err(failed)?;
    tracing::info!("{}", engine.start_report());
    if let Some(warning) = proxies::warning(tasks, |name| std::env::var(name).ok()) {
        tracing::warn!("{warning}");
    }
    if let Some(star) = engine.local_addr()
        && star.ip().is_unspecified()
        && engine.authority().is_open()
    {
        tracing::warn!(
            %star,
            "whoever reaches this machine may read what this task holds and take part in its steps; \
             set GRPCXX_TOKEN_FILE, GRPCXX_ALLOW or GRPCXX_MEMBERS, or listen on the address \
             of the cluster's network"
        );
    }
    Ok(engine)
}

/// Lets those in who have come to an engine.
///
/// # Errors
/// As of [`start`].
pub fn open(engine: &Engine) -> Result<(), Status> {
    engine.open().map_err(failed)
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of `map_err`")]
fn failed(error: EngineError) -> Status {
    log::flush();
    Status::new(Code::FailedPrecondition, error.to_string())
}

/// What a program in another language tells of its engine: to peers that ask, and on a page.
pub struct Page {
    page: Option<MetricsPage>,
    /// The address that the configuration names, until the page is gone.
    wanted: Option<SocketAddr>,
    _told: ToldMore,
}

impl Page {
    /// Tells peers, and serves the numbers of an engine that listens, if the configuration names an
    /// address. One page of a process serves an address: engines that start later go without.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if something else listens there.
    pub fn start(
        engine: &Engine,
        address: Option<SocketAddr>,
        program: ProgramPage,
    ) -> Result<Self, Status> {
        let mut this = Self {
            page: None,
            wanted: None,
            _told: engine.tell_more(program.clone()),
        };
        let (Some(wanted), Some(_)) = (address, engine.local_addr()) else {
            return Ok(this);
        };
        let mut served = served();
        if served.contains(&wanted) {
            tracing::warn!(
                address = %wanted,
                "another engine of this process serves metrics there: this one has no metrics page"
            );
            return Ok(this);
        }
        let page = MetricsPage::start(wanted, engine.exposition(), engine.certificates(), program);
        let page = page.map_err(|error| {
            log::flush();
            let text = format!(
                "cannot serve metrics on {wanted}: {error}; give each process an address of its \
                 own in GRPCXX_METRICS_ADDRESS, or port 0 for a free one"
            );
            Status::new(Code::FailedPrecondition, text)
        })?;
        if wanted.port() != 0 {
            served.insert(wanted);
        }
        tracing::info!("metrics on http://{}/metrics", page.address());
        (this.page, this.wanted) = (Some(page), Some(wanted));
        Ok(this)
    }

    /// Where the page listens, if there is one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.page.as_ref().map(MetricsPage::address)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // First: an engine that starts at this moment must not find the address free and in use.
        drop(self.page.take());
        if let Some(wanted) = &self.wanted {
            served().remove(wanted);
        }
    }
}

fn served() -> MutexGuard<'static, BTreeSet<SocketAddr>> {
    SERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where this process serves metrics.
static SERVED: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
