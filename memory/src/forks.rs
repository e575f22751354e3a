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

mod per_process;

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};

pub use self::per_process::PerProcess;

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
    // Not by the standard library, whose lock a thread of the parent may have had.
    // SAFETY: the kernel reads as many bytes as there are. Without standard error it reads none.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
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
        nowhere();
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
    /// By which the parent hears that the child is done, if it has to wait for that: the parent's
    /// end and the child's.
    done: Option<(OwnedFd, OwnedFd)>,
    nowhere: RawFd,
}

/// Nobody keeps or lets go of anything during a fork.
extern "C" fn before() {
    let all = lock();
    let must_wait = all.kept.iter().any(|(_, inherited)| inherited.must_wait());
    let pair = || {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    };
    let fork = Fork {
        all,
        // A process that may open nothing more does not wait.
        done: must_wait.then(pair).and_then(Result::ok),
        nowhere: nowhere(),
    };
    FORK.set(Some(ManuallyDrop::new(fork)));
}

extern "C" fn in_parent() {
    let Some(fork) = FORK.take() else {
        return;
    };
    let Fork { all, done, .. } = ManuallyDrop::into_inner(fork);
    // Only the child has its end now. Then others may fork.
    let done = done.map(|(parent, _)| parent);
    drop(all);
    if let Some(done) = done {
        // Nothing comes, and the end does, if the child was killed meanwhile.
        while recv(&done, &mut [0], RecvFlags::empty()).is_err_and(|errno| errno == Errno::INTR) {}
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let Some(fork) = FORK.take() else {
        return;
    };
    let Fork {
        mut all,
        done,
        nowhere,
    } = ManuallyDrop::into_inner(fork);
    let words = MARKED.iter().take(MARKED_WORDS.load(Ordering::Relaxed));
    for (index, word) in words.enumerate() {
        let mut bits = word.swap(0, Ordering::Relaxed);
        while bits != 0 {
            let descriptor = index as RawFd * 64 + bits.trailing_zeros() as RawFd;
            lead_to(nowhere, descriptor);
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
    if let Some((_, done)) = done {
        // The parent may have been killed.
        let _ = send(&done, &[1], SendFlags::NOSIGNAL);
    }
}

/// Puts a descriptor that leads nowhere in place of one that was inherited, whose owner may still
/// close it.
fn lead_to(nowhere: RawFd, descriptor: RawFd) {
    // SAFETY: both are numbers of descriptors, the second one of a socket or the like that is used
    // by nobody in this process any more. Without the first one nothing happens.
    unsafe { libc::dup3(nowhere, descriptor, libc::O_CLOEXEC) };
}

/// A descriptor of /dev/null, which stays open; -1 if there is none. A program that becomes a
/// daemon closes all, and may have opened something else under the number of the last one.
fn nowhere() -> RawFd {
    static NOWHERE: AtomicI32 = AtomicI32::new(-1);
    let known = NOWHERE.load(Ordering::Relaxed);
    if leads_nowhere(known) {
        return known;
    }
    let opened = File::options().read(true).write(true).open("/dev/null");
    let opened = opened.map_or(-1, IntoRawFd::into_raw_fd);
    NOWHERE.store(opened, Ordering::Relaxed);
    opened
}

fn leads_nowhere(descriptor: RawFd) -> bool {
    if descriptor < 0 {
        return false;
    }
    // SAFETY: borrowed for a question, which fails if nothing is open under that number.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::fstat(descriptor).is_ok_and(|status| status.st_rdev == null)
}

fn lock() -> MutexGuard<'static, All> {
    static ALL: OnceLock<Mutex<All>> = OnceLock::new();
    let all = ALL.get_or_init(Mutex::default);
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Never dropped with its thread, for a destructor of the thread may fork too.
    static FORK: Cell<Option<ManuallyDrop<Fork>>> = const { Cell::new(None) };
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
