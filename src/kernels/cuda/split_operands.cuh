// Operands of products in split precision (split_precision.cuh), from panels:
//
//   find_centre → examine → write_pieces [→ join_norms] → the tiles of products → repair, areas, tiles of regions
//
// Features of few points go in chunks, each by blocks of its own.
//
// The image of a side is what shared memory holds: blocks of 32 points, in them units of 32 points x 128 bytes, 16-byte
// chunk c of point p at c ^ (p % 8). A unit has 32 features, high pieces in chunks 0 … 3 and low ones in 4 … 7. Where
// no value has a low piece (integers), it has the high pieces of 64 features.
#define SPLIT_THREADS 256

// Centres of the features (operand_values.cuh). Of the caller's points they are found while panels are still packed.
MERCER_INLINE void centre_features(const SplitArguments& a) {
  const i64 k = centred_feature(SPLIT_THREADS);
  const bool centres = SQUARES && k < a.k, early = a.side[0].points != nullptr;
  float samples[2] = {};
  int place = -1;
  if (centres && early) {
    take_samples(samples, a, [&](const SplitSide& side, i64 point) {
      return load_any<float>(side.points, side.dtype, point * side.point_stride + k * side.feature_stride);
    });
    place = median_place(samples);
  }
  wait_for_kernel_ahead();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *a.state = {a.pieces == 2 ? 1u : 0u, 0, 0, a.most_sampled, 1, {0, 0}, 0};
    write_scale<float>(a.state, a.uniforms);
  }
  if (centres && !early) {
    take_samples(samples, a, [&](const SplitSide& side, i64 point) { return panel_value(side, a.k, k, point); });
    place = median_place(samples);
  }
  if (centres)
    write_sample(a.centre + k, samples, place);
  else if (k < a.k && threadIdx.x % 32 == 0)
    a.centre[k] = 0;
}
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) find_centre(const __grid_constant__ SplitArguments a) {
  centre_features(a);
}

// No pair is listed yet.
MERCER_INLINE void clear_areas(const SplitArguments& a) {
  const i64 block = blockIdx.x + (i64)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const i64 threads = (i64)gridDim.x * gridDim.y * gridDim.z * SPLIT_THREADS;
  for (i64 area = block * SPLIT_THREADS + threadIdx.x; area < a.areas; area += threads) a.area_counts[area] = 0;
}

// Values of which the squares, sums of squares and powers of two stay within the floats.
#define LEAST_LARGEST 0x1p-50f
#define MOST_LARGEST 0x1p50f

MERCER_INLINE bool is_carried(float largest) {
  return largest == 0 || (largest >= LEAST_LARGEST && largest <= MOST_LARGEST);
}

// The 32 points of a block of the image have one power of two, by the largest of them: `top`. Beside it a point keeps
// 2^-23 of its largest value while that is 2^-16 of the top or more. Points whose products nobody repairs have each its
// own.
#define LEAST_OF_TOP 0x1p-16f
MERCER_INLINE bool is_carried_beside(float top, float largest) {
  return is_carried(largest) && (largest == 0 || largest >= LEAST_OF_TOP * top);
}
// Of a point of largest value `own`; a warp has those of a block.
MERCER_INLINE float top_of(const SplitArguments& a, float own, float in_block) {
  const u32 top = __reduce_max_sync(0xffffffffu, is_carried(in_block) ? bits_of(in_block) : 0u);
  return !a.own_scales ? float_of(top) : is_carried(own) ? own : 0.0f;
}

// Features of a chunk of them: whole blocks of write_pieces.
#define PIECE_FEATURES 64
MERCER_INLINE i64 chunk_begin(const SplitArguments& a, int chunk) {
  const i64 blocks = (a.units * 32 + PIECE_FEATURES - 1) / PIECE_FEATURES;
  return blocks * chunk / a.chunks * PIECE_FEATURES;
}

// The largest value of each point, and whether any value has a low piece. A block takes 64 points, 16 threads four
// points each.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) examine(const __grid_constant__ SplitArguments a) {
  wait_for_kernel_ahead();
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
  for (i64 k = chunk_begin(a, blockIdx.z) + row; k < chunk_begin(a, blockIdx.z + 1) && k < a.k; k += kRows) {
    const Pack<float, 4> values = from[k * kQuads];
    const float centre = a.centre[k], times = multiplier<float>(a, s, k);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float difference = values.value[c] - centre, value = fabsf(difference * times);
      const bool is_lost = value == 0 && difference != 0 && times != 0;  // below the floats: not carried
      most[c] = max_nan(most[c], is_lost ? 0x1p-149f : value);
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
  const u32 carried = __reduce_max_sync(0xffffffffu, is_carried(value) ? bits_of(value) : 0u);
  if (threadIdx.x % 32 == 0) atomicMax(&a.state->largest, carried);
  side.largest[blockIdx.z * side.ld + panel * MERCER_PANEL + threadIdx.x] = value;
}

// All norms are multiples of this, of at most 22 bits, and a rest: the sum of two multiples is exact. `largest`: of the
// whole call. Powers of two by their bits, for most is between 2^-100 and 2^117.
MERCER_INLINE int norm_quantum(const SplitArguments& a, float largest) {
  const double most = (double)a.k * (double)largest * (double)largest * (1 + 0x1p-20);
  return most > 0 ? (int)(bits_of(most) >> 52) - 1023 - 21 : 0;
}
MERCER_INLINE double double_power_of_two(int exponent) { return float_of((u64)(exponent + 1023) << 52); }

// A block takes 32 points, 64 features at a time. A thread has 4 features of one point, and the 4 that are 32 features
// further on: eight threads write whole sectors.
#define POINT_THREADS 8
struct PieceFactors {
  float centres[PIECE_FEATURES], times[PIECE_FEATURES];
  MERCER_METHOD void load(const SplitArguments& a, int s, i64 k0) {
    if (threadIdx.x >= PIECE_FEATURES) return;
    const i64 k = k0 + threadIdx.x;
    centres[threadIdx.x] = k < a.k ? a.centre[k] : 0.0f;
    times[threadIdx.x] = k < a.k ? multiplier<float>(a, s, k) : 0.0f;
  }
};
struct PieceBlock {
  float tile[MERCER_IMAGE_ROWS][PIECE_FEATURES + 1];
  PieceFactors factors;
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
  block.factors.load(a, s, k0);
  __syncthreads();
}

// The point that a thread shares with seven others.
struct PiecePoint {
  bool carried, has_low;
  int at;      // among those of the block's image
  float up;    // its power of two
  u8* image;
  float* row;  // its values again
};

// Point p of a block that begins at `first`; of the block's points that pieces carry `top` is the largest.
MERCER_INLINE PiecePoint point_of(const SplitArguments& a, const SplitSide& side, i64 first, int p, bool carried,
                                  bool has_low, float top) {
  const int at = a.quads ? quad_row(p) : p;
  return {carried, has_low, at, carried ? power_of_two(piece_exponent(top)) : 0.0f,
          side.image + first * a.image_units * 128 + at * 128, side.rows_out + (first + p) * a.row_length};
}

// Four values as pieces; the square of what they are is added to `norm`.
MERCER_INLINE void split_values(u32 (&high)[2], u32 (&low)[2], double& norm, const PieceFactors& factors,
                                const PiecePoint& point, const Pack<float, 4>& raw, int kk) {
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      value[i] = point.carried
                     ? (raw.value[c + i] - factors.centres[kk + c + i]) * factors.times[kk + c + i] * point.up
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
  const int place = threadIdx.x % POINT_THREADS;
  if (point.has_low)
    write_both(point.image + k / 32 * kUnit, point.at, place, high, low);
  else
    write_chunk(point.image + k / 64 * kUnit, point.at, place / 2 + half * 4, place % 2, high);
}

MERCER_INLINE float largest_of(const SplitArguments& a, const SplitSide& side, i64 point) {
  float largest = side.largest[point];
  for (int chunk = 1; chunk < a.chunks; ++chunk) largest = max_nan(largest, side.largest[chunk * side.ld + point]);
  return largest;
}

// The norm of a point as written, from what its threads have; a warp writes those of a block. `call_largest`: of all
// points.
MERCER_INLINE float write_norm(const SplitArguments& a, const SplitSide& side, i64 point, double norm, float largest,
                               float call_largest) {
  const float top = top_of(a, largest, largest);
  const bool carried = is_carried_beside(top, largest);
  const int quantum = norm_quantum(a, call_largest);
  const double down = (double)power_of_two(-piece_exponent(top));
  norm *= down * down;
  const double whole = rint(norm * double_power_of_two(-quantum)) * double_power_of_two(quantum);
  side.norm[point] = carried ? (float)whole : NOT_CARRIED;
  side.norm_tail[point] = carried ? (float)(norm - whole) : 0.0f;
  side.scale[point] = (float)down;
  return carried ? (float)norm : INFINITY;
}

// Of a warp's norms, for the whole side.
MERCER_INLINE void keep_most(const SplitArguments& a, float norm) {
  const u32 most = __reduce_max_sync(0xffffffffu, bits_of(norm));
  if (threadIdx.x % 32 != 0) return;
  for (int s = blockIdx.y; s < (a.sides == 1 ? 2 : blockIdx.y + 1); ++s) atomicMax(&a.state->most_norm[s], most);
}

// Of the threads of a point, for the one of the first warp that has it.
MERCER_INLINE double gather_norms(double (&norms)[POINT_THREADS][MERCER_IMAGE_ROWS], double norm) {
  norms[threadIdx.x % POINT_THREADS][threadIdx.x / POINT_THREADS] = norm;
  __syncthreads();
  double sum = norms[0][threadIdx.x % MERCER_IMAGE_ROWS];
  for (int t = 1; t < POINT_THREADS; ++t) sum += norms[t][threadIdx.x % MERCER_IMAGE_ROWS];
  return sum;
}

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) write_pieces(const __grid_constant__ SplitArguments a) {
  wait_for_kernel_ahead();
  clear_areas(a);
  __shared__ PieceBlock block;
  __shared__ double norms[POINT_THREADS][MERCER_IMAGE_ROWS];
  __shared__ float largest_of_points[MERCER_IMAGE_ROWS];
  const int s = blockIdx.y, p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const SplitSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  if (first >= side.ld) return;
  const float largest = largest_of(a, side, first + p), call_largest = float_of(a.state->largest);
  // The points are a warp's here, eight warps for all.
  const float top = top_of(a, largest, largest_of(a, side, first + threadIdx.x % MERCER_IMAGE_ROWS));
  const bool carried = is_carried_beside(top, largest);
  const PiecePoint point = point_of(a, side, first, p, carried, a.state->low != 0, top);
  const Pack<float, 4>* panel =
      (const Pack<float, 4>*)(side.values + first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL);
  double norm = 0;
#pragma unroll 1
  for (i64 k0 = chunk_begin(a, blockIdx.z); k0 < chunk_begin(a, blockIdx.z + 1); k0 += PIECE_FEATURES) {
    load_features(block, a, s, panel, k0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int kk = half * 32 + place * 4;
      const i64 k = k0 + kk;
      Pack<float, 4> raw;
      u32 high[2], low[2];
#pragma unroll
      for (int c = 0; c < 4; ++c) raw.value[c] = block.tile[p][kk + c];
      split_values(high, low, norm, block.factors, point, raw, kk);
      if (side.rows_out != nullptr && k < a.row_length) store_pack(point.row + k, raw);
      if (!point.has_low || k < a.units * 32) write_unit(point, high, low, k, half);
    }
  }
  if (place == 0) largest_of_points[p] = largest;
  norm = gather_norms(norms, norm);
  if (threadIdx.x >= MERCER_IMAGE_ROWS) return;
  if (a.chunks > 1)
    side.norms[blockIdx.z * side.ld + first + threadIdx.x] = norm;
  else
    keep_most(a, write_norm(a, side, first + threadIdx.x, norm, largest_of_points[threadIdx.x], call_largest));
}

// The norms of chunks, in order.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) join_norms(const __grid_constant__ SplitArguments a) {
  wait_for_kernel_ahead();
  const SplitSide& side = a.side[blockIdx.y];
  const i64 point = (i64)blockIdx.x * SPLIT_THREADS + threadIdx.x;
  float written = 0;
  if (point < side.ld) {
    const float largest = largest_of(a, side, point);
    double norm = 0;
    for (int chunk = 0; chunk < a.chunks; ++chunk) norm += side.norms[chunk * side.ld + point];
    written = write_norm(a, side, point, norm, largest, float_of(a.state->largest));
  }
  keep_most(a, written);
}

// How many pairs cancel: 2048 of them, spread over rows and columns, from their first features. A warp a pair.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) sample_pairs(const __grid_constant__ SplitArguments a) {
  wait_for_kernel_ahead();
  const SplitSide &x = a.side[0], &z = a.side[a.sides - 1];
  const u32 pair = (blockIdx.x * SPLIT_THREADS + threadIdx.x) / 32, lane = threadIdx.x % 32;
  const i64 m = (i64)((u64)pair * (u64)x.count / MERCER_SAMPLED_PAIRS);
  const i64 n = (i64)((u64)((pair + 1) * 2654435761u) * (u64)z.count >> 32);
  float sum = 0;
  for (i64 k = lane; k < a.k; k += 32) {
    const float difference =
        (x.rows[m * a.row_length + k] - z.rows[n * a.row_length + k]) * multiplier<float>(a, 0, k);
    sum = mul_add(difference, difference, sum);
  }
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  const float norms = (x.norm[m] + z.norm[n]) + (x.norm_tail[m] + z.norm_tail[n]);
  const bool cancels = !(sum >= CANCELS_BELOW * norms);
  if (lane == 0 && cancels && a.state->sampled != MERCER_NO_PRODUCTS) atomicAdd(&a.state->sampled, 1u);
}
