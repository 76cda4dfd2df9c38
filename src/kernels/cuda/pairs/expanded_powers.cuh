// Powers of two of expanded squares (expanded.cuh). Their exponents are products of a warp, of chunks of 16-bit floats
// (expanded_chunks.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/expanded.cuh"

#define POINT_BYTES (CHUNKS * 16)

// What a lane has of two rows, m and m + 8, as left operands.
struct ExpandedRows {
  u32 x[CHUNKS][2];
  MERCER_METHOD void load(const PairArguments& p, i64 first) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const i64 m = first + 8 * h < p.m ? first + 8 * h : p.m - 1;
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) x[c][h] = ((const u32*)p.x.points)[(m * CHUNKS + c) * 4 + threadIdx.x % 4];
    }
  }
};

// Chunks FIRST … END - 1 of 16 columns, right operands: of eight columns two chunks side by side, as products take
// them; an odd one is alone.
template <int FIRST, int END>
struct Columns {
  static constexpr int PAIRS = (END - FIRST) / 2;
  u32 pairs[PAIRS + 1][4], single[2];
  MERCER_METHOD void load(u32 at) {
    const u32 lane = threadIdx.x % 32, row = at + lane % 8 * 16;
#pragma unroll
    for (int c = 0; c < PAIRS; ++c)
      load_matrices(pairs[c], row + lane / 16 * (8 * POINT_BYTES) + (FIRST + 2 * c + lane / 8 % 2) * 128);
    if constexpr ((END - FIRST) % 2 == 1)
      load_two_matrices(single, row + lane / 8 % 2 * (8 * POINT_BYTES) + (END - 1) * 128);
  }
  // Adds their products with the rows, [eight columns][row][column] as they lie in accumulators.
  MERCER_METHOD void multiply(float (&sums)[8], const ExpandedRows& rows) const {
#pragma unroll
    for (int c = 0; c < PAIRS; ++c) {
      const int k = FIRST + 2 * c;
      const u32 x[4] = {rows.x[k][0], rows.x[k][1], rows.x[k + 1][0], rows.x[k + 1][1]};
#pragma unroll
      for (int j = 0; j < 2; ++j) multiply_16x8(sums + j * 4, x, pairs[c][j * 2], pairs[c][j * 2 + 1]);
    }
    if constexpr ((END - FIRST) % 2 == 1) {
#pragma unroll
      for (int j = 0; j < 2; ++j) multiply_16x8(sums + j * 4, rows.x[END - 1], single[j]);
    }
  }
};

// Values of the rows and the 32 columns from `at` on, [eight columns][row][column]. They are finite after the last
// column, where v is zero.
MERCER_INLINE void powers_of(float (&values)[16], const ExpandedRows& rows, u32 at) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Columns<0, STEP_CHUNKS> steps;
    Columns<STEP_CHUNKS, CHUNKS> rests;
    steps.load(at + half * (16 * POINT_BYTES));
    rests.load(at + half * (16 * POINT_BYTES));
    float exponents[8] = {}, apart[8] = {};
    steps.multiply(exponents, rows);
    rests.multiply(RESTS_APART ? apart : exponents, rows);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      values[half * 8 + i] = exp2_unit(RESTS_APART ? exponents[i] + apart[i] : exponents[i]);
  }
}
// As above, of strip `strip` of the points at `points`.
MERCER_INLINE void powers_of(float (&values)[16], const ExpandedRows& rows, u32 points, int strip) {
  powers_of(values, rows, points + strip * (32 * POINT_BYTES));
}
