//! The operations of one tag, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::Status;
use grpcxx_runtime::Time;

use super::HELLO;
use crate::machine::{Effect, Machine, Slot};
use crate::operation::Ending;

/// The operations of one tag.
pub(super) struct Lane {
    tag: u16,
    /// The operation that runs or comes next.
    number: u64,
    running: Option<Running>,
    queue: VecDeque<Entry>,
    partners: Vec<u32>,
    /// Descriptions of that operation, by rank.
    hellos: Vec<Greeting>,
}

/// An operation and its end.
pub(super) struct Entry {
    pub(super) machine: Machine,
    pub(super) ending: Arc<Ending>,
}

struct Running {
    entry: Entry,
    /// When something came last.
    moved_at: Time,
}

#[derive(Clone)]
enum Greeting {
    Unasked,
    Asked,
    Here(Buffer),
    Taken,
    /// The partner was gone before an operation needed it.
    Lost(Status),
}

impl Lane {
    pub(super) fn new(tag: u16, partners: Vec<u32>, size: u32) -> Self {
        Self {
            tag,
            number: 0,
            running: None,
            queue: VecDeque::new(),
            partners,
            hellos: vec![Greeting::Unasked; size as usize],
        }
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

    /// Asks partners what they call, unless that was done before.
    pub(super) fn ask(&mut self, effects: &mut Vec<(u16, u64, Effect)>) {
        for &from in &self.partners {
            let hello = &mut self.hellos[from as usize];
            if let Greeting::Unasked = hello {
                *hello = Greeting::Asked;
                let slot = Slot::Hello;
                let ticket = HELLO | from;
                let effect = Effect::Receive { from, slot, ticket };
                effects.push((self.tag, self.number, effect));
            }
        }
    }

    /// Begins the operation that waits longest, unless one runs.
    pub(super) fn begin(
        &mut self,
        now: Time,
        effects: &mut Vec<(u16, u64, Effect)>,
    ) -> Result<(), Status> {
        if self.running.is_some() {
            return Ok(());
        }
        let Some(mut entry) = self.queue.pop_front() else {
            return Ok(());
        };
        self.ask(effects);
        let mut more = Vec::new();
        entry.machine.begin(&mut more);
        let mut outcome = Ok(());
        for &from in &self.partners {
            let hello = &mut self.hellos[from as usize];
            match std::mem::replace(hello, Greeting::Taken) {
                Greeting::Here(data) if outcome.is_ok() => {
                    outcome = entry.machine.greeted(from, data, &mut more);
                }
                Greeting::Lost(status) if outcome.is_ok() => outcome = Err(status),
                waits @ Greeting::Asked => *hello = waits,
                Greeting::Unasked | Greeting::Taken | Greeting::Here(_) | Greeting::Lost(_) => {}
            }
        }
        self.running = Some(Running {
            entry,
            moved_at: now,
        });
        self.extend(effects, more);
        outcome
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
        if !self.is_present(number) {
            return Ok(());
        }
        let mut more = Vec::new();
        let outcome = match (&mut self.running, ticket & HELLO) {
            (None, 0) => return Ok(()),
            (None, _) => {
                self.hellos[(ticket & !HELLO) as usize] = Greeting::Here(data);
                return Ok(());
            }
            (Some(running), 0) => {
                running.moved_at = now;
                running.entry.machine.arrived(ticket, data, &mut more)
            }
            (Some(running), _) => {
                let from = ticket & !HELLO;
                running.moved_at = now;
                self.hellos[from as usize] = Greeting::Taken;
                running.entry.machine.greeted(from, data, &mut more)
            }
        };
        self.extend(effects, more);
        outcome
    }

    /// A partner is gone. As long as no operation needs it, that is no failure.
    ///
    /// # Errors
    /// An operation needs it.
    pub(super) fn lose(&mut self, from: u32, status: Status) -> Result<(), Status> {
        match self.running {
            Some(_) => Err(status),
            None => {
                self.hellos[from as usize] = Greeting::Lost(status);
                Ok(())
            }
        }
    }

    /// The operation that runs, if it is done; the next one may begin.
    pub(super) fn take_done(&mut self) -> Option<(Machine, Arc<Ending>)> {
        let running = self
            .running
            .take_if(|running| running.entry.machine.is_done())?;
        self.number += 1;
        self.hellos.fill(Greeting::Unasked);
        Some((running.entry.machine, running.entry.ending))
    }

    /// All operations, which have failed.
    pub(super) fn take_all(&mut self) -> Vec<Entry> {
        let running = self.running.take().map(|running| running.entry);
        running.into_iter().chain(self.queue.drain(..)).collect()
    }

    /// Whom a receive was asked of, if it is one of the present operation.
    pub(super) fn source_of(&self, number: u64, ticket: u32) -> Option<u32> {
        if !self.is_present(number) {
            return None;
        }
        match ticket & HELLO {
            0 => self.running.as_ref()?.entry.machine.source_of(ticket),
            _ => Some(ticket & !HELLO),
        }
    }

    pub(super) fn memory(&mut self, number: u64, ticket: u32, bytes: u64) -> Option<BufferMut> {
        if !self.is_present(number) || ticket & HELLO != 0 {
            return None;
        }
        self.running.as_mut()?.entry.machine.memory(ticket, bytes)
    }

    /// The ranks for which the present operation waits for too long, and its name.
    pub(super) fn silent(&self, now: Time, patience: Duration) -> Option<(Vec<u32>, String)> {
        let running = self.running.as_ref()?;
        let machine = &running.entry.machine;
        // A rank that waits for an owner hears from it first whom that waits for.
        let patience = match machine.waits_for_parts() {
            true => patience,
            false => patience + patience / 2,
        };
        if now.since(running.moved_at) < patience {
            return None;
        }
        Some((machine.waits_for(), machine.name()))
    }

    fn is_present(&self, number: u64) -> bool {
        number == self.number & 0x7fff
    }

    fn extend(&self, effects: &mut Vec<(u16, u64, Effect)>, more: Vec<Effect>) {
        let more = more.into_iter();
        effects.extend(more.map(|effect| (self.tag, self.number, effect)));
    }
}
