// The median of a sample, two values a lane; a mean would follow a single far one.
#pragma once

#include "common/prelude.cuh"

#define CENTRE_SAMPLES 64

// The keys of a warp in order, one a lane (Batcher's bitonic sort).
template <class Key>
MERCER_INLINE Key sorted(Key key) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int run = 2; run <= 32; run *= 2)
#pragma unroll
    for (int apart = run / 2; apart >= 1; apart /= 2) {
      const Key other = __shfl_xor_sync(0xffffffffu, key, apart);
      const bool keeps_less = ((lane & run) == 0) == ((lane & apart) == 0);
      key = keeps_less ? min(key, other) : max(key, other);
    }
  return key;
}

// The median, in all lanes; 0 for infinities and NaN. With one half in rising and one in falling order, the lesser keys
// of each lane are the lower half of all.
template <class T>
MERCER_INLINE T median_of(const T (&samples)[2]) {
  const auto rising = sorted(ordered(samples[0])), other = sorted(ordered(samples[1]));
  auto key = min(rising, __shfl_xor_sync(0xffffffffu, other, 31));
#pragma unroll
  for (int apart = 16; apart >= 1; apart /= 2) key = max(key, __shfl_xor_sync(0xffffffffu, key, apart));
  const T median = float_in_order(key);
  return fabs(median) < INFINITY ? median : 0;
}
