// Preconditioners of low rank for a = k + ridge: P^-1 = scale (1 - F F^T), F = U w for an orthonormal U of n rows and
// weights w that damp the large eigenvalues l of an approximation U l U^T of k.
//
//   Nystrom            1 - w^2 = (l_least + ridge) / (l + ridge), scale = 1: what is left of k is taken for l_least
//   pivoted Cholesky   1 - w^2 = ridge / (l + ridge), scale = 1 / ridge: the inverse of L L^T + ridge
//
// The approximations are products of long columns with small matrices, in whose double precision the rest is done.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/low_rank.h"
#include "backend/small_matrix.h"
#include "core/error.h"
#include "core/parallel.h"
#include "ops/linalg/block_method.h"
#include "ops/linalg/low_rank_inverse.h"

namespace mercer::linalg {
namespace {

constexpr int kMostPasses = 6;
/// Nystrom's shift starts at the rounding of the products and may not grow to this part of them.
constexpr double kMostShift = 1e-2;

double rounding_of(Dtype type) {
  return type == Dtype::float32 ? double(std::numeric_limits<float>::epsilon())
                                : std::numeric_limits<double>::epsilon();
}

/// Eigenpairs of a small symmetric matrix, the largest first.
struct Pairs {
  std::vector<double> values;
  SmallMatrix vectors;
};

class Approximation {
 public:
  /// `columns`: room for long columns beside `most` of results.
  Approximation(const char* op, const Operator& a, std::int64_t columns, std::int64_t most, std::uint64_t seed,
                Context& context)
      : op_(op), n_(a.order), rounding_(rounding_of(a.dtype)), a_(a), context_(context) {
    a_.queue.allocate = {};  // what is kept is not the caller's, and what is not comes from the pool
    const BlockBasis::Sizes sizes{.op = op,
                                  .type = a.dtype,
                                  .length = n_,
                                  .columns = columns,
                                  .results = most,
                                  .most_block = most,
                                  .seed = seed};
    basis_ = ops::block_basis(a_, sizes, context);
  }

  BlockBasis& basis() { return *basis_; }
  double rounding() const { return rounding_; }

  Pairs decompose(const SmallMatrix& matrix) {
    const std::int64_t m = matrix.cols;
    basis_->set_products(matrix.values, m);
    const SmallPairs found = basis_->decompose(m, [](const std::vector<double>& values) {
      std::vector<std::int64_t> all(values.size());
      std::iota(all.begin(), all.end(), 0);
      return all;
    });
    Pairs pairs{{found.values.rbegin(), found.values.rend()}, SmallMatrix(m, m)};
    for (std::int64_t j = 0; j < m; ++j)
      std::copy_n(found.vectors.data() + (m - 1 - j) * m, m, pairs.vectors.column(j));
    return pairs;
  }

  /// The first columns become orthonormal, each a combination of those before it; gives how far they are from it.
  double orthonormalise(std::int64_t count) {
    double gap = 0;
    for (int pass = 0; pass < kMostPasses; ++pass) {
      SmallMatrix gram(count, count, basis_->project(0, count).gram);
      require_finite(gram.values);
      gap = gap_of(gram);
      if (gap <= 4 * rounding_ * double(count)) break;
      double trace = 0;
      for (std::int64_t j = 0; j < count; ++j) trace += gram(j, j);
      // What lies below this part of the columns is rounding.
      SmallMatrix u = gram;
      for (double shift = 0; !factor_upper(u, shift) || !is_well_conditioned(u); u = gram)
        shift = shift > 0 ? 10 * shift : 4 * double(count) * rounding_ * std::max(trace, 1e-300);
      basis_->divide(0, count, u.values);
    }
    return gap;
  }

  /// U = V s, orthonormal, then F = U w in memory that stays.
  Preconditioner finish(const SmallMatrix& s, const std::vector<double>& damping, double scale) {
    const std::int64_t count = s.cols;
    const std::int64_t rank = std::max<std::int64_t>(count, 1);  // nothing to damp: a column of zeros
    std::shared_ptr<TallFactor> factor =
        a_.device.kind == DeviceKind::cuda
            ? cuda::tall_factor(op_, a_.dtype, n_, rank, a_.device)
            : cpu::tall_factor(op_, a_.dtype, n_, rank, context_.state().pool);
    SmallMatrix weights(rank, rank);
    if (count > 0) {
      basis_->combine(s.rows, count, s.values);
      basis_->copy(basis_->results(0, count), basis_->basis(0, count));
      const double gap = orthonormalise(count);
      // P must stay positive definite with what is known of U, and with what products with it lose.
      const double most = 1 - std::min(0.5, 32 * rounding_ + 2 * gap);
      for (std::int64_t j = 0; j < count; ++j) weights(j, j) = std::sqrt(std::clamp(1 - damping[j], 0.0, most));
    } else {
      basis_->fill(0, 1, std::vector<double>(static_cast<std::size_t>(n_), 0));
    }
    basis_->combine(rank, rank, weights.values);
    basis_->copy(basis_->results(0, rank), factor->columns());
    basis_->read(basis_->results(0, 1));  // waits: the factor serves every stream from now on
    return preconditioner_of({factor, scale}, n_, count, a_.dtype, a_.device);
  }

  void require_finite(const std::vector<double>& values) const {
    const bool finite = std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
    if (!finite)
      fail(ErrorKind::numerical,
           "{}: products with a must be finite, as must be their squares. Received NaN, infinity or larger ones.", op_);
  }

 private:
  static double gap_of(SmallMatrix gram) {
    for (std::int64_t j = 0; j < gram.cols; ++j) gram(j, j) -= 1;
    return std::sqrt(gram.squares());
  }
  bool is_well_conditioned(const SmallMatrix& u) const {
    double least = u(0, 0), largest = u(0, 0);
    for (std::int64_t j = 0; j < u.cols; ++j) {
      least = std::min(least, u(j, j));
      largest = std::max(largest, u(j, j));
    }
    return least * least > rounding_ * double(u.cols) * largest * largest;
  }

  const char* op_;
  const std::int64_t n_;
  const double rounding_;
  Operator a_;
  Context& context_;
  std::unique_ptr<BlockBasis> basis_;
};

void check_rank(const char* op, std::int64_t rank) {
  require(rank >= 1, "{}: rank must be positive. Received {}.", op, rank);
}

/// The identity on no rows.
Preconditioner empty_preconditioner(const Operator& a) {
  const auto nothing = [](const Tensor&, const Tensor&, const Queue&) {};
  return {0, 0, a.dtype, a.device, nothing, nothing};
}

// With O [n, r] orthonormal and Y = k O, Y + v O = O M + R, M = O^T k O + v = C^T C, R orthogonal to O:
//
//   B = (Y + v O) C^-1 = O C^T + R C^-1,   B B^T ~ k + v,   B^T B = C C^T + (R C^-1)^T (R C^-1) = V s V^T
//   U = B V s^-1/2 = O (C^T V s^-1/2) + R C^-1 (V s^-1/2),   l = s - v
//
// where the shift v keeps the factor C from failing by rounding.
class Nystrom {
 public:
  Nystrom(const char* op, const Operator& a, std::int64_t rank, double ridge, std::uint64_t seed, Context& context)
      : op_(op), a_(a), rank_(std::min(rank, a.order)), ridge_(ridge),
        approximation_(op, a, 2 * rank_, rank_, seed, context) {}

  Preconditioner run() {
    BlockBasis& basis = approximation_.basis();
    start(basis);
    a_.multiply(basis.basis(0, rank_), basis.basis(rank_, rank_));
    if (!basis.seems_finite(basis.basis(rank_, rank_))) approximation_.require_finite({NAN});
    const Projection parts = basis.project(rank_, rank_);
    approximation_.require_finite(parts.coefficients);
    approximation_.require_finite(parts.gram);
    SmallMatrix core(rank_, rank_, parts.coefficients);
    for (std::int64_t j = 0; j < rank_; ++j) {
      core(j, j) -= ridge_;
      for (std::int64_t i = 0; i < j; ++i) core(i, j) = core(j, i) = 0.5 * (core(i, j) + core(j, i));
    }
    const SmallMatrix rest(rank_, rank_, parts.gram);
    double size = core.squares();
    for (std::int64_t j = 0; j < rank_; ++j) size += rest(j, j);
    size = std::sqrt(size);
    // The ridge is taken away as far as O is orthonormal.
    double shift = approximation_.rounding() * std::max(size, 8 * double(rank_) * ridge_);
    if (size <= shift) return approximation_.finish({}, {}, 1);
    const SmallMatrix c = factor(core, size, shift);
    // Products of R with itself before it is divided would lose what the shift keeps.
    basis.divide(rank_, rank_, c.values);
    return finish(c, basis.project(rank_, rank_).gram, shift);
  }

 private:
  void start(BlockBasis& basis) {
    if (rank_ == a_.order) {
      std::vector<double> identity(static_cast<std::size_t>(rank_ * rank_), 0);
      for (std::int64_t i = 0; i < rank_; ++i) identity[i * (rank_ + 1)] = 1;
      basis.fill(0, rank_, identity);
      return;
    }
    basis.draw(0, rank_);
    approximation_.orthonormalise(rank_);
  }

  SmallMatrix factor(const SmallMatrix& core, double size, double& shift) {
    for (SmallMatrix c = core;; c = core, shift *= 10) {
      if (factor_upper(c, shift)) return c;
      if (10 * shift > kMostShift * size)
        fail(ErrorKind::numerical,
             "{}: a less the ridge must be positive semi-definite. Received a matrix that is not, by more than {:.3g} "
             "of its size.",
             op_, shift / size);
    }
  }

  Preconditioner finish(const SmallMatrix& c, const std::vector<double>& rest, double shift) {
    approximation_.require_finite(rest);
    const SmallMatrix turned = transposed(c);
    SmallMatrix gram = transposed_product(turned, turned);
    for (std::size_t i = 0; i < rest.size(); ++i) gram.values[i] += rest[i];
    const Pairs pairs = approximation_.decompose(gram);
    const double least = std::max(pairs.values.back() - shift, 0.0);
    // Below the shift they are rounding.
    const auto kept = std::count_if(pairs.values.begin(), pairs.values.end(), [&](double s) { return s > 4 * shift; });
    SmallMatrix scaled(rank_, kept);
    std::vector<double> damping;
    for (std::int64_t j = 0; j < kept; ++j) {
      for (std::int64_t i = 0; i < rank_; ++i) scaled(i, j) = pairs.vectors(i, j) / std::sqrt(pairs.values[j]);
      damping.push_back((least + ridge_) / (pairs.values[j] - shift + ridge_));
    }
    const SmallMatrix above = transposed_product(c, scaled);
    SmallMatrix s(2 * rank_, kept);
    for (std::int64_t j = 0; j < kept; ++j) {
      std::copy_n(above.column(j), rank_, s.column(j));
      std::copy_n(scaled.column(j), rank_, s.column(j) + rank_);
    }
    return approximation_.finish(s, damping, 1);
  }

  const char* op_;
  const Operator& a_;
  const std::int64_t rank_;
  const double ridge_;
  Approximation approximation_;
};

// L with k ~ L L^T a column at a time, then U = L V l^-1/2 with L^T L = V l V^T.
class PivotedCholesky {
 public:
  PivotedCholesky(const char* op, const Formula& f, const Tensor& x, double ridge, std::int64_t rank,
                  const Arguments& arguments, Context& context)
      : op_(op), f_(f), x_(x), arguments_(arguments), context_(context), ridge_(ridge),
        rank_(std::min(rank, x.shape[0])), a_{x.shape[0], x.dtype, {}, x.device, arguments.queue},
        approximation_(op, a_, rank_ + 1, rank_, 0, context) {
    arguments_.queue.allocate = {};
    arguments_.verb = op;
    pivots_ = x.device.kind == DeviceKind::cuda
                  ? cuda::pivoted_columns(op, x.dtype, a_.order, x.device, arguments_.queue)
                  : cpu::pivoted_columns(op, x.dtype, a_.order, context.state().pool);
  }

  Preconditioner run() {
    const std::int64_t count = find_columns();
    if (count == 0) return approximation_.finish({}, {}, 1 / ridge_);
    const SmallMatrix gram(count, count, approximation_.basis().project(0, count).gram);
    approximation_.require_finite(gram.values);
    const Pairs pairs = approximation_.decompose(gram);
    const double least = approximation_.rounding() * double(count) * pairs.values.front();
    const auto kept = std::count_if(pairs.values.begin(), pairs.values.end(), [&](double l) { return l > least; });
    SmallMatrix s(count, kept);
    std::vector<double> damping;
    for (std::int64_t j = 0; j < kept; ++j) {
      for (std::int64_t i = 0; i < count; ++i) s(i, j) = pairs.vectors(i, j) / std::sqrt(pairs.values[j]);
      damping.push_back(ridge_ / (pairs.values[j] + ridge_));
    }
    return approximation_.finish(s, damping, 1 / ridge_);
  }

 private:
  /// How many there are: none any more where what is left of the diagonal is rounding.
  std::int64_t find_columns() {
    const Tensor diagonal = approximation_.basis().basis(rank_, 1);
    read_diagonal(diagonal);
    Tensor flat = diagonal;
    flat.shape = {a_.order};
    flat.strides = {1};
    const PivotedColumns::Start start = pivots_->begin(flat);
    PivotedColumns::Pivot pivot = start.pivot;
    const double least = 8 * approximation_.rounding() * pivot.left;
    // Of a finite diagonal: what is below zero by more than rounding belongs to no such matrix.
    if (std::isfinite(pivot.left) && start.lowest < -std::max(least, -8 * approximation_.rounding() * start.lowest))
      fail(ErrorKind::numerical,
           "{}: a less the ridge must be positive semi-definite. Received a matrix with {:.3g} on its diagonal.", op_,
           start.lowest);
    for (std::int64_t column = 0; column < rank_; ++column) {
      stop_if_cancelled();
      if (!std::isfinite(pivot.left)) approximation_.require_finite({pivot.left});
      if (!(pivot.left > least)) return column;
      read_row(pivot.index, approximation_.basis().basis(column, 1));
      pivot = pivots_->add(approximation_.basis().basis(0, column + 1), pivot);
    }
    return rank_;
  }

  /// f(x_i, x_i): a batch of matrices of one pair each.
  void read_diagonal(const Tensor& to) {
    Tensor points = x_, out = to;
    points.shape = {a_.order, 1, x_.shape[1]};
    points.strides = {x_.strides[0], x_.strides[0], x_.strides[1]};
    out.shape = {a_.order, 1, 1};
    out.strides = {1, 1, 1};
    Arguments each = arguments_;
    for (auto* values : {&each.row, &each.col})
      if (*values) {
        (*values)->shape.push_back(1);
        (*values)->strides.push_back(1);
      }
    pairwise(f_, points, &points, out, each, context_);
  }

  /// f(x_pivot, x_i).
  void read_row(std::int64_t pivot, const Tensor& to) {
    Tensor point = x_, out = to;
    point.data = ops::element(x_, pivot * x_.strides[0]);
    point.shape[0] = 1;
    out.shape = {1, a_.order};
    out.strides = {a_.order, 1};
    Arguments one = arguments_;
    if (one.row) {
      one.row->data = ops::element(*arguments_.row, pivot * arguments_.row->strides[0]);
      one.row->shape = {1};
    }
    pairwise(f_, point, &x_, out, one, context_);
  }

  const char* op_;
  const Formula& f_;
  const Tensor& x_;
  Arguments arguments_;
  Context& context_;
  const double ridge_;
  const std::int64_t rank_;
  const Operator a_;
  Approximation approximation_;
  std::unique_ptr<PivotedColumns> pivots_;
};

}  // namespace

Preconditioner nystrom_preconditioner(const Operator& a, std::int64_t rank, double ridge, std::uint64_t seed,
                                      Context& context) {
  constexpr const char* op = "nystrom";
  ops::check_operator(op, a);
  check_rank(op, rank);
  require(ridge >= 0 && std::isfinite(ridge), "{}: ridge must not be negative. Received {}.", op, ridge);
  if (a.order == 0) return empty_preconditioner(a);
  return Nystrom(op, a, rank, ridge, seed, context).run();
}

Preconditioner pivoted_cholesky_preconditioner(const Formula& f, const Tensor& x, double ridge, std::int64_t rank,
                                               const Arguments& arguments, Context& context) {
  constexpr const char* op = "pivoted_cholesky";
  check_rank(op, rank);
  require(ridge > 0 && std::isfinite(ridge), "{}: ridge must be positive. Received {}.", op, ridge);
  const Operator a = kernel_operator(f, x, ridge, arguments, context);
  ops::check_operator(op, a);
  const ir::Uses& uses = f.prepared().uses;
  if (uses.index_i || uses.index_j)
    fail(ErrorKind::unsupported, "{}: is not offered for formulas that read indices. Received {}.", op,
         f.expression().to_text());
  const ops::Shape batch = batch_shape(f, x, x, arguments);
  require(batch.empty(), "{}: there must be one matrix. Received a batch of shape {}.", op, ops::text_of(batch));
  if (a.order == 0) return empty_preconditioner(a);
  return PivotedCholesky(op, f, x, ridge, rank, arguments, context).run();
}

}  // namespace mercer::linalg
