//! Random operations on a `Rendezvous` and on a plain list-based model of it, compared after each.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher};

use grpcxx_rpc::{Code, HeldTensor, Reason, Rendezvous, RendezvousLimits, Status, Tensor, Text};
use proptest::prelude::*;

const STEPS: i64 = 4;
const KEYS: u8 = 5;
const CLOSED_STEPS: usize = 2;

#[derive(Clone, Debug)]
enum Operation {
    Send {
        step: i64,
        key: u8,
    },
    Receive {
        step: i64,
        keys: Vec<u8>,
    },
    /// Takes a tensor at once and leaves it where it is.
    Hold {
        step: i64,
        key: u8,
    },
    /// Drops the tensor with this index among those held.
    Release(usize),
    /// Takes it from where it is.
    TakeHeld(usize),
    /// Forgets the request with this index among those without a polled outcome.
    Forget(usize),
    /// Gives back the tensor with this index among those handed out.
    Restore(usize),
    Abort {
        step: i64,
    },
    Cleanup {
        step: i64,
    },
    AbortAll,
    /// Takes all outcomes.
    Poll,
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let step = 0..STEPS;
    let operation = prop_oneof![
        8 => (step.clone(), 0..KEYS).prop_map(|(step, key)| Operation::Send { step, key }),
        8 => (step.clone(), proptest::collection::vec(0..KEYS, 1..=4))
            .prop_map(|(step, keys)| Operation::Receive { step, keys }),
        4 => (step.clone(), 0..KEYS).prop_map(|(step, key)| Operation::Hold { step, key }),
        2 => any::<usize>().prop_map(Operation::Release),
        2 => any::<usize>().prop_map(Operation::TakeHeld),
        3 => any::<usize>().prop_map(Operation::Forget),
        3 => any::<usize>().prop_map(Operation::Restore),
        1 => step.clone().prop_map(|step| Operation::Abort { step }),
        1 => step.prop_map(|step| Operation::Cleanup { step }),
        1 => Just(Operation::AbortAll),
        4 => Just(Operation::Poll),
    ];
    proptest::collection::vec(operation, 1..120)
}

#[derive(Clone, Debug, PartialEq)]
struct Request {
    waiter: u64,
    step: i64,
    keys: Vec<u8>,
}

/// The rules, with lists that are searched from the front.
#[derive(Default)]
struct Model {
    tensors: Vec<(i64, u8, u64)>,
    parked: Vec<Request>,
    ready: Vec<(Request, Result<Vec<u64>, Status>)>,
    closed: Vec<(i64, Status)>,
}

impl Model {
    fn closed(&self, step: i64) -> Option<Status> {
        let (_, status) = self.closed.iter().find(|(id, _)| *id == step)?;
        Some(status.clone())
    }

    fn has(&self, step: i64, key: u8) -> bool {
        self.tensors.iter().any(|t| (t.0, t.1) == (step, key))
    }

    fn deposit(&mut self, step: i64, key: u8, value: u64) {
        self.tensors.push((step, key, value));
        self.hand_out();
    }

    /// Gives the first request that can have all its tensors what it wants.
    fn hand_out(&mut self) {
        let can_have = |r: &Request| r.keys.iter().all(|&key| self.has(r.step, key));
        let Some(at) = self.parked.iter().position(can_have) else {
            return;
        };
        let request = self.parked.remove(at);
        let mut values = Vec::new();
        for &key in &request.keys {
            let found = self
                .tensors
                .iter()
                .position(|t| (t.0, t.1) == (request.step, key));
            values.push(self.tensors.remove(found.unwrap()).2);
        }
        self.ready.push((request, Ok(values)));
        let more = |r: &Request| r.keys.iter().all(|&key| self.has(r.step, key));
        assert!(
            !self.parked.iter().any(more),
            "one tensor completes one request"
        );
    }

    fn send(&mut self, step: i64, key: u8, value: u64) -> Result<(), Code> {
        if let Some(status) = self.closed(step) {
            return Err(status.code);
        }
        if self.has(step, key) {
            return Err(Code::AlreadyExists);
        }
        self.deposit(step, key, value);
        Ok(())
    }

    fn receive(&mut self, request: Request) -> Result<(), Code> {
        if let Some(status) = self.closed(request.step) {
            return Err(status.code);
        }
        if request.keys.iter().collect::<BTreeSet<_>>().len() < request.keys.len() {
            return Err(Code::InvalidArgument);
        }
        self.parked.push(request);
        self.hand_out();
        Ok(())
    }

    /// Takes a tensor that nobody waits for.
    fn hold(&mut self, step: i64, key: u8) -> Option<u64> {
        let is_wanted = |r: &Request| r.step == step && r.keys.contains(&key);
        if self.parked.iter().any(is_wanted) {
            return None;
        }
        let found = self
            .tensors
            .iter()
            .position(|t| (t.0, t.1) == (step, key))?;
        Some(self.tensors.remove(found).2)
    }

    fn restore(&mut self, step: i64, key: u8, value: u64) -> bool {
        if self.closed(step).is_some() || self.has(step, key) {
            return false;
        }
        self.deposit(step, key, value);
        true
    }

    fn forget(&mut self, waiter: u64) -> bool {
        if let Some(at) = self.parked.iter().position(|r| r.waiter == waiter) {
            self.parked.remove(at);
            return true;
        }
        let Some(at) = self.ready.iter().position(|(r, _)| r.waiter == waiter) else {
            return false;
        };
        let (request, result) = self.ready.remove(at);
        for (&key, value) in request.keys.iter().zip(result.unwrap_or_default()) {
            self.restore(request.step, key, value);
        }
        true
    }

    fn close(&mut self, step: i64, status: Status, is_cleanup: bool) {
        let known = self.closed.iter().position(|(id, _)| *id == step);
        match known {
            Some(at) if is_cleanup => self.closed[at].1 = status,
            Some(_) => {}
            None => {
                self.tensors.retain(|t| t.0 != step);
                let parked = std::mem::take(&mut self.parked);
                for request in parked {
                    if request.step == step {
                        self.ready.push((request, Err(status.clone())));
                    } else {
                        self.parked.push(request);
                    }
                }
                if self.closed.len() == CLOSED_STEPS {
                    self.closed.remove(0);
                }
                self.closed.push((step, status));
            }
        }
    }

    fn open_steps(&self) -> BTreeSet<i64> {
        let tensors = self.tensors.iter().map(|t| t.0);
        tensors.chain(self.parked.iter().map(|r| r.step)).collect()
    }

    fn waiting_keys(&self) -> usize {
        let tensors = self.tensors.iter().map(|t| (t.0, t.1));
        let parked = self.parked.iter();
        let wanted = parked.flat_map(|r| r.keys.iter().map(|&key| (r.step, key)));
        tensors.chain(wanted).collect::<BTreeSet<_>>().len()
    }
}

/// Both, side by side, and what was handed out so far.
struct Pair {
    real: Rendezvous,
    model: Model,
    next: u64,
    handed_out: Vec<(i64, u8, u64)>,
    held: Vec<(HeldTensor, (i64, u8, u64))>,
}

impl Pair {
    fn new() -> Self {
        let limits = RendezvousLimits::default().with(|limits| limits.closed_steps = CLOSED_STEPS);
        Self {
            real: Rendezvous::new(limits),
            model: Model::default(),
            next: 0,
            handed_out: Vec::new(),
            held: Vec::new(),
        }
    }

    fn apply(&mut self, operation: Operation) {
        self.next += 1;
        let (next, real, model) = (self.next, &mut self.real, &mut self.model);
        match operation {
            Operation::Send { step, key } => {
                let sent = real.send(step, text(key), Tensor::scalar(next));
                if let Err(rejected) = &sent {
                    assert_eq!(rejected.value, Tensor::scalar(next));
                }
                let sent = sent.map_err(|rejected| rejected.status.code);
                assert_eq!(sent, model.send(step, key, next));
            }
            Operation::Receive { step, keys } => {
                let texts = keys.iter().map(|&key| text(key)).collect();
                let received = real
                    .receive(step, texts, next)
                    .map_err(|status| status.code);
                let waiter = next;
                assert_eq!(received, model.receive(Request { waiter, step, keys }));
            }
            Operation::Hold { step, key } => {
                let mut hasher = real.key_hasher().build_hasher();
                hasher.write(text(key).as_buffer());
                let held = real.hold(step, &text(key), hasher.finish(), usize::MAX);
                let held = held.map(|(held, tensor)| (held, tensor.clone()));
                let value = model.hold(step, key);
                let tensor = held.as_ref().map(|(_, tensor)| tensor.clone());
                assert_eq!(tensor, value.map(Tensor::scalar));
                if let (Some((held, _)), Some(value)) = (held, value) {
                    self.held.push((held, (step, key, value)));
                }
            }
            Operation::Release(index) => {
                if let Some(index) = index.checked_rem(self.held.len()) {
                    real.release(self.held.swap_remove(index).0);
                }
            }
            Operation::TakeHeld(index) => {
                if let Some(index) = index.checked_rem(self.held.len()) {
                    let (held, (step, key, value)) = self.held.swap_remove(index);
                    let expected = (step, text(key), Tensor::scalar(value));
                    assert_eq!(real.take_held(held), Some(expected));
                    self.handed_out.push((step, key, value));
                }
            }
            Operation::Forget(index) => {
                let parked = model.parked.iter().map(|r| r.waiter);
                let waiters: Vec<u64> = parked
                    .chain(model.ready.iter().map(|(r, _)| r.waiter))
                    .collect();
                let waiter = pick(&waiters, index).unwrap_or(u64::MAX);
                assert_eq!(real.forget(waiter), model.forget(waiter));
                assert!(!real.forget(waiter));
            }
            Operation::Restore(index) => {
                if let Some((step, key, value)) = pick(&self.handed_out, index) {
                    self.handed_out.retain(|tensor| tensor.2 != value);
                    let restored = real.restore(step, text(key), Tensor::scalar(value));
                    assert_eq!(restored, model.restore(step, key, value));
                }
            }
            Operation::Abort { step } => {
                let status = Status::new(Code::OutOfRange, format!("aborted by {next}"));
                real.abort(step, status.clone());
                model.close(step, status.because(Reason::StepOver), false);
            }
            Operation::Cleanup { step } => {
                real.cleanup(step);
                let text = format!("step {step} was cleaned up; use a new step id");
                model.close(
                    step,
                    Status::new(Code::Aborted, text).because(Reason::StepOver),
                    true,
                );
            }
            Operation::AbortAll => {
                // Closing more steps than are remembered would make the order of closing show.
                if model.open_steps().len() <= 1 {
                    let status = Status::new(Code::Unavailable, "all");
                    real.abort_all(status.clone());
                    for step in model.open_steps() {
                        let status = status.clone().because(Reason::StepOver);
                        model.close(step, status, false);
                    }
                }
            }
            Operation::Poll => self.poll(),
        }
        self.compare();
    }

    fn poll(&mut self) {
        let mut outcomes = Vec::new();
        while let Some(ready) = self.real.poll_ready() {
            let values = ready.result.map(|tensors| {
                let values = tensors.iter().map(|t| t.as_slice::<u64>().unwrap()[0]);
                values.collect::<Vec<u64>>()
            });
            outcomes.push((ready.waiter, values));
        }
        // Requests that fail together come in no particular order.
        outcomes.sort_by_key(|(waiter, _)| *waiter);
        self.model.ready.sort_by_key(|(request, _)| request.waiter);
        let expected = std::mem::take(&mut self.model.ready);
        assert_eq!(outcomes.len(), expected.len());
        for ((waiter, values), (request, expected)) in outcomes.into_iter().zip(expected) {
            assert_eq!((waiter, &values), (request.waiter, &expected));
            for (&key, value) in request.keys.iter().zip(values.unwrap_or_default()) {
                assert!(
                    self.handed_out.iter().all(|tensor| tensor.2 != value),
                    "tensor {value} was handed out twice"
                );
                self.handed_out.push((request.step, key, value));
            }
        }
    }

    fn compare(&self) {
        let (real, model) = (&self.real, &self.model);
        assert_eq!(real.stored_bytes(), 8 * model.tensors.len() as u64);
        assert_eq!(real.open_steps(), model.open_steps().len());
        assert_eq!(real.closed_steps(), model.closed.len());
        assert_eq!(real.waiting_keys(), model.waiting_keys());
        // A forgotten outcome keeps its place until the next poll.
        assert!(real.waiters() >= model.parked.len() + model.ready.len());
    }
}

fn text(key: u8) -> Text {
    Text::from(format!("key {key}"))
}

fn pick<T: Clone>(values: &[T], index: usize) -> Option<T> {
    values.get(index.checked_rem(values.len())?).cloned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Each tensor is handed out once and each request ends once, whatever is done
    /// (checklist 25, 28).
    #[test]
    fn the_rendezvous_does_what_the_model_does(operations in operations()) {
        let mut pair = Pair::new();
        for operation in operations {
            pair.apply(operation);
        }
        pair.poll();
        prop_assert_eq!(pair.real.waiters(), pair.model.parked.len());
        for step in 0..STEPS {
            pair.real.cleanup(step);
        }
        while pair.real.poll_ready().is_some() {}
        prop_assert_eq!(pair.real.waiters() + pair.real.waiting_keys(), 0);
        prop_assert_eq!(pair.real.stored_bytes(), 0);
    }
}
