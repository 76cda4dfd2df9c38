// Operands of gradient fields on tensor cores (field_products.cuh): images of z and of the coefficients, as the lanes
// that multiply read them, STAGE_POINTS points after STAGE_POINTS points.
//
//   image[n / 64][k / 16][n / 16 % 4]      SIGN  [lane][8 codes]: features lane / 4 and + 8, points 4 (lane % 4) …
//                                          else  [k / 8 % 2][lane][4 floats]
//   coefs[n / 64][n / 4 % 16][column][n % 4]
//
// SIGN: only the order of x and z of a feature matters. CODE_POINTS points z at a time are sorted: point r of a feature
// has code 2 r + 1, a value of x between r - 1 and r code 2 r; equal ones have equal codes, or where SIGNS_ZEROS x has
// 2 r + 2 and zeros of unlike signs are unlike, as in copysign(1, x - z). Codes are 16-bit floats two and more apart,
// so that their difference has its sign in bit 15 and its being in bit 14.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define OPERAND_THREADS 1024
#define STAGE_POINTS 64
#define CODE_POINTS (CODE_STAGES * STAGE_POINTS)
#define MOST_KEYS 8192

#if SIGN
MERCER_INLINE u32 key_of(float v) { return ordered(SIGNS_ZEROS ? v : v + 0.0f); }  // zeros of both signs are equal

// Points below `key`.
MERCER_INLINE int rank_of(const u32* keys, int count, u32 key) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (keys[middle] < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}
MERCER_INLINE u32 code_of(const u32* keys, int count, float v, bool of_x) {
  const u32 key = key_of(v);
  const int rank = rank_of(keys, count, key);
  const int equal = rank < count && keys[rank] == key ? 1 + (SIGNS_ZEROS && of_x) : 0;
  const int place = 2 * rank + equal - CODE_POINTS, size = place < 0 ? -place : place;
  half_bits even;
  convert(even, (float)(2 * size));
  return (size <= 2048 ? even.bits : (27u << 10) + size - 2048) | (place < 0 ? 0x8000u : 0u);
}

#define THREAD_KEYS 8  // of a thread that sorts, one after the other
#define LEAST_KEYS (32 * THREAD_KEYS)

MERCER_INLINE void order(u32& first, u32& second, bool rising) {
  const u32 low = first < second ? first : second, high = first < second ? second : first;
  first = rising ? low : high;
  second = rising ? high : low;
}
// Keeps the smaller or the larger one of each key and the one that another thread has in its place.
MERCER_INLINE void keep_keys(u32 (&own)[THREAD_KEYS], const u32 (&other)[THREAD_KEYS], bool smaller) {
#pragma unroll
  for (int j = 0; j < THREAD_KEYS; ++j) own[j] = (own[j] < other[j]) == smaller ? own[j] : other[j];
}
MERCER_INLINE void store_keys(u32* to, const u32 (&own)[THREAD_KEYS]) {
#pragma unroll
  for (int j = 0; j < THREAD_KEYS; j += 4) *(Pack<u32, 4>*)(to + j) = {own[j], own[j + 1], own[j + 2], own[j + 3]};
}
MERCER_INLINE void load_keys(u32 (&values)[THREAD_KEYS], const u32* from) {
#pragma unroll
  for (int j = 0; j < THREAD_KEYS; j += 4) {
    const Pack<u32, 4> four = *(const Pack<u32, 4>*)(from + j);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[j + e] = four.value[e];
  }
}

// Bitonic: steps of fewer than THREAD_KEYS keys in a thread's registers, those within a warp by shuffles, larger ones
// through shared memory. `size` is a power of two, LEAST_KEYS at least: whole warps sort.
MERCER_INLINE void sort_keys(u32* keys, u32 (&own)[THREAD_KEYS], int size) {
  const int thread = threadIdx.x;
  const bool sorts = thread * THREAD_KEYS < size;
#pragma unroll 1
  for (int span = 2; span <= size; span *= 2) {
    int step = span / 2;
#pragma unroll 1
    for (; step >= LEAST_KEYS; step /= 2) {
      const int apart = step / THREAD_KEYS;
      __syncthreads();
      if (sorts) store_keys(keys + thread * THREAD_KEYS, own);
      __syncthreads();
      if (!sorts) continue;
      u32 other[THREAD_KEYS];
      load_keys(other, keys + (thread ^ apart) * THREAD_KEYS);
      keep_keys(own, other, ((thread & apart) == 0) == ((thread * THREAD_KEYS & span) == 0));
    }
    if (!sorts) continue;
#pragma unroll 1
    for (; step >= THREAD_KEYS; step /= 2) {
      const int apart = step / THREAD_KEYS;
      u32 other[THREAD_KEYS];
#pragma unroll
      for (int j = 0; j < THREAD_KEYS; ++j) other[j] = __shfl_xor_sync(0xffffffffu, own[j], apart);
      keep_keys(own, other, ((thread & apart) == 0) == ((thread * THREAD_KEYS & span) == 0));
    }
#pragma unroll
    for (int within = THREAD_KEYS / 2; within > 0; within /= 2) {
      if (within > step) continue;
#pragma unroll
      for (int j = 0; j < THREAD_KEYS; ++j)
        if ((j & within) == 0) order(own[j], own[j + within], ((thread * THREAD_KEYS + j) & span) == 0);
    }
  }
  __syncthreads();
  if (sorts) store_keys(keys + thread * THREAD_KEYS, own);
  __syncthreads();
}

// A block takes a feature and CODE_POINTS points of z.
MERCER_INLINE void write_image(const FieldProductArguments& a) {
  __shared__ __align__(16) u32 keys[MOST_KEYS];
  const i64 k = blockIdx.x, n0 = (i64)blockIdx.y * CODE_POINTS, groups64 = (a.field.k + 63) / 64;
  const int count = (int)(a.field.n - n0 < CODE_POINTS ? a.field.n - n0 : CODE_POINTS);
  const float* z = (const float*)a.field.z + k * a.field.z_ld + n0;
  int size = LEAST_KEYS;
  while (size < count) size *= 2;
  bool nan = false;
  u32 own[THREAD_KEYS];
  const int threads = size / THREAD_KEYS;  // that sort, keys in any order
#pragma unroll
  for (int j = 0; j < THREAD_KEYS; ++j) {
    const int i = j * threads + threadIdx.x;
    const bool is_there = threadIdx.x < threads && i < count;
    own[j] = is_there ? key_of(z[i]) : 0xffffffffu;
    nan = nan || (is_there && z[i] != z[i]);
  }
  if (__any_sync(0xffffffffu, nan) && threadIdx.x % 32 == 0)
    for (i64 m = 0; m < a.field.m; ++m) a.marks[m * groups64 + k / 64] = 1;
  sort_keys(keys, own, size);
  // Points after the last one repeat it.
  u16* image = (u16*)a.z_image;
  const int padded = (count + STAGE_POINTS - 1) / STAGE_POINTS * STAGE_POINTS;
  for (int i = threadIdx.x; i < padded; i += OPERAND_THREADS) {
    const i64 n = n0 + i, group = (n / STAGE_POINTS * a.groups + k / 16) * 4 + n / 16 % 4;
    const int lane = (int)(k % 8 * 4 + n % 16 / 4), place = (int)(n % 4 / 2 * 4 + k % 16 / 8 * 2 + n % 2);
    image[(group * 32 + lane) * 8 + place] = (u16)(code_of(keys, count, z[i < count ? i : count - 1], false) ^ 0x8000u);
  }
  const float* x = (const float*)a.field.x + k * a.field.x_ld;
  u16* codes = a.x_codes + ((i64)blockIdx.y * a.field.k + k) * a.codes_ld;
  for (i64 m = threadIdx.x; m < a.field.m; m += OPERAND_THREADS) {
    codes[m] = (u16)code_of(keys, count, x[m], true);
    if (!(fabsf(x[m]) < INFINITY)) a.marks[m * groups64 + k / 64] = 1;
  }
}
#else
MERCER_INLINE void write_image(const FieldProductArguments& a) {
  const i64 stages = (a.field.n + STAGE_POINTS - 1) / STAGE_POINTS, count = stages * a.groups * 4 * 64;
  const float* z = (const float*)a.field.z;
  const i64 step = (i64)gridDim.x * OPERAND_THREADS;
  for (i64 at = (i64)blockIdx.x * OPERAND_THREADS + threadIdx.x; at < count; at += step) {
    const int lane = (int)(at % 32), half = (int)(at / 32 % 2), quarter = (int)(at / 64 % 4);
    const i64 group = at / 256 % a.groups, stage = at / 256 / a.groups;
    const i64 wanted = group * 16 + half * 8 + lane / 4, k = wanted < a.field.k ? wanted : a.field.k - 1;
    const i64 n = stage * STAGE_POINTS + quarter * 16 + lane % 4 * 4;
    Pack<float, 4> values;
#pragma unroll
    for (int e = 0; e < 4; ++e) values.value[e] = z[k * a.field.z_ld + (n + e < a.field.n ? n + e : a.field.n - 1)];
    ((Pack<float, 4>*)a.z_image)[at] = values;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(OPERAND_THREADS)
    write_points(const __grid_constant__ FieldProductArguments a) {
  write_image(a);
}

extern "C" __global__ void __launch_bounds__(OPERAND_THREADS)
    write_coefs(const __grid_constant__ FieldProductArguments a) {
  const i64 stages = (a.field.n + STAGE_POINTS - 1) / STAGE_POINTS, count = stages * STAGE_POINTS * COLUMNS;
  const i64 at = (i64)blockIdx.x * OPERAND_THREADS + threadIdx.x;
  if (at >= count) return;
  const i64 n = at / (4 * COLUMNS) * 4 + at % 4;
  const int column = (int)(at / 4 % COLUMNS);
  const bool is_there = n < a.field.n && column < a.field.outputs;
  a.coefs[at] = is_there ? ((const float*)a.field.coef)[n * a.field.coef_ld + column] : 0.0f;
}
