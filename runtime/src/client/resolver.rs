//! Looks up the addresses of hosts on threads of its own, since a look-up can take seconds.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Finds the addresses of a host.
///
/// An engine asks before each dial of a peer whose address has a name, so it finds a task that was
/// started again elsewhere.
///
/// Look-ups run on threads that belong to nobody else, so they may block; several may run at once.
pub trait Resolve: Send + Sync {
    /// The addresses of `host`, each with `port`, best first. The engine dials them one after the
    /// other.
    ///
    /// # Errors
    /// Why there is none. The dial then counts as failed, and a later one asks again.
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Asks the system, as `getaddrinfo` does. Its IPv4 addresses come before the others.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

/// Runs look-ups on a few threads, which end when nothing waits. A peer has at most one look-up
/// under way, so the limit of peers is the limit of what waits.
#[derive(Clone)]
pub(crate) struct Lookups {
    resolve: Arc<dyn Resolve>,
    queue: Arc<Mutex<Queue>>,
}

/// What a look-up has found.
pub(crate) type Found = Result<Vec<SocketAddr>, String>;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Lookup>,
    threads: usize,
}

struct Lookup {
    host: String,
    port: u16,
    tell: Box<dyn FnOnce(Found) + Send>,
}

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(ipv4_first((host, port).to_socket_addrs()?.collect()))
    }
}

/// Tasks listen on IPv4 unless their address says IPv6, and originals know nothing else.
fn ipv4_first(mut addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses
}

impl Lookups {
    pub(crate) fn new(resolve: Arc<dyn Resolve>) -> Self {
        Self {
            resolve,
            queue: Arc::default(),
        }
    }

    /// Looks a host up; `tell` hears the outcome on one of the threads, or at once if the system
    /// gives no thread.
    pub(crate) fn begin(&self, host: &str, port: u16, tell: Box<dyn FnOnce(Found) + Send>) {
        let mut queue = self.queue();
        queue.waiting.push_back(Lookup {
            host: host.to_owned(),
            port,
            tell,
        });
        if queue.threads >= THREADS_MAX {
            return;
        }
        queue.threads += 1;
        drop(queue);
        let lookups = self.clone();
        let name = "grpcxx-resolver".to_owned();
        if let Err(error) = thread::Builder::new()
            .name(name)
            .spawn(move || lookups.run())
        {
            let mut queue = self.queue();
            queue.threads -= 1;
            let abandoned = if queue.threads == 0 {
                std::mem::take(&mut queue.waiting)
            } else {
                VecDeque::new()
            };
            drop(queue);
            for lookup in abandoned {
                (lookup.tell)(Err(format!("there is no thread for the look-up: {error}")));
            }
        }
    }

    fn run(&self) {
        while let Some(lookup) = self.next() {
            let ask = || self.resolve.resolve(&lookup.host, lookup.port);
            let found = catch_unwind(AssertUnwindSafe(ask));
            (lookup.tell)(match found {
                Ok(Ok(addresses)) if addresses.is_empty() => {
                    Err("the name has no address".to_owned())
                }
                Ok(Ok(addresses)) => Ok(addresses),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_panic) => Err("the resolver panicked".to_owned()),
            });
        }
    }

    /// The next look-up for a thread, which ends without one.
    fn next(&self) -> Option<Lookup> {
        let mut queue = self.queue();
        let lookup = queue.waiting.pop_front();
        if lookup.is_none() {
            queue.threads -= 1;
        }
        lookup
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Lookups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookups").finish_non_exhaustive()
    }
}

/// Most look-ups that run at a time: one that hangs leaves room for others.
const THREADS_MAX: usize = 8;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    /// Knows hosts by what the test wants of them.
    #[derive(Default)]
    struct Scripted {
        /// Whether the slow look-ups may end.
        released: AtomicBool,
    }

    impl Resolve for Scripted {
        fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            match host {
                "known" => Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))]),
                "empty" => Ok(Vec::new()),
                "broken" => panic!("asked to panic"),
                "slow" => {
                    while !self.released.load(Ordering::Acquire) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    Err(io::ErrorKind::TimedOut.into())
                }
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    fn ask(lookups: &Lookups, host: &'static str, results: &Sender<(&'static str, Found)>) {
        let results = results.clone();
        let tell = Box::new(move |found| results.send((host, found)).unwrap());
        lookups.begin(host, 7777, tell);
    }

    #[test]
    fn checklist_22_hosts_are_dialled_over_ipv4_first() {
        let all = ["[::1]:5", "10.0.0.1:5", "[2001:db8::1]:5", "10.0.0.2:5"];
        let sorted = ["10.0.0.1:5", "10.0.0.2:5", "[::1]:5", "[2001:db8::1]:5"];
        let parse = |text: &str| text.parse().unwrap();
        let found = ipv4_first(all.map(parse).to_vec());
        assert_eq!(found, sorted.map(parse));
    }

    #[test]
    fn each_lookup_ends_once_and_a_slow_one_holds_up_nobody() {
        let script = Arc::new(Scripted::default());
        let lookups = Lookups::new(script.clone());
        let (sender, results) = channel();
        for _ in 0..THREADS_MAX - 1 {
            ask(&lookups, "slow", &sender);
        }
        for host in ["known", "empty", "broken", "missing"] {
            ask(&lookups, host, &sender);
        }
        drop(sender);
        let mut quick: Vec<_> = results.iter().take(4).collect();
        quick.sort_by_key(|(host, _)| *host);
        let hosts: Vec<_> = quick.iter().map(|(host, _)| *host).collect();
        assert_eq!(hosts, ["broken", "empty", "known", "missing"]);
        assert_eq!(quick[0].1, Err("the resolver panicked".to_owned()));
        assert_eq!(quick[1].1, Err("the name has no address".to_owned()));
        assert_eq!(
            quick[2].1,
            Ok(vec![SocketAddr::from(([10, 0, 0, 1], 7777))])
        );
        assert!(quick[3].1.is_err());
        script.released.store(true, Ordering::Release);
        assert_eq!(results.iter().count(), THREADS_MAX - 1);
    }

    #[test]
    fn threads_end_when_nothing_waits() {
        let lookups = Lookups::new(Arc::new(Scripted::default()));
        let (sender, results) = channel();
        for _ in 0..3 * THREADS_MAX {
            ask(&lookups, "known", &sender);
        }
        drop(sender);
        assert_eq!(results.iter().count(), 3 * THREADS_MAX);
        for _ in 0..1000 {
            if lookups.queue().threads == 0 {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("{} threads are left", lookups.queue().threads);
    }
}
