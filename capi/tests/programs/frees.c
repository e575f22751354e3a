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

/* While a function is replaced, no lock of the engine is held that another thread waits for. */
static void what_is_replaced_may_wait_for_another_thread_that_stops_the_engine(void) {
  registered self = {engine_of(small_options("ps")), 0, 0};
  OK(grpcxx_function_register(self.engine, TEXT("twice"), never_called, &self, freed));
  OK(grpcxx_function_register(self.engine, TEXT("twice"), never_called, &self, freed));
  grpcxx_engine_free(self.engine);
  await_count(&self.freed, 2);
}

int main(void) {
  what_is_replaced_may_wait_for_another_thread_that_stops_the_engine();
  puts("frees: ok");
  return 0;
}
