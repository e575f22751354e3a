//! How requests are carried out: when, with which end, and what each side hears of it.

use std::time::Duration;

use grpcxx_transport::Time;

use super::{Pending, State, copy};
use crate::adapter::{Completion, CompletionEvent, Receive, Request, RequestFailure, Work};

impl State {
    pub(super) fn post(&mut self, number: u32, request: Request) {
        let latency =
            self.options.latency_min.as_nanos() as u64..=self.options.latency_max.as_nanos() as u64;
        let mut delay_ns = self.random.u64(latency);
        let is_lost =
            self.options.loss_chance > 0.0 && self.random.f64() < self.options.loss_chance;
        let len_bytes = match request.work {
            Work::Send { len_bytes, .. } | Work::Read { len_bytes, .. } => u64::from(len_bytes),
            Work::Immediate(_) => 0,
        };
        delay_ns += len_bytes * 1_000_000_000 / self.options.bytes_per_second;
        let now = self.now;
        let Some(pair) = self.queues.get_mut(&number) else {
            return;
        };
        if pair.is_stopped {
            let completion = Completion {
                tag: pair.tag,
                event: CompletionEvent::Failed(RequestFailure::FLUSHED),
            };
            let adapter = pair.adapter;
            return self.complete(adapter, completion);
        }
        let at = pair.busy_until.max(now) + Duration::from_nanos(delay_ns);
        pair.busy_until = at;
        pair.requests.push_back(Pending {
            at,
            request,
            is_last_try: false,
        });
        if is_lost {
            pair.peer = None;
        }
    }

    /// Carries out what is due, in order of time.
    pub(super) fn run(&mut self, now: Time) {
        self.now = self.now.max(now);
        loop {
            let due = (self.queues.iter())
                .filter_map(|(number, pair)| Some((pair.next_at()?, *number)))
                .min();
            let Some((_, number)) = due.filter(|(at, _)| *at <= self.now) else {
                return;
            };
            let Some(pair) = self.queues.get_mut(&number) else {
                return;
            };
            if self.adapters[pair.adapter].is_removed {
                pair.requests.clear();
                continue;
            }
            let Some(pending) = pair.requests.pop_front() else {
                return;
            };
            self.carry_out_one(number, pending);
        }
    }

    fn carry_out_one(&mut self, number: u32, pending: Pending) {
        let Pending {
            at,
            request,
            is_last_try,
        } = pending;
        let result = self.carry_out(number, &request);
        let retry_time = self.options.retry_time;
        let Some(pair) = self.queues.get_mut(&number) else {
            return;
        };
        match result {
            Ok(()) if request.signalled => {
                let event = CompletionEvent::Done;
                let (adapter, tag) = (pair.adapter, pair.tag);
                self.complete(adapter, Completion { tag, event });
            }
            Ok(()) => {}
            Err(RequestFailure::RETRY_EXCEEDED) if !is_last_try => {
                let at = at + retry_time;
                pair.busy_until = pair.busy_until.max(at);
                pair.requests.push_front(Pending {
                    at,
                    request,
                    is_last_try: true,
                });
            }
            Err(failure) => self.fail(number, failure),
        }
    }

    fn carry_out(&mut self, number: u32, request: &Request) -> Result<(), RequestFailure> {
        let own = &self.queues[&number];
        let adapter = own.adapter;
        let Some(target) = own.peer else {
            return Err(RequestFailure::RETRY_EXCEEDED);
        };
        let is_there = self.queues.get(&target).is_some_and(|peer| {
            !peer.is_stopped && peer.peer == Some(number) && !self.adapters[peer.adapter].is_removed
        });
        if !is_there {
            return Err(RequestFailure::RETRY_EXCEEDED);
        }
        match request.work {
            Work::Send {
                address,
                len_bytes,
                key,
                inline,
            } => {
                if !inline {
                    self.check(adapter, key, address as u64, len_bytes, LOCAL_PROTECTION)?;
                }
                let receive = self.receive(target)?;
                if receive.len_bytes < len_bytes {
                    return Err(REMOTE_INVALID);
                }
                let peer = self.queues[&target].adapter;
                let into = receive.address as u64;
                self.check(peer, receive.key, into, len_bytes, REMOTE_OPERATION)?;
                copy(address, receive.address, len_bytes);
                let index = receive.index;
                self.arrive(target, CompletionEvent::Message { index, len_bytes });
            }
            Work::Immediate(bits) => {
                let index = self.receive(target)?.index;
                self.arrive(target, CompletionEvent::Immediate { index, bits });
            }
            Work::Read {
                address,
                len_bytes,
                key,
                remote_address,
                remote_key,
            } => {
                self.check(adapter, key, address as u64, len_bytes, LOCAL_PROTECTION)?;
                let peer = self.queues[&target].adapter;
                let refused = RequestFailure::REMOTE_ACCESS;
                self.check(peer, remote_key, remote_address, len_bytes, refused)?;
                let chance = self.options.refusal_chance;
                if chance > 0.0 && self.random.f64() < chance {
                    return Err(refused);
                }
                copy(remote_address as usize, address, len_bytes);
            }
        }
        Ok(())
    }

    /// The next receive of a queue.
    fn receive(&mut self, number: u32) -> Result<Receive, RequestFailure> {
        let pair = self.queues.get_mut(&number);
        pair.and_then(|pair| pair.receives.pop_front())
            .ok_or(RequestFailure::NOT_READY)
    }

    fn arrive(&mut self, number: u32, event: CompletionEvent) {
        let pair = &self.queues[&number];
        let (adapter, tag) = (pair.adapter, pair.tag);
        self.complete(adapter, Completion { tag, event });
    }

    /// Whether the memory is registered with this key at this device.
    fn check(
        &self,
        adapter: usize,
        key: u32,
        address: u64,
        len_bytes: u32,
        otherwise: RequestFailure,
    ) -> Result<(), RequestFailure> {
        let is_known = self.regions.get(&key).is_some_and(|known| {
            known.adapter == adapter
                && !(known.is_revoked && otherwise == RequestFailure::REMOTE_ACCESS)
                && address >= known.start as u64
                && address + u64::from(len_bytes) <= (known.start + known.len_bytes) as u64
        });
        if is_known { Ok(()) } else { Err(otherwise) }
    }

    /// Stops a queue: everything posted completes in error, the first with this reason.
    pub(super) fn fail(&mut self, number: u32, failure: RequestFailure) {
        let Some(pair) = self.queues.get_mut(&number) else {
            return;
        };
        if pair.is_stopped {
            return;
        }
        pair.is_stopped = true;
        let flushed = pair.requests.len() + pair.receives.len();
        pair.requests.clear();
        pair.receives.clear();
        let (adapter, tag) = (pair.adapter, pair.tag);
        let event = CompletionEvent::Failed(failure);
        self.complete(adapter, Completion { tag, event });
        for _ in 0..flushed {
            let event = CompletionEvent::Failed(RequestFailure::FLUSHED);
            self.complete(adapter, Completion { tag, event });
        }
    }

    fn complete(&mut self, adapter: usize, completion: Completion) {
        let device = &mut self.adapters[adapter];
        if !device.is_removed {
            device.completions.push_back(completion);
        }
    }
}

const LOCAL_PROTECTION: RequestFailure = RequestFailure(4);
const REMOTE_INVALID: RequestFailure = RequestFailure(9);
const REMOTE_OPERATION: RequestFailure = RequestFailure(11);
