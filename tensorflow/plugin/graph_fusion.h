#ifndef GRPCXX_TENSORFLOW_GRAPH_FUSION_H_
#define GRPCXX_TENSORFLOW_GRAPH_FUSION_H_

namespace grpcxx_tensorflow {

// Small tensors that go from one task to another travel in packs: one op makes a pack where they are, one edge carries
// it, one op takes it apart where they are used.

// Tells TensorFlow the passes over its graphs. Once in each process; they change nothing until fusion is turned on.
void RegisterGraphFusion();

// From now on graphs that this process makes ready have packs towards tasks that announce kPacks.
void TurnGraphFusionOn();
bool IsGraphFusionOn();

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_GRAPH_FUSION_H_
