#![expect(
    unsafe_code,
    reason = "the C library calls back at a fork, and a descriptor is replaced by another"
)]
//! What a forked child does with what it got from its parent.
//!
//! A child has copies of all memory but that which is shared, and all descriptors, but none of the
//! threads that work with them. So shared memory becomes the child's own there, and sockets are let
//! go of: else the child would write into the parent's memory, and its peers would not hear that
//! the parent is gone.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::pipe::PipeFlags;

/// What a process has that its children must not have as it is.
pub trait Inherited: Send + Sync {
    /// Called in a child, whose only thread is this one, before `fork` returns there.
    fn in_child(&self);

    /// Whether the parent has to wait until the child has done so: it could change meanwhile what
    /// the child is to have.
    fn must_wait(&self) -> bool;
}

/// Lets children treat something as it wants to be, as long as this exists.
#[derive(Debug)]
pub struct Kept {
    number: u64,
}

/// A descriptor that is this process's alone: in a child it leads nowhere.
///
/// ```
/// use grpcxx_memory::OwnFd;
///
/// let file = std::fs::File::open("/dev/null")?;
/// let own = OwnFd::from(std::os::fd::OwnedFd::from(file));
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct OwnFd {
    // Before the descriptor, whose number may be another one's as soon as it is closed.
    _mark: Mark,
    descriptor: OwnedFd,
}

/// Says that a descriptor leads nowhere in a child, as long as this exists.
///
/// It must be dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Mark {
    descriptor: RawFd,
}

/// Lets children treat `inherited` as it wants to be.
///
/// # Errors
/// The C library has no memory left.
pub fn keep(inherited: Arc<dyn Inherited>) -> io::Result<Kept> {
    hear_of_forks()?;
    let mut all = lock();
    let number = all.next;
    all.next += 1;
    all.kept.push((number, inherited));
    Ok(Kept { number })
}

/// How many forks lie between this process and the first one in which somebody asked: it differs
/// between a process and its children.
#[inline]
pub fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

/// Ends a child that cannot have memory of its own: else it would write into its parent's.
#[cold]
pub fn give_up(why: impl fmt::Display) -> ! {
    let text = format!("grpcxx: a forked child got no memory of its own: {why}\n");
    // A child without standard error ends all the same.
    let _ = io::stderr().write_all(text.as_bytes());
    std::process::abort();
}

/// Lets [`generation`] count.
///
/// # Errors
/// The C library has no memory left.
pub fn hear_of_forks() -> io::Result<()> {
    static ASKED: OnceLock<i32> = OnceLock::new();
    let error = *ASKED.get_or_init(|| {
        // Opened now: a process may have no descriptor left when it forks.
        let _ = nowhere();
        // SAFETY: the functions take and return nothing, and stay as long as the program does.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) }
    });
    match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut all = lock();
        // In a child nothing is kept any more that the parent had.
        if let Some(at) = all
            .kept
            .iter()
            .position(|(number, _)| *number == self.number)
        {
            let gone = all.kept.swap_remove(at);
            drop(all);
            drop(gone);
        }
    }
}

impl From<OwnedFd> for OwnFd {
    fn from(descriptor: OwnedFd) -> Self {
        Self {
            _mark: Mark::of(&descriptor),
            descriptor,
        }
    }
}

impl Deref for OwnFd {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.descriptor
    }
}

impl AsFd for OwnFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Mark {
    /// Marks a descriptor. One whose number is too large is not marked, nor any if the C library
    /// has no memory left.
    pub fn of(descriptor: &impl AsRawFd) -> Self {
        let descriptor = descriptor.as_raw_fd();
        if hear_of_forks().is_ok()
            && let Some((word, bit)) = place_of(descriptor)
        {
            word.fetch_or(bit, Ordering::Relaxed);
            MARKED_WORDS.fetch_max(descriptor as usize / 64 + 1, Ordering::Relaxed);
        }
        Self { descriptor }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        if let Some((word, bit)) = place_of(self.descriptor) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

fn place_of(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let descriptor = usize::try_from(descriptor).ok()?;
    let word = MARKED.get(descriptor / 64)?;
    Some((word, 1 << (descriptor % 64)))
}

/// All that was kept, in the order in which it came.
#[derive(Default)]
struct All {
    kept: Vec<(u64, Arc<dyn Inherited>)>,
    next: u64,
}

/// What one fork holds, from before it until after it.
struct Fork {
    all: MutexGuard<'static, All>,
    /// By which the parent hears that the child is done, if it has to wait for that.
    done: Option<(OwnedFd, OwnedFd)>,
}

/// Nobody keeps or lets go of anything during a fork.
extern "C" fn before() {
    let all = lock();
    let must_wait = all.kept.iter().any(|(_, inherited)| inherited.must_wait());
    let done = must_wait.then(|| rustix::pipe::pipe_with(PipeFlags::CLOEXEC));
    let done = done.and_then(Result::ok);
    FORK.set(Some(Fork { all, done }));
}

extern "C" fn in_parent() {
    let Some(Fork { all, done }) = FORK.take() else {
        return;
    };
    drop(all);
    if let Some((reader, writer)) = done {
        drop(writer);
        // Nothing comes, and the end does, if the child was killed meanwhile.
        let _ = File::from(reader).read(&mut [0]);
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let Some(Fork { mut all, done }) = FORK.take() else {
        return;
    };
    let words = MARKED.iter().take(MARKED_WORDS.load(Ordering::Relaxed));
    for (index, word) in words.enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            lead_nowhere(index as RawFd * 64 + bits.trailing_zeros() as RawFd);
            bits &= bits - 1;
        }
    }
    for (_, inherited) in &all.kept {
        inherited.in_child();
    }
    // From now on it is memory like any other, also to children of this one. What only the parent
    // may end is not ended here.
    std::mem::forget(std::mem::take(&mut all.kept));
    drop(all);
    if let Some((reader, writer)) = done {
        drop(reader);
        let _ = File::from(writer).write(&[1]);
    }
}

/// Puts a descriptor that leads nowhere in place of one that was inherited, whose owner may still
/// close it.
fn lead_nowhere(descriptor: RawFd) {
    if let Some(nowhere) = nowhere() {
        // SAFETY: both are numbers of descriptors, the second one of a socket or the like that is
        // used by nobody in this process any more.
        unsafe { libc::dup3(nowhere.as_raw_fd(), descriptor, libc::O_CLOEXEC) };
    }
}

fn nowhere() -> Option<&'static OwnedFd> {
    static NOWHERE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let open = || File::options().read(true).write(true).open("/dev/null");
    NOWHERE
        .get_or_init(|| open().ok().map(OwnedFd::from))
        .as_ref()
}

fn lock() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    let all = ALL.get_or_init(Mutex::default);
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static FORK: Cell<Option<Fork>> = const { Cell::new(None) };
}

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A bit for each descriptor that leads nowhere in a child. Touched where there are such.
static MARKED: [AtomicU64; DESCRIPTORS_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTORS_MAX / 64];

/// Words from the start that may have bits.
static MARKED_WORDS: AtomicUsize = AtomicUsize::new(0);

/// Descriptors from here on are not marked: as many as a process may have by default.
const DESCRIPTORS_MAX: usize = 1 << 20;

#[cfg(all(test, not(any(miri, loom))))]
mod tests;
