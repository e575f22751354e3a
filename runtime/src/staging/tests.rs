use std::sync::Arc;

use arc_swap::ArcSwap;
use grpcxx_rpc::StoreLimits;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const LIFE: Duration = Duration::from_secs(3600);
const LIMITS: StagingLimits = StagingLimits {
    pushes_max: 2,
    bytes_max: u64::MAX,
    bytes_alone_max: u64::MAX,
    patience: PATIENCE,
    life: LIFE,
};
/// The bytes for which a number counts under a name of one letter.
const NUMBER: u64 = TensorStore::ENTRY_BYTES + 1 + 8;
const EARLY: Time = Time::from_nanos(1);

fn limited(limits: StoreLimits) -> Staging {
    let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(limits)));
    Staging::new(&store, &Arc::default(), LIMITS)
}

fn staging() -> Staging {
    limited(StoreLimits::default())
}

/// Two connections of one engine.
fn pair(limits: StoreLimits) -> (Staging, Staging) {
    let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(limits)));
    let total = Arc::default();
    let staging = || Staging::new(&store, &total, LIMITS);
    (staging(), staging())
}

fn account(last: u8) -> Account {
    Account::of([10, 0, 0, last].into())
}

fn call(number: u64, feeds: &[(&str, u64)]) -> GraphCall {
    let tensor = |(name, value): &(&str, u64)| (Text::from(*name), Tensor::scalar(*value));
    GraphCall {
        step_id: number,
        feeds: feeds.iter().map(tensor).collect(),
        ..GraphCall::default()
    }
}

impl Staging {
    fn stage(&self, number: u64, feeds: &[(&str, u64)]) -> Result<(), Status> {
        self.stage_as(1, number, feeds)
    }

    fn stage_as(&self, peer: u8, number: u64, feeds: &[(&str, u64)]) -> Result<(), Status> {
        self.serve(Act::Stage, call(number, feeds), (account(peer), EARLY))
    }

    fn stage_at(&self, number: u64, feeds: &[(&str, u64)], now: Time) -> Result<(), Status> {
        self.serve(Act::Stage, call(number, feeds), (account(1), now))
    }

    fn end(&self, act: Act, number: u64) -> Result<(), Status> {
        self.serve(act, call(number, &[]), (account(1), EARLY))
    }

    fn names(&self) -> Vec<String> {
        let store = self.store.load();
        store.names().map(|name| name.as_str().to_owned()).collect()
    }

    fn held(&self) -> (usize, u64) {
        (self.total.tensors(), self.total.data_bytes())
    }
}

#[test]
fn what_is_staged_becomes_visible_at_once() {
    let staging = staging();
    staging.stage(7, &[]).unwrap();
    staging.stage(7, &[("a", 1)]).unwrap();
    staging.stage(7, &[("b", 2), ("c", 3)]).unwrap();
    assert_eq!((staging.names().len(), staging.held()), (0, (3, 24)));
    staging.end(Act::Commit, 7).unwrap();
    assert_eq!((staging.names().len(), staging.held()), (3, (0, 0)));
    let again = staging.end(Act::Commit, 7).unwrap_err();
    assert_eq!(again.code, Code::NotFound, "{again}");
}

#[test]
fn a_call_that_is_refused_ends_its_push_and_no_other() {
    let staging = limited(StoreLimits::default().with(|limits| limits.stored_bytes = 6 * NUMBER));
    staging.stage(1, &[]).unwrap();
    staging.stage(2, &[]).unwrap();
    staging.stage(2, &[("k", 1)]).unwrap();
    staging.stage(1, &[("a", 1), ("b", 1), ("c", 1)]).unwrap();
    let full = staging.stage(1, &[("d", 1), ("e", 1)]).unwrap_err();
    assert_eq!(full.code, Code::ResourceExhausted);
    let wanted = format!("6 tensors of {} bytes", 6 * NUMBER);
    assert!(full.message.contains(&wanted), "{full}");
    assert_eq!(staging.held(), (1, 8));
    assert_eq!(staging.stage(1, &[("f", 1)]).unwrap_err(), full);
    staging.stage(1, &[]).unwrap();
    let nameless = staging.stage(1, &[("", 1)]).unwrap_err();
    assert_eq!(nameless.code, Code::InvalidArgument);
    staging.end(Act::Commit, 2).unwrap();
    assert_eq!(staging.names(), ["k"]);
}

#[test]
fn calls_behind_one_that_is_refused_fail_for_its_reason() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    let refused = staging.stage(1, &[("", 1)]).unwrap_err();
    assert!(refused.message.contains("name"), "{refused}");
    assert_eq!(staging.stage(1, &[("a", 1)]).unwrap_err(), refused);
    assert_eq!(staging.commit(1).unwrap_err(), refused);
    assert_eq!(staging.commit(2).unwrap_err().code, Code::NotFound);
    // Its number may be that of another push later.
    staging.stage(1, &[]).unwrap();
    staging.stage(1, &[("a", 1)]).unwrap();
}

#[test]
fn a_connection_stages_so_many_pushes_and_each_number_once() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    let twice = staging.stage(1, &[]).unwrap_err();
    assert_eq!(twice.code, Code::AlreadyExists, "{twice}");
    staging.stage(2, &[]).unwrap();
    let third = staging.stage(3, &[]).unwrap_err();
    assert_eq!(third.code, Code::ResourceExhausted, "{third}");
    staging.end(Act::Discard, 1).unwrap();
    staging.end(Act::Discard, 1).unwrap();
    staging.stage(3, &[]).unwrap();
}

#[test]
fn a_push_that_is_left_alone_ends() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    staging.stage(1, &[("a", 1)]).unwrap();
    let late = EARLY + Duration::from_secs(5);
    staging.stage_at(1, &[("b", 1)], late).unwrap();
    let end = staging.next_end().unwrap();
    assert_eq!(end, late + PATIENCE);
    assert_eq!(staging.expire(EARLY + PATIENCE, None).len(), 0);
    assert_eq!(staging.expire(end, None).len(), 1);
    assert_eq!((staging.held(), staging.next_end()), ((0, 0), None));
}

#[test]
fn a_push_waits_on_while_bytes_of_a_frame_come() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    let mut end = EARLY + PATIENCE;
    for come_bytes in [100, 200, 300] {
        assert_eq!(staging.expire(end, Some(come_bytes)).len(), 0);
        assert_eq!(staging.next_end(), Some(end + PATIENCE));
        end = end + PATIENCE;
    }
    assert_eq!(staging.expire(end, Some(300)).len(), 1, "nothing came");
}

#[test]
fn a_push_that_gets_a_little_again_and_again_ends() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    let mut now = EARLY;
    while now < EARLY + LIFE + PATIENCE && staging.expire(now, None).is_empty() {
        staging.stage_at(1, &[("a", 1)], now).unwrap();
        now = now + PATIENCE / 2;
    }
    assert_eq!(staging.held(), (0, 0), "after {now:?}");
}

#[test]
fn one_peer_leaves_others_a_part_of_what_may_be_staged() {
    let limits = StoreLimits::default().with(|limits| limits.stored_bytes = 100 * NUMBER);
    let (hog, other) = pair(limits);
    hog.stage(1, &[]).unwrap();
    hog.stage(2, &[]).unwrap();
    for _ in 0..50 {
        hog.stage(1, &[("a", 1)]).unwrap();
    }
    let refused = (0..50)
        .map(|_| hog.stage(2, &[("a", 1)]))
        .find(Result::is_err);
    other.stage_as(2, 1, &[]).unwrap();
    other.stage_as(2, 1, &[("b", 1)]).unwrap();
    let refused = refused.unwrap().unwrap_err();
    assert_eq!(refused.code, Code::ResourceExhausted);
    let wanted = format!("88 tensors of {} bytes", 88 * NUMBER);
    assert!(refused.message.contains(&wanted), "{refused}");
    // What was staged on one connection counts for the peer's others, until it goes.
    let full = other.stage_as(1, 1, &[("c", 1)]).unwrap_err();
    let half = 99 * NUMBER - 99 * NUMBER / 2;
    let part = format!("{half} bytes in all are its part");
    assert!(full.message.contains(&part), "{full}");
    drop(hog);
    other.stage_as(2, 2, &[]).unwrap();
    other.stage_as(2, 2, &[("c", 1)]).unwrap();
    assert_eq!(other.total.peers(), 1);
    drop(other.expire(EARLY + PATIENCE, None));
    assert_eq!((other.total.peers(), other.held()), (0, (0, 0)));
}

#[test]
fn a_peer_stages_what_fits_while_it_is_alone_and_leaves_something() {
    let limits = StoreLimits::default().with(|limits| limits.stored_bytes = 100 * NUMBER);
    let (first, second) = pair(limits);
    first.stage(1, &[]).unwrap();
    for _ in 0..80 {
        first.stage(1, &[("a", 1)]).unwrap();
    }
    second.stage_as(2, 1, &[]).unwrap();
    for _ in 0..10 {
        second.stage_as(2, 1, &[("b", 1)]).unwrap();
    }
    second.stage_as(2, 1, &[("b", 1)]).unwrap_err();
    first.end(Act::Commit, 1).unwrap();
}

#[test]
fn while_others_stage_a_peer_stages_half_of_the_tensors_and_no_more_bytes_than_are_set() {
    let store_limits = StoreLimits::default().with(|limits| limits.tensors = 6);
    let mut staging = limited(store_limits);
    staging.stage_as(2, 2, &[]).unwrap();
    staging.stage_as(2, 2, &[("other", 1)]).unwrap();
    staging.stage(1, &[]).unwrap();
    staging.stage(1, &[("a", 1), ("b", 1), ("c", 1)]).unwrap();
    let many = staging.stage(1, &[("d", 1)]).unwrap_err();
    let wanted = format!("4 tensors of {} bytes", 4 * NUMBER);
    assert!(many.message.contains(&wanted), "{many}");
    assert!(many.message.contains("3 tensors of"), "{many}");
    staging.limits.bytes_max = NUMBER;
    staging.stage(1, &[]).unwrap();
    staging.stage(1, &[("a", 1)]).unwrap();
    let long = staging.stage(1, &[("b", 1)]).unwrap_err();
    assert!(long.message.contains("STAGED_BYTES_MAX"), "{long}");
}

#[test]
fn a_large_push_lasts_longer() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    let shape = grpcxx_rpc::Shape::new(&[3 << 20]).unwrap();
    let long = Tensor::new(grpcxx_rpc::DType::UInt8, shape, vec![0; 3 << 20]).unwrap();
    let mut now = EARLY;
    let large = GraphCall {
        step_id: 1,
        feeds: vec![(Text::from("a"), long)].into(),
        ..GraphCall::default()
    };
    staging.serve(Act::Stage, large, (account(1), now)).unwrap();
    while now + PATIENCE < EARLY + LIFE {
        now = now + PATIENCE / 2;
        staging.stage_at(1, &[("b", 1)], now).unwrap();
    }
    let latest = EARLY + LIFE + Duration::from_secs(3);
    staging.stage_at(1, &[("b", 1)], EARLY + LIFE).unwrap();
    assert_eq!(staging.next_end(), Some(latest));
    let expired = staging.expire(latest, Some(7));
    assert!(expired[0].1.to_string().contains("as long as a push may"));
}

#[test]
fn who_asks_when_a_push_ends_does_not_wait_for_those_that_stage() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    let _held = staging.lock();
    assert_eq!(staging.next_end(), Some(EARLY + PATIENCE));
}

#[test]
fn calls_of_another_shape_are_refused() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    for act in [Act::Commit, Act::Discard] {
        let fed = staging.serve(act, call(1, &[("a", 1)]), (account(1), EARLY));
        assert_eq!(fed.unwrap_err().code, Code::InvalidArgument);
    }
    let mut asking = call(1, &[("a", 1)]);
    asking.fetches = vec![Text::from("a")].into();
    let asked = staging.serve(Act::Stage, asking, (account(1), EARLY));
    assert_eq!(asked.unwrap_err().code, Code::InvalidArgument);
    // None of that ends the push.
    staging.end(Act::Commit, 1).unwrap();
}
