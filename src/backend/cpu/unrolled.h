// Loops that are written out: accumulators are registers, which have no index. Where GCC unrolls a loop late it keeps
// an array of them in memory as well.
#pragma once

#include <type_traits>
#include <utility>

namespace mercer::cpu {

/// body(0), …, body(kCount - 1) with constants. Internal linkage, as kernels of instruction sets have it.
template <int kCount, class Body>
[[gnu::always_inline]] static inline void each(const Body& body) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (body(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

}  // namespace mercer::cpu

/// The bodies of `each`.
#define MERCER_INLINED __attribute__((always_inline))
