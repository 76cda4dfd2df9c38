// Which rows of a field may have values in units (row_units.cuh), and their units:
//
//   [measure_points →] measure_coefs → examine_amplitudes → judge_rows → field_products with DIGITS or HALVES
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gradient/row_units.cuh"

#define ROW_THREADS 256
#define BLOCK_ROWS 128  // 16 a warp
#define JUDGED_ROWS 64
#define STAGE_POINTS 64

// The largest coefficient of each column; column_units are zero before. NaN lies above infinity.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    measure_coefs(const __grid_constant__ FieldProductArguments a) {
  const int column = blockIdx.x, lane = threadIdx.x % 32;
  if (column >= a.field.outputs) return;
  float largest = 0;
#pragma unroll 4
  for (i64 n = (i64)blockIdx.y * ROW_THREADS + threadIdx.x; n < a.field.n; n += (i64)gridDim.y * ROW_THREADS)
    largest = max_nan(largest, fabsf(((const float*)a.field.coef)[n * a.field.coef_ld + column]));
#pragma unroll
  for (int offset = 16; offset >= 1; offset /= 2)
    largest = max_nan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  if (lane == 0) atomicMax((u32*)a.column_units + column, bits_of(largest));
}

// Amplitudes of four points of a row.
MERCER_INLINE Pack<float, 4> amplitudes_at(const FieldProductArguments& a, i64 m, i64 n, const REAL* params) {
  Pack<float, 4> planes[PLANES + 1], values;
#pragma unroll
  for (int p = 0; p < PLANES; ++p)
    planes[p] =
        *(const Pack<float, 4>*)((const float*)a.field.pair + p * a.field.pair_plane + m * a.field.pair_row + n);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    float own[PLANES + 1];
#pragma unroll
    for (int p = 0; p < PLANES; ++p) own[p] = planes[p].value[e];
    values.value[e] = n + e < a.field.n ? fabsf(amplitude(own, params, (REAL)a.field.k)) : 0.0f;
  }
  return values;
}

MERCER_INLINE void add_amplitude(RowAmplitudes& of, float v) {
  if (v > of.largest) {
    of.others += of.equal;
    of.equal = 0;
  }
  (v >= of.largest ? of.equal : of.others) += v;
  of.largest = max_nan(of.largest, v);
}
MERCER_INLINE void add_amplitudes(RowAmplitudes& of, const RowAmplitudes& more) {
  const float most = max_nan(of.largest, more.largest), equal = of.equal;
  const bool stays = of.largest == most;
  of.others += more.others;
  of.equal = 0;
  (stays ? of.equal : of.others) += equal;
  (more.largest == most ? of.equal : of.others) += more.equal;
  of.largest = most;
}

// A warp has 16 rows and a range of stages: their amplitudes, and for every column the sum of amplitudes times
// coefficients, all positive, in tf32. A lane has rows lane / 4 and + 8 and eight points in a row: four lanes read a
// line of 128 bytes.
extern "C" __global__ void __launch_bounds__(ROW_THREADS, COLUMNS > 32 ? 2 : 4)
    examine_amplitudes(const __grid_constant__ FieldProductArguments a) {
  if (HALVES && *a.refused != 0) return;
  constexpr int kBlocks = COLUMNS / 8;
  const int lane = threadIdx.x % 32, quad = lane % 4;
  const i64 m0 = (i64)blockIdx.x * BLOCK_ROWS + threadIdx.x / 32 * 16 + lane / 4;
  const REAL* params = a.field.params ? (const REAL*)a.field.params : (const REAL*)a.field.numbers;
  const i64 groups = (a.field.n + 31) / 32, first = groups * blockIdx.y / gridDim.y,
            end = groups * (blockIdx.y + 1) / gridDim.y;
  RowAmplitudes amplitudes[2] = {};
  float sum[kBlocks][4] = {};
#pragma unroll 1
  for (i64 group = first; group < end; ++group) {
    const i64 n0 = group * 32 + quad * 8;
    Pack<float, 4> rows[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const i64 n = n0 + i / 2 * 4, m = m0 + 8 * (i % 2) < a.field.m ? m0 + 8 * (i % 2) : a.field.m - 1;
      rows[i / 2][i % 2] = n < a.field.n ? amplitudes_at(a, m, n, params) : Pack<float, 4>{};
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 4; ++e) add_amplitude(amplitudes[h], rows[half][h].value[e]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const Pack<float, 4> coef =
            *(const Pack<float, 4>*)(a.coefs + ((n0 / 4 + half) * COLUMNS + block * 8 + lane / 4) * 4);
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const float own[4] = {rows[half][0].value[e], rows[half][1].value[e], rows[half][0].value[e + 1],
                                rows[half][1].value[e + 1]};
          multiply_16x8(sum[block], own, fabsf(coef.value[e]), fabsf(coef.value[e + 1]));
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int offset = 2; offset >= 1; offset /= 2) {
      const RowAmplitudes& own = amplitudes[h];
      add_amplitudes(amplitudes[h], {__shfl_xor_sync(0xffffffffu, own.largest, offset),
                                     __shfl_xor_sync(0xffffffffu, own.equal, offset),
                                     __shfl_xor_sync(0xffffffffu, own.others, offset)});
    }
    const i64 m = m0 + 8 * h;
    if (m >= a.field.m) continue;
    if (quad == 0) a.row_amplitudes[blockIdx.y * a.field.m + m] = amplitudes[h];
#pragma unroll
    for (int i = 0; i < kBlocks * 2; ++i)
      a.row_sums[((i64)blockIdx.y * COLUMNS + i / 2 * 8 + quad * 2 + i % 2) * a.field.m + m] =
          sum[i / 2][h * 2 + i % 2];
  }
}

// Threads of a row have its columns in turns. Points that are x have one amplitude, often the largest, and no part in a
// sum: where other amplitudes exist, those that are equal to the largest do not count.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    judge_rows(const __grid_constant__ FieldProductArguments a) {
  constexpr int kParts = ROW_THREADS / JUDGED_ROWS;
  __shared__ bool fails[kParts][JUDGED_ROWS];
  const int row = threadIdx.x % JUDGED_ROWS, part = threadIdx.x / JUDGED_ROWS;
  const i64 wanted = (i64)blockIdx.x * JUDGED_ROWS + row, m = wanted < a.field.m ? wanted : a.field.m - 1;
  RowAmplitudes of = {};
  for (int r = 0; r < a.ranges; ++r) add_amplitudes(of, a.row_amplitudes[r * a.field.m + m]);
  const float n = (float)a.field.n, largest = of.largest;
  const bool are_equal = !(of.others > 0);
  const float equal = are_equal ? 0.0f : of.equal, counted = are_equal ? of.equal : of.others;
  const float most = PLANES > 0 ? fminf(MOST_OF_AMPLITUDES, n / LEAST_EQUAL) : INFINITY;
  bool stands = !(HALVES && *a.refused != 0);
  stands = stands && (largest == 0 || (is_unit(largest) && n * largest <= most * counted));
  for (int o = part; o < a.field.outputs; o += kParts) {
    float sum = 0;
    for (int r = 0; r < a.ranges; ++r) sum += a.row_sums[((i64)r * COLUMNS + o) * a.field.m + m];
    const float unit = a.column_units[o];
    stands = stands && (unit == 0 || largest == 0 ||
                        (are_units(largest, unit) && n * (largest * unit) <= MOST_OF_MEAN * (sum - equal * unit)));
  }
  fails[part][row] = !stands;
  __syncthreads();
  if (part > 0 || wanted >= a.field.m) return;
#pragma unroll
  for (int other = 1; other < kParts; ++other) stands = stands && !fails[other][row];
  a.row_units[m] = stands && largest > 0 ? largest : 1.0f;
  a.left[m * ((a.field.k + 63) / 64)] = !stands;
}
