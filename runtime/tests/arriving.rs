//! Peers that begin more frames than the arena has memory for, and end none.

use std::io::Write;
use std::net::TcpStream;

use grpcxx_rpc::Code;
use grpcxx_runtime::{Engine, STORE_PUSH};

use crate::greedy::*;
use crate::stranger::{Hostile, STRANGER};

const ARENA_BYTES: u64 = 256 * MIB;

/// Connections of the greedy peer.
const GREEDY: u64 = 40;

/// A push of 12 MiB in one tensor.
fn one_tensor() -> Vec<u8> {
    let mut bytes = push(12 * MIB);
    bytes.resize(bytes.len() + 12 * MIB as usize, 0);
    bytes
}

/// A push of 12 MiB in tensors that are too short for their memory to grow.
fn many_tensors() -> Vec<u8> {
    const COUNT: u64 = 12 * 16;
    let each = 64 << 10;
    let mut metadata = (COUNT as i32).to_le_bytes().to_vec();
    metadata.extend((0..COUNT).flat_map(|index| name(&format!("part-{index:0>3}"))));
    metadata.extend(0_i32.to_le_bytes());
    metadata.extend(name(STORE_PUSH));
    metadata.extend(1_u64.to_le_bytes());
    metadata.extend(1_i32.to_le_bytes());
    metadata.push(0);
    metadata.extend([name(""), name("")].concat());
    let mut tensor = record(each);
    tensor.resize(tensor.len() + each as usize, 0);
    let payload = metadata.len() as u64 + COUNT * tensor.len() as u64;
    let mut bytes = header(b"AAAA", STAR_RUN_GRAPH, 1, metadata.len() as i32, payload);
    bytes.extend(metadata);
    (0..COUNT).for_each(|_| bytes.extend(&tensor));
    bytes
}

/// Pushes so many bytes. Returns the status of the answer.
fn push_whole(stream: &mut TcpStream, len: u64) -> i32 {
    stream.write_all(&push(len)).unwrap();
    stream.write_all(&vec![7; len as usize]).unwrap();
    read_answer(stream).0
}

#[test]
fn a_peer_that_begins_frames_on_many_connections_leaves_others_their_part() {
    leaves_others_their_part(&one_tensor());
}

#[test]
fn a_peer_that_begins_frames_of_many_tensors_leaves_others_their_part() {
    leaves_others_their_part(&many_tensors());
}

#[test]
fn connections_of_one_address_may_use_what_is_free() {
    let server = Engine::start(options("ps", ARENA_BYTES)).unwrap();
    let mut waiting = dial(&server);
    let rest = vec![7; MIB as usize];
    waiting.write_all(&push(100 * MIB)).unwrap();
    waiting.write_all(&vec![7; 99 * MIB as usize]).unwrap();
    settle(&server, 1);
    for len in [2 * MIB, 64 * MIB] {
        assert_eq!(push_whole(&mut dial(&server), len), 0, "{len} bytes");
    }
    waiting.write_all(&rest).unwrap();
    assert_eq!(read_answer(&mut waiting).0, 0);
}

/// A peer sends two thirds of this push on each of many connections.
fn leaves_others_their_part(greedy_push: &[u8]) {
    let (first, rest) = greedy_push.split_at(greedy_push.len() * 2 / 3);
    let server = Engine::start(options("ps", ARENA_BYTES)).unwrap();
    let mut greedy: Vec<TcpStream> = (0..GREEDY).map(|_| dial(&server)).collect();
    for stream in &mut greedy {
        stream.write_all(first).unwrap();
    }
    settle(&server, GREEDY);
    let mut other = Hostile::at(STRANGER, &server).stream;
    assert_eq!(push_whole(&mut other, 8 * MIB), 0);
    assert_eq!(push_whole(&mut dial(&server), MIB / 4), 0);
    // Frames that were refused end as if they had been taken.
    let statuses: Vec<i32> = (greedy.iter_mut())
        .map(|stream| {
            stream.write_all(rest).unwrap();
            read_answer(stream).0
        })
        .collect();
    assert!(
        statuses.contains(&(Code::ResourceExhausted as i32)),
        "{statuses:?}"
    );
    assert!(statuses.contains(&0), "{statuses:?}");
    // What the peer held is free again.
    for stream in &mut greedy {
        assert_eq!(push_whole(stream, 16 * MIB), 0);
    }
}
