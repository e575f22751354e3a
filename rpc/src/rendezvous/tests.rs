//! What a rendezvous promises, one promise a test.

use std::hash::{BuildHasher, Hasher};

use super::*;
use crate::{Code, Reason};

const STEP: i64 = 7;

fn rendezvous(change: impl FnOnce(&mut RendezvousLimits)) -> Rendezvous {
    let mut limits = RendezvousLimits::default();
    change(&mut limits);
    Rendezvous::new(limits)
}

#[test]
fn what_waits_in_a_step_is_nobody_elses_memory() {
    let shape = crate::Shape::new(&[2]).unwrap();
    let lent = crate::borrowed::borrowed(&[1, 2]);
    let lent = Tensor::new(crate::DType::UInt8, shape, lent).unwrap();
    let mut rendezvous = Rendezvous::new(RendezvousLimits::default());
    let key = Text::from("a");
    rendezvous.send(STEP, key.clone(), lent).unwrap();
    let mut hasher = rendezvous.key_hasher().build_hasher();
    hasher.write(key.as_bytes());
    let found = rendezvous.take(STEP, &[key], &[hasher.finish()]).unwrap();
    assert!(!found[0].data.is_borrowed() && found[0].data[..] == [1, 2]);
}

fn tensor(value: u64) -> Tensor {
    Tensor::scalar(value)
}

fn send(rendezvous: &mut Rendezvous, key: &str, value: u64) {
    rendezvous
        .send(STEP, Text::from(key), tensor(value))
        .unwrap();
}

fn keys(names: &[&str]) -> SmallVec<[Text; 1]> {
    names.iter().map(|name| Text::from(*name)).collect()
}

fn poll(rendezvous: &mut Rendezvous) -> Option<(u64, Result<Vec<Tensor>, Status>)> {
    let ready = rendezvous.poll_ready()?;
    Some((ready.waiter, ready.result.map(SmallVec::into_vec)))
}

fn is_empty(rendezvous: &Rendezvous) -> bool {
    (rendezvous.open_steps(), rendezvous.waiting_keys()) == (0, 0)
        && (rendezvous.waiters(), rendezvous.stored_bytes()) == (0, 0)
}

#[test]
fn a_tensor_that_is_held_keeps_its_place_and_nothing_else() {
    let mut rendezvous = rendezvous(|_| {});
    let key = Text::from("a");
    let hash = rendezvous.table.hash_key(&key);
    send(&mut rendezvous, "a", 1);
    let (held, found) = rendezvous.hold(STEP, &key, hash, usize::MAX).unwrap();
    assert_eq!(*found, tensor(1));
    assert!(is_empty(&rendezvous), "its step has nothing left");
    send(&mut rendezvous, "a", 2);
    let (second, found) = rendezvous.hold(STEP, &key, hash, usize::MAX).unwrap();
    assert_eq!(*found, tensor(2));
    assert_eq!(rendezvous.take_held(held), Some((STEP, key, tensor(1))));
    let number = second.number();
    rendezvous.release(HeldTensor::new(number));
    for nobody in [number, number + 1, u32::MAX] {
        rendezvous.release(HeldTensor::new(nobody));
        assert_eq!(rendezvous.take_held(HeldTensor::new(nobody)), None);
    }
    for (name, value) in [("b", 3), ("c", 4), ("d", 5)] {
        send(&mut rendezvous, name, value);
    }
    assert_eq!(rendezvous.waiting_keys(), 3, "each has a place of its own");
}

fn refused(result: Result<(), Status>, code: Code, word: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code, code, "{status}");
    assert!(status.message.contains(word), "{status}");
}

#[test]
fn keys_are_found_alone_in_their_step_and_beside_others() {
    fn take(rendezvous: &mut Rendezvous, name: &str) -> Option<Tensor> {
        let key = Text::from(name);
        let hash = rendezvous.table.hash_key(&key);
        let (held, _) = rendezvous.hold(STEP, &key, hash, usize::MAX)?;
        Some(rendezvous.take_held(held)?.2)
    }
    let mut rendezvous = rendezvous(|_| {});
    let names = ["a", "b", "c"];
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for count in 1..=names.len() {
        for order in orders {
            for (value, name) in names[..count].iter().enumerate() {
                send(&mut rendezvous, name, value as u64);
            }
            for value in order {
                let expected = (value < count).then(|| tensor(value as u64));
                assert_eq!(take(&mut rendezvous, names[value]), expected);
                assert_eq!(take(&mut rendezvous, names[value]), None);
                // What is left may be alone now, and gets another beside it.
                send(&mut rendezvous, "d", 9);
                assert_eq!(take(&mut rendezvous, "d"), Some(tensor(9)));
            }
            assert!(is_empty(&rendezvous));
        }
    }
}

#[test]
fn checklist_25_tensor_and_request_meet_in_either_order() {
    let mut rendezvous = rendezvous(|_| {});
    rendezvous.receive(STEP, keys(&["early"]), 1).unwrap();
    assert_eq!(rendezvous.open_steps(), 1, "made on demand");
    assert!(rendezvous.poll_ready().is_none());
    send(&mut rendezvous, "early", 10);
    assert_eq!(poll(&mut rendezvous), Some((1, Ok(vec![tensor(10)]))));

    send(&mut rendezvous, "late", 20);
    assert_eq!(rendezvous.stored_bytes(), 8);
    rendezvous.receive(STEP, keys(&["late"]), 2).unwrap();
    assert_eq!(poll(&mut rendezvous), Some((2, Ok(vec![tensor(20)]))));
    assert!(is_empty(&rendezvous));
}

#[test]
fn tensors_are_taken_at_once_if_all_are_there_and_nobody_waits() {
    let mut rendezvous = rendezvous(|_| {});
    let take = |rendezvous: &mut Rendezvous, names: &[&str]| {
        let keys = keys(names);
        let hash = |key: &Text| {
            let mut hasher = rendezvous.key_hasher().build_hasher();
            hasher.write(key.as_buffer());
            hasher.finish()
        };
        let hashes: Vec<u64> = keys.iter().map(hash).collect();
        let tensors = rendezvous.take(STEP, &keys, &hashes);
        tensors.map(SmallVec::into_vec)
    };
    send(&mut rendezvous, "a", 1);
    send(&mut rendezvous, "b", 2);
    let b = Text::from("b");
    let hash = rendezvous.table.hash_key(&b);
    let too_short = tensor(2).data.len() - 1;
    assert!(rendezvous.hold(STEP, &b, hash, too_short).is_none());
    for refused in [&[][..], &["a", "c"], &["b", "a", "b"]] {
        assert_eq!(take(&mut rendezvous, refused), None);
    }
    assert_eq!(
        take(&mut rendezvous, &["b", "a"]),
        Some(vec![tensor(2), tensor(1)])
    );
    assert!(is_empty(&rendezvous));

    rendezvous.receive(STEP, keys(&["a", "c"]), 1).unwrap();
    send(&mut rendezvous, "a", 3);
    assert_eq!(take(&mut rendezvous, &["a"]), None, "somebody waits for it");
    rendezvous.receive(STEP, keys(&["a"]), 2).unwrap();
    assert_eq!(poll(&mut rendezvous), Some((2, Ok(vec![tensor(3)]))));
    rendezvous.abort(STEP, Status::new(Code::Aborted, "over"));
    assert_eq!(take(&mut rendezvous, &["c"]), None);
}

#[test]
fn checklist_25_a_request_waits_until_the_step_is_aborted() {
    let mut rendezvous = rendezvous(|_| {});
    let status = Status::new(Code::OutOfRange, "End of sequence").because(Reason::StepOver);
    rendezvous.receive(STEP, keys(&["a"]), 1).unwrap();
    rendezvous.receive(STEP, keys(&["a", "b", "c"]), 2).unwrap();
    rendezvous.receive(STEP + 1, keys(&["a"]), 3).unwrap();
    send(&mut rendezvous, "b", 1);
    rendezvous.abort(STEP, Status::new(status.code, status.message.clone()));
    assert_eq!(poll(&mut rendezvous), Some((1, Err(status.clone()))));
    assert_eq!(poll(&mut rendezvous), Some((2, Err(status.clone()))));
    assert_eq!(poll(&mut rendezvous), None, "another step is not touched");

    let late = rendezvous.send(STEP, Text::from("a"), tensor(2));
    assert_eq!(
        late.unwrap_err(),
        Rejected {
            value: tensor(2),
            status: status.clone()
        }
    );
    rendezvous.abort(STEP, Status::new(Code::Unknown, "second abort"));
    assert_eq!(rendezvous.receive(STEP, keys(&["a"]), 4), Err(status));
    rendezvous.cleanup(STEP);
    let late = rendezvous.receive(STEP, keys(&["a"]), 4);
    refused(late, Code::Aborted, "step 7 was cleaned up");
    rendezvous.forget(3);
    assert!(is_empty(&rendezvous));
}

#[test]
fn cleanup_ends_waiting_requests_and_drops_tensors() {
    let mut rendezvous = rendezvous(|_| {});
    send(&mut rendezvous, "a", 1);
    rendezvous.receive(STEP, keys(&["b", "a"]), 1).unwrap();
    rendezvous.cleanup(STEP);
    let (waiter, result) = poll(&mut rendezvous).unwrap();
    assert_eq!(waiter, 1);
    refused(result.map(drop), Code::Aborted, "cleaned up");
    assert!(is_empty(&rendezvous));
    assert!(!rendezvous.restore(STEP, Text::from("a"), tensor(1)));
}

#[test]
fn abort_all_ends_each_step_in_which_something_waits() {
    let mut rendezvous = rendezvous(|_| {});
    for step_id in 0..3 {
        rendezvous
            .receive(step_id, keys(&["a"]), step_id as u64)
            .unwrap();
    }
    // A reason that the caller names is kept.
    let status = Status::new(Code::Unavailable, "the server stops").because(Reason::Stopping);
    rendezvous.abort_all(status.clone());
    for waiter in 0..3 {
        assert_eq!(poll(&mut rendezvous), Some((waiter, Err(status.clone()))));
    }
    assert_eq!((rendezvous.open_steps(), rendezvous.closed_steps()), (0, 3));
    rendezvous.receive(3, keys(&["a"]), 3).unwrap();
}

#[test]
fn checklist_28_a_fused_request_waits_for_all_keys_and_takes_them_in_its_order() {
    let mut rendezvous = rendezvous(|_| {});
    rendezvous.receive(STEP, keys(&["c", "a", "b"]), 1).unwrap();
    send(&mut rendezvous, "a", 1);
    send(&mut rendezvous, "b", 2);
    assert_eq!(poll(&mut rendezvous), None);
    let dead = Tensor::dead();
    rendezvous
        .send(STEP, Text::from("c"), dead.clone())
        .unwrap();
    let tensors = vec![dead, tensor(1), tensor(2)];
    assert_eq!(poll(&mut rendezvous), Some((1, Ok(tensors))));
    assert!(is_empty(&rendezvous));
}

#[test]
fn checklist_28_an_incomplete_fused_request_holds_nothing() {
    let mut rendezvous = rendezvous(|_| {});
    rendezvous.receive(STEP, keys(&["a", "b"]), 1).unwrap();
    send(&mut rendezvous, "a", 1);
    rendezvous.receive(STEP, keys(&["a"]), 2).unwrap();
    assert_eq!(poll(&mut rendezvous), Some((2, Ok(vec![tensor(1)]))));
    send(&mut rendezvous, "b", 2);
    assert_eq!(poll(&mut rendezvous), None, "a was handed out");
    send(&mut rendezvous, "a", 3);
    let tensors = vec![tensor(3), tensor(2)];
    assert_eq!(poll(&mut rendezvous), Some((1, Ok(tensors))));
    assert!(is_empty(&rendezvous));
}

#[test]
fn checklist_28_no_key_and_the_same_key_twice_are_invalid() {
    let mut rendezvous = rendezvous(|_| {});
    let none = rendezvous.receive(STEP, keys(&[]), 1);
    refused(none, Code::InvalidArgument, "without a key");
    let twice = rendezvous.receive(STEP, keys(&["a", "b", "a"]), 1);
    refused(twice, Code::InvalidArgument, "names a twice");
    assert!(is_empty(&rendezvous), "a refusal changes nothing");
}

#[test]
fn a_key_is_sent_once_while_its_tensor_waits() {
    let mut rendezvous = rendezvous(|_| {});
    send(&mut rendezvous, "a", 1);
    let again = rendezvous.send(STEP, Text::from("a"), tensor(2));
    let again = again.unwrap_err();
    assert_eq!(again.value, tensor(2));
    refused(Err(again.status), Code::AlreadyExists, "once");
}

#[test]
fn an_asker_that_vanishes_loses_nothing() {
    let mut rendezvous = rendezvous(|_| {});
    rendezvous.receive(STEP, keys(&["a"]), 1).unwrap();
    rendezvous.receive(STEP, keys(&["b", "a"]), 2).unwrap();
    send(&mut rendezvous, "b", 2);
    assert!(rendezvous.forget(1), "while it waits");
    assert!(!rendezvous.forget(1));
    send(&mut rendezvous, "a", 1);
    rendezvous.receive(STEP, keys(&["b"]), 3).unwrap();
    assert!(rendezvous.forget(2), "when it has its tensors");
    assert_eq!(poll(&mut rendezvous), Some((3, Ok(vec![tensor(2)]))));
    rendezvous.receive(STEP, keys(&["a"]), 2).unwrap();
    assert_eq!(poll(&mut rendezvous), Some((2, Ok(vec![tensor(1)]))));

    assert!(rendezvous.restore(STEP, Text::from("a"), tensor(1)));
    assert!(!rendezvous.restore(STEP, Text::from("a"), tensor(1)));
    rendezvous.receive(STEP, keys(&["a"]), 4).unwrap();
    assert_eq!(poll(&mut rendezvous), Some((4, Ok(vec![tensor(1)]))));
    assert!(!rendezvous.forget(4), "its outcome was taken");
    assert!(is_empty(&rendezvous));
}

#[test]
fn limits_of_steps_and_keys_refuse_by_name() {
    let mut rendezvous = rendezvous(|limits| {
        limits.steps = 2;
        limits.keys_per_step = 2;
        limits.key_bytes = 3;
        limits.keys_per_request = 3;
    });
    let full = Code::ResourceExhausted;
    send(&mut rendezvous, "a", 1);
    let many = rendezvous.receive(STEP, keys(&["a", "b", "c"]), 1);
    refused(many, full, "keys_per_step = 2");
    assert_eq!(rendezvous.waiting_keys(), 1, "a refusal changes nothing");
    let many = rendezvous.receive(STEP, keys(&["a", "b", "c", "d"]), 1);
    refused(many, full, "keys_per_request = 3");
    let long = rendezvous.receive(STEP, keys(&["long"]), 1);
    refused(long, Code::InvalidArgument, "key_bytes");
    rendezvous.receive(STEP + 1, keys(&["a"]), 1).unwrap();
    let more = rendezvous.receive(STEP + 2, keys(&["a"]), 2);
    refused(more, full, "steps = 2");
    let more = rendezvous.send(STEP + 2, Text::from("a"), tensor(1));
    assert_eq!(more.unwrap_err().value, tensor(1));
    send(&mut rendezvous, "b", 2);
    rendezvous.receive(STEP, keys(&["b", "a"]), 2).unwrap();
    assert!(rendezvous.poll_ready().is_some(), "full, and yet emptied");
}

#[test]
fn limits_of_waiters_and_bytes_refuse_by_name() {
    let mut rendezvous = rendezvous(|limits| {
        limits.waiters = 3;
        limits.waiters_per_key = 2;
        limits.stored_bytes = 8;
    });
    let full = Code::ResourceExhausted;
    rendezvous.receive(STEP, keys(&["a"]), 1).unwrap();
    let same = rendezvous.receive(STEP, keys(&["b"]), 1);
    refused(same, Code::AlreadyExists, "request 1");
    rendezvous.receive(STEP, keys(&["a"]), 2).unwrap();
    let more = rendezvous.receive(STEP, keys(&["a"]), 3);
    refused(more, full, "waiters_per_key = 2");
    rendezvous.receive(STEP, keys(&["b"]), 3).unwrap();
    let more = rendezvous.receive(STEP, keys(&["c"]), 4);
    refused(more, full, "waiters = 3");

    send(&mut rendezvous, "c", 1);
    let more = rendezvous
        .send(STEP, Text::from("d"), tensor(2))
        .unwrap_err();
    assert_eq!(more.value, tensor(2));
    refused(Err(more.status), full, "stored_bytes = 8");
    send(&mut rendezvous, "b", 3);
    assert!(rendezvous.poll_ready().is_some(), "it needed no room");
}

#[test]
fn closed_steps_are_remembered_up_to_a_limit() {
    let mut rendezvous = rendezvous(|limits| limits.closed_steps = 2);
    for step_id in 0..3 {
        rendezvous.cleanup(step_id);
    }
    assert_eq!(rendezvous.closed_steps(), 2);
    rendezvous.receive(0, keys(&["a"]), 1).unwrap();
    assert!(rendezvous.receive(1, keys(&["a"]), 2).is_err());
    assert!(rendezvous.receive(2, keys(&["a"]), 2).is_err());
}
