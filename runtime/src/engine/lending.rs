//! Whether an engine lends its shards to threads that wait for calls, and how those hear of it.

use std::sync::Arc;

use grpcxx_tcp::{DriverChoice, DriverRequest};

use super::EngineOptions;
use super::start::EngineShard;
use crate::client::{Lender, Mailboxes};
use crate::host::{Lend, Lent};

/// What was chosen.
pub(super) struct Lending {
    pub(super) is_on: bool,
    /// The driver follows from it.
    decides_driver: bool,
}

/// Shards are lent unless they never sleep, a service sees each request on a shard's thread, or
/// a ring of io_uring was asked for, which is bound to the thread that has made it.
pub(super) fn choose(options: EngineOptions) -> (EngineOptions, Lending) {
    let asked = options.tcp.driver;
    let is_on = options.lends_shards
        && !options.polling
        && options.service.is_none()
        && asked != DriverRequest::IoUring;
    let lending = Lending {
        is_on,
        decides_driver: is_on && asked == DriverRequest::Auto,
    };
    let options = options.with(|changed| {
        if is_on {
            changed.tcp.driver = DriverRequest::Epoll;
        }
    });
    (options, lending)
}

impl Lending {
    /// The driver, with the reason for it.
    pub(super) fn driver(&self, choice: DriverChoice) -> DriverChoice {
        if !self.decides_driver {
            return choice;
        }
        DriverChoice {
            why: "threads that wait for calls carry them on".to_owned(),
            ..choice
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
