//! Links that do nothing, by the thousand.

mod support;

use std::sync::{Mutex, PoisonError};

use grpcxx_memory::Buffer;
use grpcxx_tcp::DriverRequest;
use grpcxx_transport::Transport;
use rustix::process::{Resource, getrlimit, setrlimit};
use support::*;

for_each_driver! {
    fn thousands_of_idle_links_cost_little(driver) {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Both ends of each link are ours.
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
        let links = (limit.maximum.unwrap_or(30_000).min(30_000) as usize - 200) / 2;
        let links = links.min(10_000) / 100 * 100;
        let (mut a, mut b) = (Side::new(driver), Side::new(driver));
        let address = b.listen();
        let payload = Buffer::from(pattern(300, 0));
        let before = resident_bytes();
        let mut there = Vec::new();
        for _ in 0..links / 100 {
            there.extend((0..100).map(|_| a.transport.connect(address).unwrap()));
            let goal = there.len();
            both(&mut a, &mut b, "connected", |a, b| a.connected.len() == goal && b.accepted.len() == 100);
            for _ in 0..100 {
                b.adopt();
            }
        }
        for &link in &there {
            assert!(a.send(link, 0, &payload));
        }
        both(&mut a, &mut b, "all was used", |_, b| b.messages.len() == links);
        b.seen.messages = Default::default();
        let each = (resident_bytes() - before) / (2 * links);
        assert!(each < 8 << 10, "{each} bytes of this process for each idle link");
    }
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// There are not descriptors enough for two such tests.
static ALONE: Mutex<()> = Mutex::new(());
