use grpcxx_transport::SlotId;

use super::*;

const SHARES: PeerShares = PeerShares {
    connections: 3,
    all_connections: 100,
    connection_steps: 2,
    steps: 3,
    waiting: 8,
    unsent_bytes: 1,
    key_bytes: 1,
    streams: 2,
    all_streams: 3,
    staged_pushes: 1,
    staged_patience: Duration::from_secs(1),
    staged_life: Duration::from_secs(1),
    staged_bytes: 1,
    staged_bytes_alone: 1,
};

fn request(slot: u32) -> RequestId {
    RequestId::from_token(
        SlotId {
            slot,
            generation: 1,
        }
        .raw(),
    )
}

fn account(last: u8) -> Account {
    Account::of([10, 0, 0, last].into())
}

/// Lets as many requests wait in a step as may. Returns how many.
fn fill(waits: &mut Waits, step_id: i64, shares: &PeerShares) -> usize {
    let mut slots = 0..;
    while waits.may_begin(step_id, shares).is_ok() {
        waits.begin(request(slots.next().unwrap()), step_id);
    }
    slots.start as usize
}

#[test]
fn a_connection_and_a_peer_have_shares_of_the_steps() {
    let accounts = Arc::new(Accounts::default());
    let join = |last| accounts.join(account(last), &SHARES).unwrap();
    let (mut one, mut other, stranger) = (join(1), join(1), join(2));
    one.begin(request(1), 10);
    one.begin(request(2), 20);
    assert!(one.may_begin(30, &SHARES).is_err(), "its third step");
    assert_eq!(one.may_begin(10, &SHARES), Ok(()), "a step that it is in");
    assert_eq!(other.may_begin(30, &SHARES), Ok(()));
    other.begin(request(1), 30);
    let refused = other.may_begin(40, &SHARES).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    assert_eq!(other.may_begin(30, &SHARES), Ok(()));
    assert_eq!(stranger.may_begin(40, &SHARES), Ok(()));
    assert_eq!(one.end(request(1)), Some(10));
    assert_eq!(one.end(request(1)), None);
    assert_eq!(other.may_begin(40, &SHARES), Ok(()));
    drop(one);
    other.begin(request(2), 40);
    assert_eq!(other.held.steps.load(Ordering::Relaxed), 2);
    assert_eq!(other.end_all().len(), 2);
}

#[test]
fn what_is_proven_has_a_share_apart_from_strangers_at_its_address() {
    let accounts = Arc::new(Accounts::default());
    let join = || accounts.join(account(1), &SHARES).unwrap();
    let (mut stranger, mut member) = (join(), join());
    assert_eq!(fill(&mut stranger, 10, &SHARES), 4);
    assert_eq!(
        fill(&mut member, 20, &SHARES),
        2,
        "what is left at the address"
    );
    let stream = member.begin_stream(&SHARES).unwrap();
    stranger.end(request(0));
    assert!(stranger.may_begin(10, &SHARES).is_err());
    member.belong_to(account(1).proven(None), &SHARES);
    let streams = |waits: &Waits| waits.held.streams.load(Ordering::Relaxed);
    assert_eq!((streams(&member), streams(&stranger)), (1, 0));
    drop(stream);
    assert_eq!((streams(&member), streams(&stranger)), (0, 0));
    assert_eq!(member.may_begin(20, &SHARES), Ok(()));
    assert_eq!(stranger.may_begin(10, &SHARES), Ok(()), "what has moved");
    assert_eq!(member.end_all().len(), 2);
    assert_eq!(member.held.waiting.load(Ordering::Relaxed), 0);
    let open: Vec<_> = (0..2).map(|_| join()).collect();
    assert!(accounts.join(account(1), &SHARES).is_none());
    drop((open, stranger, member));
    assert!(accounts.lock().is_empty());
}

#[test]
fn each_connection_has_a_part_of_the_requests_of_its_peer_that_wait() {
    let accounts = Arc::new(Accounts::default());
    let shares = SHARES.with(|shares| (shares.connections, shares.steps) = (6, 100));
    let join = || accounts.join(account(1), &shares).unwrap();
    let mut open: Vec<Waits> = (0..6).map(|_| join()).collect();
    let parts: Vec<usize> = open
        .iter_mut()
        .map(|waits| fill(waits, 1, &shares))
        .collect();
    assert_eq!(
        parts,
        [4, 2, 1, 1, 0, 0],
        "who comes later gets less, and not nothing at once"
    );
    open[0].end(request(0));
    assert!(
        open[0].may_begin(1, &shares).is_err(),
        "it has more than its part"
    );
    assert_eq!(open[5].may_begin(1, &shares), Ok(()));
}

#[test]
fn a_peer_has_a_share_of_the_streams() {
    let accounts = Arc::new(Accounts::default());
    let join = |last| accounts.join(account(last), &SHARES).unwrap();
    let (one, other, stranger) = (join(1), join(1), join(2));
    let begin = |waits: &Waits| waits.begin_stream(&SHARES);
    let first = begin(&one).unwrap();
    let second = begin(&other).unwrap();
    let refused = begin(&one).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    let third = begin(&stranger).unwrap();
    assert!(begin(&stranger).is_err(), "as many as all have together");
    drop((one, first));
    assert!(begin(&other).is_ok() && begin(&stranger).is_ok());
    drop((second, third));
    let visit = |last| accounts.visit(account(last), &SHARES);
    let visits = [visit(1).unwrap(), visit(1).unwrap()];
    assert!(visit(1).is_err() && begin(&other).is_err(), "both doors");
    drop((other, stranger));
    assert!(visit(1).is_err() && visit(2).is_ok());
    drop(visits);
    assert!(accounts.lock().is_empty());
    assert_eq!(accounts.streams.load(Ordering::Relaxed), 0);
}

#[test]
fn a_peer_that_connects_again_still_has_its_streams() {
    let accounts = Arc::new(Accounts::default());
    let join = || accounts.join(account(1), &SHARES).unwrap();
    let begin = |waits: &Waits| waits.begin_stream(&SHARES);
    let gone = join();
    let streams = [begin(&gone).unwrap(), begin(&gone).unwrap()];
    drop(gone);
    let again = join();
    assert!(begin(&again).is_err(), "those of before have not ended");
    drop(streams);
    assert!(begin(&again).is_ok());
    drop(again);
    assert!(accounts.lock().is_empty());
}

#[test]
fn a_peer_has_a_share_of_the_connections() {
    let accounts = Arc::new(Accounts::default());
    let join = |last| accounts.join(account(last), &SHARES);
    let mut open: Vec<_> = (0..3).map(|_| join(1).unwrap()).collect();
    assert!(join(1).is_none() && join(2).is_some());
    open.pop();
    assert!(join(1).is_some());
    drop(open);
    assert!(accounts.lock().is_empty());
}

#[test]
fn a_peer_has_a_part_of_memory_for_messages_that_are_not_complete() {
    let accounts = Arc::new(Accounts {
        arriving: Arriving {
            bytes_max: 200,
            arenas: 1,
        },
        ..Accounts::default()
    });
    let join = |last| accounts.join(account(last), &SHARES).unwrap();
    let (mut one, stranger) = (join(1), join(2));
    let begin = |waits: &Waits| waits.begin_stream(&SHARES).unwrap();
    let (first, second) = (begin(&one), begin(&one));
    assert_eq!(first.hold_parts(0, 90), Ok(()));
    assert_eq!(first.hold_parts(90, 400), Ok(()), "one alone may be long");
    let refused = second.hold_parts(0, 10).unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    let other = begin(&stranger);
    assert_eq!(other.hold_parts(0, 60), Ok(()));
    first.release_parts(490);
    assert_eq!(second.hold_parts(0, 100), Ok(()));
    // They go with their connection when that turns out to be of another peer.
    one.belong_to(account(2), &SHARES);
    assert!(other.hold_parts(60, 10).is_err());
    second.release_parts(100);
    assert_eq!(other.hold_parts(60, 10), Ok(()));
}
