use std::sync::Arc;

use arc_swap::ArcSwap;
use grpcxx_rpc::StoreLimits;

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);
const EARLY: Time = Time::from_nanos(1);

fn limited(limits: StoreLimits) -> Staging {
    let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(limits)));
    Staging::new(&store, &Arc::default(), (2, PATIENCE))
}

fn staging() -> Staging {
    limited(StoreLimits::default())
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
        self.serve(Act::Stage, call(number, feeds), EARLY)
    }

    fn names(&self) -> Vec<String> {
        let store = self.store.load();
        store.names().map(|name| name.as_str().to_owned()).collect()
    }

    fn held(&self) -> (usize, u64) {
        (self.total.tensors(), self.total.bytes())
    }
}

#[test]
fn what_is_staged_becomes_visible_at_once() {
    let staging = staging();
    staging.stage(7, &[]).unwrap();
    staging.stage(7, &[("a", 1)]).unwrap();
    staging.stage(7, &[("b", 2), ("c", 3)]).unwrap();
    assert_eq!((staging.names().len(), staging.held()), (0, (3, 24)));
    staging.serve(Act::Commit, call(7, &[]), EARLY).unwrap();
    assert_eq!((staging.names().len(), staging.held()), (3, (0, 0)));
    let again = staging.serve(Act::Commit, call(7, &[]), EARLY).unwrap_err();
    assert_eq!(again.code, Code::NotFound, "{again}");
}

#[test]
fn a_call_that_is_refused_ends_its_push_and_no_other() {
    let staging = limited(StoreLimits::default().with(|limits| limits.stored_bytes = 40));
    staging.stage(1, &[]).unwrap();
    staging.stage(2, &[]).unwrap();
    staging.stage(2, &[("kept", 1)]).unwrap();
    staging.stage(1, &[("a", 1), ("b", 1), ("c", 1)]).unwrap();
    let full = staging.stage(1, &[("d", 1), ("e", 1)]).unwrap_err();
    assert_eq!(full.code, Code::ResourceExhausted);
    assert!(full.message.contains("48 bytes"), "{full}");
    assert_eq!(staging.held(), (1, 8));
    let gone = staging.stage(1, &[("f", 1)]).unwrap_err();
    assert!(gone.message.contains("no push 1"), "{gone}");
    staging.stage(1, &[]).unwrap();
    let nameless = staging.stage(1, &[("", 1)]).unwrap_err();
    assert_eq!(nameless.code, Code::InvalidArgument);
    staging.serve(Act::Commit, call(2, &[]), EARLY).unwrap();
    assert_eq!(staging.names(), ["kept"]);
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
    staging.serve(Act::Discard, call(1, &[]), EARLY).unwrap();
    staging.serve(Act::Discard, call(1, &[]), EARLY).unwrap();
    staging.stage(3, &[]).unwrap();
}

#[test]
fn a_push_that_is_left_alone_ends() {
    let staging = staging();
    staging.stage(1, &[]).unwrap();
    staging.stage(1, &[("a", 1)]).unwrap();
    let late = EARLY + Duration::from_secs(5);
    staging
        .serve(Act::Stage, call(1, &[("b", 1)]), late)
        .unwrap();
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
        let fed = staging.serve(act, call(1, &[("a", 1)]), EARLY);
        assert_eq!(fed.unwrap_err().code, Code::InvalidArgument);
    }
    let mut asking = call(1, &[("a", 1)]);
    asking.fetches = vec![Text::from("a")].into();
    let asked = staging.serve(Act::Stage, asking, EARLY);
    assert_eq!(asked.unwrap_err().code, Code::InvalidArgument);
    // None of that ends the push.
    staging.serve(Act::Commit, call(1, &[]), EARLY).unwrap();
}
