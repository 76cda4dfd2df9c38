// What a preconditioner of low rank does, as a type, so that its factor can be read and kept elsewhere.
#pragma once

#include <memory>

#include "backend/low_rank.h"
#include "mercer/linalg.h"

namespace mercer::linalg {

/// P^-1 = scale (1 - F F^T), the target of Preconditioner::apply.
struct LowRankInverse {
  std::shared_ptr<const TallFactor> factor;
  double scale = 1;

  void operator()(const Tensor& r, const Tensor& out, const Queue& queue) const {
    factor->apply(scale, r, out, queue);
  }
};

/// The preconditioner that applies this inverse, whose factor has `rank` columns that are not zero.
inline Preconditioner preconditioner_of(const LowRankInverse& inverse, std::int64_t order, std::int64_t rank,
                                        Dtype dtype, Device device) {
  Preconditioner made{order, rank, dtype, device};
  made.apply = inverse;
  made.apply_in = [inverse](const Tensor& r, const Tensor& out, const Queue& queue) {
    inverse.factor->apply_in(inverse.scale, r, out, queue);
  };
  return made;
}

}  // namespace mercer::linalg
