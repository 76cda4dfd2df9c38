// The range of a packed set's values, found while they are packed: whoever makes integers of them (quantise.cuh) need
// not read them twice.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

// Exponent of a number's last binary place; that of 0 is larger than any.
MERCER_INLINE int last_place(float value) {
  const u32 bits = bits_of(value), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffffu;
  const u32 digits = exponent ? fraction | 0x800000u : fraction;
  return digits ? (int)(exponent ? exponent : 1) - 151 + __ffs((int)digits) : 0x7fffffff;
}

struct ThreadRange {
  u32 low = 0xffffffffu, high = 0;
  int place = 0x7fffffff;

  MERCER_METHOD void include(float value) {
    low = min(low, ordered(value));
    high = max(high, ordered(value));
    place = min(place, last_place(value));
  }
  MERCER_METHOD void include(const PanelRange& other) {
    low = min(low, other.low);
    high = max(high, other.high);
    place = min(place, other.place);
  }
  // The range of all lanes of a warp, in each of them.
  MERCER_METHOD PanelRange of_warp() const {
    return {__reduce_min_sync(0xffffffffu, low), __reduce_max_sync(0xffffffffu, high),
            __reduce_min_sync(0xffffffffu, place)};
  }
  // Gathers the range of all threads of a block, in the first of them.
  template <int BLOCK_THREADS>
  MERCER_METHOD void gather() {
    __shared__ PanelRange ranges[BLOCK_THREADS / 32];
    const PanelRange own = of_warp();
    if (threadIdx.x % 32 == 0) ranges[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 0; warp < BLOCK_THREADS / 32; ++warp) include(ranges[warp]);
  }
  // One thread of a block asks for each atomic: those of all warps would wait for one another, 30 us of 60000 x 32
  // values.
  template <int BLOCK_THREADS>
  MERCER_METHOD void join(PanelRange& to) {
    gather<BLOCK_THREADS>();
    if (threadIdx.x != 0) return;
    atomicMin(&to.low, low);
    atomicMax(&to.high, high);
    atomicMin(&to.place, place);
  }
};
