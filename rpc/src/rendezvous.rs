mod admission;
mod closed;
mod home;
mod limits;
mod room;
mod table;
mod waiters;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

pub use self::home::home_shard;
pub use self::limits::RendezvousLimits;

use self::closed::{ClosedSteps, Ending};
use self::table::{NONE, Table};
use self::waiters::{State, Taken, Waiters};
use crate::{Rejected, Status, Tensor, Text};

/// Where the tensors of a step meet those who ask for them, in either order.
///
/// One shard holds the steps that [`home_shard`] gives it. A step needs no start: it exists while a tensor
/// or a request waits in it, so a request may come before anything else is known of its step. It ends with
/// [`Rendezvous::abort`] or [`Rendezvous::cleanup`]; what comes later fails at once, as long as the end is
/// remembered ([`RendezvousLimits::closed_steps`]). A step id is therefore not for use a second time.
///
/// # Contracts
/// - A tensor that was sent is handed out once, unless it comes back through [`Rendezvous::restore`].
/// - A request takes all its tensors at once, when the last of them is there. Until then it holds nothing,
///   and forgetting it loses nothing. Of several requests that could take a tensor, the first come does.
/// - Each accepted request has exactly one outcome in [`Rendezvous::poll_ready`], unless it is forgotten.
/// - What is refused changes nothing.
///
/// Work per call is bounded by the keys of the request times [`RendezvousLimits::waiters_per_key`]; ending a
/// step takes time for each key that is left in it. With one key per request nothing is allocated once the
/// tables have grown to their working size.
///
/// ```
/// use grpcxx_rpc::{DType, Rendezvous, RendezvousLimits, Shape, Tensor, Text};
/// use smallvec::smallvec;
///
/// let mut rendezvous = Rendezvous::new(RendezvousLimits::default());
/// let (step_id, key) = (7, Text::from("edge_1_logits"));
///
/// // Request 42 is early: it waits.
/// rendezvous.receive(step_id, smallvec![key.clone()], 42)?;
/// assert!(rendezvous.poll_ready().is_none());
///
/// let logits = Tensor::new(DType::UInt8, Shape::new(&[2])?, vec![1, 2])?;
/// rendezvous.send(step_id, key, logits.clone())?;
/// let ready = rendezvous.poll_ready().expect("the tensor is there");
/// assert_eq!(ready.waiter, 42);
/// assert_eq!(ready.result?[0], logits);
///
/// rendezvous.cleanup(step_id);
/// assert!(rendezvous.receive(step_id, smallvec![Text::from("late")], 43).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Rendezvous {
    limits: RendezvousLimits,
    table: Table,
    closed: ClosedSteps,
    waiters: Waiters,
    stored_bytes: u64,
    /// Entries that a request has found so far, kept for its memory.
    found: Vec<usize>,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Ready {
    /// The request, as named to [`Rendezvous::receive`].
    pub waiter: u64,
    /// The tensors in the order of the keys, or how the step ended.
    pub result: Result<SmallVec<[Tensor; 1]>, Status>,
}

impl Rendezvous {
    /// A rendezvous without steps.
    pub fn new(limits: RendezvousLimits) -> Self {
        Self {
            limits,
            table: Table::new(),
            closed: ClosedSteps::new(limits.closed_steps),
            waiters: Waiters::new(),
            stored_bytes: 0,
            found: Vec::new(),
        }
    }

    /// Offers a tensor under a key of a step: to the first request that now has all it waits for, or to
    /// whoever asks next.
    ///
    /// # Errors
    /// The tensor comes back, with `ALREADY_EXISTS` if one waits under this key, with the status of the step
    /// if it is over, with `RESOURCE_EXHAUSTED` beyond a limit, with `INVALID_ARGUMENT` if the key is too long.
    #[expect(
        clippy::result_large_err,
        reason = "the tensor goes back without an allocation, also when memory is short"
    )]
    pub fn send(
        &mut self,
        step_id: i64,
        key: Text,
        tensor: Tensor,
    ) -> Result<(), Rejected<Tensor>> {
        let hash = self.table.hash(step_id, self.table.hash_key(&key));
        let found = self.table.find(hash, step_id, &key);
        if let Err(status) = self.admit_tensor(step_id, &key, found, &tensor) {
            return Err(Rejected {
                value: tensor,
                status,
            });
        }
        let entry = found.unwrap_or_else(|| self.table.insert(hash, step_id, key));
        self.deposit(entry, tensor);
        Ok(())
    }

    /// What makes of the bytes of a key, written at once, the hash for [`Rendezvous::take`]. Each rendezvous has its
    /// own, which peers cannot foresee.
    pub fn key_hasher(&self) -> RandomState {
        self.table.key_hasher()
    }

    /// Takes the tensors of one or more keys of a step, in their order, if all of them are there and no request
    /// waits for any. `None` changes nothing; [`Rendezvous::receive`] then says what is to be done.
    ///
    /// # Panics
    /// Unless `hashes` has one for each key.
    pub fn take(
        &mut self,
        step_id: i64,
        keys: &[Text],
        hashes: &[u64],
    ) -> Option<SmallVec<[Tensor; 1]>> {
        assert_eq!(keys.len(), hashes.len(), "each key has a hash");
        if keys.is_empty() || keys.len() > self.limits.keys_per_request {
            return None;
        }
        if let (&[key_hash], [key]) = (hashes, keys) {
            let hash = self.table.hash(step_id, key_hash);
            let entry = self.table.find_tensor(hash, step_id, key)?;
            return Some(SmallVec::from_buf([self.remove_found(entry)]));
        }
        self.found.clear();
        for (key, &key_hash) in keys.iter().zip(hashes) {
            let hash = self.table.hash(step_id, key_hash);
            match self.table.find_tensor(hash, step_id, key) {
                Some(entry) => self.found.push(entry),
                None => {
                    for &entry in &self.found {
                        self.table.entry_mut(entry).is_found = false;
                    }
                    return None;
                }
            }
        }
        let mut tensors = SmallVec::with_capacity(keys.len());
        for index in 0..self.found.len() {
            tensors.push(self.remove_found(self.found[index]));
        }
        Some(tensors)
    }

    #[inline]
    fn remove_found(&mut self, entry: usize) -> Tensor {
        let tensor = self.table.remove_tensor(entry);
        let tensor = tensor.expect("only entries with a tensor are found");
        self.stored_bytes -= tensor.data.len() as u64;
        tensor
    }

    /// Asks for the tensors of one or more keys of a step, all at once. `waiter` names the request; it is the
    /// caller's to choose, and must not be in use.
    ///
    /// # Errors
    /// The request was not accepted and has no other outcome: `INVALID_ARGUMENT` without a key, with the same
    /// key twice, or with one too long, `ALREADY_EXISTS` if the name is in use, the status of the step if it
    /// is over, `RESOURCE_EXHAUSTED` beyond a limit.
    pub fn receive(
        &mut self,
        step_id: i64,
        keys: SmallVec<[Text; 1]>,
        waiter: u64,
    ) -> Result<(), Status> {
        self.admit_request(step_id, keys.len(), waiter)?;
        let slot = self.waiters.insert(waiter, step_id);
        let mut last_wait = NONE;
        for key in keys {
            match self.add_wait(step_id, key, slot, last_wait) {
                Ok(wait) => last_wait = wait,
                Err(status) => {
                    self.remove_waits(slot);
                    self.waiters.remove(slot);
                    return Err(status);
                }
            }
        }
        if self.waiters.parked(slot).missing == 0 {
            self.complete(slot);
        }
        Ok(())
    }

    /// Drops a request whose asker has gone. Tensors that it had already taken wait again for another asker.
    /// Returns false if there is no such request, or its outcome was taken before.
    pub fn forget(&mut self, waiter: u64) -> bool {
        let Some(slot) = self.waiters.find(waiter) else {
            return false;
        };
        if let State::Parked(_) = self.waiters.state(slot) {
            self.remove_waits(slot);
            self.waiters.remove(slot);
            return true;
        }
        let (step_id, state) = self.waiters.forget(slot);
        if let State::Ready(taken) = state {
            for Taken { key, tensor } in taken {
                self.restore(step_id, key, tensor);
            }
        }
        true
    }

    /// Gives back a tensor that was handed out but did not arrive, so that another may ask for it. No limit
    /// applies: it had its place before. Returns false if nobody can ask for it any more, because the step is
    /// over or its producer has sent the key anew; the tensor is dropped then.
    pub fn restore(&mut self, step_id: i64, key: Text, tensor: Tensor) -> bool {
        if self.closed.contains(step_id) {
            return false;
        }
        let hash = self.table.hash(step_id, self.table.hash_key(&key));
        let entry = match self.table.find(hash, step_id, &key) {
            Some(entry) if self.table.entry(entry).tensor.is_some() => return false,
            Some(entry) => entry,
            None => self.table.insert(hash, step_id, key),
        };
        self.deposit(entry, tensor);
        true
    }

    /// Ends a step with an error: requests that wait and whatever comes later fail with exactly this status,
    /// until [`Rendezvous::cleanup`]. Its tensors are dropped. Nothing changes if the step is over already.
    pub fn abort(&mut self, step_id: i64, status: Status) {
        if !self.closed.contains(step_id) {
            self.close(step_id, Ending::Aborted(status));
        }
    }

    /// Ends a step for good: its tensors are dropped, requests that wait and whatever comes later fail with
    /// `ABORTED`.
    pub fn cleanup(&mut self, step_id: i64) {
        self.close(step_id, Ending::CleanedUp);
    }

    /// Whether a step is over, as far as that is remembered.
    pub fn is_closed(&self, step_id: i64) -> bool {
        self.closed.contains(step_id)
    }

    /// Aborts every step in which something waits, in ascending order. Other steps are not touched: they may be yet to come.
    pub fn abort_all(&mut self, status: Status) {
        let mut step_ids: Vec<i64> = self.table.step_ids().collect();
        // So that outcomes come in the same order each time.
        step_ids.sort_unstable();
        for step_id in step_ids {
            self.abort(step_id, status.clone());
        }
    }

    /// The next outcome of a request, in the order in which they came about.
    pub fn poll_ready(&mut self) -> Option<Ready> {
        self.waiters.poll()
    }

    /// Steps in which something waits.
    pub fn open_steps(&self) -> usize {
        self.table.steps()
    }

    /// Aborted and cleaned steps that are remembered.
    pub fn closed_steps(&self) -> usize {
        self.closed.len()
    }

    /// Keys for which a tensor or a request waits.
    pub fn waiting_keys(&self) -> usize {
        self.table.entries()
    }

    /// Requests that wait, or whose outcome was not taken yet.
    pub fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Bytes of data in tensors that wait.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Lets a request wait for one more key; returns the wait.
    fn add_wait(
        &mut self,
        step_id: i64,
        key: Text,
        slot: usize,
        last_wait: usize,
    ) -> Result<usize, Status> {
        let hash = self.table.hash(step_id, self.table.hash_key(&key));
        let entry = match self.table.find(hash, step_id, &key) {
            Some(entry) => {
                self.admit_wait(step_id, entry, slot)?;
                entry
            }
            None => {
                self.admit_key(step_id, &key)?;
                self.table.insert(hash, step_id, key)
            }
        };
        let wait = self.table.insert_wait(entry, slot);
        let parked = self.waiters.parked_mut(slot);
        if last_wait == NONE {
            parked.first_wait = wait;
        } else {
            self.table.wait_mut(last_wait).next_of_waiter = wait;
        }
        parked.keys += 1;
        if self.table.entry(entry).tensor.is_none() {
            parked.missing += 1;
        }
        Ok(wait)
    }

    /// Puts a tensor where there is none, and hands it on if a request was waiting only for it.
    fn deposit(&mut self, entry: usize, tensor: Tensor) {
        let taker = self.first_taker(entry);
        self.stored_bytes += tensor.data.len() as u64;
        self.table.entry_mut(entry).tensor = Some(tensor);
        for slot in self.table.waiters_at(entry) {
            self.waiters.parked_mut(slot).missing -= 1;
        }
        if let Some(slot) = taker {
            self.complete(slot);
        }
    }

    /// The first request that lacks only the tensor of this key, which is not there.
    fn first_taker(&self, entry: usize) -> Option<usize> {
        self.table
            .waiters_at(entry)
            .find(|&slot| self.waiters.parked(slot).missing == 1)
    }

    /// Takes all tensors of a request that misses none.
    fn complete(&mut self, slot: usize) {
        let parked = self.waiters.parked(slot);
        let mut taken = SmallVec::with_capacity(parked.keys);
        let mut next = parked.first_wait;
        while next != NONE {
            let wait = self.table.remove_wait(next);
            next = wait.next_of_waiter;
            let tensor = self.table.entry_mut(wait.entry).tensor.take();
            let tensor = tensor.expect("a request that misses nothing finds its tensors");
            self.stored_bytes -= tensor.data.len() as u64;
            for other in self.table.waiters_at(wait.entry) {
                self.waiters.parked_mut(other).missing += 1;
            }
            let key = if self.table.entry(wait.entry).is_empty() {
                self.table.remove(wait.entry)
            } else {
                self.table.entry(wait.entry).key.clone()
            };
            taken.push(Taken { key, tensor });
        }
        self.waiters.settle(slot, State::Ready(taken));
    }

    /// Takes a parked request out of the lists of its keys.
    fn remove_waits(&mut self, slot: usize) {
        let mut next = self.waiters.parked(slot).first_wait;
        while next != NONE {
            let wait = self.table.remove_wait(next);
            next = wait.next_of_waiter;
            if self.table.entry(wait.entry).is_empty() {
                self.table.remove(wait.entry);
            }
        }
    }

    fn close(&mut self, step_id: i64, ending: Ending) {
        while let Some(entry) = self.table.first_entry(step_id) {
            let first = self.table.waiters_at(entry).next();
            if let Some(slot) = first {
                self.remove_waits(slot);
                self.waiters
                    .settle(slot, State::Failed(ending.status(step_id)));
            } else if let Some(tensor) = self.table.remove_tensor(entry) {
                self.stored_bytes -= tensor.data.len() as u64;
            }
        }
        self.closed.close(step_id, ending);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, Hasher};

    use super::*;
    use crate::Code;

    const STEP: i64 = 7;

    fn rendezvous(change: impl FnOnce(&mut RendezvousLimits)) -> Rendezvous {
        let mut limits = RendezvousLimits::default();
        change(&mut limits);
        Rendezvous::new(limits)
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

    fn refused(result: Result<(), Status>, code: Code, word: &str) {
        let status = result.unwrap_err();
        assert_eq!(status.code, code, "{status}");
        assert!(status.message.contains(word), "{status}");
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
        let status = Status::new(Code::OutOfRange, "End of sequence");
        rendezvous.receive(STEP, keys(&["a"]), 1).unwrap();
        rendezvous.receive(STEP, keys(&["a", "b", "c"]), 2).unwrap();
        rendezvous.receive(STEP + 1, keys(&["a"]), 3).unwrap();
        send(&mut rendezvous, "b", 1);
        rendezvous.abort(STEP, status.clone());
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
        let status = Status::new(Code::Unavailable, "the server stops");
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
}
