/* Services, functions, the store, maps, facts and the log, and every function with NULL. */
#include "support.h"

/* ---- A service that answers in every way ------------------------------------------------------------------------ */

enum { PARKED_MAX = 1024 };

typedef struct waiting {
  grpcxx_responder *responder;
  grpcxx_request *request;
} waiting;

typedef struct service {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  waiting parked[PARKED_MAX];
  int num_parked;
  int declined;
  int cancelled;
  int contexts_freed;
  int users_freed;
  released given;
  float data[300];
} service;

static service *service_new(void) {
  service *made = calloc(1, sizeof *made);
  pthread_mutex_init(&made->lock, NULL);
  pthread_cond_init(&made->changed, NULL);
  pthread_mutex_lock(&made->lock);
  for (int index = 0; index < 300; index++) {
    made->data[index] = (float)index;
  }
  pthread_mutex_unlock(&made->lock);
  return made;
}

static void service_freed(void *user) {
  cross();
  service *self = user;
  pthread_mutex_lock(&self->lock);
  self->users_freed++;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
}

static void await_number(service *self, const int *number, int wanted) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 60;
  pthread_mutex_lock(&self->lock);
  while (*number < wanted) {
    CHECK(pthread_cond_timedwait(&self->changed, &self->lock, &until) != ETIMEDOUT);
  }
  CHECK(*number == wanted);
  pthread_mutex_unlock(&self->lock);
}

static bool is_named(const char *text, size_t size, const char *name) {
  return size == strlen(name) && memcmp(text, name, size) == 0;
}

static void request_cancelled(void *context) {
  cross();
  service *self = context;
  pthread_mutex_lock(&self->lock);
  self->cancelled++;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
}

static void context_freed(void *context) {
  cross();
  service *self = context;
  pthread_mutex_lock(&self->lock);
  self->contexts_freed++;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
}

static void answer_floats(service *self, grpcxx_responder *responder, size_t times) {
  grpcxx_tensor *tensor = floats_over(self->data, 300, &self->given);
  grpcxx_tensor *tensors[4] = {tensor, tensor, tensor, tensor};
  CHECK(times <= 4);
  grpcxx_responder_answer_tensors(responder, tensors, times);
  grpcxx_tensor_release(tensor);
}

static void park(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  service *self = user;
  pthread_mutex_lock(&self->lock);
  CHECK(self->num_parked < PARKED_MAX);
  self->parked[self->num_parked].responder = responder;
  self->parked[self->num_parked++].request = grpcxx_request_retain(request);
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->lock);
}

static int32_t serve(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  cross();
  service *self = user;
  size_t size = 0;
  int32_t method = grpcxx_request_method(request);
  if (method == GRPCXX_RUN_GRAPH) {
    const void *body = grpcxx_request_message(request, &size);
    grpcxx_responder_answer_message(responder, body, size);
    return GRPCXX_TAKEN;
  }
  if (method == GRPCXX_REGISTER_GRAPH) {
    grpcxx_responder_answer_tensors(responder, NULL, 0);
    return GRPCXX_DECLINED; /* An answer counts more than what is returned. */
  }
  const char *name = method == GRPCXX_STAR_RUN_GRAPH ? grpcxx_request_handle(request, &size)
                                                     : grpcxx_request_key(request, 0, &size);
  if (name == NULL) {
    CHECK(grpcxx_request_message(request, NULL) != NULL || method == GRPCXX_GET_STATUS);
    pthread_mutex_lock(&self->lock);
    self->declined++;
    pthread_mutex_unlock(&self->lock);
    return GRPCXX_DECLINED;
  }
  if (is_named(name, size, "now")) {
    CHECK(grpcxx_request_step_id(request) == 5 && grpcxx_request_num_keys(request) >= 1);
    CHECK(grpcxx_request_key(request, grpcxx_request_num_keys(request), &size) == NULL && size == 0);
    CHECK(grpcxx_request_handle(request, NULL) == NULL && grpcxx_request_num_feeds(request) == 0);
    answer_floats(self, responder, grpcxx_request_num_keys(request));
  } else if (is_named(name, size, "error")) {
    grpcxx_responder_answer_error(responder, GRPCXX_DATA_LOSS, TEXT("as asked"));
  } else if (is_named(name, size, "dropped")) {
    grpcxx_responder_free(responder);
  } else if (is_named(name, size, "wrong number")) {
    answer_floats(self, responder, 2);
  } else if (is_named(name, size, "wrong kind")) {
    grpcxx_responder_answer_message(responder, "x", 1);
  } else if (is_named(name, size, "park") || is_named(name, size, "watch")) {
    if (is_named(name, size, "watch")) {
      grpcxx_responder_on_cancel(responder, request_cancelled, context_freed, self);
    }
    park(self, request, responder);
  } else {
    pthread_mutex_lock(&self->lock);
    self->declined++;
    pthread_mutex_unlock(&self->lock);
    return GRPCXX_DECLINED;
  }
  return GRPCXX_TAKEN;
}

static waiting unpark(service *self) {
  pthread_mutex_lock(&self->lock);
  CHECK(self->num_parked > 0);
  waiting found = self->parked[--self->num_parked];
  pthread_mutex_unlock(&self->lock);
  return found;
}

static outcome *ask(grpcxx_peer *peer, grpcxx_call *call, const char *key) {
  outcome *ended = outcome_new();
  grpcxx_recv_tensor(peer, call, 5, key, strlen(key), NULL, allocate_here, tensors_done, ended);
  return ended;
}

static void expect(grpcxx_peer *peer, const char *key, int32_t code) {
  outcome *ended = ask(peer, NULL, key);
  if (outcome_wait(ended) != code) {
    fprintf(stderr, "%s: %s %s\n", key, grpcxx_code_name(ended->code), ended->message);
    abort();
  }
  outcome_free(ended);
}

static void services_answer_in_every_way(service *self, grpcxx_engine *caller, grpcxx_peer *peer) {
  outcome *ended = ask(peer, NULL, "now");
  CHECK(outcome_wait(ended) == GRPCXX_OK && memcmp(ended->memory[0], self->data, sizeof self->data) == 0);
  outcome_free(ended);
  await_count(&self->given.times, 1);
  CHECK(atomic_load(&self->given.times_delivered) == 1);
  grpcxx_text keys[3] = {{TEXT("now")}, {TEXT("b")}, {TEXT("c")}};
  ended = outcome_new();
  grpcxx_fuse_recv_tensor(peer, NULL, 5, keys, 3, NULL, allocate_here, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_tensors == 3 && ended->times_allocated == 3);
  outcome_free(ended);
  await_count(&self->given.times, 2);
  CHECK(atomic_load(&self->given.times_delivered) == 2);

  expect(peer, "error", GRPCXX_DATA_LOSS);
  expect(peer, "dropped", GRPCXX_INTERNAL);
  expect(peer, "wrong number", GRPCXX_INTERNAL);
  expect(peer, "wrong kind", GRPCXX_INTERNAL);
  expect(peer, "no key of this task", GRPCXX_INVALID_ARGUMENT);
  await_count(&self->given.times, 3);
  CHECK(atomic_load(&self->given.times_delivered) == 2);

  ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_RUN_GRAPH, "\x08\x01", 2, NULL, message_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_bytes == 2);
  outcome_free(ended);
  ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_REGISTER_GRAPH, NULL, 0, NULL, message_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INTERNAL);
  outcome_free(ended);
  ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_GET_STATUS, NULL, 0, NULL, message_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_bytes > 0);
  outcome_free(ended);

  /* Later, from this thread. */
  ended = ask(peer, NULL, "park");
  await_number(self, &self->num_parked, 1);
  waiting parked = unpark(self);
  size_t size = 0;
  CHECK(is_named(grpcxx_request_key(parked.request, 0, &size), 4, "park") && size == 4);
  CHECK(!grpcxx_responder_is_cancelled(parked.responder));
  answer_floats(self, parked.responder, 1);
  grpcxx_request_release(parked.request);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
  await_count(&self->given.times, 4);
  CHECK(counter_of(caller, "violations") == 0);
}

/* A peer gives up what is parked. Whoever serves it hears so once, and answers in vain. */
static waiting given_up(service *self, grpcxx_call *call, outcome *ended) {
  int cancelled = self->cancelled, freed = self->contexts_freed;
  await_number(self, &self->num_parked, 1);
  CHECK(!grpcxx_responder_is_cancelled(self->parked[0].responder));
  grpcxx_call_cancel(call);
  CHECK(outcome_wait(ended) == GRPCXX_CANCELLED);
  outcome_free(ended);
  grpcxx_call_release(call);
  await_number(self, &self->cancelled, cancelled + 1);
  await_number(self, &self->contexts_freed, freed + 1);
  waiting parked = unpark(self);
  CHECK(grpcxx_responder_is_cancelled(parked.responder));
  return parked;
}

static void services_hear_that_nobody_waits(service *self, grpcxx_peer *peer) {
  /* The peer gives up; its service hears so and answers in vain. */
  int cancelled = self->cancelled, freed = self->contexts_freed;
  int given = atomic_load(&self->given.times), delivered = atomic_load(&self->given.times_delivered);
  grpcxx_call *call = grpcxx_call_new();
  outcome *ended = ask(peer, call, "watch");
  waiting parked = given_up(self, call, ended);
  /* Whoever asks too late hears it at once. */
  grpcxx_responder_on_cancel(parked.responder, request_cancelled, context_freed, self);
  await_number(self, &self->cancelled, cancelled + 2);
  await_number(self, &self->contexts_freed, freed + 2);
  answer_floats(self, parked.responder, 1);
  grpcxx_request_release(parked.request);
  await_count(&self->given.times, given + 1);
  CHECK(atomic_load(&self->given.times_delivered) == delivered);

  /* The connection goes. */
  ended = ask(peer, NULL, "watch");
  await_number(self, &self->num_parked, 1);
  grpcxx_peer_disconnect(peer);
  CHECK(outcome_wait(ended) == GRPCXX_UNAVAILABLE);
  outcome_free(ended);
  await_number(self, &self->cancelled, cancelled + 3);
  parked = unpark(self);
  grpcxx_responder_free(parked.responder);
  grpcxx_request_release(parked.request);

  /* The deadline is over, which the peer of a grpcxx engine knows. */
  grpcxx_call_options options = {.struct_size = sizeof options, .timeout_ms = 100};
  ended = outcome_new();
  expect(peer, "now", GRPCXX_OK);
  grpcxx_recv_tensor(peer, NULL, 5, TEXT("watch"), &options, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_DEADLINE_EXCEEDED);
  outcome_free(ended);
  await_number(self, &self->cancelled, cancelled + 4);
  parked = unpark(self);
  grpcxx_responder_answer_error(parked.responder, GRPCXX_OK, NULL, 0);
  grpcxx_request_release(parked.request);

  /* An answer in time: the context is freed, and nothing is cancelled. */
  ended = ask(peer, NULL, "watch");
  await_number(self, &self->num_parked, 1);
  parked = unpark(self);
  answer_floats(self, parked.responder, 1);
  grpcxx_request_release(parked.request);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
  await_number(self, &self->contexts_freed, freed + 5);
  CHECK(self->cancelled == cancelled + 4);
}

/* An answer that is too large for the socket's buffers is lost with the connection, and says so. */
static void lost_answers_are_told(service *self, grpcxx_engine *server, grpcxx_peer *peer) {
  int64_t bytes = 256 << 20;
  char *data = calloc(1, (size_t)bytes);
  uint64_t restored = counter_of(server, "restored");
  for (int round = 0; round < 2; round++) {
    released given = {0};
    grpcxx_tensor *tensor = NULL;
    OK(grpcxx_tensor_new(GRPCXX_UINT8, &bytes, 1, false, data, (size_t)bytes, count_release, &given, &tensor));
    outcome *ended = ask(peer, NULL, "park");
    await_number(self, &self->num_parked, 1);
    waiting parked = unpark(self);
    if (round == 0) {
      grpcxx_peer_disconnect(peer);
    }
    grpcxx_responder_answer_tensors(parked.responder, &tensor, 1);
    grpcxx_request_release(parked.request);
    grpcxx_tensor_release(tensor);
    CHECK(outcome_wait(ended) == (round == 0 ? GRPCXX_UNAVAILABLE : GRPCXX_OK));
    outcome_free(ended);
    await_count(&given.times, 1);
    CHECK(atomic_load(&given.times_delivered) == round);
  }
  CHECK(counter_of(server, "restored") == restored);
  free(data);
}

typedef struct answering {
  service *service;
  atomic_bool stops;
} answering;

static void *answer_all(void *user) {
  answering *self = user;
  while (!atomic_load(&self->stops)) {
    pthread_mutex_lock(&self->service->lock);
    bool found = self->service->num_parked > 0;
    pthread_mutex_unlock(&self->service->lock);
    if (found) {
      waiting parked = unpark(self->service);
      answer_floats(self->service, parked.responder, 1);
      grpcxx_request_release(parked.request);
    } else {
      usleep(100);
    }
  }
  return NULL;
}

/* Cancellations race with answers; each call ends once, and each tensor comes back once. */
static void cancels_race_with_answers(service *self, grpcxx_peer *peer) {
  answering answering = {.service = self};
  pthread_t thread;
  int given = atomic_load(&self->given.times), ok = 0;
  CHECK(pthread_create(&thread, NULL, answer_all, &answering) == 0);
  for (int round = 0; round < 50; round++) {
    outcome *ended[8];
    grpcxx_call *calls[8];
    for (int index = 0; index < 8; index++) {
      calls[index] = grpcxx_call_new();
      ended[index] = ask(peer, calls[index], index % 2 == 0 ? "watch" : "park");
    }
    usleep((useconds_t)(round * 10));
    for (int index = 0; index < 8; index++) {
      grpcxx_call_cancel(calls[index]);
    }
    for (int index = 0; index < 8; index++) {
      int32_t code = outcome_wait(ended[index]);
      CHECK(code == GRPCXX_OK || code == GRPCXX_CANCELLED);
      ok += code == GRPCXX_OK;
      outcome_free(ended[index]);
      grpcxx_call_release(calls[index]);
    }
  }
  expect(peer, "now", GRPCXX_OK);
  for (bool waits = true; waits;) {
    usleep(1000);
    pthread_mutex_lock(&self->lock);
    waits = self->num_parked > 0;
    pthread_mutex_unlock(&self->lock);
  }
  atomic_store(&answering.stops, true);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK(atomic_load(&self->given.times) >= given + ok);
}

/* ---- Functions and the store -------------------------------------------------------------------------------------- */

/* Returns its feeds under the names of the fetches, from a thread of its own. */
typedef struct echoing {
  grpcxx_request *request;
  grpcxx_responder *responder;
} echoing;

static void *echo_later(void *user) {
  echoing *self = user;
  grpcxx_tensor *tensors[8];
  size_t count = grpcxx_request_num_fetches(self->request);
  CHECK(count <= 8 && count == grpcxx_request_num_feeds(self->request));
  CHECK(grpcxx_request_should_trace(self->request) && grpcxx_request_ps_graph_count(self->request) == 0);
  for (size_t index = 0; index < count; index++) {
    size_t feed_size = 0, fetch_size = 0;
    CHECK(grpcxx_request_feed_name(self->request, index, &feed_size) != NULL && feed_size > 0);
    CHECK(grpcxx_request_fetch_name(self->request, index, &fetch_size) != NULL && fetch_size > 0);
    tensors[index] = grpcxx_request_feed(self->request, index);
  }
  CHECK(grpcxx_request_feed(self->request, count) == NULL);
  CHECK(grpcxx_request_feed_name(self->request, count, NULL) == NULL);
  CHECK(grpcxx_request_fetch_name(self->request, count, NULL) == NULL);
  grpcxx_responder_answer_tensors(self->responder, tensors, count);
  grpcxx_request_release(self->request);
  free(self);
  return NULL;
}

static void echo(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  cross();
  CHECK(user != NULL);
  echoing *job = malloc(sizeof *job);
  *job = (echoing){grpcxx_request_retain(request), responder};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, echo_later, job) == 0);
  pthread_detach(thread);
}

static void functions_answer_from_any_thread(service *self, grpcxx_engine *server, grpcxx_peer *peer) {
  OK(grpcxx_function_register(server, TEXT("echo"), echo, self, service_freed));
  float data[1000] = {7, 8, 9};
  grpcxx_tensor *feeds[2] = {floats(data, 1000), floats(data, 3)};
  grpcxx_text feed_names[2] = {{TEXT("x")}, {TEXT("y")}};
  grpcxx_text fetch_names[2] = {{TEXT("second")}, {TEXT("first")}};
  grpcxx_graph_call graph_call = {
      .struct_size = sizeof graph_call,
      .handle = {TEXT("echo")},
      .feed_names = feed_names,
      .feeds = feeds,
      .num_feeds = 2,
      .fetch_names = fetch_names,
      .num_fetches = 2,
      .should_trace = true,
  };
  outcome *ended = outcome_new();
  grpcxx_graph_call_begin(peer, NULL, &graph_call, NULL, allocate_here, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->num_tensors == 2 && ended->times_allocated == 2);
  CHECK(ended->memory_sizes[0] == sizeof data && ended->memory_sizes[1] == 12);
  CHECK(memcmp(ended->memory[0], data, sizeof data) == 0 && memcmp(ended->memory[1], data, 12) == 0);
  outcome_free(ended);

  graph_call.handle = (grpcxx_text){TEXT("unknown")};
  ended = outcome_new();
  grpcxx_graph_call_begin(peer, NULL, &graph_call, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_NOT_FOUND);
  outcome_free(ended);
  feeds[1] = (grpcxx_tensor_release(feeds[1]), NULL);
  ended = outcome_new();
  grpcxx_graph_call_begin(peer, NULL, &graph_call, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INVALID_ARGUMENT);
  outcome_free(ended);
  ended = outcome_new();
  grpcxx_graph_call_begin(peer, NULL, NULL, NULL, NULL, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_INVALID_ARGUMENT);
  outcome_free(ended);
  grpcxx_tensor_release(feeds[0]);

  OK(grpcxx_function_register(server, TEXT("echo"), echo, self, service_freed));
  await_number(self, &self->users_freed, 1);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_function_register(server, TEXT("none"), NULL, self, service_freed));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_function_register(NULL, TEXT("echo"), echo, self, service_freed));
  CHECK(self->users_freed == 1);
}

static void hold(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  grpcxx_responder_on_cancel(responder, request_cancelled, context_freed, user);
  park(user, request, responder);
}

static void give(void *user, grpcxx_request *request, grpcxx_responder *responder) {
  (void)request;
  answer_floats(user, responder, 1);
}

static outcome *run_function(grpcxx_peer *peer, grpcxx_call *call, const char *name) {
  grpcxx_text fetch_name = {TEXT("y")};
  grpcxx_graph_call graph_call = {
      .struct_size = sizeof graph_call,
      .handle = {name, strlen(name)},
      .fetch_names = &fetch_name,
      .num_fetches = 1,
  };
  outcome *ended = outcome_new();
  grpcxx_graph_call_begin(peer, call, &graph_call, NULL, allocate_here, tensors_done, ended);
  return ended;
}

/* As services do: what becomes of requests, and of the memory in answers. */
static void functions_hear_what_becomes_of_their_requests(service *self, grpcxx_engine *server, grpcxx_peer *peer) {
  OK(grpcxx_function_register(server, TEXT("hold"), hold, self, NULL));
  OK(grpcxx_function_register(server, TEXT("give"), give, self, NULL));
  int given = atomic_load(&self->given.times), delivered = atomic_load(&self->given.times_delivered);
  grpcxx_call *call = grpcxx_call_new();
  outcome *ended = run_function(peer, call, "hold");
  waiting parked = given_up(self, call, ended);
  answer_floats(self, parked.responder, 1);
  grpcxx_request_release(parked.request);
  await_count(&self->given.times, given + 1);
  CHECK(atomic_load(&self->given.times_delivered) == delivered);
  ended = run_function(peer, NULL, "give");
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
  await_count(&self->given.times, given + 2);
  CHECK(atomic_load(&self->given.times_delivered) == delivered + 1);
}

/* Whoever asks for the first time once the engine has stopped hears it, too. */
static void nobody_waits_behind_the_end_of_an_engine(service *self) {
  grpcxx_engine *server = engine_of(small_options("ps")), *caller = engine_of(small_options("worker"));
  grpcxx_peer *peer = peer_of(caller, server);
  OK(grpcxx_function_register(server, TEXT("park"), park, self, NULL));
  outcome *ended = run_function(peer, NULL, "park");
  await_number(self, &self->num_parked, 1);
  OK(grpcxx_engine_shutdown(server, 0));
  waiting parked = unpark(self);
  CHECK(grpcxx_responder_is_cancelled(parked.responder));
  grpcxx_responder_free(parked.responder);
  grpcxx_request_release(parked.request);
  CHECK(outcome_wait(ended) != GRPCXX_OK);
  outcome_free(ended);
  grpcxx_peer_release(peer);
  grpcxx_engine_free(caller);
  grpcxx_engine_free(server);
}

static void count_stored(void *user, const char *name, size_t name_size, grpcxx_tensor *tensor) {
  CHECK(name_size == 1 && (name[0] == 'v' || name[0] == 'w') && grpcxx_tensor_rank(tensor) == 1);
  (*(int *)user)++;
}

static void the_store_holds_tensors(grpcxx_engine *server, grpcxx_peer *peer) {
  float data[4] = {1, 2, 3, 4};
  grpcxx_text names[2] = {{TEXT("w")}, {TEXT("v")}};
  grpcxx_tensor *tensors[2] = {floats(data, 4), floats(data, 2)};
  OK(grpcxx_store_put(server, names, tensors, 2));
  grpcxx_tensor *found = NULL;
  OK(grpcxx_store_fetch(server, TEXT("w"), &found));
  CHECK(grpcxx_tensor_data(found) == grpcxx_tensor_data(tensors[0]));
  grpcxx_tensor_release(found);
  FAILS(GRPCXX_NOT_FOUND, grpcxx_store_fetch(server, TEXT("x"), &found));
  int count = 0;
  grpcxx_store_list(server, count_stored, &count);
  CHECK(count == 2);
  grpcxx_graph_call pull = {
      .struct_size = sizeof pull, .handle = {TEXT("grpcxx.store.pull")}, .fetch_names = names, .num_fetches = 2};
  outcome *ended = outcome_new();
  grpcxx_graph_call_begin(peer, NULL, &pull, NULL, allocate_here, tensors_done, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK && ended->memory_sizes[0] == 16 && ended->memory_sizes[1] == 8);
  outcome_free(ended);
  OK(grpcxx_store_remove(server, names, 1));
  count = 0;
  grpcxx_store_list(server, count_stored, &count);
  CHECK(count == 1);
  tensors[1] = (grpcxx_tensor_release(tensors[1]), NULL);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_store_put(server, names, tensors, 2));
  grpcxx_tensor_release(tensors[0]);
}

/* ---- Maps, facts, the log ------------------------------------------------------------------------------------------ */

static void endpoint_maps_are_read(void) {
  char path[] = "/tmp/grpcxx-capi-XXXXXX";
  int file = mkstemp(path);
  CHECK(file >= 0);
  const char *content = "# comment\n127.0.0.1:2222=127.0.0.1:3333\nhost:1=nonsense\n";
  CHECK(write(file, content, strlen(content)) == (ssize_t)strlen(content));
  grpcxx_endpoint_map *map = NULL;
  OK(grpcxx_endpoint_map_new(path, strlen(path), &map));
  CHECK(strcmp(grpcxx_endpoint_map_path(map), path) == 0 && grpcxx_endpoint_map_size(map) == 2);
  const char *value = NULL;
  CHECK(strcmp(grpcxx_endpoint_map_entry(map, 0, &value), "127.0.0.1:2222") == 0);
  CHECK(strcmp(value, "127.0.0.1:3333") == 0 && grpcxx_endpoint_map_entry(map, 2, &value) == NULL && value == NULL);
  OK(grpcxx_endpoint_map_star_address(map, TEXT("127.0.0.1:2222"), &value));
  CHECK(strcmp(value, "127.0.0.1:3333") == 0);
  FAILS(GRPCXX_NOT_FOUND, grpcxx_endpoint_map_star_address(map, TEXT("localhost:2222"), &value));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_endpoint_map_star_address(map, TEXT("host:1"), &value));
  grpcxx_endpoint_map_free(map);
  map = NULL;
  CHECK(write(file, "no sign\n", 8) == 8);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_endpoint_map_new(path, strlen(path), &map));
  close(file);
  unlink(path);
  FAILS(GRPCXX_NOT_FOUND, grpcxx_endpoint_map_new(path, strlen(path), &map));
  CHECK(setenv("TF_SEASTAR_ENDPOINT_MAP_PATH", "/nowhere", 1) == 0);
  FAILS(GRPCXX_NOT_FOUND, grpcxx_endpoint_map_new(NULL, 0, &map));
  CHECK(unsetenv("TF_SEASTAR_ENDPOINT_MAP_PATH") == 0 && map == NULL);
}

static void fact_seen(void *user, const char *name, const char *value) {
  CHECK(strlen(name) > 0 && strlen(value) > 0);
  if (strcmp(name, "driver") == 0) {
    CHECK(strcmp(value, "io_uring") == 0 || strcmp(value, "epoll") == 0);
  }
  (*(int *)user)++;
}

static void variable_seen(void *user, const char *name, const char *default_value, const char *unit,
                          const char *reader, const char *meaning) {
  CHECK(strlen(name) > 0 && default_value != NULL && unit != NULL && strlen(reader) > 0 && strlen(meaning) > 0);
  (*(int *)user)++;
}

static void counter_seen(void *user, const char *name, const char *meaning, uint64_t value) {
  (void)value;
  CHECK(strlen(name) > 0 && strlen(meaning) > 0);
  (*(int *)user)++;
}

typedef struct lines {
  atomic_int count;
  atomic_int started;
} lines;

static void line_seen(void *user, int32_t level, const char *target, const char *message) {
  cross();
  lines *self = user;
  CHECK(level >= GRPCXX_LOG_ERROR && level <= GRPCXX_LOG_INFO && strncmp(target, "grpcxx", 6) == 0);
  atomic_fetch_add(&self->started, strstr(message, "shards=2") != NULL ? 1 : 0);
  atomic_fetch_add(&self->count, 1);
}

static void facts_and_log(grpcxx_engine *server) {
  int facts = 0, variables = 0, counters = 0;
  grpcxx_facts(fact_seen, &facts);
  grpcxx_variables(variable_seen, &variables);
  grpcxx_engine_counters(server, counter_seen, &counters);
  CHECK(facts >= 10 && variables >= 30 && counters >= 14);
  lines seen = {0};
  grpcxx_log_set(GRPCXX_LOG_INFO, line_seen, &seen);
  grpcxx_engine_free(engine_of(small_options("ps")));
  CHECK(atomic_load(&seen.started) == 1);
  grpcxx_log_set(0, NULL, NULL);
  int before = atomic_load(&seen.count);
  grpcxx_engine_free(engine_of(small_options("ps")));
  CHECK(atomic_load(&seen.count) == before);
}

/* A function that does not return until it is let go. */
static void line_held(void *user, int32_t level, const char *target, const char *message) {
  (void)level, (void)target, (void)message;
  cross();
  lines *self = user;
  atomic_fetch_add(&self->started, 1);
  while (atomic_load(&self->count) == 0) usleep(1000);
}

static void a_log_that_hangs_stops_nothing(void) {
  lines held = {0};
  lines seen = {0};
  cross();
  grpcxx_log_set(GRPCXX_LOG_INFO, line_held, &held);
  grpcxx_engine_free(engine_of(small_options("ps")));
  CHECK(atomic_load(&held.started) == 1);
  grpcxx_log_set(GRPCXX_LOG_INFO, line_seen, &seen);
  atomic_store(&held.count, 1);
  grpcxx_engine_free(engine_of(small_options("ps")));
  CHECK(atomic_load(&held.started) == 1 && atomic_load(&seen.started) == 1);
  grpcxx_log_set(0, NULL, NULL);
}

/* ---- NULL ------------------------------------------------------------------------------------------------------------ */

static void freed_once(void *context) { (*(int *)context)++; }

static void every_function_takes_null(void) {
  CHECK(grpcxx_status_code(NULL) == GRPCXX_OK && strcmp(grpcxx_status_message(NULL, NULL), "") == 0);
  grpcxx_status_free(NULL);
  grpcxx_status *status = grpcxx_status_new(GRPCXX_ABORTED, NULL, 0);
  CHECK(grpcxx_status_code(status) == GRPCXX_ABORTED && strlen(grpcxx_status_message(status, NULL)) > 0);
  grpcxx_status_free(status);
  FAILS(GRPCXX_UNKNOWN, grpcxx_status_new(99, TEXT("x")));
  FAILS(GRPCXX_ABORTED, grpcxx_status_new(GRPCXX_ABORTED, NULL, 5));
  CHECK(strcmp(grpcxx_code_name(-5), "UNKNOWN") == 0);

  grpcxx_tensor_release(grpcxx_tensor_retain(NULL));
  CHECK(grpcxx_tensor_dtype(NULL) == 0 && grpcxx_tensor_rank(NULL) == 0 && grpcxx_tensor_dims(NULL) == NULL);
  CHECK(!grpcxx_tensor_is_dead(NULL) && grpcxx_tensor_num_elements(NULL) == 0);
  CHECK(grpcxx_tensor_mutable_data(NULL) == NULL);
  CHECK(grpcxx_tensor_data(NULL) == NULL && grpcxx_tensor_data_size(NULL) == 0);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_strings(NULL, NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_new(1, NULL, 0, false, "1234", 4, NULL, NULL, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_copy_new(1, NULL, 0, false, "1234", 4, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_tensor_strings_new(NULL, 0, NULL, 1, NULL));

  grpcxx_options_free(NULL);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_task(NULL, TEXT("x"), 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_num_tasks(NULL, 1));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_listen(NULL, NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_variable(NULL, NULL, 0, NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_add_device(NULL, NULL, 0, NULL, 0, 0, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_service(NULL, NULL, NULL, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_metrics(NULL, NULL, NULL, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_set_prepare(NULL, NULL, NULL, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_start(NULL, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_shutdown(NULL, 0));
  grpcxx_engine_free(NULL);
  CHECK(grpcxx_engine_star_address(NULL) == NULL && grpcxx_engine_star_port(NULL) == 0);
  CHECK(grpcxx_engine_metrics_address(NULL) == NULL);
  CHECK(grpcxx_engine_start_report(NULL) == NULL && grpcxx_engine_task(NULL) == NULL);
  CHECK(grpcxx_engine_device(NULL, 0, NULL) == NULL && !grpcxx_engine_counter(NULL, "calls", NULL));
  grpcxx_engine_counters(NULL, NULL, NULL);

  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_peer_new(NULL, NULL, 0, NULL));
  grpcxx_peer_release(grpcxx_peer_retain(NULL));
  CHECK(grpcxx_peer_address(NULL) == NULL);
  grpcxx_peer_inspect(NULL, NULL, NULL);
  grpcxx_peer_disconnect(NULL);

  grpcxx_call_release(grpcxx_call_retain(NULL));
  grpcxx_call_cancel(NULL);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_call_wait(NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_call_set_memory(NULL, 0, NULL, 0));
  CHECK(!grpcxx_call_is_done(NULL) && grpcxx_call_num_tensors(NULL) == 0 && grpcxx_call_tensor(NULL, 0) == NULL);
  CHECK(grpcxx_call_message(NULL, NULL) == NULL);
  grpcxx_recv_tensor(NULL, NULL, 0, NULL, 0, NULL, NULL, NULL, NULL);
  grpcxx_fuse_recv_tensor(NULL, NULL, 0, NULL, 0, NULL, NULL, NULL, NULL);
  grpcxx_message_call(NULL, NULL, 0, NULL, 0, NULL, NULL, NULL);
  grpcxx_graph_call_begin(NULL, NULL, NULL, NULL, NULL, NULL, NULL);
  grpcxx_engine_receive(NULL, NULL, 0, NULL, 0, NULL, NULL, NULL);
  for (int which = 0; which < 2; which++) {
    grpcxx_call *call = grpcxx_call_new();
    if (which == 0) {
      grpcxx_recv_tensor(NULL, call, 0, NULL, 0, NULL, NULL, NULL, NULL);
    } else {
      grpcxx_engine_receive(NULL, call, 0, NULL, 0, NULL, NULL, NULL);
    }
    FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_call_wait(call, 0));
    grpcxx_call_release(call);
  }

  grpcxx_request_release(grpcxx_request_retain(NULL));
  CHECK(grpcxx_request_method(NULL) == -1 && grpcxx_request_step_id(NULL) == 0);
  CHECK(grpcxx_request_num_keys(NULL) == 0 && grpcxx_request_key(NULL, 0, NULL) == NULL);
  CHECK(grpcxx_request_message(NULL, NULL) == NULL && grpcxx_request_handle(NULL, NULL) == NULL);
  CHECK(grpcxx_request_num_feeds(NULL) == 0 && grpcxx_request_feed_name(NULL, 0, NULL) == NULL);
  CHECK(grpcxx_request_feed(NULL, 0) == NULL && grpcxx_request_num_fetches(NULL) == 0);
  CHECK(grpcxx_request_fetch_name(NULL, 0, NULL) == NULL && grpcxx_request_ps_graph_count(NULL) == 0);
  CHECK(!grpcxx_request_should_trace(NULL));
  grpcxx_responder_answer_message(NULL, NULL, 0);
  grpcxx_responder_answer_tensors(NULL, NULL, 0);
  grpcxx_responder_answer_error(NULL, 0, NULL, 0);
  grpcxx_responder_free(NULL);
  CHECK(!grpcxx_responder_is_cancelled(NULL));
  int freed = 0;
  grpcxx_responder_on_cancel(NULL, NULL, freed_once, &freed);
  CHECK(freed == 1);

  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_send(NULL, 0, NULL, 0, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_abort_step(NULL, 0, 0, NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_abort_all_steps(NULL, 0, NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_cleanup_step(NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_store_put(NULL, NULL, NULL, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_store_fetch(NULL, NULL, 0, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_store_remove(NULL, NULL, 0));
  grpcxx_store_list(NULL, NULL, NULL);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_function_register(NULL, NULL, 0, NULL, NULL, NULL));

  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_endpoint_map_new(NULL, 0, NULL));
  grpcxx_endpoint_map_free(NULL);
  CHECK(grpcxx_endpoint_map_path(NULL) == NULL && grpcxx_endpoint_map_size(NULL) == 0);
  CHECK(grpcxx_endpoint_map_entry(NULL, 0, NULL) == NULL);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_endpoint_map_star_address(NULL, NULL, 0, NULL));
  grpcxx_facts(NULL, NULL);
  grpcxx_variables(NULL, NULL);
  grpcxx_log_set(GRPCXX_LOG_INFO, NULL, NULL);
}

int main(void) {
  every_function_takes_null();
  service *served = service_new();
  grpcxx_options *options = small_options("ps");
  OK(grpcxx_options_set_service(options, serve, served, service_freed));
  grpcxx_engine *server = engine_of(options);
  grpcxx_engine *caller = engine_of(small_options("worker"));
  grpcxx_peer *peer = peer_of(caller, server);
  grpcxx_peer *own = peer_of(server, server);
  services_answer_in_every_way(served, caller, peer);
  services_hear_that_nobody_waits(served, peer);
  lost_answers_are_told(served, server, peer);
  cancels_race_with_answers(served, peer);
  /* The same within one process. */
  grpcxx_call *call = grpcxx_call_new();
  outcome *ended = ask(own, call, "watch");
  await_number(served, &served->num_parked, 1);
  int cancelled = served->cancelled;
  grpcxx_call_cancel(call);
  CHECK(outcome_wait(ended) == GRPCXX_CANCELLED);
  await_number(served, &served->cancelled, cancelled + 1);
  waiting parked = unpark(served);
  grpcxx_responder_free(parked.responder);
  grpcxx_request_release(parked.request);
  grpcxx_call_release(call);
  outcome_free(ended);
  ended = ask(own, NULL, "now");
  CHECK(outcome_wait(ended) == GRPCXX_OK && grpcxx_tensor_data(ended->tensors[0]) == served->data);
  outcome_free(ended);

  functions_answer_from_any_thread(served, server, peer);
  functions_hear_what_becomes_of_their_requests(served, server, peer);
  nobody_waits_behind_the_end_of_an_engine(served);
  the_store_holds_tensors(server, peer);
  endpoint_maps_are_read();
  facts_and_log(server);
  a_log_that_hangs_stops_nothing();
  grpcxx_peer_release(own);
  grpcxx_peer_release(peer);

  /* A request that is answered when its engine has gone. */
  peer = peer_of(caller, server);
  ended = ask(peer, NULL, "park");
  await_number(served, &served->num_parked, 1);
  OK(grpcxx_engine_shutdown(server, 0));
  CHECK(outcome_wait(ended) != GRPCXX_OK);
  parked = unpark(served);
  int given = atomic_load(&served->given.times);
  answer_floats(served, parked.responder, 1);
  await_count(&served->given.times, given + 1);
  grpcxx_request_release(parked.request);
  outcome_free(ended);
  grpcxx_peer_release(peer);
  grpcxx_engine_free(caller);
  grpcxx_engine_free(server);
  /* The service and two functions. */
  await_number(served, &served->users_freed, 3);
  CHECK(served->declined > 0);
  pthread_mutex_lock(&served->lock);
  pthread_mutex_unlock(&served->lock);
  free(served);
  puts("services: ok");
  return 0;
}
