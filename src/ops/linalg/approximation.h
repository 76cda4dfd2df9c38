// Long columns that become an approximation U diag(l) U^T: the part that all preconditioners of low rank share.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/block_basis.h"
#include "backend/small_matrix.h"
#include "ops/linalg/low_rank_parts.h"

namespace mercer::linalg {

/// Eigenpairs of a small symmetric matrix, the largest first.
struct Pairs {
  std::vector<double> values;
  SmallMatrix vectors;
};

class Approximation {
 public:
  /// `columns`: room for long columns next to `most` of results.
  Approximation(const char* op, const Operator& a, std::int64_t columns, std::int64_t most, std::uint64_t seed,
                Context& context);

  BlockBasis& basis() { return *basis_; }
  const SmallAlgebra& algebra() const { return algebra_; }
  double rounding() const { return rounding_; }

  /// The first columns become orthonormal: old = new r.
  struct Orthonormal {
    double gap = 0;  // how far they are from it
    SmallMatrix r;
  };
  Orthonormal orthonormalise(std::int64_t count);

  /// What P is apart from U and l, which are those of B B^T - shift for the first columns B.
  struct Law {
    std::vector<double> ridges;
    bool is_relative = false;
    double shift = 0;
    double unit = 1;  // l and the least eigenvalue are multiplied with it, the ridges are as they are
  };
  Preconditioner finish(std::int64_t count, const Law& law);

  /// Throws unless all are.
  void require_finite(const std::vector<double>& values) const;

 private:
  Pairs decompose(const SmallMatrix& matrix);
  SmallMatrix factor_gram(const SmallMatrix& gram) const;
  std::shared_ptr<TallFactor> keep(const Tensor& columns);

  const char* op_;
  const std::int64_t n_;
  const double rounding_;
  Operator a_;
  Context& context_;
  SmallAlgebra algebra_;
  std::unique_ptr<BlockBasis> basis_;
};

void check_rank(const char* op, std::int64_t rank);
/// The identity on no rows.
Preconditioner empty_preconditioner(const Operator& a, const std::vector<double>& ridges, bool is_relative);

}  // namespace mercer::linalg
