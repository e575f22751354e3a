//! An engine without threads: the thread that waits for its calls turns its one shard.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use grpcxx_rpc::Status;

use super::start::EngineShard;
use crate::client::Client;
use crate::command::Command;
use crate::host::{Beside, Inline};
use crate::remote::Remote;
use crate::shard::SharedParts;
use crate::sharded::Shards;

/// An engine that only calls, with one shard and no thread for it: while its owner waits in
/// [`LocalEngine::block_on`], it turns the shard itself.
///
/// A call then needs no hand-over to another thread, and no wake-up but that of the peer: from a
/// thread that has one of these, a small call costs about what it costs inside of a shard. Each has
/// connections and an arena of its own, so this is for a few threads that make many calls. It stays
/// on its thread, and nothing happens while nobody waits: answers lie in their sockets, timers are
/// late, and a peer that wants a sign of life may give the connection up, which is made again with
/// the next call.
///
/// Inside of `block_on` the thread is that of a shard: what [`local`](crate::local) offers is at
/// hand there. A panic of a spawned future or of a completion handler ends the engine and goes on
/// in `block_on`.
///
/// ```
/// use grpcxx_rpc::{GraphCall, Tensor};
/// use grpcxx_runtime::Engine;
///
/// let server = Engine::builder().listen("127.0.0.1:0").start()?;
/// server.register_short("double", |call: GraphCall| {
///     let value: f32 = call.feed("x")?.value()?;
///     Ok([("y", Tensor::scalar(2.0 * value))])
/// });
///
/// let engine = Engine::builder().start_local()?;
/// let remote = engine.connect(&server.local_addr().unwrap().to_string())?;
/// let call = GraphCall::new("double").with_feed("x", Tensor::scalar(1.5f32)).with_fetch("y");
/// let results = engine.block_on(remote.run(call))?;
/// assert_eq!(results.get("y")?.value::<f32>()?, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LocalEngine {
    /// Until this is dropped.
    shard: RefCell<Option<Inline<EngineShard>>>,
    shared: SharedParts,
    shards: Shards,
    client: Client,
}

impl LocalEngine {
    pub(super) fn new(shard: Inline<EngineShard>, shared: SharedParts, shards: Shards) -> Self {
        Self {
            shard: RefCell::new(Some(shard)),
            client: Client::new(shared.mailboxes.clone(), None),
            shared,
            shards,
        }
    }

    /// Makes calls to peers. They go on while the owner of the engine waits.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The task at `host:port`, to call it; see [`Engine::connect`](crate::Engine::connect). Its
    /// calls are awaited inside of [`LocalEngine::block_on`]; [`Call::wait`](crate::Call::wait)
    /// fails, since nobody would turn the shard.
    ///
    /// # Errors
    /// As [`Engine::connect`](crate::Engine::connect).
    pub fn connect(&self, address: &str) -> Result<Remote, Status> {
        let peer = self.client.peer(address)?;
        Ok(Remote::new(self.client(), peer))
    }

    /// Waits for a future on the calling thread, which turns the shard meanwhile.
    ///
    /// # Panics
    /// If the thread is that of a shard already, in another `block_on` for example, or if code on
    /// this engine's shard panics or has panicked before, or in a forked child of the process that
    /// has made the engine.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        assert!(
            Beside::here().is_none(),
            "the thread of a shard must not block; await the future"
        );
        assert!(
            !self.shared.mailboxes.are_inherited(),
            "this engine was made before fork() and cannot be used in the child; make another there"
        );
        let _here = self.shards.stay(0);
        let mut shard = self.shard.borrow_mut();
        let shard = shard
            .as_mut()
            .expect("it is there until the engine is dropped");
        shard.block_on(future)
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        let Some(mut shard) = self.shard.take() else {
            return;
        };
        if self.shared.mailboxes.are_inherited() {
            // Its sockets are the parent's.
            std::mem::forget(shard);
            return;
        }
        let grace = Duration::ZERO;
        self.shared.mailboxes.deliver(0, Command::Stop { grace });
        shard.finish();
    }
}

impl fmt::Debug for LocalEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalEngine").finish_non_exhaustive()
    }
}
