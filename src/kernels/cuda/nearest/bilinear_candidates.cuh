// Candidates for the nearest neighbours from a tile of products (candidates.cuh).
//
// All warps of a cluster wait for the slowest, so that even a rare candidate must not cost a trip to memory: a warp
// queues them in shared memory and asks for the places of 32 of them at once.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "gemm/bilinear_pairs.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_values.cuh"
#include "gemm/bilinear_walk.cuh"
#include "nearest/candidate_keys.cuh"
#include "nearest/candidates.cuh"

#define QUEUE 64
struct Consumer {
  typedef RowNorms Rows;
  float bound[2];
  u32 queue, queued;  // [QUEUE] keys, then rows

  MERCER_METHOD Consumer() : queued(0) {}

  MERCER_METHOD void start(const BilinearArguments& a, i64 m) {
    const i64 row = m + threadIdx.x % 32 / 4;
    bound[0] = candidate_bound(a.pairs, row);
    bound[1] = candidate_bound(a.pairs, row + 8);
  }

  MERCER_METHOD void take(const BilinearArguments& a, const BilinearShared& shared, const float (&sum)[SUMS], i64 m,
                          const Walk& walk, const PointNorm (&x)[2]) {
    const PairArguments& p = a.pairs;
    const int lane = threadIdx.x % 32;
    const i64 n0 = walk.n0;
    queue = shared.values + threadIdx.x / 32 * VALUES_BYTES;
    Params own;
    if (KEEPS_PARAMS) own.load(p, 0);
    const float* params = KEEPS_PARAMS ? own.value : member_params(p, 0);
    float row_slots[2][ROW_SLOTS + 1];
#pragma unroll
    for (int h = 0; h < 2; ++h) load_row_slots(row_slots[h], p, m + lane / 4 + 8 * h);
#pragma unroll
    for (int part = 0; part < TILE_N / 32; ++part) {
      float values[16];
      const u32 mask = sums_of_pairs(values, sum + part * 16, x, shared.columns, part * 32);
      u32 far = 0;
      if (__any_sync(0xffffffffu, mask != 0)) far = repair_pairs(values, p, m, n0 + part * 32, mask);
      const FoldStrip strip = {shared.columns, part * 32 + lane % 4 * 2, m + lane / 4, n0};
      values_of_strip(values, row_slots, params, p, strip);
      if constexpr (GUARDED) take_safe_values(values, p, m, n0 + part * 32, far);
      // Minima of both rows: comparisons into one predicate would wait for each other.
      float least[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        least[i] = fminf(fminf(values[i], values[4 + i]), fminf(values[8 + i], values[12 + i]));
      const bool any = fminf(least[0], least[1]) <= bound[0] || fminf(least[2], least[3]) <= bound[1];
      if (__any_sync(0xffffffffu, any)) queue_strip(p, values, m + lane / 4, n0 + part * 32 + lane % 4 * 2);
    }
  }

  // The lane's values of a strip that are within the bounds: of rows m and m + 8, columns n + 8 j and the one after.
  MERCER_METHOD void queue_strip(const PairArguments& p, const float (&values)[16], i64 m, i64 n) {
    u32 kept = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (values[i] <= bound[i / 2 % 2] && n + i / 4 * 8 + i % 2 < p.n) kept |= 1u << i;
#pragma unroll 1
    for (u32 lanes = __ballot_sync(0xffffffffu, kept != 0); lanes; lanes = __ballot_sync(0xffffffffu, kept != 0)) {
      if (kept != 0) {
        const int own = __ffs(kept) - 1;
        float value = 0;
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (i == own) value = values[i];
        kept &= kept - 1;
        const u32 place = queued + __popc(lanes & ((1u << threadIdx.x % 32) - 1));
        ((u64*)shared_pointer(queue))[place] = candidate_key(value, n + own / 4 * 8 + own % 2);
        ((u32*)shared_pointer(queue + QUEUE * 8))[place] = (u32)(m + own / 2 % 2 * 8);
      }
      queued += __popc(lanes);
      if (queued >= QUEUE / 2) finish(p.found);
    }
  }

  // What is queued goes to its rows.
  MERCER_METHOD void finish(const CandidateArguments& found) {
    __syncwarp();
    for (u32 at = threadIdx.x % 32; at < queued; at += 32) {
      const i64 row = ((const u32*)shared_pointer(queue + QUEUE * 8))[at];
      const u32 place = atomicAdd(found.counts + row, 1u);
      if (place < found.capacity) found.keys[row * found.capacity + place] = ((const u64*)shared_pointer(queue))[at];
    }
    __syncwarp();
    queued = 0;
  }
};
