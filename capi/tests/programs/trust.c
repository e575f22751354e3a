/* Who may call whom: tasks with a token, with certificates, and with the addresses of the cluster spec. */
#include "support.h"

/* The step of a CleanupGraph request: 5. */
static const char kStep[] = {0x08, 5};

static const char kKey[] = "the key that two tasks share";

static void set(grpcxx_options *options, const char *name, const char *value) {
  OK(grpcxx_options_set_variable(options, name, strlen(name), value, strlen(value)));
}

/* Options of a task whose connections stay on TCP: in shared memory processes of one user may do all. */
static grpcxx_options *strict_options(const char *job) {
  grpcxx_options *options = small_options(job);
  set(options, "GRPCXX_SHM", "off");
  return options;
}

static int32_t ask(grpcxx_engine *from, const grpcxx_engine *to, int32_t method, const void *data, size_t size) {
  grpcxx_peer *peer = peer_of(from, to);
  grpcxx_call_options options = {.struct_size = sizeof options, .timeout_ms = 30000};
  outcome *end = outcome_new();
  grpcxx_message_call(peer, NULL, method, data, size, &options, message_done, end);
  int32_t code = outcome_wait(end);
  outcome_free(end);
  grpcxx_peer_release(peer);
  return code;
}

static void stop(grpcxx_engine *engine) {
  OK(grpcxx_engine_shutdown(engine, 1000));
  grpcxx_engine_free(engine);
}

/* ---- The token -------------------------------------------------------------------------------------------------- */

static grpcxx_engine *task_with(const char *job, const char *variable, const char *value) {
  grpcxx_options *options = strict_options(job);
  if (variable != NULL) {
    set(options, variable, value);
  }
  return engine_of(options);
}

static void tasks_with_one_token_work_with_each_other_and_others_do_not(const char *folder) {
  char path[4096];
  snprintf(path, sizeof path, "%s/token", folder);
  FILE *file = fopen(path, "w");
  CHECK(file != NULL && fprintf(file, "%s\n", kKey) > 0 && fclose(file) == 0);

  grpcxx_engine *server = task_with("ps", "GRPCXX_TOKEN", kKey);
  grpcxx_engine *member = task_with("worker", "GRPCXX_TOKEN_FILE", path);
  grpcxx_engine *other = task_with("worker", "GRPCXX_TOKEN", "another key of enough bytes");
  grpcxx_engine *stranger = task_with("worker", NULL, NULL);
  CHECK(ask(member, server, GRPCXX_CLEANUP_ALL, NULL, 0) == GRPCXX_OK);
  CHECK(ask(other, server, GRPCXX_CLEANUP_ALL, NULL, 0) == GRPCXX_UNAUTHENTICATED);
  CHECK(ask(stranger, server, GRPCXX_CLEANUP_ALL, NULL, 0) == GRPCXX_PERMISSION_DENIED);
  CHECK(ask(stranger, server, GRPCXX_GET_STATUS, NULL, 0) == GRPCXX_OK);
  /* Nor does a task with a token tell one without it anything. */
  CHECK(ask(member, stranger, GRPCXX_GET_STATUS, NULL, 0) == GRPCXX_UNAUTHENTICATED);
  stop(stranger);
  stop(other);
  stop(member);
  stop(server);

  grpcxx_options *options = strict_options("ps");
  set(options, "GRPCXX_TOKEN", "short");
  grpcxx_engine *none = NULL;
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_start(options, &none));
  CHECK(none == NULL);
  grpcxx_options_free(options);
}

/* ---- Certificates ----------------------------------------------------------------------------------------------- */

static grpcxx_engine *task_with_certificate(const char *job, const char *folder) {
  grpcxx_options *options = strict_options(job);
  const char *kinds[][2] = {{"GRPCXX_TLS_CERT", "pem"}, {"GRPCXX_TLS_KEY", "key"}};
  char path[4096];
  for (size_t index = 0; index < 2; index++) {
    snprintf(path, sizeof path, "%s/%s.%s", folder, job, kinds[index][1]);
    set(options, kinds[index][0], path);
  }
  snprintf(path, sizeof path, "%s/ca.pem", folder);
  set(options, "GRPCXX_TLS_CA", path);
  set(options, "GRPCXX_TLS", "require");
  return engine_of(options);
}

static void a_server_that_proves_to_be_another_task_is_not_called(const char *folder) {
  grpcxx_engine *server = task_with_certificate("ps", folder);
  grpcxx_engine *worker = task_with_certificate("worker", folder);
  const char *address = grpcxx_engine_star_address(server);
  OK(grpcxx_engine_expect_task(worker, address, strlen(address), TEXT("ps"), 1));
  CHECK(ask(worker, server, GRPCXX_GET_STATUS, NULL, 0) == GRPCXX_UNAUTHENTICATED);
  OK(grpcxx_engine_expect_task(worker, address, strlen(address), TEXT("ps"), 0));
  CHECK(ask(worker, server, GRPCXX_GET_STATUS, NULL, 0) == GRPCXX_OK);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_expect_task(worker, address, strlen(address), "", 0, 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_expect_task(worker, TEXT("no-port"), TEXT("ps"), 0));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_expect_task(NULL, TEXT("127.0.0.1:1"), TEXT("ps"), 0));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_check_plain_call(worker, TEXT("127.0.0.1:1")));
  FAILS(GRPCXX_FAILED_PRECONDITION, grpcxx_engine_check_plain_answer(worker, TEXT("127.0.0.1:1")));
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_engine_check_plain_call(NULL, TEXT("127.0.0.1:1")));
  stop(worker);
  stop(server);
}

/* ---- The addresses of the cluster spec -------------------------------------------------------------------------- */

static void peers_at_the_addresses_of_the_cluster_are_its_tasks(void) {
  grpcxx_engine *worker = task_with("worker", NULL, NULL);
  OK(grpcxx_engine_check_plain_call(worker, TEXT("127.0.0.1:1")));
  OK(grpcxx_engine_check_plain_answer(worker, TEXT("127.0.0.1:1")));
  for (int is_told = 0; is_told < 2; is_told++) {
    grpcxx_options *options = strict_options("ps");
    set(options, "GRPCXX_ADMIN", "none");
    if (is_told) {
      OK(grpcxx_options_add_task(options, TEXT("127.0.0.1:2222")));
      OK(grpcxx_options_add_task(options, TEXT("[2001:db8::1]:2222")));
    }
    FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_add_task(options, TEXT("nowhere")));
    grpcxx_engine *server = engine_of(options);
    int32_t code = ask(worker, server, GRPCXX_CLEANUP_GRAPH, kStep, sizeof kStep);
    CHECK(code == (is_told ? GRPCXX_OK : GRPCXX_PERMISSION_DENIED));
    CHECK(ask(worker, server, GRPCXX_CLEANUP_ALL, NULL, 0) == GRPCXX_PERMISSION_DENIED);
    stop(server);
  }
  stop(worker);
  FAILS(GRPCXX_INVALID_ARGUMENT, grpcxx_options_add_task(NULL, TEXT("127.0.0.1:1")));
}

int main(void) {
  const char *folder = getenv("TRUST_FOLDER");
  CHECK(folder != NULL);
  tasks_with_one_token_work_with_each_other_and_others_do_not(folder);
  a_server_that_proves_to_be_another_task_is_not_called(folder);
  peers_at_the_addresses_of_the_cluster_are_its_tasks();
  return 0;
}
