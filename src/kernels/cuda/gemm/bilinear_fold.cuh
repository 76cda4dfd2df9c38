// What becomes of a tile's sums in a product over n, or another fold: values are used where they are, in registers
// (bilinear_tile.cuh). Nothing of the matrix is stored.
//
//   PRODUCT  partial[range of n][e][m] = sum over the range's n of epilogue(sum of (m, n)) * v[n][e]
//   FOLD     partial[range of n][m]    = state of those values (fold.cuh)
//
// A lane has two rows and 16 of the columns of a strip of 32; at the end of a tile its quad joins, in the same order in
// every run, and shared memory keeps what a warp's 16 rows have of some tiles. Pairs that cancel are computed again
// where they stand, by the whole warp: a list would not know what their values were to be added to.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_values.cuh"
#include "gemm/bilinear_walk.cuh"

#if CONSUMER == 1
// A range's later sums are added to the earlier ones, by the lane that stored those.
MERCER_INLINE void store_sums(u32 kept, const PairArguments& p, i64 m, const Walk& walk) {
  float* partial = (float*)p.out.data + (i64)walk.split * p.v.columns * p.out.partial_ld;
#pragma unroll 1
  for (int at = threadIdx.x % 32; at < 16 * p.v.columns; at += 32) {
    if (m + at % 16 >= p.m) continue;
    float& to = partial[at / 16 * p.out.partial_ld + m + at % 16];
    to = walk.is_first_sum() ? shared_float(kept + at * 4) : to + shared_float(kept + at * 4);
  }
}
MERCER_INLINE u32 v_plane(const FoldStrip& strip, int e, int j) {
  return strip.columns + ((POINT_PLANES + COL_SLOTS + e) * PLANE_ROW + strip.own + 8 * j) * 4;
}
#endif

#if V_BY_PRODUCTS
// Values times v on tensor cores, in two pieces of tf32 each, 16 rows x 8 columns of v at a time. A lane has two
// neighbours of eight columns of the tile: k = lane % 4 and lane % 4 + 4 of the product.
//
// Small products come first, as in bilinear_products.cuh; sums of 32 columns are added up in float32.
struct Fold {
  static constexpr int kBlocks = (COLUMNS + 7) / 8;
  float sum[kBlocks][4];  // rows lane / 4 and + 8 (from [2] on), columns 2 (lane % 4) and + 1 of eight
  MERCER_METHOD Fold() : sum{} {}

  // Shared memory after the last column has what was there before.
  template <bool WHOLE>
  static MERCER_METHOD float2 v_of(const PairArguments& p, const FoldStrip& strip, int e, int j) {
    float2 v = shared_pair(v_plane(strip, e < COLUMNS ? e : COLUMNS - 1, j));
    if (!WHOLE && !strip.has(p, j, 0)) v.x = 0;
    if (!WHOLE && !strip.has(p, j, 1)) v.y = 0;
    return v;
  }

  template <bool WHOLE>
  MERCER_METHOD void add(const float (&values)[16], const PairArguments& p, const FoldStrip& strip) {
    float high[4][4], low[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool has = WHOLE || strip.has(p, j, i / 2);
        const float value = has ? values[j * 4 + i % 2 * 2 + i / 2] : 0.0f;
        high[j][i] = high_piece(value);
        low[j][i] = value - high[j][i];
      }
    float part[kBlocks][4] = {};
    bool finite = true;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float2 v_high[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 v = v_of<WHOLE>(p, strip, b * 8 + threadIdx.x % 32 / 4, j);
        v_high[j] = {high_piece(v.x), high_piece(v.y)};
        multiply_16x8(part[b], high[j], v.x - v_high[j].x, v.y - v_high[j].y);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply_16x8(part[b], low[j], v_high[j].x, v_high[j].y);
#pragma unroll
      for (int j = 0; j < 4; ++j) multiply_16x8(part[b], high[j], v_high[j].x, v_high[j].y);
#pragma unroll
      for (int i = 0; i < 4; ++i) finite = finite && fabsf(part[b][i]) < INFINITY;
    }
    // Pieces make NaN of infinities.
    if (__any_sync(0xffffffffu, !finite)) add_each<WHOLE>(part, high, low, p, strip);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[b][i] += part[b][i];
  }

  // The sums of `part` again, without products of matrices.
  template <bool WHOLE>
  static MERCER_METHOD void add_each(float (&part)[kBlocks][4], const float (&high)[4][4], const float (&low)[4][4],
                                     const PairArguments& p, const FoldStrip& strip) {
    const auto value = [&](int j, int h, int q) {
      const float first = high[j][q * 2 + h];
      return fabsf(first) < INFINITY ? first + low[j][q * 2 + h] : first;
    };
#pragma unroll 1
    for (int e = 0; e < COLUMNS; ++e) {
      float total[2] = {};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 v = shared_pair(v_plane(strip, e, j));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          if (WHOLE || strip.has(p, j, 0)) total[h] = mul_add(value(j, h, 0), v.x, total[h]);
          if (WHOLE || strip.has(p, j, 1)) total[h] = mul_add(value(j, h, 1), v.y, total[h]);
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 1);
        total[h] += __shfl_xor_sync(0xffffffffu, total[h], 2);
#pragma unroll
        for (int i = 0; i < kBlocks * 2; ++i)
          if (e == i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2) part[i / 2][h * 2 + i % 2] = total[h];
      }
    }
  }

  // Stores the sums to what shared memory keeps of the warp, [e][16 rows], or adds them.
  MERCER_METHOD void keep_in(u32 kept, bool starts) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int e = b * 8 + lane % 4 * 2 + i % 2;
        if (e >= COLUMNS) continue;
        const u32 place = kept + (e * 16 + lane / 4 + i / 2 * 8) * 4;
        const float total = starts ? sum[b][i] : sum[b][i] + shared_float(place);
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(place), "f"(total) : "memory");
      }
  }
  static MERCER_METHOD void store(u32 kept, const PairArguments& p, i64 m, const Walk& walk) {
    store_sums(kept, p, m, walk);
  }
};
#elif CONSUMER == 1
// Two rows of a lane.
struct Fold {
  float sum[2][COLUMNS];
  MERCER_METHOD Fold() : sum{} {}

  // WHOLE: all 32 columns are there. Shared memory after the last one has what was there before.
  template <bool WHOLE>
  MERCER_METHOD void add(const float (&values)[16], const PairArguments& p, const FoldStrip& strip) {
    Fold part;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool has[2] = {WHOLE || strip.has(p, j, 0), WHOLE || strip.has(p, j, 1)};
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) {
        const float2 v = shared_pair(v_plane(strip, e, j));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* value = values + j * 4 + h * 2;
          if (has[0]) part.sum[h][e] = mul_add(value[0], v.x, part.sum[h][e]);
          if (has[1]) part.sum[h][e] = mul_add(value[1], v.y, part.sum[h][e]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) sum[h][e] += part.sum[h][e];
  }

  // The quad's rows to what shared memory keeps of the warp, [e][16 rows].
  MERCER_METHOD void keep_in(u32 kept, bool starts) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < COLUMNS; ++e) {
        float total = sum[h][e] + __shfl_xor_sync(0xffffffffu, sum[h][e], 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (lane % 4 != 0) continue;
        const u32 place = kept + (e * 16 + lane / 4 + 8 * h) * 4;
        if (!starts) total += shared_float(place);
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(place), "f"(total) : "memory");
      }
  }

  static MERCER_METHOD void store(u32 kept, const PairArguments& p, i64 m, const Walk& walk) {
    store_sums(kept, p, m, walk);
  }
};
#else
struct Fold {
  FoldState row[2];
  MERCER_METHOD Fold() : row{empty_state(), empty_state()} {}

  template <bool WHOLE>
  MERCER_METHOD void add(const float (&values)[16], const PairArguments& p, const FoldStrip& strip) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float own[8];
      int count = WHOLE ? 8 : 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        own[i] = values[i / 2 * 4 + h * 2 + i % 2];
        if (!WHOLE) count += strip.has(p, i / 2, i % 2);
      }
      merge_values(row[h], own, count, [&](int i) { return strip.n0 + strip.own + i / 2 * 8 + i % 2; });
    }
  }

  MERCER_METHOD void keep_in(u32 kept, bool starts) const {
    const int lane = threadIdx.x % 32;
    FoldState* states = (FoldState*)shared_pointer(kept);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      FoldState total = row[h];
      merge(total, state_of_lane(total, 1));
      merge(total, state_of_lane(total, 2));
      if (lane % 4 != 0) continue;
      FoldState& place = states[lane / 4 + 8 * h];
      if (starts)
        place = total;
      else
        merge(place, total);
    }
  }

  static MERCER_METHOD void store(u32 kept, const PairArguments& p, i64 m, const Walk& walk) {
    const int row = threadIdx.x % 32;
    if (row >= 16 || m + row >= p.m) return;
    FoldState& to = ((FoldState*)p.out.data)[walk.split * p.out.partial_ld + m + row];
    FoldState state = ((const FoldState*)shared_pointer(kept))[row];
    if (!walk.is_first_sum()) {
      const FoldState later = state;
      state = to;
      merge(state, later);
    }
    to = state;
  }
};
#endif

struct Consumer {
  typedef RowNorms Rows;
  static MERCER_METHOD void start(const BilinearArguments&, i64) {}
  static MERCER_METHOD void finish(const CandidateArguments&) {}
  template <bool WHOLE>
  MERCER_METHOD void add_tile(Fold& fold, const BilinearArguments& a, u32 columns, const float (&sum)[SUMS], i64 m,
                              i64 n0, const PointNorm (&x)[2]) const {
    const int lane = threadIdx.x % 32;
    Params own;
    if (KEEPS_PARAMS) own.load(a.pairs, 0);
    const float* params = KEEPS_PARAMS ? own.value : member_params(a.pairs, 0);
    const bool allowed = is_all_allowed(a.pairs, params);
    float row_slots[2][ROW_SLOTS + 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) load_row_slots(row_slots[h], a.pairs, m + lane / 4 + 8 * h);
#pragma unroll
    for (int part = 0; part < TILE_N / 32; ++part) {
      float values[16];
      const FoldStrip strip = {columns, part * 32 + lane % 4 * 2, m + lane / 4, n0};
      strip_values(values, sum + part * 16, x, a.pairs, strip, m, part * 32, row_slots, params, allowed);
      fold.template add<WHOLE>(values, a.pairs, strip);
    }
  }

  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    const u32 kept = shared.values + threadIdx.x / 32 * VALUES_BYTES;
    Fold fold;
    if (walk.n0 + TILE_N <= a.pairs.n)
      add_tile<true>(fold, a, shared.columns, sum, m, walk.n0, x);
    else
      add_tile<false>(fold, a, shared.columns, sum, m, walk.n0, x);
    fold.keep_in(kept, walk.starts_sum());
    if (!walk.ends_sum()) return;
    __syncwarp();
    Fold::store(kept, a.pairs, m, walk);
    __syncwarp();
  }
};
