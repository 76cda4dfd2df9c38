// A pass over one factor of a Kronecker product:
//
//   for item, row, l, q, a:  to[item, row, l, q, a] = alpha sum_p from[item, row, l, p, a] F[item, p, q] + beta y[...]
//
// l counts what stands before the factor's axis, a what comes after it. A block takes TILE_B of (row, l) and TILE_A
// of a, which together are the columns n of a product of matrices, by TILE_Q of q; a thread THREAD_N columns by
// THREAD_Q. `from` goes through shared memory in the order of memory, so loads run along a, or along p where little or
// nothing comes after; results of such tiles go back the same way (STAGED).
//
// Floor: bytes, `from` once for each tile of q and `to` once, at 4.2 TB/s, or P multiply-adds an element of `to`, in
// float32 at 65 TFLOP/s: from P = Q = 62 on arithmetic is more, as 8 bytes take as long as 124 flops. Shared memory:
// THREAD_N + THREAD_Q words for THREAD_N THREAD_Q multiply-adds. Registers: as many sums, and those words.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "kron/kron_values.cuh"

#define KRON_THREADS (GROUPS_N * GROUPS_Q)
#define TILE_N (GROUPS_N * THREAD_N)
#define PADDED_Q (GROUPS_Q * THREAD_Q)
#define STAGED (TILE_A < 32)
// Neighbours in memory lie in different banks of a tile [p][n], and of results [b][q][a].
#define X_PITCH (TILE_N + (STAGED ? TILE_A : 0))
#define Z_PITCH (TILE_A == 1 ? TILE_Q | 1 : TILE_Q * TILE_A + TILE_A)

// Where the block's results and what it reads begin.
struct KronTilePlace {
  i64 item, b, a, q, b_count;
};

MERCER_INLINE void load_x(const KronArguments& k, const KronTilePlace& at, const i64* places, i64 p0, Value* xs) {
  const IN* from = (const IN*)k.from.data;
#pragma unroll 8
  for (int e = threadIdx.x; e < TILE_B * TILE_P * TILE_A; e += KRON_THREADS) {
    const int a = e % TILE_A, p = e / TILE_A % TILE_P, b = e / (TILE_A * TILE_P);
    const bool inside = at.b + b < at.b_count && at.a + a < k.right && p0 + p < P;
    const i64 place = places[b] + (p0 + p) * k.from.axis + kron_behind(k.from, at.a + a);
    xs[p * X_PITCH + b * TILE_A + a] = inside ? kron_load(from[place]) : (Value)0;
  }
}

MERCER_INLINE void load_factor(const KronArguments& k, const KronTilePlace& at, i64 p0, Value* fs) {
  const KronMatrix& factor = k.factors[0];
  const FACTOR* from = (const FACTOR*)factor.data + kron_offset(k.items, factor.item_step, at.item);
  const bool along_q = factor.q_stride == 1 || factor.p_stride != 1;
  for (int e = threadIdx.x; e < TILE_P * PADDED_Q; e += KRON_THREADS) {
    const int p = along_q ? e / PADDED_Q : e % TILE_P, q = along_q ? e % PADDED_Q : e / TILE_P;
    const bool inside = p0 + p < P && q < TILE_Q && at.q + q < Q;
    const i64 place = (p0 + p) * factor.p_stride + (at.q + q) * factor.q_stride;
    fs[p * PADDED_Q + q] = inside ? kron_load(from[place]) : (Value)0;
  }
}

MERCER_INLINE void multiply(const Value* xs, const Value* fs, Value (&sums)[THREAD_Q][THREAD_N]) {
  const int n = threadIdx.x % GROUPS_N, q = threadIdx.x / GROUPS_N * THREAD_Q;
#pragma unroll 4
  for (int p = 0; p < TILE_P; ++p) {
    Value x[THREAD_N], f[THREAD_Q];
#pragma unroll
    for (int i = 0; i < THREAD_N; ++i) x[i] = xs[p * X_PITCH + n + i * GROUPS_N];
#pragma unroll
    for (int j = 0; j < THREAD_Q; ++j) f[j] = fs[p * PADDED_Q + q + j];
#pragma unroll
    for (int j = 0; j < THREAD_Q; ++j)
#pragma unroll
      for (int i = 0; i < THREAD_N; ++i) sums[j][i] = kron_mul_add(x[i], f[j], sums[j][i]);
  }
}

MERCER_INLINE void store_value(const KronArguments& k, const KronTilePlace& at, const i64* places, int b, int q, int a,
                               Value value) {
  if (at.b + b >= at.b_count || at.a + a >= k.right || q >= TILE_Q || at.q + q >= Q) return;
  if constexpr (FINAL) {
    i64 y_place = 0;
    if (k.y.data)
      y_place = kron_place(k, k.y, at.item, at.b + b) + (at.q + q) * k.y.axis + kron_behind(k.y, at.a + a);
    value = KronEnd(k)(value, y_place);
  }
  const i64 place = places[b] + (at.q + q) * k.to.axis + kron_behind(k.to, at.a + a);
  kron_store(((OUT*)k.to.data)[place], value);
}

MERCER_INLINE void store_tile(const KronArguments& k, const KronTilePlace& at, const i64* places,
                              const Value (&sums)[THREAD_Q][THREAD_N], Value* zs) {
  const int n0 = threadIdx.x % GROUPS_N, q0 = threadIdx.x / GROUPS_N * THREAD_Q;
  if (STAGED) __syncthreads();
#pragma unroll
  for (int j = 0; j < THREAD_Q; ++j)
#pragma unroll
    for (int i = 0; i < THREAD_N; ++i) {
      const int n = n0 + i * GROUPS_N, b = n / TILE_A, a = n % TILE_A, q = q0 + j;
      if (b >= TILE_B) continue;
      if (!STAGED) store_value(k, at, places, b, q, a, sums[j][i]);
      else if (q < TILE_Q) zs[b * Z_PITCH + q * TILE_A + a] = sums[j][i];
    }
  if (!STAGED) return;
  __syncthreads();
#pragma unroll 4
  for (int e = threadIdx.x; e < TILE_B * TILE_Q * TILE_A; e += KRON_THREADS) {
    const int a = e % TILE_A, q = e / TILE_A % TILE_Q, b = e / (TILE_A * TILE_Q);
    store_value(k, at, places, b, q, a, zs[b * Z_PITCH + q * TILE_A + a]);
  }
}

extern "C" __global__ void __launch_bounds__(KRON_THREADS) kron_step(const __grid_constant__ KronArguments k) {
  extern __shared__ __align__(16) u8 memory[];
  i64* const from_places = (i64*)memory;
  i64* const to_places = from_places + TILE_B;
  Value* const fs = (Value*)(memory + (TILE_B * 16 + 15) / 16 * 16);
  Value* const xs = fs + TILE_P * PADDED_Q;
  Value* const zs = fs;
  KronTilePlace at;
  at.b_count = k.row_count * k.left;
  const i64 q_tiles = (Q + TILE_Q - 1) / TILE_Q, a_tiles = (k.right + TILE_A - 1) / TILE_A;
  const i64 b_tiles = (at.b_count + TILE_B - 1) / TILE_B, tiles = q_tiles * a_tiles * b_tiles * k.item_count;
  for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    i64 rest = tile / q_tiles;
    at.q = (tile - rest * q_tiles) * TILE_Q;
    at.a = rest % a_tiles * TILE_A;
    rest /= a_tiles;
    at.b = rest % b_tiles * TILE_B;
    at.item = rest / b_tiles;
    __syncthreads();
    for (int b = threadIdx.x; b < TILE_B && at.b + b < at.b_count; b += KRON_THREADS) {
      from_places[b] = kron_place(k, k.from, at.item, at.b + b);
      to_places[b] = kron_place(k, k.to, at.item, at.b + b);
    }
    Value sums[THREAD_Q][THREAD_N];
#pragma unroll
    for (int j = 0; j < THREAD_Q; ++j)
#pragma unroll
      for (int i = 0; i < THREAD_N; ++i) sums[j][i] = 0;
#pragma unroll 1
    for (i64 p0 = 0; p0 < P; p0 += TILE_P) {
      __syncthreads();
      load_factor(k, at, p0, fs);
      load_x(k, at, from_places, p0, xs);
      __syncthreads();
      multiply(xs, fs, sums);
    }
    store_tile(k, at, to_places, sums, zs);
  }
}
