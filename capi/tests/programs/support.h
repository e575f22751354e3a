/* What the programs of these tests share: checks that end the program, and outcomes that can be waited for. */
#ifndef GRPCXX_TESTS_SUPPORT_H
#define GRPCXX_TESTS_SUPPORT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "grpcxx.h"

/* The thread sanitizer sees this program and not the library, unless that was built with it too. So each crossing of the
 * boundary passes through one lock: what was written before it is then seen behind it, as the library promises. */
static pthread_mutex_t crossing = PTHREAD_MUTEX_INITIALIZER;

static inline void cross(void) {
  pthread_mutex_lock(&crossing);
  pthread_mutex_unlock(&crossing);
}

#define grpcxx_engine_start(...) (cross(), grpcxx_engine_start(__VA_ARGS__))
#define grpcxx_engine_shutdown(...) (cross(), grpcxx_engine_shutdown(__VA_ARGS__))
#define grpcxx_engine_free(...) (cross(), grpcxx_engine_free(__VA_ARGS__))
#define grpcxx_engine_send(...) (cross(), grpcxx_engine_send(__VA_ARGS__))
#define grpcxx_engine_receive(...) (cross(), grpcxx_engine_receive(__VA_ARGS__))
#define grpcxx_peer_inspect(...) (cross(), grpcxx_peer_inspect(__VA_ARGS__))
#define grpcxx_recv_tensor(...) (cross(), grpcxx_recv_tensor(__VA_ARGS__))
#define grpcxx_fuse_recv_tensor(...) (cross(), grpcxx_fuse_recv_tensor(__VA_ARGS__))
#define grpcxx_message_call(...) (cross(), grpcxx_message_call(__VA_ARGS__))
#define grpcxx_graph_call_begin(...) (cross(), grpcxx_graph_call_begin(__VA_ARGS__))
#define grpcxx_call_cancel(...) (cross(), grpcxx_call_cancel(__VA_ARGS__))
#define grpcxx_function_register(...) (cross(), grpcxx_function_register(__VA_ARGS__))
#define grpcxx_responder_on_cancel(...) (cross(), grpcxx_responder_on_cancel(__VA_ARGS__))
#define grpcxx_responder_answer_tensors(...) (cross(), grpcxx_responder_answer_tensors(__VA_ARGS__))

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);   \
      _exit(1);                                                                   \
    }                                                                             \
  } while (0)

#define OK(call) check_ok(__FILE__, __LINE__, #call, (call))
#define FAILS(code, call) check_fails(__FILE__, __LINE__, #call, code, (call))
#define TEXT(literal) literal, sizeof(literal) - 1

static inline void check_ok(const char *file, int line, const char *what, grpcxx_status *status) {
  if (status != NULL) {
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, what, grpcxx_code_name(grpcxx_status_code(status)),
            grpcxx_status_message(status, NULL));
    _exit(1);
  }
}

static inline void check_fails(const char *file, int line, const char *what, int32_t code, grpcxx_status *status) {
  size_t size = 0;
  if (grpcxx_status_code(status) != code || strlen(grpcxx_status_message(status, &size)) == 0 || size == 0) {
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, what, grpcxx_code_name(grpcxx_status_code(status)),
            grpcxx_status_message(status, NULL));
    _exit(1);
  }
  grpcxx_status_free(status);
}

#define KEPT_MAX 128

/* How a call ended, and what its callbacks do on the way. */
typedef struct outcome {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  pthread_t began_on;
  int times_done;
  int32_t code;
  char message[512];
  grpcxx_tensor *tensors[KEPT_MAX];
  size_t num_tensors;
  char bytes[4096];
  size_t num_bytes;
  /* For allocate_here. */
  char *memory[KEPT_MAX];
  size_t memory_sizes[KEPT_MAX];
  int32_t dtypes[KEPT_MAX];
  int times_allocated;
  int times_released;
  bool lends_with_release;
  bool refuses;
  bool leaves_to_engine;
  grpcxx_call *cancel_when_allocating;
} outcome;

static inline outcome *outcome_new(void) {
  outcome *made = calloc(1, sizeof *made);
  CHECK(made != NULL);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->changed, NULL);
  pthread_mutex_lock(&made->lock);
  made->code = -1;
  made->began_on = pthread_self();
  pthread_mutex_unlock(&made->lock);
  return made;
}

/* Waits for the end and returns the code. */
static inline int32_t outcome_wait(outcome *self) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 60;
  pthread_mutex_lock(&self->lock);
  while (self->times_done == 0) {
    int error = pthread_cond_timedwait(&self->changed, &self->lock, &until);
    if (error == ETIMEDOUT) {
      fprintf(stderr, "a call did not end within a minute\n");
      abort();
    }
  }
  int32_t code = self->code;
  pthread_mutex_unlock(&self->lock);
  return code;
}

static inline bool outcome_is_done(outcome *self) {
  pthread_mutex_lock(&self->lock);
  bool is_done = self->times_done > 0;
  pthread_mutex_unlock(&self->lock);
  return is_done;
}

static inline int outcome_released(outcome *self) {
  pthread_mutex_lock(&self->lock);
  int released = self->times_released;
  pthread_mutex_unlock(&self->lock);
  return released;
}

static inline void outcome_free(outcome *self) {
  pthread_mutex_lock(&self->lock);
  CHECK(self->times_done == 1);
  for (size_t index = 0; index < self->num_tensors; index++) {
    grpcxx_tensor_release(self->tensors[index]);
  }
  for (size_t index = 0; index < KEPT_MAX; index++) {
    free(self->memory[index]);
  }
  pthread_mutex_unlock(&self->lock);
  pthread_mutex_destroy(&self->lock);
  pthread_cond_destroy(&self->changed);
  free(self);
}

static inline void outcome_end(outcome *self, const grpcxx_status *status) {
  self->times_done++;
  self->code = grpcxx_status_code(status);
  snprintf(self->message, sizeof self->message, "%s", grpcxx_status_message(status, NULL));
  pthread_cond_broadcast(&self->changed);
}

static inline void tensors_done(void *user, const grpcxx_status *status, grpcxx_tensor *const *tensors,
                                size_t num_tensors) {
  cross();
  outcome *self = user;
  pthread_mutex_lock(&self->lock);
  CHECK(num_tensors <= KEPT_MAX);
  CHECK(status == NULL || num_tensors == 0);
  for (size_t index = 0; index < num_tensors; index++) {
    self->tensors[index] = grpcxx_tensor_retain(tensors[index]);
  }
  self->num_tensors = num_tensors;
  outcome_end(self, status);
  pthread_mutex_unlock(&self->lock);
}

static inline void message_done(void *user, const grpcxx_status *status, const void *data, size_t size) {
  cross();
  outcome *self = user;
  pthread_mutex_lock(&self->lock);
  CHECK(size <= sizeof self->bytes);
  if (size > 0) {
    memcpy(self->bytes, data, size);
  }
  self->num_bytes = size;
  outcome_end(self, status);
  pthread_mutex_unlock(&self->lock);
}

static inline void memory_released(void *context) {
  cross();
  outcome *self = context;
  pthread_mutex_lock(&self->lock);
  self->times_released++;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
}

static inline grpcxx_status *allocate_here(void *user, size_t index, const grpcxx_tensor_meta *meta,
                                           grpcxx_memory *memory) {
  cross();
  outcome *self = user;
  pthread_mutex_lock(&self->lock);
  CHECK(self->times_done == 0);
  CHECK(index < KEPT_MAX && self->memory[index] == NULL);
  CHECK(meta->struct_size >= sizeof *meta && memory->struct_size >= sizeof *memory);
  CHECK(meta->data_size > 0 && memory->data == NULL && memory->release == NULL);
  self->times_allocated++;
  self->dtypes[index] = meta->dtype;
  grpcxx_call *cancel = self->cancel_when_allocating;
  grpcxx_status *status = NULL;
  if (self->refuses) {
    status = grpcxx_status_new(GRPCXX_RESOURCE_EXHAUSTED, TEXT("no room here"));
  } else if (!self->leaves_to_engine) {
    self->memory[index] = malloc(meta->data_size);
    self->memory_sizes[index] = meta->data_size;
    memory->data = self->memory[index];
    if (self->lends_with_release) {
      memory->release = memory_released;
      memory->context = self;
    }
  }
  pthread_mutex_unlock(&self->lock);
  grpcxx_call_cancel(cancel);
  return status;
}

/* Counts what was given back, and how. */
typedef struct released {
  atomic_int times;
  atomic_int times_delivered;
} released;

static inline void count_release(void *context, bool delivered) {
  cross();
  released *self = context;
  atomic_fetch_add(&self->times_delivered, delivered ? 1 : 0);
  atomic_fetch_add(&self->times, 1);
}

/* Waits until a number has been reached. */
static inline void await_count(atomic_int *number, int wanted) {
  for (int round = 0; atomic_load(number) < wanted; round++) {
    CHECK(round < 60000);
    usleep(1000);
  }
  CHECK(atomic_load(number) == wanted);
}

/* A float tensor of one dimension over memory of the program. */
static inline grpcxx_tensor *floats_over(const float *data, int64_t count, released *released) {
  grpcxx_tensor *tensor = NULL;
  OK(grpcxx_tensor_new(GRPCXX_FLOAT32, &count, 1, false, data, sizeof *data * (size_t)count, count_release, released,
                       &tensor));
  return tensor;
}

static inline grpcxx_tensor *floats(const float *data, int64_t count) {
  grpcxx_tensor *tensor = NULL;
  OK(grpcxx_tensor_copy_new(GRPCXX_FLOAT32, &count, 1, false, data, sizeof *data * (size_t)count, &tensor));
  return tensor;
}

/* An engine for tests: few threads, little memory, no waiting for peers that are gone. */
static inline grpcxx_options *small_options(const char *job) {
  grpcxx_options *options = grpcxx_options_new();
  OK(grpcxx_options_set_task(options, job, strlen(job), 0));
  OK(grpcxx_options_set_num_tasks(options, 2));
  OK(grpcxx_options_set_listen(options, TEXT("127.0.0.1:0")));
  OK(grpcxx_options_set_variable(options, TEXT("GRPCXX_SHARDS"), TEXT("2")));
  OK(grpcxx_options_set_variable(options, TEXT("GRPCXX_ARENA_BYTES"), TEXT("1GiB")));
  OK(grpcxx_options_set_variable(options, TEXT("GRPCXX_COMPUTE_THREADS"), TEXT("2")));
  OK(grpcxx_options_set_variable(options, TEXT("GRPCXX_REDIAL_MS"), TEXT("20")));
  return options;
}

static inline grpcxx_engine *engine_of(grpcxx_options *options) {
  grpcxx_engine *engine = NULL;
  OK(grpcxx_engine_start(options, &engine));
  grpcxx_options_free(options);
  CHECK(grpcxx_engine_star_address(engine) != NULL && grpcxx_engine_star_port(engine) != 0);
  return engine;
}

static inline grpcxx_peer *peer_of(grpcxx_engine *from, const grpcxx_engine *to) {
  grpcxx_peer *peer = NULL;
  const char *address = grpcxx_engine_star_address(to);
  OK(grpcxx_peer_new(from, address, strlen(address), &peer));
  CHECK(strcmp(grpcxx_peer_address(peer), address) == 0);
  return peer;
}

/* A rendezvous key of a tensor of this engine. */
static inline size_t key_of(char *key, size_t capacity, const grpcxx_engine *source, const char *name) {
  uint64_t incarnation = 0;
  const char *device = grpcxx_engine_device(source, 0, &incarnation);
  CHECK(device != NULL);
  int size = snprintf(key, capacity, "%s;%016llx;/job:worker/replica:0/task:0/device:CPU:0;%s;0:0", device,
                      (unsigned long long)incarnation, name);
  CHECK(size > 0 && (size_t)size < capacity);
  return (size_t)size;
}

static inline uint64_t counter_of(const grpcxx_engine *engine, const char *name) {
  uint64_t value = 0;
  CHECK(grpcxx_engine_counter(engine, name, &value));
  return value;
}

#endif /* GRPCXX_TESTS_SUPPORT_H */
