//! The calls of a push that is staged, as its maker makes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grpcxx_rpc::{Code, GraphCall, Request, Status, Tensor, Text};

use super::{STORE_COMMIT, STORE_DISCARD, STORE_STAGE};
use crate::call::{CallResult, CallSpec, CompletionHandler};
use crate::client::{Client, Peer};
use crate::shard::ShardContext;

/// A push of several calls that becomes visible at once.
///
/// [`StagedPush::begin`] comes first, then any number of [`StagedPush::stage`], and once all of
/// them have been answered well, [`StagedPush::commit`]. All go to the same [`Peer`]: what was
/// staged is dropped with its connection.
///
/// ```
/// use grpcxx_rpc::{Status, Tensor, Text};
/// use grpcxx_runtime::{Engine, StagedPush};
///
/// let server = Engine::builder().listen("127.0.0.1:0").start()?;
/// let caller = Engine::builder().start()?;
/// let remote = caller.connect(&server.local_addr().unwrap().to_string())?;
/// let push = StagedPush::new();
/// remote.call(push.begin()).wait()?;
/// remote.call(push.stage(vec![(Text::from("w"), Tensor::scalar(1.0_f32))])).wait()?;
/// assert!(server.stored().is_empty());
/// remote.call(push.commit()).wait()?;
/// assert_eq!(server.stored().len(), 1);
/// # Ok::<(), Status>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedPush {
    number: u64,
}

impl StagedPush {
    /// A push with a number that no other push of this process has.
    #[expect(
        clippy::new_without_default,
        reason = "each is another, so there is no default"
    )]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// The call that begins it.
    pub fn begin(self) -> Request {
        self.call(STORE_STAGE, Vec::new())
    }

    /// A call that stages tensors. Without any it would begin the push again.
    pub fn stage(self, tensors: Vec<(Text, Tensor)>) -> Request {
        self.call(STORE_STAGE, tensors)
    }

    /// The call that puts all that was staged into the store, all or none.
    pub fn commit(self) -> Request {
        self.call(STORE_COMMIT, Vec::new())
    }

    /// Lets the peer drop what was staged, without waiting for it. If this fails, the peer does so
    /// after a time by itself.
    pub fn discard(self, client: &Client, peer: &Peer) {
        let request = self.call(STORE_DISCARD, Vec::new());
        // A peer that cannot be reached has dropped it already.
        let spec = CallSpec::new(peer, request).with_timeout(DISCARD_TIME);
        let _ = client.submit(spec, Arc::new(Unheard), 0);
    }

    /// Whether a peer that has refused [`StagedPush::begin`] like this knows no pushes of several
    /// calls, as versions before them.
    pub fn is_unknown(refused: &Status) -> bool {
        refused.code == Code::NotFound
    }

    fn call(self, function: &'static str, feeds: Vec<(Text, Tensor)>) -> Request {
        Request::StarRunGraph(Box::new(GraphCall {
            step_id: self.number,
            feeds: feeds.into(),
            ..GraphCall::new(function)
        }))
    }
}

/// How long a peer that cannot be reached is told to drop a push, which it has done by itself.
const DISCARD_TIME: Duration = Duration::from_secs(10);

/// Hears of the end of a call that nobody waits for.
struct Unheard;

impl CompletionHandler for Unheard {
    fn on_complete(self: Arc<Self>, _: u64, _: CallResult, _: &mut ShardContext<'_>) {}

    fn runs_anywhere(&self) -> bool {
        true
    }
}
