// Partial states of the ranges of n, merged in order: one thread a row, of products so many of its columns, which are
// neighbours in out. PRODUCT: sums [split][column][ld]; a warp has 32 rows, up to four warps columns next to one
// another, so that whole lines of out are written at about the same time.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

extern "C" __global__ void merge_ranges(const __grid_constant__ MergeArguments a) {
  constexpr int TOGETHER = CONSUMER == 1 ? MERCER_MERGED_COLUMNS : 1;
  if (a.state != nullptr && a.state->rated != a.rated) return;
  const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
  const int tasks = (a.columns + TOGETHER - 1) / TOGETHER;
  const int neighbours = tasks < MERCER_MERGE_NEIGHBOURS ? tasks : MERCER_MERGE_NEIGHBOURS;
  const i64 rows = (a.m + 31) / 32 * 32, per_group = rows * ((tasks + neighbours - 1) / neighbours * neighbours);
  const i64 group = at / per_group, rest = at % per_group;
  i64 groups = 1;
  for (int axis = 0; axis < a.groups.count; ++axis) groups *= a.groups.extent[axis];
  if (group >= groups) return;
  const i64 strip = rest / (32 * neighbours);  // 32 rows of `neighbours` tasks
  const i64 m = strip % (rows / 32) * 32 + rest % 32;
  const i64 first = (strip / (rows / 32) * neighbours + rest / 32 % neighbours) * TOGETHER;
  if (m >= a.m || first >= a.columns) return;
  OUT* out = (OUT*)a.out + batch_offset(a.groups, a.out_step, group) + m * a.out_row + first * a.out_column;
#if CONSUMER == 1
  constexpr int WIDTH = 16 / (int)sizeof(OUT) < TOGETHER ? 16 / (int)sizeof(OUT) : TOGETHER;
  const REAL* partial = (const REAL*)a.partial + (group * a.splits * a.columns + first) * a.ld + m;
  const int count = a.columns - first < TOGETHER ? (int)(a.columns - first) : TOGETHER;
  double sums[TOGETHER];
#pragma unroll
  for (int c = 0; c < TOGETHER; ++c) sums[c] = c < count ? partial[c * a.ld] : 0;
  for (int s = 1; s < a.splits; ++s)
#pragma unroll
    for (int c = 0; c < TOGETHER; ++c)
      if (c < count) sums[c] += partial[((i64)s * a.columns + c) * a.ld];
#pragma unroll
  for (int c = 0; c < TOGETHER; ++c)
    if (a.adds && c < count) sums[c] += (double)widen<REAL>(out[c * a.out_column]);
  const bool packs = count == TOGETHER && a.out_column == 1 && (u64)out % (WIDTH * sizeof(OUT)) == 0;
#pragma unroll
  for (int c = 0; c < TOGETHER; c += WIDTH) {
    Pack<OUT, WIDTH> pack;
#pragma unroll
    for (int w = 0; w < WIDTH; ++w) convert(pack.value[w], (REAL)sums[c + w]);
    if (packs) store_pack(out + c, pack);
#pragma unroll
    for (int w = 0; w < WIDTH; ++w)
      if (!packs && c + w < count) out[(c + w) * a.out_column] = pack.value[w];
  }
#else
  const FoldState* partial = (const FoldState*)a.partial + group * a.splits * a.ld + m;
  FoldState state = partial[0];
  for (int s = 1; s < a.splits; ++s) merge(state, partial[(i64)s * a.ld]);
  convert(*out, result(state));
#endif
}
