// What rows of v that a product skips add to it: their values are 0, and 0 v is 0 where v is finite, else NaN.
#pragma once

#include "common/prelude.cuh"
#include "pairs/skipped.h"

#define SKIPPED_THREADS 256

// A thread has a column of the rows that share a flag; neighbours have neighbouring columns.
extern "C" __global__ void __launch_bounds__(SKIPPED_THREADS)
    find_not_finite(const __grid_constant__ SkippedArguments a) {
  const i64 at = (i64)blockIdx.x * SKIPPED_THREADS + threadIdx.x;
  if (at >= a.blocks * a.columns) return;
  const i64 block = at / a.columns, column = at % a.columns, first = block * MERCER_SKIPPED_POINTS;
  const int count = a.n - first < MERCER_SKIPPED_POINTS ? (int)(a.n - first) : MERCER_SKIPPED_POINTS;
  const POINT* v = (const POINT*)a.v + first * a.v_row + column * a.v_column;
  bool found = false;
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const REAL value = widen<REAL>(v[i * a.v_row]);
    found = found || value - value != 0;
  }
  a.flags[column * a.blocks + block] = found;
}

// A block has some rows of one column.
extern "C" __global__ void __launch_bounds__(SKIPPED_THREADS)
    mark_skipped(const __grid_constant__ SkippedArguments a) {
  const unsigned char* flags = a.flags + blockIdx.y * a.blocks;
  int found = 0;
  for (i64 block = threadIdx.x; block < a.blocks; block += SKIPPED_THREADS)
    found |= (block < a.first || block >= a.end) && flags[block] != 0;
  const i64 m = (i64)blockIdx.x * SKIPPED_THREADS + threadIdx.x;
  if (!__syncthreads_or(found) || m >= a.m) return;
  convert(((OUT*)a.out)[m * a.out_row + blockIdx.y * a.out_column], (REAL)(INFINITY - INFINITY));
}
