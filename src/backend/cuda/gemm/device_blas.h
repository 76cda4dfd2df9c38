// What block methods ask of a device except products with their operator: cuBLAS, strided copies, transfers, all in one
// stream. Nothing waits but `wait`.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/runtime/kernels.h"
#include "core/devices/cuda_solver.h"
#include "mercer/tensor.h"

namespace mercer::cuda {

/// to = from, matrices of one shape and any strides; `kernel` is that of dense_kernels.
void move_dense(const Kernel& kernel, const PairJob& place, const Tensor& from, const Tensor& to);

/// Products of cuBLAS alone may be captured, with handles of this stream from a call before.
enum class Captures : std::uint8_t { refused, allowed };

class DeviceBlas {
 public:
  /// float32 or float64. Throws unsupported where there is no cuBLAS, and in a graph capture that is refused.
  DeviceBlas(const char* op, Device device, const Queue& queue, Dtype type, Captures captures = Captures::refused);
  DeviceBlas(const DeviceBlas&) = delete;
  DeviceBlas& operator=(const DeviceBlas&) = delete;

  const PairJob& place() const { return place_; }
  const CudaSolver& library() const { return library_; }
  const SolverHandles& handles() const { return handles_; }
  Dtype type() const { return place_.type; }

  /// c = alpha op(a) op(b) + beta c, column-major; op(a) [m, k], op(b) [k, n]. beta = 0: c may hold anything.
  void gemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
            const void* a, std::int64_t lda, const void* b, std::int64_t ldb, double beta, void* c,
            std::int64_t ldc) const;
  /// to = from, matrices of one shape and any strides.
  void move(const Tensor& from, const Tensor& to) const;

  /// Copies to the device, or to memory of the host, which is written once `wait` has returned.
  void copy(void* to, const void* from, std::size_t bytes) const;
  /// Copies from memory of the host, which may be released at once.
  void upload(void* to, const void* from, std::size_t bytes) const;
  void wait() const;

 private:
  Queue queue_;
  PairJob place_;
  CudaScope scope_;
  const CudaSolver& library_;
  SolverHandles handles_;
  Kernel dense_;
};

}  // namespace mercer::cuda
