// Values of both sides as integers of 23 bits, and whether sums of them will do (mixed.cuh). Panels in, panels out:
//
//   start_mixed → allow (allowance.cuh) → find_range → quantise
//     matrices → sample_pairs → quantised tile → repair, or the tile of the values themselves
//     products → quantised tile, or that of the values
#define RANGE_THREADS 256
#define QUANTISE_THREADS 512
#define QUADS (MERCER_PANEL / 4)
#define QUANTISE_ROWS (QUANTISE_THREADS / QUADS)
#define SAMPLE_POINTS 32
#define SAMPLE_ROWS (QUANTISE_THREADS / SAMPLE_POINTS)

extern "C" __global__ void start_mixed(const __grid_constant__ MixedArguments a) {
  *a.state = {0xffffffffu, 0u, 0x7fffffff, 0, 0, 0, 0, a.capacity, {0, 0}, 0};
}

MERCER_INLINE float float_in_order(u32 ordered) { return float_of(ordered >> 31 ? ordered & 0x7fffffffu : ~ordered); }

// Exponent of a number's last binary place; that of 0 is larger than any.
MERCER_INLINE int last_place(float value) {
  const u32 bits = bits_of(value), exponent = bits >> 23 & 0xff, fraction = bits & 0x7fffffu;
  const u32 digits = exponent ? fraction | 0x800000u : fraction;
  return digits ? (int)(exponent ? exponent : 1) - 151 + __ffs((int)digits) : 0x7fffffff;
}

// One thread of a block asks for each atomic: those of all warps would wait for one another, 30 us of 60000 x 32
// values.
extern "C" __global__ void __launch_bounds__(RANGE_THREADS) find_range(const __grid_constant__ MixedArguments a) {
  __shared__ u32 lows[RANGE_THREADS / 32], highs[RANGE_THREADS / 32];
  __shared__ int places[RANGE_THREADS / 32];
  const MixedSide& side = a.side[blockIdx.y];
  const i64 quads = side.ld * a.k / 4;
  u32 low = 0xffffffffu, high = 0;
  int place = 0x7fffffff;
  for (i64 i = (i64)blockIdx.x * RANGE_THREADS + threadIdx.x; i < quads; i += (i64)gridDim.x * RANGE_THREADS) {
    const Pack<float, 4> quad = ((const Pack<float, 4>*)side.values)[i];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      low = min(low, ordered(quad.value[c]));
      high = max(high, ordered(quad.value[c]));
      place = min(place, last_place(quad.value[c]));
    }
  }
  low = __reduce_min_sync(0xffffffffu, low);
  high = __reduce_max_sync(0xffffffffu, high);
  place = __reduce_min_sync(0xffffffffu, place);
  if (threadIdx.x % 32 == 0) {
    const int warp = threadIdx.x / 32;
    lows[warp] = low, highs[warp] = high, places[warp] = place;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < RANGE_THREADS / 32; ++warp) {
    low = min(low, lows[warp]);
    high = max(high, highs[warp]);
    place = min(place, places[warp]);
  }
  atomicMin(&a.state->low, low);
  atomicMax(&a.state->high, high);
  atomicMin(&a.state->place, place);
}

// A step of which all values are multiples, where 23 bits reach so far: integers lose nothing. Otherwise the finest.
MERCER_INLINE float step_of(const MixedState& s) {
  constexpr u32 kMinusInfinity = 0x007fffffu, kInfinity = 0xff800000u;
  if (s.low <= kMinusInfinity || s.high >= kInfinity) return 0;
  const double range = (double)float_in_order(s.high) - (double)float_in_order(s.low);
  if (!(range > 0)) return 0;
  const double place = scalbn(1.0, s.place);
  const float step = range < 8388608.0 * place ? (float)place : __double2float_ru(range / 8388607.0);
  return step >= 1.17549435e-38f ? step : 0;
}

// A block takes a panel: 16 threads four points each, so many features at once.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS) quantise(const __grid_constant__ MixedArguments a) {
  __shared__ double residuals[QUANTISE_ROWS][MERCER_PANEL];
  const MixedSide& side = a.side[blockIdx.y];
  const i64 panel = blockIdx.x;
  if (threadIdx.x == 0 && panel * MERCER_PANEL < side.ld) side.errors[side.ld + panel] = 0;
  const float origin = float_in_order(a.state->low), step = step_of(*a.state);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    a.state->origin = origin;
    a.state->step = step;
  }
  if (step == 0 || panel * MERCER_PANEL >= side.ld) return;
  const int quad = threadIdx.x % QUADS, row = threadIdx.x / QUADS;
  const Pack<float, 4>* from = (const Pack<float, 4>*)(side.values + panel * a.k * MERCER_PANEL);
  Pack<float, 4>* to = (Pack<float, 4>*)(side.quantised + panel * a.k * MERCER_PANEL);
  const double per_step = 1 / (double)step;
  double residual[4] = {};
#pragma unroll 4
  for (i64 k = row; k < a.k; k += QUANTISE_ROWS) {
    Pack<float, 4> values = from[k * QUADS + quad];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const double offset = (double)values.value[c] - (double)origin, q = rint(offset * per_step);
      residual[c] += fabs(offset - q * (double)step);
      values.value[c] = (float)(8388608.0 + q);
    }
    to[k * QUADS + quad] = values;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) residuals[row][quad * 4 + c] = residual[c];
  __syncthreads();
  if (threadIdx.x >= MERCER_PANEL) return;
  double sum = 0;
  for (int r = 0; r < QUANTISE_ROWS; ++r) sum += residuals[r][threadIdx.x];
  const float error = __double2float_ru(sum);
  side.errors[panel * MERCER_PANEL + threadIdx.x] = error;
  const u32 worst = __reduce_max_sync(0xffffffffu, bits_of(error));
  if (threadIdx.x % 32 != 0) return;
  atomicMax((u32*)side.errors + side.ld + panel, worst);
  for (int s = blockIdx.y; s < (a.sides == 1 ? 2 : blockIdx.y + 1); ++s) atomicMax(&a.state->worst[s], worst);
}

// Pairs spread over rows and columns: a block takes 32 neighbouring rows, each with a column of its own. One doubtful
// pair is enough to turn to the tile of the values: the list of repairs has room for a few in a thousand.
extern "C" __global__ void __launch_bounds__(QUANTISE_THREADS) sample_pairs(const __grid_constant__ MixedArguments a) {
  __shared__ float sums[SAMPLE_ROWS][SAMPLE_POINTS];
  if (a.state->step == 0) return;
  const MixedSide &x = a.side[0], &z = a.side[a.sides - 1];
  const int point = threadIdx.x % SAMPLE_POINTS, row = threadIdx.x / SAMPLE_POINTS;
  const i64 strips = (x.count + SAMPLE_POINTS - 1) / SAMPLE_POINTS;
  const i64 m_wanted = strips * blockIdx.x / gridDim.x * SAMPLE_POINTS + point;
  const i64 m = m_wanted < x.count ? m_wanted : x.count - 1;
  const u32 drawn = (blockIdx.x * SAMPLE_POINTS + point + 1) * 2654435761u;
  i64 n = (i64)((u64)drawn * (u64)z.count >> 32);
  if (a.sides == 1 && n == m) n = (n + 1) % z.count;
  const float* x_values = x.values + m / MERCER_PANEL * a.k * MERCER_PANEL + m % MERCER_PANEL;
  const float* z_values = z.values + n / MERCER_PANEL * a.k * MERCER_PANEL + n % MERCER_PANEL;
  float sum = 0;
#pragma unroll 8
  for (i64 k = row; k < a.k; k += SAMPLE_ROWS) sum += fabsf(x_values[k * MERCER_PANEL] - z_values[k * MERCER_PANEL]);
  sums[row][point] = sum;
  __syncthreads();
  if (row > 0) return;
  for (int r = 1; r < SAMPLE_ROWS; ++r) sum += sums[r][point];
  if (is_doubtful(x.errors[m] + z.errors[n], sum, a.state->allowance)) atomicAdd(&a.state->doubtful, 1u);
}
