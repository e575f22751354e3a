/* Children that a program forks: tensors that it has received are their own, and its engines refuse them. */
#include "support.h"

#include <sys/wait.h>

#define KINDS 3
/* Sizes in floats: shared with others in a block, a block of its own, many pages. */
static const int64_t COUNTS[KINDS] = {100, 20000, 1 << 20};

typedef struct cluster {
  grpcxx_engine *source;
  grpcxx_engine *target;
  grpcxx_peer *peer;
} cluster;

static cluster start(const char *shm) {
  cluster made = {NULL, NULL, NULL};
  const char *jobs[2] = {"ps", "worker"};
  grpcxx_engine *engines[2];
  for (int index = 0; index < 2; index++) {
    grpcxx_options *options = small_options(jobs[index]);
    OK(grpcxx_options_set_variable(options, TEXT("GRPCXX_SHM"), shm, strlen(shm)));
    engines[index] = engine_of(options);
  }
  made.source = engines[0];
  made.target = engines[1];
  made.peer = peer_of(made.target, made.source);
  return made;
}

static void stop(const cluster *of) {
  grpcxx_peer_release(of->peer);
  grpcxx_engine_free(of->target);
  grpcxx_engine_free(of->source);
}

/* Receives a tensor of so many floats of this value into memory of the engine. */
static grpcxx_tensor *receive(const cluster *of, int64_t count, float value) {
  float *data = malloc(sizeof *data * (size_t)count);
  for (int64_t index = 0; index < count; index++) {
    data[index] = value;
  }
  char key[256];
  size_t key_size = key_of(key, sizeof key, of->source, "weights");
  grpcxx_tensor *sent = floats(data, count);
  OK(grpcxx_engine_send(of->source, 7, key, key_size, sent));
  grpcxx_tensor_release(sent);
  free(data);
  outcome *ended = outcome_new();
  grpcxx_recv_tensor(of->peer, NULL, 7, key, key_size, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_tensors == 1);
  grpcxx_tensor *received = grpcxx_tensor_retain(ended->tensors[0]);
  outcome_free(ended);
  return received;
}

/* Writes into a tensor that may be written; returns the value that it then has. */
static float fill(grpcxx_tensor *tensor, float before, float value) {
  float *data = grpcxx_tensor_mutable_data(tensor);
  if (data == NULL) {
    return before;
  }
  for (size_t index = 0; index < grpcxx_tensor_data_size(tensor) / sizeof *data; index++) {
    data[index] = value;
  }
  return value;
}

static bool has(const grpcxx_tensor *tensor, float value) {
  const float *data = grpcxx_tensor_data(tensor);
  for (size_t index = 0; index < grpcxx_tensor_data_size(tensor) / sizeof *data; index++) {
    if (data[index] != value) {
      return false;
    }
  }
  return true;
}

static void is_well(pid_t child) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* What a child makes, and a new engine of its own receives, lies nowhere in its parent's memory. */
static void the_child_lives_alone(const cluster *inherited, const char *shm) {
  outcome *ended = outcome_new();
  grpcxx_message_call(inherited->peer, NULL, GRPCXX_GET_STATUS, NULL, 0, NULL, message_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_FAILED_PRECONDITION);
  outcome_free(ended);
  cluster own = start(shm);
  for (int round = 0; round < 20; round++) {
    for (int kind = 0; kind < KINDS; kind++) {
      grpcxx_tensor *received = receive(&own, COUNTS[kind], 3);
      CHECK(has(received, 3));
      CHECK(has(received, fill(received, 3, 4)));
      grpcxx_tensor_release(received);
    }
  }
  stop(&own);
}

static void forks(const char *shm) {
  cluster of = start(shm);
  grpcxx_tensor *kept[KINDS];
  for (int kind = 0; kind < KINDS; kind++) {
    kept[kind] = receive(&of, COUNTS[kind], 1);
    CHECK(has(kept[kind], 1));
  }
  int go[2], done[2];
  CHECK(pipe(go) == 0 && pipe(done) == 0);
  pid_t child = fork();
  char byte = 0;
  /* So that each hears of the other's end. */
  close(child == 0 ? go[1] : go[0]);
  close(child == 0 ? done[0] : done[1]);
  if (child == 0) {
    float written[KINDS];
    for (int kind = 0; kind < KINDS; kind++) {
      written[kind] = fill(kept[kind], 1, 2);
    }
    CHECK(write(done[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
    for (int kind = 0; kind < KINDS; kind++) {
      CHECK(has(kept[kind], written[kind]));
      grpcxx_tensor_release(kept[kind]);
    }
    the_child_lives_alone(&of, shm);
    _exit(0);
  }
  /* The child has written: nothing is seen of it here; and nothing there of what this process writes then. */
  CHECK(read(done[0], &byte, 1) == 1);
  float written[KINDS];
  for (int kind = 0; kind < KINDS; kind++) {
    CHECK(has(kept[kind], 1));
    written[kind] = fill(kept[kind], 1, 5);
    /* Those that lie alone in memory of this engine are written. */
    CHECK(written[kind] == 5 || kind == 0 || strcmp(shm, "off") != 0);
  }
  CHECK(write(go[1], "x", 1) == 1);
  /* Meanwhile its engines go on. */
  grpcxx_tensor *later[KINDS];
  for (int kind = 0; kind < KINDS; kind++) {
    later[kind] = receive(&of, COUNTS[kind], 6);
  }
  is_well(child);
  for (int kind = 0; kind < KINDS; kind++) {
    CHECK(has(kept[kind], written[kind]) && has(later[kind], 6));
    grpcxx_tensor_release(kept[kind]);
    grpcxx_tensor_release(later[kind]);
  }
  close(go[1]);
  close(done[0]);
  stop(&of);
}

/* A call of the parent that goes on ends there alone; what has ended has its result in the child too. */
static void calls_go_on_in_the_parent(void) {
  cluster of = start("auto");
  char key[256];
  size_t key_size = key_of(key, sizeof key, of.source, "later");
  grpcxx_call *waits = grpcxx_call_new(), *ended = grpcxx_call_new();
  grpcxx_recv_tensor(of.peer, waits, 7, key, key_size, NULL, NULL, NULL, NULL);
  grpcxx_message_call(of.peer, ended, GRPCXX_GET_STATUS, NULL, 0, NULL, NULL, NULL);
  OK(grpcxx_call_wait(ended, 0));
  pid_t child = fork();
  if (child == 0) {
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_call_wait(waits, 20000));
    OK(grpcxx_call_wait(ended, 20000));
    _exit(0);
  }
  is_well(child);
  float one = 1;
  grpcxx_tensor *sent = floats(&one, 1);
  OK(grpcxx_engine_send(of.source, 7, key, key_size, sent));
  grpcxx_tensor_release(sent);
  OK(grpcxx_call_wait(waits, 0));
  grpcxx_call_release(waits);
  grpcxx_call_release(ended);
  stop(&of);
}

static void never_called(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  (void)user, (void)request, (void)responder;
  CHECK(false);
}

/* Nothing is done with an engine of the parent, whose locks its threads may have held at the fork. */
static void engines_of_the_parent_refuse_all(void) {
  cluster of = start("auto");
  float one = 1;
  grpcxx_tensor *tensor = floats(&one, 1), *fetched = NULL;
  grpcxx_text name = {TEXT("kept")};
  OK(grpcxx_store_put(of.source, &name, &tensor, 1));
  pid_t child = fork();
  if (child == 0) {
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_store_put(of.source, &name, &tensor, 1));
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_store_fetch(of.source, TEXT("kept"), &fetched));
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_store_remove(of.source, &name, 1));
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_function_register(of.source, TEXT("f"), never_called, NULL, NULL));
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_abort_all_steps(of.source, GRPCXX_ABORTED, NULL, 0));
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_shutdown(of.source, 1000));
    stop(&of);
    _exit(0);
  }
  is_well(child);
  OK(grpcxx_store_fetch(of.source, TEXT("kept"), &fetched));
  grpcxx_tensor_release(fetched);
  grpcxx_tensor_release(tensor);
  stop(&of);
}

/* Counts the lines that say how an engine has started. */
static void line_seen(void *user, int32_t level, const char *target, const char *message) {
  (void)level, (void)target;
  atomic_fetch_add((atomic_int *)user, strstr(message, "shards=2") != NULL ? 1 : 0);
}

static void an_engine_is_told_of(atomic_int *seen) {
  int before = atomic_load(seen);
  grpcxx_engine_free(engine_of(small_options("ps")));
  CHECK(atomic_load(seen) == before + 1);
}

/* The thread that calls whoever takes the lines is not there in a child. */
static void the_log_goes_on_in_children(void) {
  atomic_int seen = 0, seen_by_child = 0;
  grpcxx_log_set(GRPCXX_LOG_INFO, line_seen, &seen);
  an_engine_is_told_of(&seen);
  pid_t child = fork();
  if (child == 0) {
    an_engine_is_told_of(&seen);
    grpcxx_log_set(GRPCXX_LOG_INFO, line_seen, &seen_by_child);
    an_engine_is_told_of(&seen_by_child);
    CHECK(atomic_load(&seen) == 2);
    pid_t grandchild = fork();
    if (grandchild == 0) {
      an_engine_is_told_of(&seen_by_child);
      _exit(0);
    }
    is_well(grandchild);
    _exit(0);
  }
  an_engine_is_told_of(&seen);
  is_well(child);
  grpcxx_log_set(0, NULL, NULL);
}

int main(void) {
  the_log_goes_on_in_children();
  calls_go_on_in_the_parent();
  engines_of_the_parent_refuse_all();
  forks("off");
  forks("auto");
  return 0;
}
