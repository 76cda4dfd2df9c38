// Listed pairs, again from the values themselves: a warp a pair, the sum in double. Of sums on two sets of pipes
// (mixed.cuh) those that could break the contract, of products (split_precision.cuh) those that cancel.
#define REPAIR_THREADS 256
#define REPAIR_RUN 8

#if SPLIT
MERCER_INLINE bool list_stands(const PairArguments& a) {
  return products_stand(*a.split) && a.split->listed <= a.split->capacity;
}
MERCER_INLINE u32 listed(const PairArguments& a) { return a.split->listed; }

MERCER_INLINE void add_terms(REAL (&part)[1], const PairArguments& a, const Pack<float, 4>& x, const Pack<float, 4>& z,
                             int k) {
  const float* weights = (const float*)a.w;
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (k + c < a.k)
      update(part, &x.value[c], &z.value[c], READS_WEIGHTS ? weights[k + c] : 0.0f, nullptr, nullptr, nullptr, 0, 0, 0);
}

// Four features a lane and load, eight loads on their way at once.
MERCER_INLINE double pair_sum(const PairArguments& a, i64 m, i64 n) {
  constexpr int kLoads = 4, kStep = 128;
  const Pack<float, 4>* x = (const Pack<float, 4>*)(a.x_rows + m * a.row_length);
  const Pack<float, 4>* z = (const Pack<float, 4>*)(a.z_rows + n * a.row_length);
  const int first = threadIdx.x % 32 * 4;
  double sum = 0;
  int k = first;
#pragma unroll 1
  for (; k + (kLoads - 1) * kStep + 3 < a.k; k += kLoads * kStep) {
    Pack<float, 4> xs[kLoads], zs[kLoads];
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      xs[l] = load_constant(x + (k + l * kStep) / 4);
      zs[l] = load_constant(z + (k + l * kStep) / 4);
    }
    REAL part[1] = {0};
#pragma unroll
    for (int l = 0; l < kLoads; ++l) add_terms(part, a, xs[l], zs[l], k + l * kStep);
    sum += part[0];
  }
#pragma unroll 1
  for (; k < a.k; k += kStep) {
    REAL part[1] = {0};
    add_terms(part, a, load_constant(x + k / 4), load_constant(z + k / 4), k);
    sum += part[0];
  }
#else
MERCER_INLINE bool list_stands(const PairArguments& a) { return mixed_stands(*a.mixed); }
MERCER_INLINE u32 listed(const PairArguments& a) { return a.mixed->listed; }

MERCER_INLINE double pair_sum(const PairArguments& a, i64 m, i64 n) {
  const float* x = (const float*)a.x + m / MERCER_PANEL * a.k * MERCER_PANEL + m % MERCER_PANEL;
  const float* z = (const float*)a.z + n / MERCER_PANEL * a.k * MERCER_PANEL + n % MERCER_PANEL;
  double sum = 0;
#pragma unroll 4
  for (int k = threadIdx.x % 32; k < a.k; k += 32)
    sum += fabs((double)x[(i64)k * MERCER_PANEL] - (double)z[(i64)k * MERCER_PANEL]);
#endif
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return sum;
}

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

extern "C" __global__ void __launch_bounds__(REPAIR_THREADS) repair(const __grid_constant__ PairArguments a) {
  if (!list_stands(a)) return;
  const u32 warp = (blockIdx.x * REPAIR_THREADS + threadIdx.x) / 32, warps = gridDim.x * (REPAIR_THREADS / 32);
  const u32 count = listed(a);
  // Neighbours in the list share a row: a warp takes some of them one after the other.
  for (u32 first = warp * REPAIR_RUN; first < count; first += warps * REPAIR_RUN)
    for (u32 at = first; at < first + REPAIR_RUN && at < count; ++at) {
      const i64 m = (i64)(a.repairs[at] >> 32), n = (i64)(u32)a.repairs[at];
      const REAL sum = (REAL)pair_sum(a, m, n);
      if (threadIdx.x % 32 == 0) store_pair(a, sum, m, n);
    }
}
