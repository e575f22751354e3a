/* Engines, peers, calls and their ends, over real sockets. */
#include "support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static void tensors_keep_what_they_were_given(void) {
  float data[6] = {1, 2, 3, 4, 5, 6};
  int64_t dims[2] = {2, 3};
  released given = {0};
  grpcxx_tensor *tensor = NULL;
  OK(grpcxx_tensor_new(GRPCXX_FLOAT32, dims, 2, false, data, sizeof data, count_release, &given, &tensor));
  CHECK(grpcxx_tensor_dtype(tensor) == GRPCXX_FLOAT32 && grpcxx_tensor_rank(tensor) == 2);
  CHECK(grpcxx_tensor_dims(tensor)[0] == 2 && grpcxx_tensor_dims(tensor)[1] == 3);
  CHECK(grpcxx_tensor_num_elements(tensor) == 6 && !grpcxx_tensor_is_dead(tensor));
  CHECK(grpcxx_tensor_data(tensor) == data && grpcxx_tensor_data_size(tensor) == sizeof data);
  CHECK(grpcxx_tensor_retain(tensor) == tensor);
  grpcxx_tensor_release(tensor);
  CHECK(atomic_load(&given.times) == 0);
  grpcxx_tensor_release(tensor);
  CHECK(atomic_load(&given.times) == 1 && atomic_load(&given.times_delivered) == 0);

  int64_t empty = 0;
  OK(grpcxx_tensor_new(GRPCXX_INT64, &empty, 1, false, NULL, 0, count_release, &given, &tensor));
  CHECK(grpcxx_tensor_data(tensor) != NULL && grpcxx_tensor_data_size(tensor) == 0);
  grpcxx_tensor_release(tensor);
  CHECK(atomic_load(&given.times) == 2);

  int64_t negative = -1;
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_new(GRPCXX_FLOAT32, dims, 2, false, data, 8, count_release, &given, &tensor));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_new(GRPCXX_FLOAT32, &negative, 1, false, data, 4, count_release, &given, &tensor));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_new(99, dims, 2, false, data, 24, count_release, &given, &tensor));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_new(GRPCXX_FLOAT32, NULL, 2, false, data, 24, count_release, &given, &tensor));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_new(GRPCXX_FLOAT32, dims, 2, false, NULL, 24, count_release, &given, &tensor));
  CHECK(atomic_load(&given.times) == 2);

  grpcxx_text words[3] = {{TEXT("one")}, {NULL, 0}, {TEXT("three")}};
  int64_t three = 3;
  OK(grpcxx_tensor_strings_new(&three, 1, words, 3, &tensor));
  CHECK(grpcxx_tensor_dtype(tensor) == GRPCXX_STRING && grpcxx_tensor_num_elements(tensor) == 3);
  grpcxx_text found[3];
  OK(grpcxx_tensor_strings(tensor, found, 3));
  CHECK(found[0].size == 3 && memcmp(found[0].data, "one", 3) == 0);
  CHECK(found[1].size == 0 && found[2].size == 5 && memcmp(found[2].data, "three", 5) == 0);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_strings(tensor, found, 2));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_strings(tensor, NULL, 3));
  grpcxx_tensor_release(tensor);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_strings_new(&three, 1, words, 2, &tensor));

  CHECK(grpcxx_dtype_size(GRPCXX_COMPLEX128) == 16 && grpcxx_dtype_size(GRPCXX_STRING) == 0);
  CHECK(strcmp(grpcxx_dtype_name(GRPCXX_BFLOAT16), "bfloat16") == 0 && grpcxx_dtype_name(0) == NULL);
}

static void engines_say_what_they_are(grpcxx_engine *one) {
  uint64_t incarnation = 0;
  CHECK(strcmp(grpcxx_engine_task(one), "/job:ps/replica:0/task:0") == 0);
  CHECK(strcmp(grpcxx_engine_device(one, 0, &incarnation), "/job:ps/replica:0/task:0/device:CPU:0") == 0);
  CHECK(incarnation != 0 && grpcxx_engine_device(one, 1, NULL) == NULL);
  CHECK(strstr(grpcxx_engine_start_report(one), "shards=2") != NULL);
  CHECK(!grpcxx_engine_counter(one, "no such counter", &incarnation));

  grpcxx_options *options = small_options("ps");
  grpcxx_engine *none = NULL;
  OK(grpcxx_options_set_variable(options, TEXT("GRPCXX_SHARDS"), TEXT("many")));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_start(options, &none));
  OK(grpcxx_options_set_variable(options, TEXT("GRPCXX_SHARDS"), TEXT("1")));
  OK(grpcxx_options_set_listen(options, grpcxx_engine_star_address(one), strlen(grpcxx_engine_star_address(one))));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_start(options, &none));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_listen(options, TEXT("nowhere")));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_task(options, "", 0, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_num_tasks(options, 0));
  CHECK(none == NULL);

  OK(grpcxx_options_set_listen(options, NULL, 0));
  OK(grpcxx_options_add_device(options, TEXT("/job:ps/replica:0/task:0/device:GPU:1"), TEXT("GPU"), 77, 1 << 20));
  OK(grpcxx_options_add_device(options, TEXT("/job:ps/replica:0/task:0/device:CPU:0"), TEXT("CPU"), 78, 1 << 20));
  OK(grpcxx_engine_start(options, &none));
  CHECK(grpcxx_engine_star_address(none) == NULL && grpcxx_engine_star_port(none) == 0);
  CHECK(strstr(grpcxx_engine_device(none, 1, &incarnation), "GPU:1") != NULL && incarnation == 77);
  grpcxx_engine_free(none);
  none = NULL;
  OK(grpcxx_options_add_device(options, TEXT("GPU:1"), TEXT("GPU"), 1, 1));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_start(options, &none));
  grpcxx_options_free(options);
}

typedef struct seen_state {
  pthread_mutex_t lock;
  int times;
  int32_t code;
  bool is_connected;
  bool is_announced;
  uint64_t features;
  size_t status_size;
} seen_state;

static void state_seen(void *user, const grpcxx_status *status, const grpcxx_peer_state *state) {
  cross();
  seen_state *self = user;
  pthread_mutex_lock(&self->lock);
  self->code = grpcxx_status_code(status);
  if (state != NULL) {
    self->is_connected = state->is_connected;
    self->is_announced = state->is_announced;
    self->features = state->features;
    self->status_size = state->status_size;
    CHECK((state->status != NULL) == (state->status_size > 0));
    CHECK(strcmp(state->medium, "tcp") == 0 || strcmp(state->medium, "shm") == 0 || strcmp(state->medium, "rdma") == 0);
  }
  self->times++;
  pthread_mutex_unlock(&self->lock);
}

static seen_state inspect(grpcxx_peer *peer) {
  seen_state seen = {.lock = PTHREAD_MUTEX_INITIALIZER};
  pthread_mutex_lock(&seen.lock);
  pthread_mutex_unlock(&seen.lock);
  grpcxx_peer_inspect(peer, state_seen, &seen);
  for (bool waits = true; waits;) {
    usleep(1000);
    pthread_mutex_lock(&seen.lock);
    waits = seen.times == 0;
    pthread_mutex_unlock(&seen.lock);
  }
  return seen;
}

static int32_t message_code(grpcxx_peer *peer, int32_t method, const char *body, size_t size) {
  outcome *ended = outcome_new();
  grpcxx_message_call(peer, NULL, method, body, size, NULL, message_done, ended);
  int32_t code = outcome_wait(ended);
  outcome_free(ended);
  return code;
}

static void messages_and_features(grpcxx_peer *peer) {
  seen_state before = inspect(peer);
  CHECK(before.code == GRPCXX_OK && !before.is_connected && !before.is_announced);
  outcome *ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_GET_STATUS, NULL, 0, NULL, message_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_bytes > 0);
  CHECK(memmem(ended->bytes, ended->num_bytes, TEXT("/job:ps/replica:0/task:0/device:CPU:0")) != NULL);
  outcome_free(ended);
  seen_state after = inspect(peer);
  CHECK(after.is_connected && after.is_announced && after.status_size > 0);
  CHECK((after.features & GRPCXX_FEATURE_CANCEL) && (after.features & GRPCXX_FEATURE_DEADLINE));

  CHECK(message_code(peer, GRPCXX_CLEANUP_GRAPH, NULL, 0) == GRPCXX_OK);
  CHECK(message_code(peer, GRPCXX_REGISTER_GRAPH, NULL, 0) == GRPCXX_UNIMPLEMENTED);
  CHECK(message_code(peer, GRPCXX_RECV_BUF, NULL, 0) == GRPCXX_UNIMPLEMENTED);
  CHECK(message_code(peer, GRPCXX_RECV_TENSOR, NULL, 0) == GRPCXX_INVALID_ARGUMENT);
  CHECK(message_code(peer, 12345, NULL, 0) == GRPCXX_INVALID_ARGUMENT);
  CHECK(message_code(peer, GRPCXX_GET_STATUS, NULL, 5) == GRPCXX_INVALID_ARGUMENT);
  CHECK(message_code(NULL, GRPCXX_GET_STATUS, NULL, 0) == GRPCXX_INVALID_ARGUMENT);

  grpcxx_call *call = grpcxx_call_new();
  grpcxx_message_call(peer, call, GRPCXX_GET_STATUS, NULL, 0, NULL, NULL, NULL);
  OK(grpcxx_call_wait(call, 0));
  size_t size = 0;
  CHECK(grpcxx_call_is_done(call) && grpcxx_call_message(call, &size) != NULL && size > 0);
  CHECK(grpcxx_call_num_tensors(call) == 0 && grpcxx_call_tensor(call, 0) == NULL);
  grpcxx_call_release(call);
}

static void tensors_land_where_the_caller_says(grpcxx_engine *source, grpcxx_engine *target, grpcxx_peer *peer) {
  enum { COUNT = 1 << 18 };
  static float data[COUNT];
  for (int index = 0; index < COUNT; index++) {
    data[index] = (float)index;
  }
  released given = {0};
  char key[256];
  size_t key_size = key_of(key, sizeof key, source, "weights");
  grpcxx_tensor *sent = floats_over(data, COUNT, &given);
  OK(grpcxx_engine_send(source, 7, key, key_size, sent));
  grpcxx_tensor_release(sent);

  uint64_t before = counter_of(target, "received_into_caller_bytes");
  outcome *ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 7, key, key_size, NULL, allocate_here, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_tensors == 1 && ended->times_allocated == 1);
  CHECK(ended->dtypes[0] == GRPCXX_FLOAT32 && ended->memory_sizes[0] == sizeof data);
  CHECK(grpcxx_tensor_data(ended->tensors[0]) == ended->memory[0]);
  CHECK(memcmp(ended->memory[0], data, sizeof data) == 0);
  CHECK(counter_of(target, "received_into_caller_bytes") == before + sizeof data);
  /* It lies in memory of the program, so it cannot be sent as it is. */
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_send(target, 7, key, key_size, ended->tensors[0]));
  outcome_free(ended);
  await_count(&given.times, 1);

  /* The same without a callback, for a size that fits and one that does not. */
  for (size_t size = sizeof data; size >= sizeof data - 4; size -= 4) {
    sent = floats(data, COUNT);
    OK(grpcxx_engine_send(source, 7, key, key_size, sent));
    grpcxx_tensor_release(sent);
    char *memory = malloc(size);
    grpcxx_call *call = grpcxx_call_new();
    OK(grpcxx_call_set_memory(call, 0, memory, 1));
    OK(grpcxx_call_set_memory(call, 0, memory, size));
    grpcxx_recv_tensor(peer, call, 7, key, key_size, NULL, NULL, NULL, NULL);
    OK(grpcxx_call_wait(call, 30000));
    FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_call_set_memory(call, 0, memory, size));
    CHECK(grpcxx_call_num_tensors(call) == 1);
    const void *landed = grpcxx_tensor_data(grpcxx_call_tensor(call, 0));
    CHECK((landed == memory) == (size == sizeof data) && memcmp(landed, data, sizeof data) == 0);
    void *writable = grpcxx_tensor_mutable_data(grpcxx_call_tensor(call, 0));
    CHECK((writable == NULL) == (landed == memory) && (writable == NULL || writable == landed));
    grpcxx_call_release(call);
    free(memory);
  }
}

static void several_tensors_in_one_call(grpcxx_engine *source, grpcxx_peer *peer) {
  char keys[4][256];
  grpcxx_text texts[4];
  const char *names[4] = {"a", "empty", "words", "dead"};
  for (int index = 0; index < 4; index++) {
    texts[index].data = keys[index];
    texts[index].size = key_of(keys[index], sizeof keys[index], source, names[index]);
  }
  int64_t empty = 0, two = 2;
  grpcxx_text words[2] = {{TEXT("x")}, {TEXT("yz")}};
  float data[3] = {1, 2, 3};
  grpcxx_tensor *tensors[4];
  tensors[0] = floats(data, 3);
  OK(grpcxx_tensor_copy_new(GRPCXX_INT32, &empty, 1, false, NULL, 0, &tensors[1]));
  OK(grpcxx_tensor_strings_new(&two, 1, words, 2, &tensors[2]));
  OK(grpcxx_tensor_copy_new(GRPCXX_FLOAT32, &empty, 1, true, NULL, 0, &tensors[3]));
  for (int round = 0; round < 3; round++) {
    for (int index = 0; index < 4; index++) {
      OK(grpcxx_engine_send(source, 8, texts[index].data, texts[index].size, tensors[index]));
    }
    outcome *ended = outcome_new();
    ended->lends_with_release = round == 1;
    ended->leaves_to_engine = round == 2;
    grpcxx_fuse_recv_tensor(peer, NULL, 8, texts, 4, NULL, allocate_here, tensors_done, ended);
    CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_tensors == 4);
    CHECK(ended->times_allocated == 2 && outcome_released(ended) == (round == 1 ? 2 : 0));
    CHECK(memcmp(grpcxx_tensor_data(ended->tensors[0]), data, sizeof data) == 0);
    CHECK(grpcxx_tensor_data_size(ended->tensors[1]) == 0 && grpcxx_tensor_dtype(ended->tensors[1]) == GRPCXX_INT32);
    CHECK(grpcxx_tensor_dtype(ended->tensors[2]) == GRPCXX_STRING && grpcxx_tensor_is_dead(ended->tensors[3]));
    grpcxx_text found[2];
    if (round == 2) {
      OK(grpcxx_tensor_strings(ended->tensors[2], found, 2));
      CHECK(found[1].size == 2 && memcmp(found[1].data, "yz", 2) == 0);
    }
    outcome_free(ended);
  }
  for (int index = 0; index < 4; index++) {
    grpcxx_tensor_release(tensors[index]);
  }
  outcome *ended = outcome_new();
  grpcxx_fuse_recv_tensor(peer, NULL, 8, texts, 0, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INVALID_ARGUMENT);
  outcome_free(ended);
}

static void calls_fail_as_they_should(grpcxx_engine *source, grpcxx_engine *target, grpcxx_peer *peer) {
  float data[200] = {0};
  char key[256];
  size_t key_size = key_of(key, sizeof key, source, "refused");
  grpcxx_tensor *sent = floats(data, 200);
  OK(grpcxx_engine_send(source, 9, key, key_size, sent));
  grpcxx_tensor_release(sent);
  outcome *ended = outcome_new();
  ended->refuses = true;
  grpcxx_recv_tensor(peer, NULL, 9, key, key_size, NULL, allocate_here, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_RESOURCE_EXHAUSTED && strcmp(ended->message, "no room here") == 0);
  outcome_free(ended);

  /* A tensor that nobody sends, until the time is over. */
  grpcxx_call_options options = {.struct_size = sizeof options, .timeout_ms = 50};
  ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 9, key, key_size, &options, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_DEADLINE_EXCEEDED);
  outcome_free(ended);
  options.struct_size = 1;
  ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 9, key, key_size, &options, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INVALID_ARGUMENT);
  outcome_free(ended);

  /* A key that is none, one of another incarnation, one that is not UTF-8. */
  ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 9, TEXT("no key"), NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INVALID_ARGUMENT);
  outcome_free(ended);
  ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 9, "\xff", 1, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INVALID_ARGUMENT);
  outcome_free(ended);
  ended = outcome_new();
  grpcxx_recv_tensor(NULL, NULL, 9, key, key_size, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INVALID_ARGUMENT && strstr(ended->message, "peer") != NULL);
  outcome_free(ended);

  /* Steps that end. */
  for (int round = 0; round < 3; round++) {
    ended = outcome_new();
    grpcxx_recv_tensor(peer, NULL, 10 + round, key, key_size, NULL, NULL, tensors_done, ended);
    if (round == 0) {
      OK(grpcxx_engine_abort_step(source, 10, GRPCXX_DATA_LOSS, TEXT("gone")));
      CHECK(outcome_wait(ended) == GRPCXX_DATA_LOSS && strcmp(ended->message, "gone") == 0);
    } else {
      /* The request may take its time to get there. */
      while (!outcome_is_done(ended)) {
        usleep(20000);
        OK(round == 1 ? grpcxx_engine_cleanup_step(source, 11)
                      : grpcxx_engine_abort_all_steps(source, GRPCXX_CANCELLED, TEXT("all")));
      }
      CHECK(outcome_wait(ended) == (round == 1 ? GRPCXX_ABORTED : GRPCXX_CANCELLED));
    }
    outcome_free(ended);
  }

  /* An engine's own steps, and a peer that is the engine itself. */
  sent = floats(data, 200);
  OK(grpcxx_engine_send(source, 20, key, key_size, sent));
  OK(grpcxx_engine_send(source, 21, key, key_size, sent));
  grpcxx_text text = {key, key_size};
  ended = outcome_new();
  grpcxx_engine_receive(source, NULL, 20, &text, 1, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_tensors == 1);
  CHECK(grpcxx_tensor_data(ended->tensors[0]) == grpcxx_tensor_data(sent));
  CHECK(grpcxx_tensor_mutable_data(sent) == NULL);
  outcome_free(ended);
  grpcxx_peer *own = peer_of(source, source);
  ended = outcome_new();
  grpcxx_recv_tensor(own, NULL, 21, key, key_size, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
  grpcxx_peer_release(own);
  grpcxx_tensor_release(sent);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_send(target, 20, TEXT("no key"), NULL));
}

static void cancelled_calls_end_once(grpcxx_engine *source, grpcxx_peer *peer) {
  char key[256];
  size_t key_size = key_of(key, sizeof key, source, "never");
  grpcxx_call *call = grpcxx_call_new();
  grpcxx_call_cancel(call);
  outcome *ended = outcome_new();
  grpcxx_recv_tensor(peer, call, 30, key, key_size, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_CANCELLED);
  outcome_free(ended);
  /* A call is for one use. */
  ended = outcome_new();
  grpcxx_recv_tensor(peer, call, 30, key, key_size, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_FAILED_PRECONDITION);
  outcome_free(ended);
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_call_wait(call, 1));
  grpcxx_call_release(call);

  for (int round = 0; round < 200; round++) {
    call = grpcxx_call_new();
    ended = outcome_new();
    grpcxx_recv_tensor(peer, call, 30, key, key_size, NULL, NULL, tensors_done, ended);
    if (round % 4 == 0) {
      usleep(500);
    }
    grpcxx_call_cancel(call);
    grpcxx_call_cancel(call);
    CHECK(outcome_wait(ended) == GRPCXX_CANCELLED);
    grpcxx_call_cancel(call);
    grpcxx_call_release(call);
    outcome_free(ended);
  }

  call = grpcxx_call_new();
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_call_wait(call, 1));
  grpcxx_recv_tensor(peer, call, 30, key, key_size, NULL, NULL, NULL, NULL);
  FAILS(GRPCXX_DEADLINE_EXCEEDED, grpcxx_call_wait(call, 20));
  CHECK(!grpcxx_call_is_done(call));
  grpcxx_call_cancel(call);
  FAILS(GRPCXX_CANCELLED, grpcxx_call_wait(call, 0));
  FAILS(GRPCXX_CANCELLED, grpcxx_call_wait(call, 0));
  CHECK(grpcxx_call_is_done(call) && grpcxx_call_num_tensors(call) == 0);
  grpcxx_call_release(call);

  /* Once the peer knows of the cancellations, a tensor is there for the next call. */
  CHECK(message_code(peer, GRPCXX_GET_STATUS, NULL, 0) == GRPCXX_OK);
  usleep(50000);
  float data[1] = {4};
  grpcxx_tensor *sent = floats(data, 1);
  OK(grpcxx_engine_send(source, 30, key, key_size, sent));
  grpcxx_tensor_release(sent);
  ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 30, key, key_size, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
}

/* A call that is cancelled while its data arrives gives the memory back, and touches it no more. */
static void memory_comes_back_when_nobody_writes(grpcxx_engine *source, grpcxx_peer *peer) {
  int64_t bytes = 64 << 20;
  char *data = calloc(1, (size_t)bytes);
  char key[256];
  size_t key_size = key_of(key, sizeof key, source, "large");
  for (int round = 0; round < 4; round++) {
    grpcxx_tensor *sent = NULL;
    released given = {0};
    OK(grpcxx_tensor_new(GRPCXX_UINT8, &bytes, 1, false, data, (size_t)bytes, count_release, &given, &sent));
    OK(grpcxx_engine_send(source, 40 + round, key, key_size, sent));
    grpcxx_tensor_release(sent);
    outcome *ended = outcome_new();
    grpcxx_call *call = grpcxx_call_new();
    pthread_mutex_lock(&ended->lock);
    ended->lends_with_release = round % 2 == 1;
    ended->cancel_when_allocating = call;
    pthread_mutex_unlock(&ended->lock);
    grpcxx_recv_tensor(peer, call, 40 + round, key, key_size, NULL, allocate_here, tensors_done, ended);
    if (round == 2) {
      usleep(2000);
      grpcxx_peer_disconnect(peer);
    }
    int32_t code = outcome_wait(ended);
    CHECK(code == GRPCXX_CANCELLED || code == GRPCXX_UNAVAILABLE || code == GRPCXX_OK);
    for (int waited = 0; ended->lends_with_release && outcome_released(ended) == 0; waited++) {
      CHECK(waited < 60000);
      usleep(1000);
    }
    pthread_mutex_lock(&ended->lock);
    free(ended->memory[0]);
    ended->memory[0] = NULL;
    pthread_mutex_unlock(&ended->lock);
    /* A tensor whose answer was lost is back in its step. */
    for (int waited = 0; atomic_load(&given.times) == 0; waited++) {
      CHECK(waited < 60000);
      OK(grpcxx_engine_cleanup_step(source, 40 + round));
      usleep(1000);
    }
    grpcxx_call_release(call);
    outcome_free(ended);
  }
  free(data);
}

/* Speaks just enough star to begin an answer and to stop in the middle of its payload. */
typedef struct stalled {
  int listener;
  atomic_int answered;
} stalled;

static void *stall(void *user) {
  stalled *self = user;
  int socket = accept(self->listener, NULL, NULL);
  CHECK(socket >= 0);
  uint8_t request[32], body[1024];
  for (;;) {
    uint32_t method = 0;
    uint64_t size = 0;
    if (recv(socket, request, sizeof request, MSG_WAITALL) != (ssize_t)sizeof request) {
      break;
    }
    memcpy(&method, request + 4, sizeof method);
    memcpy(&size, request + 24, sizeof size);
    CHECK(size <= sizeof body && recv(socket, body, (size_t)size, MSG_WAITALL) == (ssize_t)size);
    uint8_t answer[32 + 37 + 100] = {'B', 'B', 'B', 'B'};
    memcpy(answer + 8, request + 8, 8);
    if (method != GRPCXX_RECV_TENSOR) {
      CHECK(send(socket, answer, 32, MSG_NOSIGNAL) == 32);
      continue;
    }
    /* One tensor of a million bytes, of which a hundred come. */
    uint64_t data_size = 1000000, payload = 37 + data_size;
    uint32_t dim = 1000000;
    memcpy(answer + 24, &payload, 8);
    answer[32 + 1] = GRPCXX_UINT8;
    memcpy(answer + 32 + 5, &dim, 4);
    answer[32 + 5 + 13] = GRPCXX_UINT8;
    answer[32 + 5 + 14] = 1;
    answer[32 + 5 + 15] = 1;
    memcpy(answer + 32 + 5 + 16, &data_size, 8);
    memcpy(answer + 32 + 29, &data_size, 8);
    CHECK(send(socket, answer, sizeof answer, MSG_NOSIGNAL) == (ssize_t)sizeof answer);
    atomic_fetch_add(&self->answered, 1);
  }
  close(socket);
  return NULL;
}

static void a_stalled_peer_does_not_keep_memory(grpcxx_engine *target) {
  for (int round = 0; round < 2; round++) {
    stalled stalled = {.listener = socket(AF_INET, SOCK_STREAM, 0)};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    CHECK(bind(stalled.listener, (struct sockaddr *)&address, size) == 0 && listen(stalled.listener, 1) == 0);
    CHECK(getsockname(stalled.listener, (struct sockaddr *)&address, &size) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, stall, &stalled) == 0);
    char name[64];
    snprintf(name, sizeof name, "127.0.0.1:%d", ntohs(address.sin_port));
    grpcxx_peer *peer = NULL;
    OK(grpcxx_peer_new(target, name, strlen(name), &peer));
    grpcxx_call *call = grpcxx_call_new();
    outcome *ended = outcome_new();
    pthread_mutex_lock(&ended->lock);
    ended->lends_with_release = round == 1;
    pthread_mutex_unlock(&ended->lock);
    grpcxx_recv_tensor(peer, call, 1, TEXT("any"), NULL, allocate_here, tensors_done, ended);
    await_count(&stalled.answered, 1);
    usleep(50000);
    grpcxx_call_cancel(call);
    CHECK(outcome_wait(ended) == GRPCXX_CANCELLED);
    if (round == 1) {
      CHECK(outcome_released(ended) == 0);
      grpcxx_peer_disconnect(peer);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    for (int waited = 0; round == 1 && outcome_released(ended) == 0; waited++) {
      CHECK(waited < 60000);
      usleep(1000);
    }
    outcome_free(ended);
    grpcxx_call_release(call);
    grpcxx_peer_release(peer);
    close(stalled.listener);
  }
}

static void dead_peers(grpcxx_engine *target) {
  /* Nobody listens there. */
  grpcxx_engine *gone = engine_of(small_options("ps"));
  grpcxx_peer *peer = peer_of(target, gone);
  char key[256];
  size_t key_size = key_of(key, sizeof key, gone, "x");
  outcome *parked[8];
  for (int index = 0; index < 8; index++) {
    parked[index] = outcome_new();
    grpcxx_recv_tensor(peer, NULL, index, key, key_size, NULL, allocate_here, tensors_done, parked[index]);
  }
  /* Only calls that have a connection can lose it. */
  for (int round = 0; counter_of(gone, "requests") < 8; round++) {
    CHECK(round < 60000);
    usleep(1000);
  }
  grpcxx_engine_free(gone);
  for (int index = 0; index < 8; index++) {
    CHECK(outcome_wait(parked[index]) == GRPCXX_UNAVAILABLE);
    outcome_free(parked[index]);
  }
  grpcxx_call_options options = {.struct_size = sizeof options, .timeout_ms = 200};
  outcome *ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 1, key, key_size, &options, NULL, tensors_done, ended);
  int32_t code = outcome_wait(ended);
  CHECK(code != GRPCXX_OK);
  outcome_free(ended);
  grpcxx_peer_disconnect(peer);
  CHECK(!inspect(peer).is_connected);
  grpcxx_peer_release(peer);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_peer_new(target, TEXT("no-port"), &peer));
}

static void a_lost_connection_ends_its_calls(grpcxx_engine *source, grpcxx_peer *peer) {
  char key[256];
  size_t key_size = key_of(key, sizeof key, source, "lost");
  outcome *ended = outcome_new();
  grpcxx_recv_tensor(peer, NULL, 50, key, key_size, NULL, NULL, tensors_done, ended);
  for (int round = 0; !inspect(peer).is_connected; round++) {
    CHECK(round < 60000);
  }
  grpcxx_peer_disconnect(peer);
  CHECK(outcome_wait(ended) == GRPCXX_UNAVAILABLE);
  outcome_free(ended);
  CHECK(message_code(peer, GRPCXX_GET_STATUS, NULL, 0) == GRPCXX_OK);
}

typedef struct crowd {
  grpcxx_engine *source;
  grpcxx_peer *peer;
  int number;
} crowd;

enum { THREADS = 10, CALLS = 100 };

static void *one_of_many(void *user) {
  crowd *self = user;
  outcome *ended[CALLS];
  float data[CALLS];
  for (int index = 0; index < CALLS; index++) {
    char key[256], name[32];
    snprintf(name, sizeof name, "t%d.%d", self->number, index);
    size_t key_size = key_of(key, sizeof key, self->source, name);
    ended[index] = outcome_new();
    /* The receiver is there before the tensor for every second one. */
    if (index % 2 == 0) {
      grpcxx_recv_tensor(self->peer, NULL, 60, key, key_size, NULL, allocate_here, tensors_done, ended[index]);
    }
    data[index] = (float)(self->number * 1000 + index);
    grpcxx_tensor *sent = floats(&data[index], 1);
    OK(grpcxx_engine_send(self->source, 60, key, key_size, sent));
    grpcxx_tensor_release(sent);
    if (index % 2 == 1) {
      grpcxx_recv_tensor(self->peer, NULL, 60, key, key_size, NULL, allocate_here, tensors_done, ended[index]);
    }
  }
  for (int index = 0; index < CALLS; index++) {
    CHECK(outcome_wait(ended[index]) == GRPCXX_OK);
    float found;
    memcpy(&found, grpcxx_tensor_data(ended[index]->tensors[0]), sizeof found);
    CHECK(found == data[index]);
    outcome_free(ended[index]);
  }
  return NULL;
}

static void many_calls_at_once(grpcxx_engine *source, grpcxx_peer *peer) {
  pthread_t threads[THREADS];
  crowd crowds[THREADS];
  for (int index = 0; index < THREADS; index++) {
    crowds[index] = (crowd){source, peer, index};
    CHECK(pthread_create(&threads[index], NULL, one_of_many, &crowds[index]) == 0);
  }
  for (int index = 0; index < THREADS; index++) {
    CHECK(pthread_join(threads[index], NULL) == 0);
  }
  OK(grpcxx_engine_cleanup_step(source, 60));
}

static void refuses_to_block(void *user, const grpcxx_status *status, const void *data, size_t size) {
  cross();
  (void)status, (void)data, (void)size;
  outcome *self = user;
  grpcxx_call *call = grpcxx_call_new();
  grpcxx_engine *engine = NULL;
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_call_wait(call, 1));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_start(NULL, &engine));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_shutdown(NULL, 1));
  grpcxx_call_release(call);
  pthread_mutex_lock(&self->lock);
  outcome_end(self, NULL);
  pthread_mutex_unlock(&self->lock);
}

static void the_end_of_an_engine(void) {
  grpcxx_engine *source = engine_of(small_options("ps"));
  grpcxx_engine *target = engine_of(small_options("worker"));
  grpcxx_peer *peer = peer_of(target, source);
  char key[256];
  size_t key_size = key_of(key, sizeof key, source, "late");
  outcome *ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_GET_STATUS, NULL, 0, NULL, refuses_to_block, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);

  ended = outcome_new();
  grpcxx_call *call = grpcxx_call_new();
  grpcxx_recv_tensor(peer, NULL, 70, key, key_size, NULL, NULL, tensors_done, ended);
  grpcxx_recv_tensor(peer, call, 70, key, key_size, NULL, NULL, NULL, NULL);
  OK(grpcxx_engine_shutdown(target, 0));
  OK(grpcxx_engine_shutdown(target, 0));
  pthread_mutex_lock(&ended->lock);
  CHECK(ended->times_done == 1 && ended->code == GRPCXX_UNAVAILABLE);
  pthread_mutex_unlock(&ended->lock);
  outcome_free(ended);
  CHECK(grpcxx_call_is_done(call));
  FAILS(GRPCXX_UNAVAILABLE, grpcxx_call_wait(call, 0));
  grpcxx_call_release(call);

  for (int round = 0; round < 2; round++) {
    ended = outcome_new();
    grpcxx_recv_tensor(peer, NULL, 70, key, key_size, NULL, NULL, tensors_done, ended);
    CHECK(outcome_wait(ended) == GRPCXX_UNAVAILABLE);
    outcome_free(ended);
    CHECK(inspect(peer).code == GRPCXX_UNAVAILABLE);
    grpcxx_peer_disconnect(peer);
    if (round == 0) {
      FAILS(GRPCXX_UNAVAILABLE, grpcxx_engine_cleanup_step(target, 1));
      FAILS(GRPCXX_UNAVAILABLE, grpcxx_store_remove(target, NULL, 0));
      CHECK(counter_of(target, "calls") == 0);
      grpcxx_engine_free(target);
    }
  }
  grpcxx_peer_release(peer);
  grpcxx_engine_free(source);
}

static grpcxx_engine *freed_in_callback;

static void free_engine(void *user, const grpcxx_status *status, const void *data, size_t size) {
  cross();
  grpcxx_engine_free(freed_in_callback);
  message_done(user, status, data, size);
}

static void an_engine_may_be_freed_by_its_callback(grpcxx_engine *source) {
  freed_in_callback = engine_of(small_options("worker"));
  grpcxx_peer *peer = peer_of(freed_in_callback, source);
  outcome *ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_GET_STATUS, NULL, 0, NULL, free_engine, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
  for (int round = 0; message_code(peer, GRPCXX_GET_STATUS, NULL, 0) != GRPCXX_UNAVAILABLE; round++) {
    CHECK(round < 10000);
    usleep(1000);
  }
  grpcxx_peer_release(peer);
}

/* Takes long enough for whoever waits for it to sleep. */
static void slow(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  (void)user, (void)request;
  usleep(2000);
  grpcxx_responder_answer_tensors(responder, NULL, 0);
}

static void wait_for_slow(grpcxx_peer *peer) {
  grpcxx_graph_call graph_call = {.struct_size = sizeof graph_call, .handle = {TEXT("slow")}};
  grpcxx_call *call = grpcxx_call_new();
  grpcxx_graph_call_begin(peer, call, &graph_call, NULL, NULL, NULL, NULL);
  OK(grpcxx_call_wait(call, 20000));
  grpcxx_call_release(call);
}

/* Waits for calls until it is cancelled, which happens nowhere in between. */
static void *wait_for_ever(void *user) {
  for (;;) {
    wait_for_slow(user);
    pthread_testcancel();
  }
  return NULL;
}

/* A thread that waits has locks of the engine, whose shard it turns. */
static void a_cancelled_thread_leaves_no_lock(grpcxx_engine *source) {
  grpcxx_options *options = grpcxx_options_new();
  OK(grpcxx_options_set_task(options, TEXT("caller"), 0));
  grpcxx_engine *caller = NULL;
  OK(grpcxx_engine_start(options, &caller));
  grpcxx_options_free(options);
  grpcxx_peer *peer = peer_of(caller, source);
  OK(grpcxx_function_register(source, TEXT("slow"), slow, NULL, NULL));
  for (int round = 0; round < 20; round++) {
    pthread_t thread;
    void *result = NULL;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, peer) == 0);
    usleep((useconds_t)(3000 + round * 137));
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    wait_for_slow(peer);
  }
  grpcxx_peer_release(peer);
  grpcxx_engine_free(caller);
}

int main(void) {
  CHECK(grpcxx_abi_version() == GRPCXX_ABI_VERSION && strlen(grpcxx_version()) >= 5);
  tensors_keep_what_they_were_given();
  grpcxx_engine *source = engine_of(small_options("ps"));
  grpcxx_engine *target = engine_of(small_options("worker"));
  grpcxx_peer *peer = peer_of(target, source);
  engines_say_what_they_are(source);
  messages_and_features(peer);
  tensors_land_where_the_caller_says(source, target, peer);
  several_tensors_in_one_call(source, peer);
  calls_fail_as_they_should(source, target, peer);
  cancelled_calls_end_once(source, peer);
  memory_comes_back_when_nobody_writes(source, peer);
  a_lost_connection_ends_its_calls(source, peer);
  dead_peers(target);
  a_stalled_peer_does_not_keep_memory(target);
  many_calls_at_once(source, peer);
  a_cancelled_thread_leaves_no_lock(source);
  an_engine_may_be_freed_by_its_callback(source);
  CHECK(counter_of(target, "calls") > 1000 && counter_of(source, "violations") == 0);
  grpcxx_peer_release(peer);
  grpcxx_engine_free(target);
  grpcxx_engine_free(source);
  the_end_of_an_engine();
  puts("calls: ok");
  return 0;
}
