#include "buffer_service.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "counters.h"
#include "status.h"
#include "tensorflow/core/common_runtime/buf_rendezvous.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace grpcxx_tensorflow {
namespace {

using tensorflow::BufRendezvous;
using tensorflow::DMAHelper;
using tensorflow::Tensor;

void ReleaseHook(void* context, bool delivered) {
  BufRendezvous::DoneWithHook(static_cast<BufRendezvous::Hook*>(context));
  if (!delivered) Add(Count().served_undelivered);
}

void ReleaseCopy(void* context, bool delivered) {
  delete static_cast<Tensor*>(context);
  if (!delivered) Add(Count().served_undelivered);
}

// Answers with the bytes of `value`, which stay until `release`.
void AnswerBytes(grpcxx_responder* responder, const Tensor& value, grpcxx_release_fn release, void* context) {
  const int64_t dims[] = {static_cast<int64_t>(value.TotalBytes())};
  grpcxx_tensor* buffer = nullptr;
  // Bytes without a type: the receiver knows what they are, and star's shapes have limits. Two dimensions where one
  // cannot tell the length.
  constexpr int64_t kWideDimensionMax = 4294967293;
  absl::Status made =
      dims[0] > kWideDimensionMax
          ? absl::ResourceExhaustedError(absl::StrCat("a buffer of ", dims[0], " bytes does not fit into one frame of ",
                                                      "grpc++"))
          : TakeFromEngine(grpcxx_tensor_new(GRPCXX_UINT8, dims, 1, false, DMAHelper::base(&value), dims[0], release,
                                             context, &buffer));
  if (!made.ok()) {
    release(context, false);
    Add(Count().served_errors);
    return AnswerError(responder, made);
  }
  Add(Count().served_buffers);
  Add(Count().served_buffer_bytes, dims[0]);
  Add(Count().served_by_reference_bytes, dims[0]);
  grpcxx_responder_answer_tensors(responder, &buffer, 1);
  grpcxx_tensor_release(buffer);
}

// The bytes lie on another device: answers with a copy of them.
void AnswerFromDevice(tensorflow::WorkerEnv* env, grpcxx_responder* responder, BufRendezvous::Hook* hook) {
  tensorflow::Device* cpu = nullptr;
  const absl::Status found = env->device_mgr->LookupDevice("CPU:0", &cpu);
  if (!found.ok()) {
    BufRendezvous::DoneWithHook(hook);
    Add(Count().served_errors);
    return AnswerError(responder, found);
  }
  tensorflow::AllocatorAttributes attributes;
  attributes.set_gpu_compatible(true);
  attributes.set_nic_compatible(true);
  auto* copy = new Tensor(cpu->GetAllocator(attributes), hook->prod_value->dtype(), hook->prod_value->shape());
  hook->prod_ctx->CopyDeviceTensorToCPU(hook->prod_value, "empty_name", hook->prod_dev, copy,
                                        [responder, hook, copy](const absl::Status& status) {
                                          BufRendezvous::DoneWithHook(hook);
                                          if (status.ok()) return AnswerBytes(responder, *copy, &ReleaseCopy, copy);
                                          delete copy;
                                          Add(Count().served_errors);
                                          AnswerError(responder, status);
                                        });
}

void Consumed(tensorflow::WorkerEnv* env, grpcxx_responder* responder, const std::string& key,
              const absl::Status& status, BufRendezvous::Hook* hook) {
  absl::Status failure = status;
  if (failure.ok() && hook == nullptr) {
    failure = absl::InternalError(absl::StrCat("Invalid null hook for key ", key));
  } else if (failure.ok() && !DMAHelper::CanUseDMA(hook->prod_value)) {
    failure = absl::InternalError(
        absl::StrCat("Tensor value for key ", key, " is not of a type supported by RecvBuf"));
  }
  if (!failure.ok()) {
    if (hook != nullptr) BufRendezvous::DoneWithHook(hook);
    Add(Count().served_errors);
    return AnswerError(responder, failure);
  }
  const bool is_on_host = hook->prod_dev->attributes().device_type() == "CPU" || hook->prod_attr.on_host();
  if (!is_on_host && hook->prod_value->TotalBytes() > 0) return AnswerFromDevice(env, responder, hook);
  AnswerBytes(responder, *hook->prod_value, &ReleaseHook, hook);
}

}  // namespace

void ServeBuffer(tensorflow::WorkerEnv* env, grpcxx_request* request, grpcxx_responder* responder) {
  const grpcxx_tensor* feed = grpcxx_request_feed(request, 0);
  tensorflow::RecvBufRequest message;
  if (feed == nullptr || grpcxx_tensor_dtype(feed) != GRPCXX_UINT8 || grpcxx_request_num_fetches(request) != 1 ||
      !message.ParseFromArray(grpcxx_tensor_data(feed), static_cast<int>(grpcxx_tensor_data_size(feed)))) {
    Add(Count().served_errors);
    return AnswerError(responder, absl::InvalidArgumentError("the request for a buffer is no RecvBufRequest"));
  }
  tensorflow::CollectiveExecutor::Handle executor(
      env->collective_executor_mgr->FindOrCreate(message.step_id()), /*inherit_ref=*/true);
  executor.get()->remote_access()->buf_rendezvous()->ConsumeBuf(
      message.buf_rendezvous_key(), message.src_device(), message.src_incarnation(),
      [env, responder, key = message.buf_rendezvous_key()](const absl::Status& status, BufRendezvous::Hook* hook) {
        Consumed(env, responder, key, status, hook);
      },
      /*cancellation_manager=*/nullptr);
}

}  // namespace grpcxx_tensorflow
