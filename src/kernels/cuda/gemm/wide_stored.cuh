// Products over n with many columns of v, of values that are stored: they are read where they serve as left operands
// (wide_fold.cuh), once a pass over the columns, on tensor cores of compute capability 9.0.
//
//   planes[m][n]             a lane has rows m, m + 8 and, of 16 columns, four in a row: lanes 0 to 3 a line's half.
//   ┌──┬──┬──┬──┐            So of the eight columns of a product k = c and c + 4 are columns 4 c + 2 s and the next
//   │0 │1 │2 │3 │ 16 n       one, s the product's parity: so has the image of v (wide_operands.cuh, `by_fours`).
//   └──┴──┴──┴──┘
//
// TURNED: a column's values are neighbours, planes[n][m]. A lane has two rows that are neighbours, so that eight lanes
// read a piece of 64 bytes of a column.
//
// Values come AHEAD strips of 32 columns before they are multiplied, into registers: 16 KiB a strip of a block. Values
// of a caller (OF_CALLER) have no room after the last column.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "gemm/bilinear_walk.cuh"
#include "gemm/wide_fold.cuh"

#define FEED_WARP 8
#define AHEAD (WIDE <= 64 ? 4 : 2)

struct WideShared {
  static constexpr bool UNIFORM_STAGES = true, NORMS_WITH_V = false;
  u32 v, bars;
  MERCER_METHOD explicit WideShared(u32 base) {
    v = base;
    bars = v + V_STAGES * V_STAGE_BYTES;
  }
  MERCER_METHOD u32 v_full(int stage) const { return bars + 8 * stage; }
  MERCER_METHOD u32 v_empty(int stage) const { return bars + 8 * (V_STAGES + stage); }
  MERCER_METHOD void start() const {}
};

MERCER_INLINE void feed(const BilinearArguments& a, const WideShared& shared, int rank) {
  Ring<V_STAGES> v_ring = {0, 0};
  Walk walk(a);
#pragma unroll 1
  while (walk.next()) feed_v(a, shared, v_ring, walk.n0, rank);
}

// Strips of a range of n, of two rows of a lane.
#if TURNED
struct StoredValues {
  typedef Pack<float, 2> Strip[8];  // [column]
  const float* columns;
  Strip ahead[AHEAD];
  i64 end, step;  // end: for the lane's first column

  MERCER_METHOD void start(const PairArguments& p, i64 m, i64 first, i64 last) {
    step = p.planes.ld;
    columns = (const float*)p.planes.data + threadIdx.x % 4 * 4 * step + (m < p.m ? m : 0);
    end = (last < p.n ? last : p.n) - threadIdx.x % 4 * 4;
#pragma unroll
    for (int s = 0; s < AHEAD; ++s) fetch(ahead[s], first + s * 32);
  }
  MERCER_METHOD void fetch(Strip& to, i64 n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const i64 column = n + i / 4 * 16 + i % 4;
      if (column < end) to[i] = *(const Pack<float, 2>*)(columns + column * step);
    }
  }
  static MERCER_METHOD float value(const Strip& strip, int row, int half, int at) {
    return strip[half * 4 + at].value[row];
  }
#else
struct StoredValues {
  typedef Pack<float, 4> Strip[2][2];  // [row][16 columns]
  const float* rows[2];
  Strip ahead[AHEAD];
  i64 end;

  MERCER_METHOD void start(const PairArguments& p, i64 m, i64 first, i64 last) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const i64 row = m + 8 * h < p.m ? m + 8 * h : p.m - 1;
      rows[h] = (const float*)p.planes.data + row * p.planes.ld + threadIdx.x % 4 * 4;
    }
    end = OF_CALLER ? (last < p.n ? last : p.n) - threadIdx.x % 4 * 4 : last;
#pragma unroll
    for (int s = 0; s < AHEAD; ++s) fetch(ahead[s], first + s * 32);
  }
  MERCER_METHOD void fetch(Strip& to, i64 n) {
    if (!OF_CALLER && n >= end) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (OF_CALLER && n + half * 16 >= end) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) to[h][half] = *(const Pack<float, 4>*)(rows[h] + n + half * 16);
    }
  }
  static MERCER_METHOD float value(const Strip& strip, int row, int half, int at) { return strip[row][half].value[at]; }
#endif
  // Values [product][row][column of two] of the strip that begins at column n, `left` of which there are.
  MERCER_METHOD void take(float (&values)[16], Strip& strip, i64 n, i64 left) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int half = i / 8, at = i / 4 % 2 * 2 + i % 2, column = half * 16 + (int)threadIdx.x % 4 * 4 + at;
      values[i] = column < left ? value(strip, i / 2 % 2, half, at) : 0.0f;
    }
    fetch(strip, n + AHEAD * 32);
  }
};

MERCER_INLINE void multiply(const BilinearArguments& a, const WideShared& shared, int rank) {
  const PairArguments& p = a.pairs;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  Walk walk(a);
  WideSums<WideShared> sums;
  StoredValues stored;
#pragma unroll 1
  while (walk.next()) {
    const i64 m = walk.m0 + rank * TILE_M + warp * 16 + lane / 4 * (TURNED ? 2 : 1);
    if (walk.starts_range()) stored.start(p, m, walk.n0, (i64)walk.end * TILE_N);
    const auto make = [&](float (&values)[16], int strip, int) {
      const i64 n = walk.n0 + strip * 32;
      stored.take(values, stored.ahead[strip % AHEAD], n, p.n - n);
    };
    sums.add_tile(a, shared, m, walk, make, [](int, i64) { return 1.0f; });
  }
}
