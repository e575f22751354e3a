//! What a peer holds over all its connections: answers that it does not read, and keys.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, DType, RendezvousKey, RendezvousLimits, Shape, Tensor};
use grpcxx_runtime::{Engine, PeerShares, STORE_PULL};

use crate::greedy::*;
use crate::stranger::{Hostile, STRANGER};

/// A server whose peers are owed 4 MiB, and keep 512 KiB of keys, over all their connections.
fn sparing_of_peers() -> Engine {
    let shares = PeerShares::of(&RendezvousLimits::default(), 1000).with(|shares| {
        shares.unsent_bytes = 4 * MIB;
        shares.key_bytes = 512 << 10;
    });
    Engine::start(options("ps", 64 * MIB).with(|options| options.shares = Some(shares))).unwrap()
}

#[test]
fn a_peer_that_reads_no_answers_cannot_begin_anew_on_other_connections() {
    let server = sparing_of_peers();
    let worker = Engine::start(self::options("worker", 64 * MIB)).unwrap();
    assert!(honest_push(&worker, &server, MIB).is_ok());
    let before = server.counters().requests;
    let mut greedy: Vec<TcpStream> = (0..10).map(|_| dial(&server)).collect();
    // In rounds: what came together is taken together, before any of it is answered.
    for tag in 0..60 {
        for stream in &mut greedy {
            let question = graph_call(tag, STORE_PULL, 0, 0, &["honest"]);
            stream.write_all(&question).unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    settle(&server, 11);
    let taken = server.counters().requests - before;
    // Buffers of the system take some 36 of the 60 answers on each connection.
    assert!(taken < 450, "{taken} requests taken, and nothing read");
    // Who owes little is served, at the same address too.
    assert!(honest_push(&worker, &server, 1000).is_ok());
    for stream in &mut greedy {
        for _ in 0..60 {
            let (status, _) = read_answer(stream);
            // What came together with others may find too much owed when it is answered.
            let allowed = [0, Code::ResourceExhausted as i32];
            assert!(allowed.contains(&status), "{status}");
        }
    }
}

/// The announcement of key lists, and what the server announces: its features, if it announces any.
fn announce_key_lists(stream: &mut TcpStream) -> u8 {
    let announcement = [0xea, 0xa4, 0x0b, 5, 0x08, 1, 0x10, 0x80, 0x03];
    stream
        .write_all(&message(GET_STATUS, announcement.len() as u64))
        .unwrap();
    stream.write_all(&announcement).unwrap();
    let mut header = [0; 32];
    stream.read_exact(&mut header).unwrap();
    let mut body = vec![0; u64::from_le_bytes(header[24..].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    let begins = |at: &&[u8]| at.starts_with(&[0xea, 0xa4, 0x0b]);
    let own = body.windows(9).find(begins).unwrap();
    // Bits 7 to 13 of the features.
    own[8]
}

/// A request whose keys of 200 KiB in all are kept as a list.
fn keep_list(number: i32) -> Vec<u8> {
    let keys = (0..4).flat_map(|index| {
        let mut key = vec![0x12, 0x80, 0x90, 0x03];
        key.extend([b'a' + index; 50 << 10]);
        key
    });
    let keys: Vec<u8> = keys.collect();
    let mut bytes = header(
        b"AAAA",
        FUSE_RECV_TENSOR,
        number as u64,
        number,
        keys.len() as u64,
    );
    bytes.extend(keys);
    bytes
}

#[test]
fn a_peer_keeps_so_many_keys_on_all_its_connections() {
    const KEEPS_KEYS: u8 = 0b11;
    let server = sparing_of_peers();
    let mut open = [(); 2].map(|()| dial(&server));
    for stream in &mut open {
        assert_eq!(announce_key_lists(stream) & KEEPS_KEYS, KEEPS_KEYS);
    }
    for (at, number) in [(0, 1), (0, 2), (1, 1)] {
        open[at].write_all(&keep_list(number)).unwrap();
        read_answer(&mut open[at]);
    }
    // All connections together keep more than they may: no more on these, and none on the next.
    assert_eq!(announce_key_lists(&mut dial(&server)) & KEEPS_KEYS, 0);
    open[0].write_all(&keep_list(3)).unwrap();
    await_end(&mut open[0]);
    assert_eq!(server.counters().violations, 1);
    let until = Instant::now() + PATIENCE;
    while server.counters().closed < 2 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    open[1].write_all(&keep_list(3)).unwrap();
    read_answer(&mut open[1]);
}

#[test]
fn silent_connections_of_one_address_close_none_of_another() {
    let shares = PeerShares::of(&RendezvousLimits::default(), 12).with(|shares| {
        shares.all_connections = 8;
    });
    let server = options("ps", 64 * MIB).with(|options| options.shares = Some(shares));
    let server = Engine::start(server).unwrap();
    // Silent like originals that have nothing to ask yet.
    let mut honest: Vec<Hostile> = (0..3)
        .map(|_| Hostile::at(Ipv4Addr::new(127, 0, 0, 3), &server))
        .collect();
    settle(&server, 3);
    let _greedy: Vec<Hostile> = (0..20).map(|_| Hostile::at(STRANGER, &server)).collect();
    settle(&server, 23);
    for connection in &mut honest {
        assert_eq!(connection.ask(GET_STATUS, 0, &[]).0, 0);
    }
    // Who comes later has a place too.
    let mut late = Hostile::at(Ipv4Addr::new(127, 0, 0, 4), &server);
    assert_eq!(late.ask(GET_STATUS, 0, &[]).0, 0);
}

#[test]
fn idle_connections_that_asked_once_give_way_to_the_next_one() {
    let shares = PeerShares::of(&RendezvousLimits::default(), 12).with(|shares| {
        shares.all_connections = 7;
    });
    let server = options("ps", 64 * MIB).with(|options| {
        options.shares = Some(shares);
        options.patience.progress = Some(Duration::from_millis(200));
    });
    let server = Engine::start(server).unwrap();
    let mut greedy: Vec<Hostile> = (0..6).map(|_| Hostile::at(STRANGER, &server)).collect();
    for connection in &mut greedy {
        assert_eq!(connection.ask(GET_STATUS, 0, &[]).0, 0);
    }
    let mut other = Hostile::at(Ipv4Addr::new(127, 0, 0, 3), &server);
    assert_eq!(other.ask(GET_STATUS, 0, &[]).0, 0);
    // In use as long as its request waits for a tensor.
    let task = &server.device_attributes().name;
    let key = RendezvousKey::new(task, server.incarnation(), task, "late");
    let key = key.unwrap().to_text();
    greedy[0].begin_receive(1, &key);
    // As soon as the server has seen that the others are idle.
    let late = Ipv4Addr::new(127, 0, 0, 4);
    let until = Instant::now() + PATIENCE;
    let is_served = |mut late: Hostile| {
        let asked = late.stream.write_all(&message(GET_STATUS, 0));
        asked.is_ok() && late.stream.read(&mut [0; 64]).is_ok_and(|count| count > 0)
    };
    while !is_served(Hostile::at(late, &server)) {
        assert!(Instant::now() < until, "nobody gives way");
        std::thread::sleep(Duration::from_millis(20));
    }
    // One of those that wait for nothing suffices.
    assert_eq!(server.counters().unused_closed, 1);
    let has_ended = |connection: &&mut Hostile| {
        connection.stream.set_nonblocking(true).unwrap();
        (&connection.stream)
            .read(&mut [0])
            .is_ok_and(|count| count == 0)
    };
    assert_eq!(greedy[1..].iter_mut().filter(has_ended).count(), 1);
    let tensor = Tensor::new(DType::UInt8, Shape::new(&[1]).unwrap(), vec![1]).unwrap();
    server.send(1, key, tensor).unwrap();
    assert_eq!(greedy[0].read_answer().0, 0);
}
