// The image of v in pieces of 16 bits, for products over n with many columns of powers of two (wide_fold.cuh): for
// every 32 points n, in two steps of sixteen, the high and the low piece of all columns, [step][piece][half][column]
// [eight halves], and after those a number for every column. Pieces are v times a power of two, by which the largest
// of the 32 comes to lie between 2^14 and 2^15; the number undoes it, and that of the values too. Zeros lie after the
// last point and column.
//
// For products that values come from (bilinear_values.cuh) v is multiplied with the points' factors 2^(rate |z|^2), but
// for a power of two that the number undoes. Their exponents, times -1, follow, their scale and the least of those, so
// that a tile asks for nothing else. What pieces lose beyond 2^-22 of themselves is added up.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "pack/wide_operands.cuh"

#define LEAST_UNDONE -126  // of the powers of two: a normal number

#define LEAST_WHOLE -100  // of the exponents of factors: v times the others is a number

MERCER_INLINE PointExponent exponent_of(const WideArguments& a, i64 n) {
  return PointExponent(a.split->rate, a.norm[n], a.norm_tail[n]);
}

// v times a power of two and the factors of its points, but for 2^whole.
MERCER_INLINE int multiply_factors(float (&v)[32], float power, const WideArguments& a, i64 block) {
  float most = -INFINITY;
  for (int i = 0; i < 32; ++i)
    if (block * 32 + i < a.n) most = fmaxf(most, exponent_of(a, block * 32 + i).value);
  const float whole = most >= LEAST_WHOLE ? floorf(most) : LEAST_WHOLE;
#pragma unroll
  for (int i = 0; i < 32; ++i)
    v[i] = block * 32 + i < a.n ? v[i] * power * exponent_of(a, block * 32 + i).factor(whole) : 0.0f;
  return (int)whole;
}
MERCER_INLINE float largest_of(const float (&v)[32]) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) most = fmaxf(most, fabsf(v[i]));
  return most;
}

struct Lost {
  float beyond = 0, sum = 0;
  MERCER_METHOD void add(const float* pair, float power, u32 high, u32 low) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float piece = pair[i] * power, rest = piece - half_value(high, i) - half_value(low, i);
      beyond += fmaxf(mul_add(-0x1p-22f, fabsf(piece), fabsf(rest)), 0.0f);
      sum += fabsf(piece);
    }
  }
};

// Points that there are not have zeros.
MERCER_INLINE void write_stage_exponents(const WideArguments& a, float* to, i64 block, int column) {
  const auto exponent = [&](int i) {
    const i64 n = block * 32 + i;
    return n < a.n ? -exponent_of(a, n).value : 0.0f;
  };
  for (int i = column; i < 32; i += a.wide) to[i] = exponent(i);
  if (column != 0) return;
  to[32] = block * 32 < a.n ? a.scale[block * 32] : 0.0f;
  float least = INFINITY;
  for (int i = 0; i < 32; ++i)
    if (block * 32 + i < a.n) least = fminf(least, exponent(i));
  to[33] = least < INFINITY ? least : 0.0f;
}

// A thread takes the 32 points of a column.
extern "C" __global__ void __launch_bounds__(IMAGE_THREADS) write_halves(const __grid_constant__ WideArguments a) {
  if (a.expanded != nullptr && !a.expanded->stands) return;
  const i64 at = (i64)blockIdx.x * IMAGE_THREADS + threadIdx.x;
  const int column = (int)(at % a.wide);
  const i64 block = at / a.wide;
  u32 most = 0;
  if (block < a.blocks) {
    float v[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const i64 n = block * 32 + i;
      v[i] = n < a.n && column < a.columns ? a.v[n * a.v_row + column * a.v_column] : 0.0f;
      most = bits_of(fabsf(v[i])) > most ? bits_of(fabsf(v[i])) : most;
    }
    const int of_values = a.expanded != nullptr ? EXPANDED_EXPONENT : VALUE_EXPONENT;
    const int bound = -LEAST_UNDONE - of_values;
    int exponent = min(piece_exponent(float_of(most)), bound);
    float power = power_of_two(exponent);
    Lost lost;
    if (a.norm != nullptr) {
      const int whole = multiply_factors(v, power, a, block);
      const float largest = largest_of(v);
      const int second = min(piece_exponent(largest), bound + whole - exponent);
      if (whole <= LEAST_WHOLE && block * 32 < a.n) most = bits_of(INFINITY);  // blocks may have no points
      power = power_of_two(second);
      exponent += second - whole;
    }
    uint4* to = (uint4*)((u8*)a.image + block * a.block_bytes);
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {  // of eight points: step chunk / 2, half chunk % 2
      u32 high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = v + chunk * 8 + i * 2;
        split_pair(pair[0] * power, pair[1] * power, high[i], low[i]);
        if (a.norm != nullptr) lost.add(pair, power, high[i], low[i]);
      }
      uint4* own = to + chunk / 2 * 4 * a.wide + chunk % 2 * a.wide + column;
      own[0] = {high[0], high[1], high[2], high[3]};
      own[2 * a.wide] = {low[0], low[1], low[2], low[3]};
    }
    float* numbers = (float*)(to + 8 * a.wide);
    numbers[column] = power_of_two(-exponent - of_values);
    if (a.norm != nullptr) {
      write_stage_exponents(a, numbers + a.wide, block, column);
      if (lost.sum > 0) atomicMax(&a.split->lost_v, bits_of(lost.beyond / lost.sum));
    }
  }
  if (a.split == nullptr) return;
  most = __reduce_max_sync(0xffffffffu, most);
  if (threadIdx.x % 32 == 0) atomicMax(&a.split->most_v, most);
}
