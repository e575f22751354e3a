//! The questions by which ranks learn who keeps whom waiting: calls of a function that each has.

use std::sync::{Arc, OnceLock, Weak};

use grpcxx_rpc::{Code, Fetched, GraphCall, NamedTensors, Reason, Response, Status, Tensor, Text};
use grpcxx_runtime::{CallResult, CompletionHandler, Function, ShardContext};

use super::Member;
use super::waits::{Word, waits_for};

/// The function by which a rank answers the others.
#[derive(Debug, Default)]
pub(crate) struct Answers(OnceLock<Weak<Member>>);

/// A question of this rank, whose token is the rank that was asked.
struct Question(Arc<Member>);

impl Answers {
    /// What the function of a rank is called.
    pub(crate) fn name(group: &str, rank: u32) -> Text {
        Text::from(format!("{FUNCTION}/{rank}/{group}"))
    }

    /// From now on there is something to say.
    pub(crate) fn speak_for(&self, member: &Arc<Member>) {
        // Each has one member.
        let _ = self.0.set(Arc::downgrade(member));
    }
}

impl Function for Answers {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        let member = self.0.get().and_then(Weak::upgrade);
        let member = member.filter(|member| member.step_id as u64 == call.step_id);
        let member = member.ok_or_else(|| {
            let text = "the rank is not in that group, or not any more";
            Status::new(Code::NotFound, text)
        })?;
        let ranks = Tensor::vector(waits_for(&member.state()));
        Ok(NamedTensors::from_iter([(Text::from(RANKS), ranks)]))
    }

    fn may_block(&self) -> bool {
        false
    }

    fn runs_anywhere(&self) -> bool {
        true
    }

    fn answers_at_once(&self) -> bool {
        true
    }
}

impl Member {
    /// Asks a rank for whom it waits.
    pub(super) fn ask(self: &Arc<Self>, rank: u32, shard: &mut ShardContext<'_>) {
        let Some(peer) = &self.peers[rank as usize] else {
            return;
        };
        let call = GraphCall::new(Answers::name(&self.names.group, rank))
            .with_step(self.step_id as u64)
            .with_fetch(RANKS);
        let question = Arc::new(Question(Arc::clone(self)));
        shard.run(peer, &call, Some(self.patience), question, u64::from(rank));
    }
}

impl CompletionHandler for Question {
    fn runs_anywhere(&self) -> bool {
        true
    }

    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, _: &mut ShardContext<'_>) {
        let (rank, mut state) = (token as u32, self.0.state());
        match result.and_then(ranks_of) {
            Ok(ranks) => state.words.hear(rank, Word::WaitsFor(ranks)),
            Err(status) if has_not_come(&status) => state.words.asked_in_vain(rank),
            // It may not be asked, or this end could not ask.
            Err(_) => state.words.hear(rank, Word::Silent),
        }
    }
}

/// Whether the rank may not have heard the question.
fn has_not_come(status: &Status) -> bool {
    let reasons = [
        Reason::Deadline,
        Reason::NoConnection,
        Reason::ConnectionLost,
    ];
    reasons.contains(&status.reason)
}

fn ranks_of(answer: Response) -> Result<Vec<u32>, Status> {
    let Response::Fetched(fetched) = answer else {
        let text = "the answer holds no ranks";
        return Err(Status::new(Code::DataLoss, text));
    };
    let ranks = Fetched::from(fetched).take(RANKS)?;
    Ok(ranks.elements::<u32>()?.into_owned())
}

/// What the function is called, before the rank and the name of the group.
const FUNCTION: &str = "grpcxx.group.waits";

const RANKS: &str = "ranks";
