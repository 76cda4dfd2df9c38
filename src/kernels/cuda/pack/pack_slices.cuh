// Slices of features on their way through shared memory, and where packed points lie (pack.cuh). Functions that a plan
// generates for packing stand on this.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pack/feature_fetch.cuh"

#define PACK_POINTS FETCHED_POINTS
#define PACK_FEATURES 32
#define PACK_THREADS 256

struct PackSide {
  const POINT* points;
  i64 first;  // point
};

// Slices of features pass through `tile`, every `rows`-th from that of `row` on. While one is used the next is on its
// way.
template <class Use>
MERCER_INLINE void for_slices(const PackArguments& a, const PackSide& side,
                              POINT (&tile)[PACK_FEATURES][PACK_POINTS + 1], int row, int rows, const Use& use) {
  const int step = rows * PACK_FEATURES;
  FeatureFetch<PACK_FEATURES, PACK_THREADS> fetch(a, side.points, side.first);
  fetch.load(row * PACK_FEATURES);
  for (int k0 = row * PACK_FEATURES; k0 < a.k; k0 += step) {
    __syncthreads();
    fetch.store(tile);
    __syncthreads();
    if (k0 + step < a.k) fetch.load(k0 + step);
    use(k0);
  }
}

// Where the 32 points from `first` on lie.
MERCER_INLINE i64 place_of(const PackArguments& a, i64 set, i64 k, int stream, i64 first) {
  if (!PANELS) return ((set * a.k + k) * STREAMS + stream) * a.ld + first;
  const i64 panel = set * (a.ld / MERCER_PANEL) + first / MERCER_PANEL, rows = BYTES ? (a.k + 3) / 4 : a.k;
  return ((panel * rows + k) * STREAMS + stream) * MERCER_PANEL + first % MERCER_PANEL;
}

MERCER_INLINE double weight_of(const PackArguments& a, i64 k) {
  return a.weights ? load_any<double>(a.weights, a.weight_dtype, k * a.weight_stride) : 0.0;
}
