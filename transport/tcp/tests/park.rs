//! Sleeping and waking, with both drivers.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_tcp::DriverRequest;
use grpcxx_transport::{Park, Transport};

use crate::for_each_driver;
use crate::support::*;

/// Turns until there is nothing left to do.
fn quiet(side: &mut Side) {
    side.settle(Duration::from_millis(3));
}

for_each_driver! {
    fn park_lasts_as_long_as_it_may(driver) {
        let mut side = Side::new(driver);
        side.listen();
        quiet(&mut side);
        let start = Instant::now();
        side.transport.park(Some(Duration::from_millis(30))).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(29), "{:?}", start.elapsed());
    }

    fn waker_ends_the_present_park_and_the_next(driver) {
        let mut side = Side::new(driver);
        quiet(&mut side);
        let waker = side.transport.waker();
        waker.wake_by_ref();
        let start = Instant::now();
        side.transport.park(Some(PATIENCE)).unwrap();
        for _ in 0..20 {
            let waker = waker.clone();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(2));
                waker.wake();
            });
            side.transport.park(Some(PATIENCE)).unwrap();
            thread.join().unwrap();
            quiet(&mut side);
        }
        assert!(start.elapsed() < PATIENCE);
    }

    fn any_of_many_links_ends_a_park(driver) {
        let (mut a, mut b) = (Side::new(driver), Side::new(driver));
        let (links, _) = join(&mut a, &mut b, 20);
        let payload = Buffer::from(pattern(60, 1));
        let start = Instant::now();
        for round in 0..10 {
            for &link in &links {
                assert!(a.send(link, 0, &payload));
            }
            both(&mut a, &mut b, "all came", |_, b| b.messages.len() == 20 * (2 * round + 1));
            for &link in &links {
                quiet(&mut b);
                b.transport.park(Some(Duration::from_millis(1))).unwrap();
                assert!(a.send(link, 0, &payload));
                a.turn();
                let expected = b.seen.messages.len() + 1;
                while b.seen.messages.len() < expected {
                    b.transport.park(Some(PATIENCE)).unwrap();
                    b.turn();
                }
            }
        }
        assert!(start.elapsed() < PATIENCE);
    }

    fn no_wake_is_lost_between_two_threads(driver) {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU64, Ordering};
        let mut side = Side::new(driver);
        let waker = side.transport.waker();
        let (rung, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (ring, look) = (Arc::clone(&rung), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            for count in 1..=2000 {
                ring.store(count, Ordering::SeqCst);
                waker.wake_by_ref();
                while look.load(Ordering::SeqCst) < count {
                    std::hint::spin_loop();
                }
            }
        });
        let start = Instant::now();
        while seen.load(Ordering::SeqCst) < 2000 {
            side.turn();
            seen.store(rung.load(Ordering::SeqCst), Ordering::SeqCst);
            if seen.load(Ordering::SeqCst) < 2000 {
                side.transport.park(Some(Duration::from_secs(5))).unwrap();
            }
        }
        assert!(start.elapsed() < Duration::from_secs(5), "a wake was lost");
        thread.join().unwrap();
    }

    fn traffic_ends_a_park(driver) {
        let (mut a, there, mut b, _) = pair(driver);
        for round in 1..=20 {
            quiet(&mut b);
            let sender = std::time::Duration::from_millis(1);
            assert!(a.send(there, 0, &Buffer::from(pattern(100, 0))));
            a.settle(sender);
            let start = Instant::now();
            while b.seen.messages.len() < round {
                b.transport.park(Some(PATIENCE)).unwrap();
                b.turn();
            }
            assert!(start.elapsed() < Duration::from_secs(5));
        }
    }

    fn lent_descriptor_tells_of_traffic_and_wakes(driver) {
        let (mut a, there, mut b, _) = pair(driver);
        let waker = b.transport.waker();
        for round in 1..=20 {
            quiet(&mut b);
            let fd = lent(&mut b);
            assert!(!is_readable(fd.as_fd(), Duration::from_millis(2)));
            if round % 2 == 0 {
                waker.wake_by_ref();
                assert!(is_readable(fd.as_fd(), Duration::from_secs(5)));
            }
            b.transport.unpark();
            assert!(a.send(there, 0, &Buffer::from(pattern(100, 0))));
            quiet(&mut b);
            let fd = lent(&mut b);
            a.settle(Duration::from_millis(1));
            assert!(is_readable(fd.as_fd(), Duration::from_secs(5)));
            b.transport.unpark();
            b.until("it came", |seen| seen.messages.len() == round);
        }
        waker.wake();
        quiet(&mut b);
        assert!(b.transport.park_fd().is_none(), "woken before");
    }

    fn a_companion_that_stirs_before_a_sleep_elsewhere_is_not_slept_over(driver) {
        let mut side = Side::new(driver);
        let (companion, mut writer) = std::io::pipe().unwrap();
        side.transport.watch(companion.as_fd()).unwrap();
        for _ in 0..5 {
            quiet(&mut side);
            writer.write_all(&[1]).unwrap();
            let sleeps_on = side.transport.park_fd();
            assert!(sleeps_on.is_none_or(|fd| is_readable(fd, Duration::ZERO)));
            side.transport.unpark();
            (&companion).read_exact(&mut [0]).unwrap();
        }
    }

    fn a_companion_that_wakes_once_and_one_that_is_dead_let_the_loop_sleep(driver) {
        let mut side = Side::new(driver);
        let [(alive, writer), (dead, _)] = [(); 2].map(|()| std::io::pipe().unwrap());
        for companion in [&alive, &dead] {
            side.transport.watch(companion.as_fd()).unwrap();
        }
        for round in 0..3 {
            quiet(&mut side);
            // Its death may be told once.
            let naps = (0..10).filter(|_| {
                let start = Instant::now();
                side.transport.park(Some(Duration::from_millis(10))).unwrap();
                side.turn();
                start.elapsed() >= Duration::from_millis(9)
            });
            assert!(naps.count() >= 5, "round {round}: the loop spins");
            rustix::io::write(&writer, b"!").unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(5) {
                side.transport.park(Some(PATIENCE)).unwrap();
                if is_readable(alive.as_fd(), Duration::ZERO) {
                    break;
                }
            }
            assert!(start.elapsed() < Duration::from_secs(5), "the other one is forgotten");
            rustix::io::read(&alive, &mut [0; 1]).unwrap();
            side.turn();
        }
    }

    fn flush_ends_while_its_owner_sleeps(driver) {
        let (mut a, there, mut b, _) = pair(driver);
        assert!(a.send(there, 1, &Buffer::from(pattern(3 << 20, 0))));
        a.transport.close(there, true);
        let start = Instant::now();
        while a.seen.closed.is_empty() {
            a.turn();
            b.turn();
            a.transport.park(Some(Duration::from_millis(5))).unwrap();
            assert!(start.elapsed() < Duration::from_secs(5));
        }
        both(&mut a, &mut b, "it came", |_, b| b.messages.len() == 1);
    }
}
