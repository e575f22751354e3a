/* SPDX-License-Identifier: Apache-2.0
 *
 * grpcxx: a shared-nothing tensor RPC engine that speaks GRPC++ ("star", the protocol of DeepRec), from C.
 *
 * Link with -lgrpcxx_capi (shared), or with libgrpcxx_capi.a -lpthread -ldl -lm (static). Start with docs/c.md.
 *
 * ---------------------------------------------------------------------------------------------------------------
 * Rules that hold for every function here
 *
 * Handles    Opaque. A function whose name ends in
 *              _new      makes a handle, which the caller owns;
 *              _free     ends the only ownership of a handle; NULL is allowed and does nothing;
 *              _retain   adds one ownership to a counted handle and returns the same handle;
 *              _release  ends one ownership of a counted handle; NULL is allowed and does nothing.
 *            Handles given to a callback are borrowed until it returns, unless its comment says otherwise.
 * NULL       Each pointer may be NULL without harm: the function then fails with GRPCXX_INVALID_ARGUMENT and names the
 *            argument, or does nothing if it cannot fail. Arguments that may be left out are marked "or NULL".
 * Errors     A function that can fail returns grpcxx_status*: NULL is success; otherwise the caller owns the status and
 *            ends it with grpcxx_status_free. In callbacks a status is borrowed, and NULL is success too.
 * Text       Pointer and length in bytes, UTF-8, without a final NUL. What is given is copied before the call returns.
 *            Text that is returned as const char* alone ends with NUL.
 * Unwinding  Never crosses this boundary, in neither direction: a callback must not throw or longjmp.
 * Threads    Every function may be called from any thread at any time, for the same handle too, unless its comment
 *            says otherwise. The one rule: a handle must not be used after its last ownership was ended. No function is
 *            a cancellation point: pthread_cancel ends a thread at the next one behind it, as pthread_testcancel.
 * Callbacks  Marked SHARD run on a thread of the engine which serves many connections: they must return soon, must not
 *            block, and may call every function here but those marked BLOCKS (these fail with
 *            GRPCXX_FAILED_PRECONDITION there).
 * Forks      In a child after fork() tensors are the child's own, with the bytes that they had. An engine of the parent
 *            refuses calls there (GRPCXX_FAILED_PRECONDITION); its connections belong to the parent alone.
 *
 * Structures that begin with struct_size grow at their end only. Who fills such a structure sets struct_size to sizeof
 * the structure as it was compiled; fields beyond it count as 0.
 */
#ifndef GRPCXX_H
#define GRPCXX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version --------------------------------------------------------------------------------------------------- */

/* Changes when something here changes incompatibly; additions leave it. */
#define GRPCXX_ABI_VERSION 1

/* The GRPCXX_ABI_VERSION that the library was built with. Compare it before anything else after dlopen. */
uint32_t grpcxx_abi_version(void);

/* The version of the library, as in "0.1.0". Valid for ever. */
const char *grpcxx_version(void);

/* ---- Status ---------------------------------------------------------------------------------------------------- */

/* gRPC's status codes. */
typedef enum grpcxx_code {
  GRPCXX_OK = 0,
  GRPCXX_CANCELLED = 1,
  GRPCXX_UNKNOWN = 2,
  GRPCXX_INVALID_ARGUMENT = 3,
  GRPCXX_DEADLINE_EXCEEDED = 4,
  GRPCXX_NOT_FOUND = 5,
  GRPCXX_ALREADY_EXISTS = 6,
  GRPCXX_PERMISSION_DENIED = 7,
  GRPCXX_RESOURCE_EXHAUSTED = 8,
  GRPCXX_FAILED_PRECONDITION = 9,
  GRPCXX_ABORTED = 10,
  GRPCXX_OUT_OF_RANGE = 11,
  GRPCXX_UNIMPLEMENTED = 12,
  GRPCXX_INTERNAL = 13,
  GRPCXX_UNAVAILABLE = 14,
  GRPCXX_DATA_LOSS = 15,
  GRPCXX_UNAUTHENTICATED = 16
} grpcxx_code;

/* Why a call failed, for code that decides what to do next; texts are for people and may change. A reason is known
 * in this process only: a failure that a peer answered has GRPCXX_REASON_PEER. More may be added. */
typedef enum grpcxx_reason {
  /* No more is known than the code and the text say. */
  GRPCXX_REASON_UNSPECIFIED = 0,
  /* The peer, or the service that it runs, answered with this status. */
  GRPCXX_REASON_PEER = 1,
  /* The time that the call was given is over. */
  GRPCXX_REASON_DEADLINE = 2,
  /* The caller gave the call up. */
  GRPCXX_REASON_CANCELLED = 3,
  /* There was no connection to the peer. The call was not sent and may be made again. */
  GRPCXX_REASON_NO_CONNECTION = 4,
  /* The connection was lost behind the call, which the peer may have served. */
  GRPCXX_REASON_CONNECTION_LOST = 5,
  /* The peer broke the protocol, and the connection was closed behind the call. */
  GRPCXX_REASON_PEER_VIOLATION = 6,
  /* There is no memory for the payload. */
  GRPCXX_REASON_MEMORY = 7,
  /* The shard's queue is full. The call was not begun and may be made again at once. */
  GRPCXX_REASON_QUEUE_FULL = 8,
  /* As many calls are under way as are allowed. The call was not sent; wait for others. */
  GRPCXX_REASON_TOO_MANY_CALLS = 9,
  /* A limit that the text names does not allow it. */
  GRPCXX_REASON_LIMIT = 10,
  /* This engine stops, or has stopped. */
  GRPCXX_REASON_STOPPING = 11,
  /* A shard of this engine died by a panic. All later calls fail; start the process again. */
  GRPCXX_REASON_SHARD_DIED = 12,
  /* The key names a device that this task has not. */
  GRPCXX_REASON_UNKNOWN_DEVICE = 13,
  /* The key is of a former run of this task, or of a later one. */
  GRPCXX_REASON_OTHER_INCARNATION = 14,
  /* The step was aborted or cleaned up. */
  GRPCXX_REASON_STEP_OVER = 15,
  /* The function or the callback that should answer panicked. */
  GRPCXX_REASON_PANICKED = 16,
  /* The service let go of the request without an answer. */
  GRPCXX_REASON_UNANSWERED = 17,
  /* The task does not let the caller do this; the text says what would. */
  GRPCXX_REASON_FORBIDDEN = 18,
  /* An end of the connection did not prove that it belongs to the cluster. */
  GRPCXX_REASON_UNPROVEN = 19
} grpcxx_reason;

/* A failure: a code, a reason and a text. */
typedef struct grpcxx_status grpcxx_status;

/* A failure to return from a callback. Codes that are not in the list count as GRPCXX_UNKNOWN, GRPCXX_OK too. */
grpcxx_status *grpcxx_status_new(int32_t code, const char *message, size_t message_size);
void grpcxx_status_free(grpcxx_status *status);
/* The code, a grpcxx_code; GRPCXX_OK for NULL. */
int32_t grpcxx_status_code(const grpcxx_status *status);
/* The reason, a grpcxx_reason; GRPCXX_REASON_UNSPECIFIED for NULL and for what grpcxx_status_new made. */
int32_t grpcxx_status_reason(const grpcxx_status *status);
/* The text, which lives as long as the status; "" for NULL. message_size gets its length in bytes, or NULL. */
const char *grpcxx_status_message(const grpcxx_status *status, size_t *message_size);
/* The name of a code, as in "UNAVAILABLE"; "UNKNOWN" for numbers that are no code. Valid for ever. */
const char *grpcxx_code_name(int32_t code);

/* ---- Text ------------------------------------------------------------------------------------------------------ */

/* A text or a row of bytes that somebody else owns. */
typedef struct grpcxx_text {
  const char *data;
  size_t size;
} grpcxx_text;

/* ---- Log ------------------------------------------------------------------------------------------------------- */

typedef enum grpcxx_log_level {
  GRPCXX_LOG_ERROR = 1,
  GRPCXX_LOG_WARNING = 2,
  GRPCXX_LOG_INFO = 3,
  GRPCXX_LOG_DEBUG = 4,
  GRPCXX_LOG_TRACE = 5
} grpcxx_log_level;

/* Takes one line of the log. target is the part of the engine that says it. Called on one thread
 * that does nothing else, one line after the other. The engine goes on while it does not return:
 * lines beyond 4096 are lost, counted (log_lines_lost), and told of later. Of many lines that are
 * alike a few come, then their number. Texts end with NUL and are borrowed. */
typedef void (*grpcxx_log_fn)(void *user, int32_t level, const char *target, const char *message);

/* Sends what all engines of the process log, at this level and more severe, to log; NULL stops
 * that. Without it nothing is logged. The old function gets the lines that were logged before, and
 * is not called any more when this returns. It has a second for that. After it, and in callbacks of
 * the engine, which must not wait, those lines are given up, and a call that has not returned may
 * still be running. grpcxx_engine_shutdown and grpcxx_engine_free wait for lines as long. In a
 * forked child log gets the lines of the child, on a thread of the child. */
void grpcxx_log_set(int32_t level, grpcxx_log_fn log, void *user);

/* ---- Tensors --------------------------------------------------------------------------------------------------- */

/* TensorFlow's numbers; those from 200 on are of types that TensorFlow lacks. Originals of star know the numbers up to
 * GRPCXX_UINT64, and a tensor of another type for one of them is refused with GRPCXX_UNIMPLEMENTED. */
typedef enum grpcxx_dtype {
  GRPCXX_FLOAT32 = 1,
  GRPCXX_FLOAT64 = 2,
  GRPCXX_INT32 = 3,
  GRPCXX_UINT8 = 4,
  GRPCXX_INT16 = 5,
  GRPCXX_INT8 = 6,
  GRPCXX_STRING = 7,
  GRPCXX_COMPLEX64 = 8,
  GRPCXX_INT64 = 9,
  GRPCXX_BOOL = 10,
  GRPCXX_QINT8 = 11,
  GRPCXX_QUINT8 = 12,
  GRPCXX_QINT32 = 13,
  GRPCXX_BFLOAT16 = 14,
  GRPCXX_QINT16 = 15,
  GRPCXX_QUINT16 = 16,
  GRPCXX_UINT16 = 17,
  GRPCXX_COMPLEX128 = 18,
  GRPCXX_FLOAT16 = 19,
  GRPCXX_RESOURCE = 20,
  GRPCXX_VARIANT = 21,
  GRPCXX_UINT32 = 22,
  GRPCXX_UINT64 = 23,
  GRPCXX_FLOAT8_E5M2 = 24,
  GRPCXX_FLOAT8_E4M3FN = 25,
  GRPCXX_FLOAT8_E4M3FNUZ = 26,
  GRPCXX_FLOAT8_E4M3B11FNUZ = 27,
  GRPCXX_FLOAT8_E5M2FNUZ = 28,
  /* One byte an element, as NumPy and TensorFlow hold them. */
  GRPCXX_INT4 = 29,
  GRPCXX_UINT4 = 30,
  GRPCXX_INT2 = 31,
  GRPCXX_UINT2 = 32,
  GRPCXX_FLOAT4_E2M1FN = 33,
  /* Types that TensorFlow lacks, of one byte an element, and of four for complex numbers. */
  GRPCXX_FLOAT8_E3M4 = 200,
  GRPCXX_FLOAT8_E4M3 = 201,
  GRPCXX_FLOAT8_E8M0FNU = 202,
  GRPCXX_FLOAT6_E2M3FN = 203,
  GRPCXX_FLOAT6_E3M2FN = 204,
  GRPCXX_INT1 = 205,
  GRPCXX_UINT1 = 206,
  GRPCXX_COMPLEX32 = 207,
  GRPCXX_BCOMPLEX32 = 208,
  /* As in safetensors files: 4 or 6 bits an element, one behind the other. */
  GRPCXX_FLOAT4_E2M1FN_PACKED = 220,
  GRPCXX_FLOAT6_E2M3FN_PACKED = 221,
  GRPCXX_FLOAT6_E3M2FN_PACKED = 222
} grpcxx_dtype;

/* Size of one element in bytes; 0 for strings, resources, variants, packed types and numbers that are no type. */
size_t grpcxx_dtype_size(int32_t dtype);
/* The name, as in "float32"; NULL for numbers that are no type. Valid for ever. */
const char *grpcxx_dtype_name(int32_t dtype);

/* A counted, immutable tensor. Its data is row-major little-endian elements. For GRPCXX_STRING, GRPCXX_RESOURCE and
 * GRPCXX_VARIANT the data is one serialized TensorProto (dtype, tensor_shape, tensor_content or string_val ...). */
typedef struct grpcxx_tensor grpcxx_tensor;

/* Lets go of the memory of a tensor: called exactly once, on any thread (SHARD rules hold), when neither a handle
 * nor the engine nor the kernel refers to it any more. delivered is true if an answer that carried the tensor (see
 * "Server side") was handed to the kernel to its last byte; it is false for an answer that never left, so that the
 * service can account for it, and for every other use. */
typedef void (*grpcxx_release_fn)(void *context, bool delivered);

/* A tensor over memory of the caller, without a copy. The memory must stay as it is until release, which may be
 * NULL if it lives for ever. If this fails, release is not called. data may be NULL if data_size is 0. dims may be
 * NULL if rank is 0; dimensions must not be negative. A dead tensor (the value of a branch that was not taken) is
 * normally GRPCXX_FLOAT32, shape [0], without data. */
grpcxx_status *grpcxx_tensor_new(int32_t dtype, const int64_t *dims, size_t rank, bool is_dead, const void *data,
                                 size_t data_size, grpcxx_release_fn release, void *context,
                                 grpcxx_tensor **tensor);
/* The same with a copy of the data. */
grpcxx_status *grpcxx_tensor_copy_new(int32_t dtype, const int64_t *dims, size_t rank, bool is_dead, const void *data,
                                      size_t data_size, grpcxx_tensor **tensor);
/* A tensor of strings, row-major, as many as the shape asks for. */
grpcxx_status *grpcxx_tensor_strings_new(const int64_t *dims, size_t rank, const grpcxx_text *elements,
                                         size_t num_elements, grpcxx_tensor **tensor);
grpcxx_tensor *grpcxx_tensor_retain(grpcxx_tensor *tensor);
void grpcxx_tensor_release(grpcxx_tensor *tensor);

/* These return 0, false or NULL for NULL. Pointers live as long as the tensor. */
int32_t grpcxx_tensor_dtype(const grpcxx_tensor *tensor);
size_t grpcxx_tensor_rank(const grpcxx_tensor *tensor);
/* rank dimensions. */
const int64_t *grpcxx_tensor_dims(const grpcxx_tensor *tensor);
bool grpcxx_tensor_is_dead(const grpcxx_tensor *tensor);
size_t grpcxx_tensor_num_elements(const grpcxx_tensor *tensor);
/* The data: data_size bytes, 64-byte aligned if the engine allocated it. Never NULL for a tensor: without data it
 * points to nothing that may be read. A tensor that landed in memory of the caller (see grpcxx_allocate_fn) points
 * there, and does not keep that memory alive. */
const void *grpcxx_tensor_data(const grpcxx_tensor *tensor);
size_t grpcxx_tensor_data_size(const grpcxx_tensor *tensor);
/* The data of a tensor that the engine received, for writing: NULL unless this handle alone knows the memory, and no
 * store, step, call or peer does. The tensor must not be given to the engine while or after it is written. */
void *grpcxx_tensor_mutable_data(const grpcxx_tensor *tensor);
/* The elements of a tensor of strings: fills elements, which has room for capacity, with as many as there are
 * (grpcxx_tensor_num_elements). They point into the tensor. Fails if this is no live tensor of strings, its data
 * does not decode, or capacity is too small. */
grpcxx_status *grpcxx_tensor_strings(const grpcxx_tensor *tensor, grpcxx_text *elements, size_t capacity);

/* ---- Engine ---------------------------------------------------------------------------------------------------- */

typedef struct grpcxx_options grpcxx_options;
typedef struct grpcxx_engine grpcxx_engine;
typedef struct grpcxx_request grpcxx_request;
typedef struct grpcxx_responder grpcxx_responder;

/* What a service did with a request. */
typedef enum grpcxx_served {
  /* Not mine: the built-in services answer. The responder is not the service's any more. */
  GRPCXX_DECLINED = 0,
  /* Mine: the service owns the responder, and has answered or will. */
  GRPCXX_TAKEN = 1
} grpcxx_served;

/* Sees each request from a peer before the built-in services; see "Server side". SHARD, on several shards at once. */
typedef int32_t (*grpcxx_service_fn)(void *user, grpcxx_request *request, grpcxx_responder *responder);

/* How to start an engine: task 0 of job "localhost" in a cluster of one task, which listens nowhere, with the
 * settings of the environment (docs/configuration.md). One thread at a time may change an options handle. */
grpcxx_options *grpcxx_options_new(void);
void grpcxx_options_free(grpcxx_options *options);
/* Which task this is. */
grpcxx_status *grpcxx_options_set_task(grpcxx_options *options, const char *job, size_t job_size, uint32_t task_index);
/* Tasks in the whole cluster: the number of shards follows from it and from the environment. */
grpcxx_status *grpcxx_options_set_num_tasks(grpcxx_options *options, size_t num_tasks);
/* Whether a thread that waits for a call, or for an operation of a group, carries its shard on meanwhile, which saves
 * two hand-overs to another thread. Default: unless the engine listens with shards that are pinned. It pays for
 * programs whose threads wait for most of what they begin, such as the ranks of a group. Means nothing with a
 * service. */
grpcxx_status *grpcxx_options_set_lends_shards(grpcxx_options *options, bool lends);
/* Adds the address of a task of the cluster, "host:port": as long as neither a token nor GRPCXX_MEMBERS says who
 * belongs to the cluster, peers at its host count as tasks of it (docs/security.md). Names are looked up at the start
 * and when somebody connects who is elsewhere, on threads of the engine. */
grpcxx_status *grpcxx_options_add_task(grpcxx_options *options, const char *address, size_t address_size);
/* Where the star port listens: "host:port", IP addresses only; port 0 takes a free one. Size 0: nowhere. */
grpcxx_status *grpcxx_options_set_listen(grpcxx_options *options, const char *address, size_t address_size);
/* Gives a variable of docs/configuration.md a value, as if the environment said so. Checked at the start. */
grpcxx_status *grpcxx_options_set_variable(grpcxx_options *options, const char *name, size_t name_size,
                                           const char *value, size_t value_size);
/* Adds a device of this task by its full name, as in "/job:ps/replica:0/task:0/device:CPU:0", with its type
 * ("CPU"), its incarnation and the memory that GetStatus reports. The built-in services refuse rendezvous keys that
 * name another device or incarnation. Without any the task has device:CPU:0 with a random incarnation. */
grpcxx_status *grpcxx_options_add_device(grpcxx_options *options, const char *name, size_t name_size,
                                         const char *type, size_t type_size, uint64_t incarnation,
                                         int64_t memory_limit_bytes);
/* The service, or NULL. free_user(user), or NULL, is called once, when neither the options nor an engine started with
 * them will call the service any more. SHARD. If this fails, or service is NULL, free_user is not called. */
grpcxx_status *grpcxx_options_set_service(grpcxx_options *options, grpcxx_service_fn service, void *user,
                                          void (*free_user)(void *user));

/* Adds a number to a metrics page as grpcxx_NAME, or as grpcxx_NAME_total unless it is a gauge, which may also fall.
 * Texts end with NUL and are copied. into is what the function that calls this was given. */
typedef void (*grpcxx_metric_fn)(void *into, const char *name, const char *meaning, bool is_gauge, uint64_t value);
/* Tells numbers of the program: calls metric for each of them before it returns. On a thread of the metrics page or of
 * the engine, several at once. The end of the engine waits for it, so it must not end the engine, nor take a lock that
 * is held meanwhile. */
typedef void (*grpcxx_metrics_fn)(void *user, grpcxx_metric_fn metric, void *into);
/* What the metrics page of an engine that listens (GRPCXX_METRICS_ADDRESS), and `grpcxx top`, show beside the numbers
 * of the engine, or NULL. free_user(user), or NULL, is called once, when neither the options nor an engine will call
 * metrics any more. SHARD. If this fails, or metrics is NULL, free_user is not called. */
grpcxx_status *grpcxx_options_set_metrics(grpcxx_options *options, grpcxx_metrics_fn metrics, void *user,
                                          void (*free_user)(void *user));

/* Adds a tensor that the program waits for to a page: of which peer and step, under which key, since when. Texts are
 * copied. into is what the function that calls this was given. */
typedef void (*grpcxx_awaited_fn)(void *into, const char *peer, size_t peer_size, int64_t step_id, const char *key,
                                  size_t key_size, uint64_t age_ms);
/* Tells what the program waits for: calls awaited for each tensor before it returns, as grpcxx_metrics_fn does. */
typedef void (*grpcxx_awaiting_fn)(void *user, grpcxx_awaited_fn awaited, void *into);
/* What /inspect on the metrics page and `grpcxx inspect` show beside what the engine waits for, or NULL.
 * free_user(user), or NULL, is called once, when neither the options nor an engine will call awaiting any more. SHARD.
 * If this fails, or awaiting is NULL, free_user is not called. */
grpcxx_status *grpcxx_options_set_awaiting(grpcxx_options *options, grpcxx_awaiting_fn awaiting, void *user,
                                           void (*free_user)(void *user));

/* Prepares an engine that serves nobody yet: registers functions, fills the store, sends tensors. Those who dial
 * meanwhile wait. Returns NULL, or a status, which then is the engine's, and the start fails with it. On the thread
 * that starts the engine. SHARD rules hold, and calls that it begins end behind it. */
typedef grpcxx_status *(*grpcxx_prepare_fn)(void *user, grpcxx_engine *engine);
/* What grpcxx_engine_start calls before anybody is served, or NULL: what it registers is there from the first call on.
 * engine is the handle that grpcxx_engine_start gives, borrowed until then. free_user(user), or NULL, is called once,
 * when the options are gone. SHARD. If this fails, or prepare is NULL, free_user is not called. */
grpcxx_status *grpcxx_options_set_prepare(grpcxx_options *options, grpcxx_prepare_fn prepare, void *user,
                                          void (*free_user)(void *user));

/* Starts an engine: its threads, its listener. Several engines in one process are independent. options may be NULL (see
 * grpcxx_options_new) and stay the caller's. BLOCKS. */
grpcxx_status *grpcxx_engine_start(const grpcxx_options *options, grpcxx_engine **engine);
/* Stops: no new connections and calls; what is in flight has grace_ms to finish, then all links close. Every call
 * has ended, and every memory that the caller lent was given back, when it returns, but for memory held by handles.
 * Peers that announced nothing, such as DeepRec, are left without a reset, which takes up to GRPCXX_DRAIN_MS more.
 * After it functions of this engine fail with GRPCXX_UNAVAILABLE. A second call does nothing. BLOCKS. */
grpcxx_status *grpcxx_engine_shutdown(grpcxx_engine *engine, uint64_t grace_ms);
/* Shuts down without grace unless that was done, and ends the handle. BLOCKS, except in a callback: there the engine
 * is stopped on another thread soon after. */
void grpcxx_engine_free(grpcxx_engine *engine);

/* These texts live as long as the engine. */
/* "127.0.0.1:40001", where the star port really listens; NULL if it does not. */
const char *grpcxx_engine_star_address(const grpcxx_engine *engine);
/* The port of that address; 0 if it does not listen. */
uint16_t grpcxx_engine_star_port(const grpcxx_engine *engine);
/* One line for the log: driver, host, shards and CPUs, and why. */
const char *grpcxx_engine_start_report(const grpcxx_engine *engine);
/* "/job:ps/replica:0/task:0". */
const char *grpcxx_engine_task(const grpcxx_engine *engine);
/* Full name and incarnation of device number index, in the order of their names; NULL if there are not so many. */
const char *grpcxx_engine_device(const grpcxx_engine *engine, size_t index, uint64_t *incarnation);

/* Where the engine serves metrics over HTTP (GRPCXX_METRICS_ADDRESS), "ip:port"; NULL if it does not. Lives as long as
 * the engine. */
const char *grpcxx_engine_metrics_address(const grpcxx_engine *engine);

/* For programs that have a protocol of their own beside star, without TLS. The first checks that the task at "host:port"
 * may be called without TLS, the second that it may be answered without TLS, as GRPCXX_TLS and GRPCXX_TLS_PLAIN say.
 * NULL if it may; else GRPCXX_FAILED_PRECONDITION with a text that says what to do. Where connections are dialled by TLS
 * a name is looked up, which BLOCKS; an IP address is not, and may be asked about anywhere. */
grpcxx_status *grpcxx_engine_check_plain_call(const grpcxx_engine *engine, const char *address, size_t address_size);
grpcxx_status *grpcxx_engine_check_plain_answer(const grpcxx_engine *engine, const char *address, size_t address_size);

/* Takes one counter. Texts end with NUL and live for ever. */
typedef void (*grpcxx_counter_fn)(void *user, const char *name, const char *meaning, uint64_t value);
/* Tells all counters of the engine, before it returns. */
void grpcxx_engine_counters(const grpcxx_engine *engine, grpcxx_counter_fn counter, void *user);
/* One counter; false if there is none of this name. name ends with NUL. */
bool grpcxx_engine_counter(const grpcxx_engine *engine, const char *name, uint64_t *value);

/* ---- Peers ----------------------------------------------------------------------------------------------------- */

/* A task that an engine calls, counted. The connection is made at the first call, and again at the first call after
 * it was lost; there is one for each peer and engine. A peer may be kept longer than its engine: its calls then
 * fail. */
typedef struct grpcxx_peer grpcxx_peer;

/* The peer with this star address, "host:port". A name is looked up before each dial, on a thread of the engine. */
grpcxx_status *grpcxx_peer_new(grpcxx_engine *engine, const char *address, size_t address_size, grpcxx_peer **peer);
/* Says which task the cluster has at a star address: from the next connection on, a server there whose certificate
 * names another task is not called (docs/tls.md). Fails with INVALID_ARGUMENT for an address that is no host:port. */
grpcxx_status *grpcxx_engine_expect_task(grpcxx_engine *engine, const char *address, size_t address_size,
                                         const char *job, size_t job_size, uint32_t task_index);
grpcxx_peer *grpcxx_peer_retain(grpcxx_peer *peer);
void grpcxx_peer_release(grpcxx_peer *peer);
/* The address as it was given. Lives as long as the peer. */
const char *grpcxx_peer_address(const grpcxx_peer *peer);

/* Bits of grpcxx_peer_state.features. */
#define GRPCXX_FEATURE_CANCEL (UINT64_C(1) << 0)
#define GRPCXX_FEATURE_DEADLINE (UINT64_C(1) << 1)

/* What is known of a peer. */
typedef struct grpcxx_peer_state {
  size_t struct_size;
  /* There is a connection. */
  bool is_connected;
  /* The peer has answered the announcement on this connection, so that the rest is known. A grpcxx engine announces
   * features, an unmodified peer none. */
  bool is_announced;
  uint64_t features;
  /* The peer's GetStatusResponse, serialized; NULL if not known. Borrowed. */
  const void *status;
  size_t status_size;
  /* What carries the connection, or begins to carry the next one: "tcp", "shm" or "rdma". Never goes away. */
  const char *medium;
} grpcxx_peer_state;

/* SHARD. */
typedef void (*grpcxx_peer_state_fn)(void *user, const grpcxx_status *status, const grpcxx_peer_state *state);
/* Tells what is known of a peer now, exactly once; makes no connection. After a successful call of any method
 * is_connected holds until the connection is lost, and is_announced follows within a round trip (at once after a
 * GetStatus). */
void grpcxx_peer_inspect(grpcxx_peer *peer, grpcxx_peer_state_fn done, void *user);
/* Closes the connection: all calls to the peer that are on it end with GRPCXX_UNAVAILABLE, and memory lent to
 * them comes back. Later calls connect again. */
void grpcxx_peer_disconnect(grpcxx_peer *peer);

/* ---- Calls ----------------------------------------------------------------------------------------------------- */

/* One call, counted: the means to cancel it, to wait for it, and to give it memory without a callback. For one use. */
typedef struct grpcxx_call grpcxx_call;

grpcxx_call *grpcxx_call_new(void);
grpcxx_call *grpcxx_call_retain(grpcxx_call *call);
/* Does not cancel. */
void grpcxx_call_release(grpcxx_call *call);
/* Withdraws the call: it ends with GRPCXX_CANCELLED unless it has ended. May come before the call was begun: it
 * then ends as soon as it begins. A peer that understands it is told. Never calls back from inside. */
void grpcxx_call_cancel(grpcxx_call *call);

/* For a call that was begun with done == NULL: waits at most timeout_ms (0: as long as it takes) for its end.
 * Returns NULL if it has succeeded, its status if it has failed, and GRPCXX_DEADLINE_EXCEEDED if it goes on
 * (grpcxx_call_is_done tells these apart). BLOCKS. */
grpcxx_status *grpcxx_call_wait(grpcxx_call *call, uint64_t timeout_ms);
bool grpcxx_call_is_done(const grpcxx_call *call);
/* The results of such a call, once it has succeeded; borrowed from the call. NULL and 0 otherwise. */
size_t grpcxx_call_num_tensors(const grpcxx_call *call);
grpcxx_tensor *grpcxx_call_tensor(const grpcxx_call *call, size_t index);
const void *grpcxx_call_message(const grpcxx_call *call, size_t *size);
/* Before the call begins: memory for tensor number index (of the keys or fetches) of the result. If the tensor has
 * exactly size bytes of data it lands there, otherwise in memory of the engine, which its data pointer tells. The
 * memory is the call's until it has ended. Is asked before the allocate callback. */
grpcxx_status *grpcxx_call_set_memory(grpcxx_call *call, size_t index, void *data, size_t size);

/* How to call. NULL, or all zeros but struct_size: without a timeout. */
typedef struct grpcxx_call_options {
  size_t struct_size;
  /* Bounds the whole call; 0: waits as long as the peer lives (and for a connection as long as
   * NETWORK_MAX_CONNECTION_TIMEOUT says). */
  uint64_t timeout_ms;
} grpcxx_call_options;

/* What a tensor is, as soon as its head has arrived. */
typedef struct grpcxx_tensor_meta {
  size_t struct_size;
  int32_t dtype;
  bool is_dead;
  size_t rank;
  const int64_t *dims;
  /* Length of the data: of the elements, or of the serialized TensorProto. Never 0 here. */
  size_t data_size;
} grpcxx_tensor_meta;

/* Memory of the caller for a tensor's data. */
typedef struct grpcxx_memory {
  size_t struct_size;
  /* data_size bytes for the engine alone; NULL: take memory of the engine. The kernel writes there while the data
   * arrives. */
  void *data;
  /* Or NULL. With it, a call that fails or is cancelled while data arrives ends at once, and release is called later, when
   * nobody writes to the memory any more. Without it, such a call ends only then: when the data has arrived to its end or
   * the connection is gone. A connection on which it has not arrived 2 s after the failure is closed, so that no peer
   * keeps the memory; grpcxx_peer_disconnect does that at once. After success release is called before done. Called exactly once,
   * SHARD rules hold. */
  void (*release)(void *context);
  void *context;
} grpcxx_memory;

/* Chooses the memory for tensor number index (of the keys or fetches) of a response. Is called at most once for
 * each, not at all for tensors without data and for those of the engine itself as its own peer, which come by
 * reference, and never after done. Returns NULL after filling memory (which is all
 * zeros but struct_size before), or a status, which then is the engine's, and the call fails with it. SHARD. */
typedef grpcxx_status *(*grpcxx_allocate_fn)(void *user, size_t index, const grpcxx_tensor_meta *meta,
                                             grpcxx_memory *memory);

/* The end of a call for tensors: status is NULL and there is one tensor for each key or fetch, in their order; or
 * status says why not and num_tensors is 0. Borrowed; retain a tensor to keep it. SHARD. */
typedef void (*grpcxx_tensors_fn)(void *user, const grpcxx_status *status, grpcxx_tensor *const *tensors,
                                  size_t num_tensors);
/* The end of a call for a message: size bytes of serialized protobuf, borrowed. SHARD. */
typedef void (*grpcxx_message_fn)(void *user, const grpcxx_status *status, const void *data, size_t size);

/* The functions that begin a call. For all of them:
 *   - done is called exactly once, whatever happens: success, error, cancel, timeout, lost connection, engine stopped, wrong
 *     arguments. Never from inside of the function that begins the call. Normally SHARD, on the thread of the peer's
 *     connection; after misuse or after the engine has stopped on another thread.
 *   - done may be NULL if call is given: the result then waits in the call (grpcxx_call_wait).
 *   - call may be NULL: it cannot be cancelled then. options, allocate may be NULL.
 *   - All input but tensors is copied; tensors are retained until they have left. */

/* One tensor by its rendezvous key, as TensorFlow's RecvTensor. */
void grpcxx_recv_tensor(grpcxx_peer *peer, grpcxx_call *call, int64_t step_id, const char *key, size_t key_size,
                        const grpcxx_call_options *options, grpcxx_allocate_fn allocate, grpcxx_tensors_fn done,
                        void *user);
/* Several of one step in one request and one response; at least one key. */
void grpcxx_fuse_recv_tensor(grpcxx_peer *peer, grpcxx_call *call, int64_t step_id, const grpcxx_text *keys,
                             size_t num_keys, const grpcxx_call_options *options, grpcxx_allocate_fn allocate,
                             grpcxx_tensors_fn done, void *user);

/* The methods of star whose request and response are messages, for grpcxx_message_call and
 * grpcxx_request_method. */
typedef enum grpcxx_method {
  GRPCXX_GET_STATUS = 0,
  GRPCXX_GET_TOPOLOGY_STATUS = 1,
  GRPCXX_CREATE_WORKER_SESSION = 2,
  GRPCXX_DELETE_WORKER_SESSION = 3,
  GRPCXX_REGISTER_GRAPH = 4,
  GRPCXX_DEREGISTER_GRAPH = 5,
  GRPCXX_RUN_GRAPH = 6,
  GRPCXX_STAR_RUN_GRAPH = 7,
  GRPCXX_CLEANUP_GRAPH = 8,
  GRPCXX_CLEANUP_ALL = 9,
  GRPCXX_RECV_TENSOR = 10,
  GRPCXX_FUSE_RECV_TENSOR = 11,
  GRPCXX_LOGGING = 12,
  GRPCXX_TRACING = 13,
  GRPCXX_RECV_BUF = 14,
  GRPCXX_COMPLETE_GROUP = 15,
  GRPCXX_COMPLETE_INSTANCE = 16,
  GRPCXX_GET_STEP_SEQUENCE = 17
} grpcxx_method;

/* A method with one serialized protobuf message in and one out. Fails with GRPCXX_INVALID_ARGUMENT for the methods
 * with functions of their own here, and with GRPCXX_UNIMPLEMENTED for those that star does not have on the wire (1,
 * 14-17) and those that every peer refuses before its service sees them (12, 13): carry such a request as a graph call with a handle of your own, the message as a uint8 feed. */
void grpcxx_message_call(grpcxx_peer *peer, grpcxx_call *call, int32_t method, const void *data, size_t size,
                         const grpcxx_call_options *options, grpcxx_message_fn done, void *user);

/* A call with tensors in and tensors out, by name (StarRunGraph): of a graph, of a registered function, or of
 * whatever the peer's service makes of the handle. */
typedef struct grpcxx_graph_call {
  size_t struct_size;
  grpcxx_text handle;
  uint64_t step_id;
  const grpcxx_text *feed_names;
  grpcxx_tensor *const *feeds;
  size_t num_feeds;
  /* Each name once. */
  const grpcxx_text *fetch_names;
  size_t num_fetches;
  /* Subgraphs of this step on the peer, behind the last of which the peer cleans the step up; 0 outside of steps. */
  int32_t ps_graph_count;
  bool should_trace;
} grpcxx_graph_call;

/* The tensors of the result come in the order of fetch_names; so does the index of allocate count. */
void grpcxx_graph_call_begin(grpcxx_peer *peer, grpcxx_call *call, const grpcxx_graph_call *graph_call,
                             const grpcxx_call_options *options, grpcxx_allocate_fn allocate, grpcxx_tensors_fn done,
                             void *user);

/* ---- Server side ----------------------------------------------------------------------------------------------- */

/* A request, counted: borrowed by the service, which may retain it. These give 0, NULL, false where a request of
 * another kind is asked, or an index is too large. Pointers live as long as the request. */
grpcxx_request *grpcxx_request_retain(grpcxx_request *request);
void grpcxx_request_release(grpcxx_request *request);
/* A grpcxx_method; -1 for NULL. */
int32_t grpcxx_request_method(const grpcxx_request *request);
/* Of RecvTensor, FuseRecvTensor, StarRunGraph. */
int64_t grpcxx_request_step_id(const grpcxx_request *request);
/* The keys of RecvTensor (one) and FuseRecvTensor. */
size_t grpcxx_request_num_keys(const grpcxx_request *request);
const char *grpcxx_request_key(const grpcxx_request *request, size_t index, size_t *size);
/* The serialized message of the other methods. */
const void *grpcxx_request_message(const grpcxx_request *request, size_t *size);
/* Of StarRunGraph. */
const char *grpcxx_request_handle(const grpcxx_request *request, size_t *size);
size_t grpcxx_request_num_feeds(const grpcxx_request *request);
const char *grpcxx_request_feed_name(const grpcxx_request *request, size_t index, size_t *size);
/* Borrowed from the request; retain it to keep it longer. */
grpcxx_tensor *grpcxx_request_feed(const grpcxx_request *request, size_t index);
size_t grpcxx_request_num_fetches(const grpcxx_request *request);
const char *grpcxx_request_fetch_name(const grpcxx_request *request, size_t index, size_t *size);
int32_t grpcxx_request_ps_graph_count(const grpcxx_request *request);
bool grpcxx_request_should_trace(const grpcxx_request *request);

/* The right and the duty to answer one request, once. It is the service's from the moment it returns GRPCXX_TAKEN,
 * or has called one of the four functions below, each of which answers, ends the responder, and may run on any
 * thread, inside of the service function too. */
/* Answers with one serialized message, which is copied. */
void grpcxx_responder_answer_message(grpcxx_responder *responder, const void *data, size_t size);
/* Answers with one tensor for each key or fetch of the request, in their order. Each is retained until it has left;
 * a tensor that is not needed afterwards is released by the caller right behind this. Fetches without a tensor
 * (NULL) or a wrong number of tensors answer GRPCXX_INTERNAL. */
void grpcxx_responder_answer_tensors(grpcxx_responder *responder, grpcxx_tensor *const *tensors, size_t num_tensors);
/* Answers with an error; a code that is none becomes GRPCXX_UNKNOWN. */
void grpcxx_responder_answer_error(grpcxx_responder *responder, int32_t code, const char *message,
                                   size_t message_size);
/* Answers GRPCXX_INTERNAL "dropped". */
void grpcxx_responder_free(grpcxx_responder *responder);

/* Whether nobody wants the answer any more: the peer gave the request up, its deadline is over, or the connection
 * is gone. The request must be answered all the same; the answer goes nowhere. For a function it is looked for from
 * the first time on that this or grpcxx_responder_on_cancel is called. */
bool grpcxx_responder_is_cancelled(const grpcxx_responder *responder);
/* Says so at once: cancelled(context) is called at most once, when that becomes true before the request is
 * answered; from inside this function if it is true already. It may answer the request itself. It can run while
 * another thread answers, so context must stay valid until free_context(context), which is called exactly once,
 * when cancelled is not running and will not run any more (or NULL). SHARD. A second registration replaces the
 * first. */
void grpcxx_responder_on_cancel(grpcxx_responder *responder, void (*cancelled)(void *context),
                                void (*free_context)(void *context), void *context);

/* ---- Rendezvous, store, functions: the built-in services of an engine ----------------------------------------- */

/* Puts a tensor into a step, where one receiver will find it. The key is a whole rendezvous key whose source is a
 * device of this engine: "/job:ps/replica:0/task:0/device:CPU:0;<incarnation, 16 hex digits>;<target
 * device>;<name>;0:0". A key that is taken or a step that was aborted drops the tensor and counts it
 * (sends_refused). */
grpcxx_status *grpcxx_engine_send(grpcxx_engine *engine, int64_t step_id, const char *key, size_t key_size,
                                  grpcxx_tensor *tensor);
/* Receives tensors of this engine's own steps, like a peer: see "The functions that begin a call". The tensors are
 * those that were sent, without a copy; memory of the caller is not used. */
void grpcxx_engine_receive(grpcxx_engine *engine, grpcxx_call *call, int64_t step_id, const grpcxx_text *keys,
                           size_t num_keys, const grpcxx_call_options *options, grpcxx_tensors_fn done, void *user);
/* Fails all receives of a step, those that wait and those to come. */
grpcxx_status *grpcxx_engine_abort_step(grpcxx_engine *engine, int64_t step_id, int32_t code, const char *message,
                                        size_t message_size);
/* The same for all steps. */
grpcxx_status *grpcxx_engine_abort_all_steps(grpcxx_engine *engine, int32_t code, const char *message,
                                             size_t message_size);
/* Removes a step with all its tensors; receives that wait fail with GRPCXX_ABORTED. */
grpcxx_status *grpcxx_engine_cleanup_step(grpcxx_engine *engine, int64_t step_id);

/* The store holds named tensors that stay. Peers read it with the graph call "grpcxx.store.pull" (fetch names),
 * write it with "grpcxx.store.push" (feed names) and list it with "grpcxx.store.list" (fetch "names", "dtypes",
 * "shapes", "bytes"). */
/* Puts tensors into the store, all or none; those of the same names are replaced. */
grpcxx_status *grpcxx_store_put(grpcxx_engine *engine, const grpcxx_text *names, grpcxx_tensor *const *tensors,
                                size_t num_tensors);
/* The tensor of this name, without a copy. The caller releases it. */
grpcxx_status *grpcxx_store_fetch(grpcxx_engine *engine, const char *name, size_t name_size, grpcxx_tensor **tensor);
/* Removes tensors; names that are not there are left out. */
grpcxx_status *grpcxx_store_remove(grpcxx_engine *engine, const grpcxx_text *names, size_t num_names);
/* Tells all names with their tensors, in byte order of the names, before it returns. All borrowed. */
typedef void (*grpcxx_store_fn)(void *user, const char *name, size_t name_size, grpcxx_tensor *tensor);
void grpcxx_store_list(grpcxx_engine *engine, grpcxx_store_fn entry, void *user);

/* A function that peers call by name (StarRunGraph with this handle). Owns the responder: it answers at once or
 * later, from any thread. Runs on a thread of the compute pool, or of a shard once it proved to take microseconds:
 * it may block, and several calls run at once.
 * request is borrowed. */
typedef void (*grpcxx_function_fn)(void *user, grpcxx_request *request, grpcxx_responder *responder);
/* Registers a function; one of that name is replaced. free_user is called once with user when it will not be called
 * any more, or NULL. SHARD. If this fails, free_user is not called. */
grpcxx_status *grpcxx_function_register(grpcxx_engine *engine, const char *name, size_t name_size,
                                        grpcxx_function_fn function, void *user, void (*free_user)(void *user));

/* ---- Groups ---------------------------------------------------------------------------------------------------- */

/* One rank of a group of tasks that combine tensors (docs/collectives.md). The ranks may be programs in C, Rust and
 * Python. All ranks call the same operations under a tag, with the same types, shapes, operators and roots, in the same
 * order; what differs is told by GRPCXX_INVALID_ARGUMENT on all ranks, with what two of them have called, before any
 * value is used. When a rank dies, does not answer or leaves, the operations of all ranks fail with a status that names
 * it (GRPCXX_ABORTED, GRPCXX_DEADLINE_EXCEEDED), and so do all later ones: free the group, and let those that are left
 * join with the next generation. */
typedef struct grpcxx_group grpcxx_group;

/* How values of all ranks become one. Of float16, bfloat16, float32, float64 and integers of 8 to 64 bits;
 * GRPCXX_MEAN not of integers; GRPCXX_SUM and GRPCXX_MEAN of complex numbers too. Sums and products of integers wrap,
 * and a NaN wins over numbers. */
typedef enum grpcxx_reduce_op {
  GRPCXX_SUM = 1,
  GRPCXX_MEAN = 2,
  GRPCXX_MIN = 3,
  GRPCXX_MAX = 4,
  GRPCXX_PROD = 5
} grpcxx_reduce_op;

/* How to join. NULL, or all zeros but struct_size: the defaults. */
typedef struct grpcxx_group_options {
  size_t struct_size;
  /* Tells groups apart that meet at the same task; empty: "default". */
  grpcxx_text name;
  /* Where the other ranks dial this one, "host:port"; empty: where its engine listens. Rank 0 they dial at
   * rendezvous. */
  grpcxx_text address;
  /* Which forming of the group it is; the same on all ranks. */
  uint64_t generation;
  /* How long an operation may go on without a message of a rank that it waits for, in ms; 0: 60 s. */
  uint64_t timeout_ms;
  /* How long the ranks may take to meet, in ms; 0: 60 s. */
  uint64_t join_timeout_ms;
} grpcxx_group_options;

/* Meets the other ranks as number rank (from 0) of size (1 to 4096). All give the same rendezvous, "host:port", at
 * which the engine of rank 0 listens; the engines of the others listen where the others can dial them
 * (grpcxx_options_set_listen; "127.0.0.1:0" serves on one host). Fails with GRPCXX_DEADLINE_EXCEEDED and the ranks
 * that are missing, GRPCXX_ALREADY_EXISTS for a rank that has come before, GRPCXX_INVALID_ARGUMENT for what cannot be
 * or differs between ranks. An engine may have several groups, and a group may be kept longer than its engine: its
 * operations then fail. BLOCKS. */
grpcxx_status *grpcxx_group_join(grpcxx_engine *engine, uint32_t rank, uint32_t size, const char *rendezvous,
                                 size_t rendezvous_size, const grpcxx_group_options *options, grpcxx_group **group);
/* Leaves, once the others have what this rank has sent; operations that begin later fail on all ranks. If the group
 * has failed, waits until the others have heard why, for 2 s at most. A second call does nothing. BLOCKS. */
grpcxx_status *grpcxx_group_leave(grpcxx_group *group);
/* Leaves without waiting, unless that was done, and ends the handle. Not before all operations have returned. */
void grpcxx_group_free(grpcxx_group *group);
/* These return 0 for NULL. */
uint32_t grpcxx_group_rank(const grpcxx_group *group);
uint32_t grpcxx_group_size(const grpcxx_group *group);

/* Memory of the caller for a result. */
typedef struct grpcxx_output {
  size_t struct_size;
  /* size bytes, exactly as many as the result has; NULL and 0: take memory of the engine. May be the memory of the
   * tensor that is brought. */
  void *data;
  size_t size;
  /* Or NULL. With it, the result lands there without a copy, and the memory is the engine's until release is called: before a
   * success is returned, and after a failure perhaps later, when nobody writes there any more. It is called exactly
   * once, whatever happens, unless struct_size cannot be; SHARD rules hold. Without it, the result is copied there
   * when it is complete, and the memory is the caller's again when the function returns. */
  void (*release)(void *context);
  void *context;
} grpcxx_output;

/* The operations. For all of them:
 *   - They wait for the result. BLOCKS.
 *   - Operations of one tag go one after the other, in the order in which they are called: calls of one tag by several
 *     threads need an order of the program's own, the same on all ranks. Those of different tags go beside each other,
 *     each on a thread of the caller. A group has up to 1,024 tags, of numbers up to 65,534; most use 0 alone, by
 *     which short tensors travel fastest.
 *   - tensor is what this rank brings: numbers, whose memory must stay as it is until the function returns, and after
 *     a failure until the tensor's release. Rows below are parts along the first dimension.
 *   - result gets a tensor that the caller releases, or NULL where this rank gets nothing; it may be NULL. With memory
 *     of output it points there and does not keep that alive. output may be NULL: the result then lies in memory of
 *     the engine, which grpcxx_tensor_mutable_data may write.
 *   - All ranks get the same bits. After a failure result is not written. */

/* The tensors of all ranks, combined by op, a grpcxx_reduce_op. */
grpcxx_status *grpcxx_group_all_reduce(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor, int32_t op,
                                       const grpcxx_output *output, grpcxx_tensor **result);
/* The same, of which each rank gets its rows: rank r of n the part r of n equal ones. n must divide the first dimension. */
grpcxx_status *grpcxx_group_reduce_scatter(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor, int32_t op,
                                           const grpcxx_output *output, grpcxx_tensor **result);
/* The same, which rank root alone gets. */
grpcxx_status *grpcxx_group_reduce(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor, int32_t op, uint32_t root,
                                   const grpcxx_output *output, grpcxx_tensor **result);
/* The tensor of rank root. The others bring one of its type and shape, whose values do not count. */
grpcxx_status *grpcxx_group_broadcast(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor, uint32_t root,
                                      const grpcxx_output *output, grpcxx_tensor **result);
/* The tensors of all ranks, one behind the other; scalars become a vector. */
grpcxx_status *grpcxx_group_all_gather(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor,
                                       const grpcxx_output *output, grpcxx_tensor **result);
/* The same, which rank root alone gets. */
grpcxx_status *grpcxx_group_gather(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor, uint32_t root,
                                   const grpcxx_output *output, grpcxx_tensor **result);
/* The rows of this rank in the tensor of rank root, as of reduce_scatter. The others bring a tensor of the type and shape of
 * such a part, whose values do not count. */
grpcxx_status *grpcxx_group_scatter(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor, uint32_t root,
                                    const grpcxx_output *output, grpcxx_tensor **result);
/* The rows for this rank in the tensors of all ranks, one behind the other. n must divide the first dimension. */
grpcxx_status *grpcxx_group_all_to_all(grpcxx_group *group, uint16_t tag, grpcxx_tensor *tensor,
                                       const grpcxx_output *output, grpcxx_tensor **result);
/* Returns when all ranks have called it. BLOCKS. */
grpcxx_status *grpcxx_group_barrier(grpcxx_group *group, uint16_t tag);
/* Takes the place of an operation that the program was to call and cannot, for want of memory for example: else this
 * rank's next one would meet what other ranks have called for this one. Where they have called another operation, the
 * group ends, and its text names this rank; where all have refused, it goes on. Does not block. */
grpcxx_status *grpcxx_group_refuse(grpcxx_group *group, uint16_t tag);

/* ---- Endpoint map ---------------------------------------------------------------------------------------------- */

/* .endpoint_map: which star address belongs to which gRPC address, read as DeepRec reads it. Immutable. */
typedef struct grpcxx_endpoint_map grpcxx_endpoint_map;

/* Reads the map at path; with path NULL or empty where DeepRec looks for it: in the directory
 * TF_SEASTAR_ENDPOINT_MAP_PATH, else in the working directory. GRPCXX_NOT_FOUND if there is no file there;
 * GRPCXX_INVALID_ARGUMENT with one line for each thing that is wrong in it. */
grpcxx_status *grpcxx_endpoint_map_new(const char *path, size_t path_size, grpcxx_endpoint_map **map);
void grpcxx_endpoint_map_free(grpcxx_endpoint_map *map);
/* These texts live as long as the map. */
const char *grpcxx_endpoint_map_path(const grpcxx_endpoint_map *map);
size_t grpcxx_endpoint_map_size(const grpcxx_endpoint_map *map);
/* Key (gRPC address) of entry number index, in the order of the file, and what stands behind "="; NULL beyond the
 * end. */
const char *grpcxx_endpoint_map_entry(const grpcxx_endpoint_map *map, size_t index, const char **value);
/* The star address, "host:port", of the task with this gRPC address, which must match byte for byte.
 * GRPCXX_NOT_FOUND if there is none, GRPCXX_INVALID_ARGUMENT if the entry is wrong. */
grpcxx_status *grpcxx_endpoint_map_star_address(const grpcxx_endpoint_map *map, const char *grpc_address,
                                                size_t grpc_address_size, const char **star_address);

/* ---- Facts for a doctor ---------------------------------------------------------------------------------------- */

/* Takes one fact about this machine and process. Texts end with NUL and are borrowed. */
typedef void (*grpcxx_fact_fn)(void *user, const char *name, const char *value);
/* Tells facts, before it returns: "version", "driver" (io_uring or epoll, with the settings of the environment),
 * "driver_why", "io_uring" ("yes", or why not), "host" and "host_why", "memlock_bytes" ("unlimited" or a number),
 * "cpus_allowed", "cpu_time" (how many CPUs the process has the time of, such as 0.5), "memory_bytes", "huge_pages",
 * "shared_memory" (bytes of the memory of the process, which it counts as, or why there is none), "rdma" (device and
 * port that connections may move to, or "none") and "rdma_why" (why none), "rdma_devices" (those that the kernel has,
 * used or not, or "none"), "configuration" ("ok", or what is wrong with the environment, one line for each problem).
 * More may come. BLOCKS for some milliseconds. */
void grpcxx_facts(grpcxx_fact_fn fact, void *user);
/* Takes one variable of the configuration. Texts end with NUL and live for ever. */
typedef void (*grpcxx_variable_fn)(void *user, const char *name, const char *default_value, const char *unit,
                                   const char *reader, const char *meaning);
/* Tells all variables, before it returns. */
void grpcxx_variables(grpcxx_variable_fn variable, void *user);

#ifdef __cplusplus
}
#endif

#endif /* GRPCXX_H */
