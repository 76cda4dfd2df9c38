// Operands of products in split precision (split_precision.cuh), from panels, or from points of float32 as they lie:
//
//   find_centre → examine → write_pieces [→ join_norms] → the tiles of products → repair, areas, tiles of regions
//
// Features of few points go in chunks, each by blocks of its own.
//
// The image of a side is what shared memory holds: blocks of 32 points, in them units of 32 points x 128 bytes, 16-byte
// chunk c of point p at c ^ (p % 8). A unit has 32 features, high pieces in chunks 0 … 3 and low ones in 4 … 7. Where
// no value has a low piece (integers), it has the high pieces of 64 features.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "common/split_precision.cuh"
#include "pack/feature_fetch.cuh"
#include "pack/operand_values.cuh"
#include "pack/samples.cuh"

#define SPLIT_THREADS 256

MERCER_INLINE void start_state(const SplitArguments& a, const UniformScale& scale) {
  *a.state = {a.pieces == 2 ? 1u : 0u, 0, 0, a.most_sampled, 1, {0, 0}, 0, 0, 0, 0, 0, 0};
  write_scale(a.state, scale);
}

// Centres of the features (samples.cuh), and how far the samples lie from them. Centres of the caller's points are
// found while panels are still packed.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) find_centre(const __grid_constant__ SplitArguments a) {
  const i64 k = centred_feature(SPLIT_THREADS);
  const bool early = a.side[0].points != nullptr && !a.as_they_lie;
  SampledFeature feature = {};
  const auto of_points = [&] {
    feature.take(a, [&](const SplitSide& side, i64 point) {
      return load_any<float>(side.points, side.dtype, point * side.point_stride + k * side.feature_stride);
    });
  };
  if (k < a.k && early) of_points();
  wait_for_kernel_ahead();
  if (blockIdx.x == 0 && threadIdx.x == 0) start_state(a, scale_of<float>(a.uniforms));
  if (k >= a.k) return;
  if (a.as_they_lie)
    of_points();
  else if (!early)
    feature.take(a, [&](const SplitSide& side, i64 point) { return panel_value(side, a.k, k, point); });
  const float farthest = feature.farthest();
  if (threadIdx.x % 32 != 0) return;
  a.centre[k] = feature.centre;
  a.farthest[k] = farthest;
}

// Every place below `count` is a thread's of the grid.
template <class Use>
MERCER_INLINE void by_all_threads(i64 count, const Use& use) {
  const i64 block = blockIdx.x + (i64)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const i64 threads = (i64)gridDim.x * gridDim.y * gridDim.z * SPLIT_THREADS;
  for (i64 place = block * SPLIT_THREADS + threadIdx.x; place < count; place += threads) use(place);
}
// No pair is listed yet.
MERCER_INLINE void clear_areas(const SplitArguments& a) {
  by_all_threads(a.areas, [&](i64 area) { a.area_counts[area] = 0; });
}
// The largest |sample - centre| times its factor.
MERCER_INLINE void keep_largest_sampled(const SplitArguments& a) {
  by_all_threads(a.k, [&](i64 k) {
    const float times = fmaxf(fabsf(multiplier<float>(a, 0, k)), fabsf(multiplier<float>(a, a.sides - 1, k)));
    const float largest = a.farthest[k] * times;
    if (largest < INFINITY && bits_of(largest) > a.state->largest) atomicMax(&a.state->largest, bits_of(largest));
  });
}

// Values of which the squares, sums of squares and powers of two stay within the floats.
#define LEAST_LARGEST 0x1p-50f
#define MOST_LARGEST 0x1p50f

MERCER_INLINE bool is_carried(float largest) {
  return largest == 0 || (largest >= LEAST_LARGEST && largest <= MOST_LARGEST);
}

// The 32 points of a block of the image have one power of two, by the largest of them: `top`. In that scale a point
// keeps 2^-23 of its largest value while that is 2^-16 of the top or more. Points whose products nobody repairs have
// each its own.
#define LEAST_OF_TOP 0x1p-16f
MERCER_INLINE bool is_carried_with(float top, float largest) {
  return is_carried(largest) && (largest == 0 || largest >= LEAST_OF_TOP * top);
}
// The top for a point of largest value `own`; a warp has the largest values of a block.
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

// All norms are multiples of this, of at most 22 bits, and a rest: the sum of two multiples is exact. Sums of values
// more than QUANTUM_ROOM times the largest sampled one are rounded once. Powers of two by their bits, for most is at
// most 2^117.
#define QUANTUM_ROOM 0x1p4f
MERCER_INLINE int norm_quantum(const SplitArguments& a, float largest_sampled) {
  const float largest = fminf(largest_sampled * QUANTUM_ROOM, MOST_LARGEST);
  const double most = (double)a.k * (double)largest * (double)largest * (1 + 0x1p-20);
  return most > 0 ? (int)(bits_of(most) >> 52) - 1023 - 21 : 0;
}
MERCER_INLINE double double_power_of_two(int exponent) { return float_of((u64)(exponent + 1023) << 52); }

// A block takes 32 points, 64 features at a time. A thread has 4 features of one point, and the 4 that are 32 features
// farther on: eight threads write whole sectors.
#define POINT_THREADS 8
struct PieceFactors {
  alignas(16) float centres[PIECE_FEATURES];
  alignas(16) float times[PIECE_FEATURES];  // alike without weights
};
// Centre and factor of one feature, on their way there.
struct FactorFetch {
  float centre = 0, times = 0;
  MERCER_METHOD void load(const SplitArguments& a, int s, i64 k0) {
    const i64 k = k0 + threadIdx.x;
    const bool is_there = threadIdx.x < PIECE_FEATURES && k < a.k;
    centre = is_there ? a.centre[k] : 0.0f;
    times = is_there ? multiplier<float>(a, s, k) : 0.0f;
  }
  MERCER_METHOD void store(PieceFactors& factors) const {
    if (threadIdx.x < PIECE_FEATURES) factors.centres[threadIdx.x] = centre, factors.times[threadIdx.x] = times;
  }
};
struct PieceBlock {
  float tile[PIECE_FEATURES][FETCHED_POINTS + 1];
  PieceFactors factors;
};

// What a thread has of one half of them: of its point four features.
struct PieceValues {
  Pack<float, 4> raw, centres, times;
  MERCER_METHOD PieceValues(const PieceBlock& block, int half) {
    const int kk = half * 32 + threadIdx.x % POINT_THREADS * 4;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      raw.value[c] = block.tile[kk + c][threadIdx.x / POINT_THREADS];
      times.value[c] = block.factors.times[WEIGHTED ? kk + c : 0];
    }
    centres = *(const Pack<float, 4>*)(block.factors.centres + kk);
  }
};

MERCER_INLINE PlainPoints points_of(const SplitArguments& a, int s) {
  const SplitSide& side = a.side[s];
  return {side.points, side.count, a.k, side.point_stride, side.feature_stride};
}
// The points of a block of the image, from where they lie or as a panel has them.
using PieceFetch = FeatureFetch<PIECE_FEATURES, SPLIT_THREADS>;
MERCER_INLINE PieceFetch fetch_of(const SplitArguments& a, int s, i64 first) {
  if (a.as_they_lie) return PieceFetch(points_of(a, s), a.side[s].points, first);
  const float* panel = a.side[s].values + first / MERCER_PANEL * a.k * MERCER_PANEL + first % MERCER_PANEL;
  return PieceFetch(PlainPoints{panel, FETCHED_POINTS, a.k, 1, MERCER_PANEL}, panel, 0);
}

// The features of a chunk, 64 at a time, through the block's tile. While some are used the next are on their way; the
// first ones may be asked for before the kernel ahead is waited for, where they are the caller's points or that kernel
// has read them.
struct PieceSlices {
  const int begin, end;
  PieceFetch fetch;
  FactorFetch factors;

  MERCER_METHOD PieceSlices(const SplitArguments& a, int s, i64 first)
      : begin((int)chunk_begin(a, blockIdx.z)), end((int)chunk_begin(a, blockIdx.z + 1)),
        fetch(fetch_of(a, s, first)) {}
  MERCER_METHOD void load_first() { fetch.load(begin); }

  // use(k0): `block` has the features from k0 on.
  template <class Use>
  MERCER_METHOD void run(PieceBlock& block, const SplitArguments& a, int s, const Use& use) {
    factors.load(a, s, begin);
#pragma unroll 1
    for (int k0 = begin; k0 < end; k0 += PIECE_FEATURES) {
      __syncthreads();
      fetch.store(block.tile);
      factors.store(block.factors);
      __syncthreads();
      if (k0 + PIECE_FEATURES < end) {
        fetch.load(k0 + PIECE_FEATURES);
        factors.load(a, s, k0 + PIECE_FEATURES);
      }
      use(k0);
    }
  }
};

// What a thread finds out about the values of a point that it has; without weights all have one factor.
struct Magnitudes {
  float most = 0, least = INFINITY;
  u32 fraction = 0;
  MERCER_METHOD void take(const PieceBlock& block, bool asks_pieces) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const PieceValues own(block, half);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float difference = own.raw.value[c] - own.centres.value[c], times = own.times.value[c];
        most = max_nan(most, WEIGHTED ? scaled(fabsf(difference), times) : fabsf(difference));
        if (!asks_pieces) continue;
        const float magnitude = fabsf(difference * times);
        fraction |= bits_of(magnitude);
        if (magnitude > 0) least = fminf(least, magnitude);
      }
    }
  }
  // The largest of the threads of a point, in all of them.
  MERCER_METHOD float most_of_point(const PieceBlock& block) const {
    float all = WEIGHTED ? most : scaled(most, block.factors.times[0]);
#pragma unroll
    for (int lanes = 1; lanes < POINT_THREADS; lanes *= 2) all = max_nan(all, __shfl_xor_sync(0xffffffffu, all, lanes));
    return all;
  }
  // A piece of 16 bits has eleven digits, and at most 24 binary places below the largest.
  MERCER_METHOD bool has_digits() const { return (fraction & 0x1fffu) != 0; }
  MERCER_METHOD bool has_low(float most_of_point) const { return has_digits() || most_of_point > 0x1p24f * least; }

 private:
  // A difference whose product is below the floats is not carried.
  static MERCER_METHOD float scaled(float difference, float times) {
    const float magnitude = fabsf(difference * times);
    return magnitude == 0 && difference != 0 && times != 0 ? 0x1p-149f : magnitude;
  }
};

// The largest value of each point, and whether any value has a low piece.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS, 5) examine(const __grid_constant__ SplitArguments a) {
  __shared__ PieceBlock block;
  __shared__ float largest[MERCER_IMAGE_ROWS];
  const int s = blockIdx.y, p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const SplitSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  PieceSlices slices(a, s, first);
  if (a.as_they_lie) slices.load_first();
  wait_for_kernel_ahead();
  keep_largest_sampled(a);
  if (first >= side.ld) return;
  if (!a.as_they_lie) slices.load_first();
  Magnitudes own;
  bool asks_pieces = a.pieces == 0;
  slices.run(block, a, s, [&](int) {
    own.take(block, asks_pieces);
    asks_pieces = asks_pieces && !__any_sync(0xffffffffu, own.has_digits());
  });
  const float most = own.most_of_point(block);
  if (place == 0) largest[p] = most;
  // Stores to one place, of all blocks, follow one another.
  if (__syncthreads_or(a.pieces == 0 && own.has_low(most)) && threadIdx.x == 0 && a.state->low == 0) a.state->low = 1;
  if (threadIdx.x >= MERCER_IMAGE_ROWS) return;
  side.largest[blockIdx.z * side.ld + first + threadIdx.x] = largest[threadIdx.x];
}

// The point that a thread shares with seven others.
struct PiecePoint {
  bool carried, has_low;
  float up;    // its power of two
  u8* chunk;   // of its image, where the thread's four features of a unit go, of chunks 0 … 3
  float* row;  // its values again, or null
  // As `chunk`, of chunks 4 … 7.
  MERCER_METHOD u8* other_chunk() const { return (u8*)((u64)chunk ^ 64); }
};

// Point p of a block that begins at `first`; of the block's points that pieces carry `top` is the largest.
MERCER_INLINE PiecePoint point_of(const SplitArguments& a, const SplitSide& side, i64 first, int p, bool carried,
                                  bool has_low, float top) {
  const int at = a.quads ? quad_row(p) : p, place = threadIdx.x % POINT_THREADS;
  u8* image = side.image + first * a.image_units * 128 + at * 128;
  return {carried, has_low, carried ? power_of_two(piece_exponent(top)) : 0.0f,
          chunk_half(image, at, place / 2, place % 2),
          side.rows_out != nullptr ? side.rows_out + (first + p) * a.row_length : nullptr};
}

// Four values as pieces; the square of what they are is added to `norm`.
template <bool LOW>
MERCER_INLINE void split_values(uint2& high, uint2& low, double& norm, const PiecePoint& point,
                                const PieceValues& own) {
  u32 highs[2], lows[2] = {};
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    float value[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      value[i] = point.carried ? (own.raw.value[c + i] - own.centres.value[c + i]) * own.times.value[c + i] * point.up
                               : 0.0f;
    highs[c / 2] = half_pair(value[0], value[1]);
    if (LOW) lows[c / 2] = half_pair(value[0] - half_value(highs[c / 2], 0), value[1] - half_value(highs[c / 2], 1));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // No digit lies below those of the value: the sum is exact.
      const double written = half_value(highs[c / 2], i) + (LOW ? half_value(lows[c / 2], i) : 0.0f);
      norm = __fma_rn(written, written, norm);
    }
  }
  high = {highs[0], highs[1]};
  low = {lows[0], lows[1]};
}

// A thread's values from feature k0 on as pieces, and as they are where rows are wanted.
template <bool LOW>
MERCER_INLINE void write_values(const SplitArguments& a, const PiecePoint& point, const PieceBlock& block, int k0,
                                double& norm) {
  constexpr int kUnit = MERCER_IMAGE_ROWS * 128;
  const i64 unit = (i64)(LOW ? k0 / 32 : k0 / 64) * kUnit;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const PieceValues own(block, half);
    uint2 high, low;
    split_values<LOW>(high, low, norm, point, own);
    const int k = k0 + half * 32 + threadIdx.x % POINT_THREADS * 4;
    if (point.row != nullptr && k < (int)a.row_length) *(Pack<float, 4>*)(point.row + k) = own.raw;
    if (!LOW) *(uint2*)((half == 0 ? point.chunk : point.other_chunk()) + unit) = high;
    if (!LOW || k >= (int)a.units * 32) continue;
    *(uint2*)(point.chunk + unit + half * kUnit) = high;
    *(uint2*)(point.other_chunk() + unit + half * kUnit) = low;
  }
}
MERCER_INLINE void write_values(const SplitArguments& a, const PiecePoint& point, const PieceBlock& block, int k0,
                                double& norm) {
  if (point.has_low)
    write_values<true>(a, point, block, k0, norm);
  else
    write_values<false>(a, point, block, k0, norm);
}

MERCER_INLINE float largest_of(const SplitArguments& a, const SplitSide& side, i64 point) {
  float largest = side.largest[point];
  for (int chunk = 1; chunk < a.chunks; ++chunk) largest = max_nan(largest, side.largest[chunk * side.ld + point]);
  return largest;
}

// The norm of a point as written, from what its threads have; a warp writes those of a block.
MERCER_INLINE float write_norm(const SplitArguments& a, const SplitSide& side, i64 point, double norm, float largest,
                               float largest_sampled) {
  const float top = top_of(a, largest, largest);
  const bool carried = is_carried_with(top, largest);
  const int quantum = norm_quantum(a, largest_sampled);
  const double down = (double)power_of_two(-piece_exponent(top));
  norm *= down * down;
  const double whole = rint(norm * double_power_of_two(-quantum)) * double_power_of_two(quantum);
  side.norm[point] = carried ? (float)whole : NOT_CARRIED;
  side.norm_tail[point] = carried ? (float)(norm - (float)whole) : 0.0f;
  side.scale[point] = (float)down;
  return carried ? (float)norm : INFINITY;
}

// Keeps the largest of a warp's norms, for the whole side.
MERCER_INLINE void keep_most(const SplitArguments& a, float norm) {
  const u32 most = __reduce_max_sync(0xffffffffu, bits_of(norm));
  if (threadIdx.x % 32 != 0) return;
  for (int s = blockIdx.y; s < (a.sides == 1 ? 2 : blockIdx.y + 1); ++s)
    if (most > a.state->most_norm[s]) atomicMax(&a.state->most_norm[s], most);
}

// The sum over the threads of a point, for the one of the first warp that has it.
MERCER_INLINE double gather_norms(double (&norms)[POINT_THREADS][MERCER_IMAGE_ROWS], double norm) {
  norms[threadIdx.x % POINT_THREADS][threadIdx.x / POINT_THREADS] = norm;
  __syncthreads();
  double sum = norms[0][threadIdx.x % MERCER_IMAGE_ROWS];
  for (int t = 1; t < POINT_THREADS; ++t) sum += norms[t][threadIdx.x % MERCER_IMAGE_ROWS];
  return sum;
}

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS, 4) write_pieces(const __grid_constant__ SplitArguments a) {
  __shared__ PieceBlock block;
  __shared__ double norms[POINT_THREADS][MERCER_IMAGE_ROWS];
  __shared__ float largest_of_points[MERCER_IMAGE_ROWS];
  const int s = blockIdx.y, p = threadIdx.x / POINT_THREADS, place = threadIdx.x % POINT_THREADS;
  const SplitSide& side = a.side[s];
  const i64 first = (i64)blockIdx.x * MERCER_IMAGE_ROWS;
  PieceSlices slices(a, s, first);
  if (first < side.ld) slices.load_first();
  wait_for_kernel_ahead();
  clear_areas(a);
  if (first >= side.ld) return;
  const float largest = largest_of(a, side, first + p), sampled = float_of(a.state->largest);
  // The points are a warp's here, eight warps for all.
  const float top = top_of(a, largest, largest_of(a, side, first + threadIdx.x % MERCER_IMAGE_ROWS));
  const bool carried = is_carried_with(top, largest);
  const PiecePoint point = point_of(a, side, first, p, carried, a.state->low != 0, top);
  double norm = 0;
  slices.run(block, a, s, [&](int k0) { write_values(a, point, block, k0, norm); });
  if (place == 0) largest_of_points[p] = largest;
  norm = gather_norms(norms, norm);
  if (threadIdx.x >= MERCER_IMAGE_ROWS) return;
  if (a.chunks > 1)
    side.norms[blockIdx.z * side.ld + first + threadIdx.x] = norm;
  else
    keep_most(a, write_norm(a, side, first + threadIdx.x, norm, largest_of_points[threadIdx.x], sampled));
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
