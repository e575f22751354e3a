use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use grpcxx_memory::forks::Mark;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, cqueue, opcode, squeue};

/// A ring, entered by the thread that made it only.
pub(crate) struct Ring {
    // Before what it marks.
    _mark: Mark,
    ring: IoUring,
    /// What names the ring in system calls: its index among the thread's registered rings, or a
    /// descriptor.
    enter_fd: i32,
    enter_flags: EnterFlags,
    /// What the kernel granted, in words.
    habits: &'static str,
    /// Entries added whose completion was not taken yet.
    operations: usize,
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl Ring {
    /// Sets a ring up with the best habits that the kernel grants, and proves that it works.
    pub(crate) fn open(entries: u32) -> io::Result<Self> {
        let (ring, habits) = set_up(entries.clamp(ENTRIES_MIN, ENTRIES_MAX))?;
        let mut ring = Self {
            _mark: Mark::of(&ring),
            enter_fd: ring.as_raw_fd(),
            enter_flags: EnterFlags::empty(),
            ring,
            habits,
            operations: 0,
            _stays_on_its_thread: PhantomData,
        };
        ring.check_operations()?;
        ring.register_itself();
        // Socket operations are polled for, so workers are an exception; where this fails they stay
        // one.
        let _ = (ring.ring.submitter()).register_iowq_max_workers(&mut [WORKERS_MAX, WORKERS_MAX]);
        ring.check_nop()?;
        Ok(ring)
    }

    /// What the kernel granted, in words.
    pub(crate) fn habits(&self) -> &'static str {
        self.habits
    }

    /// Adds an entry, which is submitted with the next [`Ring::enter`]. False if there is no room.
    ///
    /// # Safety
    /// All memory that the entry points to stays valid, and is not touched otherwise, until its
    /// completion was taken from [`Ring::take`] or the ring is known to have no operation left.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller keeps the entry's memory valid for long enough.
        let pushed = unsafe { self.ring.submission().push(entry).is_ok() };
        self.operations += usize::from(pushed);
        pushed
    }

    /// Entries added whose completion was not taken yet: while it is 0, the kernel uses no memory
    /// of ours.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Whether entering the kernel would do anything.
    pub(crate) fn wants_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Submits what was added and lets the kernel run what it has put off. Does not wait.
    pub(crate) fn enter(&mut self) -> io::Result<()> {
        self.enter_with(0, None)
    }

    /// As [`Ring::enter`], but sleeps until there is a completion or the timeout is over.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timespec = timeout.map(|timeout| {
            let seconds = timeout.as_secs().min(SLEEP_SECONDS_MAX);
            Timespec::new().sec(seconds).nsec(timeout.subsec_nanos())
        });
        match self.enter_with(1, timespec.as_ref()) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            result => result,
        }
    }

    /// Moves completions to `batch`, as many as fit into its capacity.
    pub(crate) fn take(&mut self, batch: &mut Vec<cqueue::Entry>) {
        let (taken, room) = (batch.len(), batch.capacity() - batch.len());
        batch.extend(self.ring.completion().take(room));
        self.operations -= batch.len() - taken;
    }

    /// Whether completions are there to be taken.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Lets an event descriptor be signalled for each completion, once [`Ring::signal`] turns that
    /// on.
    pub(crate) fn register_eventfd(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.signal(false);
        self.ring.submitter().register_eventfd(fd.as_raw_fd())
    }

    /// Turns the signals of [`Ring::register_eventfd`] on or off. What was completed before must be
    /// looked for after turning them on.
    pub(crate) fn signal(&mut self, on: bool) {
        let queue = self.ring.completion();
        if on {
            queue.enable_eventfd();
            fence(Ordering::SeqCst);
        } else {
            queue.disable_eventfd();
        }
    }

    /// Makes a ring of provided buffers known under `group`.
    ///
    /// # Safety
    /// `entries` entries of 16 bytes lie at `address`, page aligned, and stay there, as do the
    /// buffers that they name, until the group is unregistered or the ring is known to have no
    /// operation left and dropped.
    pub(crate) unsafe fn register_buffers(
        &mut self,
        address: u64,
        entries: u16,
        group: u16,
    ) -> io::Result<()> {
        // SAFETY: the caller keeps the entries and the buffers valid.
        unsafe { (self.ring.submitter()).register_buf_ring_with_flags(address, entries, group, 0) }
    }

    /// Ends what [`Ring::register_buffers`] began.
    pub(crate) fn unregister_buffers(&mut self, group: u16) {
        // Fails only if the group is unknown.
        let _ = self.ring.submitter().unregister_buf_ring(group);
    }

    fn enter_with(&mut self, want: u32, timeout: Option<&Timespec>) -> io::Result<()> {
        let submit = self.ring.submission().len() as u32;
        let mut flags = self.enter_flags | EnterFlags::GETEVENTS;
        let mut args = SubmitArgs::new();
        let (mut arg, mut arg_bytes) = (std::ptr::null(), 0);
        if let Some(timeout) = timeout {
            args = args.timespec(timeout);
            arg = (&raw const args).cast::<libc::c_void>();
            arg_bytes = size_of::<SubmitArgs<'_, '_>>();
            flags |= EnterFlags::EXT_ARG;
        }
        // SAFETY: the descriptor is ours, the entries up to `submit` were vouched for in `push`,
        // and `arg` is null or the argument structure that EXT_ARG announces, alive during the
        // call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_uring_enter,
                self.enter_fd,
                submit,
                want,
                flags.bits(),
                arg,
                arg_bytes,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn check_operations(&mut self) -> io::Result<()> {
        let mut probe = Probe::new();
        self.ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::Recv::CODE,
            opcode::Send::CODE,
            opcode::SendMsg::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel::CODE,
            opcode::Timeout::CODE,
        ];
        if needed.into_iter().all(|code| probe.is_supported(code)) {
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Saves the kernel a look at the table of descriptors per call, where it can do that.
    fn register_itself(&mut self) {
        let mut update = RingUpdate {
            offset: u32::MAX,
            reserved: 0,
            data: self.enter_fd as u64,
        };
        if self.register(REGISTER_RING_FDS, &mut update) {
            self.enter_fd = update.offset as i32;
            self.enter_flags = EnterFlags::REGISTERED_RING;
        }
    }

    /// The registration holds the ring open, so it has to go first.
    fn unregister_itself(&mut self) {
        if self.enter_flags.contains(EnterFlags::REGISTERED_RING) {
            let mut update = RingUpdate {
                offset: self.enter_fd as u32,
                reserved: 0,
                data: 0,
            };
            self.register(UNREGISTER_RING_FDS, &mut update);
        }
    }

    fn register(&self, operation: libc::c_uint, update: &mut RingUpdate) -> bool {
        let fd = self.ring.as_raw_fd();
        let update: *mut RingUpdate = update;
        // SAFETY: both operations read and write one structure of this layout.
        unsafe { libc::syscall(libc::SYS_io_uring_register, fd, operation, update, 1) == 1 }
    }

    fn check_nop(&mut self) -> io::Result<()> {
        // SAFETY: a NOP points to nothing.
        unsafe { self.push(&opcode::Nop::new().build()) };
        self.wait(Some(Duration::from_secs(1)))?;
        let completion = self.ring.completion().next();
        self.operations -= usize::from(completion.is_some());
        match completion {
            Some(completion) if completion.result() == 0 => Ok(()),
            Some(completion) => Err(io::Error::from_raw_os_error(-completion.result())),
            None => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.unregister_itself();
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("habits", &self.habits)
            .finish_non_exhaustive()
    }
}

/// The kernel's `io_uring_rsrc_update`.
#[repr(C)]
struct RingUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// Asks for the best habits first, and for a smaller ring where memory is short.
fn set_up(entries: u32) -> io::Result<(IoUring, &'static str)> {
    let mut entries = entries;
    loop {
        let error = match try_habits(entries) {
            Ok(ring) => return Ok(ring),
            Err(error) => error,
        };
        if error.raw_os_error() != Some(libc::ENOMEM) || entries <= ENTRIES_MIN {
            return Err(error);
        }
        entries /= 2;
    }
}

fn try_habits(entries: u32) -> io::Result<(IoUring, &'static str)> {
    let mut builder = IoUring::builder();
    builder
        .setup_cqsize(entries * COMPLETIONS_PER_ENTRY)
        .setup_submit_all()
        // A child that maps it would keep it alive, and with it the sockets that it watches.
        .dontfork();
    let plain = builder.clone();
    builder.setup_taskrun_flag();
    let mut cooperative = builder.clone();
    cooperative.setup_coop_taskrun();
    builder.setup_single_issuer().setup_defer_taskrun();
    let ladder = [
        (builder, "deferred task work"),
        (cooperative, "cooperative task work"),
        (plain, "interrupting task work"),
    ];
    let mut refusal = io::Error::from_raw_os_error(libc::EINVAL);
    for (builder, habits) in ladder {
        match builder.build(entries) {
            Ok(ring) => return Ok((ring, habits)),
            Err(error) => refusal = error,
        }
        if refusal.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(refusal)
}

const ENTRIES_MIN: u32 = 64;
const ENTRIES_MAX: u32 = 16_384;
const COMPLETIONS_PER_ENTRY: u32 = 4;

/// Kernel threads that one ring may start, of each kind.
const WORKERS_MAX: u32 = 1;

/// Longest sleep.
const SLEEP_SECONDS_MAX: u64 = 24 * 60 * 60;

const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;
