#include "backend/block_basis.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cuda/gemm/device_blas.h"
#include "backend/cuda/linalg/small_eigen.h"
#include "backend/cuda/runtime/workspace.h"
#include "backend/small_matrix.h"
#include "core/error.h"
#include "core/integers.h"
#include "core/system/aligned.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kMostBlocks = 1024;
constexpr std::int64_t kMostBlock = 64;  // columns of a block whose factor a device makes
constexpr std::int64_t kFactorBytes = 2 * kMostBlock * kMostBlock * 8;
constexpr std::int64_t kGapBlocks = 8;  // that share a column

template <class T>
class Basis final : public BlockBasis {
 public:
  Basis(const Sizes& sizes, Device device, const Queue& queue)
      : BlockBasis(sizes), op_(sizes.op), n_(sizes.length), seed_(sizes.seed), device_(device),
        blas_(sizes.op, device, queue, dtype_of<T>()), kernels_(column_kernels(blas_.place())) {
    const auto add = [&](std::int64_t values, std::size_t bytes = sizeof(T)) {
      return memory_.add(checked_product({values, static_cast<std::int64_t>(bytes)}));
    };
    basis_ = add(checked_product({n_, sizes.columns}));
    results_ = add(checked_product({n_, sizes.results}));
    spare_ = add(checked_product({n_, sizes.most_block}));
    for (Pass& pass : passes_) {
      pass.coefficients = add(sizes.columns * sizes.most_block);
      pass.factor = add(sizes.most_block * sizes.most_block, sizeof(double));
    }
    gram_ = add(sizes.most_block * sizes.most_block);
    h_ = add(sizes.columns * sizes.columns, sizeof(double));
    put_off_ = add(1, sizeof(int));
    small_ = add(sizes.columns * std::max(sizes.results, sizes.most_block));
    values_ = add(sizes.results, sizeof(double));
    sums_ = add(sizes.results * kGapBlocks, sizeof(double));
    memory_.take(blas_.place());
    clear(memory_.at(h_), sizes.columns * sizes.columns * static_cast<std::int64_t>(sizeof(double)));
    clear(memory_.at(put_off_), sizeof(int));
  }

  Tensor basis(std::int64_t first, std::int64_t count) const override { return columns(basis_, first, count); }
  Tensor results(std::int64_t first, std::int64_t count) const override { return columns(results_, first, count); }

  void draw(std::int64_t first, std::int64_t count) override {
    ColumnArguments a{};
    a.data = column(first);
    a.rows = n_;
    a.columns = count;
    a.seed = seed_ + draws_++;
    launch_kernel("draw_columns", a, {std::min(ceil_div(n_ * count, kThreads), kMostBlocks), 1});
  }

  void fill(std::int64_t first, std::int64_t count, const std::vector<double>& values) override {
    upload(column(first), values, n_ * count);
  }

  std::vector<double> read(const Tensor& columns) override {
    std::vector<T> values(static_cast<std::size_t>(columns.count()));
    blas_.copy(values.data(), columns.data, values.size() * sizeof(T));
    blas_.wait();
    return {values.begin(), values.end()};
  }

  /// NaN and infinities reach the products of columns, which the host reads.
  bool seems_finite(const Tensor&) const override { return true; }

  /// Nothing waits: what is wrong with a block is told by put_off.
  void append(std::int64_t first, std::int64_t count) override {
    if (count > kMostBlock) return append_carefully(first, count);
    last_ = Last::on_device;
    count_ = count;
    for (const Pass& pass : passes_) {
      take_away(first, count, at(pass.coefficients));
      GramArguments a = arguments(first, count);
      a.factor = memory_.at<double>(pass.factor);
      launch_gram("factor_gram", a, 1, kFactorBytes);
      multiply_block(first, count);
    }
    GramArguments a = arguments(first, count);
    a.once = at(passes_[0].coefficients);
    a.again = at(passes_[1].coefficients);
    a.factor = memory_.at<double>(passes_[0].factor);
    launch_gram("record_products", a, ceil_div(first * count, kThreads), 0);
  }

  std::int64_t put_off() override {
    int first = 0;
    blas_.copy(&first, memory_.at(put_off_), sizeof first);
    blas_.wait();
    if (first == 0) return -1;
    clear(memory_.at(put_off_), sizeof(int));
    return first;
  }

  void append_carefully(std::int64_t first, std::int64_t count) override {
    last_ = Last::on_host;
    BlockBasis::append_carefully(first, count);
  }

  std::vector<double> last_factor() override {
    if (last_ == Last::on_host) return r_;
    const auto size = static_cast<std::size_t>(count_ * count_);
    std::vector<double> u[2] = {std::vector<double>(size), std::vector<double>(size)}, r(size, 0);
    for (int pass : {0, 1})
      blas_.copy(u[pass].data(), memory_.at(passes_[pass].factor), size * sizeof(double));
    blas_.wait();
    for (std::int64_t j = 0; j < count_; ++j)
      for (std::int64_t i = 0; i <= j; ++i)
        for (std::int64_t p = i; p <= j; ++p) r[i + j * count_] += u[1][i + p * count_] * u[0][p + j * count_];
    return r;
  }

  void restart(const std::vector<double>& values) override {
    const auto m = static_cast<std::int64_t>(values.size());
    std::vector<double> diagonal(static_cast<std::size_t>(m * m), 0);
    for (std::int64_t j = 0; j < m; ++j) diagonal[j * (m + 1)] = values[j];
    set_products(diagonal, m);
  }

  void set_products(const std::vector<double>& h, std::int64_t m) override {
    put_products(h.data(), m, 0, m);
  }

  void combine(std::int64_t held, std::int64_t count, const std::vector<double>& s) override {
    upload(at(small_), s, held * count);
    blas_.gemm(false, false, n_, count, held, 1, column(0), n_, at(small_), held, 0, at(results_), n_);
  }

  void copy(const Tensor& from, const Tensor& to) override { blas_.move(from, to); }

  std::vector<double> residuals(const Tensor& columns, const Tensor& product,
                                const std::vector<double>& values) override {
    const auto count = static_cast<std::int64_t>(values.size());
    double *const device_values = memory_.at<double>(values_), *const sums = memory_.at<double>(sums_);
    blas_.upload(device_values, values.data(), values.size() * sizeof(double));
    ColumnArguments a{};
    a.data = columns.data;
    a.product = product.data;
    a.values = device_values;
    a.sums = sums;
    a.rows = n_;
    launch_kernel("column_gaps", a, {kGapBlocks, count});
    std::vector<double> parts(static_cast<std::size_t>(count * kGapBlocks)), result(values.size(), 0);
    blas_.copy(parts.data(), sums, parts.size() * sizeof(double));
    blas_.wait();
    for (std::size_t i = 0; i < parts.size(); ++i) result[i / kGapBlocks] += parts[i];
    for (double& gap : result) gap = std::sqrt(gap);
    return result;
  }

  void write(const std::vector<double>& values, const Tensor& to) override {
    upload(at(small_), values, static_cast<std::int64_t>(values.size()));
    Tensor from(at(small_), dtype_of<T>(), {to.shape[0], 1}), column = to;
    column.shape.push_back(1);
    column.strides.push_back(1);
    blas_.move(from, column);
  }

  SmallPairs decompose(std::int64_t m, const Choice& choice) override {
    return small_eigen(blas_, pool_place(), memory_.at<double>(h_), sizes_.columns, m, choice);
  }

 protected:
  Projection project(std::int64_t first, std::int64_t count) override {
    std::vector<T> c(static_cast<std::size_t>(first * count)), gram(static_cast<std::size_t>(count * count));
    T *const coefficients = at(passes_[0].coefficients), *const squares = at(gram_);
    take_away(first, count, coefficients);
    if (first > 0) blas_.copy(c.data(), coefficients, c.size() * sizeof(T));
    blas_.copy(gram.data(), squares, gram.size() * sizeof(T));
    blas_.wait();
    return {{c.begin(), c.end()}, {gram.begin(), gram.end()}};
  }

  void divide(std::int64_t first, std::int64_t count, const std::vector<double>& u) override {
    upload(at(small_), SmallAlgebra(1).inverse_upper({count, count, u}).values, count * count);
    multiply_block(first, count);
  }

  void record(std::int64_t first, std::int64_t count, const std::vector<double>& c) override {
    HostProducts host(first);
    host.record(first, count, c);
    put_products(&host.at(0, first - count), first, first - count, count);
  }

 private:
  enum class Last { on_host, on_device };  // where the last block's factor is
  struct Pass {
    std::int64_t coefficients = 0, factor = 0;
  };

  T* at(std::int64_t place) const { return memory_.at<T>(place); }
  T* column(std::int64_t j) const { return at(basis_) + j * n_; }
  Tensor columns(std::int64_t place, std::int64_t first, std::int64_t count) const {
    Tensor t(at(place) + first * n_, dtype_of<T>(), {n_, count}, {1, n_});
    t.device = device_;
    return t;
  }
  /// block -= V V^T block, V^T block to `coefficients`; then its products with itself.
  void take_away(std::int64_t first, std::int64_t count, T* coefficients) const {
    T* const block = column(first);
    if (first > 0) {
      blas_.gemm(true, false, first, count, n_, 1, column(0), n_, block, n_, 0, coefficients, first);
      blas_.gemm(false, false, n_, count, first, -1, column(0), n_, coefficients, first, 1, block, n_);
    }
    blas_.gemm(true, false, count, count, n_, 1, block, n_, block, n_, 0, at(gram_), count);
  }
  /// Multiplies the block by what lies in small_.
  void multiply_block(std::int64_t first, std::int64_t count) const {
    blas_.gemm(false, false, n_, count, count, 1, column(first), n_, at(small_), count, 0, at(spare_), n_);
    blas_.copy(column(first), at(spare_), static_cast<std::size_t>(n_ * count) * sizeof(T));
  }
  /// Columns of H from `first` on, [rows, count] on the host. Zeros go below them, where nothing of H is read.
  void put_products(const double* h, std::int64_t rows, std::int64_t first, std::int64_t count) const {
    std::vector<double> whole(static_cast<std::size_t>(sizes_.columns * count), 0);
    for (std::int64_t j = 0; j < count; ++j) std::copy_n(h + j * rows, rows, whole.data() + j * sizes_.columns);
    blas_.upload(memory_.at<double>(h_) + first * sizes_.columns, whole.data(), whole.size() * sizeof(double));
  }
  GramArguments arguments(std::int64_t first, std::int64_t count) const {
    GramArguments a{};
    a.gram = at(gram_);
    a.inverse = at(small_);
    a.h = memory_.at<double>(h_);
    a.put_off = memory_.at<int>(put_off_);
    a.rounding = std::numeric_limits<T>::epsilon();
    a.least = std::numeric_limits<T>::min() * static_cast<double>(n_);
    a.first = first;
    a.count = count;
    a.stride = sizes_.columns;
    return a;
  }
  void launch_gram(const char* name, GramArguments& a, std::int64_t blocks, std::int64_t shared) const {
    const Kernel kernel{kernels_.module, &kernels_.module->function(name)};
    launch(kernel, blas_.place(), {blocks, 1}, kThreads, shared, a);
  }
  void clear(void* memory, std::int64_t bytes) const {
    check_cuda(cuda_driver()->set_bytes_async(reinterpret_cast<CuPointer>(memory), 0, static_cast<std::size_t>(bytes),
                                              blas_.place().stream()),
               op_);
  }
  void upload(T* to, const std::vector<double>& values, std::int64_t count) const {
    const std::vector<T> narrow(values.begin(), values.begin() + count);
    blas_.upload(to, narrow.data(), narrow.size() * sizeof(T));
  }
  void launch_kernel(const char* name, ColumnArguments& a, jit::Dim3 grid) const {
    const Kernel kernel{kernels_.module, &kernels_.module->function(name)};
    launch(kernel, blas_.place(), grid, kThreads, 0, a);
  }
  /// The stream of `blas_`, with memory from the pool: the queue's is asked for once.
  PairJob pool_place() const {
    PairJob place = blas_.place();
    place.queue = &pool_queue_;
    return place;
  }

  const char* op_;
  const std::int64_t n_;
  const std::uint64_t seed_;
  std::uint64_t draws_ = 0;
  const Device device_;
  DeviceBlas blas_;
  Queue pool_queue_{blas_.place().queue->stream};
  Kernel kernels_;
  Workspace memory_;
  std::int64_t basis_ = 0, results_ = 0, spare_ = 0, gram_ = 0, small_ = 0, values_ = 0, sums_ = 0, h_ = 0,
               put_off_ = 0, count_ = 0;
  Pass passes_[2];
  Last last_ = Last::on_host;
};

}  // namespace

std::unique_ptr<BlockBasis> block_basis(const BlockBasis::Sizes& sizes, Device device, const Queue& queue) {
  if (sizes.type == Dtype::float64) return std::make_unique<Basis<double>>(sizes, device, queue);
  return std::make_unique<Basis<float>>(sizes, device, queue);
}

}  // namespace mercer::cuda
