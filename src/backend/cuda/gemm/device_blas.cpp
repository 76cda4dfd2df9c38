#include "backend/cuda/gemm/device_blas.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/runtime/uploads.h"
#include "core/error.h"
#include "core/integers.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kTile = 64, kThreads = 256;  // of move_dense

/// A number on the host, of the type of the arrays.
struct Factor {
  float single;
  double wide;
  explicit Factor(double value) : single(static_cast<float>(value)), wide(value) {}
  const void* at(bool is_wide) const { return is_wide ? static_cast<const void*>(&wide) : &single; }
};

DenseSide side_of(const Tensor& t) {
  DenseSide side{};
  side.data = t.data;
  side.row = t.strides[0];
  side.col = t.strides[1];
  return side;
}

}  // namespace

DeviceBlas::DeviceBlas(const char* op, Device device, const Queue& queue, Dtype type, Captures captures)
    : queue_(queue), place_(place_of(op, device, queue_, type)), scope_(device.index), library_(need_cuda_solver(op)),
      handles_(device.index, static_cast<CuStream>(queue.stream), op) {
  require(captures == Captures::allowed || !cuda_is_capturing(device.index, place_.stream()),
          "{}: linear algebra must stay out of the capture of a CUDA graph. Received a capturing stream.", op);
  dense_ = dense_kernels(place_);
}

void DeviceBlas::gemm(bool a_transposed, bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                      double alpha, const void* a, std::int64_t lda, const void* b, std::int64_t ldb, double beta,
                      void* c, std::int64_t ldc) const {
  for (const std::int64_t size : {m, n, k, lda, ldb, ldc})
    require(size <= std::numeric_limits<int>::max(), "{}: sizes on CUDA must fit in 32 bits. Received {}.", place_.op,
            size);
  if (m == 0 || n == 0) return;
  const bool wide = type() == Dtype::float64;
  const Factor scale(alpha), kept(beta);
  const auto op = [](bool transposed) { return transposed ? kCuTransposed : kCuPlain; };
  check_solver(library_.gemm[wide](handles_.blas(), op(a_transposed), op(b_transposed), static_cast<int>(m),
                                   static_cast<int>(n), static_cast<int>(k), scale.at(wide), a, static_cast<int>(lda),
                                   b, static_cast<int>(ldb), kept.at(wide), c, static_cast<int>(ldc)),
               place_.op, "cublasGemm");
}

void move_dense(const Kernel& kernel, const PairJob& place, const Tensor& from, const Tensor& to) {
  DenseArguments a{};
  a.from = side_of(from);
  a.to = side_of(to);
  a.rows = from.shape[0];
  a.cols = from.shape[1];
  if (a.rows == 0 || a.cols == 0) return;
  launch(kernel, place, {ceil_div(a.rows, kTile) * ceil_div(a.cols, kTile), 1}, kThreads, 0, a);
}

void DeviceBlas::move(const Tensor& from, const Tensor& to) const { move_dense(dense_, place_, from, to); }

void DeviceBlas::copy(void* to, const void* from, std::size_t bytes) const {
  check_cuda(cuda_driver()->copy_async(reinterpret_cast<CuPointer>(to), reinterpret_cast<CuPointer>(from), bytes,
                                       place_.stream()),
             place_.op);
}

void DeviceBlas::upload(void* to, const void* from, std::size_t bytes) const {
  cuda::upload(place_, to, from, bytes);
}

void DeviceBlas::wait() const { check_cuda(cuda_driver()->stream_synchronize(place_.stream()), place_.op); }

}  // namespace mercer::cuda
