use std::time::Duration;

use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::sim::{SimNetwork, SimOptions, SimTransport};
use grpcxx_transport::{FaultOptions, Faults, LinkId, LinkLimits, Transport};

use crate::support::{Node, World, host, seeds};

type Faulty = Faults<Ledger<SimTransport>>;

/// Five hosts talk over a network and through transports on which everything fails now and then.
/// The ledgers above and below the injected faults check every contract in every turn, the talkers
/// every byte.
///
/// Checklist 18: peers disappear at any byte.
#[test]
fn no_fault_breaks_a_contract() {
    let (mut messages, mut links) = (0, 0);
    for seed in seeds(40) {
        let world = soak(seed);
        for node in &world.nodes {
            links += node.talker.links.len();
            let read = node.talker.links.values().map(|talk| talk.messages_read);
            messages += read.sum::<u32>();
        }
    }
    assert!(
        messages as usize > links,
        "{messages} messages on {links} links: too little came through to show anything"
    );
}

fn soak(seed: u64) -> World<Faulty> {
    let options = SimOptions {
        limits: LinkLimits {
            queued_frames: 8,
            links: 30,
        },
        ..SimOptions::faulty(seed)
    };
    let mut world = World::new(options, HOSTS, |network, index| {
        faulty(network, index, seed)
    });
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..300 {
        disturb(&mut world, &mut random, seed);
        for node in &mut world.nodes {
            let links: Vec<LinkId> = node.transport.links().collect();
            for link in links {
                match random.u16(..1000) {
                    0..5 => node.transport.close(link, random.bool()),
                    5..400 => {
                        let bytes = random.usize(..20_000);
                        node.say(link, bytes);
                    }
                    _ => {}
                }
            }
        }
        world.run_for(Duration::from_micros(random.u64(..2_000)));
    }
    world.network.heal_all();
    world.run_for(Duration::from_secs(10));
    for node in &mut world.nodes {
        let links: Vec<LinkId> = node.transport.links().collect();
        links
            .into_iter()
            .for_each(|link| node.transport.close(link, true));
    }
    world.run_for(Duration::from_secs(10));
    for node in &mut world.nodes {
        node.transport.assert_settled();
        node.transport.inner_mut().inner_mut().assert_settled();
    }
    assert_eq!(
        world.network.connection_count(),
        0,
        "GRPCXX_SEED={seed}: connections stay behind"
    );
    world
}

fn disturb(world: &mut World<Faulty>, random: &mut fastrand::Rng, seed: u64) {
    let (one, other) = (random.usize(..HOSTS), random.usize(..HOSTS));
    match random.u8(..100) {
        0..40 => {
            let address = world.nodes[other].address;
            let node = &mut world.nodes[one];
            if let Ok(link) = node.transport.connect(address) {
                node.talker.links.entry(link).or_default();
            }
        }
        40..44 => world.network.partition(host(one), host(other)),
        44..50 => world.network.heal_all(),
        50 => {
            world.network.crash(host(one));
            // The crashed process gives back what it holds before the restarted one takes its
            // place.
            world.run_for(Duration::from_millis(10));
            let restarted = faulty(&world.network, one, seed);
            let node = Node::new(one, restarted, &format!("GRPCXX_SEED={seed}, restarted"));
            world.nodes[one].transport.assert_settled();
            world.nodes[one] = node;
        }
        _ => {}
    }
}

fn faulty(network: &SimNetwork, index: usize, seed: u64) -> Faulty {
    let label = format!("GRPCXX_SEED={seed}, below the faults of host {index}");
    let options = FaultOptions {
        seed: seed * 100 + index as u64,
        ..FaultOptions::default()
    };
    Faults::new(Ledger::new(network.transport(host(index)), label), options)
}

const HOSTS: usize = 5;
