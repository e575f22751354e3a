//! Who looks for ranks that do not answer: a receive of what nobody sends, which ends by its time.

use std::sync::Arc;

use grpcxx_rpc::{Code, Reason, Status};
use grpcxx_runtime::ShardContext;

use super::waits::{Look, look};
use super::{LOOKS_PER_PATIENCE, Member, TIMER};

impl Member {
    /// Sees to it that somebody looks for ranks which do not answer.
    pub(super) fn watch(self: &Arc<Self>, shard: &mut ShardContext<'_>) {
        {
            let mut state = self.state();
            let now = shard.now();
            let noted = state.lanes.values_mut().filter_map(|lane| lane.note(now));
            let is_busy = noted.count() > 0 || !state.outbox.is_even();
            if state.is_watched || !is_busy || state.over.is_some() {
                return;
            }
            state.is_watched = true;
        }
        let look = self.patience / LOOKS_PER_PATIENCE;
        let key = self.names.timer();
        shard.receive(
            &self.own,
            self.step_id,
            &key,
            Some(look),
            Arc::clone(self),
            TIMER,
        );
    }

    pub(super) fn look(self: &Arc<Self>, shard: &mut ShardContext<'_>) {
        let look = {
            let mut state = self.state();
            state.is_watched = false;
            look(&mut state, self.rank, (shard.now(), self.patience))
        };
        match look {
            Look::GoesOn { asks } => {
                asks.into_iter().for_each(|rank| self.ask(rank, shard));
                self.watch(shard);
            }
            Look::Ends(silence) => {
                // Nobody asks them for a farewell.
                self.state().gone.extend(&silence.ranks);
                for &rank in &silence.ranks {
                    if let Some(peer) = &self.peers[rank as usize] {
                        shard.disconnect(peer);
                    }
                }
                let text = silence.text(&self.names.of_all(&silence.ranks), self.patience);
                let status = Status::new(Code::DeadlineExceeded, text);
                self.fail(status.because(Reason::Deadline), shard);
            }
        }
    }
}
