// Nystrom's preconditioner, of products with random vectors.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/linalg/approximation.h"
#include "ops/linalg/block_method.h"

namespace mercer::linalg {
namespace {

/// The shift starts at the rounding of the products and may not grow to this part of them.
constexpr double kMostShift = 1e-2;

// Let O [n, r] be orthonormal, Y = (k + v) O, O^T Y = C^T C: B = Y C^-1, B B^T ~ k + v, where the shift v keeps the
// factor C from failing by rounding.
class Nystrom {
 public:
  /// The method for a times `unit`, whose ridge is `ridge`.
  Nystrom(const char* op, const Operator& a, double unit, std::int64_t rank, double ridge, std::uint64_t seed,
          Context& context)
      : op_(op), a_(a), unit_(unit), rank_(std::min(rank, a.order)), ridge_(ridge / unit),
        approximation_(op, a, 2 * rank_, rank_, seed, context) {
    law_ = {.ridges = {ridge}, .is_relative = true, .unit = unit};
  }

  /// Whether products are so small that their squares may have been lost.
  bool seems_tiny() const { return size_ < ops::least_size(a_.dtype); }

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
    size_ = size = std::sqrt(size);
    // The ridge is taken away as far as O is orthonormal.
    double shift = approximation_.rounding() * std::max(size, 8 * double(rank_) * ridge_);
    law_.shift = shift;
    if (size <= shift) return approximation_.finish(0, law_);
    const SmallMatrix c = factor(core, size, shift);
    return finish(c, shift);
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
      if (approximation_.algebra().factor_upper(c, shift)) return c;
      if (10 * shift > kMostShift * size)
        fail(ErrorKind::numerical,
             "{}: a less the ridge must be positive semi-definite. Received a matrix that is not, by more than {:.3g} "
             "of its size.",
             op_, shift / size);
    }
  }

  /// Y + v O = O C^T C + R with R orthogonal to O, so B = O C^T + R C^-1: [O, R C^-1] times [C^T; 1].
  Preconditioner finish(const SmallMatrix& c, double shift) {
    BlockBasis& basis = approximation_.basis();
    basis.divide(rank_, rank_, c.values);
    SmallMatrix sum(2 * rank_, rank_);
    for (std::int64_t j = 0; j < rank_; ++j) {
      for (std::int64_t i = j; i < rank_; ++i) sum(i, j) = 0;
      for (std::int64_t i = 0; i <= rank_ - 1; ++i) sum(i, j) = c(j, i);
      sum(rank_ + j, j) = 1;
    }
    basis.combine(2 * rank_, rank_, sum.values);
    basis.copy(basis.results(0, rank_), basis.basis(0, rank_));
    law_.shift = shift;
    return approximation_.finish(rank_, law_);
  }

  const char* op_;
  const Operator& a_;
  const double unit_;
  const std::int64_t rank_;
  const double ridge_;
  double size_ = 0;
  Approximation::Law law_;
  Approximation approximation_;
};

}  // namespace

Preconditioner nystrom_preconditioner(const Operator& a, std::int64_t rank, double ridge, std::uint64_t seed,
                                      Context& context) {
  constexpr const char* op = "nystrom";
  ops::check_operator(op, a);
  check_rank(op, rank);
  require(ridge >= 0 && std::isfinite(ridge), "{}: ridge must not be negative. Received {}.", op, ridge);
  if (a.order == 0) return empty_preconditioner(a, {ridge}, true);
  Preconditioner made;
  const double size = ops::size_to_divide_by(op, a, context, [&] {
    Nystrom plain(op, a, 1, rank, ridge, seed, context);
    made = plain.run();
    return plain.seems_tiny();
  });
  return size == 1 ? made : Nystrom(op, ops::divided(op, a, size), size, rank, ridge, seed, context).run();
}

}  // namespace mercer::linalg
