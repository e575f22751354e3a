//! What is free of the machine's memory, and lent to arenas that are full.

mod ledger;
#[cfg(all(test, not(loom)))]
mod tests;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::{fmt, fs};

use self::ledger::{Ledger, Lent, Place};
use crate::control_group;
use crate::options::usable_memory_bytes;

/// The memory of a machine that nobody uses, lent to [arenas](crate::ArenaOptions::headroom) whose
/// own memory is full, in steps. Clones lend out of the same memory.
///
/// The system is asked what is free when an arena takes another step, at most every 10 ms, and what
/// was lent meanwhile is taken off its answer. An eighth of the memory always stays unused. What an
/// arena has taken and not filled yet looks free to the system; so a step is kept back for each
/// other arena of this process that takes part, and the eighth covers other processes.
///
/// Of two payloads that fit alone and not together, the first one gets its memory: what it still
/// needs is kept from later ones, as far as it has as much already.
#[derive(Clone)]
pub struct Headroom(Arc<Ledger>);

/// What one arena was lent; given back when it is dropped.
pub(crate) struct Loan {
    headroom: Headroom,
    bytes: u64,
    /// The place among all of its payload that is not complete.
    place: Option<Place>,
}

/// Payload that memory is lent for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Its length in the end.
    pub(crate) whole_bytes: u64,
    /// What it needs beside what it has, and what it asks for now.
    pub(crate) rest_bytes: u64,
}

/// Memory of a loan that was refused more is on its way back until this is dropped: others wait for
/// it before they are refused.
pub(crate) struct Returning(Headroom);

/// Why an arena cannot take more memory than its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Shortage {
    /// The machine has too little memory left.
    #[error(
        "beyond it {allowed_bytes} bytes are allowed now, since {free_bytes} bytes of the memory of this machine or control group are free, and {kept_bytes} of them are kept unused"
    )]
    Memory {
        /// What an arena may take now.
        allowed_bytes: u64,
        /// What is free.
        free_bytes: u64,
        /// What nobody may take of that.
        kept_bytes: u64,
    },
    /// There is memory, and the system refused addresses for it.
    #[error("beyond it the system refuses address space; see `ulimit -v` and vm.overcommit_memory")]
    AddressSpace,
}

impl Headroom {
    /// That of this machine, or of the control groups of this process, nested ones too, where these
    /// have less left. It is one for all of the process. None if the system does not tell what is
    /// free.
    pub fn of_machine() -> Option<Self> {
        static MACHINE: OnceLock<Option<Headroom>> = OnceLock::new();
        let find = || {
            let usable_bytes = usable_memory_bytes();
            free_memory_bytes()?;
            (usable_bytes > 0).then(|| Self::new(usable_bytes, free_memory_bytes))
        };
        MACHINE.get_or_init(find).clone()
    }

    /// That of a machine with `usable_bytes` of memory, of which `free` says how much nobody uses
    /// at the moment, if it can.
    pub fn new(usable_bytes: u64, free: impl Fn() -> Option<u64> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Ledger::new(usable_bytes, free)))
    }

    /// All memory of the machine, used or not.
    pub fn usable_bytes(&self) -> u64 {
        self.0.usable_bytes
    }

    /// The least that is lent at a time, if there is plenty: so seldom is the system asked.
    pub fn step_bytes(&self) -> u64 {
        let part = self.0.usable_bytes / STEPS;
        part.next_power_of_two()
            .clamp(STEP_BYTES_MIN, STEP_BYTES_MAX)
    }

    /// A loan of nothing yet.
    pub(crate) fn open(&self) -> Loan {
        self.0.lock().arenas += 1;
        Loan {
            headroom: self.clone(),
            bytes: 0,
            place: None,
        }
    }

    /// Checks that so many bytes more could be lent, to an arena that has a loan or has none. Says
    /// how many could be.
    pub(crate) fn check(&self, bytes: u64, has_loan: bool) -> Result<u64, Shortage> {
        let (lent, answer) = self.0.lock_answered();
        // What others claim they have to fill first.
        let room = lent.room(answer, self.kept_bytes(&lent, has_loan), None);
        match bytes <= room.allowed_bytes {
            true => Ok(room.allowed_bytes),
            false => Err(room.shortage()),
        }
    }

    /// What an arena that has a loan or has none is not lent.
    fn kept_bytes(&self, lent: &Lent, has_loan: bool) -> u64 {
        let others = lent.arenas - u64::from(has_loan);
        self.usable_bytes() / KEPT_PART + others * self.step_bytes()
    }
}

impl Loan {
    /// Lets the arena have `bytes` in all, or more.
    pub(crate) fn raise_to(&mut self, bytes: u64, need: Need) -> Result<(), Shortage> {
        let more_bytes = bytes.saturating_sub(self.bytes);
        if more_bytes > 0 {
            self.raise_by(more_bytes, need, |_| {})?;
        }
        self.note_complete(need);
        Ok(())
    }

    /// As [`Loan::raise_to`], for one who gives back what he has if this fails too. Waits for
    /// others that are about to.
    pub(crate) fn raise_or_return(
        &mut self,
        bytes: u64,
        need: Need,
    ) -> Result<(), (Shortage, Returning)> {
        if self.raise_to(bytes, need).is_ok() {
            return Ok(());
        }
        self.headroom.0.await_returns();
        let more_bytes = bytes.saturating_sub(self.bytes);
        // Noted with the refusal, so that nobody else is refused before the memory is back.
        let raised = self.raise_by(more_bytes, need, Lent::begin_return);
        raised.map_err(|shortage| (shortage, Returning(self.headroom.clone())))?;
        self.note_complete(need);
        Ok(())
    }

    /// Raises the loan, or does `refuse` with the ledger.
    fn raise_by(
        &mut self,
        more_bytes: u64,
        need: Need,
        refuse: impl FnOnce(&mut Lent),
    ) -> Result<(), Shortage> {
        let headroom = &self.headroom;
        let (mut lent, answer) = headroom.0.lock_answered();
        let place = lent.place(self.place, need.whole_bytes);
        self.place = Some(place);
        let room = lent.room(answer, headroom.kept_bytes(&lent, true), self.place);
        if more_bytes > room.allowed_bytes {
            refuse(&mut lent);
            return Err(room.shortage());
        }
        // Others, of other processes too, may ask before this is filled: with little left, little
        // is lent at a time.
        let rounded_bytes = more_bytes.next_multiple_of(headroom.step_bytes());
        let ahead_bytes = (room.allowed_bytes / ALLOWED_PART).max(AHEAD_BYTES_MIN);
        let lent_bytes = rounded_bytes.min(ahead_bytes).min(room.allowed_bytes);
        let lent_bytes = lent_bytes.max(more_bytes);
        lent.grant(lent_bytes);
        self.bytes += lent_bytes;
        if place.whole_bytes == need.whole_bytes {
            lent.claim(place, need.rest_bytes, self.bytes);
        }
        Ok(())
    }

    /// Gives up its place if the payload that it is for needs no more.
    fn note_complete(&mut self, need: Need) {
        let is_complete =
            |place: &mut Place| place.whole_bytes == need.whole_bytes && need.rest_bytes == 0;
        let place = self.place.take_if(is_complete);
        self.give_up(place);
    }

    fn give_up(&self, place: Option<Place>) {
        if let Some(place) = place {
            self.headroom.0.lock().unclaim(place);
        }
    }

    /// Gives back what is not needed for so many bytes.
    pub(crate) fn lower_to(&mut self, bytes: u64) {
        let rounded_bytes = bytes.next_multiple_of(self.headroom.step_bytes());
        if rounded_bytes < self.bytes {
            self.bytes = rounded_bytes;
            self.headroom.0.lock().note_returned();
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.give_up(self.place);
        let mut lent = self.headroom.0.lock();
        lent.arenas -= 1;
        lent.note_returned();
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        self.0.0.end_return();
    }
}

impl fmt::Debug for Headroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Headroom({} bytes)", self.0.usable_bytes)
    }
}

/// What nobody uses of the memory that this process may use, if the system tells: what the kernel
/// could give without swapping, or what the control groups have left, if that is less.
fn free_memory_bytes() -> Option<u64> {
    let available_bytes = available_bytes(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let left_bytes = control_group::memory_free_bytes(Path::new("/"));
    Some(left_bytes.map_or(available_bytes, |left| left.min(available_bytes)))
}

/// `MemAvailable` of `/proc/meminfo`.
fn available_bytes(text: &str) -> Option<u64> {
    let line = |line: &str| Some(line.strip_prefix("MemAvailable:")?.trim().to_owned());
    let number = text.lines().find_map(line)?;
    let kib: u64 = number.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Part of the usable memory that nobody may take beyond an arena's own.
const KEPT_PART: u64 = 8;

/// Part of what is allowed that one arena is lent ahead of its need, but so much if it is there:
/// small requests are not to ask one by one.
const ALLOWED_PART: u64 = 64;
const AHEAD_BYTES_MIN: u64 = 1 << 20;

/// Steps that the usable memory is lent in, between these lengths.
const STEPS: u64 = 256;
const STEP_BYTES_MIN: u64 = 4 << 20;
const STEP_BYTES_MAX: u64 = 64 << 20;
