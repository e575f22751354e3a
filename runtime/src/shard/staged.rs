//! Pushes that connections stage: who serves their calls, and when they end.

use std::sync::Arc;

use grpcxx_rpc::{Code, GraphCall, Status};
use grpcxx_transport::{Time, Transport};

use crate::command::Origin;
use crate::compute::Job;
use crate::function::Function;
use crate::shard::core::Core;
use crate::shard::servers::ServerLink;
use crate::staging::{Act, Push, Staging, StagingLimits};

impl<A> Core<A> {
    /// The function that carries out a call over what its connection has staged.
    pub(super) fn staging_function(
        &mut self,
        origin: Origin,
        act: Act,
    ) -> Result<Arc<dyn Function>, Status> {
        let server = match origin {
            Origin::Link { server, .. } => self.incoming.servers.find_mut(server),
            Origin::Local { .. } => None,
        };
        let server = server.ok_or_else(|| {
            let text = "pushes are staged on connections of other tasks; a task puts all into its \
                        own store at once";
            Status::new(Code::NotFound, text)
        })?;
        let (shared, shares, now) = (&self.shared, &self.shares, self.now);
        let staging = server.staging.get_or_insert_with(|| {
            let limits = StagingLimits {
                pushes_max: shares.staged_pushes,
                bytes_max: shares.staged_bytes,
                bytes_alone_max: shares.staged_bytes_alone,
                patience: shares.staged_patience,
                life: shares.staged_life,
            };
            Arc::new(Staging::new(&shared.store, &shared.staged, limits))
        });
        let (staging, caller) = (Arc::clone(staging), (server.waits.account, now));
        Ok(Arc::new(move |call: GraphCall| {
            staging.serve(act, call, caller).map(|()| Vec::new())
        }))
    }

    /// Lets go of what a connection has staged that has ended, away from the shard: it may be many
    /// tensors.
    pub(super) fn free_staging(&self, server: &mut ServerLink) {
        if let Some(staging) = server.staging.take() {
            let free = Job::new(move || drop(staging));
            self.shared.chores.spawn(server.waits.account, free);
        }
    }
}

impl ServerLink {
    /// Takes out what the connection has staged for too long.
    pub(super) fn expire_staged<T: Transport>(
        &self,
        now: Time,
        transport: &mut T,
    ) -> Option<Vec<(u64, Push)>> {
        let staging = self.staging.as_ref()?;
        if staging.next_end()? > now {
            return None;
        }
        let reading = transport.reading(self.link).unwrap_or_default();
        let is_within_frame = self.connection.is_within_frame() || reading.is_begun;
        let expired = staging.expire(now, is_within_frame.then_some(reading.taken_bytes));
        for (number, push) in &expired {
            tracing::warn!(
                peer = %self.peer,
                number,
                "dropping a push that was begun and not committed: {push}"
            );
        }
        (!expired.is_empty()).then_some(expired)
    }

    /// When the connection wants to be looked at again.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let of_staged = self.staging.as_ref().and_then(|staging| staging.next_end());
        let of_connection = self.connection.poll_timeout();
        of_connection.into_iter().chain(of_staged).min()
    }
}
