// The parts of the rows whose gradients kernel_agop stores at once (ops/pairs/agop.cpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/integers.h"

namespace mercer::ops {

struct AgopParts {
  std::int64_t count = 1, rows = 1;
};

/// `row_bytes`: of the gradients of a row, of all outputs and batch items.
inline AgopParts agop_parts(std::int64_t m, std::int64_t outputs, std::int64_t row_bytes, std::int64_t part_bytes) {
  constexpr std::int64_t kMostTerms = 1 << 17;  // of an inner product: what products of matrices on GPUs take at once
  const std::int64_t one = 1;
  const std::int64_t most = std::max(one, std::min(part_bytes / std::max(one, row_bytes), kMostTerms / outputs));
  const std::int64_t count = std::max(one, ceil_div(m, most));
  return {count, std::max(one, ceil_div(m, count))};
}

}  // namespace mercer::ops
