//! What code of Python may not do on a thread of a shard.

use std::cell::Cell;

use grpcxx_rpc::{Code, Status};

/// Runs code on the thread of a shard, where it must not wait for the engine.
pub(crate) fn on_shard<R>(code: impl FnOnce() -> R) -> R {
    let before = ON_SHARD.replace(true);
    let result = code();
    ON_SHARD.set(before);
    result
}

/// Refuses to wait on the thread of a shard: the shard would wait for itself.
pub(crate) fn may_wait() -> Result<(), Status> {
    if !ON_SHARD.get() {
        return Ok(());
    }
    let text =
        "a short function must not wait for calls, nor close an engine; register it without short";
    Err(Status::new(Code::FailedPrecondition, text))
}

thread_local! {
    static ON_SHARD: Cell<bool> = const { Cell::new(false) };
}
