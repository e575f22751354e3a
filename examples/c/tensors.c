/* Two engines in one process: one sends a tensor, the other receives it straight into an array of this program.
 *
 *   cargo build -p grpcxx-capi
 *   cc -Icapi/include examples/c/tensors.c -Ltarget/debug -lgrpcxx_capi -Wl,-rpath,$PWD/target/debug -o tensors
 *   ./tensors
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grpcxx.h"

static void succeed(grpcxx_status *status) {
  if (status != NULL) {
    fprintf(stderr, "%s: %s\n", grpcxx_code_name(grpcxx_status_code(status)), grpcxx_status_message(status, NULL));
    exit(1);
  }
}

static grpcxx_engine *start(const char *job) {
  grpcxx_options *options = grpcxx_options_new();
  grpcxx_engine *engine = NULL;
  succeed(grpcxx_options_set_task(options, job, strlen(job), 0));
  succeed(grpcxx_options_set_listen(options, "127.0.0.1:0", strlen("127.0.0.1:0")));
  succeed(grpcxx_options_set_variable(options, "GRPCXX_SHARDS", 13, "1", 1));
  succeed(grpcxx_engine_start(options, &engine));
  grpcxx_options_free(options);
  printf("%s\n", grpcxx_engine_start_report(engine));
  return engine;
}

int main(void) {
  grpcxx_engine *ps = start("ps"), *worker = start("worker");

  /* The name of a tensor: who makes it, in which life, for whom, and what it is called. */
  uint64_t incarnation = 0;
  const char *device = grpcxx_engine_device(ps, 0, &incarnation);
  char key[256];
  int key_size = snprintf(key, sizeof key, "%s;%016" PRIx64 ";/job:worker/replica:0/task:0/device:CPU:0;weights;0:0",
                          device, incarnation);

  /* The ps puts a tensor into step 1. Nothing is copied: the array must stay until the tensor has left. */
  static float weights[4] = {1, 2, 3, 4};
  int64_t dims[1] = {4};
  grpcxx_tensor *tensor = NULL;
  succeed(grpcxx_tensor_new(GRPCXX_FLOAT32, dims, 1, false, weights, sizeof weights, NULL, NULL, &tensor));
  succeed(grpcxx_engine_send(ps, 1, key, (size_t)key_size, tensor));
  grpcxx_tensor_release(tensor);

  /* The worker asks for it over TCP, and says where it shall land. */
  float received[4] = {0};
  const char *address = grpcxx_engine_star_address(ps);
  grpcxx_peer *peer = NULL;
  succeed(grpcxx_peer_new(worker, address, strlen(address), &peer));
  grpcxx_call *call = grpcxx_call_new();
  succeed(grpcxx_call_set_memory(call, 0, received, sizeof received));
  grpcxx_recv_tensor(peer, call, 1, key, (size_t)key_size, NULL, NULL, NULL, NULL);
  succeed(grpcxx_call_wait(call, 10000));
  printf("received %g %g %g %g\n", received[0], received[1], received[2], received[3]);

  grpcxx_call_release(call);
  grpcxx_peer_release(peer);
  succeed(grpcxx_engine_shutdown(worker, 0));
  succeed(grpcxx_engine_shutdown(ps, 0));
  grpcxx_engine_free(worker);
  grpcxx_engine_free(ps);
  return 0;
}
