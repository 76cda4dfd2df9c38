// Tiles of which too many pairs cancel in a product (split_precision.cuh), in blocks that stay: most calls have none.
#pragma once

#include "common/areas.cuh"
#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "pairs/pair_slices.cuh"

// Whether region `place` is to be computed again. Pairs that an area's list had no room for are in marked regions too.
MERCER_INLINE bool is_wanted_region(const PairArguments& a, i64 place) {
  if (a.symmetric && place % a.tiles_n < place / a.tiles_n) return false;
  const u32 strips = a.split.marks[place];  // asked for together with what decides
  if (!products_stand(*a.split.state)) return true;
  if ((strips & 0x02020202u) != 0) return true;
  const u32 area = area_of(a, place / a.tiles_n * MERCER_REGION, place % a.tiles_n * MERCER_REGION);
  return strips != 0 && a.split.area_counts[area] > a.split.area_capacity;
}

// The place of a region in the order of find_place: eight rows of tiles go together through n.
MERCER_INLINE u32 block_of_region(const PairArguments& a, i64 place) {
  const i64 m = place / a.tiles_n, n = place % a.tiles_n, strip = m / 8;
  const i64 height = a.tiles_m - strip * 8 < 8 ? a.tiles_m - strip * 8 : 8;
  return (u32)(strip * 8 * a.tiles_n + n * height + m % 8);
}

// A block looks at THREADS regions at once. They are far from each other, as neighbours are often wanted together.
// Repairs are ahead: as they begin when all tiles have ended, marks are there before they end. What they store as well
// is stored again after them.
template <class Run>
MERCER_INLINE void run_regions(const PairArguments& a, const Run& run) {
  __shared__ u32 wanted[THREADS / 32];
  const i64 regions = a.tiles_m * a.tiles_n, groups = (regions + THREADS - 1) / THREADS;
#pragma unroll 1
  for (i64 group = blockIdx.x; group < groups; group += gridDim.x) {
    const i64 own = threadIdx.x * groups + group;
    const u32 votes = __ballot_sync(0xffffffffu, own < regions && is_wanted_region(a, own));
    if (threadIdx.x % 32 == 0) wanted[threadIdx.x / 32] = votes;
    if (__syncthreads_or(votes != 0)) wait_for_kernel_ahead();
#pragma unroll 1
    for (int word = 0; word < THREADS / 32; ++word)
#pragma unroll 1
      for (u32 left = wanted[word]; left; left &= left - 1)
        run(block_of_region(a, (word * 32 + __ffs(left) - 1) * groups + group));
    __syncthreads();
  }
  wait_for_kernel_ahead();
}
