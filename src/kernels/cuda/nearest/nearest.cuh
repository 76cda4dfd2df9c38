// The `count` smallest values of each row, ascending, ties by index, NaN last; one block a row.
//
// Values and columns become 128-bit keys (the value's bits in the order of numbers, then the column), so that no two
// are equal. Byte by byte from the top, a histogram of the candidates finds the key of the last one wanted; then all
// keys up to it are gathered and sorted. For rows longer than the keys that fit shared memory the gathered keys lie in
// global memory.
//
//   REAL
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define NEAREST_THREADS 256

struct Key {
  u64 value;
  u64 column;
};
MERCER_INLINE bool before(const Key& a, const Key& b) {
  return a.value < b.value || (a.value == b.value && a.column < b.column);
}
// Order-preserving: negative numbers have all bits flipped, others the sign; NaN comes after +Inf.
MERCER_INLINE u64 key_of(float v) {
  if (v != v) return 0xffffffffull;
  const u32 bits = bits_of(v == 0.0f ? 0.0f : v);
  return bits >> 31 ? (u32)~bits : bits | 0x80000000u;
}
MERCER_INLINE u64 key_of(double v) {
  if (v != v) return ~0ull;
  const u64 bits = bits_of(v == 0.0 ? 0.0 : v);
  return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}

extern "C" __global__ void __launch_bounds__(NEAREST_THREADS) nearest(const __grid_constant__ NearestArguments a) {
  __shared__ u32 histogram[256];
  __shared__ u64 prefix_value, prefix_column;
  __shared__ i64 wanted;
  __shared__ unsigned long long gathered;
  const i64 m = blockIdx.x;
  const REAL* row = (const REAL*)a.values + m * a.value_row;
  Key* keys = (Key*)a.keys + m * a.key_row;
  constexpr int kValueBytes = sizeof(REAL);
  if (threadIdx.x == 0) {
    prefix_value = prefix_column = 0;
    wanted = a.count;
    gathered = 0;
  }
  // The key of the last one wanted, a byte at a time: bytes of the value, then eight of the column.
  for (int byte = 0; byte < kValueBytes + 8; ++byte) {
    for (int b = threadIdx.x; b < 256; b += NEAREST_THREADS) histogram[b] = 0;
    __syncthreads();
    const bool of_value = byte < kValueBytes;
    const int shift = of_value ? 8 * (kValueBytes - 1 - byte) : 8 * (7 - (byte - kValueBytes));
    const u64 want_value = prefix_value, want_column = prefix_column;
    if (of_value || a.n > (1ll << shift))
      for (i64 n = threadIdx.x; n < a.n; n += NEAREST_THREADS) {
        const u64 value = key_of(row[n]);
        const bool candidate = of_value ? byte == 0 || value >> (shift + 8) == want_value >> (shift + 8)
                                        : value == want_value &&
                                              (shift == 56 || (u64)n >> (shift + 8) == want_column >> (shift + 8));
        if (candidate) atomicAdd(&histogram[((of_value ? value : (u64)n) >> shift) & 255], 1u);
      }
    else if (threadIdx.x == 0)
      histogram[0] = 0xffffffffu;  // columns are too few to have this byte
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 0;
      i64 left = wanted;
      while (digit < 255 && histogram[digit] < left) left -= histogram[digit++];
      wanted = left;
      (of_value ? prefix_value : prefix_column) |= (u64)digit << shift;
    }
    __syncthreads();
  }
  const Key last{prefix_value, prefix_column};
  for (i64 n = threadIdx.x; n < a.n; n += NEAREST_THREADS) {
    const Key key{key_of(row[n]), (u64)n};
    if (before(last, key)) continue;
    keys[atomicAdd(&gathered, 1ull)] = key;
  }
  __syncthreads();
  // Bitonic sort; places after the last key hold the largest.
  i64 size = 1;
  while (size < a.count) size *= 2;
  for (i64 i = a.count + threadIdx.x; i < size; i += NEAREST_THREADS) keys[i] = {~0ull, ~0ull};
  __syncthreads();
  for (i64 run = 2; run <= size; run *= 2)
    for (i64 gap = run / 2; gap > 0; gap /= 2) {
      for (i64 i = threadIdx.x; i < size; i += NEAREST_THREADS) {
        const i64 other = i ^ gap;
        if (other > i && before(keys[other], keys[i]) == ((i & run) == 0)) {
          const Key swap = keys[i];
          keys[i] = keys[other];
          keys[other] = swap;
        }
      }
      __syncthreads();
    }
  for (i64 i = threadIdx.x; i < a.count; i += NEAREST_THREADS) {
    const i64 n = (i64)keys[i].column;
    ((REAL*)a.out_values)[m * a.out_values_row + i * a.out_values_col] = row[n];
    ((i64*)a.out_indices)[m * a.out_indices_row + i * a.out_indices_col] = n;
  }
}
