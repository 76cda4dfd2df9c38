// Listed pairs of areas that have many of them (areas.cuh): the rows of an area pass through shared memory, 32 features
// at a time.
//
//   shared memory: two slices of 384 rows of x and 384 of z, a row 128 bytes; sums of the pairs
//   eight lanes: a row's 128 bytes, four features each, of up to AREA_RUN pairs, whose sums stay in registers
//
// Each row is read once for all of its pairs in the area, and no two lanes collide. A sum goes to double every 16 terms
// of a lane, as those of repair.cuh do.
#pragma once

#include "common/areas.cuh"
#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"
#include "common/split_precision.cuh"
#include "gemm/repair.cuh"
#include "pairs/row_sums.cuh"
#include "pairs/store_pair.cuh"

#define AREA_THREADS 512
#define AREA_SLICE 32
#define AREA_SLICES_OF_SUM 4
#define AREA_ROW_BYTES (AREA_SLICE * 4)
#define AREA_SIDE_BYTES (MERCER_AREA * AREA_ROW_BYTES)
#define AREA_STAGE_BYTES (2 * AREA_SIDE_BYTES)
#define AREA_LANES (AREA_SLICE / 4)
#define AREA_TEAMS (AREA_THREADS / AREA_LANES)
#define AREA_RUN 24
#define AREA_PAIRS (AREA_TEAMS * AREA_RUN)

// Features k0 … of both sides on their way; points after the last one repeat it, features are zeros.
MERCER_INLINE void load_area_slice(const PairArguments& a, const ListedPairs& list, int k0, u32 stage) {
  const int chunk = threadIdx.x % AREA_LANES, k = k0 + chunk * 4;
  const bool inside = k < a.split.row_length;
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const REAL* const rows = (const REAL*)(side == 0 ? a.x.rows : a.z.rows) + k;
    const i64 first = side == 0 ? list.m0 : list.n0, last = (side == 0 ? a.m : a.n) - 1;
#pragma unroll
    for (int row = 0; row < MERCER_AREA; row += AREA_TEAMS) {
      const int own = row + threadIdx.x / AREA_LANES;
      const i64 point = first + own < last ? first + own : last;
      copy_or_clear<16>(stage + side * AREA_SIDE_BYTES + own * AREA_ROW_BYTES + chunk * 16,
                        rows + point * a.split.row_length, inside);
    }
  }
  commit_copies();
}

// The sums of up to AREA_PAIRS pairs of the list, from `first` on: pair `first` + p to sums[p].
MERCER_INLINE void sum_area_pairs(float* sums, const PairArguments& a, const ListedPairs& list, u32 first, u32 count,
                                  u32 stages) {
  const u32 team = threadIdx.x / AREA_LANES, lane = threadIdx.x % AREA_LANES;
  u32 places[AREA_RUN];  // of both rows in a stage
  REAL part[AREA_RUN][1];
  double sum[AREA_RUN];
#pragma unroll
  for (int i = 0; i < AREA_RUN; ++i) {
    const u32 own = i * AREA_TEAMS + team;
    places[i] = own < count ? list.pairs[first + own] * AREA_ROW_BYTES : 0;
    part[i][0] = 0;
    sum[i] = 0;
  }
  const int slices = (a.features + AREA_SLICE - 1) / AREA_SLICE;
  load_area_slice(a, list, 0, stages);
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice) {
    wait_copies<0>();
    __syncthreads();
    if (slice + 1 < slices)
      load_area_slice(a, list, (slice + 1) * AREA_SLICE, stages + (slice + 1) % 2 * AREA_STAGE_BYTES);
    const u32 x = stages + slice % 2 * AREA_STAGE_BYTES + lane * 16, z = x + AREA_SIDE_BYTES;
    const bool settles = slice % AREA_SLICES_OF_SUM == AREA_SLICES_OF_SUM - 1 || slice + 1 == slices;
#pragma unroll
    for (int i = 0; i < AREA_RUN; ++i) {
      if (i * AREA_TEAMS >= count) break;
      Pack<REAL, 4> of_x, of_z;
      shared_floats(of_x.value, x + (places[i] >> 16));
      shared_floats(of_z.value, z + (places[i] & 0xffff));
      add_terms(part[i], a, of_x, of_z, slice * AREA_SLICE + (int)lane * 4);
      if (!settles) continue;
      sum[i] += part[i][0];
      part[i][0] = 0;
    }
  }
#pragma unroll
  for (int i = 0; i < AREA_RUN; ++i) {
    if (i * AREA_TEAMS >= count) break;
#pragma unroll
    for (int offset = AREA_LANES / 2; offset >= 1; offset /= 2)
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], offset);
    if (lane == 0) sums[i * AREA_TEAMS + team] = (float)sum[i];
  }
  __syncthreads();
}

// Eight rows of areas go together through n, so that their points stay in the second-level cache.
MERCER_INLINE u32 area_in_order(const PairArguments& a, u32 place) {
  constexpr u32 kTogether = 8;
  const u32 rows = areas_along(a.m), columns = areas_along(a.n), strip = place / (kTogether * columns);
  const u32 height = rows - strip * kTogether < kTogether ? rows - strip * kTogether : kTogether;
  const u32 in_strip = place % (kTogether * columns);
  return (strip * kTogether + in_strip % height) * columns + in_strip / height;
}

extern "C" __global__ void __launch_bounds__(AREA_THREADS, 1) repair_areas(const __grid_constant__ PairArguments a) {
  wait_for_kernel_ahead();
  extern __shared__ __align__(128) u8 memory[];
  if (!products_stand(*a.split.state)) return;
  float* const sums = (float*)(memory + 2 * AREA_STAGE_BYTES);
  const u32 areas = areas_along(a.m) * areas_along(a.n);
#pragma unroll 1
  for (u32 place = blockIdx.x; place < areas; place += gridDim.x) {
    const u32 area = area_in_order(a, place);
    const u32 count = a.split.area_counts[area];
    if (count < a.split.dense_area || count > a.split.area_capacity) continue;
    const ListedPairs list(a, area);
#pragma unroll 1
    for (u32 first = 0; first < count; first += AREA_PAIRS) {
      const u32 left = count - first < AREA_PAIRS ? count - first : AREA_PAIRS;
      sum_area_pairs(sums, a, list, first, left, shared_address(memory));
      for (u32 at = threadIdx.x; at < left; at += AREA_THREADS)
        store_pair(a, sums[at], list.row(first + at), list.column(first + at));
      for (u32 at = threadIdx.x / 32 * 32; GUARDED && at < left; at += AREA_THREADS) {
        const u32 own = at + threadIdx.x % 32;
        __syncwarp();
        for (u32 far = __ballot_sync(0xffffffffu, own < left && is_out_of_range(sums + own)); far; far &= far - 1) {
          const u32 pair = first + at + __ffs(far) - 1;
          store_safely(a, list.row(pair), list.column(pair));
        }
      }
    }
  }
}
