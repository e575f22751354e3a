//! What this machine can do at best: sockets that spin, and memcpy.

use std::io::Read;
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use grpcxx_benches::sockets::{self, read_exact, read_some, write_all};

use crate::meter::{Measure, Meter, median};
use crate::pin;

/// Which way the payload goes, as the side that measures sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Pull,
    Push,
    /// Both ways, through a registered function.
    Function,
    /// Both ways, through a method of a service.
    Method,
}

/// Round trips of `bytes` bytes each way.
pub(crate) fn round_trips(calls: usize, per_window: usize, bytes: usize) -> Measure {
    exchanges(calls, per_window, bytes, bytes)
}

/// Median time of a round trip of `bytes` bytes whose far end sleeps in a read after each `pause`,
/// in microseconds.
pub(crate) fn round_trip_after_pause_us(calls: usize, pause: Duration, bytes: usize) -> f64 {
    let (mut near, mut far) = spinning_pair();
    far.set_nonblocking(false).expect("blocking");
    let server = thread::spawn(move || {
        pin(1);
        let mut buffer = vec![0; bytes];
        while far.read_exact(&mut buffer).is_ok() {
            write_all(&mut far, &buffer);
        }
    });
    let mut buffer = vec![7; bytes];
    let mut round_trip = || {
        thread::sleep(pause);
        let start = Instant::now();
        write_all(&mut near, &buffer);
        assert!(read_exact(&mut near, &mut buffer), "the echo ended early");
        start.elapsed().as_secs_f64() * 1e6
    };
    let median = on_cpu_0(|| median((0..calls).map(|_| round_trip()).collect()));
    end([near], server);
    median
}

/// Transfers of `bytes` bytes, each asked for, or confirmed, with one byte.
pub(crate) fn transfers(count: usize, per_window: usize, bytes: usize, way: Way) -> Measure {
    match way {
        Way::Pull => exchanges(count, per_window, 1, bytes),
        Way::Push => exchanges(count, per_window, bytes, 1),
        Way::Function | Way::Method => exchanges(count, per_window, bytes, bytes),
    }
}

/// Requests of one length, one after the other, each with an answer of another.
fn exchanges(count: usize, per_window: usize, request: usize, answer: usize) -> Measure {
    let (mut near, far) = spinning_pair();
    let server = thread::spawn(move || {
        pin(1);
        sockets::answer(far, request, answer);
    });
    let request = vec![7; request];
    let mut answer = vec![1; answer];
    let measure = measure(count, per_window, || {
        write_all(&mut near, &request);
        let is_open = read_exact(&mut near, &mut answer);
        assert!(is_open, "the peer ended early");
    });
    end([near], server);
    measure
}

/// Echoes of `bytes` bytes on `connections` connections with `depth` of them under way on each.
pub(crate) fn echoes(
    connections: usize,
    depth: usize,
    count: usize,
    per_window: usize,
    bytes: usize,
) -> Measure {
    let (mut near, far): (Vec<_>, Vec<_>) = (0..connections).map(|_| spinning_pair()).unzip();
    let server = thread::spawn(move || {
        pin(1);
        sockets::echo(far, depth * bytes);
    });
    let measure = on_cpu_0(|| echo_here(&mut near, depth, count, per_window, bytes));
    end(near, server);
    measure
}

fn echo_here(
    near: &mut [TcpStream],
    depth: usize,
    count: usize,
    per_window: usize,
    bytes: usize,
) -> Measure {
    let mut buffer = vec![7; depth * bytes];
    let mut partial = vec![0; near.len()];
    let mut meter = Meter::new(count / per_window, per_window);
    for stream in near.iter_mut() {
        write_all(stream, &buffer);
    }
    let (mut done, warm_up) = (0, count / 10);
    let mut sent_at = vec![Instant::now(); near.len()];
    while done < count + warm_up {
        for (index, stream) in near.iter_mut().enumerate() {
            let len = read_some(stream, &mut buffer).expect("the echo lives");
            let now = Instant::now();
            partial[index] += len;
            for _ in 0..partial[index] / bytes {
                done += 1;
                if done == warm_up {
                    meter.begin_window();
                } else if done > warm_up {
                    meter.note(now, now - sent_at[index]);
                }
            }
            if partial[index] >= bytes {
                sent_at[index] = now;
                write_all(stream, &buffer[..partial[index] / bytes * bytes]);
                partial[index] %= bytes;
            }
        }
    }
    meter.finish()
}

/// Speed of copying `bytes` bytes between two warm buffers, in GB/s.
pub(crate) fn memcpy_gb_s(count: usize, bytes: usize) -> f64 {
    let source = vec![5_u8; bytes];
    let mut target = vec![6_u8; bytes];
    let mut copy = || {
        let start = Instant::now();
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
        bytes as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    on_cpu_0(|| median((0..count).map(|_| copy()).collect()))
}

fn measure(count: usize, per_window: usize, operation: impl FnMut() + Send) -> Measure {
    on_cpu_0(|| measure_here(count, per_window, operation))
}

/// Runs `work` in a thread of its own, so that the caller stays free to run anywhere.
fn on_cpu_0<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let pinned = || {
        pin(0);
        work()
    };
    thread::scope(|scope| scope.spawn(pinned).join().expect("the near side"))
}

fn measure_here(count: usize, per_window: usize, mut operation: impl FnMut()) -> Measure {
    let mut meter = Meter::new(count / per_window, per_window);
    for _ in 0..(count / 10).max(2) {
        operation();
    }
    meter.begin_window();
    let mut begun = Instant::now();
    for _ in 0..count {
        operation();
        let now = Instant::now();
        meter.note(now, now - begun);
        begun = Instant::now();
    }
    meter.finish()
}

fn end(near: impl IntoIterator<Item = TcpStream>, server: JoinHandle<()>) {
    near.into_iter().for_each(drop);
    server.join().expect("the far side");
}

fn spinning_pair() -> (TcpStream, TcpStream) {
    sockets::pair().expect("a connection over loopback")
}
