//! The named limits of the runtime.

use std::time::Duration;

/// How long links may take to send what they hold when the shard stops, whatever grace was given.
pub(crate) const FLUSH_TIME: Duration = Duration::from_millis(500);

/// Commands from outside threads that one shard holds back: 4,096 calls under way from a thread
/// pool, and as many cancellations.
pub(crate) const INBOX_COMMANDS: usize = 4096 + 4096;

/// Messages from one shard to another that fit into the ring between them; more wait at the sender.
pub(crate) const MESH_MESSAGES: usize = 1024;

/// Most commands and mesh messages of each source that a shard takes in one turn.
pub(crate) const COMMANDS_PER_TURN: usize = 256;

/// Tensors asked for together, after which a shard lets answers leave before it serves another
/// request for several: the peer then takes in the first answer while the next is made.
pub(crate) const FUSED_KEYS_PER_TURN: usize = 32;

/// Commands that a shard has taken and not yet worked off, beyond which it takes no more: those of
/// some turns, and what they lead to.
pub(crate) const BACKLOG_COMMANDS: usize = 4 * COMMANDS_PER_TURN;

/// Most peers of one engine: one for each possible port of a large cluster's hosts.
pub(crate) const PEERS: usize = 65_536;

/// Most calls under way on each shard.
pub(crate) const CALLS_PER_SHARD: usize = 1 << 18;

/// Connections to a metrics page open at once; a further one closes the oldest.
pub(crate) const METRICS_CONNECTIONS: usize = 16;

/// The part of them that one address gets.
pub(crate) const METRICS_SHARE_PERCENT: u8 = 50;

/// Threads that serve them, with those of connections that were closed and are about to end.
pub(crate) const METRICS_THREADS: usize = 2 * METRICS_CONNECTIONS;

/// How long a client of a metrics page may take for its handshake and its request.
pub(crate) const METRICS_REQUEST_TIME: Duration = Duration::from_secs(10);

/// How long a connection to a metrics page may last in all.
pub(crate) const METRICS_CONNECTION_TIME: Duration = Duration::from_secs(30);

/// Length of a request to a metrics page.
pub(crate) const METRICS_REQUEST_BYTES: usize = 8 << 10;

/// Headers of such a request.
pub(crate) const METRICS_HEADERS: usize = 64;

/// What is still taken of a request after its answer.
pub(crate) const METRICS_LEFT_BYTES: u64 = 64 << 10;
