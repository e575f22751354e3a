use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread counts up and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Only the counting thread calls this, so a load and a store are enough.
    pub(crate) fn add(&self, count: u64) {
        let total = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(total, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What one shard has counted since it started.
        #[derive(Debug, Default)]
        pub(crate) struct ShardCounters {
            $(pub(crate) $name: Counter,)*
        }

        /// What an engine has counted since it started, over all shards.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn sum(shards: &[ShardCounters]) -> Self {
                let mut total = Self::default();
                for shard in shards {
                    $(total.$name = total.$name.wrapping_add(shard.$name.value());)*
                }
                total
            }

            /// Name, meaning and value of each counter.
            pub fn entries(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), concat!($($doc),*), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Connections accepted from peers.
    accepted,
    /// Connections from peers that ended.
    closed,
    /// Connections to peers that were lost.
    links_lost,
    /// Connections that went on in shared memory or over RDMA, at either end.
    links_moved,
    /// Connections that should have gone on in shared memory or over RDMA and stayed on TCP.
    links_stayed,
    /// Connections that ended because RDMA failed under them while TCP still worked, so that new
    /// ones stay on TCP a while.
    links_fallen_back,
    /// Connections closed because the peer broke the protocol.
    violations,
    /// Connections closed because a frame had begun and did not go on.
    too_slow,
    /// Connections from peers closed because nothing was asked on them for long, or because they
    /// were old.
    unused_closed,
    /// Requests for memory that an arena refused, counted while there are connections.
    memory_refused,
    /// Connections closed at once because their peer had as many as one may have.
    connections_refused,
    /// Receives refused because others of their connection or peer wait in as many steps as
    /// allowed.
    waits_refused,
    /// Streams refused because their peer, or all peers together, have as many as allowed.
    streams_refused,
    /// Steps that were given up before all of their graph calls had come, for newer ones.
    countdowns_given_up,
    /// Requests taken from peers.
    requests,
    /// Requests answered with an error.
    requests_failed,
    /// Calls of functions that were left to the thread of their shard, since those were short so
    /// far.
    short_calls,
    /// Threads of shards that were replaced, because a function held them up after all.
    owners_replaced,
    /// Calls begun.
    calls,
    /// Calls that ended with an error.
    calls_failed,
    /// Tensors put back into their step because their answer never left.
    restored,
    /// Tensors put into a step.
    sends,
    /// Tensors refused by their step: the key was taken, or the step was aborted.
    sends_refused,
}
