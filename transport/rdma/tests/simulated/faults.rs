use std::net::SocketAddr;
use std::time::Duration;

use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rdma::sim::{SimAdapter, SimFabric, SimFabricOptions};
use grpcxx_rdma::{RdmaLinks, RdmaOptions, RdmaTransport};
use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimOptions, SimTransport};
use grpcxx_transport::{CloseReason, LinkId, Time, Transport};

use crate::talker::{HEAD, Talker};
use crate::world::{host, seeds};

/// Two hosts whose links can be broken in every way that a device knows.
struct Pair {
    network: SimNetwork,
    fabric: SimFabric,
    sides: [Side; 2],
    addresses: [SocketAddr; 2],
    now: Time,
}

struct Side {
    transport: Ledger<RdmaTransport<SimAdapter, SimTransport>>,
    talker: Talker<SimAccepted>,
}

impl Pair {
    fn new(seed: u64, network: SimOptions, fabric: SimFabricOptions, options: RdmaOptions) -> Self {
        let network = SimNetwork::new(network);
        let fabric = SimFabric::new(fabric);
        let mut addresses = [SocketAddr::from(([0, 0, 0, 0], 0)); 2];
        let sides = [0, 1].map(|side| {
            let links = RdmaLinks::new(fabric.adapter(), options.clone());
            let transport = RdmaTransport::new(links, network.transport(host(side)));
            let mut transport = Ledger::new(transport, format!("GRPCXX_SEED={seed}, side {side}"));
            let listening = transport.listen(SocketAddr::new(host(side), 0));
            addresses[side] = listening.expect("the port is free").1;
            Side {
                transport,
                talker: Talker::new(Some(fabric.clone())),
            }
        });
        Self {
            network,
            fabric,
            sides,
            addresses,
            now: Time::ZERO,
        }
    }

    fn reliable(seed: u64, options: RdmaOptions) -> Self {
        let fabric = SimFabricOptions::reliable(seed);
        Self::new(seed, SimOptions::reliable(seed), fabric, options)
    }

    /// Goes on to the next event, or a little.
    fn turn(&mut self) {
        let next = [self.network.next_event_at(), self.fabric.next_event_at()];
        let little = self.now + Duration::from_micros(200);
        let next = next.into_iter().flatten().min().unwrap_or(little);
        self.now = self.now.max(next).min(little);
        for Side { transport, talker } in &mut self.sides {
            transport.turn(self.now, talker);
            while let Some(accepted) = talker.accepted.pop_front() {
                if let Ok(link) = transport.adopt(accepted, HEAD) {
                    talker.links.entry(link).or_default().is_open = true;
                }
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.turn();
        }
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let start = self.now;
        let mut turns = 0;
        while !holds(self) {
            self.turn();
            turns += 1;
            assert!(turns < 1_000_000, "time stands still until {what}");
            assert!(
                self.now.since(start) < Duration::from_secs(20),
                "in vain until {what}"
            );
        }
    }

    /// A link from side 0 to side 1, as both know it.
    fn open(&mut self) -> [LinkId; 2] {
        let known: Vec<LinkId> = self.sides[1].talker.links.keys().copied().collect();
        let near = self.dial(0);
        self.until("the link is open", |pair| {
            pair.sides[0].talker.links[&near].is_open
        });
        let far = (self.sides[1].talker.links.keys()).find(|link| !known.contains(link));
        [near, *far.expect("the dial was accepted")]
    }

    fn dial(&mut self, side: usize) -> LinkId {
        let address = self.addresses[1 - side];
        let Side { transport, talker } = &mut self.sides[side];
        let link = transport.connect(address).expect("a dial can start");
        talker.links.entry(link).or_default();
        link
    }

    fn send(&mut self, side: usize, link: LinkId, payload_bytes: usize) {
        let Side { transport, talker } = &mut self.sides[side];
        let frame = talker.frame(link, payload_bytes);
        if transport.send(link, frame).is_err() {
            talker.links.get_mut(&link).expect("known").sent -= 1;
        }
    }

    fn adapter(&mut self, side: usize) -> &mut SimAdapter {
        let transport = self.sides[side].transport.inner_mut();
        transport.links_mut().adapter_mut()
    }

    fn closed(&self, side: usize, link: LinkId) -> Option<&CloseReason> {
        self.sides[side].talker.links[&link].closed.as_ref()
    }

    /// Closes what is open and checks that nothing stays behind.
    fn settle(mut self) {
        for side in &mut self.sides {
            let links: Vec<LinkId> = side.transport.links().collect();
            for link in links {
                side.transport.close(link, false);
            }
        }
        self.until("all links are gone", |pair| {
            (pair.sides.iter()).all(|side| side.transport.links().next().is_none())
        });
        for side in &self.sides {
            side.transport.assert_settled();
        }
        assert_eq!(self.fabric.queue_count(), 0, "a queue was left behind");
        self.run_for(Duration::from_millis(20));
        drop(self.sides);
        assert_eq!(
            self.fabric.registration_count(),
            0,
            "a registration was left behind"
        );
    }
}

fn failed(reason: Option<&CloseReason>) -> String {
    match reason {
        Some(CloseReason::Failed(error)) => error.to_string(),
        other => panic!("the link should have failed, but: {other:?}"),
    }
}

#[test]
fn a_key_that_is_revoked_ends_the_link_at_both_ends() {
    for seed in seeds(5) {
        let mut pair = Pair::reliable(seed, RdmaOptions::default());
        let links = pair.open();
        pair.run_for(Duration::from_millis(1));
        pair.adapter(0).revoke_all();
        pair.send(0, links[0], 300_000);
        // The key is made when the payload is offered, so it is revoked right behind that.
        for _ in 0..50 {
            pair.adapter(0).revoke_all();
            pair.turn();
        }
        pair.until("both ends are closed", |pair| {
            pair.closed(0, links[0]).is_some() && pair.closed(1, links[1]).is_some()
        });
        assert!(failed(pair.closed(1, links[1])).contains("remote access error"));
        let talk = &pair.sides[0].talker.links[&links[0]];
        assert_eq!((talk.left, talk.lost), (1, 0), "it may have been read");
        assert_eq!(pair.sides[1].talker.links[&links[1]].landings_lost, 1);
        pair.settle();
    }
}

#[test]
fn a_peer_that_answers_no_more_ends_the_link() {
    for seed in seeds(5) {
        let mut pair = Pair::reliable(seed, RdmaOptions::default());
        let links = pair.open();
        pair.run_for(Duration::from_millis(1));
        // Its device is gone, but its connection beside the link is not.
        pair.adapter(1).remove();
        pair.send(0, links[0], 100);
        pair.until("the near end is closed", |pair| {
            pair.closed(0, links[0]).is_some()
        });
        pair.settle();
    }
}

#[test]
fn a_device_that_is_removed_ends_its_links_soon() {
    for seed in seeds(5) {
        let mut pair = Pair::reliable(seed, RdmaOptions::default());
        let links = [pair.open(), pair.open()];
        for [near, far] in links {
            pair.send(0, near, 1 << 20);
            pair.send(1, far, 1 << 20);
        }
        pair.turn();
        let start = pair.now;
        pair.adapter(0).remove();
        pair.until("all links of the device are closed", |pair| {
            links.iter().all(|link| pair.closed(0, link[0]).is_some())
        });
        assert!(
            pair.now.since(start) < Duration::from_millis(50),
            "a caller may go back to TCP within 50 ms"
        );
        for link in links {
            assert!(failed(pair.closed(0, link[0])).contains("removed"));
        }
        pair.settle();
    }
}

/// The descriptor of a device may have been readable before the shard sleeps, and is not again.
#[test]
fn nobody_sleeps_through_a_fault_that_was_told_before() {
    let mut pair = Pair::reliable(1, RdmaOptions::default());
    let [near, _] = pair.open();
    pair.run_for(Duration::from_millis(5));
    let may_sleep = |pair: &mut Pair| pair.sides[0].transport.inner_mut().links_mut().arm();
    assert!(may_sleep(&mut pair));
    let (now, side) = (pair.now, &mut pair.sides[0]);
    side.transport.turn(now, &mut side.talker);
    pair.adapter(0).remove();
    // Within the time in which the device is not asked again.
    let side = &mut pair.sides[0];
    side.transport.turn(now, &mut side.talker);
    assert!(!may_sleep(&mut pair), "there is a fault to tell of");
    pair.until("the link is closed", |pair| pair.closed(0, near).is_some());
    assert!(failed(pair.closed(0, near)).contains("removed"));
}

#[test]
fn lost_completions_end_the_links() {
    for seed in seeds(5) {
        let mut pair = Pair::reliable(seed, RdmaOptions::default());
        let links = pair.open();
        pair.send(0, links[0], 1 << 20);
        pair.turn();
        pair.adapter(1).overrun();
        pair.until("both ends are closed", |pair| {
            pair.closed(0, links[0]).is_some() && pair.closed(1, links[1]).is_some()
        });
        assert!(failed(pair.closed(1, links[1])).contains("overrun"));
        pair.settle();
    }
}

#[test]
fn memory_comes_back_after_its_queue_is_gone() {
    for seed in seeds(20) {
        let mut pair = Pair::reliable(seed, RdmaOptions::default());
        let links = pair.open();
        for _ in 0..10 {
            pair.send(0, links[0], 1 << 20);
        }
        for _ in 0..seed * 3 {
            pair.turn();
        }
        assert_eq!(pair.fabric.queue_count(), 2);
        // The reader is in the middle of a payload when the sender goes.
        let side = (seed % 2) as usize;
        pair.sides[side].transport.close(links[side], false);
        pair.until("both ends are closed", |pair| {
            pair.closed(0, links[0]).is_some() && pair.closed(1, links[1]).is_some()
        });
        let first = &pair.sides[side].talker;
        let second = &pair.sides[1 - side].talker;
        assert!(
            first.queues_at_loss.iter().all(|queues| *queues == 1)
                && second.queues_at_loss.iter().all(|queues| *queues == 0),
            "memory came back while a queue could touch it, GRPCXX_SEED={seed}"
        );
        pair.settle();
    }
}

#[test]
fn payload_of_an_arena_is_read_without_a_copy_and_without_a_registration() {
    let mut pair = Pair::reliable(1, RdmaOptions::default());
    let links = pair.open();
    let options = ArenaOptions::default().with(|options| {
        options.capacity_bytes = 8 << 20;
        options.huge_pages = false;
    });
    let mut arena = Arena::new(options).expect("an arena");
    let transport = pair.sides[0].transport.inner_mut();
    let registered = transport.register_arena(&mut arena);
    assert_eq!(registered.expect("there is room"), 8 << 20);
    let mut payload = arena.allocate(20_000).expect("there is room");
    payload.fill(0);
    let mut frame = pair.sides[0].talker.frame(links[0], 0);
    frame.bytes_mut()[4..8].copy_from_slice(&20_000u32.to_le_bytes());
    frame.attach(payload.freeze());
    let sent = pair.sides[0].transport.send(links[0], frame);
    assert!(sent.is_ok());
    pair.until("the payload is read", |pair| {
        pair.sides[1].talker.links[&links[1]].read == 1
    });
    let counters = pair.sides[0].transport.inner_mut().counters();
    assert_eq!((counters.offers_sent, counters.registration_misses), (1, 0));
    // The landing was foreign and short, so it was read through staging memory.
    let counters = pair.sides[1].transport.inner_mut().counters();
    assert_eq!(
        (counters.read_bytes, counters.staged_read_bytes),
        (0, 20_000)
    );
    drop(arena);
    pair.settle();
}

#[test]
fn pieces_are_read_beside_each_other_and_arrive_in_order() {
    for seed in seeds(5) {
        let mut fabric = SimFabricOptions::reliable(seed);
        fabric.latency_min = Duration::from_micros(50);
        fabric.latency_max = Duration::from_micros(60);
        let network = SimOptions::reliable(seed);
        let mut pair = Pair::new(seed, network, fabric, RdmaOptions::default());
        let links = pair.open();
        for _ in 0..40 {
            pair.send(0, links[0], 64 << 10);
            pair.send(0, links[0], 300);
        }
        pair.until("all frames are read", |pair| {
            pair.sides[1].talker.links[&links[1]].read == 80
        });
        let counters = pair.sides[1].transport.inner_mut().counters();
        assert!(counters.reads_beside >= 20, "{counters:?}");
        pair.until("all frames came back", |pair| {
            pair.sides[0].talker.links[&links[0]].left == 80
        });
        let releases = pair.sides[1]
            .transport
            .inner_mut()
            .counters()
            .immediates_sent;
        assert!(releases <= 30, "{releases} grants for 40 pieces");
        pair.settle();
    }
}

#[test]
fn too_little_lockable_memory_registers_less_and_everything_works() {
    let options = RdmaOptions::default().with(|options| options.registered_bytes = 64 << 20);
    let fabric = SimFabricOptions {
        lockable_bytes: 6 << 20,
        ..SimFabricOptions::reliable(3)
    };
    let mut pair = Pair::new(3, SimOptions::reliable(3), fabric, options);
    let arena_options = ArenaOptions::default().with(|options| {
        options.capacity_bytes = 64 << 20;
        options.huge_pages = false;
    });
    let mut arena = Arena::new(arena_options).expect("an arena");
    let transport = pair.sides[0].transport.inner_mut();
    let registered = transport.register_arena(&mut arena).expect("an anchor");
    assert_eq!(registered, 4 << 20, "as much as may be locked, by halves");
    let links = pair.open();
    for size in [100, 10_000, 3 << 20, 8 << 20] {
        pair.send(0, links[0], size);
        pair.send(1, links[1], size);
    }
    pair.until("all frames are read", |pair| {
        pair.sides[1].talker.links[&links[1]].read == 4
            && pair.sides[0].talker.links[&links[0]].read == 4
    });
    let counters = pair.sides[0].transport.inner_mut().counters();
    assert!(counters.registrations_refused > 0);
    pair.settle();
}

#[test]
fn a_tensor_sent_to_many_peers_is_registered_once() {
    let mut pair = Pair::reliable(4, RdmaOptions::default());
    let links: Vec<[LinkId; 2]> = (0..8).map(|_| pair.open()).collect();
    let payload = grpcxx_memory::Buffer::from(vec![0; 1 << 20]);
    for [near, _] in &links {
        let mut frame = pair.sides[0].talker.frame(*near, 0);
        frame.bytes_mut()[4..8].copy_from_slice(&(1u32 << 20).to_le_bytes());
        frame.attach(payload.clone());
        assert!(pair.sides[0].transport.send(*near, frame).is_ok());
    }
    pair.until("all peers have read it", |pair| {
        (links.iter()).all(|[_, far]| pair.sides[1].talker.links[far].read == 1)
    });
    let counters = pair.sides[0].transport.inner_mut().counters();
    assert_eq!(
        (counters.registration_misses, counters.registration_hits),
        (1, 7)
    );
    pair.run_for(Duration::from_millis(20));
    assert!(
        payload.try_into_mut().is_ok(),
        "the memory is not kept for long"
    );
    pair.settle();
}

#[test]
fn every_operation_ends_once_whatever_fails() {
    for seed in seeds(150) {
        let mut random = fastrand::Rng::with_seed(seed);
        let network = SimOptions {
            cut_chance: random.f64() * 0.3,
            half_close_chance: random.f64() * 0.1,
            connect_failure_chance: random.f64() * 0.2,
            ..SimOptions::reliable(seed)
        };
        let fabric = SimFabricOptions {
            loss_chance: random.f64() * 0.002,
            refusal_chance: random.f64() * 0.01,
            lockable_bytes: random.usize(32 << 20..256 << 20),
            ..SimFabricOptions::reliable(seed)
        };
        let options = RdmaOptions::default().with(|options| {
            options.message_bytes = random.usize(256..10_000);
            options.offer_bytes_min = random.usize(64..10_000);
            options.foreign_bytes_min = random.usize(1..50_000);
            options.foreign_entries = random.usize(1..20);
            options.chunk_bytes = random.usize(4096..100_000);
        });
        let mut pair = Pair::new(seed, network, fabric, options);
        for step in 0..1500 {
            let side = random.usize(..2);
            let open: Vec<LinkId> = (pair.sides[side].talker.links.iter())
                .filter(|(_, talk)| talk.is_open)
                .map(|(link, _)| *link)
                .collect();
            let link = (!open.is_empty()).then(|| open[random.usize(..open.len())]);
            match (random.u8(..20), link) {
                (0, _) if open.len() < 20 => {
                    pair.dial(side);
                }
                (1..8, Some(link)) => {
                    let bits = random.u32(..18);
                    pair.send(side, link, random.usize(..1 << bits));
                }
                (8, Some(link)) if random.u8(..4) == 0 => {
                    pair.sides[side].transport.close(link, random.bool());
                }
                (9, _) if random.u16(..400) == 0 => pair.adapter(side).overrun(),
                (9, _) if random.u16(..400) == 0 => pair.adapter(side).revoke_all(),
                (9, _) if step > 1000 && random.u16(..100) == 0 => pair.adapter(side).remove(),
                _ => pair.turn(),
            }
        }
        pair.settle();
    }
}
