//! The operations of one tag, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::Status;
use grpcxx_runtime::Time;

use super::greetings::{Greeting, Greetings};
use super::tokens::{HELLO, NUMBER_MAX};
use super::waits::Stall;
use crate::boards::{Boards, Sleep};
use crate::machine::{Effect, Machine, Slot};
use crate::operation::Ending;
use crate::plan::Partners;

/// The operations of one tag.
pub(super) struct Lane {
    tag: u16,
    /// The operation that runs or comes next.
    number: u64,
    running: Option<Running>,
    queue: VecDeque<Entry>,
    greetings: Greetings,
    /// Where the ranks show descriptions, if they send none.
    boards: Option<Boards>,
    /// Room for what is read there, kept from step to step.
    room: Vec<u8>,
    /// How long the shard looks at boards before partners are to ring.
    look_time: Duration,
    /// Since when it has found nothing new there.
    looks_since: Option<Time>,
}

/// An operation and its end.
pub(super) struct Entry {
    pub(super) machine: Box<Machine>,
    pub(super) ending: Arc<Ending>,
}

struct Running {
    entry: Entry,
    /// When something came last. None if it came where nobody knows the time: then the next look
    /// counts.
    moved_at: Option<Time>,
}

/// What came of a look at the boards of partners.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sight {
    /// Nothing: a partner has not come as far.
    Nothing,
    /// Steps were taken, and a partner has not come as far as this rank now.
    Steps,
    /// As many steps were taken as one look takes, and partners may show more.
    MoreSteps,
    /// Boards show all that this operation takes from them.
    Elsewhere,
}

impl Lane {
    pub(super) fn new(tag: u16, partners: Partners) -> Self {
        Self {
            tag,
            number: 0,
            running: None,
            queue: VecDeque::new(),
            greetings: Greetings::new(partners),
            boards: None,
            room: Vec::new(),
            look_time: Duration::ZERO,
            looks_since: None,
        }
    }

    /// From now on the ranks show each other what they call, and ring for who sleeps. A shard looks
    /// by itself for `look_time` before.
    pub(super) fn show_on(&mut self, boards: Boards, look_time: Duration) {
        self.boards = Some(boards);
        self.look_time = look_time;
    }

    pub(super) fn has_boards(&self) -> bool {
        self.boards.is_some()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The number of the operation that is called next.
    pub(super) fn next_number(&self) -> u64 {
        self.number + u64::from(self.is_running()) + self.queue.len() as u64
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.queue.push_back(entry);
    }

    /// Asks for all that partners may send before an operation begins.
    pub(super) fn prepare(&mut self, effects: &mut Vec<(u16, u64, Effect)>) {
        match &self.boards {
            Some(boards) => {
                let bells = boards.first_bells();
                effects.extend(bells.map(|(from, bell)| awaited_bell(self.tag, from, bell)));
            }
            None => self.ask(effects),
        }
    }

    /// Asks partners what they call, unless that was done before or they show it.
    pub(super) fn ask(&mut self, effects: &mut Vec<(u16, u64, Effect)>) {
        if self.has_boards() {
            return;
        }
        for ahead in 0..self.greetings.ask() as u64 {
            for &from in self.greetings.partners() {
                let (slot, ticket) = (Slot::Hello, HELLO | from);
                let effect = Effect::Receive { from, slot, ticket };
                effects.push((self.tag, self.number + ahead, effect));
            }
        }
    }

    /// Begins the operation that waits longest, unless one runs.
    pub(super) fn begin(
        &mut self,
        now: Option<Time>,
        effects: &mut Vec<(u16, u64, Effect)>,
    ) -> Result<(), Status> {
        if self.running.is_some() {
            return Ok(());
        }
        let Some(entry) = self.queue.pop_front() else {
            return Ok(());
        };
        let running = Running {
            entry,
            moved_at: now,
        };
        match self.boards {
            Some(_) => self.begin_by_boards(running, effects),
            None => self.begin_by_messages(running, effects),
        }
    }

    fn begin_by_messages(
        &mut self,
        mut running: Running,
        effects: &mut Vec<(u16, u64, Effect)>,
    ) -> Result<(), Status> {
        self.ask(effects);
        let machine = &mut running.entry.machine;
        let mut more = Vec::new();
        machine.begin(&mut more);
        let mut outcome = Ok(());
        for (from, greeting) in self.greetings.present() {
            match std::mem::replace(greeting, Greeting::Taken) {
                Greeting::Here(data) if outcome.is_ok() => {
                    outcome = machine.greeted(from, data, &mut more);
                }
                Greeting::Lost(status) if outcome.is_ok() => outcome = Err(status),
                Greeting::Awaited => *greeting = Greeting::Awaited,
                Greeting::Taken | Greeting::Here(_) | Greeting::Lost(_) => {}
            }
        }
        self.running = Some(running);
        self.extend(effects, more);
        outcome
    }

    fn begin_by_boards(
        &mut self,
        running: Running,
        effects: &mut Vec<(u16, u64, Effect)>,
    ) -> Result<(), Status> {
        self.running = Some(running);
        self.show(effects);
        self.look(effects).map(|_| ())
    }

    /// Shows what this rank brings to the step that begins.
    fn show(&mut self, effects: &mut Vec<(u16, u64, Effect)>) {
        let (Some(boards), Some(running)) = (&mut self.boards, &self.running) else {
            return;
        };
        let (description, array) = running.entry.machine.shown();
        for (to, bell) in boards.show(&description, &array) {
            let (slot, data) = (Slot::Bell, Buffer::new());
            let effect = Effect::Send {
                to,
                slot,
                data,
                outlives: false,
            };
            effects.push((self.tag, bell, effect));
        }
    }

    /// Takes what partners show for the operation that runs, a few steps at most. Returns what is
    /// to come of it.
    ///
    /// # Errors
    /// A partner that has not shown its part is gone, or has called something else.
    pub(super) fn look(&mut self, effects: &mut Vec<(u16, u64, Effect)>) -> Result<Sight, Status> {
        for taken in 0..STEPS_PER_LOOK {
            if !self.look_once(effects)? {
                return Ok(match (taken, self.waits_for_boards()) {
                    (_, false) => Sight::Elsewhere,
                    (0, true) => Sight::Nothing,
                    (_, true) => Sight::Steps,
                });
            }
            self.looks_since = None;
            self.greetings.forget_present();
            self.show(effects);
        }
        Ok(Sight::MoreSteps)
    }

    /// Takes what partners show in the present step. Returns whether another step follows.
    fn look_once(&mut self, effects: &mut Vec<(u16, u64, Effect)>) -> Result<bool, Status> {
        if !self.waits_for_boards() {
            return Ok(false);
        }
        let (Some(boards), Some(running)) = (&mut self.boards, &mut self.running) else {
            return Ok(false);
        };
        let machine = &mut running.entry.machine;
        let (mut more, mut are_all_here) = (Vec::new(), true);
        for (from, greeting) in self.greetings.present() {
            if let Greeting::Taken = greeting {
                continue;
            }
            // A loss is asked for first: what a rank has shown before it went counts.
            let loss = boards.loss_of(from);
            if boards.has(from) {
                running.moved_at = None;
                if machine.waits_for_greetings() {
                    let shown = boards.read(from, machine.taken_from(from));
                    machine.greeted(from, shown, &mut more)?;
                }
                *greeting = Greeting::Taken;
            } else if let Some(status) = loss {
                return Err(status.clone());
            } else {
                are_all_here = false;
            }
        }
        let mut has_next = false;
        if are_all_here && !machine.waits_for_greetings() {
            boards.wake_up();
            let read = |from, at, into: &mut [u8]| boards.read_into(from, at, into);
            has_next = machine.take_step(&mut self.room, read);
        }
        self.extend(effects, more);
        Ok(has_next)
    }

    /// Lets partners ring when they show what is still missing, unless somebody looks for it, as a
    /// shard does, who knows the time, for a moment. Returns whether the shard is to look again.
    ///
    /// # Errors
    /// As of [`Lane::look`].
    pub(super) fn rest(
        &mut self,
        sleep: Sleep,
        now: Option<Time>,
        effects: &mut Vec<(u16, u64, Effect)>,
    ) -> Result<bool, Status> {
        if let Some(now) = now
            && self.waits_for_boards()
            && now.since(*self.looks_since.get_or_insert(now)) < self.look_time
        {
            self.wake_up();
            self.look(effects)?;
            return Ok(self.waits_for_boards());
        }
        for _ in 0..LOOKS_PER_REST {
            if self.waits_for_boards()
                && let Some(boards) = &mut self.boards
            {
                boards.fall_asleep(sleep, self.greetings.missing());
            }
            match self.look(effects)? {
                Sight::Nothing | Sight::Elsewhere => return Ok(false),
                // It sleeps until there is more than it has seen.
                Sight::Steps => {}
                Sight::MoreSteps => break,
            }
        }
        Ok(true)
    }

    /// Somebody looks for what partners show, who need not ring.
    pub(super) fn wake_up(&mut self) {
        if let Some(boards) = &mut self.boards {
            boards.wake_up();
        }
    }

    /// Whether an operation runs and waits for what partners show.
    pub(super) fn waits_for_boards(&self) -> bool {
        let running = self.running.as_ref();
        self.has_boards() && running.is_some_and(|running| running.entry.machine.waits_for_boards())
    }

    /// See [`Boards::shared_cpu`].
    pub(super) fn shared_cpu(&mut self) -> Option<usize> {
        self.boards.as_mut()?.shared_cpu()
    }

    /// Takes in a message.
    pub(super) fn take(
        &mut self,
        number: u64,
        ticket: u32,
        data: Buffer,
        now: Time,
        effects: &mut Vec<(u16, u64, Effect)>,
    ) -> Result<(), Status> {
        if let Some(boards) = &mut self.boards
            && ticket & HELLO != 0
        {
            let from = ticket & !HELLO;
            self.looks_since = None;
            let bell = boards.rung_by(from);
            effects.push(awaited_bell(self.tag, from, bell));
            return Ok(());
        }
        let ahead = self.ahead(number);
        let from = (ticket & HELLO != 0).then_some(ticket & !HELLO);
        if from.is_some() && !self.greetings.has_asked(ahead) {
            return Ok(());
        }
        let mut more = Vec::new();
        let outcome = match (&mut self.running, from) {
            (Some(running), Some(from)) if ahead == 0 => {
                running.moved_at = Some(now);
                self.greetings.set(ahead, from, Greeting::Taken);
                running.entry.machine.greeted(from, data, &mut more)
            }
            (Some(running), None) if ahead == 0 => {
                running.moved_at = Some(now);
                running.entry.machine.arrived(ticket, data, &mut more)
            }
            (_, Some(from)) => {
                self.greetings.set(ahead, from, Greeting::Here(data));
                return Ok(());
            }
            (_, None) => return Ok(()),
        };
        self.extend(effects, more);
        outcome
    }

    /// A partner is gone, which was asked for the operation of this number. As long as no operation
    /// needs it, that is no failure.
    ///
    /// # Errors
    /// An operation needs it.
    pub(super) fn lose(
        &mut self,
        number: u64,
        from: u32,
        status: Status,
        effects: &mut Vec<(u16, u64, Effect)>,
    ) -> Result<(), Status> {
        if let Some(boards) = &mut self.boards {
            boards.lose(from, status);
            return self.look(effects).map(|_| ());
        }
        let ahead = self.ahead(number);
        if ahead == 0 && self.is_running() {
            return Err(status);
        }
        self.greetings.set(ahead, from, Greeting::Lost(status));
        Ok(())
    }

    /// The operation that runs, if it is done; the next one may begin.
    pub(super) fn take_done(&mut self) -> Option<(Box<Machine>, Arc<Ending>)> {
        let running = self
            .running
            .take_if(|running| running.entry.machine.is_done())?;
        self.number += 1;
        self.looks_since = None;
        self.greetings.advance();
        Some((running.entry.machine, running.entry.ending))
    }

    /// All operations, which have failed.
    pub(super) fn take_all(&mut self) -> Vec<Entry> {
        let running = self.running.take().map(|running| running.entry);
        running.into_iter().chain(self.queue.drain(..)).collect()
    }

    /// Whom a receive was asked of, if that is still awaited.
    pub(super) fn source_of(&self, number: u64, ticket: u32) -> Option<u32> {
        let ahead = self.ahead(number);
        if ticket & HELLO == 0 {
            let running = self.running.as_ref().filter(|_| ahead == 0)?;
            return running.entry.machine.source_of(ticket);
        }
        let is_asked = self.has_boards() || self.greetings.has_asked(ahead);
        is_asked.then_some(ticket & !HELLO)
    }

    pub(super) fn memory(&mut self, number: u64, ticket: u32, bytes: u64) -> Option<BufferMut> {
        if self.ahead(number) != 0 || ticket & HELLO != 0 {
            return None;
        }
        self.running.as_mut()?.entry.machine.memory(ticket, bytes)
    }

    /// When something came last for the operation that runs: now, if nobody knew the time then.
    pub(super) fn note(&mut self, now: Time) -> Option<Time> {
        let running = self.running.as_mut()?;
        Some(*running.moved_at.get_or_insert(now))
    }

    /// For whom the operation that runs waits.
    pub(super) fn waits_for(&self) -> Vec<u32> {
        match &self.running {
            None => Vec::new(),
            Some(_) if self.waits_for_boards() => self.greetings.missing().collect(),
            Some(running) => running.entry.machine.waits_for(),
        }
    }

    /// How long the operation that runs has waited, if one runs.
    pub(super) fn stall(&mut self, now: Time) -> Option<Stall> {
        let moved_at = self.note(now)?;
        let running = self.running.as_ref()?;
        Some(Stall {
            ranks: self.waits_for(),
            waited: now.since(moved_at),
            what: format!("take part in {}", running.entry.machine.name()),
        })
    }

    /// How many operations behind the present one this number of a token is.
    fn ahead(&self, number: u64) -> usize {
        (number.wrapping_sub(self.number) & NUMBER_MAX) as usize
    }

    fn extend(&self, effects: &mut Vec<(u16, u64, Effect)>, more: Vec<Effect>) {
        let more = more.into_iter();
        effects.extend(more.map(|effect| (self.tag, self.number, effect)));
    }
}

/// Looks in a row before the shard goes on with something else.
const LOOKS_PER_REST: usize = 4;

/// Steps in a row that one look takes, some milliseconds at most.
const STEPS_PER_LOOK: usize = 16;

/// The receive of a bell, which has the number of the bell in place of that of an operation.
fn awaited_bell(tag: u16, from: u32, bell: u64) -> (u16, u64, Effect) {
    let (slot, ticket) = (Slot::Bell, HELLO | from);
    (tag, bell, Effect::Receive { from, slot, ticket })
}
