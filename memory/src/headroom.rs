//! What is free of the machine's memory, and lent to arenas that are full.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use crate::control_group;
use crate::options::usable_memory_bytes;

/// The memory of a machine that nobody uses, lent to [arenas](crate::ArenaOptions::headroom) whose
/// own memory is full, in steps. Clones lend out of the same memory.
///
/// The system is asked what is free whenever an arena takes another step, and an eighth of the
/// memory always stays unused. What an arena has taken and not filled yet looks free to the system;
/// so a step is kept back for each other arena of this process that takes part, and the eighth
/// covers other processes.
#[derive(Clone)]
pub struct Headroom(Arc<Ledger>);

struct Ledger {
    usable_bytes: u64,
    ask: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    lent: Mutex<Lent>,
}

#[derive(Default)]
struct Lent {
    arenas: u64,
    /// What was free when something was refused last.
    refused: Option<(Instant, u64)>,
}

/// What one arena was lent; given back when it is dropped.
pub(crate) struct Loan {
    headroom: Headroom,
    bytes: u64,
}

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
        Self(Arc::new(Ledger {
            usable_bytes,
            ask: Box::new(free),
            lent: Mutex::default(),
        }))
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
        }
    }

    /// Checks that so many bytes more could be lent, to an arena that has a loan or has none. Says
    /// how many could be.
    pub(crate) fn check(&self, bytes: u64, has_loan: bool) -> Result<u64, Shortage> {
        let ledger = &*self.0;
        let mut lent = ledger.lock();
        let others = lent.arenas - u64::from(has_loan);
        let refused = lent.refused.filter(|(at, _)| at.elapsed() < REFUSAL_LASTS);
        let free_bytes = match refused {
            Some((_, free_bytes)) => free_bytes,
            None => (ledger.ask)().unwrap_or(0),
        };
        let kept_bytes = ledger.usable_bytes / KEPT_PART + others * self.step_bytes();
        let allowed_bytes = free_bytes.saturating_sub(kept_bytes);
        if bytes <= allowed_bytes {
            return Ok(allowed_bytes);
        }
        if refused.is_none() {
            lent.refused = Some((Instant::now(), free_bytes));
        }
        Err(Shortage::Memory {
            allowed_bytes,
            free_bytes,
            kept_bytes,
        })
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loan {
    /// Lets the arena have `bytes` in all, or more. Only here is the system asked.
    pub(crate) fn raise_to(&mut self, bytes: u64) -> Result<(), Shortage> {
        let Some(more_bytes) = bytes.checked_sub(self.bytes).filter(|more| *more > 0) else {
            return Ok(());
        };
        let allowed_bytes = self.headroom.check(more_bytes, true)?;
        // Others, of other processes too, may ask before this is filled: with little left, little
        // is lent at a time.
        let rounded_bytes = more_bytes.next_multiple_of(self.headroom.step_bytes());
        let ahead_bytes = (allowed_bytes / ALLOWED_PART).max(AHEAD_BYTES_MIN);
        let lent_bytes = rounded_bytes.min(ahead_bytes).min(allowed_bytes);
        self.bytes += lent_bytes.max(more_bytes);
        Ok(())
    }

    /// Gives back what is not needed for so many bytes.
    pub(crate) fn lower_to(&mut self, bytes: u64) {
        let rounded_bytes = bytes.next_multiple_of(self.headroom.step_bytes());
        self.bytes = self.bytes.min(rounded_bytes);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.headroom.0.lock().arenas -= 1;
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

/// So long nobody asks the system again after it had too little: a peer whose frames are refused is
/// not to make a shard read files all the time.
const REFUSAL_LASTS: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn of_free(free_bytes: &Arc<AtomicU64>) -> Headroom {
        let free_bytes = Arc::clone(free_bytes);
        Headroom::new(8 << 30, move || Some(free_bytes.load(Ordering::Relaxed)))
    }

    const STEP: u64 = 32 << 20;

    #[test]
    fn an_eighth_and_a_step_for_each_other_arena_stay_unused() {
        let free_bytes = Arc::new(AtomicU64::new(4 << 30));
        let headroom = of_free(&free_bytes);
        assert_eq!(headroom.step_bytes(), STEP);
        let mut first = headroom.open();
        first.raise_to(1).unwrap();
        assert_eq!(first.bytes(), STEP);
        free_bytes.store((1 << 30) + 3 * STEP, Ordering::Relaxed);
        let mut second = headroom.open();
        let refused = second.raise_to(2 * STEP + 1).unwrap_err();
        let expected = Shortage::Memory {
            allowed_bytes: 2 * STEP,
            free_bytes: (1 << 30) + 3 * STEP,
            kept_bytes: (1 << 30) + STEP,
        };
        assert_eq!(refused, expected);
        second.raise_to(2 * STEP).unwrap();
        drop(first);
        assert!(headroom.check(3 * STEP, true).is_ok());
        assert!(headroom.check(3 * STEP, false).is_err());
    }

    #[test]
    fn less_than_a_step_is_lent_where_little_is_free() {
        let free_bytes = Arc::new(AtomicU64::new((1 << 30) + STEP / 2));
        let headroom = of_free(&free_bytes);
        let mut loan = headroom.open();
        loan.raise_to(STEP / 4).unwrap();
        assert_eq!(loan.bytes(), STEP / 4);
        free_bytes.store((1 << 30) + 32 * STEP, Ordering::Relaxed);
        loan.raise_to(STEP / 4 + 1).unwrap();
        assert_eq!(loan.bytes(), STEP / 4 + STEP / 2);
        loan.raise_to(0).unwrap();
        loan.lower_to(0);
        assert_eq!(loan.bytes(), 0);
    }

    #[test]
    fn the_system_is_asked_at_each_step_and_not_for_each_refusal() {
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let headroom = Headroom::new(8 << 30, move || {
            count.fetch_add(1, Ordering::Relaxed);
            Some((1 << 30) + 64 * STEP)
        });
        let mut loan = headroom.open();
        (0..STEP)
            .step_by(1 << 20)
            .for_each(|bytes| loan.raise_to(bytes).unwrap());
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let begin = Instant::now();
        for _ in 0..100 {
            assert!(loan.raise_to(66 * STEP).is_err());
        }
        let times = 2 + begin.elapsed().as_millis() / REFUSAL_LASTS.as_millis();
        assert!(u128::from(asked.load(Ordering::Relaxed)) <= 1 + times);
    }

    #[test]
    fn a_system_that_says_nothing_has_nothing_free() {
        let headroom = Headroom::new(8 << 30, || None);
        assert!(headroom.check(1, false).is_err());
        assert_eq!(
            available_bytes("MemTotal: 7 kB\nMemAvailable:   12 kB\n"),
            Some(12 << 10)
        );
        for text in [
            "",
            "MemAvailable:",
            "MemAvailable: 1",
            "MemAvailable: -1 kB",
        ] {
            assert_eq!(available_bytes(text), None, "{text}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the operating system")]
    fn the_machine_has_less_free_than_it_has() {
        let headroom = Headroom::of_machine().expect("Linux tells");
        let free_bytes = free_memory_bytes().expect("Linux tells");
        assert!((1..=headroom.usable_bytes()).contains(&free_bytes));
    }
}
