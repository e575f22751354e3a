//! What a panic says, and whose code it was in which a shard panicked.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Stands while code of somebody else runs on a shard. It costs nothing unless that code panics.
#[must_use = "lift it when the code has returned"]
pub(crate) struct Blame(&'static str);

impl Blame {
    /// Begins before the code that `code` names.
    #[inline(always)]
    pub(crate) fn on(code: &'static str) -> Self {
        Self(code)
    }

    /// Ends behind the code, which did not panic.
    #[inline(always)]
    pub(crate) fn lift(self) {
        std::mem::forget(self);
    }
}

/// Reached by unwinding alone.
impl Drop for Blame {
    #[cold]
    fn drop(&mut self) {
        // The innermost code unwinds first, and is what panicked.
        BLAMED.with(|blamed| blamed.set(blamed.get().or(Some(self.0))));
    }
}

/// The code that panicked on this thread since the last question.
pub(crate) fn blamed() -> &'static str {
    BLAMED
        .with(Cell::take)
        .unwrap_or("the engine's own code (please report this)")
}

/// The words of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "no message"
    }
}

/// Runs a step behind which others follow, which go on if it panics: it may run code of a program,
/// or that of a shard that died in disorder.
pub(crate) fn survive(step: &str, code: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(code)) {
        let message = panic_text(payload.as_ref());
        tracing::error!(step, message, "a panic, behind which the rest goes on");
    }
}

/// Whose code runs beside a shard.
pub(crate) const A_FUTURE: &str = "a future that was spawned on it";
/// Whose code takes results of calls.
pub(crate) const A_HANDLER: &str = "the completion handler of a call";
/// Whose code sees requests before the engine does.
pub(crate) const THE_SERVICE: &str = "the service of the engine";

thread_local! {
    static BLAMED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_code_that_panicked_is_named_once() {
        let nested = || {
            let outer = Blame::on("a handler");
            Blame::on("code that returned").lift();
            let inner = Blame::on("a future");
            assert!(outer.0.is_empty(), "fails");
            inner.lift();
            outer.lift();
        };
        assert!(catch_unwind(nested).is_err());
        assert_eq!(blamed(), "a future");
        assert!(blamed().starts_with("the engine's own"));
    }
}
