//! One shard: its links, its peers, the steps whose home it is, and the turn that drives them.

mod accepted;
mod answers;
#[cfg(all(any(test, fuzzing), not(loom)))]
mod audit;
mod calls;
#[cfg(debug_assertions)]
mod check;
mod context;
mod core;
mod departures;
mod dialling;
mod driven;
mod failures;
mod functions;
mod give_back;
mod in_flight;
mod inspecting;
mod keys;
mod landings;
mod leaving;
mod link_events;
mod links;
mod mail;
mod outgoing;
mod pace;
mod peers;
mod requests;
mod servers;
mod shares;
mod short_calls;
mod staged;
mod steps;
mod streams;
mod submit;
mod timers;
mod watches;
mod windows;

use std::net::SocketAddr;

use grpcxx_memory::DropBatch;
use grpcxx_transport::{ListenerId, Time, Transport, TransportError};

use crate::blame::survive;
use crate::command::Command;

#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) use self::audit::Audit;
pub use self::context::ShardContext;
pub(crate) use self::core::{Core, CoreParts, SharedParts};
pub(crate) use self::driven::DrivenShard;
pub use self::leaving::DrainLimits;
pub use self::pace::Patience;
pub(crate) use self::shares::Accounts;
pub use self::shares::PeerShares;
pub(crate) use self::shares::StreamShare;

/// A shard over one transport. The host turns it; nothing happens in between.
pub(crate) struct Shard<T: Transport> {
    transport: T,
    core: Core<T::Accepted>,
    listener: Option<ListenerId>,
}

impl<T: Transport> Shard<T> {
    pub(crate) fn new(transport: T, parts: CoreParts<T::Accepted>) -> Self {
        Self {
            transport,
            core: Core::new(parts),
            listener: None,
        }
    }

    /// Accepts connections for all shards of the engine.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Result<SocketAddr, TransportError> {
        let (listener, address) = self.transport.listen(address)?;
        self.listener = Some(listener);
        Ok(address)
    }

    /// One bounded round of work. Returns how much happened.
    pub(crate) fn turn(&mut self, now: Time) -> usize {
        let together = DropBatch::begin();
        self.core.begin(now);
        let mut events = self.transport.turn(now, &mut self.core);
        // A tensor that has memory of its own has it for itself when other threads get it.
        together.settle();
        events += self.core.take_commands(&mut self.transport);
        events += self.core.run_timers(&mut self.transport);
        events += self.core.settle();
        events += self.core.flush(&mut self.transport);
        self.transport.submit();
        if self.core.is_stopping() {
            self.stop_listening();
            self.core.wind_down(&mut self.transport);
        }
        #[cfg(debug_assertions)]
        self.core.check();
        events
    }

    /// Carries out one command at once, as a turn does but without a look at the links and at what
    /// other threads have handed over.
    pub(crate) fn execute_now(&mut self, now: Time, command: Command) {
        self.core.begin(now);
        self.core.execute(command);
        self.core.settle_own();
        self.core.flush(&mut self.transport);
        self.transport.submit();
        #[cfg(debug_assertions)]
        self.core.check();
    }

    /// When the shard wants its next turn even if nothing happens.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.core.next_timeout()
    }

    /// Whether the shard has stopped and let go of all links.
    pub(crate) fn is_finished(&self) -> bool {
        self.core.is_finished()
    }

    pub(crate) fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    pub(crate) fn transport(&self) -> &T {
        &self.transport
    }

    pub(crate) fn core_mut(&mut self) -> &mut Core<T::Accepted> {
        &mut self.core
    }

    pub(crate) fn core(&self) -> &Core<T::Accepted> {
        &self.core
    }

    /// Closes all links of a shard that has died, then ends its calls: memory of their callers must
    /// not be written to any more.
    pub(crate) fn into_dead_core(self) -> Core<T::Accepted> {
        let Self {
            transport,
            mut core,
            ..
        } = self;
        survive("the links", || drop(transport));
        core.die();
        core
    }

    fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.transport.unlisten(listener);
        }
    }
}
