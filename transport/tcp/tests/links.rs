//! Links over real sockets, with both drivers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_tcp::{DriverRequest, TcpOptions};
use grpcxx_transport::{CloseReason, LinkId, LinkLimits, Outcome, Refusal, Transport};

use crate::for_each_driver;
use crate::ports::held_address;
use crate::support::*;

/// Sends a message on each link, and each back.
fn echo(a: &mut Side, b: &mut Side, links: &[LinkId], payload: Vec<u8>) {
    let payload = Buffer::from(payload);
    for &link in links {
        assert!(a.send(link, 0, &payload));
    }
    both(a, b, "asked", |_, b| b.messages.len() == links.len());
    while let Some((link, bytes)) = b.seen.messages.pop_front() {
        assert!(b.send(link, 0, &Buffer::from(bytes)));
    }
    both(a, b, "answered", |a, _| a.messages.len() == links.len());
    let is_it = |(_, bytes): (_, Vec<u8>)| bytes == payload[..];
    assert!(a.seen.messages.drain(..).all(is_it));
}

for_each_driver! {
    fn messages_of_all_sizes_arrive_in_order_both_ways(driver) {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut a, mut b) = (Side::new(driver), Side::new(driver));
            let address: SocketAddr = address.parse().unwrap();
            let Ok((_, address)) = b.transport.listen(address) else {
                assert!(address.is_ipv6(), "a host may lack IPv6, but not IPv4");
                continue;
            };
            let there = a.transport.connect(address).unwrap();
            both(&mut a, &mut b, "connected", |a, b| {
                !a.connected.is_empty() && !b.accepted.is_empty()
            });
            let back = b.adopt();
            let sizes = [0, 1, 64, 511, 8191, 8192, 8193, 70_000, 3 << 20, 5, 9000, 0, 1 << 16];
            for (index, &size) in sizes.iter().enumerate() {
                assert!(a.send(there, index as u64, &Buffer::from(pattern(size, index))));
                assert!(b.send(back, index as u64, &Buffer::from(pattern(size, index + 1))));
            }
            assert_eq!(a.transport.frames_in_flight(), sizes.len());
            assert!(a.seen.sent.is_empty(), "nothing completes inside the call that submitted it");
            both(&mut a, &mut b, "all is there", |a, b| {
                a.messages.len() == sizes.len() && b.messages.len() == sizes.len()
            });
            for (index, &size) in sizes.iter().enumerate() {
                assert_eq!(b.seen.messages[index].1, pattern(size, index));
                assert_eq!(a.seen.messages[index].1, pattern(size, index + 1));
                assert_eq!(a.seen.sent[index], (index as u64, Outcome::Done));
            }
            assert_eq!(a.transport.frames_in_flight(), 0);
        }
    }

    fn large_payload_lands_without_a_stop_in_between(driver) {
        let (mut a, there, mut b, _) = pair(driver);
        let payload = Buffer::from(pattern(4 << 20, 3));
        for _ in 0..8 {
            assert!(a.send(there, 0, &payload));
        }
        both(&mut a, &mut b, "all is there", |_, b| b.messages.len() == 8);
        let counters = b.transport.counters();
        let total = 8 * (payload.len() as u64 + 8);
        assert_eq!(counters.direct_bytes + counters.staged_bytes, total);
        assert!(counters.staged_bytes < 100_000, "{counters:?}");
        assert_eq!(a.transport.counters().sent_bytes, total);
    }

    fn empty_frames_come_back_and_stop_nothing(driver) {
        let (mut a, there, mut b, back) = pair(driver);
        let payload = Buffer::from(pattern(100, 0));
        for round in 1..=5 {
            assert!(a.send(there, 0, &payload));
            both(&mut a, &mut b, "it came", |_, b| b.messages.len() == round);
            b.transport.send(back, Box::default()).unwrap();
        }
        both(&mut a, &mut b, "all came back", |_, b| b.sent.len() == 5);
    }

    fn refused_dial_closes_the_link(driver) {
        let mut side = Side::new(driver);
        let free = held_address();
        let link = side.transport.connect(free).unwrap();
        assert!(side.seen.closed.is_empty());
        let refused = side.transport.send(link, Box::default()).unwrap_err();
        assert_eq!(refused.refusal, Refusal::NotOpen);
        side.until("the dial failed", |seen| !seen.closed.is_empty());
        let CloseReason::Failed(error) = &side.seen.closed[&link] else {
            panic!("{:?}", side.seen.closed);
        };
        assert_eq!(error.errno, 111);
        assert_eq!(error.operation, format!("connect to {free}"));
        assert!(side.seen.connected.is_empty());
    }

    fn dial_closed_at_once_says_so_once(driver) {
        let mut side = Side::new(driver);
        // Nobody answers at an address for documentation.
        if let Ok(link) = side.transport.connect("192.0.2.1:9".parse().unwrap()) {
            side.settle(Duration::from_millis(5));
            side.transport.close(link, true);
            side.transport.close(link, false);
            side.until("closed", |seen| !seen.closed.is_empty());
        }
    }

    fn close_with_flush_lets_frames_leave_first(driver) {
        let (mut a, there, mut b, back) = pair(driver);
        // What the peer has sent and nobody reads must not take our frames back.
        assert!(b.send(back, 0, &Buffer::from(pattern(100, 0))));
        b.settle(Duration::from_millis(5));
        let payload = Buffer::from(pattern(6 << 20, 1));
        assert!(a.send(there, 1, &payload) && a.send(there, 2, &payload));
        a.transport.close(there, true);
        assert!(!a.send(there, 3, &payload));
        both(&mut a, &mut b, "both are closed", |a, b| {
            a.closed.len() == 1 && b.closed.len() == 1
        });
        assert_eq!(a.seen.sent, [(1, Outcome::Done), (2, Outcome::Done)]);
        assert_eq!(a.seen.closed[&there], CloseReason::Local);
        assert_eq!(b.seen.messages.len(), 2);
        assert!(matches!(b.seen.closed[&back], CloseReason::EndOfStream | CloseReason::Failed(_)));
    }

    fn close_without_flush_gives_everything_back_lost(driver) {
        let (mut a, there, mut b, back) = pair(driver);
        let payload = Buffer::from(pattern(64 << 20, 1));
        assert!(a.send(there, 1, &payload) && a.send(there, 2, &payload));
        for _ in 0..3 {
            a.turn();
            b.turn();
        }
        a.transport.close(there, false);
        assert!(a.seen.closed.is_empty());
        let start = Instant::now();
        both(&mut a, &mut b, "both are closed", |a, b| {
            a.closed.len() == 1 && b.closed.len() == 1
        });
        assert!(start.elapsed() < Duration::from_secs(1));
        assert_eq!(a.seen.sent, [(1, Outcome::Lost), (2, Outcome::Lost)]);
        assert_eq!((b.seen.landings_lost, b.seen.landings_out), (1, 0));
        assert!(b.seen.closed.contains_key(&back));
        assert_eq!(a.transport.frames_in_flight(), 0);
        assert!(!a.send(there, 3, &payload), "the id is spent");
    }

    /// checklist 18: a peer that disappears at any byte offset, by an end of stream or by a reset.
    fn peer_may_vanish_at_any_byte(driver) {
        let mut side = Side::new(driver);
        let address = side.listen();
        let mut stream = 20u64.to_le_bytes().to_vec();
        stream.extend_from_slice(&pattern(20, 0));
        let mut links = 0;
        for offset in 0..=stream.len() {
            for reset in [false, true] {
                let mut peer = TcpStream::connect(address).unwrap();
                peer.write_all(&stream[..offset]).unwrap();
                let link = side.accept();
                side.settle(Duration::from_millis(1));
                if reset {
                    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
                }
                drop(peer);
                links += 1;
                side.until("the link is closed", |seen| seen.closed.len() == links);
                let reason = &side.seen.closed[&link];
                match reset {
                    false => assert_eq!(*reason, CloseReason::EndOfStream),
                    true => assert!(matches!(reason, CloseReason::Failed(e) if e.errno == 104), "{reason}"),
                }
            }
        }
        assert_eq!(side.seen.messages.len(), 2);
        assert_eq!(side.seen.landings_out, 0);
    }

    /// checklist 18: a server that never closes its side does not hold the client.
    fn peer_that_never_closes_its_side_does_not_hold_us(driver) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut side = Side::new(driver);
        let link = side.transport.connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        side.until("connected", |seen| !seen.connected.is_empty());
        assert!(side.send(link, 1, &Buffer::from(pattern(1000, 0))));
        side.transport.close(link, true);
        let start = Instant::now();
        side.until("closed", |seen| !seen.closed.is_empty());
        assert!(start.elapsed() < Duration::from_millis(500));
        let mut all = Vec::new();
        peer.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 1008);
    }

    /// A peer that still writes when we leave is not reset: we end our stream, and take all that it
    /// sends.
    fn end_of_our_stream_leaves_the_peer_room_to_write(driver) {
        for waits in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut side = Side::new(driver);
            let link = side.transport.connect(listener.local_addr().unwrap()).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            side.until("connected", |seen| !seen.connected.is_empty());
            let long = message(1, &Buffer::from(pattern(8 << 20, 1)));
            let long: Vec<u8> = long.segments().collect::<Vec<_>>().concat();
            peer.write_all(&long[..100_000]).unwrap();
            side.until("the payload lands", |seen| seen.landings_out == 1);
            assert!(side.send(link, 1, &Buffer::from(pattern(1000, 0))));
            side.transport.end_stream(link);
            side.until("the landing is back", |seen| seen.landings_lost == 1);
            if waits {
                side.transport.close(link, true);
                side.settle(Duration::from_millis(50));
                assert!(side.seen.closed.is_empty(), "the rest is still to come");
            }
            let writer = std::thread::spawn(move || {
                let mut all = Vec::new();
                peer.read_to_end(&mut all).unwrap();
                assert_eq!(all.len(), 1008);
                peer.write_all(&long[100_000..]).unwrap();
                if !waits {
                    peer.write_all(&long).unwrap();
                }
                peer
            });
            if waits {
                side.until("closed", |seen| !seen.closed.is_empty());
                let mut peer = writer.join().unwrap();
                assert_eq!(peer.read(&mut [0]).unwrap(), 0, "there was no reset");
            } else {
                side.until("what follows is there", |seen| seen.messages.len() == 1);
                let peer = writer.join().unwrap();
                assert!(side.seen.closed.is_empty());
                drop(peer);
                side.until("closed", |seen| !seen.closed.is_empty());
                assert_eq!(side.seen.closed[&link], CloseReason::EndOfStream);
            }
            assert_eq!(side.seen.sent, [(1, Outcome::Done)]);
        }
    }

    /// checklist 19: a peer that does not read stops neither others nor, for long, its own close.
    fn slow_reader_is_on_its_own(driver) {
        let (mut a, there, mut b, _) = pair(driver);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stuck = a.transport.connect(listener.local_addr().unwrap()).unwrap();
        let (_peer, _) = listener.accept().unwrap();
        a.until("connected", |seen| seen.connected.len() == 2);
        let payload = Buffer::from(pattern(1 << 20, 0));
        let mut accepted = 0;
        while a.send(stuck, 1000 + accepted, &payload) {
            accepted += 1;
        }
        assert_eq!(accepted, LinkLimits::default().queued_frames as u64);
        a.settle(Duration::from_millis(50));
        for index in 0..50 {
            assert!(a.send(there, index, &payload));
        }
        both(&mut a, &mut b, "the fast link has all", |_, b| b.messages.len() == 50);
        a.transport.close(stuck, true);
        let start = Instant::now();
        a.until("the stuck link is closed", |seen| seen.closed.contains_key(&stuck));
        assert!((1..4).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        assert_eq!(a.transport.frames_in_flight(), 0);
        let stuck = a.seen.sent.iter().copied().filter(|(token, _)| *token >= 1000);
        let (done, lost): (Vec<_>, Vec<_>) = stuck.partition(|(_, o)| *o == Outcome::Done);
        assert_eq!((done.len() + lost.len()) as u64, accepted);
        assert!(!lost.is_empty());
    }

    fn thousand_links_echo(driver) {
        let (mut a, mut b) = (Side::new(driver), Side::new(driver));
        let (links, _) = join(&mut a, &mut b, 1000);
        for round in 0..3 {
            echo(&mut a, &mut b, &links, pattern(700, round));
        }
        drop(a);
        b.until("all are closed", |seen| seen.closed.len() == 1000);
    }

    fn links_that_are_busy_in_turns_lose_nothing(driver) {
        // As many as are asked without being told, one more, and some more.
        for count in [16, 17, 20] {
            let (mut a, mut b) = (Side::new(driver), Side::new(driver));
            let (links, _) = join(&mut a, &mut b, count);
            // All, then one alone for longer than many are remembered, some, none for a while, and
            // all again.
            for (busy, rounds) in [(0..count, 50), (7..8, 1500), (3..12, 50), (0..0, 1), (0..count, 3)] {
                for round in 0..rounds {
                    echo(&mut a, &mut b, &links[busy.clone()], pattern(60, round));
                }
                a.settle(Duration::from_millis(2));
            }
            // The last bytes and the end of the stream come together.
            for &link in &links {
                assert!(a.send(link, 0, &Buffer::from(pattern(60, 1))));
                a.transport.close(link, true);
            }
            a.settle(Duration::from_millis(10));
            both(&mut a, &mut b, "all are closed", |a, b| {
                a.closed.len() == count && b.closed.len() == count
            });
            assert_eq!(b.seen.messages.len(), count);
        }
    }

    fn links_come_and_go_while_others_are_busy(driver) {
        let (mut a, mut b) = (Side::new(driver), Side::new(driver));
        let (mut links, _) = join(&mut a, &mut b, 16);
        for round in 0..16 {
            echo(&mut a, &mut b, &links, pattern(60, round));
            // The next link takes its place in the table.
            let gone = links.remove(round % links.len());
            a.transport.close(gone, round % 2 == 0);
            both(&mut a, &mut b, "one is closed", |a, b| a.closed.len().min(b.closed.len()) > round);
            echo(&mut a, &mut b, &links, pattern(60, round));
            a.seen.connected.clear();
            links.extend(join(&mut a, &mut b, 1).0);
        }
        echo(&mut a, &mut b, &links, pattern(60, 99));
    }

    fn a_busy_link_keeps_no_other_waiting(driver) {
        let (mut a, mut b) = (Side::new(driver), Side::new(driver));
        let (links, adopted) = join(&mut a, &mut b, 2);
        let payload = Buffer::from(pattern(60, 1));
        for _ in 0..20 {
            let end = Instant::now() + PATIENCE;
            for turn in 0.. {
                // The first link has bytes in each turn, the second once they have become usual.
                assert!(a.send(links[0], 0, &payload));
                if turn == 100 {
                    assert!(a.send(links[1], 0, &payload));
                }
                a.turn();
                b.turn();
                a.seen.sent.clear();
                if b.seen.messages.drain(..).any(|(link, _)| link == adopted[1]) {
                    break;
                }
                assert!(Instant::now() < end, "the second link waits for ever");
            }
        }
    }

    /// Links that wait in the ready set, whose sends fill a small ring.
    fn sends_that_find_no_room_in_the_ring_go_on_later(driver) {
        let mut a = Side::new(driver);
        let mut b = Side::with(TcpOptions::default().with(|options| { options.driver = driver; options.ring_entries = 64;
}));
        let (_, links) = join(&mut a, &mut b, 150);
        b.settle(Duration::from_millis(50));
        let payload = Buffer::from(pattern(2 << 20, 1));
        for (&link, token) in links.iter().zip(0..) {
            assert!(b.send(link, token, &payload));
        }
        // Nobody reads, so that all sockets are full for longer than they are asked directly.
        for _ in 0..1000 {
            b.turn();
        }
        a.seen.recycles = true;
        both(&mut a, &mut b, "all have left", |_, b| b.sent.len() == links.len());
        assert!(b.seen.sent.iter().all(|(_, outcome)| *outcome == Outcome::Done));
    }

    fn paused_link_takes_nothing_until_it_is_resumed(driver) {
        let (mut a, there, mut b, back) = pair(driver);
        b.seen.pauses = true;
        for index in 0..10 {
            assert!(a.send(there, index, &Buffer::from(pattern(3000, index as usize))));
        }
        for index in 0..10 {
            both(&mut a, &mut b, "one more came", |_, b| b.messages.len() == index + 1);
            b.settle(Duration::from_millis(2));
            assert_eq!(b.seen.messages.len(), index + 1);
            b.transport.resume(back, HEAD).unwrap();
            let refused = b.transport.resume(back, HEAD).unwrap_err();
            assert_eq!(refused.refusal, Refusal::WrongState);
        }
        drop(a);
        b.until("closed", |seen| !seen.closed.is_empty());
        let refused = b.transport.resume(back, HEAD).unwrap_err();
        assert_eq!(refused.refusal, Refusal::NotOpen);
    }

    fn dropping_a_transport_in_full_flight_is_sound(driver) {
        for turns in [0, 1, 2, 5, 20] {
            let (mut a, there, mut b, back) = pair(driver);
            let payload = Buffer::from(pattern(16 << 20, 0));
            assert!(a.send(there, 1, &payload) && b.send(back, 1, &payload));
            for _ in 0..turns {
                a.turn();
                b.turn();
            }
            drop(a);
            drop(b);
        }
    }

    fn second_bind_of_a_port_is_an_error_unless_shared(driver) {
        let (mut a, mut b) = (Side::new(driver), Side::new(driver));
        let address = a.listen();
        let error = b.transport.listen(address).unwrap_err();
        assert_eq!((error.errno, error.operation), (98, format!("bind {address}")));
        let options = TcpOptions::default().with(|options| { options.driver = driver; options.reuse_port = true;
});
        let (mut a, mut b) = (Side::with(options.clone()), Side::with(options));
        let address = a.listen();
        b.transport.listen(address).unwrap();
    }

    fn unlisten_keeps_links_and_frees_the_port(driver) {
        let (mut a, mut b) = (Side::new(driver), Side::new(driver));
        let (listener, address) = b.transport.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let there = a.transport.connect(address).unwrap();
        both(&mut a, &mut b, "connected", |a, b| !a.connected.is_empty() && !b.accepted.is_empty());
        b.adopt();
        b.transport.unlisten(listener);
        b.settle(Duration::from_millis(2));
        assert!(TcpStream::connect(address).is_err());
        assert!(a.send(there, 0, &Buffer::from(pattern(10, 0))));
        both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
        assert_eq!(b.transport.listen(address).unwrap().1, address);
    }

    fn limit_of_links_is_told_and_kept(driver) {
        let limits = LinkLimits { links: 2, ..LinkLimits::default() };
        let mut side = Side::with(TcpOptions::default().with(|options| { options.driver = driver; options.limits = limits;
}));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let first = side.transport.connect(address).unwrap();
        side.transport.connect(address).unwrap();
        let error = side.transport.connect(address).unwrap_err();
        assert_eq!(error.message, "all 2 links are in use; close some or raise LinkLimits::links");
        side.transport.close(first, false);
        side.until("closed", |seen| seen.closed.contains_key(&first));
        side.transport.connect(address).unwrap();
    }

    fn adopted_connections_may_come_from_another_thread(driver) {
        let mut a = Side::new(driver);
        let address = a.listen();
        let mut peer = TcpStream::connect(address).unwrap();
        a.until("accepted", |seen| !seen.accepted.is_empty());
        let accepted = a.seen.accepted.pop_front().unwrap();
        std::thread::spawn(move || {
            let mut b = Side::new(driver);
            b.transport.adopt(accepted, HEAD).unwrap();
            b.until("a message came", |seen| !seen.messages.is_empty());
        });
        peer.write_all(&0u64.to_le_bytes()).unwrap();
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "closed with its transport");
    }
}
