//! Jobs that wait for a thread, in a line for each peer, and how many threads may run some.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use grpcxx_rpc::Account;

/// Lines that take turns: each turn of a peer is one of its jobs.
///
/// A thread has a place while it runs a job, but for the time in which that waits for a call: what
/// it waits for may be a job of these lines. Then another thread runs the next job.
pub(super) struct Lines<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
    /// There is more that is over, or the lines are closed.
    more_over: Condvar,
    is_over: fn(&J) -> bool,
    places: usize,
}

struct State<J> {
    /// None of them is empty.
    by_peer: HashMap<Account, Line<J>, RandomState>,
    /// Each peer with a line, once.
    turns: VecDeque<Account>,
    /// What is over and has left its line.
    over: VecDeque<J>,
    /// Threads that wait for a job.
    idle_threads: usize,
    /// Threads that run jobs. Those that have waited for calls may be too many for a while.
    places_taken: usize,
    /// Threads whose jobs wait for calls.
    waiting_threads: usize,
    is_closed: bool,
}

/// What becomes of the place that a job gives up while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlaceFor {
    /// A thread that idles.
    Idle,
    /// A thread that is to be started.
    NewThread,
    /// Nobody: too many threads wait.
    Nobody,
}

struct Line<J> {
    jobs: VecDeque<J>,
    /// With so many jobs it is looked through for those that are over.
    looked_at: usize,
}

impl<J> Lines<J> {
    /// So many jobs run at a time. `is_over` tells which jobs need not be done any more. A line has
    /// no more of them than others, or some few, unless [`OVER_MAX`] of them wait for `take_over`.
    pub(super) fn new(places: usize, is_over: fn(&J) -> bool) -> Self {
        Self {
            is_over,
            places,
            state: Mutex::new(State {
                by_peer: HashMap::default(),
                turns: VecDeque::new(),
                over: VecDeque::new(),
                idle_threads: 0,
                places_taken: 0,
                waiting_threads: 0,
                is_closed: false,
            }),
            changed: Condvar::new(),
            more_over: Condvar::new(),
        }
    }

    /// Puts a job at the end of the line of a peer.
    pub(super) fn push(&self, peer: Account, job: J) {
        let mut state = self.lock();
        let was_over = state.over.len();
        state.push(peer, job, self.is_over);
        let is_awaited = state.idle_threads > 0 && state.places_taken < self.places;
        let has_more_over = state.over.len() > was_over;
        drop(state);
        // Costs a system call even if nobody waits.
        if is_awaited {
            self.changed.notify_one();
        }
        if has_more_over {
            self.more_over.notify_one();
        }
    }

    /// A thread that runs jobs.
    pub(super) fn worker(&self) -> Worker<'_, J> {
        Worker {
            lines: self,
            has_place: false,
        }
    }

    /// The job of the calling thread begins to wait for a call.
    pub(super) fn begin_wait(&self) -> PlaceFor {
        let mut state = self.lock();
        state.places_taken -= 1;
        state.waiting_threads += 1;
        // As many threads as places run jobs or wait for some.
        let has_thread = state.idle_threads + state.places_taken >= self.places;
        let place_for = match state.waiting_threads {
            _ if has_thread => PlaceFor::Idle,
            ..=WAITING_THREADS_MAX => PlaceFor::NewThread,
            _ => PlaceFor::Nobody,
        };
        let is_wanted = state.idle_threads > 0 && !state.turns.is_empty();
        drop(state);
        if is_wanted {
            self.changed.notify_one();
        }
        place_for
    }

    /// It waits no longer. Its thread needs no free place, for others may wait for what it holds.
    pub(super) fn end_wait(&self) {
        let mut state = self.lock();
        state.waiting_threads -= 1;
        state.places_taken += 1;
    }

    /// The next job that was over when its line was looked through, once there is one. `None` once
    /// the lines are closed and there is no such job.
    pub(super) fn take_over(&self) -> Option<J> {
        let has_none = |state: &mut State<J>| state.over.is_empty() && !state.is_closed;
        let mut state = (self.more_over.wait_while(self.lock(), has_none))
            .unwrap_or_else(PoisonError::into_inner);
        state.over.pop_front()
    }

    /// Lets threads end that find no job.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
        self.more_over.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The jobs of one thread, which has run one when it takes the next. The job may be over.
pub(super) struct Worker<'a, J> {
    lines: &'a Lines<J>,
    has_place: bool,
}

impl<J> Worker<'_, J> {
    fn leave(&mut self, state: &mut State<J>) {
        if std::mem::take(&mut self.has_place) {
            state.places_taken -= 1;
        }
    }
}

impl<J> Drop for Worker<'_, J> {
    fn drop(&mut self) {
        self.leave(&mut self.lines.lock());
    }
}

impl<J> Iterator for Worker<'_, J> {
    type Item = J;

    /// Waits for a job and a place. `None` once the lines are closed and those who have places do
    /// the rest, or if enough threads idle.
    fn next(&mut self) -> Option<J> {
        let lines = self.lines;
        let mut state = lines.lock();
        self.leave(&mut state);
        loop {
            if state.places_taken < lines.places
                && let Some(job) = state.pop()
            {
                state.places_taken += 1;
                self.has_place = true;
                return Some(job);
            }
            if state.is_closed || state.idle_threads >= lines.places + SPARE_THREADS_MAX {
                return None;
            }
            state.idle_threads += 1;
            state = (lines.changed.wait(state)).unwrap_or_else(PoisonError::into_inner);
            state.idle_threads -= 1;
        }
    }
}

impl<J> State<J> {
    fn push(&mut self, peer: Account, job: J, is_over: fn(&J) -> bool) {
        match self.by_peer.entry(peer) {
            Entry::Occupied(mut line) => line.get_mut().push(job, is_over, &mut self.over),
            Entry::Vacant(line) => {
                line.insert(Line {
                    jobs: VecDeque::from([job]),
                    looked_at: LOOKED_AT_MIN,
                });
                self.turns.push_back(peer);
            }
        }
    }

    fn pop(&mut self) -> Option<J> {
        let peer = self.turns.pop_front()?;
        let Entry::Occupied(mut line) = self.by_peer.entry(peer) else {
            return None;
        };
        let job = line.get_mut().jobs.pop_front();
        if line.get().jobs.is_empty() {
            line.remove();
        } else {
            self.turns.push_back(peer);
        }
        job
    }
}

impl<J> Line<J> {
    /// Moves jobs that are over to `over`, once the line has become long. Those that find no place
    /// there keep theirs.
    fn push(&mut self, job: J, is_over: fn(&J) -> bool, over: &mut VecDeque<J>) {
        if self.jobs.len() >= self.looked_at {
            for job in std::mem::take(&mut self.jobs) {
                match over.len() < OVER_MAX && is_over(&job) {
                    true => over.push_back(job),
                    false => self.jobs.push_back(job),
                }
            }
            self.looked_at = LOOKED_AT_MIN.max(2 * self.jobs.len());
        }
        self.jobs.push_back(job);
    }
}

/// A line with fewer jobs is not looked through.
const LOOKED_AT_MIN: usize = 16;
/// No more jobs leave their lines before somebody has taken some.
const OVER_MAX: usize = 1024;

/// Most threads that idle besides one for each place: more than wait for calls at a time, nearly
/// always, for it takes longer to start one than to wait.
const SPARE_THREADS_MAX: usize = 16;

/// Most threads that wait for calls while others have their places.
pub(super) const WAITING_THREADS_MAX: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_are_over_leave_a_line_that_grows() {
        let lines = Lines::<u32>::new(1, |job| job % 10 != 0);
        let most = (0..10_000_u32).map(|job| {
            lines.push(peer(1), job);
            lines.lock().over.clear();
            let state = lines.lock();
            let jobs = &state.by_peer[&peer(1)].jobs;
            jobs.len()
                .saturating_sub(2 * jobs.iter().filter(|job| *job % 10 == 0).count())
        });
        assert!(most.max().unwrap() <= LOOKED_AT_MIN);
        lines.close();
        let taken = lines.worker().filter(|job| job % 10 == 0);
        assert!(
            taken.eq((0..10_000).step_by(10)),
            "the others keep their order"
        );
    }

    #[test]
    fn jobs_that_are_over_stay_in_line_while_too_many_have_left_it() {
        let lines = Lines::<usize>::new(1, |_| true);
        let jobs = 4 * OVER_MAX;
        (0..jobs).for_each(|job| lines.push(peer(1), job));
        assert_eq!(lines.lock().over.len(), OVER_MAX);
        lines.close();
        let over = std::iter::from_fn(|| lines.take_over());
        assert!(over.eq(0..OVER_MAX));
        let stayed = lines.worker();
        assert!(stayed.eq(OVER_MAX..jobs));
    }

    fn peer(last: u8) -> Account {
        Account::of([10, 0, 0, last].into())
    }

    #[test]
    fn peers_take_turns_and_each_line_keeps_its_order() {
        let lines = Lines::new(1, |_| false);
        for number in 0..1000 {
            lines.push(peer(1), (1, number));
        }
        for number in 0..2 {
            lines.push(peer(2), (2, number));
            lines.push(peer(3), (3, number));
        }
        let first: Vec<_> = lines.worker().take(7).collect();
        let expected = [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (3, 1), (1, 2)];
        assert_eq!(first, expected);
        lines.close();
        assert_eq!(lines.worker().count(), 997);
        assert!(lines.lock().by_peer.is_empty() && lines.lock().turns.is_empty());
    }

    #[test]
    fn a_job_that_waits_leaves_its_place_to_another() {
        let lines = Lines::new(1, |_| false);
        let mut threads: Vec<_> = (0..3).map(|_| lines.worker()).collect();
        for (thread, job) in threads.iter_mut().zip(0..) {
            lines.push(peer(1), job);
            assert_eq!(thread.next(), Some(job));
            assert_eq!(lines.begin_wait(), PlaceFor::NewThread);
        }
        // All go on, and no more begin until all of them are done.
        (0..3).for_each(|_| lines.end_wait());
        assert_eq!(lines.lock().places_taken, 3);
        lines.push(peer(1), 3);
        lines.close();
        for (thread, next) in [(0, None), (1, None), (2, Some(3)), (2, None)] {
            assert_eq!(threads[thread].next(), next);
        }
    }

    #[test]
    fn a_thread_that_idles_takes_one_place_alone() {
        let lines = Lines::new(2, |_| false);
        let mut threads: Vec<_> = (0..2).map(|_| lines.worker()).collect();
        for (thread, job) in threads.iter_mut().zip(0..) {
            lines.push(peer(1), job);
            assert_eq!(thread.next(), Some(job));
        }
        lines.lock().idle_threads = 1;
        assert_eq!(lines.begin_wait(), PlaceFor::Idle);
        assert_eq!(lines.begin_wait(), PlaceFor::NewThread);
        (0..2).for_each(|_| lines.end_wait());
    }

    #[test]
    fn threads_that_wait_are_bounded() {
        let lines = Lines::new(1, |_| false);
        let mut threads = Vec::new();
        for job in 0..=WAITING_THREADS_MAX {
            lines.push(peer(1), job);
            let mut thread = lines.worker();
            assert_eq!(thread.next(), Some(job));
            threads.push(thread);
            let is_last = job == WAITING_THREADS_MAX;
            let expected = if is_last {
                PlaceFor::Nobody
            } else {
                PlaceFor::NewThread
            };
            assert_eq!(lines.begin_wait(), expected);
        }
        threads.iter().for_each(|_| lines.end_wait());
    }

    #[test]
    fn every_job_is_taken_by_one_of_the_threads() {
        const JOBS: u32 = 3000;
        let lines = Lines::new(3, |_| false);
        let taken = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|_| scope.spawn(|| lines.worker().collect::<Vec<_>>()))
                .collect();
            for job in 0..JOBS {
                lines.push(peer(job as u8 % 5), job);
            }
            lines.close();
            let taken = threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap());
            let mut taken: Vec<_> = taken.collect();
            taken.sort_unstable();
            taken
        });
        assert!(taken.into_iter().eq(0..JOBS));
    }
}
