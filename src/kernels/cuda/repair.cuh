// Listed pairs, again from the values themselves: a warp a pair, or a few pairs of one row, sums in double. Of sums on
// two sets of pipes (mixed.cuh) those that could break the contract, of products (split_precision.cuh) those that
// cancel.
#define REPAIR_THREADS 256
#if SPLIT
#define REPAIR_RUN 8
#else
#define REPAIR_RUN 1  // a short list goes to as many warps
#endif

#if SPLIT
MERCER_INLINE bool list_stands(const PairArguments& a) {
  return products_stand(*a.split) && a.split->listed <= a.split->capacity;
}
MERCER_INLINE u32 listed(const PairArguments& a) { return a.split->listed; }
#else
MERCER_INLINE bool list_stands(const PairArguments& a) { return mixed_stands(*a.mixed); }
MERCER_INLINE u32 listed(const PairArguments& a) { return a.mixed->listed; }

template <int>
MERCER_INLINE double direct_sum(const PairArguments& a, i64 m, i64 n) {
  const float* x = (const float*)a.x + m / MERCER_PANEL * a.k * MERCER_PANEL + m % MERCER_PANEL;
  const float* z = (const float*)a.z + n / MERCER_PANEL * a.k * MERCER_PANEL + n % MERCER_PANEL;
  double sum = 0;
#pragma unroll 8
  for (int k = threadIdx.x % 32; k < a.k; k += 32)
    sum += fabs((double)x[(i64)k * MERCER_PANEL] - (double)z[(i64)k * MERCER_PANEL]);
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}
#endif

MERCER_INLINE void store_pair(const PairArguments& a, REAL sum, i64 m, i64 n) {
  REAL row[ROW_SLOTS + 1], col[COL_SLOTS + 1];
#pragma unroll
  for (int s = 0; s < ROW_SLOTS; ++s) row[s] = ((const REAL*)a.row)[s * a.x_ld + m];
#pragma unroll
  for (int s = 0; s < COL_SLOTS; ++s) col[s] = ((const REAL*)a.col)[s * a.z_ld + n];
#pragma unroll 1
  for (i64 member = 0; member < a.member_count; ++member) {
    const i64 item = batch_offset(a.members, a.member_item_step, member);
    const REAL* params = params_of(a, item);
    OUT* out = (OUT*)a.out + batch_offset(a.members, a.member_out_step, member);
    REAL outputs[OUTPUTS];
    epilogue(outputs, &sum, row, col, params, (REAL)(m + a.i_offset), (REAL)(n + a.j_offset), (REAL)a.features);
    OUT value;
    convert(value, outputs[0]);
    out[m * a.out_row + n * a.out_col] = value;
    if (a.symmetric) out[n * a.out_row + m * a.out_col] = value;
  }
}

#if SPLIT
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
#else
MERCER_INLINE void repair_run(const PairArguments& a, u32 at, u32 end) {
  for (; at < end; ++at) {
    const i64 m = (i64)(a.repairs[at] >> 32), n = (i64)(u32)a.repairs[at];
    const REAL sum = (REAL)direct_sum<4>(a, m, n);
    if (threadIdx.x % 32 == 0) store_pair(a, sum, m, n);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(REPAIR_THREADS) repair(const __grid_constant__ PairArguments a) {
  wait_for_kernel_ahead();
  if (!list_stands(a)) return;
  const u32 warp = (blockIdx.x * REPAIR_THREADS + threadIdx.x) / 32, warps = gridDim.x * (REPAIR_THREADS / 32);
  const u32 count = listed(a);
  for (u32 first = warp * REPAIR_RUN; first < count; first += warps * REPAIR_RUN)
    repair_run(a, first, first + REPAIR_RUN < count ? first + REPAIR_RUN : count);
}
