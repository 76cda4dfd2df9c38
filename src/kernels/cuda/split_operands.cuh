// Operands of products in split precision (split_precision.cuh), from panels:
//
//   find_centre → examine → write_pieces → the tiles of products → repair, tiles of regions
//
// The image of a side is what shared memory holds: blocks of 32 points, in them units of 32 points x 128 bytes, 16-byte
// chunk c of point p at c ^ (p % 8). A unit has 32 features, high pieces in chunks 0 … 3 and low ones in 4 … 7. Where
// no value has a low piece (integers), it has the high pieces of 64 features.
//
//   SQUARES 1: of (x - z)^2, centred; 0: of x z
#define SPLIT_THREADS 256
#define CENTRE_SAMPLES 64

MERCER_INLINE float panel_value(const SplitSide& side, i64 features, i64 k, i64 point) {
  return side.values[(point / MERCER_PANEL * features + k) * MERCER_PANEL + point % MERCER_PANEL];
}

// The median of a sample of points, for every feature: a mean would follow a single far point. A warp a feature.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) find_centre(const __grid_constant__ SplitArguments a) {
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.state = {a.pieces == 2 ? 1u : 0u, 0, 0, 0, a.capacity, a.most_sampled};
  const i64 k = (i64)blockIdx.x * (SPLIT_THREADS / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (k >= a.k) return;
  if (!SQUARES) {
    if (lane == 0) a.centre[k] = 0;
    return;
  }
  float samples[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const SplitSide& side = a.side[s == 0 ? 0 : a.sides - 1];
    const i64 place = s == 1 && a.sides == 1 ? lane + 32 : lane, places = a.sides == 1 ? 64 : 32;
    samples[s] = panel_value(side, a.k, k, place * side.count / places);
  }
  int below[2] = {0, 0};
#pragma unroll 4
  for (int other = 0; other < CENTRE_SAMPLES; ++other) {
    const u32 value = ordered(__shfl_sync(0xffffffffu, other < 32 ? samples[0] : samples[1], other % 32));
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const u32 own = ordered(samples[s]);
      below[s] += value < own || (value == own && other < lane + 32 * s);
    }
  }
#pragma unroll
  for (int s = 0; s < 2; ++s)
    if (below[s] == CENTRE_SAMPLES / 2 - 1) a.centre[k] = fabsf(samples[s]) < INFINITY ? samples[s] : 0;
}

// What feature k of a side is multiplied with: the root of its weight, or, in a product, its weight on one side.
MERCER_INLINE float multiplier(const SplitArguments& a, int side, i64 k) {
#if WEIGHTED
  if (SQUARES) return __fsqrt_rn(a.weights[k]);
  return side == 0 ? a.weights[k] : 1.0f;
#else
  return 1.0f;
#endif
}

// Values of which the squares, sums of squares and powers of two stay within the floats.
#define LEAST_LARGEST 0x1p-50f
#define MOST_LARGEST 0x1p50f

// The largest value of each point, and whether any value has a low piece. A block takes 64 points, 16 threads four
// points each.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) examine(const __grid_constant__ SplitArguments a) {
  constexpr int kQuads = MERCER_PANEL / 4, kRows = SPLIT_THREADS / kQuads;
  __shared__ float largest[kRows][MERCER_PANEL];
  const int s = blockIdx.y, quad = threadIdx.x % kQuads, row = threadIdx.x / kQuads;
  const SplitSide& side = a.side[s];
  const i64 panel = blockIdx.x;
  if (panel * MERCER_PANEL >= side.ld) return;
  const Pack<float, 4>* from = (const Pack<float, 4>*)side.values + panel * a.k * kQuads + quad;
  float most[4] = {}, least = INFINITY;
  u32 fraction = 0;
#pragma unroll 4
  for (i64 k = row; k < a.k; k += kRows) {
    const Pack<float, 4> values = from[k * kQuads];
    const float centre = a.centre[k], times = multiplier(a, s, k);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float value = fabsf((values.value[c] - centre) * times);
      most[c] = max_nan(most[c], value);
      fraction |= bits_of(value);
      if (value > 0) least = fminf(least, value);
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) largest[row][quad * 4 + c] = most[c];
  // A piece of 16 bits has eleven digits, and at most 24 binary places below the largest.
  float top = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
  const bool low = (fraction & 0x1fffu) != 0 || top > 0x1p24f * least;
  if (a.pieces == 0 && __any_sync(0xffffffffu, low) && threadIdx.x % 32 == 0) a.state->low = 1;
  __syncthreads();
  if (threadIdx.x >= MERCER_PANEL) return;
  float value = largest[0][threadIdx.x];
  for (int r = 1; r < kRows; ++r) value = max_nan(value, largest[r][threadIdx.x]);
  const bool carried = value == 0 || (value >= LEAST_LARGEST && value <= MOST_LARGEST);
  atomicMax(&a.state->largest, carried ? bits_of(value) : 0u);
  side.largest[panel * MERCER_PANEL + threadIdx.x] = carried ? value : INFINITY;
}

// Two floats as 16-bit floats, the first in the lower half.
MERCER_INLINE u32 half_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
MERCER_INLINE float half_value(u32 pair, int which) {
  half_bits half = {(u16)(which ? pair >> 16 : pair)};
  return to_float(half);
}

// All norms are multiples of this, of at most 22 bits, and a rest: the sum of two multiples is exact.
MERCER_INLINE double norm_quantum(const SplitArguments& a) {
  const double largest = (double)float_of(a.state->largest);
  const double most = (double)a.k * largest * largest * (1 + 0x1p-20);
  return most > 0 ? scalbn(1.0, ilogb(most) - 21) : 1.0;
}

// A block takes 32 points, 64 features at a time. A thread has 4 features of one point, and the 4 that are 32 features
// further on: eight threads write whole sectors.
#define PIECE_FEATURES 64
#define POINT_THREADS 8
struct PieceBlock {
  float tile[MERCER_IMAGE_ROWS][PIECE_FEATURES + 1];
  float centres[PIECE_FEATURES], times[PIECE_FEATURES];
};

// Features k0 … of the block's points, from a panel, [point][feature].
MERCER_INLINE void load_features(PieceBlock& block, const SplitArguments& a, int s, const Pack<float, 4>* panel,
                                 i64 k0) {
  constexpr int kPacks = MERCER_IMAGE_ROWS / 4, kLoads = PIECE_FEATURES * kPacks / SPLIT_THREADS;
  Pack<float, 4> loaded[kLoads];
#pragma unroll
  for (int pass = 0; pass < kLoads; ++pass) {
    const i64 k = k0 + threadIdx.x / kPacks + pass * (SPLIT_THREADS / kPacks);
    loaded[pass] = k < a.k ? panel[k * (MERCER_PANEL / 4) + threadIdx.x % kPacks] : Pack<float, 4>{};
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < kLoads; ++pass)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      block.tile[threadIdx.x % kPacks * 4 + c][threadIdx.x / kPacks + pass * (SPLIT_THREADS / kPacks)] =
          loaded[pass].value[c];
  if (threadIdx.x < PIECE_FEATURES) {
    const i64 k = k0 + threadIdx.x;
    block.centres[threadIdx.x] = k < a.k ? a.centre[k] : 0.0f;
    block.times[threadIdx.x] = k < a.k ? multiplier(a, s, k) : 0.0f;
  }
  __syncthreads();
}

// The point that a thread shares with seven others.
struct PiecePoint {
  bool carried, has_low;
  float up;    // its power of two
  u8* image;
  float* row;  // its values again
};

// Four values as pieces; the square of what they are is added to `norm`.
MERCER_INLINE void split_values(u32 (&high)[2], u32 (&low)[2], double& norm, const PieceBlock& block,
                                const PiecePoint& point, const Pack<float, 4>& raw, int kk) {
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      value[i] = point.carried
                     ? (raw.value[c + i] - block.centres[kk + c + i]) * block.times[kk + c + i] * point.up
                     : 0.0f;
    high[c / 2] = half_pair(value[0], value[1]);
    low[c / 2] = half_pair(value[0] - half_value(high[c / 2], 0), value[1] - half_value(high[c / 2], 1));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float low_part = point.has_low ? half_value(low[c / 2], i) : 0.0f;
      const double written = (double)half_value(high[c / 2], i) + (double)low_part;
      norm = __fma_rn(written, written, norm);
    }
  }
}

// Of 16 bytes, 8 features, a thread has one half. `half`: of the 64 features, which a unit without low pieces has all.
MERCER_INLINE void write_unit(const PiecePoint& point, const u32 (&high)[2], const u32 (&low)[2], i64 k, int half) {
  constexpr int kUnit = MERCER_IMAGE_ROWS * 128;
  const int p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const uint2 high_pieces = {high[0], high[1]}, low_pieces = {low[0], low[1]};
  const int chunk = place / 2, side_of_chunk = place % 2 * 8;
  if (point.has_low) {
    u8* unit = point.image + k / 32 * kUnit + side_of_chunk;
    *(uint2*)(unit + ((chunk ^ (p & 7)) << 4)) = high_pieces;
    *(uint2*)(unit + (((chunk + 4) ^ (p & 7)) << 4)) = low_pieces;
  } else {
    u8* unit = point.image + k / 64 * kUnit + side_of_chunk;
    *(uint2*)(unit + (((chunk + half * 4) ^ (p & 7)) << 4)) = high_pieces;
  }
}

// The norm of a point as written, from what its threads have.
MERCER_INLINE void write_norm(const SplitArguments& a, const SplitSide& side, i64 point, double norm, bool carried,
                              int exponent) {
  const double down = carried ? (double)float_of((u32)(127 - exponent) << 23) : 0.0;
  norm *= down * down;
  const double quantum = norm_quantum(a), whole = rint(norm / quantum) * quantum;
  side.norm[point] = carried ? (float)whole : NOT_CARRIED;
  side.norm_tail[point] = carried ? (float)(norm - whole) : 0.0f;
  side.scale[point] = (float)down;
}

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) write_pieces(const __grid_constant__ SplitArguments a) {
  __shared__ PieceBlock block;
  __shared__ double norms[POINT_THREADS][MERCER_IMAGE_ROWS];
  const int s = blockIdx.y, p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const SplitSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  if (first >= side.ld) return;
  const float largest = side.largest[first + p];
  const bool carried = largest < INFINITY;
  // The largest value comes to lie between 2^14 and 2^15.
  const int exponent = carried && largest > 0 ? 14 - (int)(bits_of(largest) >> 23) + 127 : 0;
  const PiecePoint point = {carried, a.state->low != 0, carried ? float_of((u32)(exponent + 127) << 23) : 0.0f,
                            side.image + first * a.units * 128 + p * 128,
                            side.rows + (first + p) * a.row_length};
  const Pack<float, 4>* panel =
      (const Pack<float, 4>*)(side.values + first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL);
  double norm = 0;
#pragma unroll 1
  for (i64 k0 = 0; k0 < a.units * 32; k0 += PIECE_FEATURES) {
    load_features(block, a, s, panel, k0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int kk = half * 32 + place * 4;
      const i64 k = k0 + kk;
      Pack<float, 4> raw;
      u32 high[2], low[2];
#pragma unroll
      for (int c = 0; c < 4; ++c) raw.value[c] = block.tile[p][kk + c];
      split_values(high, low, norm, block, point, raw, kk);
      if (k < a.row_length) store_pack(point.row + k, raw);
      if (!point.has_low || k < a.units * 32) write_unit(point, high, low, k, half);
    }
  }
  norms[place][p] = norm;
  __syncthreads();
  if (place != 0) return;
  for (int t = 1; t < POINT_THREADS; ++t) norm += norms[t][p];
  write_norm(a, side, first + p, norm, carried, exponent);
}

// How many pairs cancel: 2048 of them, spread over rows and columns, from their first features. A warp a pair.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) sample_pairs(const __grid_constant__ SplitArguments a) {
  const SplitSide &x = a.side[0], &z = a.side[a.sides - 1];
  const u32 pair = (blockIdx.x * SPLIT_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const i64 m = (i64)((u64)pair * (u64)x.count / MERCER_SAMPLED_PAIRS);
  const i64 n = (i64)((u64)((pair + 1) * 2654435761u) * (u64)z.count >> 32);
  float sum = 0;
  for (i64 k = lane; k < a.k; k += 32) {
    const float difference =
        (x.rows[m * a.row_length + k] - z.rows[n * a.row_length + k]) * multiplier(a, 0, k);
    sum = mul_add(difference, difference, sum);
  }
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane == 0 && !(sum >= CANCELS_BELOW * (x.norm[m] + z.norm[n]))) atomicAdd(&a.state->sampled, 1u);
}
