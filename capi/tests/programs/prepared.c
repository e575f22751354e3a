/* What an engine is prepared with is there for those who come while it starts. */
#include "support.h"

typedef struct preparation {
  grpcxx_engine *caller;
  grpcxx_peer *peer;
  grpcxx_engine *seen;
  outcome *called;
  outcome *pulled;
  outcome *received;
  atomic_int freed;
} preparation;

static const float VALUES[3] = {1, 2, 3};

static void freed(void *user) {
  preparation *self = user;
  atomic_fetch_add(&self->freed, 1);
}

static void brings_values(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  (void)user, (void)request;
  grpcxx_tensor *values = floats(VALUES, 3);
  grpcxx_responder_answer_tensors(responder, &values, 1);
  grpcxx_tensor_release(values);
}

static outcome *fetch(grpcxx_peer *peer, grpcxx_text function, grpcxx_text name) {
  grpcxx_graph_call call = {
      .struct_size = sizeof call, .handle = function, .fetch_names = &name, .num_fetches = 1};
  outcome *ended = outcome_new();
  grpcxx_graph_call_begin(peer, NULL, &call, NULL, NULL, tensors_done, ended);
  return ended;
}

static void has_values(outcome *ended) {
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_tensors == 1);
  CHECK(memcmp(grpcxx_tensor_data(ended->tensors[0]), VALUES, sizeof VALUES) == 0);
  outcome_free(ended);
}

static grpcxx_status *fills_it(void *user, grpcxx_engine *engine) {
  /* No thread is cancelled within a function of the engine, which may hold its locks. */
  int before = PTHREAD_CANCEL_ENABLE;
  CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before) == 0 && before == PTHREAD_CANCEL_DISABLE);
  preparation *self = user;
  char key[256];
  size_t key_size = key_of(key, sizeof key, engine, "edge");
  self->seen = engine;
  self->peer = peer_of(self->caller, engine);
  self->called = fetch(self->peer, (grpcxx_text){TEXT("values")}, (grpcxx_text){TEXT("x")});
  self->pulled = fetch(self->peer, (grpcxx_text){TEXT("grpcxx.store.pull")}, (grpcxx_text){TEXT("w")});
  self->received = outcome_new();
  grpcxx_recv_tensor(self->peer, NULL, 1, key, key_size, NULL, NULL, tensors_done, self->received);
  /* An engine that served already would answer meanwhile that there is nothing of these names. */
  usleep(100 * 1000);
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_shutdown(engine, 0));
  CHECK(!outcome_is_done(self->called) && !outcome_is_done(self->pulled) && !outcome_is_done(self->received));

  grpcxx_text name = {TEXT("w")};
  grpcxx_tensor *values = floats(VALUES, 3);
  OK(grpcxx_function_register(engine, TEXT("values"), brings_values, self, freed));
  OK(grpcxx_store_put(engine, &name, &values, 1));
  OK(grpcxx_engine_send(engine, 1, key, key_size, values));
  grpcxx_tensor_release(values);
  return NULL;
}

static void who_comes_early_finds_what_is_prepared(void) {
  preparation self = {.caller = engine_of(small_options("worker"))};
  grpcxx_options *options = small_options("ps");
  OK(grpcxx_options_set_prepare(options, fills_it, &self, freed));
  grpcxx_engine *server = engine_of(options);
  CHECK(self.seen == server && atomic_load(&self.freed) == 1);
  has_values(self.called);
  has_values(self.pulled);
  has_values(self.received);
  grpcxx_peer_release(self.peer);
  grpcxx_engine_free(server);
  await_count(&self.freed, 2);
  grpcxx_engine_free(self.caller);
}

static grpcxx_status *has_no_weights(void *user, grpcxx_engine *engine) {
  OK(grpcxx_function_register(engine, TEXT("values"), brings_values, user, freed));
  return grpcxx_status_new(GRPCXX_NOT_FOUND, TEXT("no weights"));
}

static void a_preparation_that_fails_ends_the_start(void) {
  preparation self = {0};
  grpcxx_options *options = small_options("ps");
  OK(grpcxx_options_set_prepare(options, has_no_weights, &self, freed));
  for (int round = 1; round <= 2; round++) {
    grpcxx_engine *engine = NULL;
    grpcxx_status *status = grpcxx_engine_start(options, &engine);
    CHECK(engine == NULL && grpcxx_status_code(status) == GRPCXX_NOT_FOUND);
    CHECK(strcmp(grpcxx_status_message(status, NULL), "no weights") == 0);
    grpcxx_status_free(status);
    await_count(&self.freed, round);
  }
  grpcxx_options_free(options);
  await_count(&self.freed, 3);
}

static void what_is_not_taken_is_not_freed(void) {
  preparation self = {0};
  grpcxx_options *options = small_options("ps");
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_prepare(NULL, fills_it, &self, freed));
  OK(grpcxx_options_set_prepare(options, NULL, &self, freed));
  grpcxx_options_free(options);
  CHECK(atomic_load(&self.freed) == 0);
}

int main(void) {
  who_comes_early_finds_what_is_prepared();
  a_preparation_that_fails_ends_the_start();
  what_is_not_taken_is_not_freed();
  puts("prepared: ok");
  return 0;
}
