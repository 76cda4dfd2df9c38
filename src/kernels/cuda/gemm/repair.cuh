// Listed pairs of products that cancel (areas.cuh), again from the values themselves: a warp a few pairs of one row,
// sums in double. Areas of many pairs are left to repair_areas.cuh.
#pragma once

#include "common/areas.cuh"
#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "pairs/row_sums.cuh"
#include "pairs/store_pair.cuh"

#define REPAIR_THREADS 256
#define REPAIR_RUN 8
#define REPAIR_WARPS 64u  // share an area at least
#define REPAIR_AREAS 8u   // that a warp asks for at once, at most

struct ListedPairs {
  const u32* pairs;
  i64 m0, n0;  // of the area
  MERCER_METHOD ListedPairs(const PairArguments& a, u32 area)
      : pairs(pairs_of_area(a, area)), m0((i64)(area / areas_along(a.n)) * MERCER_AREA),
        n0((i64)(area % areas_along(a.n)) * MERCER_AREA) {}
  MERCER_METHOD i64 row(u32 at) const { return m0 + row_in_area(pairs[at]); }
  MERCER_METHOD i64 column(u32 at) const { return n0 + column_in_area(pairs[at]); }
};

// Up to REPAIR_RUN neighbours in the list of an area, a lane each.
struct RepairRun {
  u32 pair, count;
  i64 m0, n0;  // of the area
  MERCER_METHOD u32 at(int i) const { return __shfl_sync(0xffffffffu, pair, i); }
  MERCER_METHOD i64 row(int i) const { return m0 + row_in_area(at(i)); }
  MERCER_METHOD i64 column(int i) const { return n0 + column_in_area(at(i)); }
};

template <int COUNT>
MERCER_INLINE void repair_together(const PairArguments& a, const RepairRun& run, int first) {
  i64 n[COUNT];
  double sums[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) n[c] = run.column(first + c);
  const i64 m = run.row(first);
  direct_sums<COUNT, 4, COUNT == 1 ? 4 : 2>(sums, a, m, n);
#pragma unroll
  for (int c = 0; threadIdx.x % 32 == 0 && c < COUNT; ++c) store_pair(a, (REAL)sums[c], m, n[c]);
#pragma unroll
  for (int c = 0; GUARDED && c < COUNT; ++c) {
    const REAL sum = (REAL)sums[c];
    __syncwarp();
    if (is_out_of_range(&sum)) store_safely(a, m, n[c]);
  }
}

// Neighbours that share a row load its values once for up to four of them.
MERCER_INLINE void repair_run(const PairArguments& a, const RepairRun& run) {
  const int count = (int)run.count;
#pragma unroll 1
  for (int at = 0; at < count;) {
    // Lanes after the last pair have none of this row.
    const u32 row = row_in_area(run.at(at));
    const u32 alike = __ballot_sync(0xffffffffu, threadIdx.x % 32 < run.count && row_in_area(run.pair) == row) >> at;
    const int more = (alike & 15) == 15 ? 4 : (alike & 3) == 3 ? 2 : 1;
    if (more == 4) repair_together<4>(a, run, at);
    else if (more == 2) repair_together<2>(a, run, at);
    else repair_together<1>(a, run, at);
    at += more;
  }
}

// The first pairs that a warp may have of eight areas, asked for together with how many there are: two a lane.
struct FirstPairs {
  u32 pairs[2] = {};
  MERCER_METHOD FirstPairs(const PairArguments& a, u32 first, u32 areas, u32 begin) {
    const u32 lane = threadIdx.x % 32, area = first + lane / 4, at = begin + lane % 4 * 2;
#pragma unroll
    for (u32 i = 0; i < 2; ++i)
      if (area < areas && at + i < a.split.area_capacity) pairs[i] = pairs_of_area(a, area)[at + i];
  }
  MERCER_METHOD u32 of_lane(int place) const {
    const int lane = threadIdx.x % REPAIR_RUN, from = place * 4 + lane / 2;
    const u32 even = __shfl_sync(0xffffffffu, pairs[0], from), odd = __shfl_sync(0xffffffffu, pairs[1], from);
    return lane % 2 == 0 ? even : odd;
  }
};

extern "C" __global__ void __launch_bounds__(REPAIR_THREADS) repair(const __grid_constant__ PairArguments a) {
  wait_for_kernel_ahead();
  const bool stands = products_stand(*a.split.state);  // of which loads do not wait
  const u32 warp = (blockIdx.x * REPAIR_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const u32 areas = areas_along(a.m) * areas_along(a.n), warps = gridDim.x * (REPAIR_THREADS / 32);
  const u32 sharing = max(REPAIR_WARPS, warps / areas), groups = warps / sharing, group = warp / sharing;
  const u32 at_once = min(REPAIR_AREAS, (areas + groups - 1) / groups);
  const u32 begin = warp % sharing * REPAIR_RUN, step = sharing * REPAIR_RUN;
  for (u32 first = group * at_once; group < groups && first < areas; first += groups * at_once) {
    const u32 own = lane < at_once && first + lane < areas ? a.split.area_counts[first + lane] : 0;
    const FirstPairs firsts(a, first, areas, begin);
    const bool wanted = stands && own > begin && own < a.split.dense_area && own <= a.split.area_capacity;
    for (u32 left = __ballot_sync(0xffffffffu, wanted); left; left &= left - 1) {
      const int place = __ffs(left) - 1;
      const u32 count = __shfl_sync(0xffffffffu, own, place);
      const ListedPairs list(a, first + place);
      RepairRun run = {firsts.of_lane(place), 0, list.m0, list.n0};
      for (u32 at = begin; at < count; at += step) {
        run.count = min(count - at, (u32)REPAIR_RUN);
        if (at > begin) run.pair = lane < run.count ? list.pairs[at + lane] : 0;
        repair_run(a, run);
      }
    }
  }
}
