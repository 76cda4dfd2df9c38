// Pairs that may be among the nearest of their rows: values up to the row's bound are kept, with their columns.
//
//   bounds are infinite                                       the first columns: all are kept
//   tighten   bound[m] = the count-th smallest value so far   then three times as many columns, of which few are kept;
//                                                             and so on (nearest_candidates.cuh)
//
// Columns go in blocks of MERCER_COLUMN_BLOCK, in an order that takes from everywhere: neighbours in memory are often
// neighbours in space. What follows the last whole block comes last.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "nearest/candidate_keys.cuh"

MERCER_INLINE int candidate_tiles(const CandidateArguments& found, i64 n) {
  const i64 whole = n / MERCER_COLUMN_BLOCK, end = found.end < whole ? found.end : whole;
  const i64 rest = found.end > whole ? n % MERCER_COLUMN_BLOCK : 0;
  return (int)((end - found.first) * (MERCER_COLUMN_BLOCK / TILE_N) + (rest + TILE_N - 1) / TILE_N);
}
MERCER_INLINE i64 candidate_column(const CandidateArguments& found, i64 n, int tile) {
  constexpr int kTiles = MERCER_COLUMN_BLOCK / TILE_N;
  const i64 whole = n / MERCER_COLUMN_BLOCK, place = found.first + tile / kTiles;
  i64 block = place;
  if (place < whole) {
    // The remainder by `whole`; a division takes as long as a product of 16 features.
    const u64 wide = (u64)place * (u64)found.stride;
    block = (i64)(wide - __umul64hi(wide, found.inverse) * (u64)whole);
    if (block >= whole) block -= whole;
  }
  return block * MERCER_COLUMN_BLOCK + tile % kTiles * TILE_N;
}

// The tiles of columns that are looked at, for a walk over tiles of products (bilinear_walk.cuh).
template <bool OF_CANDIDATES> struct TileColumns;
template <>
struct TileColumns<true> {
  const CandidateArguments& found;
  i64 n;
  MERCER_METHOD TileColumns(const BilinearArguments& a) : found(a.pairs.found), n(a.pairs.n) {}
  MERCER_METHOD int count(const BilinearArguments& a) const { return candidate_tiles(a.pairs.found, a.pairs.n); }
  MERCER_METHOD i64 first_of(int tile) const { return candidate_column(found, n, tile); }
};

#define NO_VALUE float_of(0x7fffffffu)  // NaN: not below any bound
MERCER_INLINE float candidate_bound(const PairArguments& p, i64 m) {
  return m < p.m ? p.found.bounds[m] : NO_VALUE;
}
// Keeps the values of a lane in some rows, value(r, i) in row(r) and column(i); columns that are not there have NaN.
// What a tile keeps is asked for at once: the counters are far away.
template <int ROWS, int COUNT, class Value, class Row, class Column>
MERCER_INLINE void keep_candidates(const CandidateArguments& found, const float (&bound)[ROWS], const Value& value,
                                   const Row& row, const Column& column) {
  bool any = false;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    // Minima: comparisons into one predicate would wait for each other.
    float least[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; ++i) least[i] = value(r, i);
#pragma unroll
    for (int left = COUNT; left > 1; left = (left + 1) / 2)
#pragma unroll
      for (int i = 0; i < left / 2; ++i) least[i] = fminf(least[i], least[left - 1 - i]);
    any = any || least[0] <= bound[r];
  }
  if (!any) return;
  u32 count[ROWS] = {}, place[ROWS] = {};
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) count[r] += value(r, i) <= bound[r];
    if (count[r] > 0) place[r] = atomicAdd(found.counts + row(r), count[r]);
  }
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    if (count[r] == 0) continue;
    u64* keys = found.keys + row(r) * found.capacity;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      if (!(value(r, i) <= bound[r])) continue;
      if (place[r] < found.capacity) keys[place[r]] = candidate_key(value(r, i), column(i));
      ++place[r];
    }
  }
}
