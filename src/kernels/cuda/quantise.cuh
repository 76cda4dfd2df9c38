// Values of both sides as integers of 23 bits, and whether sums of them will do (mixed.cuh). Panels in, panels out:
//
//   start_mixed → pack (panel_range.cuh) → allow (allowance.cuh) → quantise, and of matrices a sample of pairs
//     matrices → quantised tile → repair, or the tile of the values themselves
//     products → quantised tile, or that of the values
#define START_THREADS 256
#define QUANTISE_THREADS 512
#define QUADS (MERCER_QUANTISED / 4)
#define QUANTISE_ROWS (QUANTISE_THREADS / QUADS)
#define QUANTISE_WARPS (QUANTISE_THREADS / 32)
#define SAMPLE_POINTS 32
#define SAMPLE_ROWS (QUANTISE_THREADS / SAMPLE_POINTS)

extern "C" __global__ void __launch_bounds__(START_THREADS)
    start_mixed(const __grid_constant__ StartMixedArguments a) {
  wait_for_kernel_ahead();
  const i64 first = (i64)blockIdx.x * START_THREADS + threadIdx.x, step = (i64)gridDim.x * START_THREADS;
  for (i64 i = first; i < a.range_count; i += step) a.ranges[i] = {0xffffffffu, 0u, 0x7fffffff};
  for (i64 i = first; i < a.state_count; i += step) a.states[i] = {0, 0, 0, 0, a.capacity, {0, 0}, 0};
}

MERCER_INLINE float float_in_order(u32 ordered) { return float_of(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered); }

MERCER_INLINE double width_of(const PanelRange& s) {
  return (double)float_in_order(s.high) - (double)float_in_order(s.low);
}

// A step of which all values are multiples reaches them in 23 bits.
MERCER_INLINE bool loses_nothing(const PanelRange& s) { return width_of(s) < scalbn(8388608.0, s.place); }

// That step, otherwise the finest; 0 where there is none.
MERCER_INLINE float step_of(const PanelRange& s) {
  constexpr u32 kMinusInfinity = 0x007fffffu, kInfinity = 0xff800000u;
  if (s.low <= kMinusInfinity || s.high >= kInfinity) return 0;
  const double width = width_of(s);
  if (!(width > 0)) return 0;
  const float step = loses_nothing(s) ? (float)scalbn(1.0, s.place) : __double2float_ru(width * (1 / 8388607.0));
  return step >= 1.17549435e-38f ? step : 0;
}

MERCER_INLINE PanelRange range_of_both(const MixedArguments& a) {
  const PanelRange x = *a.side[0].range, z = *a.side[a.sides - 1].range;
  return {min(x.low, z.low), max(x.high, z.high), min(x.place, z.place)};
}

// Integers q of value = origin + q * step + residual, as floats 2^23 + q.
struct Steps {
  double origin, step, per_step;

  MERCER_METHOD float nearest(float value, double& residuals) const {
    constexpr double kWhole = 6755399441055744.0;  // 1.5 2^52, beside which fractions round off
    constexpr u32 kFloats = 0x4b000000u;           // bits of 2^23
    const double offset = (double)value - origin, q = fma(offset, per_step, kWhole);
    residuals += fabs(fma(kWhole - q, step, offset));
    return float_of((u32)bits_of(q) + kFloats);
  }
};

// 8 threads take four points each, so many features at once.
MERCER_INLINE void quantise_points(const MixedArguments& a, const MixedSide& side, i64 first, const PanelRange& range) {
  __shared__ double residuals[QUANTISE_WARPS][MERCER_QUANTISED];
  const int quad = threadIdx.x % QUADS, row = threadIdx.x / QUADS;
  const i64 place = first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL + quad * 4;
  const float* from = side.values + place;
  float* to = side.quantised + place;
  const float step = step_of(range);
  const Steps steps{(double)float_in_order(range.low), (double)step, 1 / (double)step};
  double residual[4] = {};
#pragma unroll 4
  for (i64 k = row; k < a.k; k += QUANTISE_ROWS) {
    Pack<float, 4> values = *(const Pack<float, 4>*)(from + k * MERCER_PANEL);
#pragma unroll
    for (int c = 0; c < 4; ++c) values.value[c] = steps.nearest(values.value[c], residual[c]);
    *(Pack<float, 4>*)(to + k * MERCER_PANEL) = values;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int lanes = QUADS; lanes < 32; lanes *= 2) residual[c] += __shfl_xor_sync(0xffffffffu, residual[c], lanes);
    if (threadIdx.x % 32 < QUADS) residuals[threadIdx.x / 32][quad * 4 + c] = residual[c];
  }
  __syncthreads();
  if (threadIdx.x >= MERCER_QUANTISED) return;
  double sum = 0;
#pragma unroll
  for (int warp = 0; warp < QUANTISE_WARPS; ++warp) sum += residuals[warp][threadIdx.x];
  const float error = __double2float_ru(sum);
  side.errors[first + threadIdx.x] = error;
  const u32 worst = __reduce_max_sync(0xffffffffu, bits_of(error));
  if (threadIdx.x != 0) return;
  side.errors[side.ld + first / MERCER_QUANTISED] = float_of(worst);
  for (int s = blockIdx.y; s < (a.sides == 1 ? 2 : blockIdx.y + 1); ++s) atomicMax(&a.state->worst[s], worst);
}

// Pairs spread over rows and columns: a block takes 32 neighbouring rows, each with a column of as many neighbouring
// ones. Whether a pair would be doubtful is told by the mean of errors, a quarter of a step. One doubtful pair is
// enough to turn to the tile of the values: the list of repairs has room for a few in a thousand.
MERCER_INLINE void sample_pairs(const MixedArguments& a, const PanelRange& range) {
  __shared__ float sums[SAMPLE_ROWS][SAMPLE_POINTS];
  const MixedSide &x = a.side[0], &z = a.side[a.sides - 1];
  const int point = threadIdx.x % SAMPLE_POINTS, row = threadIdx.x / SAMPLE_POINTS;
  const i64 strips = (x.count + SAMPLE_POINTS - 1) / SAMPLE_POINTS;
  const i64 m_wanted = strips * blockIdx.x / a.sampled_blocks * SAMPLE_POINTS + point;
  const i64 m = m_wanted < x.count ? m_wanted : x.count - 1;
  const u32 drawn = (blockIdx.x + 1) * 2654435761u;  // where its columns start, which of them a row takes
  i64 n = ((i64)((u64)drawn * (u64)z.count >> 32) / SAMPLE_POINTS * SAMPLE_POINTS + (point ^ drawn % SAMPLE_POINTS));
  if (n >= z.count) n = z.count - 1;
  if (a.sides == 1 && n == m) n = (n + 1) % z.count;
  const float* x_values = x.values + m / MERCER_PANEL * a.k * MERCER_PANEL + m % MERCER_PANEL;
  const float* z_values = z.values + n / MERCER_PANEL * a.k * MERCER_PANEL + n % MERCER_PANEL;
  float sum = 0;
#pragma unroll 16
  for (i64 k = row; k < a.k; k += SAMPLE_ROWS) sum += fabsf(x_values[k * MERCER_PANEL] - z_values[k * MERCER_PANEL]);
  sums[row][point] = sum;
  __syncthreads();
  if (row > 0) return;
#pragma unroll
  for (int r = 1; r < SAMPLE_ROWS; ++r) sum += sums[r][point];
  const float errors = loses_nothing(range) ? 0 : 0.5f * step_of(range) * (float)a.k;
  if (is_doubtful(errors, sum, a.state->allowance)) atomicAdd(&a.state->doubtful, 1u);
}

// Blocks of the sample, then those of both sides' points.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS) quantise(const __grid_constant__ MixedArguments a) {
  wait_for_kernel_ahead();
  const PanelRange range = range_of_both(a);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    a.state->origin = float_in_order(range.low);
    a.state->step = step_of(range);
  }
  if (step_of(range) == 0) return;
  if (blockIdx.x < a.sampled_blocks) {
    if (blockIdx.y == 0) sample_pairs(a, range);
    return;
  }
  const MixedSide& side = a.side[blockIdx.y];
  const i64 first = ((i64)blockIdx.x - a.sampled_blocks) * MERCER_QUANTISED;
  if (first < side.ld) quantise_points(a, side, first, range);
}
