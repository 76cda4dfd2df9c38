// Listed pairs of products that cancel (areas.cuh), again from the values themselves: a warp a few pairs of one row,
// sums in double. Areas of many pairs are left to repair_areas.cuh.
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

template <int COUNT>
MERCER_INLINE void repair_together(const PairArguments& a, const ListedPairs& list, u32 at) {
  i64 n[COUNT];
  double sums[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) n[c] = list.column(at + c);
  const i64 m = list.row(at);
  direct_sums<COUNT, 4, COUNT == 1 ? 4 : 2>(sums, a, m, n);
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int c = 0; c < COUNT; ++c) store_pair(a, (REAL)sums[c], m, n[c]);
}

// Neighbours in the list share a row, whose values are loaded once for up to four of them.
MERCER_INLINE void repair_run(const PairArguments& a, const ListedPairs& list, u32 at, u32 end) {
  while (at < end) {
    const i64 row = list.row(at);
    const auto has_row = [&](u32 pair) { return pair < end && list.row(pair) == row; };
    const int more = !has_row(at + 1) ? 1 : has_row(at + 2) && has_row(at + 3) ? 4 : 2;
    if (more == 4) repair_together<4>(a, list, at);
    else if (more == 2) repair_together<2>(a, list, at);
    else repair_together<1>(a, list, at);
    at += more;
  }
}

extern "C" __global__ void __launch_bounds__(REPAIR_THREADS) repair(const __grid_constant__ PairArguments a) {
  wait_for_kernel_ahead();
  const bool stands = products_stand(*a.split);  // of which loads do not wait
  const u32 warp = (blockIdx.x * REPAIR_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const u32 areas = areas_along(a.m) * areas_along(a.n), warps = gridDim.x * (REPAIR_THREADS / 32);
  const u32 sharing = max(REPAIR_WARPS, warps / areas), groups = warps / sharing, group = warp / sharing;
  const u32 at_once = min(REPAIR_AREAS, (areas + groups - 1) / groups);
  const u32 begin = warp % sharing * REPAIR_RUN, step = sharing * REPAIR_RUN;
  for (u32 first = group * at_once; group < groups && first < areas; first += groups * at_once) {
    const u32 own = lane < at_once && first + lane < areas ? a.area_counts[first + lane] : 0;
    const bool wanted = stands && own > begin && own < a.dense_area && own <= a.area_capacity;
    for (u32 left = __ballot_sync(0xffffffffu, wanted); left; left &= left - 1) {
      const int place = __ffs(left) - 1;
      const u32 count = __shfl_sync(0xffffffffu, own, place);
      const ListedPairs list(a, first + place);
      for (u32 at = begin; at < count; at += step)
        repair_run(a, list, at, at + REPAIR_RUN < count ? at + REPAIR_RUN : count);
    }
  }
}
