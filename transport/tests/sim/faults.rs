use std::time::Duration;

use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimOptions, SimTransport};
use grpcxx_transport::{CloseReason, Next, Trace, Transport};

use crate::support::{Node, Talker, World, host};

fn world(options: SimOptions, hosts: usize) -> World<SimTransport> {
    World::new(options, hosts, |network, index| {
        network.transport(host(index))
    })
}

fn errno(reason: &Option<CloseReason>) -> Option<i32> {
    match reason {
        Some(CloseReason::Failed(error) | CloseReason::Untrusted(error)) => Some(error.errno),
        Some(CloseReason::Local | CloseReason::EndOfStream) | None => None,
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn accepted_connections_cross_threads() {
    fn crosses<A: Send + 'static>() {}
    crosses::<SimAccepted>();
}

#[test]
fn an_idle_network_has_no_next_event() {
    let mut world = world(SimOptions::reliable(1), 2);
    assert_eq!(world.network.next_event_at(), None);
    let [near, far] = world.open(0, 1);
    assert_eq!(world.network.next_event_at(), None);
    world.nodes[0].say(near, 100);
    assert_eq!(world.network.next_event_at(), Some(world.network.now()));
    world.run_for(SECOND);
    assert_eq!(world.talk(1, far).messages_read, 1);
    assert_eq!(world.network.next_event_at(), None);
}

#[test]
fn time_of_arrival_follows_latency_and_bandwidth() {
    let options = SimOptions {
        latency_min: Duration::from_millis(3),
        latency_mean: Duration::from_millis(3),
        bytes_per_second: 1_000_000,
        ..SimOptions::reliable(1)
    };
    let mut world = world(options, 2);
    let [near, far] = world.open(0, 1);
    let start = world.network.now();
    world.nodes[0].say(near, 9_992);
    while world.talk(1, far).messages_read == 0 {
        world.turn(start + SECOND);
    }
    assert_eq!(
        world.network.now().since(start),
        Duration::from_millis(13),
        "10 ms on the wire and 3 ms of latency"
    );
}

#[test]
fn every_dial_can_fail() {
    let options = SimOptions {
        connect_failure_chance: 1.0,
        ..SimOptions::reliable(2)
    };
    let mut world = world(options, 2);
    let link = world.dial(0, 1);
    world.run_for(SECOND);
    assert_eq!(errno(&world.talk(0, link).closed), Some(111));
    assert!(world.nodes[1].talker.links.is_empty());
}

#[test]
fn a_cut_breaks_both_ends_after_some_byte() {
    for seed in 1..50 {
        let options = SimOptions {
            cut_chance: 1.0,
            fault_bytes_max: 5_000,
            ..SimOptions::reliable(seed)
        };
        let mut world = world(options, 2);
        let [near, far] = world.open(0, 1);
        for _ in 0..10 {
            world.nodes[0].say(near, 1_000);
        }
        world.run_for(SECOND);
        for (node, link) in [near, far].into_iter().enumerate() {
            assert_eq!(errno(&world.talk(node, link).closed), Some(104));
        }
        assert!(world.talk(1, far).messages_read <= 5);
        assert_eq!(world.network.connection_count(), 0);
    }
}

#[test]
fn a_half_closed_stream_ends_for_the_reader_though_the_writer_goes_on() {
    let mut world = world(SimOptions::reliable(3), 2);
    let [near, far] = world.open(0, 1);
    world.nodes[0].say(near, 1_000);
    world.turn(world.network.now());
    assert!(world.nodes[0].transport.inner_mut().half_close(near));
    world.nodes[0].say(near, 1_000);
    world.run_for(SECOND);
    assert_eq!(world.talk(1, far).messages_read, 1);
    assert_eq!(world.talk(1, far).closed, Some(CloseReason::EndOfStream));
    // The reader has closed in turn, so the frame that had no way out comes back.
    assert_eq!(world.talk(0, near).frames_lost, 1);
    assert!(world.talk(0, near).closed.is_some());
}

#[test]
fn who_cannot_send_any_more_learns_without_reading_that_the_peer_is_gone() {
    for is_gone_before in [false, true] {
        let mut world = world(SimOptions::reliable(4), 2);
        let [near, far] = world.open(0, 1);
        world.nodes[0].say(near, 1_000);
        world.run_for(SECOND);
        let sender = &mut world.nodes[1].transport;
        assert!(sender.inner_mut().stall(far, 1000 * SECOND));
        if is_gone_before {
            world.nodes[0].transport.close(near, false);
            world.run_for(SECOND);
        }
        let sender = &mut world.nodes[1].transport;
        assert!(sender.inner_mut().half_close(far));
        world.nodes[1].say(far, 1_000);
        world.run_for(SECOND);
        assert!(world.talk(0, near).closed.is_some());
        assert_eq!(errno(&world.talk(1, far).closed), Some(104));
        assert_eq!(world.talk(1, far).frames_lost, 1);
    }
}

/// Checklist 19: a reader that stalls stops its own link only.
#[test]
fn a_stalled_reader_stops_its_own_link_only() {
    let mut world = world(SimOptions::reliable(4), 2);
    let [slow, slow_far] = world.open(0, 1);
    let [quick, quick_far] = world.open(0, 1);
    let second_and_more = Duration::from_millis(1_500);
    assert!(
        world.nodes[1]
            .transport
            .inner_mut()
            .stall(slow_far, second_and_more)
    );
    for link in [slow, quick] {
        world.nodes[0].say(link, 10_000);
    }
    world.run_for(SECOND);
    assert_eq!(world.talk(1, slow_far).messages_read, 0);
    assert_eq!(world.talk(1, quick_far).messages_read, 1);
    world.run_for(SECOND);
    assert_eq!(world.talk(1, slow_far).messages_read, 1);
}

#[test]
fn a_partition_holds_bytes_and_fails_dials_until_it_heals() {
    let mut world = world(SimOptions::reliable(5), 3);
    let [near, far] = world.open(0, 1);
    let [other, other_far] = world.open(0, 2);
    world.network.partition(host(1), host(0));
    world.nodes[0].say(near, 1_000);
    world.nodes[0].say(other, 1_000);
    let dial = world.dial(0, 1);
    world.run_for(SECOND);
    assert_eq!(world.talk(1, far).messages_read, 0);
    assert_eq!(world.talk(2, other_far).messages_read, 1);
    assert!(world.talk(0, dial).closed.is_none());
    world.run_for(5 * SECOND);
    assert_eq!(errno(&world.talk(0, dial).closed), Some(110));
    world.network.heal(host(0), host(1));
    world.run_for(SECOND);
    assert_eq!(world.talk(1, far).messages_read, 1);
    assert_eq!(world.talk(1, far).closed, None);
}

/// Checklist 17: links to a host that crashed break, and its restart takes new ones on the same
/// port.
#[test]
fn a_crash_breaks_links_and_a_restart_takes_new_ones() {
    let mut world = world(SimOptions::reliable(6), 2);
    let [near, far] = world.open(0, 1);
    world.nodes[0].say(near, 500_000);
    world.network.crash(host(1));
    let dial = world.dial(0, 1);
    world.run_for(SECOND);
    assert_eq!(errno(&world.talk(0, near).closed), Some(104));
    assert_eq!(world.talk(0, near).frames_lost, 1);
    assert!(world.talk(1, far).closed.is_some());
    assert_eq!(errno(&world.talk(0, dial).closed), Some(111));
    let address = world.nodes[0].address;
    assert!(world.nodes[1].transport.connect(address).is_err());
    world.nodes[1].transport.assert_settled();

    world.nodes[1] = Node::new(1, world.network.transport(host(1)), "restarted");
    let [near, far] = world.open(0, 1);
    world.nodes[0].say(near, 50_000);
    world.run_for(SECOND);
    assert_eq!(world.talk(1, far).messages_read, 1);
}

#[test]
fn a_transport_that_is_dropped_closes_its_links_and_frees_its_port() {
    let mut world = world(SimOptions::reliable(7), 2);
    let [near, _] = world.open(0, 1);
    world.nodes.pop();
    world.run_for(SECOND);
    assert_eq!(world.talk(0, near).closed, Some(CloseReason::EndOfStream));
    world
        .nodes
        .push(Node::new(1, world.network.transport(host(1)), "again"));
    world.open(0, 1);
}

#[test]
fn a_connection_goes_to_any_shard_of_its_host() {
    let mut world = world(SimOptions::reliable(8), 2);
    let mut shard = world.network.transport(host(1));
    let near = world.dial(0, 1);
    let mut accepted = None;
    while accepted.is_none() {
        let now = world.network.next_event_at().expect("the dial arrives");
        let node = &mut world.nodes[1];
        node.transport.turn(now, &mut node.talker);
        accepted = node.talker.accepted.pop_front();
    }
    let accepted = accepted.expect("the loop has ended");
    let link = shard
        .adopt(accepted, Next::Pause)
        .expect("a shard of the same host");
    let address = world.nodes[1].address;
    assert!(
        shard.listen(address).is_err(),
        "the port is the other shard's"
    );
    shard.close(link, false);
    let mut talker = Talker::default();
    talker.links.insert(link, Default::default());
    while let Some(now) = world.network.next_event_at() {
        shard.turn(now, &mut talker);
        world.turn(now);
    }
    assert!(world.talk(0, near).is_open);
    assert_eq!(world.talk(0, near).closed, Some(CloseReason::EndOfStream));
}

#[test]
fn a_seed_repeats_a_run_to_the_last_event() {
    let run = |seed| {
        let mut world = World::new(
            SimOptions::faulty(seed),
            2,
            |network: &SimNetwork, index| Trace::new(network.transport(host(index))),
        );
        let mut links = Vec::new();
        for round in 0..200 {
            if round % 20 == 0 {
                links.push(world.dial(0, 1));
            }
            for link in &links {
                world.nodes[0].say(*link, round * 13);
            }
            world.run_for(Duration::from_millis(1));
        }
        (world.nodes.iter_mut())
            .map(|node| node.transport.inner_mut().take_lines())
            .collect::<Vec<_>>()
    };
    let lines = run(11);
    assert!(lines[1].iter().any(|line| line.contains("landed")));
    assert!(lines == run(11));
    assert!(lines != run(12));
}

#[test]
fn a_trace_reads_like_a_story() {
    let options = SimOptions {
        read_bytes_min: 1 << 20,
        read_bytes_max: 1 << 20,
        ..SimOptions::reliable(1)
    };
    let mut world = World::new(options, 2, |network: &SimNetwork, index| {
        Trace::new(network.transport(host(index)))
    });
    let [near, _] = world.open(0, 1);
    world.nodes[0].say(near, 100);
    world.nodes[0].transport.close(near, true);
    world.run_for(SECOND);
    let [dialler, acceptor] =
        [0, 1].map(|node| world.nodes[node].transport.inner_mut().take_lines());
    assert_eq!(
        dialler,
        [
            "listener 0 on 10.0.0.1:2222",
            "0.1 dials 10.0.0.2:2222",
            "0.1 connected -> head 8",
            "0.1 send 108 accepted",
            "0.1 close with flush",
            "0.1 sent 108",
            "0.1 gone: closed by this side",
        ]
    );
    assert_eq!(
        acceptor,
        [
            "listener 0 on 10.0.0.2:2222",
            "listener 0 accepts 10.0.0.1:49152",
            "0.1 adopted -> head 8",
            "0.1 received 108, used 8 -> land 100",
            "0.1 landed 100 -> head 8",
            "0.1 gone: closed by the peer",
        ]
    );
}
