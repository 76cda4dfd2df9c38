#include "backend/low_rank.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cuda/device_blas.h"
#include "backend/cuda/few_columns.h"
#include "backend/cuda/workspace.h"
#include "core/aligned.h"
#include "core/error.h"
#include "core/integers.h"
#include "kernels/cuda/arguments.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kMostBlocks = 256;

/// Its memory belongs to no stream: it may outlive that in which it was made.
class Factor final : public TallFactor {
 public:
  Factor(const char* op, Dtype type, std::int64_t length, std::int64_t rank, Device device) : device_(device) {
    const std::int64_t bytes = checked_product({length, rank, static_cast<std::int64_t>(size_of(type))});
    const CudaScope scope(device.index);
    check_cuda(need_cuda(op).memory_alloc(&memory_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))), op,
               bytes);
    columns_ = Tensor(reinterpret_cast<void*>(memory_), type, {length, rank}, {1, length});
    columns_.device = device;
  }
  ~Factor() override {
    try {
      const CudaScope scope(device_.index);
      cuda_driver()->memory_free(memory_);  // waits for what still reads it
    } catch (const Error&) {  // the context is lost, and the memory with it
    }
  }
  Factor(const Factor&) = delete;
  Factor& operator=(const Factor&) = delete;

  Tensor columns() const override { return columns_; }

  void copy(void* host, bool to_host) const override {
    const DeviceBlas blas("Preconditioner", device_, Queue{}, columns_.dtype);
    void* const own = columns_.data;
    const std::int64_t values = columns_.shape[0] * columns_.shape[1];
    blas.copy(to_host ? host : own, to_host ? own : host, static_cast<std::size_t>(values) * size_of(columns_.dtype));
    blas.wait();
  }

  void apply(double scale, const Tensor& r, const Tensor& out, const Queue& queue) const override {
    const std::int64_t n = r.shape[0], k = r.shape[1], rank = columns_.shape[1];
    if (n == 0 || k == 0) return;
    if (k <= few_columns_of(columns_.dtype)) return apply_in(scale, r, out, queue);  // with the bits of captured calls
    const DeviceBlas blas("cg", device_, queue, columns_.dtype, Captures::allowed);
    few_columns_kernels(blas.place());  // a capture after this call has them
    Workspace memory;
    const std::int64_t parts =
        memory.add(checked_product({rank, k, static_cast<std::int64_t>(size_of(columns_.dtype))}));
    memory.take(blas.place());
    blas.gemm(true, false, rank, k, n, 1, columns_.data, n, r.data, r.strides[1], 0, memory.at(parts), rank);
    blas.move(r, out);
    blas.gemm(false, false, n, k, rank, -scale, columns_.data, n, memory.at(parts), rank, scale, out.data,
              out.strides[1]);
  }

  void apply_in(double scale, const Tensor& r, const Tensor& out, const Queue& queue) const override {
    const std::int64_t n = r.shape[0], k = r.shape[1], rank = columns_.shape[1];
    if (n == 0 || k == 0) return;
    const PairJob place = place_of("cg", device_, queue, columns_.dtype);
    const JobScope scope(place);
    Tensor rows = columns_;
    std::swap(rows.shape[0], rows.shape[1]);
    std::swap(rows.strides[0], rows.strides[1]);
    const FewColumns project(place, rows, k), expand(place, columns_, k);
    Workspace memory;
    const std::int64_t sums = memory.add(std::max(project.bytes(), expand.bytes()));
    const std::int64_t part = memory.add(checked_product({rank, k, static_cast<std::int64_t>(size_of(r.dtype))}));
    if (!memory.take(place)) return;
    const Tensor parts(memory.at(part), r.dtype, {rank, k}, {1, rank});
    project.run(r, parts, memory.at(sums));
    expand.run(parts, out, memory.at(sums), -scale, &r, scale);
  }

 private:
  const Device device_;
  CuPointer memory_ = 0;
  Tensor columns_;
};

class Pivots final : public PivotedColumns {
 public:
  Pivots(const char* op, Dtype type, std::int64_t length, Device device, const Queue& queue)
      : n_(length), blas_(op, device, queue, type), kernels_(pivot_kernels(blas_.place())),
        blocks_(std::clamp<std::int64_t>(ceil_div(length, kThreads), 1, kMostBlocks)) {
    constexpr std::int64_t kBytes = 8;
    const std::int64_t left = memory_.add(length * kBytes), values = memory_.add(blocks_ * kBytes),
                       indices = memory_.add(blocks_ * kBytes);
    memory_.take(blas_.place());
    a_.left = memory_.at<double>(left);
    a_.values = memory_.at<double>(values);
    a_.indices = memory_.at<long long>(indices);
    a_.rows = length;
  }

  Start begin(const Tensor& diagonal) override {
    a_.diagonal = diagonal.data;
    a_.diagonal_step = diagonal.strides[0];
    const Pivot first = run("begin_pivots");
    std::vector<double> left(static_cast<std::size_t>(n_));
    blas_.copy(left.data(), a_.left, left.size() * sizeof(double));
    blas_.wait();
    return {first, *std::min_element(left.begin(), left.end())};
  }

  Pivot add(const Tensor& columns, Pivot pivot) override {
    const auto bytes = static_cast<std::int64_t>(size_of(blas_.type()));
    const std::int64_t before = columns.shape[1] - 1;
    char* const all = static_cast<char*>(columns.data);
    char* const column = all + before * n_ * bytes;
    if (before > 0)
      blas_.gemm(false, true, n_, 1, before, -1, all, n_, all + pivot.index * bytes, n_, 1, column, n_);
    a_.column = column;
    a_.pivot = pivot.index;
    a_.root = std::sqrt(pivot.left);
    return run("add_pivot");
  }

 private:
  Pivot run(const char* name) {
    const Kernel kernel{kernels_.module, &kernels_.module->function(name)};
    launch(kernel, blas_.place(), {blocks_, 1}, kThreads, 0, a_);
    std::vector<double> values(static_cast<std::size_t>(blocks_));
    std::vector<long long> indices(values.size());
    blas_.copy(values.data(), a_.values, values.size() * sizeof(double));
    blas_.copy(indices.data(), a_.indices, indices.size() * sizeof(long long));
    blas_.wait();
    Pivot most{0, 0};
    for (std::size_t block = 0; block < values.size(); ++block) {
      if (!std::isfinite(values[block])) return {indices[block], std::numeric_limits<double>::quiet_NaN()};
      const bool is_more = values[block] > most.left || (values[block] == most.left && indices[block] < most.index);
      if (block == 0 || is_more) most = {indices[block], values[block]};
    }
    return most;
  }

  const std::int64_t n_;
  const DeviceBlas blas_;
  const Kernel kernels_;
  const std::int64_t blocks_;
  Workspace memory_;
  PivotArguments a_{};
};

}  // namespace

std::shared_ptr<TallFactor> tall_factor(const char* op, Dtype type, std::int64_t length, std::int64_t rank,
                                        Device device) {
  return std::make_shared<Factor>(op, type, length, rank, device);
}

std::unique_ptr<PivotedColumns> pivoted_columns(const char* op, Dtype type, std::int64_t length, Device device,
                                                const Queue& queue) {
  return std::make_unique<Pivots>(op, type, length, device, queue);
}

}  // namespace mercer::cuda
