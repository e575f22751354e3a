/* Tasks that know nothing of TLS in processes of their own: their variables do. */
#include "support.h"

/* Serves until its standard input ends; prints where. */
static void serve(const char *job) {
  grpcxx_engine *engine = engine_of(small_options(job));
  printf("%s\n", grpcxx_engine_star_address(engine));
  fflush(stdout);
  while (getchar() != EOF) {
  }
  OK(grpcxx_engine_shutdown(engine, 1000));
  grpcxx_engine_free(engine);
}

/* Calls the task `ps` of this index at the address, once for each line of its standard input; prints how each call ended. */
static void call(const char *job, const char *address, uint32_t index) {
  grpcxx_engine *engine = engine_of(small_options(job));
  OK(grpcxx_engine_expect_task(engine, address, strlen(address), TEXT("ps"), index));
  grpcxx_peer *peer = NULL;
  OK(grpcxx_peer_new(engine, address, strlen(address), &peer));
  for (int byte = getchar(); byte != EOF; byte = getchar()) {
    grpcxx_call_options options = {.struct_size = sizeof options, .timeout_ms = 30000};
    outcome *end = outcome_new();
    grpcxx_message_call(peer, NULL, GRPCXX_GET_STATUS, NULL, 0, &options, message_done, end);
    int32_t code = outcome_wait(end);
    printf("%s %s\n", grpcxx_code_name(code), end->message);
    fflush(stdout);
    outcome_free(end);
  }
  grpcxx_peer_release(peer);
  OK(grpcxx_engine_shutdown(engine, 1000));
  grpcxx_engine_free(engine);
}

int main(int count, char **arguments) {
  CHECK(count >= 3);
  if (strcmp(arguments[1], "serve") == 0) {
    serve(arguments[2]);
  } else {
    CHECK(count == 5);
    call(arguments[2], arguments[3], (uint32_t)atoi(arguments[4]));
  }
  return 0;
}
