//! The hosts of the tasks of the cluster spec, and the addresses that they have now.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use crate::client::{Found, Lookups};

/// Where the tasks of the cluster are. Names are looked up on threads of the resolver: when the
/// engine starts, and again when somebody connects who is at none of the known addresses.
#[derive(Debug, Default)]
pub(super) struct TaskHosts {
    /// Hosts whose address the cluster spec names.
    written: BTreeSet<IpAddr>,
    names: Vec<String>,
    known: Mutex<Known>,
    has_looked: Condvar,
    /// How often the addresses of a name have changed.
    changes: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    by_name: HashMap<usize, Vec<IpAddr>, RandomState>,
    /// How many names have each address.
    addresses: HashMap<IpAddr, usize, RandomState>,
    began: Option<Instant>,
    /// The name that is looked up next.
    next: usize,
    /// Names whose look-up has not ended.
    pending: usize,
}

impl TaskHosts {
    pub(super) fn new(hosts: &[String]) -> Self {
        let hosts: BTreeSet<&str> = hosts.iter().map(String::as_str).collect();
        let mut task_hosts = Self::default();
        for host in hosts {
            match host.parse::<IpAddr>() {
                Ok(address) => _ = task_hosts.written.insert(address.to_canonical()),
                Err(_) => task_hosts.names.push(host.to_owned()),
            }
        }
        task_hosts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty() && self.names.is_empty()
    }

    pub(super) fn contain(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.written.contains(&address)
            || (!self.names.is_empty() && self.lock().addresses.contains_key(&address))
    }

    #[inline]
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Looks all names up, unless that is under way or was done a moment ago.
    pub(super) fn look_up(self: &Arc<Self>, lookups: &Lookups) {
        if self.names.is_empty() {
            return;
        }
        {
            let mut known = self.lock();
            let is_recent = known
                .began
                .is_some_and(|at| at.elapsed() < LOOK_AGAIN_AFTER);
            if known.pending > 0 || is_recent {
                return;
            }
            known.began = Some(Instant::now());
            known.next = 0;
            known.pending = self.names.len();
        }
        // Others of the process wait for the same threads.
        for _ in 0..LOOKUPS_AT_A_TIME {
            self.look_up_next(lookups);
        }
    }

    /// Waits until all names were looked up once, but not for long.
    pub(super) fn wait(&self, patience: Duration) {
        let is_pending = |known: &mut Known| known.pending > 0;
        let waited = self
            .has_looked
            .wait_timeout_while(self.lock(), patience, is_pending);
        drop(waited);
    }

    fn look_up_next(self: &Arc<Self>, lookups: &Lookups) {
        let index = {
            let mut known = self.lock();
            known.next += 1;
            known.next - 1
        };
        let Some(name) = self.names.get(index) else {
            return;
        };
        let (this, more) = (Arc::clone(self), lookups.clone());
        let tell = move |found: Found| {
            this.found(index, found);
            this.look_up_next(&more);
        };
        lookups.begin(name, ANY_PORT, Box::new(tell));
    }

    /// Notes what a look-up has found. Where it has failed, the addresses of before stay.
    fn found(&self, index: usize, found: Found) {
        let mut known = self.lock();
        let known = &mut *known;
        match found {
            Ok(found) => {
                let ip = |address: &SocketAddr| address.ip().to_canonical();
                let now: BTreeSet<IpAddr> = found.iter().map(ip).collect();
                let now: Vec<IpAddr> = now.into_iter().collect();
                let before = known.by_name.insert(index, now.clone());
                if before.as_ref() != Some(&now) {
                    for address in now {
                        *known.addresses.entry(address).or_default() += 1;
                    }
                    for address in before.into_iter().flatten() {
                        known.forget(address);
                    }
                    self.changes.fetch_add(1, Ordering::Release);
                }
            }
            Err(error) => {
                let host = &self.names[index];
                tracing::debug!(
                    host,
                    error,
                    "the host of a task of the cluster is not known"
                );
            }
        }
        known.pending -= 1;
        if known.pending == 0 {
            self.has_looked.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn forget(&mut self, address: IpAddr) {
        if let Some(names) = self.addresses.get_mut(&address) {
            *names -= 1;
            if *names == 0 {
                self.addresses.remove(&address);
            }
        }
    }
}

/// Addresses are looked up for who comes from them, on whatever port.
const ANY_PORT: u16 = 0;

/// Shortest time between two looks at all names.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

const LOOKUPS_AT_A_TIME: usize = 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io;

    use super::*;
    use crate::client::Resolve;

    /// Every name has this address.
    struct At(Mutex<Option<IpAddr>>);

    impl Resolve for At {
        fn resolve(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            let address = *self.0.lock().unwrap();
            let address = address.ok_or(io::ErrorKind::NotFound)?;
            Ok(vec![SocketAddr::new(address, port)])
        }
    }

    fn hosts(names: &[&str]) -> Arc<TaskHosts> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Arc::new(TaskHosts::new(&names))
    }

    fn look(hosts: &Arc<TaskHosts>, lookups: &Lookups) {
        hosts.lock().began = None;
        hosts.look_up(lookups);
        hosts.wait(Duration::from_secs(20));
    }

    #[test]
    fn addresses_need_no_look_up() {
        let hosts = hosts(&["10.0.0.1", "2001:db8::1", "10.0.0.1"]);
        assert!(hosts.contain("::ffff:10.0.0.1".parse().unwrap()));
        assert!(hosts.contain("2001:db8::1".parse().unwrap()));
        assert!(!hosts.contain("10.0.0.2".parse().unwrap()));
        assert!(hosts.names.is_empty() && !hosts.is_empty());
    }

    #[test]
    fn a_name_that_moves_takes_its_membership_along() {
        let [here, there] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let resolver = Arc::new(At(Mutex::new(Some(here))));
        let lookups = Lookups::new(resolver.clone());
        let hosts = hosts(&["ps-0", "ps-1", "ps-2"]);
        look(&hosts, &lookups);
        assert!(hosts.contain(here) && !hosts.contain(there));
        let changes = hosts.changes();
        *resolver.0.lock().unwrap() = Some(there);
        // Not asked again at once.
        hosts.look_up(&lookups);
        assert!(hosts.contain(here));
        look(&hosts, &lookups);
        assert!(!hosts.contain(here) && hosts.contain(there));
        assert!(hosts.changes() > changes);
        // A resolver that fails takes nothing away.
        *resolver.0.lock().unwrap() = None;
        look(&hosts, &lookups);
        assert!(hosts.contain(there));
    }
}
