//! Counts allocations: a rendezvous at its working size needs none for requests with one key.

use grpcxx_memory::Buffer;
use grpcxx_rpc::{DType, Rendezvous, RendezvousLimits, Shape, Tensor, Text};
use smallvec::smallvec;

const STEP: i64 = 1 << 56;

/// Keys and tensors as they come from a link: made before, shared by reference.
fn parts(count: usize) -> Vec<(Text, Tensor)> {
    let shape = Shape::new(&[8]).unwrap();
    let part = |index: usize| {
        let key = Text::from(format!(
            "/job:ps/replica:0/task:0/device:CPU:0;edge_{index}"
        ));
        let data = Buffer::from(&b"8 bytes."[..]);
        (key, Tensor::new(DType::UInt8, shape.clone(), data).unwrap())
    };
    (0..count).map(part).collect()
}

fn allocations(parts: Vec<(Text, Tensor)>, mut round: impl FnMut(u64, Text, Tensor)) -> u64 {
    let info = allocation_counter::measure(|| {
        for (index, (key, tensor)) in parts.into_iter().enumerate() {
            round(index as u64, key, tensor);
        }
    });
    info.count_total
}

/// One round of each order, and of an asker that vanishes in each state.
fn round(rendezvous: &mut Rendezvous, waiter: u64, key: Text, tensor: Tensor) {
    let step = STEP + (waiter % 3) as i64;
    rendezvous
        .receive(step, smallvec![key.clone()], waiter)
        .unwrap();
    assert!(rendezvous.forget(waiter));
    rendezvous
        .receive(step, smallvec![key.clone()], waiter)
        .unwrap();
    rendezvous.send(step, key.clone(), tensor).unwrap();
    let mut ready = rendezvous.poll_ready().unwrap();
    let tensor = ready.result.as_mut().unwrap().pop().unwrap();

    rendezvous.send(step, key.clone(), tensor).unwrap();
    rendezvous
        .receive(step, smallvec![key.clone()], waiter)
        .unwrap();
    assert!(rendezvous.forget(waiter));
    assert!(rendezvous.poll_ready().is_none());
    rendezvous
        .receive(step, smallvec![key.clone()], waiter)
        .unwrap();
    let mut ready = rendezvous.poll_ready().unwrap();
    let tensor = ready.result.as_mut().unwrap().pop().unwrap();

    assert!(rendezvous.restore(step, key.clone(), tensor));
    rendezvous.receive(step, smallvec![key], waiter).unwrap();
    assert!(rendezvous.poll_ready().unwrap().result.is_ok());
}

#[test]
fn one_key_at_a_time_allocates_nothing() {
    let mut rendezvous = Rendezvous::new(RendezvousLimits::default());
    // The first clone of a text makes its count of references; that is not the rendezvous's.
    let parts = |count| {
        let parts = parts(count);
        let _ = parts.clone();
        parts
    };
    // A few rounds first, with other work around them that stays.
    for (index, (key, tensor)) in parts(64).into_iter().enumerate() {
        rendezvous.send(STEP, key, tensor).unwrap();
        let waiting = Text::from(format!("never sent {index}"));
        rendezvous
            .receive(STEP, smallvec![waiting], (1 << 40) + index as u64)
            .unwrap();
    }
    for (index, (key, tensor)) in parts(200).into_iter().enumerate().skip(64) {
        round(&mut rendezvous, index as u64, key, tensor);
    }
    let rounds = parts(2000).split_off(100);
    let count = allocations(rounds, |waiter, key, tensor| {
        round(&mut rendezvous, 1000 + waiter, key, tensor);
    });
    assert_eq!(count, 0);
    let control = allocations(parts(1), |_, key, _| drop(Box::new(key)));
    assert_eq!(control, 1, "allocations are counted");
}
