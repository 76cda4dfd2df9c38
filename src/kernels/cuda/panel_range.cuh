// The range of a packed set's values, found while they are packed: whoever makes integers of them (quantise.cuh) need
// not read them twice.

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
  // Those of all threads of a block. One of them asks for each atomic: those of all warps would wait for one another,
  // 30 us of 60000 x 32 values.
  template <int BLOCK_THREADS>
  MERCER_METHOD void join(PanelRange& to) {
    __shared__ u32 lows[BLOCK_THREADS / 32], highs[BLOCK_THREADS / 32];
    __shared__ int places[BLOCK_THREADS / 32];
    low = __reduce_min_sync(0xffffffffu, low);
    high = __reduce_max_sync(0xffffffffu, high);
    place = __reduce_min_sync(0xffffffffu, place);
    if (threadIdx.x % 32 == 0) {
      const int warp = threadIdx.x / 32;
      lows[warp] = low, highs[warp] = high, places[warp] = place;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int warp = 1; warp < BLOCK_THREADS / 32; ++warp) {
      low = min(low, lows[warp]);
      high = max(high, highs[warp]);
      place = min(place, places[warp]);
    }
    atomicMin(&to.low, low);
    atomicMax(&to.high, high);
    atomicMin(&to.place, place);
  }
};
