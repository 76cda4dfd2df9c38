#include "ops/linalg/approximation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "ops/linalg/block_method.h"

namespace mercer::linalg {
namespace {

constexpr int kMostPasses = 9;
/// Passes after which a column that still lies along the others is rounding of theirs.
constexpr int kPatience = 3;

double rounding_of(Dtype type) {
  return type == Dtype::float32 ? double(std::numeric_limits<float>::epsilon())
                                : std::numeric_limits<double>::epsilon();
}

/// |gram - 1|.
double gap_of(SmallMatrix gram) {
  for (std::int64_t j = 0; j < gram.cols; ++j) gram(j, j) -= 1;
  return std::sqrt(gram.squares());
}

/// The largest |eigenvalue| of gram - 1, by powers of it: those of many columns differ less from their norm than the
/// sum of all squares says. Doubled, for what the powers have not found yet.
double largest_gap(SmallMatrix gram) {
  constexpr int kPowers = 12;
  const std::int64_t n = gram.cols;
  for (std::int64_t j = 0; j < n; ++j) gram(j, j) -= 1;
  std::vector<double> v(static_cast<std::size_t>(n)), product(v.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = 1 + 0.5 * std::sin(double(i * i));
  double found = 0;
  for (int power = 0; power < kPowers; ++power) {
    double before = 0, after = 0;
    for (const double value : v) before += value * value;
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += gram(i, j) * v[i];
      product[j] = sum;
      after += sum * sum;
    }
    if (!(before > 0) || !(after > 0)) break;
    found = std::sqrt(after / before);
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = product[i] / std::sqrt(after);
  }
  return std::min(2 * found, std::sqrt(gram.squares()));
}

bool is_well_conditioned(const SmallMatrix& u, double rounding) {
  double least = u(0, 0), largest = u(0, 0);
  for (std::int64_t j = 0; j < u.cols; ++j) {
    least = std::min(least, u(j, j));
    largest = std::max(largest, u(j, j));
  }
  return least * least > rounding * double(u.cols) * largest * largest;
}

}  // namespace

Approximation::Approximation(const char* op, const Operator& a, std::int64_t columns, std::int64_t most,
                             std::uint64_t seed, Context& context)
    : op_(op), n_(a.order), rounding_(rounding_of(a.dtype)), a_(a), context_(context),
      algebra_(context.state().pool.threads()) {
  a_.queue.allocate = {};  // what is kept is not the caller's, and what is not comes from the pool
  const BlockBasis::Sizes sizes{
      .op = op, .type = a.dtype, .length = n_, .columns = columns, .results = most, .most_block = most, .seed = seed};
  basis_ = ops::block_basis(a_, sizes, context);
}

Pairs Approximation::decompose(const SmallMatrix& matrix) {
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

/// Upper u with u^T u near the Gram matrix, whose columns are scaled first: columns of Cholesky's factor differ in
/// length more than in direction.
SmallMatrix Approximation::factor_gram(const SmallMatrix& gram) const {
  const std::int64_t count = gram.cols;
  std::vector<double> lengths;
  for (std::int64_t j = 0; j < count; ++j) lengths.push_back(gram(j, j) > 0 ? std::sqrt(gram(j, j)) : 1);
  SmallMatrix scaled = gram;
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t i = 0; i < count; ++i) scaled(i, j) /= lengths[i] * lengths[j];
  // What lies below this part of the columns is rounding.
  SmallMatrix u = scaled;
  for (double shift = 0; !algebra_.factor_upper(u, shift) || !is_well_conditioned(u, rounding_); u = scaled)
    shift = shift > 0 ? 10 * shift : 4 * double(count) * rounding_;
  for (std::int64_t j = 0; j < count; ++j)
    for (std::int64_t i = 0; i <= j; ++i) u(i, j) *= lengths[j];
  return u;
}

Approximation::Orthonormal Approximation::orthonormalise(std::int64_t count) {
  Orthonormal result{0, SmallMatrix(count, count)};
  for (std::int64_t j = 0; j < count; ++j) result.r(j, j) = 1;
  for (int pass = 0; pass < kMostPasses; ++pass) {
    const SmallMatrix gram(count, count, basis_->project(0, count).gram);
    require_finite(gram.values);
    result.gap = gap_of(gram);
    if (result.gap <= 4 * rounding_ * double(count)) {
      result.gap = largest_gap(gram);
      break;
    }
    const SmallMatrix u = factor_gram(gram);
    basis_->divide(0, count, u.values);
    result.r = algebra_.product(u, result.r);
    for (std::int64_t j = 0; j < count; ++j) {
      const bool is_lost = pass >= kPatience && u(j, j) * u(j, j) < 0.01 * gram(j, j);
      if (gram(j, j) > 0 && !is_lost) continue;
      basis_->draw(j, 1);  // zeros, or rounding of the others: another direction, of which old columns have nothing
      for (std::int64_t i = 0; i < count; ++i) result.r(j, i) = 0;
    }
  }
  return result;
}

/// B = Q r, r r^T = W l W^T, U = Q W.
Preconditioner Approximation::finish(std::int64_t count, const Law& law) {
  LowRankParts parts{.is_relative = law.is_relative, .ridges = law.ridges};
  double gap = 0;
  Pairs pairs;
  if (count > 0) {
    const Orthonormal found = orthonormalise(count);
    gap = found.gap;
    const SmallMatrix turned = transposed(found.r);
    pairs = decompose(algebra_.product(turned, turned, true));
  }
  const double largest = count > 0 ? pairs.values.front() : 0;
  // Lengths of B below its rounding say nothing, nor do values below the shift.
  const double lost = rounding_ * double(count);
  const double below = std::max({lost * lost * largest, 4 * law.shift, std::numeric_limits<double>::min()});
  const auto kept = std::count_if(pairs.values.begin(), pairs.values.end(), [&](double l) { return l > below; });
  if (kept > 0) {
    basis_->combine(count, kept, {pairs.vectors.values.begin(), pairs.vectors.values.begin() + count * kept});
    parts.columns = keep(basis_->results(0, kept));
  } else {
    basis_->fill(0, 1, std::vector<double>(static_cast<std::size_t>(n_), 0));
    parts.columns = keep(basis_->basis(0, 1));  // nothing to damp: a column of zeros
  }
  for (std::int64_t j = 0; j < kept; ++j) parts.values.push_back(law.unit * (pairs.values[j] - law.shift));
  if (law.is_relative && count > 0) parts.least = law.unit * std::max(pairs.values.back() - law.shift, 0.0);
  // P must stay positive definite with what is known of U, and with what products with it lose.
  parts.most_weight = 1 - std::min(0.5, 32 * rounding_ + 2 * gap);
  return preconditioner_of(std::move(parts), n_, a_.dtype, a_.device);
}

std::shared_ptr<TallFactor> Approximation::keep(const Tensor& columns) {
  const std::int64_t count = columns.shape[1];
  std::shared_ptr<TallFactor> factor = a_.device.kind == DeviceKind::cuda
                                           ? cuda::tall_factor(op_, a_.dtype, n_, count, a_.device)
                                           : cpu::tall_factor(op_, a_.dtype, n_, count, context_.state().pool);
  basis_->copy(columns, factor->columns());
  Tensor first = columns;
  first.shape[1] = 1;
  basis_->read(first);  // waits: the factor serves every stream from now on
  return factor;
}

void Approximation::require_finite(const std::vector<double>& values) const {
  const bool finite = std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
  if (!finite)
    fail(ErrorKind::numerical,
         "{}: products with a must be finite, as must be their squares. Received NaN, infinity or larger ones.", op_);
}

void check_rank(const char* op, std::int64_t rank) {
  require(rank >= 1, "{}: rank must be positive. Received {}.", op, rank);
}

Preconditioner empty_preconditioner(const Operator& a, const std::vector<double>& ridges, bool is_relative) {
  return preconditioner_of({.is_relative = is_relative, .ridges = ridges}, 0, a.dtype, a.device);
}

}  // namespace mercer::linalg
