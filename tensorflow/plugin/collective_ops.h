#ifndef GRPCXX_TENSORFLOW_COLLECTIVE_OPS_H_
#define GRPCXX_TENSORFLOW_COLLECTIVE_OPS_H_

namespace grpcxx_tensorflow {

// Tells TensorFlow the ops that combine tensors of all ranks of a group. Once in each process.
void RegisterCollectiveOps();

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_COLLECTIVE_OPS_H_
