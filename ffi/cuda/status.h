// The outcome of a host call: empty, or the cause of its failure in words.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

namespace ozaki {

class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(std::string cause) : cause_(std::move(cause)) {}

  // `what` is the call that returned `error`.
  static Status from(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return Status();
    cudaGetLastError();  // reported here: not to be found by whoever looks next
    return Status(std::string(what) + ": " + cudaGetErrorName(error) + ": " +
                  cudaGetErrorString(error));
  }

  bool ok() const { return cause_.empty(); }
  const std::string& cause() const { return cause_; }

 private:
  std::string cause_;
};

}  // namespace ozaki

// Leaves the enclosing function with the status of `call`, a cudaError_t, unless it succeeded.
#define OZAKI_RETURN_IF_CUDA_ERROR(call)                          \
  do {                                                            \
    if (const cudaError_t error = (call); error != cudaSuccess) { \
      return ::ozaki::Status::from(error, #call);                 \
    }                                                             \
  } while (false)

// The same for a call that returns a Status.
#define OZAKI_RETURN_IF_ERROR(call)                                   \
  do {                                                                \
    if (::ozaki::Status status = (call); !status.ok()) return status; \
  } while (false)
