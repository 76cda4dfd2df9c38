#include "backend/low_rank.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cuda/gemm/device_blas.h"
#include "backend/cuda/gemm/few_columns.h"
#include "backend/cuda/runtime/uploads.h"
#include "backend/cuda/runtime/workspace.h"
#include "core/error.h"
#include "core/integers.h"
#include "core/system/aligned.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kMostBlocks = 1024;
constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));

void launch_low_rank(const PairJob& place, const char* name, LowRankArguments& a, std::int64_t elements) {
  const Kernel kernels = low_rank_kernels(place);
  const Kernel kernel{kernels.module, &kernels.module->function(name)};
  const std::int64_t blocks = std::clamp<std::int64_t>(ceil_div(elements, kThreads), 1, kMostBlocks);
  launch(kernel, place, {blocks, 1}, kThreads, 0, a);
}

/// Memory that belongs to no stream: it may outlive that in which it was made.
class DeviceMemory {
 public:
  DeviceMemory(const char* op, std::int64_t bytes, Device device) : device_(device) {
    const CudaScope scope(device.index);
    check_cuda(need_cuda(op).memory_alloc(&memory_, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))), op,
               bytes);
  }
  ~DeviceMemory() {
    try {
      const CudaScope scope(device_.index);
      cuda_driver()->memory_free(memory_);  // waits for what still reads it
    } catch (const Error&) {  // the context is lost, and the memory with it
    }
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  template <class T = void>
  T* at(std::int64_t place = 0) const {
    return reinterpret_cast<T*>(memory_) + place;
  }
  void* data() const { return reinterpret_cast<void*>(memory_); }

 private:
  const Device device_;
  CuPointer memory_ = 0;
};

/// One product more than U's, whose weights lie on the device.
class Map final : public LowRankMap {
 public:
  Map(std::shared_ptr<const TallFactor> factor, const LowRankWeights& weights, const Queue& queue)
      : factor_(std::move(factor)), columns_(factor_->columns()), count_(weights.count()), scale_(weights.scales[0]),
        rank_(columns_.shape[1]),
        memory_("cg", (static_cast<std::int64_t>(weights.weights.size()) + count_) * kDouble, columns_.device) {
    const PairJob place = place_of("Preconditioner", columns_.device, queue, columns_.dtype);
    const CudaScope scope(place.device);
    upload(place, memory_.data(), weights.weights.data(), weights.weights.size() * sizeof(double));
    upload(place, scales(), weights.scales.data(), weights.scales.size() * sizeof(double));
    check_cuda(cuda_driver()->stream_synchronize(place.stream()), place.op);
  }

  void apply(const Tensor& r, const Tensor& out, const Queue& queue) const override {
    const std::int64_t n = r.shape[0], k = r.shape[1];
    if (n == 0 || k == 0) return;
    const bool is_captured = cuda_is_capturing(columns_.device.index, static_cast<CuStream>(queue.stream));
    if (is_captured || k <= few_columns_of(columns_.dtype)) return apply_in(r, out, queue);  // of one k, the same bits
    const DeviceBlas blas("cg", columns_.device, queue, columns_.dtype);
    few_columns_kernels(blas.place());  // a capture after this call has them
    Workspace memory;
    const std::int64_t part =
        memory.add(checked_product({rank_, k, static_cast<std::int64_t>(size_of(columns_.dtype))}));
    memory.take(blas.place());
    blas.gemm(true, false, rank_, k, n, 1, columns_.data, n, r.data, r.strides[1], 0, memory.at(part), rank_);
    weigh_parts(blas.place(), parts_at(memory.at(part), k));
    blas.move(r, out);
    blas.gemm(false, false, n, k, rank_, -outer_scale(), columns_.data, n, memory.at(part), rank_, outer_scale(),
              out.data, out.strides[1]);
    scale_columns(blas.place(), out);
  }

  void apply_in(const Tensor& r, const Tensor& out, const Queue& queue) const override {
    const std::int64_t n = r.shape[0], k = r.shape[1];
    if (n == 0 || k == 0) return;
    const PairJob place = place_of("cg", columns_.device, queue, columns_.dtype);
    const JobScope scope(place);
    Tensor rows = columns_;
    std::swap(rows.shape[0], rows.shape[1]);
    std::swap(rows.strides[0], rows.strides[1]);
    const FewColumns project(place, rows, k), expand(place, columns_, k);
    Workspace memory;
    const std::int64_t sums = memory.add(std::max(project.bytes(), expand.bytes()));
    const std::int64_t part = memory.add(checked_product({rank_, k, static_cast<std::int64_t>(size_of(r.dtype))}));
    low_rank_kernels(place);  // a rehearsal finds them
    if (!memory.take(place)) return;
    const Tensor parts = parts_at(memory.at(part), k);
    project.run(r, parts, memory.at(sums));
    weigh_parts(place, parts);
    expand.run(parts, out, memory.at(sums), -outer_scale(), &r, outer_scale());
    scale_columns(place, out);
  }

 private:
  double* scales() const { return memory_.at<double>(count_ * rank_); }
  /// One scale goes with the product.
  double outer_scale() const { return count_ == 1 ? scale_ : 1; }
  Tensor parts_at(void* memory, std::int64_t k) const { return {memory, columns_.dtype, {rank_, k}, {1, rank_}}; }

  void weigh_parts(const PairJob& place, const Tensor& parts) const {
    LowRankArguments a{};
    a.to = parts.data;
    a.from = parts.data;
    a.rows = parts.shape[0];
    a.columns = parts.shape[1];
    a.to_step = a.from_step = parts.strides[1];
    a.weights = memory_.at<double>();
    a.row_step = 1;
    a.column_step = count_ == 1 ? 0 : rank_;
    launch_low_rank(place, "weigh_elements", a, parts.count());
  }
  void scale_columns(const PairJob& place, const Tensor& out) const {
    if (count_ == 1) return;
    LowRankArguments a{};
    a.to = out.data;
    a.from = out.data;
    a.rows = out.shape[0];
    a.columns = out.shape[1];
    a.to_step = a.from_step = out.strides[1];
    a.column_weights = scales();
    launch_low_rank(place, "weigh_elements", a, out.count());
  }

  const std::shared_ptr<const TallFactor> factor_;
  const Tensor columns_;
  const std::int64_t count_;
  const double scale_;
  const std::int64_t rank_;
  const DeviceMemory memory_;
};

class Factor final : public TallFactor {
 public:
  Factor(const char* op, Dtype type, std::int64_t length, std::int64_t rank, Device device)
      : device_(device),
        memory_(op, checked_product({length, rank, static_cast<std::int64_t>(size_of(type))}), device),
        columns_(memory_.data(), type, {length, rank}, {1, length}) {
    columns_.device = device;
  }

  Tensor columns() const override { return columns_; }

  void copy(void* host, bool to_host) const override {
    const DeviceBlas blas("Preconditioner", device_, Queue{}, columns_.dtype);
    void* const own = columns_.data;
    const std::int64_t values = columns_.shape[0] * columns_.shape[1];
    const std::size_t bytes = static_cast<std::size_t>(values) * size_of(columns_.dtype);
    if (to_host)
      blas.copy(host, own, bytes);
    else
      blas.upload(own, host, bytes);
    blas.wait();
  }

  std::unique_ptr<LowRankMap> map(const LowRankWeights& weights, const Queue& queue) const override {
    return std::make_unique<Map>(shared_from_this(), weights, queue);
  }

  std::vector<double> row_squares(const std::vector<double>& weights, const Queue& queue) const override {
    const DeviceBlas blas("Preconditioner", device_, without_memory(queue), columns_.dtype);
    Workspace memory;
    const std::int64_t n = columns_.shape[0], rank = columns_.shape[1];
    const std::int64_t sums = memory.add(n * kDouble), own = memory.add(rank * kDouble);
    memory.take(blas.place());
    blas.upload(memory.at(own), weights.data(), weights.size() * sizeof(double));
    LowRankArguments a{};
    a.from = columns_.data;
    a.rows = n;
    a.columns = rank;
    a.from_step = n;
    a.column_weights = memory.at<double>(own);
    a.sums = memory.at<double>(sums);
    launch_low_rank(blas.place(), "sum_squares", a, n);
    std::vector<double> found(static_cast<std::size_t>(n));
    blas.copy(found.data(), a.sums, found.size() * sizeof(double));
    blas.wait();
    return found;
  }

  void scaled(const std::vector<double>& rows, const std::vector<double>& columns, const Tensor& to,
              const Queue& queue) const override {
    const DeviceBlas blas("Preconditioner", device_, without_memory(queue), columns_.dtype);
    Workspace memory;
    const std::int64_t of_rows = memory.add(static_cast<std::int64_t>(rows.size()) * kDouble);
    const std::int64_t of_columns = memory.add(static_cast<std::int64_t>(columns.size()) * kDouble);
    memory.take(blas.place());
    blas.upload(memory.at(of_rows), rows.data(), rows.size() * sizeof(double));
    blas.upload(memory.at(of_columns), columns.data(), columns.size() * sizeof(double));
    LowRankArguments a{};
    a.to = to.data;
    a.to_step = to.strides[1];
    a.from = columns_.data;
    a.from_step = a.rows = columns_.shape[0];
    a.columns = columns_.shape[1];
    a.weights = memory.at<double>(of_rows);
    a.row_step = 1;
    a.column_weights = memory.at<double>(of_columns);
    launch_low_rank(blas.place(), "weigh_elements", a, columns_.count());
    blas.wait();
  }

 private:
  static Queue without_memory(Queue queue) {
    queue.allocate = {};
    return queue;
  }

  const Device device_;
  const DeviceMemory memory_;
  Tensor columns_;
};

/// What is left of the diagonal is the host's, which chooses; the device has the columns.
class Pivots final : public PivotedColumns {
 public:
  Pivots(const char* op, Dtype type, std::int64_t length, Device device, const Queue& queue)
      : n_(length), blas_(op, device, queue, type), left_(static_cast<std::size_t>(length)) {}

  void begin(const Tensor& diagonal) override {
    Workspace memory;
    LowRankArguments a{};
    const std::int64_t values = memory.add(n_ * kDouble);
    std::vector<long long> all(left_.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<long long>(i);
    const std::int64_t places = memory.add(n_ * kDouble);
    memory.take(blas_.place());
    blas_.upload(memory.at(places), all.data(), all.size() * sizeof(long long));
    a.from = diagonal.data;
    a.rows = n_;
    a.columns = 1;
    a.indices = memory.at<long long>(places);
    a.values = memory.at<double>(values);
    launch_low_rank(blas_.place(), "move_rows", a, n_);
    blas_.copy(left_.data(), a.values, left_.size() * sizeof(double));
    blas_.wait();
  }

  std::vector<double>& left() override { return left_; }

  SmallMatrix rows(const Tensor& columns, const std::vector<std::int64_t>& indices) override {
    SmallMatrix found(static_cast<std::int64_t>(indices.size()), columns.shape[1]);
    if (found.values.empty()) return found;
    Workspace memory;
    const std::int64_t places = memory.add(found.rows * kDouble),
                       values = memory.add(found.rows * found.cols * kDouble);
    memory.take(blas_.place());
    LowRankArguments a = some_rows(columns, memory.at<double>(values), memory.at<long long>(places), indices);
    a.from = columns.data;
    launch_low_rank(blas_.place(), "move_rows", a, found.rows * found.cols);
    blas_.copy(found.values.data(), a.values, found.values.size() * sizeof(double));
    blas_.wait();
    return found;
  }

  void add(const Tensor& columns, const std::vector<std::int64_t>& pivots, const SmallMatrix& above,
           const SmallMatrix& factor) override {
    const std::int64_t count = factor.cols, before = columns.shape[1] - count;
    const auto bytes = static_cast<std::int64_t>(size_of(blas_.type()));
    char* const all = static_cast<char*>(columns.data);
    char* const block = all + before * n_ * bytes;
    Workspace memory;
    const std::int64_t spare = memory.add(checked_product({n_, count, bytes})),
                       small = memory.add(std::max(before, count) * count * bytes), sums = memory.add(n_ * kDouble),
                       places = memory.add(count * kDouble), values = memory.add(count * count * kDouble);
    memory.take(blas_.place());
    if (before > 0) {
      upload(memory.at(small), above.values);
      blas_.gemm(false, true, n_, count, before, -1, all, n_, memory.at(small), count, 1, block, n_);
    }
    upload(memory.at(small), SmallAlgebra(1).inverse_upper(factor).values);
    blas_.gemm(false, false, n_, count, count, 1, block, n_, memory.at(small), count, 0, memory.at(spare), n_);
    blas_.copy(block, memory.at(spare), static_cast<std::size_t>(n_ * count * bytes));
    Tensor added = columns;
    added.data = block;
    added.shape = {n_, count};
    put_pivots(added, pivots, factor, memory.at<double>(values), memory.at<long long>(places));
    subtract_squares(added, memory.at<double>(sums));
    for (const std::int64_t pivot : pivots) left_[pivot] = 0;
  }

 private:
  LowRankArguments some_rows(const Tensor& columns, double* values, long long* places,
                             const std::vector<std::int64_t>& indices) const {
    const std::vector<long long> at(indices.begin(), indices.end());
    blas_.upload(places, at.data(), at.size() * sizeof(long long));
    LowRankArguments a{};
    a.rows = static_cast<long long>(indices.size());
    a.columns = columns.shape[1];
    a.from_step = a.to_step = n_;
    a.indices = places;
    a.values = values;
    return a;
  }

  /// Rounding does not touch what the factor says of its own rows.
  void put_pivots(const Tensor& added, const std::vector<std::int64_t>& pivots, const SmallMatrix& factor,
                  double* values, long long* places) const {
    const SmallMatrix own = transposed(factor);
    blas_.upload(values, own.values.data(), own.values.size() * sizeof(double));
    LowRankArguments a = some_rows(added, values, places, pivots);
    a.to = added.data;
    launch_low_rank(blas_.place(), "move_rows", a, own.rows * own.cols);
  }

  void subtract_squares(const Tensor& added, double* sums) {
    LowRankArguments a{};
    a.from = added.data;
    a.from_step = a.rows = n_;
    a.columns = added.shape[1];
    a.sums = sums;
    launch_low_rank(blas_.place(), "sum_squares", a, n_);
    std::vector<double> taken(left_.size());
    blas_.copy(taken.data(), sums, taken.size() * sizeof(double));
    blas_.wait();
    for (std::size_t i = 0; i < left_.size(); ++i) left_[i] -= taken[i];
  }

  void upload(void* to, const std::vector<double>& values) const {
    if (blas_.type() == Dtype::float64) {
      blas_.upload(to, values.data(), values.size() * sizeof(double));
      return;
    }
    const std::vector<float> narrow(values.begin(), values.end());
    blas_.upload(to, narrow.data(), narrow.size() * sizeof(float));
  }

  const std::int64_t n_;
  const DeviceBlas blas_;
  std::vector<double> left_;
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
