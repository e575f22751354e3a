/* Groups of tasks: each rank has an engine of its own, in a thread of this program or in a process. */
#include "support.h"

#include <sys/wait.h>

#define grpcxx_group_join(...) (cross(), grpcxx_group_join(__VA_ARGS__))
#define grpcxx_group_all_reduce(...) (cross(), grpcxx_group_all_reduce(__VA_ARGS__))
#define grpcxx_group_broadcast(...) (cross(), grpcxx_group_broadcast(__VA_ARGS__))
#define grpcxx_group_reduce(...) (cross(), grpcxx_group_reduce(__VA_ARGS__))

enum { RANKS = 3 };

typedef struct rank {
  uint32_t number;
  uint32_t size;
  const char *rendezvous;
  grpcxx_engine *engine;
  grpcxx_group *group;
  void (*code)(struct rank *self);
} rank;

static grpcxx_group *joined(grpcxx_engine *engine, uint32_t number, uint32_t size, const char *rendezvous,
                            const char *name) {
  grpcxx_group *group = NULL;
  grpcxx_group_options options = {.struct_size = sizeof options, .name = {name, strlen(name)}, .timeout_ms = 30000};
  OK(grpcxx_group_join(engine, number, size, rendezvous, strlen(rendezvous), &options, &group));
  CHECK(grpcxx_group_rank(group) == number && grpcxx_group_size(group) == size);
  return group;
}

static void *be_rank(void *user) {
  cross();
  rank *self = user;
  self->group = joined(self->engine, self->number, self->size, self->rendezvous, "");
  self->code(self);
  grpcxx_group_free(self->group);
  cross();
  return NULL;
}

/* Runs the code as so many ranks, each on a thread with an engine of its own. */
static void together(uint32_t size, void (*code)(rank *self)) {
  rank ranks[RANKS];
  pthread_t threads[RANKS];
  for (uint32_t index = 0; index < size; index++) {
    grpcxx_options *options = small_options("rank");
    OK(grpcxx_options_set_lends_shards(options, index % 2 == 0));
    ranks[index] = (rank){.number = index, .size = size, .engine = engine_of(options), .code = code};
    ranks[index].rendezvous = grpcxx_engine_star_address(ranks[0].engine);
  }
  cross();
  for (uint32_t index = 0; index < size; index++) {
    CHECK(pthread_create(&threads[index], NULL, be_rank, &ranks[index]) == 0);
  }
  for (uint32_t index = 0; index < size; index++) {
    CHECK(pthread_join(threads[index], NULL) == 0);
  }
  for (uint32_t index = 0; index < size; index++) {
    grpcxx_engine_free(ranks[index].engine);
  }
}

/* A tensor of float32 with so many rows of two: first, first + 1 and so on. */
static grpcxx_tensor *counted(int64_t rows, float first) {
  int64_t dims[2] = {rows, 2};
  float data[32];
  CHECK(rows <= 16);
  for (int64_t index = 0; index < 2 * rows; index++) {
    data[index] = first + (float)index;
  }
  grpcxx_tensor *tensor = NULL;
  OK(grpcxx_tensor_copy_new(GRPCXX_FLOAT32, dims, 2, false, data, sizeof *data * 2 * (size_t)rows, &tensor));
  return tensor;
}

/* Checks type, shape and values of a result, and releases it. */
static void expect(grpcxx_tensor *result, int64_t rows, const float *wanted) {
  CHECK(grpcxx_tensor_dtype(result) == GRPCXX_FLOAT32 && grpcxx_tensor_rank(result) == 2);
  CHECK(grpcxx_tensor_dims(result)[0] == rows && grpcxx_tensor_dims(result)[1] == 2);
  CHECK(memcmp(grpcxx_tensor_data(result), wanted, sizeof *wanted * 2 * (size_t)rows) == 0);
  grpcxx_tensor_release(result);
}

/* Rank r of n brings n rows that count from 100 r on. */
static void each_operation_gives_each_rank_its_part(rank *self) {
  const float own = 100 * (float)self->number, size = (float)self->size;
  const int64_t rows = self->size;
  float sum[2 * RANKS], all[2 * RANKS * RANKS], exchanged[2 * RANKS], first[2 * RANKS];
  float offsets = 0;
  for (uint32_t from = 0; from < self->size; from++) {
    offsets += 100 * (float)from;
  }
  for (int64_t index = 0; index < 2 * rows; index++) {
    sum[index] = size * (float)index + offsets;
    first[index] = (float)index;
    for (int64_t from = 0; from < rows; from++) {
      all[2 * rows * from + index] = 100 * (float)from + (float)index;
    }
  }
  for (int64_t from = 0; from < rows; from++) {
    for (int64_t column = 0; column < 2; column++) {
      exchanged[2 * from + column] = 100 * (float)from + (float)(2 * self->number + column);
    }
  }
  grpcxx_tensor *mine = counted(rows, own), *part = counted(1, own), *result = NULL;
  grpcxx_tensor *given = self->number == 0 ? mine : part;
  OK(grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_SUM, NULL, &result));
  CHECK(grpcxx_tensor_mutable_data(result) != NULL);
  expect(result, rows, sum);
  OK(grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_MIN, NULL, &result));
  expect(result, rows, first);
  OK(grpcxx_group_reduce_scatter(self->group, 0, mine, GRPCXX_SUM, NULL, &result));
  expect(result, 1, sum + 2 * self->number);
  OK(grpcxx_group_all_gather(self->group, 0, mine, NULL, &result));
  expect(result, rows * rows, all);
  OK(grpcxx_group_all_to_all(self->group, 0, mine, NULL, &result));
  expect(result, rows, exchanged);
  OK(grpcxx_group_broadcast(self->group, 0, mine, 0, NULL, &result));
  expect(result, rows, first);
  OK(grpcxx_group_scatter(self->group, 0, given, 0, NULL, &result));
  expect(result, 1, first + 2 * self->number);
  grpcxx_tensor *at_root = mine;
  OK(grpcxx_group_reduce(self->group, 0, mine, GRPCXX_SUM, 0, NULL, &at_root));
  CHECK((at_root != NULL) == (self->number == 0));
  if (at_root != NULL) {
    expect(at_root, rows, sum);
  }
  OK(grpcxx_group_gather(self->group, 0, mine, 0, NULL, &at_root));
  CHECK((at_root != NULL) == (self->number == 0));
  if (at_root != NULL) {
    expect(at_root, rows * rows, all);
  }
  OK(grpcxx_group_barrier(self->group, 7));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_barrier(self->group, 65535));
  OK(grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_SUM, NULL, NULL));
  grpcxx_tensor_release(mine);
  grpcxx_tensor_release(part);
  OK(grpcxx_group_leave(self->group));
  OK(grpcxx_group_leave(self->group));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_group_barrier(self->group, 0));
}

static void count_output(void *context) {
  cross();
  atomic_fetch_add((atomic_int *)context, 1);
}

enum { LONG = 1 << 18 };

/* The memory of `data` for a result; given back to `times`, or copied to if that is NULL. */
static grpcxx_output output_at(float *data, size_t count, atomic_int *times) {
  return (grpcxx_output){.struct_size = sizeof(grpcxx_output),
                         .data = data,
                         .size = sizeof *data * count,
                         .release = times == NULL ? NULL : count_output,
                         .context = times};
}

static void results_land_in_memory_of_the_caller(rank *self) {
  atomic_int times = 0;
  float *data = malloc(LONG * sizeof *data), *out = malloc(LONG * sizeof *out);
  CHECK(data != NULL && out != NULL);
  int64_t count = LONG;
  /* Into other memory, then into that of the tensor; with a function and without. */
  for (int round = 0; round < 4; round++) {
    for (int index = 0; index < LONG; index++) {
      data[index] = (float)(index % 100 + (int)self->number);
    }
    float *place = round < 2 ? out : data;
    grpcxx_output output = output_at(place, LONG, round % 2 == 0 ? &times : NULL);
    grpcxx_tensor *mine = NULL, *result = NULL;
    OK(grpcxx_tensor_new(GRPCXX_FLOAT32, &count, 1, false, data, LONG * sizeof *data, NULL, NULL, &mine));
    OK(grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_MAX, &output, &result));
    CHECK(atomic_load(&times) == round / 2 + 1);
    CHECK(grpcxx_tensor_data(result) == place && grpcxx_tensor_mutable_data(result) == NULL);
    for (int index = 0; index < LONG; index++) {
      CHECK(place[index] == (float)(index % 100 + (int)self->size - 1));
    }
    grpcxx_tensor_release(result);
    grpcxx_tensor_release(mine);
  }
  /* The root of a broadcast gets its own, a copy of which is where it is wanted. */
  atomic_store(&times, 0);
  float pair[2] = {(float)self->number, 5}, got[2] = {0, 0};
  grpcxx_tensor *mine = floats(pair, 2);
  grpcxx_output output = output_at(got, 2, &times);
  OK(grpcxx_group_broadcast(self->group, 0, mine, 1, &output, NULL));
  CHECK(got[0] == 1 && got[1] == 5 && atomic_load(&times) == 1);
  /* Whoever gets no result has its memory back too. */
  OK(grpcxx_group_reduce(self->group, 0, mine, GRPCXX_SUM, 0, &output, NULL));
  CHECK(atomic_load(&times) == 2 && (self->number != 0 || got[1] == 5 * (float)self->size));
  /* Refused here and now: the others have not heard of it. */
  output.size = 4;
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_SUM, &output, NULL));
  output.data = NULL;
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_SUM, &output, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_all_reduce(self->group, 0, NULL, GRPCXX_SUM, &output, NULL));
  CHECK(atomic_load(&times) == 5);
  output.struct_size = 1;
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_SUM, &output, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_all_reduce(self->group, 0, mine, 9, NULL, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_broadcast(self->group, 0, mine, self->size, NULL, NULL));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_all_to_all(NULL, 0, mine, NULL, NULL));
  OK(grpcxx_group_barrier(self->group, 0));
  OK(grpcxx_group_leave(self->group));
  grpcxx_tensor_release(mine);
  free(data);
  free(out);
}

typedef struct lane {
  grpcxx_group *group;
  uint16_t tag;
} lane;

static void *sum_often(void *user) {
  cross();
  lane *self = user;
  for (int round = 0; round < 20; round++) {
    float mine = (float)self->tag, sum;
    grpcxx_tensor *tensor = floats(&mine, 1), *result = NULL;
    OK(grpcxx_group_all_reduce(self->group, self->tag, tensor, GRPCXX_SUM, NULL, &result));
    memcpy(&sum, grpcxx_tensor_data(result), sizeof sum);
    CHECK(sum == mine * (float)grpcxx_group_size(self->group));
    grpcxx_tensor_release(result);
    grpcxx_tensor_release(tensor);
  }
  return NULL;
}

static void tags_go_beside_each_other(rank *self) {
  enum { LANES = 4 };
  pthread_t threads[LANES];
  lane lanes[LANES];
  for (uint16_t index = 0; index < LANES; index++) {
    lanes[index] = (lane){self->group, (uint16_t)(3 - index)};
    CHECK(pthread_create(&threads[index], NULL, sum_often, &lanes[index]) == 0);
  }
  for (int index = 0; index < LANES; index++) {
    CHECK(pthread_join(threads[index], NULL) == 0);
  }
  OK(grpcxx_group_leave(self->group));
}

/* Fails with the code and a text that holds these words. */
static void fails_with(grpcxx_status *status, int32_t code, const char *words) {
  if (grpcxx_status_code(status) != code || strstr(grpcxx_status_message(status, NULL), words) == NULL) {
    fprintf(stderr, "not %s with \"%s\": %s: %s\n", grpcxx_code_name(code), words,
            grpcxx_code_name(grpcxx_status_code(status)), grpcxx_status_message(status, NULL));
    _exit(1);
  }
  grpcxx_status_free(status);
}

static void what_differs_is_named_on_all_ranks(rank *self) {
  atomic_int times = 0;
  float got[8];
  grpcxx_tensor *mine = counted(self->number == 1 ? 2 : 4, 0);
  grpcxx_output output = output_at(got, self->number == 1 ? 4 : 8, &times);
  fails_with(grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_SUM, &output, NULL), GRPCXX_INVALID_ARGUMENT,
             "rank 1 called all_reduce(float32 [2, 2], sum)");
  await_count(&times, 1);
  /* The group is over. */
  fails_with(grpcxx_group_barrier(self->group, 0), GRPCXX_INVALID_ARGUMENT, "called all_reduce");
  grpcxx_tensor_release(mine);
  OK(grpcxx_group_leave(self->group));
}

static void what_a_rank_cannot_call_takes_its_place(rank *self) {
  OK(grpcxx_group_refuse(self->group, 0));
  OK(grpcxx_group_barrier(self->group, 0));
  /* All have refused, so the group has gone on. */
  if (self->number == 1) OK(grpcxx_group_refuse(self->group, 0));
  fails_with(grpcxx_group_barrier(self->group, 0), GRPCXX_INVALID_ARGUMENT, "rank 1 called what it refused");
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_refuse(self->group, 65535));
  OK(grpcxx_group_leave(self->group));
}

/* Without a tensor there is nothing to begin, and others have begun: that too takes the place of an operation. */
static void a_missing_tensor_takes_its_place(rank *self) {
  float data = 1;
  grpcxx_tensor *mine = floats(&data, 1), *result = NULL;
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_all_reduce(self->group, 0, NULL, GRPCXX_SUM, NULL, &result));
  OK(grpcxx_group_all_reduce(self->group, 0, mine, GRPCXX_SUM, NULL, &result));
  grpcxx_tensor_release(result);
  grpcxx_tensor *brought = self->number == 1 ? NULL : mine;
  const char *why = self->number == 1 ? "tensor is NULL" : "rank 1 called what it refused";
  fails_with(grpcxx_group_all_reduce(self->group, 0, brought, GRPCXX_SUM, NULL, &result), GRPCXX_INVALID_ARGUMENT, why);
  fails_with(grpcxx_group_barrier(self->group, 0), GRPCXX_INVALID_ARGUMENT, "rank 1 called what it refused");
  grpcxx_tensor_release(mine);
  OK(grpcxx_group_leave(self->group));
}

static void a_rank_that_leaves_is_named(rank *self) {
  OK(grpcxx_group_barrier(self->group, 0));
  if (self->number == 1) {
    OK(grpcxx_group_leave(self->group));
    return;
  }
  fails_with(grpcxx_group_barrier(self->group, 0), GRPCXX_ABORTED, "rank 1 (");
  OK(grpcxx_group_leave(self->group));
}

/* Over shared memory too, which would do without the engine. */
static void a_group_ends_with_the_engine_of_its_rank(rank *self) {
  OK(grpcxx_group_barrier(self->group, 0));
  if (self->number == 0) {
    OK(grpcxx_engine_shutdown(self->engine, 0));
    /* The group may know by then that it is over. */
    for (int round = 0; round < 2; round++) {
      grpcxx_status *status = grpcxx_group_barrier(self->group, 0);
      int32_t code = grpcxx_status_code(status);
      CHECK(code == GRPCXX_UNAVAILABLE || code == GRPCXX_ABORTED);
      grpcxx_status_free(status);
    }
    return;
  }
  fails_with(grpcxx_group_barrier(self->group, 0), GRPCXX_ABORTED, "rank 0 (");
}

static void who_cannot_join_hears_why(void) {
  grpcxx_engine *engine = engine_of(small_options("rank"));
  const char *address = grpcxx_engine_star_address(engine);
  const size_t size = strlen(address);
  grpcxx_group *group = NULL;
  grpcxx_group_options options = {.struct_size = sizeof options, .join_timeout_ms = 200};
  fails_with(grpcxx_group_join(engine, 0, 2, address, size, &options, &group), GRPCXX_DEADLINE_EXCEEDED,
             "1 of 2 ranks are missing (1)");
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_join(engine, 2, 2, address, size, &options, &group));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_join(engine, 1, 2, "no port", 7, &options, &group));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_join(NULL, 0, 1, address, size, &options, &group));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_join(engine, 0, 1, address, size, &options, NULL));
  CHECK(group == NULL);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_group_leave(NULL));
  CHECK(grpcxx_group_rank(NULL) == 0 && grpcxx_group_size(NULL) == 0);
  grpcxx_group_free(NULL);
  /* A group outlives its engine, and its operations fail then. */
  group = joined(engine, 0, 1, address, "alone");
  OK(grpcxx_group_barrier(group, 0));
  grpcxx_engine_free(engine);
  float one = 1;
  grpcxx_tensor *tensor = floats(&one, 1);
  FAILS(GRPCXX_UNAVAILABLE, grpcxx_group_all_reduce(group, 0, tensor, GRPCXX_SUM, NULL, NULL));
  grpcxx_tensor_release(tensor);
  OK(grpcxx_group_leave(group));
  grpcxx_group_free(group);
}

static grpcxx_group *of_callback;

static void refuses_to_block(void *user, const grpcxx_status *status, const void *data, size_t size) {
  cross();
  (void)status, (void)data, (void)size;
  outcome *self = user;
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_group_barrier(of_callback, 0));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_group_leave(of_callback));
  grpcxx_group_free(of_callback);
  pthread_mutex_lock(&self->lock);
  outcome_end(self, NULL);
  pthread_mutex_unlock(&self->lock);
}

static void callbacks_do_not_block(void) {
  grpcxx_engine *engine = engine_of(small_options("rank"));
  of_callback = joined(engine, 0, 1, grpcxx_engine_star_address(engine), "callback");
  grpcxx_peer *peer = peer_of(engine, engine);
  outcome *ended = outcome_new();
  grpcxx_message_call(peer, NULL, GRPCXX_GET_STATUS, NULL, 0, NULL, refuses_to_block, ended);
  CHECK(outcome_wait(ended) == GRPCXX_OK);
  outcome_free(ended);
  grpcxx_peer_release(peer);
  grpcxx_engine_free(engine);
}

/* Sums of float32 of many lengths, over boards and by messages. */
static void sum_all_lengths(grpcxx_group *group) {
  static float data[LONG];
  for (int64_t count = 1; count <= LONG; count *= 8) {
    for (int64_t index = 0; index < count; index++) {
      data[index] = (float)(index % 1000) + (float)grpcxx_group_rank(group);
    }
    grpcxx_tensor *mine = floats(data, count), *result = NULL;
    OK(grpcxx_group_all_reduce(group, 0, mine, GRPCXX_SUM, NULL, &result));
    const float *sums = grpcxx_tensor_data(result);
    for (int64_t index = 0; index < count; index++) {
      CHECK(sums[index] == 2 * (float)(index % 1000) + 1);
    }
    grpcxx_tensor_release(result);
    grpcxx_tensor_release(mine);
  }
  OK(grpcxx_group_leave(group));
  grpcxx_group_free(group);
}

/* Before there are threads: the child is rank 1, and hears by a pipe where rank 0 is. */
static void processes_meet(void) {
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  char address[64] = {0};
  if (child == 0) {
    CHECK(read(pipes[0], address, sizeof address) == sizeof address);
  }
  grpcxx_engine *engine = engine_of(small_options("rank"));
  if (child != 0) {
    snprintf(address, sizeof address, "%s", grpcxx_engine_star_address(engine));
    CHECK(write(pipes[1], address, sizeof address) == sizeof address);
  }
  sum_all_lengths(joined(engine, child == 0 ? 1 : 0, 2, address, "processes"));
  grpcxx_engine_free(engine);
  if (child == 0) {
    _exit(0);
  }
  int ended = 0;
  CHECK(waitpid(child, &ended, 0) == child && ended == 0);
  close(pipes[0]);
  close(pipes[1]);
}

int main(void) {
  processes_meet();
  for (uint32_t size = 1; size <= RANKS; size++) {
    together(size, each_operation_gives_each_rank_its_part);
  }
  together(2, results_land_in_memory_of_the_caller);
  together(3, tags_go_beside_each_other);
  together(3, what_differs_is_named_on_all_ranks);
  together(2, what_a_rank_cannot_call_takes_its_place);
  together(2, a_missing_tensor_takes_its_place);
  together(2, a_rank_that_leaves_is_named);
  together(2, a_group_ends_with_the_engine_of_its_rank);
  who_cannot_join_hears_why();
  callbacks_do_not_block();
  puts("groups: ok");
  return 0;
}
