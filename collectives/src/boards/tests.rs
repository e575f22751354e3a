use grpcxx_runtime::placement;

use super::*;
use crate::plan::DIRECT_RANKS_MAX;

/// The boards of a group whose ranks are threads of this process.
fn all(size: u32) -> Vec<Boards> {
    let offers: Vec<Offer> = (0..size).map(|_| Offer::new().unwrap()).collect();
    let told: Vec<String> = offers.iter().map(|offer| offer.told().to_owned()).collect();
    let told: Vec<&str> = told.iter().map(String::as_str).collect();
    let open = |(rank, offer): (u32, Offer)| offer.open(rank, &told).unwrap();
    (0..).zip(offers).map(open).collect()
}

#[test]
fn each_rank_reads_what_the_others_show() {
    let mut boards = all(3);
    for (rank, board) in boards.iter_mut().enumerate() {
        let array: [u8; 9] = [10 + rank as u8; 9];
        let bells = board.show(&[rank as u8; DESCRIPTION_BYTES], &[(0, &array), (20, &[7])]);
        assert!(bells.is_empty(), "nobody sleeps");
    }
    assert!(boards[0].has(2) && boards[0].has(1));
    let read = boards[0].read(2, 4..9);
    assert_eq!(read[..DESCRIPTION_BYTES], [2; DESCRIPTION_BYTES]);
    assert_eq!(read[DESCRIPTION_BYTES..], [12; 5]);
    let mut last = [0];
    boards[0].read_into(1, 20, &mut last);
    assert_eq!(last, [7]);
    boards[0].show(&[0; DESCRIPTION_BYTES], &[]);
    assert!(!boards[0].has(2), "it is a step behind");
}

#[test]
fn a_bell_is_rung_once_for_who_sleeps() {
    let [mut first, mut second]: [Boards; 2] = all(2).try_into().unwrap();
    let words = [0; DESCRIPTION_BYTES];
    first.fall_asleep(Sleep::Deep, [1].into_iter());
    assert_eq!(second.show(&words, &[])[..], [(0, 1)]);
    // The bell is on its way, so the same sleep brings no other.
    assert!(second.show(&words, &[]).is_empty());
    // It was awake when the bell came, and asks for the next one.
    first.wake_up();
    assert_eq!(first.rung_by(1), 2);
    assert!(second.show(&words, &[]).is_empty());
    first.fall_asleep(Sleep::Deep, [1].into_iter());
    assert_eq!(second.show(&words, &[])[..], [(0, 2)]);
}

#[test]
fn a_rank_that_dozes_is_rung_for_unless_it_looks() {
    let [mut first, mut second]: [Boards; 2] = all(2).try_into().unwrap();
    first.fall_asleep(Sleep::Doze, [1].into_iter());
    assert_eq!(second.show(&[0; DESCRIPTION_BYTES], &[])[..], [(0, 1)]);
    first.rung_by(1);
    first.fall_asleep(Sleep::Doze, [1].into_iter());
    first.wake_up();
    assert!(second.show(&[0; DESCRIPTION_BYTES], &[]).is_empty());
}

#[test]
fn what_others_tell_is_checked() {
    let told = |index: usize, with: &str| {
        let offers = [Offer::new().unwrap(), Offer::new().unwrap()];
        let mut words: Vec<String> = offers[1].told().split(' ').map(str::to_owned).collect();
        words[index] = with.to_owned();
        let (own, other) = (offers[0].told().to_owned(), words.join(" "));
        let [own_offer, _other_offer] = offers;
        own_offer.open(0, &[&own, &other]).unwrap_err().to_string()
    };
    assert_eq!(told(0, "elsewhere"), "rank 1 is on another host");
    assert_eq!(
        told(1, "pid:[1]"),
        "rank 1 is in another namespace of processes"
    );
    assert!(told(2, "4294967295").starts_with("rank 1 hides its memory: "));
    assert!(told(3, "0").starts_with("rank 1 hides its memory: "));
    assert_eq!(
        told(4, "0"),
        "rank 1 has other memory where its own should be"
    );
    for (index, text) in [(2, "-1"), (3, "x"), (5, "0 0")] {
        assert_eq!(told(index, text), "rank 1 has no shared memory");
    }
}

#[test]
fn each_rank_has_a_word_for_each_other() {
    assert!(SLEEPS + DIRECT_RANKS_MAX as usize <= grpcxx_memory::BOARD_WORDS);
}

#[test]
fn ranks_are_crowded_where_they_share_their_cpus() {
    let allowed = placement::allowed_cpus();
    let &[first, second, ..] = allowed.as_slice() else {
        // Here all share one.
        assert!(all(2).iter().all(Boards::are_crowded));
        return;
    };
    let crowded = |cpus: [usize; 2]| {
        let offers = cpus.map(|cpu| pinned(cpu, || Offer::new().unwrap()));
        let told = [0, 1].map(|rank: usize| offers[rank].told().to_owned());
        let [offer, _other] = offers;
        let open = move || offer.open(0, &[&told[0], &told[1]]).unwrap().are_crowded();
        pinned(cpus[0], open)
    };
    assert!(crowded([first, first]));
    assert!(!crowded([first, second]), "each may run on one alone");
}

/// What code on a thread of its own returns that may run on one CPU.
fn pinned<R: Send>(cpu: usize, code: impl FnOnce() -> R + Send) -> R {
    let run = || {
        placement::pin_current_thread(cpu).unwrap();
        code()
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}
