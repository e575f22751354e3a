use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use grpcxx_rdma::{NearPeers, RdmaLinks, RdmaMedium, RdmaOptions, VerbsAdapter};
use grpcxx_tcp::{Accepted, TcpOptions, TcpTransport};
use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::{LinkId, Migrating, Park, Time, Transport};

use crate::gpu::Gpu;
use crate::talker::{HEAD, Talker};
use crate::world::has_device;

struct Side {
    transport: Ledger<Migrating<TcpTransport, RdmaMedium<VerbsAdapter>>>,
    talker: Talker<Accepted>,
}

fn side(name: &str, gpu: Option<&Arc<Gpu>>) -> Side {
    let (tcp, _) = TcpTransport::open(TcpOptions::default()).expect("TCP can be had everywhere");
    let mut transport = Migrating::new(tcp);
    let adapter = VerbsAdapter::open(&RdmaOptions::default()).expect("there is a device");
    let mut links = RdmaLinks::new(adapter, RdmaOptions::default());
    let mut talker = Talker::new(None);
    if let Some(gpu) = gpu.cloned() {
        let refusal = links.register_device(Arc::clone(&gpu) as _).unwrap_err();
        assert!(refusal.to_string().contains("device memory"), "{refusal}");
        talker.gpu = Some(gpu);
    }
    let medium = RdmaMedium::new(links, NearPeers::LeaveToBase);
    transport.enable(medium).expect("a device is watched");
    Side {
        transport: Ledger::new(transport, name),
        talker,
    }
}

/// Sides that sleep whenever they may, as shards do.
#[test]
fn a_tcp_link_moves_under_its_stream_and_wakes_sleepers() {
    if has_device() {
        exchange(None);
    }
}

/// Without GPUDirect, which the memory of the test has not, the same stream comes from copies on
/// the host.
#[test]
fn payload_in_device_memory_that_cannot_be_registered_takes_the_staging_path() {
    if has_device() {
        let gpu = Gpu::with_stripes(100_000);
        exchange(Some(&gpu));
        assert_eq!(gpu.copies.load(Ordering::Relaxed), 600);
    }
}

fn exchange(gpu: Option<&Arc<Gpu>>) {
    let mut sides = [side("dialler", gpu), side("acceptor", gpu)];
    let start = Instant::now();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let (_, address) = sides[1].transport.listen(address).expect("a free port");
    let near = sides[0].transport.connect(address).expect("a dial");
    sides[0].talker.links.entry(near).or_default();
    let mut links = [Some(near), None::<LinkId>];
    let mut sent = 0;
    let mut read = 0;
    while read < 300 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "stuck after {read} frames, {sent} sent"
        );
        for Side { transport, talker } in &mut sides {
            transport.turn(Time::ZERO + start.elapsed(), talker);
            if let Some(accepted) = talker.accepted.pop_front() {
                let link = transport.adopt(accepted, HEAD).expect("there is room");
                talker.links.entry(link).or_default().is_open = true;
                links[1] = Some(link);
            }
            transport
                .park(Some(Duration::from_millis(1)))
                .expect("it can sleep");
        }
        let [Some(near), Some(far)] = links else {
            continue;
        };
        if !sides[0].talker.links[&near].is_open {
            continue;
        }
        if sent == 100
            && let Some(offer) = sides[1].transport.offer(far)
        {
            sides[0].transport.upgrade(near, &offer);
        }
        if sent < 300 {
            let size = [10, 3000, 100_000][sent % 3];
            for (side, link) in sides.iter_mut().zip([near, far]) {
                let frame = side.talker.frame(link, size);
                assert!(side.transport.send(link, frame).is_ok());
            }
            sent += 1;
        }
        read = (sides[0].talker.links[&near].read).min(sides[1].talker.links[&far].read);
    }
    for side in &mut sides {
        let counters = side
            .transport
            .inner()
            .medium()
            .expect("it is on")
            .counters();
        assert!(counters.messages_sent > 0, "it did not migrate");
    }
}
