/* Where the fields of the structures lie, which the library holds on its side too (capi/src/layout.rs). */
#include <stddef.h>

#include "grpcxx.h"

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)

SIZE(grpcxx_text, 16);
AT(grpcxx_text, size, 8);
SIZE(grpcxx_peer_state, 48);
AT(grpcxx_peer_state, is_connected, 8);
AT(grpcxx_peer_state, is_announced, 9);
AT(grpcxx_peer_state, features, 16);
AT(grpcxx_peer_state, status, 24);
AT(grpcxx_peer_state, status_size, 32);
AT(grpcxx_peer_state, medium, 40);
SIZE(grpcxx_call_options, 16);
AT(grpcxx_call_options, timeout_ms, 8);
SIZE(grpcxx_tensor_meta, 40);
AT(grpcxx_tensor_meta, dtype, 8);
AT(grpcxx_tensor_meta, is_dead, 12);
AT(grpcxx_tensor_meta, rank, 16);
AT(grpcxx_tensor_meta, dims, 24);
AT(grpcxx_tensor_meta, data_size, 32);
SIZE(grpcxx_memory, 32);
AT(grpcxx_memory, data, 8);
AT(grpcxx_memory, release, 16);
AT(grpcxx_memory, context, 24);
SIZE(grpcxx_output, 40);
AT(grpcxx_output, data, 8);
AT(grpcxx_output, size, 16);
AT(grpcxx_output, release, 24);
AT(grpcxx_output, context, 32);
SIZE(grpcxx_group_options, 64);
AT(grpcxx_group_options, name, 8);
AT(grpcxx_group_options, address, 24);
AT(grpcxx_group_options, generation, 40);
AT(grpcxx_group_options, timeout_ms, 48);
AT(grpcxx_group_options, join_timeout_ms, 56);
SIZE(grpcxx_graph_call, 80);
AT(grpcxx_graph_call, handle, 8);
AT(grpcxx_graph_call, step_id, 24);
AT(grpcxx_graph_call, feed_names, 32);
AT(grpcxx_graph_call, feeds, 40);
AT(grpcxx_graph_call, num_feeds, 48);
AT(grpcxx_graph_call, fetch_names, 56);
AT(grpcxx_graph_call, num_fetches, 64);
AT(grpcxx_graph_call, ps_graph_count, 72);
AT(grpcxx_graph_call, should_trace, 76);

int main(void) { return 0; }
