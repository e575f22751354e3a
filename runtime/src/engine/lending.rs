//! Whether the shards of an engine go from thread to thread: to those that wait for calls, or away
//! from their own while that runs functions.

use std::sync::Arc;

use grpcxx_tcp::{DriverChoice, DriverRequest};

use super::EngineOptions;
use super::start::EngineShard;
use crate::client::{Lender, Mailboxes};
use crate::host::{Lend, Lent};

/// What was chosen.
pub(super) struct Lending {
    /// Threads that wait for calls turn shards.
    pub(super) is_on: bool,
    /// Threads of shards run short functions, while another thread may turn the shard.
    pub(super) runs_short_calls: bool,
    /// Why the driver follows from it.
    decides_driver: Option<&'static str>,
}

/// Shards go from thread to thread unless a service sees each request on a shard's thread, or a
/// ring of io_uring was asked for, which is bound to the thread that has made it. They are lent
/// unless they never sleep, or were pinned for those who call this engine. A shard to which calls
/// of short functions come while no thread waits is lent no more, and runs those functions itself,
/// unless lending was asked for. Whoever says how many threads run functions gets just those.
pub(super) fn choose(options: EngineOptions) -> (EngineOptions, Lending) {
    let asked = options.tcp.driver;
    let may_move = options.service.is_none() && asked != DriverRequest::IoUring;
    // A function that takes long after all would share its CPU with the next owner.
    let is_pinned = options.pin || options.cpus.is_some();
    let serves_pinned = is_pinned && options.listen.is_some();
    let lends = options.lends_shards.unwrap_or(!serves_pinned);
    let is_on = lends && may_move && !options.polling;
    let runs_short_calls = options.lends_shards != Some(true)
        && may_move
        && !is_pinned
        && options.listen.is_some()
        && options.compute_threads.is_none();
    let why = match is_on {
        true => "threads that wait for calls carry them on",
        false => "threads of shards run short functions",
    };
    let moves = is_on || runs_short_calls;
    let lending = Lending {
        is_on,
        runs_short_calls,
        decides_driver: (moves && asked == DriverRequest::Auto).then_some(why),
    };
    let options = options.with(|changed| {
        if moves {
            changed.tcp.driver = DriverRequest::Epoll;
        }
    });
    (options, lending)
}

impl Lending {
    /// The driver, with the reason for it.
    pub(super) fn driver(&self, choice: DriverChoice) -> DriverChoice {
        match self.decides_driver {
            Some(why) => DriverChoice {
                why: why.to_owned(),
                ..choice
            },
            None => choice,
        }
    }
}

/// Lets threads that wait hear of a shard.
pub(super) fn lend_to(mailboxes: &Arc<Mailboxes>, shard: usize) -> Lend<EngineShard> {
    let mailboxes = Arc::clone(mailboxes);
    Box::new(move |lent: &Arc<Lent<EngineShard>>| {
        let lent: Arc<dyn Lender> = lent.clone();
        mailboxes.lend(shard, lent);
    })
}
