//! A push of several calls: staged at each of its tasks, and then made visible there at once.

use std::time::Duration;

use futures_executor::block_on;
use futures_util::future::join_all;
use grpcxx_rpc::{Request, Status, Tensor, Text};
use grpcxx_runtime::{Client, Peer, StagedPush};

/// What one transfer stages, a push at each task. All of it is discarded unless it is committed.
pub(super) struct Staged<'a> {
    client: &'a Client,
    timeout: Option<Duration>,
    pushes: Vec<(&'a Peer, StagedPush)>,
}

impl<'a> Staged<'a> {
    /// Begins a push at each peer. One of a version before staged pushes has none, and the log
    /// names it.
    pub(super) fn begin(
        client: &'a Client,
        peers: impl IntoIterator<Item = &'a Peer>,
        timeout: Option<Duration>,
    ) -> Result<Self, Status> {
        let mut staged = Self {
            client,
            timeout,
            pushes: peers
                .into_iter()
                .map(|peer| (peer, StagedPush::new()))
                .collect(),
        };
        let answers = staged.ask_all(StagedPush::begin);
        let mut refused = None;
        let mut answers = answers.into_iter();
        staged.pushes.retain(|(peer, _)| match answers.next() {
            Some(Err(status)) if StagedPush::is_unknown(&status) => {
                tracing::warn!(
                    peer = peer.address(),
                    "the task is of a version that stages no pushes: tensors become visible there \
                     one call after the other, and those of a push that fails stay"
                );
                false
            }
            Some(Err(status)) => {
                refused.get_or_insert(at(peer, status));
                false
            }
            Some(Ok(_)) | None => true,
        });
        match refused {
            Some(status) => Err(status),
            None => Ok(staged),
        }
    }

    /// The call that stages tensors at a peer, unless that has no staged pushes.
    pub(super) fn stage(
        &self,
        peer: &Peer,
        tensors: Vec<(Text, Tensor)>,
    ) -> Result<Request, Vec<(Text, Tensor)>> {
        let at_peer = |(other, _): &&(&Peer, StagedPush)| other.address() == peer.address();
        match self.pushes.iter().find(at_peer) {
            Some((_, push)) => Ok(push.stage(tensors)),
            None => Err(tensors),
        }
    }

    /// Makes all visible, at each task by itself; all are asked at once.
    pub(super) fn commit(mut self) -> Result<(), Status> {
        let answers = self.ask_all(StagedPush::commit);
        let tasks = self.pushes.len();
        let failed: Vec<Status> = (self.pushes.drain(..).zip(answers))
            .filter_map(|((peer, _), answer)| Some(at(peer, answer.err()?)))
            .collect();
        let count = failed.len();
        let Some(first) = failed.into_iter().next() else {
            return Ok(());
        };
        let text = match count == tasks {
            true => first.message.to_string(),
            false => format!(
                "{}; the push is visible at {} of {tasks} tasks, make it again",
                first.message,
                tasks - count
            ),
        };
        Err(first.with_message(text))
    }

    /// Makes a call for each push, all at once, and waits for all answers.
    fn ask_all(&self, request: fn(StagedPush) -> Request) -> Vec<Result<(), Status>> {
        let calls = self.pushes.iter().map(|(peer, push)| {
            let call = self.client.call(peer, request(*push), self.timeout);
            async { call.await.map(|_| ()) }
        });
        block_on(join_all(calls))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        for (peer, push) in &self.pushes {
            push.discard(self.client, peer);
        }
    }
}

/// The status with its task in front.
pub(super) fn at(peer: &Peer, status: Status) -> Status {
    let text = format!("{}: {}", peer.address(), status.message);
    status.with_message(text)
}
