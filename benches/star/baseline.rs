//! What this machine can do at best: sockets that spin, and memcpy.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use crate::report::{Histogram, pin};

/// Median round trip of `bytes` bytes each way over spinning non-blocking sockets, in microseconds.
pub(crate) fn round_trip_us(calls: usize, bytes: usize) -> f64 {
    let (mut near, mut far) = spinning_pair();
    let server = thread::spawn(move || {
        pin(1);
        let mut buffer = vec![0; bytes];
        while read_exact(&mut far, &mut buffer) {
            write_all(&mut far, &buffer);
        }
    });
    pin(0);
    let mut buffer = vec![7; bytes];
    let mut histogram = Histogram::new();
    for call in 0..calls + calls / 10 {
        let start = Instant::now();
        write_all(&mut near, &buffer);
        assert!(read_exact(&mut near, &mut buffer), "the echo ended early");
        if call >= calls / 10 {
            histogram.record(start.elapsed());
        }
    }
    drop(near);
    server.join().expect("the echo thread");
    histogram.p50_us()
}

/// Bandwidth of `count` transfers of `bytes` bytes, each asked for with one byte, in GB/s.
pub(crate) fn bandwidth_gb_s(count: usize, bytes: usize) -> f64 {
    let (mut near, mut far) = spinning_pair();
    let server = thread::spawn(move || {
        pin(1);
        let payload = vec![3; bytes];
        let mut order = [0];
        while read_exact(&mut far, &mut order) {
            write_all(&mut far, &payload);
        }
    });
    pin(0);
    let mut landing = vec![1; bytes];
    let mut start = Instant::now();
    for transfer in 0..=count {
        if transfer == 1 {
            start = Instant::now();
        }
        write_all(&mut near, &[1]);
        assert!(
            read_exact(&mut near, &mut landing),
            "the sender ended early"
        );
    }
    let elapsed = start.elapsed();
    drop(near);
    server.join().expect("the sending thread");
    (count * bytes) as f64 / elapsed.as_secs_f64() / 1e9
}

/// Speed of copying `bytes` bytes between two warm buffers, in GB/s.
pub(crate) fn memcpy_gb_s(count: usize, bytes: usize) -> f64 {
    pin(0);
    let source = vec![5_u8; bytes];
    let mut target = vec![6_u8; bytes];
    let start = Instant::now();
    for _ in 0..count {
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
    }
    (count * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn spinning_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("a bound socket")).expect("connect");
    let (far, _) = listener.accept().expect("accept");
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_nonblocking(true).expect("non-blocking");
    }
    (near, far)
}

fn read_exact(stream: &mut TcpStream, mut buffer: &mut [u8]) -> bool {
    while !buffer.is_empty() {
        let wanted = buffer.len().min(1 << 20);
        match stream.read(&mut buffer[..wanted]) {
            Ok(0) => return false,
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(_) => return false,
        }
    }
    true
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(_) => return,
        }
    }
}
