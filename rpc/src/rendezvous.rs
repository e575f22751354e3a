//! Where the tensors of a step meet those who ask for them.

mod admission;
mod by_step;
mod closed;
mod entries;
mod held;
mod home;
mod limits;
mod room;
mod table;
mod waiters;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

pub use self::held::HeldTensor;
pub use self::home::home_shard;
pub use self::limits::RendezvousLimits;

use self::closed::{ClosedSteps, Ending};
use self::entries::NONE;
use self::table::{Place, Table};
use self::waiters::{State, Taken, Waiters};
use crate::{Reason, Rejected, Status, Tensor, Text};

/// Where the tensors of a step meet those who ask for them, in either order.
///
/// One shard holds the steps that [`home_shard`] gives it. A step needs no start: it exists while a
/// tensor or a request waits in it, so a request may come before anything else is known of its
/// step. It ends with [`Rendezvous::abort`] or [`Rendezvous::cleanup`]; what comes later fails at
/// once, as long as the end is remembered ([`RendezvousLimits::closed_steps`]). A step id is
/// therefore not for use a second time.
///
/// # Contracts
/// - A tensor that was sent is handed out once, unless it comes back through
///   [`Rendezvous::restore`].
/// - A request takes all its tensors at once, when the last of them is there. Until then it holds
///   nothing, and forgetting it loses nothing. Of several requests that could take a tensor, the
///   first come does.
/// - Each accepted request has exactly one outcome in [`Rendezvous::poll_ready`], unless it is
///   forgotten.
/// - What is refused changes nothing.
///
/// Work per call is bounded by the keys of the request times [`RendezvousLimits::waiters_per_key`];
/// ending a step takes time for each key that is left in it. With one key per request nothing is
/// allocated once the tables have grown to their working size.
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
    found: Vec<u32>,
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

    /// Offers a tensor under a key of a step: to the first request that now has all it waits for,
    /// or to whoever asks next. Of what another process lends it offers a copy.
    ///
    /// # Errors
    /// The tensor comes back, with `ALREADY_EXISTS` if one waits under this key, with the status of
    /// the step if it is over, with `RESOURCE_EXHAUSTED` beyond a limit, with `INVALID_ARGUMENT` if
    /// the key is too long.
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
        let key_hash = self.table.hash_key(&key);
        self.send_hashed(step_id, key, key_hash, tensor)
    }

    /// As [`Rendezvous::send`], for a key whose hash is known, as for [`Rendezvous::take`].
    ///
    /// # Errors
    /// As of [`Rendezvous::send`].
    #[expect(
        clippy::result_large_err,
        reason = "the tensor goes back without an allocation, also when memory is short"
    )]
    pub fn send_hashed(
        &mut self,
        step_id: i64,
        key: Text,
        key_hash: u64,
        mut tensor: Tensor,
    ) -> Result<(), Rejected<Tensor>> {
        tensor.make_private();
        let place = self.table.find(step_id, key_hash, &key);
        if let Err(status) = self.admit_tensor(&place, &key, &tensor) {
            return Err(Rejected {
                value: tensor,
                status,
            });
        }
        match place.entry {
            Some(entry) => self.deposit(entry, tensor),
            None => self.deposit_alone(&place, key, tensor),
        }
        Ok(())
    }

    /// What makes of the bytes of a key, written at once, the hash for [`Rendezvous::take`]. Each
    /// rendezvous has its own, which peers cannot foresee.
    pub fn key_hasher(&self) -> RandomState {
        self.table.key_hasher()
    }

    /// Takes the tensors of one or more keys of a step, in their order, if all of them are there
    /// and no request waits for any. `None` changes nothing; [`Rendezvous::receive`] then says what
    /// is to be done.
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
            let (held, _) = self.hold(step_id, key, key_hash, usize::MAX)?;
            let (_, _, tensor) = self.take_held(held)?;
            return Some(SmallVec::from_buf([tensor]));
        }
        let hashed = keys.iter().zip(hashes.iter().copied());
        if !(self.table).find_tensors(step_id, hashed, &mut self.found) {
            return None;
        }
        let mut tensors = SmallVec::with_capacity(keys.len());
        for index in 0..self.found.len() {
            tensors.push(self.remove_found(self.found[index]));
        }
        Some(tensors)
    }

    /// Takes the tensor of one key with at most so many bytes of data, as [`Rendezvous::take`]
    /// does, but leaves it where it is until [`Rendezvous::release`] or [`Rendezvous::take_held`].
    #[inline]
    pub fn hold(
        &mut self,
        step_id: i64,
        key: &Text,
        key_hash: u64,
        data_bytes_max: usize,
    ) -> Option<(HeldTensor, &Tensor)> {
        let (entry, tensor) = (self.table).hold_tensor(step_id, key_hash, key, data_bytes_max)?;
        self.stored_bytes -= tensor.data.len() as u64;
        Some((HeldTensor::new(entry), tensor))
    }

    /// Drops a tensor that was held.
    #[inline]
    pub fn release(&mut self, held: HeldTensor) {
        self.table.release(held.number());
    }

    /// Takes a tensor that was held from where it is, with its step and its key. `None` if this
    /// rendezvous holds no such tensor.
    pub fn take_held(&mut self, held: HeldTensor) -> Option<(i64, Text, Tensor)> {
        self.table.take_held(held.number())
    }

    #[inline]
    fn remove_found(&mut self, entry: u32) -> Tensor {
        let tensor = self.table.remove_tensor(entry);
        let tensor = tensor.expect("only entries with a tensor are found");
        self.stored_bytes -= tensor.data.len() as u64;
        tensor
    }

    /// Asks for the tensors of one or more keys of a step, all at once. `waiter` names the request;
    /// it is the caller's to choose, and must not be in use.
    ///
    /// # Errors
    /// The request was not accepted and has no other outcome: `INVALID_ARGUMENT` without a key,
    /// with the same key twice, or with one too long, `ALREADY_EXISTS` if the name is in use, the
    /// status of the step if it is over, `RESOURCE_EXHAUSTED` beyond a limit.
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

    /// Drops a request whose asker has gone. Tensors that it had already taken wait again for
    /// another asker. Returns false if there is no such request, or its outcome was taken before.
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

    /// Gives back a tensor that was handed out but did not arrive, so that another may ask for it.
    /// No limit applies: it had its place before. Returns false if nobody can ask for it any more,
    /// because the step is over or its producer has sent the key anew; the tensor is dropped then.
    pub fn restore(&mut self, step_id: i64, key: Text, tensor: Tensor) -> bool {
        if self.closed.contains(step_id) {
            return false;
        }
        let place = self.table.find(step_id, self.table.hash_key(&key), &key);
        match place.entry {
            Some(entry) if self.table.entry(entry).tensor.is_some() => return false,
            Some(entry) => self.deposit(entry, tensor),
            None => self.deposit_alone(&place, key, tensor),
        }
        true
    }

    /// Ends a step with an error: requests that wait and requests that come later fail with this
    /// code and text until [`Rendezvous::cleanup`]. A status without a reason of its own gets
    /// [`Reason::StepOver`]. The tensors of the step are dropped. Nothing changes if the step is
    /// over already.
    pub fn abort(&mut self, step_id: i64, status: Status) {
        if !self.closed.contains(step_id) {
            let status = match status.reason {
                Reason::Unspecified => status.because(Reason::StepOver),
                _ => status,
            };
            self.close(step_id, Ending::Aborted(status));
        }
    }

    /// Ends a step for good: its tensors are dropped, requests that wait and whatever comes later
    /// fail with `ABORTED`.
    pub fn cleanup(&mut self, step_id: i64) {
        self.close(step_id, Ending::CleanedUp);
    }

    /// Whether a step is over, as far as that is remembered.
    pub fn is_closed(&self, step_id: i64) -> bool {
        self.closed.contains(step_id)
    }

    /// Aborts every step in which something waits, in ascending order. Other steps are not touched:
    /// they may be yet to come.
    pub fn abort_all(&mut self, status: Status) {
        let mut step_ids: Vec<i64> = self.table.step_ids().collect();
        // So that outcomes come in the same order each time.
        step_ids.sort_unstable();
        for step_id in step_ids {
            self.abort(step_id, status.clone());
        }
    }

    /// Whether requests may have outcomes that [`Rendezvous::poll_ready`] has not said yet.
    #[inline]
    pub fn has_ready(&self) -> bool {
        self.waiters.has_settled()
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
        self.table.entries() as usize
    }

    /// Whether a tensor waits under this key, also if a request has found it that waits for others.
    pub fn has_tensor(&self, step_id: i64, key: &Text) -> bool {
        let place = self.table.find(step_id, self.table.hash_key(key), key);
        let entry = place.entry.map(|entry| self.table.entry(entry));
        entry.is_some_and(|entry| entry.tensor.is_some())
    }

    /// Tensors that wait, with their steps and keys, among the first `places` where some may be.
    pub fn parked(&self, places: usize) -> impl Iterator<Item = (i64, &Text, &Tensor)> {
        self.table.parked(places)
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
        last_wait: u32,
    ) -> Result<u32, Status> {
        let place = self.table.find(step_id, self.table.hash_key(&key), &key);
        let entry = match place.entry {
            Some(entry) => {
                self.admit_wait(step_id, entry, slot)?;
                entry
            }
            None => {
                self.admit_key(&place, &key)?;
                self.table.insert(&place, key)
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

    /// Puts a tensor under a key that nobody has asked for.
    #[inline(always)]
    fn deposit_alone(&mut self, place: &Place, key: Text, tensor: Tensor) {
        self.stored_bytes += tensor.data.len() as u64;
        let entry = self.table.insert(place, key);
        self.table.entry_mut(entry).tensor = Some(tensor);
    }

    /// Puts a tensor where there is none, and hands it on if a request was waiting only for it.
    fn deposit(&mut self, entry: u32, tensor: Tensor) {
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
    fn first_taker(&self, entry: u32) -> Option<usize> {
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
mod tests;
