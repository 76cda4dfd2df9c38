// Preconditioners from columns of k: L L^T ~ k, where L has columns of Cholesky's factor for pivots that are chosen in
// blocks, by chance or by size. Then L = Q r and U diag(l) U^T = L L^T (approximation.cpp).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "backend/low_rank.h"
#include "core/error.h"
#include "ops/linalg/approximation.h"
#include "ops/linalg/block_method.h"

namespace mercer::linalg {
namespace {

using Indices = std::vector<std::int64_t>;

/// What is left of a diagonal below this part of it is rounding, in units of it.
constexpr double kRounding = 32;
/// What may be below zero, as a part of the largest diagonal, before the matrix is refused.
constexpr double kMostNegative = 1e-2;

/// What is left of k in a few rows and columns, from which pivots are taken.
class Residual {
 public:
  Residual(SmallMatrix values, std::vector<double> least) : h_(std::move(values)), least_(std::move(least)) {
    for (std::int64_t i = 0; i < h_.cols; ++i) left_.push_back(h_(i, i));
  }
  double left(std::int64_t i) const { return left_[i]; }
  bool serves(std::int64_t i) const { return left_[i] > least_[i]; }
  const Indices& taken() const { return taken_; }
  std::int64_t largest() const { return std::max_element(left_.begin(), left_.end()) - left_.begin(); }

  void take(std::int64_t i) {
    const double root = std::sqrt(left_[i]);
    std::vector<double> column(left_.size());
    for (std::size_t p = 0; p < column.size(); ++p) {
      double sum = h_(static_cast<std::int64_t>(p), i);
      for (const std::vector<double>& before : columns_) sum -= before[p] * before[i];
      column[p] = sum / root;
    }
    for (std::size_t p = 0; p < column.size(); ++p) left_[p] -= column[p] * column[p];
    left_[i] = 0;
    columns_.push_back(std::move(column));
    taken_.push_back(i);
  }

 private:
  SmallMatrix h_;
  std::vector<double> least_, left_;
  std::vector<std::vector<double>> columns_;
  Indices taken_;
};

/// How pivots are chosen.
class Choice {
 public:
  virtual ~Choice() = default;
  /// At most so many different rows to choose from, of those where something is left; none: the end.
  virtual Indices propose(const std::vector<double>& left, std::int64_t most) = 0;
  /// Takes some of them; at most so many.
  virtual void choose(Residual& residual, std::int64_t most) = 0;
};

/// Pivots by chance, in proportion to what is left: a block of proposals from one distribution, each accepted with the
/// part of its diagonal that those before it have left, is distributed like pivots one by one (Epperly, Tropp, Webber,
/// "Embrace rejection: kernel matrix approximation by accelerated randomly pivoted Cholesky", 2024).
class ByChance final : public Choice {
 public:
  ByChance(std::int64_t block, std::uint64_t seed) : block_(block), random_(seed) {}

  Indices propose(const std::vector<double>& left, std::int64_t most) override {
    std::vector<double> sums(left.size());
    std::partial_sum(left.begin(), left.end(), sums.begin());
    Indices rows;
    draws_.clear();
    left_.clear();
    if (sums.empty() || !(sums.back() > 0)) return rows;
    for (std::int64_t j = 0; j < std::min(block_, most); ++j) {
      const double at = uniform() * sums.back();
      const auto found = place_in(sums, std::min(at, before_last(sums)));
      const auto known = std::find(rows.begin(), rows.end(), found);
      draws_.push_back(known - rows.begin());
      if (known != rows.end()) continue;
      rows.push_back(found);
      left_.push_back(left[found]);
    }
    return rows;
  }

  void choose(Residual& residual, std::int64_t most) override {
    for (std::size_t j = 0; j < draws_.size(); ++j) {
      if (static_cast<std::int64_t>(residual.taken().size()) == most) return;
      const std::int64_t i = draws_[j];
      const bool is_first = residual.taken().empty();  // what was drawn first has all of its diagonal left
      if (residual.serves(i) && (uniform() * left_[i] < residual.left(i) || is_first)) residual.take(i);
    }
  }

 private:
  double uniform() { return double(random_() >> 11) * 0x1p-53; }
  static std::int64_t place_in(const std::vector<double>& sums, double at) {
    return std::upper_bound(sums.begin(), sums.end(), at) - sums.begin();
  }
  /// Just below the whole sum: a number that only rounding has made as large belongs to the last row with a part of it.
  static double before_last(const std::vector<double>& sums) { return std::nextafter(sums.back(), 0.0); }

  const std::int64_t block_;
  std::mt19937_64 random_;
  Indices draws_;              // places in the proposed rows
  std::vector<double> left_;  // of these
};

/// The largest first; within a block as long as they are no less than half of the largest outside.
class BySize final : public Choice {
 public:
  Indices propose(const std::vector<double>& left, std::int64_t most) override {
    Indices rows(left.size());
    std::iota(rows.begin(), rows.end(), 0);
    const auto count = std::min(static_cast<std::int64_t>(rows.size()), std::min(block_, most));
    const auto is_larger = [&](std::int64_t i, std::int64_t j) {
      return left[i] != left[j] ? left[i] > left[j] : i < j;
    };
    std::nth_element(rows.begin(), rows.begin() + count, rows.end(), is_larger);
    outside_ = 0;
    for (auto row = rows.begin() + count; row != rows.end(); ++row) outside_ = std::max(outside_, left[*row]);
    rows.resize(static_cast<std::size_t>(count));
    std::erase_if(rows, [&](std::int64_t i) { return !(left[i] > 0); });
    return rows;
  }

  void choose(Residual& residual, std::int64_t most) override {
    for (std::int64_t i = residual.largest(); static_cast<std::int64_t>(residual.taken().size()) < most;
         i = residual.largest()) {
      const bool is_large = residual.taken().empty() || residual.left(i) >= kNearEnough * outside_;
      if (!residual.serves(i) || !is_large) break;
      residual.take(i);
    }
    block_ = std::clamp<std::int64_t>(2 * static_cast<std::int64_t>(residual.taken().size()), 8, kMostBlock);
  }

 private:
  static constexpr double kNearEnough = 0.5;
  static constexpr std::int64_t kMostBlock = 64;
  std::int64_t block_ = 16;
  double outside_ = 0;
};

class ColumnFactor {
 public:
  /// `ridge_in_rows`: rows and the diagonal of the operator have the ridge, which is no part of k.
  ColumnFactor(const char* op, const Operator& a, std::int64_t rank, double ridge, bool ridge_in_rows,
               std::int64_t block, Context& context)
      : op_(op), a_(a), rank_(std::min(rank, a.order)), ridge_(ridge), taken_away_(ridge_in_rows ? ridge : 0),
        approximation_(op, a, rank_ + std::min(block, a.order), rank_, 0, context) {
    Queue inner = a.queue;
    inner.allocate = {};
    pivots_ = a.device.kind == DeviceKind::cuda
                  ? cuda::pivoted_columns(op, a.dtype, a_.order, a.device, inner)
                  : cpu::pivoted_columns(op, a.dtype, a_.order, context.state().pool);
  }

  Preconditioner run(Choice& choice) {
    read_diagonal();
    std::int64_t count = 0;
    while (count < rank_) {
      stop_if_cancelled();
      const Indices rows = choice.propose(pivots_->left(), rank_ - count);
      if (rows.empty()) break;
      count += add_block(choice, rows, count);
    }
    return approximation_.finish(count, {.ridges = {ridge_}});
  }

 private:
  void read_diagonal() {
    Tensor diagonal = approximation_.basis().basis(0, 1);
    diagonal.shape = {a_.order};
    diagonal.strides = {1};
    a_.diagonal(diagonal);
    pivots_->begin(diagonal);
    std::vector<double>& left = pivots_->left();
    approximation_.require_finite(left);
    for (double& value : left) {
      least_.push_back(kRounding * approximation_.rounding() * std::abs(value));
      largest_ = std::max(largest_, std::abs(value));
      value -= taken_away_;
    }
    refuse_below(std::sqrt(approximation_.rounding()), "on");  // a ridge that was added in another precision
    clear_rounding();
  }

  void clear_rounding() {
    std::vector<double>& left = pivots_->left();
    for (std::size_t i = 0; i < left.size(); ++i)
      if (left[i] <= least_[i]) left[i] = 0;
  }

  /// What is below zero by more than rounding belongs to no such matrix.
  void refuse_below(double part, const char* where) const {
    const std::vector<double>& left = pivots_->left();
    const double lowest = *std::min_element(left.begin(), left.end());
    if (lowest < -part * largest_)
      fail(ErrorKind::numerical,
           "{}: a less the ridge must be positive semi-definite. Received a matrix with {:.3g} {} its diagonal.", op_,
           lowest, where);
  }

  /// Columns of L for some of these rows; gives how many.
  std::int64_t add_block(Choice& choice, const Indices& rows, std::int64_t count) {
    BlockBasis& basis = approximation_.basis();
    const auto proposed = static_cast<std::int64_t>(rows.size());
    const Tensor block = basis.basis(count, proposed);
    Tensor by_rows = block;
    by_rows.shape = {proposed, a_.order};
    by_rows.strides = {a_.order, 1};
    a_.rows(rows, by_rows);
    const SmallMatrix above = transposed(pivots_->rows(basis.basis(0, count), rows));
    SmallMatrix left = pivots_->rows(block, rows);
    const SmallMatrix taken = approximation_.algebra().product(above, above, true);
    std::vector<double> least;
    for (std::int64_t j = 0; j < proposed; ++j) {
      left(j, j) -= taken_away_;
      for (std::int64_t i = 0; i < proposed; ++i) left(i, j) -= taken(i, j);
      least.push_back(least_[rows[j]]);
    }
    approximation_.require_finite(left.values);
    Residual residual(left, std::move(least));
    choice.choose(residual, rank_ - count);
    Indices chosen = residual.taken();
    std::sort(chosen.begin(), chosen.end());
    if (!chosen.empty()) add_columns(rows, chosen, above, left, count);
    for (std::int64_t i = 0; i < proposed; ++i)
      if (!residual.serves(i)) pivots_->left()[rows[i]] = 0;
    return static_cast<std::int64_t>(chosen.size());
  }

  void add_columns(const Indices& rows, const Indices& chosen, const SmallMatrix& above, const SmallMatrix& left,
                   std::int64_t count) {
    BlockBasis& basis = approximation_.basis();
    const auto added = static_cast<std::int64_t>(chosen.size());
    SmallMatrix factor(added, added), own(count, added);
    Indices pivots;
    for (std::int64_t j = 0; j < added; ++j) {
      pivots.push_back(rows[chosen[j]]);
      if (chosen[j] != j) basis.copy(basis.basis(count + chosen[j], 1), basis.basis(count + j, 1));
      std::copy_n(above.column(chosen[j]), count, own.column(j));
      for (std::int64_t i = 0; i < added; ++i)
        factor(i, j) = 0.5 * (left(chosen[i], chosen[j]) + left(chosen[j], chosen[i]));
    }
    double shift = 0;
    for (SmallMatrix u = factor;; u = factor) {
      if (approximation_.algebra().factor_upper(u, shift)) {
        factor = std::move(u);
        break;
      }
      shift = std::max(2 * shift, approximation_.rounding() * largest_);
    }
    pivots_->add(basis.basis(0, count + added), pivots, transposed(own), factor);
    approximation_.require_finite(pivots_->left());
    refuse_below(kMostNegative, "left on");
    clear_rounding();
  }

  const char* op_;
  const Operator& a_;
  const std::int64_t rank_;
  const double ridge_, taken_away_;
  Approximation approximation_;
  std::unique_ptr<PivotedColumns> pivots_;
  std::vector<double> least_;  // of the diagonal, below which it is rounding
  double largest_ = 0;
};

void check_rows(const char* op, const Operator& a, std::int64_t rank, double ridge) {
  ops::check_operator(op, a);
  check_rank(op, rank);
  require_ridge(op, ridge, a.dtype);
  if (!a.rows || !a.diagonal)
    fail(ErrorKind::unsupported,
         "{}: is offered for matrices and for kernels on points that read no indices, whose rows and diagonal it "
         "reads. Received another operator.",
         op);
}

}  // namespace

Preconditioner rpcholesky_preconditioner(const Operator& a, std::int64_t rank, double ridge,
                                         const RpcholeskyOptions& options, Context& context) {
  constexpr const char* op = "rpcholesky";
  check_rows(op, a, rank, ridge);
  require(options.block >= 0, "{}: block must be positive. Received {}.", op, options.block);
  if (a.order == 0) return empty_preconditioner(a, {ridge}, false);
  const std::int64_t wanted = std::min(rank, a.order);
  const std::int64_t chosen = options.block > 0 ? options.block : std::clamp<std::int64_t>(wanted / 8, 16, 128);
  const std::int64_t block = std::min(chosen, wanted);
  ByChance choice(block, options.seed);
  return ColumnFactor(op, a, rank, ridge, options.ridge_in_rows, block, context).run(choice);
}

Preconditioner pivoted_cholesky_preconditioner(const Operator& a, std::int64_t rank, double ridge, Context& context) {
  constexpr const char* op = "pivoted_cholesky";
  check_rows(op, a, rank, ridge);
  if (a.order == 0) return empty_preconditioner(a, {ridge}, false);
  BySize choice;
  return ColumnFactor(op, a, rank, ridge, false, 64, context).run(choice);
}

Preconditioner pivoted_cholesky_preconditioner(const Formula& f, const Tensor& x, double ridge, std::int64_t rank,
                                               const Arguments& arguments, Context& context) {
  constexpr const char* op = "pivoted_cholesky";
  check_rank(op, rank);
  require_ridge(op, ridge, x.dtype);
  Arguments inner = arguments;
  inner.verb = op;
  const Operator a = kernel_operator(f, x, ridge, inner, context);
  const ir::Uses& uses = f.prepared().uses;
  if (uses.index_i || uses.index_j)
    fail(ErrorKind::unsupported, "{}: is not offered for formulas that read indices. Received {}.", op,
         f.expression().to_text());
  const ops::Shape batch = batch_shape(f, x, x, arguments);
  require(batch.empty(), "{}: there must be one matrix. Received a batch of shape {}.", op, ops::text_of(batch));
  return pivoted_cholesky_preconditioner(a, rank, ridge, context);
}

}  // namespace mercer::linalg
