//! What traffic costs beside time: copies, and allocations.

use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_tcp::DriverRequest;
use grpcxx_transport::{Frame, LinkId, Transport};

use crate::for_each_driver;
use crate::support::*;

/// Refills a frame that came back and sends it again.
fn send_again(side: &mut Side, link: LinkId, payload: &Buffer) {
    let mut frame = side.seen.spare_frames.pop().unwrap();
    refill(&mut frame, payload);
    side.transport.send(link, frame).unwrap();
}

fn refill(frame: &mut Frame, payload: &Buffer) {
    frame.clear();
    let head = (payload.len() as u64).to_le_bytes();
    frame.bytes_mut().extend_from_slice(&head);
    frame.attach(payload.clone());
}

fn exchange(
    a: &mut Side,
    there: LinkId,
    b: &mut Side,
    back: LinkId,
    payload: &Buffer,
    rounds: u64,
) {
    for _ in 0..rounds {
        let goals = [&*a, &*b].map(|side| side.seen.received_bytes + 2 * payload.len() as u64);
        for _ in 0..2 {
            send_again(a, there, payload);
            send_again(b, back, payload);
        }
        let end = Instant::now() + PATIENCE;
        while [&*a, &*b].map(|side| side.seen.received_bytes) != goals
            || [&*a, &*b].map(|side| side.seen.spare_frames.len()) != [FRAMES; 2]
        {
            a.turn();
            b.turn();
            assert!(Instant::now() < end, "messages got lost");
        }
    }
}

const FRAMES: usize = 4;
const TRIES: usize = 4;

for_each_driver! {
    fn steady_state_allocates_nothing(driver) {
        for size in [60, 500, 8192, 100_000, 1 << 20] {
            let (mut a, there, mut b, back) = pair(driver);
            let payload = Buffer::from(pattern(size, 0));
            for side in [&mut a, &mut b] {
                side.seen.recycles = true;
                side.seen.spare_frames.extend((0..FRAMES).map(|_| Box::default()));
            }
            exchange(&mut a, there, &mut b, back, &payload, 50);
            // A send that the kernel takes in more pieces than any before it needs longer lists,
            // once.
            let mut counts = Vec::with_capacity(TRIES);
            while counts.len() < TRIES && !counts.contains(&0) {
                let info = allocation_counter::measure(|| {
                    exchange(&mut a, there, &mut b, back, &payload, 200);
                });
                counts.push(info.count_total);
            }
            assert!(counts.contains(&0), "{size} bytes: {counts:?} allocations");
        }
    }

    /// A payload takes no detour: all is received in place but a first piece, which came with the
    /// head, and a last one, if it is small.
    fn payloads_of_8_kib_and_more_land_directly(driver) {
        let (mut a, there, mut b, _) = pair(driver);
        for size in [8 << 10, 64 << 10, 1 << 20] {
            let before = b.transport.counters();
            let payload = Buffer::from(pattern(size, 0));
            const COUNT: u64 = 20;
            for index in 0..COUNT {
                assert!(a.send(there, index, &payload));
            }
            both(&mut a, &mut b, "all came", |_, b| b.messages.len() == COUNT as usize);
            b.seen.messages.clear();
            let after = b.transport.counters();
            let staged = after.staged_bytes - before.staged_bytes;
            let direct = after.direct_bytes - before.direct_bytes;
            assert_eq!(staged + direct, COUNT * (size as u64 + 8));
            let tails = if size > 8 << 10 { COUNT * 4096 } else { 0 };
            assert!(staged <= 4096 + COUNT * 512 + tails, "{size}: {staged} staged, {direct} direct");
        }
    }

    fn idle_turns_make_no_system_call_for_the_ring(driver) {
        let (mut a, _, mut b, _) = pair(driver);
        b.settle(Duration::from_millis(5));
        let mut idle_polls = || {
            let before = a.transport.counters().polls;
            (0..1000).for_each(|_| {
                a.turn();
            });
            a.transport.counters().polls - before
        };
        // By and by the link goes to wait in the ring.
        idle_polls();
        if driver == DriverRequest::IoUring {
            assert_eq!(idle_polls(), 0);
        }
    }
}
