/* What the engine calls to let go of something of the program may use the engine. */
#include "support.h"

typedef struct registered {
  grpcxx_engine *engine;
  atomic_int stopped;
  atomic_int freed;
} registered;

static void never_called(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  (void)user, (void)request, (void)responder;
  CHECK(false);
}

static void *stop(void *user) {
  registered *self = user;
  OK(grpcxx_engine_shutdown(self->engine, 0));
  atomic_fetch_add(&self->stopped, 1);
  return NULL;
}

static void freed(void *user) {
  registered *self = user;
  if (atomic_fetch_add(&self->freed, 1) > 0) {
    return;
  }
  pthread_t other;
  CHECK(pthread_create(&other, NULL, stop, self) == 0);
  await_count(&self->stopped, 1);
  CHECK(pthread_join(other, NULL) == 0);
  FAILS(GRPCXX_UNAVAILABLE, grpcxx_engine_cleanup_step(self->engine, 1));
}

/* While a function is replaced, no lock of the engine is held that another thread waits for. So that the test need not
 * guess when that thread waits, this waits for it, against the rule. */
static void what_is_replaced_may_wait_for_another_thread_that_stops_the_engine(void) {
  registered self = {engine_of(small_options("ps")), 0, 0};
  OK(grpcxx_function_register(self.engine, TEXT("twice"), never_called, &self, freed));
  OK(grpcxx_function_register(self.engine, TEXT("twice"), never_called, &self, freed));
  grpcxx_engine_free(self.engine);
  await_count(&self.freed, 2);
}

typedef struct borrowed {
  grpcxx_engine *engine;
  atomic_int served;
  atomic_int freed;
} borrowed;

static void refuses_to_block(void *user) {
  borrowed *self = user;
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_shutdown(self->engine, 0));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_group_barrier(NULL, 0));
  atomic_fetch_add(&self->freed, 1);
}

static void never_cancelled(void *context) {
  (void)context;
  CHECK(false);
}

static int32_t hears_of_the_end(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  (void)request;
  borrowed *self = user;
  atomic_fetch_add(&self->served, 1);
  grpcxx_responder_on_cancel(responder, never_cancelled, refuses_to_block, self);
  grpcxx_responder_answer_message(responder, NULL, 0);
  return GRPCXX_TAKEN;
}

static void no_metrics(void *user, grpcxx_metric_fn metric, void *into) { (void)user, (void)metric, (void)into; }
static void no_tensors(void *user, grpcxx_awaited_fn awaited, void *into) { (void)user, (void)awaited, (void)into; }

/* Wherever that is: it may be the thread of a shard. */
static void what_frees_must_not_block(void) {
  borrowed self = {engine_of(small_options("worker")), 0, 0};
  grpcxx_options *options = small_options("ps");
  OK(grpcxx_options_set_service(options, hears_of_the_end, &self, refuses_to_block));
  OK(grpcxx_options_set_metrics(options, no_metrics, &self, refuses_to_block));
  OK(grpcxx_options_set_awaiting(options, no_tensors, &self, refuses_to_block));
  grpcxx_engine *server = engine_of(options);
  grpcxx_peer *peer = peer_of(self.engine, server);
  outcome *ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_GET_STATUS, NULL, 0, NULL, message_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
  OK(grpcxx_function_register(server, TEXT("twice"), never_called, &self, refuses_to_block));
  OK(grpcxx_function_register(server, TEXT("twice"), never_called, &self, refuses_to_block));
  grpcxx_peer_release(peer);
  grpcxx_engine_free(server);
  CHECK(atomic_load(&self.served) > 0);
  /* And two functions, the service, the metrics, and what is awaited. */
  await_count(&self.freed, atomic_load(&self.served) + 5);
  grpcxx_engine_free(self.engine);
}

/* What was not taken is the caller's still. */
static void what_is_not_taken_is_not_freed(void) {
  borrowed self = {NULL, 0, 0};
  grpcxx_options *options = small_options("ps");
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_service(NULL, hears_of_the_end, &self, refuses_to_block));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_metrics(NULL, no_metrics, &self, refuses_to_block));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_awaiting(NULL, no_tensors, &self, refuses_to_block));
  OK(grpcxx_options_set_service(options, NULL, &self, refuses_to_block));
  OK(grpcxx_options_set_metrics(options, NULL, &self, refuses_to_block));
  OK(grpcxx_options_set_awaiting(options, NULL, &self, refuses_to_block));
  grpcxx_options_free(options);
  CHECK(atomic_load(&self.freed) == 0);
}

int main(void) {
  what_frees_must_not_block();
  what_is_not_taken_is_not_freed();
  what_is_replaced_may_wait_for_another_thread_that_stops_the_engine();
  puts("frees: ok");
  return 0;
}
