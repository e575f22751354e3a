use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ledger::ANSWER_LASTS;
use super::*;

fn of_free(free_bytes: &Arc<AtomicU64>) -> Headroom {
    let free_bytes = Arc::clone(free_bytes);
    Headroom::new(8 << 30, move || Some(free_bytes.load(Ordering::Relaxed)))
}

const STEP: u64 = 32 << 20;

fn raise(loan: &mut Loan, bytes: u64) -> Result<(), Shortage> {
    let need = Need {
        whole_bytes: bytes,
        rest_bytes: 0,
    };
    loan.raise_to(bytes, need)
}

#[test]
fn an_eighth_and_a_step_for_each_other_arena_stay_unused() {
    let free_bytes = Arc::new(AtomicU64::new(4 << 30));
    let headroom = of_free(&free_bytes);
    assert_eq!(headroom.step_bytes(), STEP);
    let mut first = headroom.open();
    raise(&mut first, 1).unwrap();
    assert_eq!(first.bytes(), STEP);
    free_bytes.store((1 << 30) + 3 * STEP, Ordering::Relaxed);
    headroom.0.lock().note_returned();
    let mut second = headroom.open();
    let refused = raise(&mut second, 2 * STEP + 1).unwrap_err();
    let expected = Shortage::Memory {
        allowed_bytes: 2 * STEP,
        free_bytes: (1 << 30) + 3 * STEP,
        kept_bytes: (1 << 30) + STEP,
    };
    assert_eq!(refused, expected);
    raise(&mut second, 2 * STEP).unwrap();
    drop(first);
    assert!(headroom.check(3 * STEP, true).is_ok());
    assert!(headroom.check(3 * STEP, false).is_err());
}

#[test]
fn less_than_a_step_is_lent_where_little_is_free() {
    let free_bytes = Arc::new(AtomicU64::new((1 << 30) + STEP / 2));
    let headroom = of_free(&free_bytes);
    let mut loan = headroom.open();
    raise(&mut loan, STEP / 4).unwrap();
    assert_eq!(loan.bytes(), STEP / 4);
    free_bytes.store((1 << 30) + 32 * STEP, Ordering::Relaxed);
    headroom.0.lock().note_returned();
    raise(&mut loan, STEP / 4 + 1).unwrap();
    assert_eq!(loan.bytes(), STEP / 4 + STEP / 2);
    raise(&mut loan, 0).unwrap();
    loan.lower_to(0);
    assert_eq!(loan.bytes(), 0);
}

#[test]
fn the_system_is_asked_at_each_step_and_not_for_each_refusal() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let headroom = Headroom::new(8 << 30, move || {
        count.fetch_add(1, Ordering::Relaxed);
        Some((1 << 30) + 64 * STEP)
    });
    let mut loan = headroom.open();
    (0..STEP)
        .step_by(1 << 20)
        .for_each(|bytes| raise(&mut loan, bytes).unwrap());
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    let begin = Instant::now();
    for _ in 0..100 {
        assert!(raise(&mut loan, 66 * STEP).is_err());
    }
    let times = 2 + begin.elapsed().as_millis() / ANSWER_LASTS.as_millis();
    assert!(u128::from(asked.load(Ordering::Relaxed)) <= 1 + times);
}

#[test]
fn the_system_is_asked_seldom_by_those_that_grow_on_and_on() {
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    let headroom = Headroom::new(8 << 30, move || {
        count.fetch_add(1, Ordering::Relaxed);
        Some(4 << 30)
    });
    let mut loan = headroom.open();
    let begin = Instant::now();
    for step in 1..=64 {
        raise(&mut loan, step * STEP).unwrap();
    }
    let times = 2 + begin.elapsed().as_millis() / ANSWER_LASTS.as_millis();
    assert!(u128::from(asked.load(Ordering::Relaxed)) <= times);
}

#[test]
fn what_was_granted_is_not_promised_again_before_the_system_sees_it() {
    let free_bytes = Arc::new(AtomicU64::new((1 << 30) + 65 * STEP));
    let headroom = of_free(&free_bytes);
    let mut loans = [headroom.open(), headroom.open()];
    let begin = Instant::now();
    let refused = (0..65_usize).find(|granted| {
        let bytes = (granted / 2 + 1) as u64 * STEP;
        raise(&mut loans[granted % 2], bytes).is_err()
    });
    // The system may be asked again, and has seen nothing of it yet.
    let is_late = begin.elapsed() > ANSWER_LASTS;
    assert!(refused.is_some() || is_late, "more than is free");
}

/// What it needs beside `bytes` is `rest_bytes`.
fn raise_part(loan: &mut Loan, bytes: u64, rest_bytes: u64) -> Result<(), Shortage> {
    let need = Need {
        whole_bytes: bytes + rest_bytes,
        rest_bytes,
    };
    loan.raise_to(bytes, need)
}

#[test]
fn what_the_first_still_needs_is_kept_from_later_ones_as_far_as_it_has_as_much() {
    let free_bytes = Arc::new(AtomicU64::new((1 << 30) + 105 * STEP));
    let headroom = of_free(&free_bytes);
    let (mut first, mut later) = (headroom.open(), headroom.open());
    let forget = || headroom.0.lock().note_returned();
    let left = |steps: u64| free_bytes.store((1 << 30) + (steps + 1) * STEP, Ordering::Relaxed);
    raise_part(&mut first, STEP, 63 * STEP).unwrap();
    left(64);
    forget();
    assert!(raise_part(&mut later, 64 * STEP, STEP).is_err());
    raise_part(&mut later, 63 * STEP, STEP).unwrap();
    // It has priority over what came later, whatever that has.
    left(1);
    forget();
    raise_part(&mut first, 2 * STEP, 62 * STEP).unwrap();
    left(4);
    forget();
    assert!(raise(&mut later, 66 * STEP).is_err());
    raise(&mut later, 65 * STEP).unwrap();
    // Once it is complete it needs no more.
    raise_part(&mut first, 2 * STEP, 0).unwrap();
    left(4);
    forget();
    assert!(raise(&mut later, 69 * STEP).is_err());
    let whole = Need {
        whole_bytes: 64 * STEP,
        rest_bytes: 0,
    };
    first.raise_to(2 * STEP, whole).unwrap();
    raise(&mut later, 69 * STEP).unwrap();
}

#[test]
fn who_would_be_refused_waits_for_memory_that_is_on_its_way_back() {
    let free_bytes = Arc::new(AtomicU64::new((1 << 30) + 2 * STEP));
    let headroom = of_free(&free_bytes);
    let mut large = headroom.open();
    let need = Need {
        whole_bytes: 9 * STEP,
        rest_bytes: 0,
    };
    let (_, returning) = large.raise_or_return(9 * STEP, need).unwrap_err();
    let other = headroom.clone();
    let waiting = std::thread::spawn(move || {
        let raised = other.open().raise_or_return(4 * STEP, need);
        raised.map_err(|(shortage, _)| shortage)
    });
    std::thread::sleep(Duration::from_millis(20));
    free_bytes.store((1 << 30) + 9 * STEP, Ordering::Relaxed);
    drop(returning);
    waiting.join().unwrap().unwrap();
}

#[test]
fn two_ask_the_system_at_once() {
    let both = Barrier::new(2);
    let headroom = Headroom::new(8 << 30, move || {
        both.wait();
        Some(4 << 30)
    });
    let (done, told) = std::sync::mpsc::channel();
    for _ in 0..2 {
        let (headroom, done) = (headroom.clone(), done.clone());
        std::thread::spawn(move || done.send(raise(&mut headroom.open(), 1)));
    }
    for _ in 0..2 {
        let raised = told.recv_timeout(Duration::from_secs(10));
        raised.expect("one waits for the other's answer").unwrap();
    }
}

#[test]
fn a_system_that_says_nothing_has_nothing_free() {
    let headroom = Headroom::new(8 << 30, || None);
    assert!(headroom.check(1, false).is_err());
    assert_eq!(
        available_bytes("MemTotal: 7 kB\nMemAvailable:   12 kB\n"),
        Some(12 << 10)
    );
    for text in [
        "",
        "MemAvailable:",
        "MemAvailable: 1",
        "MemAvailable: -1 kB",
    ] {
        assert_eq!(available_bytes(text), None, "{text}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "asks the operating system")]
fn the_machine_has_less_free_than_it_has() {
    let headroom = Headroom::of_machine().expect("Linux tells");
    let free_bytes = free_memory_bytes().expect("Linux tells");
    assert!((1..=headroom.usable_bytes()).contains(&free_bytes));
}
