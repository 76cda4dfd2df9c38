// Values of pairs as left operands of products with many columns of v (wide_fold.cuh, wide_warps.cuh), and where their
// sums go.
//
// HALVES: values times 2^VALUE_EXPONENT are such that pieces of 16 bits carry them (bilinear_values.cuh): half as many
// products, of 16 columns, whose operands take half the registers. To read these is what products of few columns cost,
// for multiply-adds wait meanwhile. Every 32 points n of a column of v share a power of two; the sum of a strip is
// multiplied with it.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "gemm/bilinear_walk.cuh"

#define V_STEPS (HALVES ? 2 : 4)
#define V_COLUMNS (WIDE + EXTRA)  // of the image
#define V_PIECE_BYTES (V_COLUMNS * 32)
#define V_STEP_BYTES (2 * V_PIECE_BYTES)

// Values of a strip as left operands, [step of 16 columns]: register i of four has row i % 2 of the lane and its two
// columns of eight, the first ones or those after.
struct HalfPieces {
  u32 high[2][4], low[2][4];
  MERCER_METHOD void split(const float (&values)[16]) {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = values + j * 8 + i / 2 * 4 + i % 2 * 2;
        split_pair(pair[0], pair[1], high[j][i], low[j][i]);
      }
  }
};
// Values of a strip as left operands, [step of eight columns]: element i of four has row i % 2 and column i / 2 of the
// lane.
struct FloatPieces {
  u32 high[4][4], low[4][4];
  MERCER_METHOD void split(const float (&values)[16]) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float value = values[j * 4 + i % 2 * 2 + i / 2], piece = high_piece(value);
        high[j][i] = bits_of(piece);
        low[j][i] = bits_of(value - piece);
      }
  }
  MERCER_METHOD float value(int j, int h, int q) const {
    const float first = float_of(high[j][q * 2 + h]);
    return fabsf(first) < INFINITY ? first + float_of(low[j][q * 2 + h]) : first;
  }
};
using Pieces = Either<HALVES, HalfPieces, FloatPieces>;

// The second row of a lane, from its first one: those of the fragments, but where a kernel has them otherwise.
#ifndef SECOND_ROW
#define SECOND_ROW 8
#endif

// Stores a lane's rows of `columns` columns, from m on, times factor(0 or 1, its row), to a range's part of an array. A
// range's later sums are added to the earlier ones, by the thread that stored those.
template <int COUNT, class Factor>
MERCER_INLINE void store_columns(float* partial, int columns, const PairArguments& p, i64 m, const Walk& walk,
                                 const float (&total)[COUNT], const Factor& factor) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int e = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    const i64 row = m + i % 4 / 2 * SECOND_ROW;
    if (e >= columns || row >= p.m) continue;
    float& to = partial[e * p.out.partial_ld + row];
    const float sum = total[i] * factor(i % 4 / 2, row);
    to = walk.is_first_sum() ? sum : to + sum;
  }
}
template <class Factor>
MERCER_INLINE void store_sums(const PairArguments& p, i64 m, const Walk& walk, const float (&total)[WIDE / 2],
                              const Factor& factor) {
  float* const partial = (float*)p.out.data + (i64)walk.split * p.v.partial_columns * p.out.partial_ld;
  store_columns(partial, p.v.columns, p, m, walk, total, factor);
}
