#ifndef GRPCXX_TENSORFLOW_PACK_OPS_H_
#define GRPCXX_TENSORFLOW_PACK_OPS_H_

namespace grpcxx_tensorflow {

// Tells TensorFlow the ops that make packs and take them apart. Once in each process.
void RegisterPackOps();

}  // namespace grpcxx_tensorflow

#endif  // GRPCXX_TENSORFLOW_PACK_OPS_H_
