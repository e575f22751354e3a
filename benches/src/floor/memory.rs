use std::collections::VecDeque;
use std::hint::{black_box, spin_loop};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rtrb::{Consumer, Producer, RingBuffer};

use super::super::report::Measured;

/// Copies the tensors of a step, one after the other, into memory of the same sizes, again and
/// again.
pub(super) fn copies(sizes: &[u64], crossings: u64, duration: Duration) -> Measured {
    let buffers = |value: u8| -> Vec<Vec<u8>> {
        sizes
            .iter()
            .map(|size| vec![value; *size as usize])
            .collect()
    };
    let source = buffers(5);
    let mut target = buffers(6);
    let mut measured = Measured::default();
    let start = Instant::now();
    let from = start + duration / 8;
    let until = from + duration;
    let mut begin = start;
    let mut first = None;
    while begin < until || measured.steps == 0 {
        for _ in 0..crossings {
            for (target, source) in target.iter_mut().zip(&source) {
                target.copy_from_slice(black_box(source));
            }
            black_box(&mut target);
        }
        let end = Instant::now();
        if begin >= from {
            first.get_or_insert(begin);
            measured.record(end - begin);
        }
        begin = end;
    }
    measured.calls = measured.steps * sizes.len() as u64;
    measured.elapsed = begin - first.unwrap_or(start);
    measured
}

/// A thread that sends back what it gets over a ring in shared memory.
pub(super) struct Echo {
    to_far: Producer<Line>,
    at_near: Consumer<Line>,
    far: JoinHandle<()>,
}

impl Echo {
    /// Starts the thread, which may run wherever the caller may, for at most `in_flight` messages
    /// at once.
    pub(super) fn start(in_flight: usize) -> Self {
        let (to_far, mut at_far) = RingBuffer::<Line>::new(in_flight.max(1));
        let (mut to_near, at_near) = RingBuffer::<Line>::new(in_flight.max(1));
        let far = thread::spawn(move || {
            while !at_far.is_abandoned() || !at_far.is_empty() {
                match at_far.pop() {
                    // The rings are equally long, so what came in also fits out.
                    Ok(line) => drop(to_near.push(line)),
                    Err(_) => spin_loop(),
                }
            }
        });
        Self {
            to_far,
            at_near,
            far,
        }
    }

    /// Sends messages of a cache line there and back, `in_flight` at once.
    pub(super) fn measure(mut self, in_flight: usize, duration: Duration) -> Measured {
        let mut measured = Measured::default();
        let start = Instant::now();
        let from = start + duration / 8;
        let until = from + duration;
        let mut begun = VecDeque::with_capacity(in_flight);
        let (mut first, mut last) = (from, from);
        loop {
            let now = Instant::now();
            while begun.len() < in_flight
                && (now < until || measured.steps == 0)
                && self.to_far.push(Line([7; 8])).is_ok()
            {
                begun.push_back(now);
            }
            if begun.is_empty() {
                break;
            }
            while self.at_near.pop().is_err() {
                spin_loop();
            }
            let end = Instant::now();
            let mut arrived = 1;
            while arrived < begun.len() && self.at_near.pop().is_ok() {
                arrived += 1;
            }
            for begin in begun.drain(..arrived) {
                if begin >= from {
                    if measured.steps == 0 {
                        first = begin;
                    }
                    measured.record(end - begin);
                    last = end;
                }
            }
        }
        drop(self.to_far);
        // The far thread ends when it finds its ring abandoned.
        let _ = self.far.join();
        measured.calls = measured.steps;
        measured.elapsed = last - first;
        measured
    }
}

/// As much as one cache line holds.
#[derive(Clone, Copy)]
struct Line(#[expect(dead_code, reason = "only its length matters")] [u64; 8]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_rings_measure_something() {
        let copied = copies(&[64, 1 << 20], 2, Duration::from_millis(20));
        assert!(copied.steps > 0 && copied.calls == 2 * copied.steps);
        for in_flight in [1, 32] {
            let echo = Echo::start(in_flight);
            let rung = echo.measure(in_flight, Duration::from_millis(40));
            assert!(
                rung.steps > 0 && rung.elapsed > Duration::ZERO,
                "{in_flight}"
            );
        }
    }
}
