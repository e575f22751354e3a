//! What the endpoint accepts at most, by name.

use std::time::Duration;

/// Streams a peer may have open on one connection.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 1024;

/// Calls at once of which not all of the request has come; a further one ends the oldest.
pub const ARRIVING_CALLS_MAX: usize = 1024;

/// `RecvTensor` and `FuseRecvTensor` calls under way at once; they may wait long for their
/// producer.
pub const TENSOR_CALLS_MAX: usize = 8192;

/// Steps in which tensor calls from one address wait.
pub const WAITING_STEPS_MAX: usize = 1024;

/// Other calls of the worker and master services, and of the inspector, under way at once.
pub const SERVICE_CALLS_MAX: usize = 1024;

/// Calls of services that the program registers under way at once. They have places of their own,
/// for their streams may last for ever.
pub const REGISTERED_CALLS_MAX: usize = 8192;

/// Health and reflection calls under way at once. They have places of their own, so that no other
/// call takes them; a further one ends the oldest, for they may watch for ever.
pub const OBSERVER_CALLS_MAX: usize = 1024;

/// Refused calls whose request is still awaited; a further one is answered at once.
pub const REFUSALS_MAX: usize = 1024;

/// What is still taken of the request of a call that is refused, before the refusal is sent.
pub const REFUSED_REQUEST_BYTES: usize = 64 << 10;

/// How long the rest of such a request is awaited.
pub const REFUSED_REQUEST_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections to the metrics port open at once; a further one closes the oldest.
pub const METRICS_CONNECTIONS_MAX: usize = 64;

/// Length of one answer: what a gRPC peer of the original accepts.
pub const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Bytes of a tensor of which a peer has sent only the first values, or none: the last one stands
/// for the rest.
pub const FILLED_BYTES_MAX: usize = 64 << 20;

/// Length of one request. All that are served are short.
pub const REQUEST_MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Bytes of all requests under way that have come, beyond the first of each.
pub const REQUEST_BYTES_MAX: usize = 256 << 20;

/// What of each request does not count, so that short requests are taken whatever others hold.
pub const FREE_REQUEST_BYTES: usize = 64 << 10;

/// Parts of answers that are no longer do not count among those that have not left.
pub const FREE_ANSWER_BYTES: usize = 64 << 10;

/// Keys of one `FuseRecvTensor` call.
pub const FUSED_KEYS_MAX: usize = 16_384;

/// Length of a session handle.
pub const SESSION_HANDLE_BYTES_MAX: usize = 1024;

/// Length of an error text as headers carry it, percent-encoded: other implementations drop answers
/// with more than 8 KiB of headers.
pub const ERROR_TEXT_BYTES_MAX: usize = 4096;

/// Length of the details of a failure: as base64 they share those headers with the text.
pub const DETAILS_BYTES_MAX: usize = 4096;

/// Length of an error text beside details, as headers carry it.
pub const DETAILED_TEXT_BYTES_MAX: usize = 2048;

/// Length of all remarks about unreachable tasks in one answer, for the same reason.
pub const UNREACHABLE_TEXT_BYTES_MAX: usize = 4096;

/// How long a new connection may take to send its first byte.
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections that have not shown yet whether they are TLS, or are in their handshake; a further
/// one closes the oldest. Only where TLS is on.
pub const HANDSHAKES_MAX: usize = 128;

/// A silent connection is asked for a sign of life after this time.
pub const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// A connection that gives no sign of life for this time is closed.
pub const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a client of the metrics port may take to send its request.
pub const METRICS_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection to the metrics port may last in all.
pub const METRICS_CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the metrics page waits for the numbers of the engine before it is sent without them.
pub const METRICS_BACKEND_TIMEOUT: Duration = Duration::from_secs(2);

/// How long answers may take to leave after the grace of a stop is over.
pub const FLUSH_TIMEOUT: Duration = Duration::from_millis(250);

/// How long to wait before accepting again when the process has run out of file descriptors.
pub const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// How often connections and sessions are looked for that have been idle for too long.
pub const IDLE_LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// The part of the connections to the metrics port that one address gets.
pub const METRICS_SHARE_PERCENT: u8 = 50;
