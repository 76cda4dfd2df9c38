// Listed pairs of products that cancel (split_precision.cuh), again from the values themselves: a warp a few pairs of
// one row, sums in double.
#define REPAIR_THREADS 256
#define REPAIR_RUN 8

template <int COUNT>
MERCER_INLINE void repair_together(const PairArguments& a, u32 at) {
  i64 n[COUNT];
  double sums[COUNT];
#pragma unroll
  for (int c = 0; c < COUNT; ++c) n[c] = (i64)(u32)a.repairs[at + c];
  const i64 m = (i64)(a.repairs[at] >> 32);
  direct_sums<COUNT, 4, COUNT == 1 ? 4 : 2>(sums, a, m, n);
  if (threadIdx.x % 32 != 0) return;
#pragma unroll
  for (int c = 0; c < COUNT; ++c) store_pair(a, (REAL)sums[c], m, n[c]);
}

// Neighbours in the list share a row, whose values are loaded once for up to four of them.
MERCER_INLINE void repair_run(const PairArguments& a, u32 at, u32 end) {
  while (at < end) {
    const u32 row = (u32)(a.repairs[at] >> 32);
    const auto has_row = [&](u32 pair) { return pair < end && (u32)(a.repairs[pair] >> 32) == row; };
    const int more = !has_row(at + 1) ? 1 : has_row(at + 2) && has_row(at + 3) ? 4 : 2;
    if (more == 4) repair_together<4>(a, at);
    else if (more == 2) repair_together<2>(a, at);
    else repair_together<1>(a, at);
    at += more;
  }
}

extern "C" __global__ void __launch_bounds__(REPAIR_THREADS) repair(const __grid_constant__ PairArguments a) {
  wait_for_kernel_ahead();
  if (!products_stand(*a.split) || a.split->listed > a.split->capacity) return;
  const u32 warp = (blockIdx.x * REPAIR_THREADS + threadIdx.x) / 32, warps = gridDim.x * (REPAIR_THREADS / 32);
  const u32 count = a.split->listed;
  for (u32 first = warp * REPAIR_RUN; first < count; first += warps * REPAIR_RUN)
    repair_run(a, first, first + REPAIR_RUN < count ? first + REPAIR_RUN : count);
}
