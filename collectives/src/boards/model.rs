//! All interleavings of a rank that goes to sleep and one that shows something.

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::*;

/// Both ends of a pair of ranks: one that waits, and one that shows.
fn pair() -> (Boards, Boards) {
    let boards = [0, 1].map(|_| Board::new(DATA_BYTES).expect("words"));
    let views = [boards[1].view(), boards[0].view()];
    let [first, second] = boards;
    let [second_view, first_view] = views;
    let waits = Boards::new(0, first, vec![(1, second_view)]);
    let shows = Boards::new(1, second, vec![(0, first_view)]);
    (waits, shows)
}

/// A rank waits for operations one by one, and hears bells as they come. Returns whether it has
/// seen all of them; if not, it sleeps.
fn wait_for(
    waits: &mut Boards,
    (operations, sleep): (u64, Sleep),
    bells: &Mutex<Vec<Bell>>,
) -> bool {
    loop {
        while waits.steps > 0 && !waits.has(1) {
            waits.fall_asleep(sleep, [1].into_iter());
            if waits.has(1) {
                break;
            }
            if bells.lock().expect("no panic").pop().is_none() {
                return false;
            }
            waits.rung_by(1);
        }
        waits.wake_up();
        if waits.steps == operations {
            return true;
        }
        waits.show(&[0; DESCRIPTION_BYTES], &[]);
    }
}

/// Whoever sleeps has been seen asleep: a bell is on its way to it.
fn no_rank_is_left_asleep(operations: u64, sleep: Sleep) {
    loom::model(move || {
        let (mut waits, mut shows) = pair();
        let bells = Arc::new(Mutex::new(Vec::new()));
        let rung = Arc::clone(&bells);
        let thread = thread::spawn(move || {
            for _ in 0..operations {
                let due = shows.show(&[0; DESCRIPTION_BYTES], &[]);
                rung.lock().expect("no panic").extend(due);
            }
        });
        let mut has_all = wait_for(&mut waits, (operations, sleep), &bells);
        thread.join().expect("no panic");
        if !has_all {
            assert!(
                !bells.lock().expect("no panic").is_empty(),
                "nobody rings for a rank that sleeps"
            );
            has_all = wait_for(&mut waits, (operations, sleep), &bells);
        }
        assert!(has_all, "a bell leads to what was shown before it");
    });
}

#[test]
fn loom_a_rank_that_sleeps_is_rung_for() {
    no_rank_is_left_asleep(1, Sleep::Deep);
}

#[test]
fn loom_each_sleep_has_a_bell_of_its_own() {
    no_rank_is_left_asleep(2, Sleep::Deep);
}

#[test]
fn loom_a_rank_that_dozes_is_rung_for() {
    no_rank_is_left_asleep(2, Sleep::Doze);
}
