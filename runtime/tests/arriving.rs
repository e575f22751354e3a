//! Peers that begin more frames than the arena has memory for, and end none.

mod greedy;
mod stranger;

use std::io::Write;
use std::net::TcpStream;

use greedy::*;
use grpcxx_rpc::Code;
use grpcxx_runtime::Engine;
use stranger::{Hostile, STRANGER};

const ARENA_BYTES: u64 = 64 * MIB;

/// Begins a push of 12 MiB, and ends it after so many.
fn push_part(stream: &mut TcpStream, mib: usize) {
    stream.write_all(&push(12 * MIB)).unwrap();
    let mib_of_zeros = vec![0; MIB as usize];
    for _ in 0..mib {
        stream.write_all(&mib_of_zeros).unwrap();
    }
}

/// Pushes so many bytes. Returns the status of the answer.
fn push_whole(stream: &mut TcpStream, len: u64) -> i32 {
    stream.write_all(&push(len)).unwrap();
    stream.write_all(&vec![7; len as usize]).unwrap();
    read_answer(stream).0
}

#[test]
fn a_peer_that_begins_frames_on_many_connections_leaves_others_their_part() {
    let server = Engine::start(options("ps", ARENA_BYTES)).unwrap();
    let mut greedy: Vec<TcpStream> = (0..20).map(|_| dial(&server)).collect();
    for stream in &mut greedy {
        push_part(stream, 8);
    }
    settle(&server, 20);
    let mut other = Hostile::at(STRANGER, &server).stream;
    assert_eq!(push_whole(&mut other, 16 * MIB), 0);
    assert_eq!(push_whole(&mut dial(&server), MIB / 4), 0);
    // Frames that were refused end as if they had been taken.
    let statuses: Vec<i32> = (greedy.iter_mut())
        .map(|stream| {
            for _ in 8..12 {
                stream.write_all(&vec![0; MIB as usize]).unwrap();
            }
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
