use grpcxx_transport::SlotId;

use super::*;

const SHARES: PeerShares = PeerShares {
    connections: 3,
    connection_steps: 2,
    steps: 3,
    waiting: 6,
    unsent_bytes: 1,
    key_bytes: 1,
    streams: 2,
    all_streams: 3,
    staged_pushes: 1,
    staged_patience: Duration::from_secs(1),
    staged_life: Duration::from_secs(1),
    staged_bytes: 1,
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
    for slot in 0..5 {
        stranger.begin(request(slot), 10);
    }
    member.begin(request(1), 20);
    assert!(member.may_begin(20, &SHARES).is_err(), "all of the address");
    let stream = member.begin_stream(&SHARES).unwrap();
    member.belong_to(account(1).proven(None), &SHARES);
    let streams = |waits: &Waits| waits.held.streams.load(Ordering::Relaxed);
    assert_eq!((streams(&member), streams(&stranger)), (1, 0));
    drop(stream);
    assert_eq!((streams(&member), streams(&stranger)), (0, 0));
    assert_eq!(member.may_begin(20, &SHARES), Ok(()));
    assert_eq!(stranger.may_begin(10, &SHARES), Ok(()), "what has moved");
    assert_eq!(member.end(request(1)), Some(20));
    assert_eq!(member.held.waiting.load(Ordering::Relaxed), 0);
    let open: Vec<_> = (0..2).map(|_| join()).collect();
    assert!(accounts.join(account(1), &SHARES).is_none());
    drop((open, stranger, member));
    assert!(accounts.lock().is_empty());
}

#[test]
fn a_peer_has_a_share_of_the_requests_that_wait() {
    let accounts = Arc::new(Accounts::default());
    let mut waits = accounts.join(account(1), &SHARES).unwrap();
    for slot in 0..6 {
        assert_eq!(waits.may_begin(1, &SHARES), Ok(()));
        waits.begin(request(slot), 1);
    }
    assert!(waits.may_begin(1, &SHARES).is_err());
    waits.end(request(0));
    assert_eq!(waits.may_begin(1, &SHARES), Ok(()));
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
