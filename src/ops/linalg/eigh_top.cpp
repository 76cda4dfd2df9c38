// The end of a spectrum by products alone. With a basis V of orthonormal columns, grown by a block Q at a time,
//
//   W = a Q;  C = V^T W;  W - V C = Q' R;  V = [V Q']          a V = V H + Q' [0 R],  H = V^T a V, its last block C
//
// eigenpairs (t, s) of H give t, u = V s with |a u - t u| = |R s_last|. When the basis is full it becomes the best
// vectors u and Q', and H the diagonal of their t.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/system/parallel.h"
#include "ops/linalg/block_method.h"

namespace mercer::linalg {
namespace {

constexpr std::int64_t kLeastBlock = 8, kMostBlock = 64, kLeastBasis = 96;
/// Columns that a product takes at little more than the time of one: most of it goes into the pairs, or into reading a
/// matrix, and tensor cores compute so many at once. Fewer products make up for the larger block.
constexpr std::int64_t kCheapBlock = 16;
/// Vectors of a basis for each that is wanted: Gauss needs six, Laplace seven and Matern eight. Restarts cost more than
/// memory.
constexpr std::int64_t kBasisOfPair = 10;
constexpr int kMostRestarts = 60;
/// Orders up to here are decomposed as they are: the operator's columns are its products with the identity.
constexpr std::int64_t kDense = 192;
/// Small problems that are solved to see how far the residuals are: the first with so many vectors for each that is
/// wanted, the next where their rate says that they are there, but not this many blocks later.
constexpr std::int64_t kFirstLook = 6, kFarthestLook = 6;
/// How much faster residuals fall after the first look than they did on average before: 1.6 to 2.3 times for kernels.
/// A look too many costs more than a block too many.
constexpr double kQuickening = 1.5;

/// Indices of the k wanted values of an ascending list, ascending too.
std::vector<std::int64_t> wanted_of(const std::vector<double>& values, std::int64_t k, Which which) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  if (which == Which::largest) std::reverse(order.begin(), order.end());
  if (which == Which::magnitude)
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int64_t i, std::int64_t j) { return std::abs(values[i]) > std::abs(values[j]); });
  order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

double scale_of(const std::vector<double>& values) {
  return std::max(std::abs(values.front()), std::abs(values.back()));
}

class Lanczos {
 public:
  /// The method for a times `unit`.
  Lanczos(const char* op, const Operator& a, double unit, std::int64_t k, const TopOptions& options, Context& context)
      : op_(op), a_(a), unit_(unit), n_(a.order), k_(k), options_(options) {
    block_ = std::clamp(std::max(k / 2, std::min(4 * k, kCheapBlock)), kLeastBlock, kMostBlock);
    block_ = std::min(block_, n_);
    const std::int64_t wanted = options.most_basis > 0 ? options.most_basis : std::max(kBasisOfPair * k, kLeastBasis);
    most_ = std::max(std::min(wanted, n_), k + 2 * block_);
    stride_ = most_ + 2 * block_;
    is_dense_ = n_ <= std::max(kDense, stride_);
    tolerance_ = options.tolerance > 0 ? options.tolerance : a.dtype == Dtype::float32 ? 2e-6 : 1e-10;
    const BlockBasis::Sizes sizes{.op = op,
                                  .type = a.dtype,
                                  .length = n_,
                                  .columns = is_dense_ ? n_ : stride_,
                                  .results = is_dense_ ? n_ : std::max(2 * k_, most_),
                                  .most_block = is_dense_ ? n_ : block_,
                                  .seed = options.seed};
    basis_ = ops::block_basis(a, sizes, context);
  }

  /// Pairs that miss the tolerance.
  std::int64_t run(const Tensor& w, const Tensor& v) { return is_dense_ ? run_dense(w, v) : run_blocks(w, v); }
  /// Whether eigenvalues are so small that squares of products may have been lost.
  bool seems_tiny() const {
    const double scale = is_dense_ || unit_ != 1 ? 0 : scale_of(pairs_.values);
    return scale > 0 && scale < ops::least_size(a_.dtype);
  }

 private:
  void multiply(const Tensor& v, const Tensor& out) const {
    stop_if_cancelled();
    a_.multiply(v, out);
    if (!basis_->seems_finite(out)) fail_products();
  }
  [[noreturn]] void fail_products() const {
    fail(ErrorKind::numerical,
         "{}: products with the operator must be finite, as must be their squares. Received NaN, infinity or larger "
         "ones.",
         op_);
  }

  SmallPairs decompose(std::int64_t m, std::int64_t count) {
    return basis_->decompose(
        m, [&](const std::vector<double>& values) { return wanted_of(values, count, options_.which); });
  }

  std::vector<double> wanted_values() const {
    std::vector<double> values;
    for (const std::int64_t index : pairs_.wanted) values.push_back(pairs_.values[index]);
    return values;
  }

  void write_values(const Tensor& w) {
    std::vector<double> values = wanted_values();
    for (double& value : values) value *= unit_;
    basis_->write(values, w);
  }

  /// Decomposes the whole matrix, which its products with the identity give.
  std::int64_t run_dense(const Tensor& w, const Tensor& v) {
    std::vector<double> identity(static_cast<std::size_t>(n_ * n_), 0);
    for (std::int64_t i = 0; i < n_; ++i) identity[i * (n_ + 1)] = 1;
    basis_->fill(0, n_, identity);
    multiply(basis_->basis(0, n_), basis_->results(0, n_));
    std::vector<double> matrix = basis_->read(basis_->results(0, n_));
    for (const double value : matrix)
      if (!std::isfinite(value)) fail_products();
    for (std::int64_t i = 0; i < n_; ++i)
      for (std::int64_t j = 0; j < i; ++j)
        matrix[i + j * n_] = matrix[j + i * n_] = 0.5 * (matrix[i + j * n_] + matrix[j + i * n_]);
    basis_->set_products(matrix, n_);
    pairs_ = decompose(n_, k_);
    basis_->combine(n_, k_, pairs_.vectors);
    basis_->copy(basis_->results(0, k_), v);
    write_values(w);
    return 0;
  }

  std::int64_t run_blocks(const Tensor& w, const Tensor& v) {
    basis_->draw(0, block_);
    basis_->append_carefully(0, block_);
    std::int64_t missed = k_;
    look_at_ = kFirstLook * k_;
    for (int restart = 0, measured = 0; restart < kMostRestarts && measured < 3; ++restart) {
      while (held_ + 2 * block_ <= stride_ && held_ + block_ <= most_) {
        extend(false);
        const bool full = held_ + block_ > most_;
        if (!full && held_ < look_at_) continue;
        if (!is_sound()) {
          if (is_lost()) return k_;
          continue;
        }
        const bool near = is_near();
        if (seems_tiny()) return k_;
        if (!near) continue;
        ++measured;
        missed = measure(w, v);
        if (missed == 0) return 0;
        look_at_ = held_ + block_;
      }
      thicken();
    }
    if (measured_once_) return missed;
    pairs_ = decompose(held_, k_);
    return measure(w, v);
  }

  /// The block after the basis is multiplied and becomes part of it.
  void extend(bool carefully) {
    const std::int64_t m = held_ + block_;
    multiply(basis_->basis(held_, block_), basis_->basis(m, block_));
    held_ = m;
    if (carefully)
      basis_->append_carefully(m, block_);
    else
      basis_->append(m, block_);
  }

  /// False where a block was put off: it has been made, and those after it are to be made anew.
  bool is_sound() {
    const std::int64_t first = basis_->put_off();
    if (first < 0) return true;
    held_ = first - block_;
    extend(true);
    return false;
  }

  /// Whether the first block that was put off had nothing left because a is too small to be squared.
  bool is_lost() {
    if (unit_ != 1 || std::exchange(has_looked_, true)) return false;
    for (const double length : basis_->last_factor())
      if (std::abs(length) >= ops::least_size(a_.dtype)) return false;
    pairs_ = decompose(held_, k_);
    return seems_tiny();
  }

  /// Whether the wanted pairs should meet the tolerance, by what the recurrence says of their residuals; if not, when
  /// to look again.
  bool is_near() {
    const std::vector<double> r = basis_->last_factor();
    pairs_ = decompose(held_, k_);
    double largest = 0;
    for (std::size_t pair = 0; pair < pairs_.wanted.size(); ++pair) {
      const double* s = pairs_.vectors.data() + static_cast<std::int64_t>(pair) * held_ + held_ - block_;
      double squares = 0;
      for (std::int64_t i = 0; i < block_; ++i) {
        double sum = 0;
        for (std::int64_t p = i; p < block_; ++p) sum += r[i + p * block_] * s[p];
        squares += sum * sum;
      }
      largest = std::max(largest, squares);
    }
    const double residual = std::sqrt(largest), most = 0.5 * tolerance_ * scale_of(pairs_.values);
    if (residual <= most) return true;  // both are 0 for a matrix of zeros
    plan_look(residual / most);
    return false;
  }

  /// Residuals fall by about the same factor with every block after the last look, and at the first look somewhat
  /// faster than from those of as many vectors as are wanted.
  void plan_look(double excess) {
    const bool first = last_look_ == 0 || held_ <= last_look_;
    const double fall = first ? kQuickening * std::log(2 / tolerance_ / excess) : std::log(last_excess_ / excess);
    const double blocks = static_cast<double>(std::max(held_ - (first ? k_ : last_look_), block_)) / double(block_);
    const double more = fall > 0 ? std::ceil(std::log(excess) * blocks / fall) : 2;
    last_look_ = held_;
    last_excess_ = excess;
    look_at_ = held_ + block_ * static_cast<std::int64_t>(std::clamp(more, 1.0, double(kFarthestLook)));
  }

  /// Writes the pairs; gives how many have a residual beyond the tolerance.
  std::int64_t measure(const Tensor& w, const Tensor& v) {
    measured_once_ = true;
    basis_->combine(held_, k_, pairs_.vectors);
    const Tensor u = basis_->results(0, k_), product = basis_->results(k_, k_);
    multiply(u, product);
    const std::vector<double> values = wanted_values(), gaps = basis_->residuals(u, product, values);
    basis_->copy(u, v);
    write_values(w);
    const double most = tolerance_ * scale_of(pairs_.values);
    return std::count_if(gaps.begin(), gaps.end(), [&](double gap) { return !(gap <= most); });
  }

  /// The basis becomes the best vectors, some more than are wanted, and the block after it.
  void thicken() {
    const std::int64_t kept = std::min(k_ + block_, held_ - block_);
    pairs_ = decompose(held_, kept);
    basis_->combine(held_, kept, pairs_.vectors);
    basis_->copy(basis_->basis(held_, block_), basis_->basis(kept, block_));
    basis_->copy(basis_->results(0, kept), basis_->basis(0, kept));
    basis_->restart(wanted_values());
    held_ = kept;
    last_look_ = 0;
    look_at_ = held_ + 2 * block_;
  }

  const char* op_;
  const Operator& a_;
  const double unit_;
  const std::int64_t n_, k_;
  const TopOptions& options_;
  std::unique_ptr<BlockBasis> basis_;
  bool is_dense_ = false, measured_once_ = false, has_looked_ = false;
  std::int64_t block_ = 0, most_ = 0, stride_ = 0, held_ = 0;
  std::int64_t look_at_ = 0, last_look_ = 0;  // vectors held at the next and the last look at the residuals
  double last_excess_ = 0;
  double tolerance_ = 0;
  SmallPairs pairs_;
};

/// Once more for the operator divided by its size where that made squares leave the range.
std::int64_t find_top(const char* op, const Operator& a, const Tensor& w, const Tensor& v, const TopOptions& options,
                      Context& context) {
  const std::int64_t k = w.shape[0];
  std::int64_t missed = 0;
  const double size = ops::size_to_divide_by(op, a, context, [&] {
    Lanczos plain(op, a, 1, k, options, context);
    missed = plain.run(w, v);
    return plain.seems_tiny();
  });
  return size == 1 ? missed : Lanczos(op, ops::divided(op, a, size), size, k, options, context).run(w, v);
}

}  // namespace

void eigh_top(const Operator& a, const Tensor& w, const Tensor& v, const TopOptions& options, Context& context) {
  const char* op = options.verb != nullptr ? options.verb : "eigh_top";
  const std::int64_t k = w.ndim() == 1 ? w.shape[0] : 0;
  ops::check_operator(op, a);
  require(k >= 1 && k <= a.order, "{}: k must be from 1 to the order of the operator ({}). Received {}.", op, a.order,
          k);
  require(options.tolerance >= 0 && std::isfinite(options.tolerance), "{}: tol must not be negative. Received {}.", op,
          options.tolerance);
  require(options.most_basis >= 0, "{}: max_basis must not be negative. Received {}.", op, options.most_basis);
  ops::check_operand(op, "w", w, {k}, a);
  ops::check_operand(op, "v", v, {a.order, k}, a);
  require(!ops::overlaps_itself(w) && !ops::overlaps_itself(v) && !ops::overlap(w, v),
          "{}: elements of w and v must not share memory. Received {} and {}.", op, w, v);
  const std::int64_t missed = find_top(op, a, w, v, options, context);
  if (options.unconverged != nullptr)
    *options.unconverged = missed;
  else if (missed > 0)
    fail(
        ErrorKind::numerical,
        "{}: residuals must meet the tolerance. Received {} of {} pairs that miss it; a larger max_basis or tol helps.",
        op, missed, k);
}

}  // namespace mercer::linalg
