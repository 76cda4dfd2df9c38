// CUDA's built-in names, functions and macros for translated kernels: the end of device_text.h.
#pragma once

#define __device__
#define __constant__ static
#define __global__
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define threadIdx (emulator::self->index)
#define blockIdx (emulator::self->block->index)
#define blockDim (emulator::self->block->threads)
#define gridDim (emulator::self->block->grid)

inline void __syncthreads() {
  emulator::Block& block = *emulator::self->block;
  emulator::meet(block.meeting, block.live, block.cluster->progress);
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulator::exchange(mask, 0); }
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const int own = emulator::self->lane;
  return emulator::from_bits<T>(emulator::exchange(mask, emulator::to_bits(value))[own / width * width + lane % width]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int = 32) {
  return emulator::from_bits<T>(emulator::exchange(mask, emulator::to_bits(value))[emulator::self->lane ^ lanes]);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int = 32) {
  const unsigned own = static_cast<unsigned>(emulator::self->lane);
  return emulator::from_bits<T>(emulator::exchange(mask, emulator::to_bits(value))[own >= lanes ? own - lanes : own]);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int = 32) {
  const unsigned own = static_cast<unsigned>(emulator::self->lane);
  return emulator::from_bits<T>(
      emulator::exchange(mask, emulator::to_bits(value))[own + lanes < 32 ? own + lanes : own]);
}
inline int __syncthreads_or(int predicate) {
  unsigned& found = emulator::self->block->found;
  __syncthreads();
  found = 0;
  __syncthreads();
  if (predicate) found = 1;
  __syncthreads();
  return static_cast<int>(found);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  std::uint32_t took_part = 0;
  const std::uint64_t* values = emulator::exchange(mask, predicate != 0, &took_part);
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (took_part & (1u << lane) && values[lane] != 0) ballot |= 1u << lane;
  return ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
template <class T, class Fold>
T reduce_sync(unsigned mask, T value, Fold fold) {
  const std::uint64_t* values = emulator::exchange(mask, emulator::to_bits(value));
  for (int lane = 0; lane < 32; ++lane)
    if (lane != emulator::self->lane && mask & (1u << lane)) value = fold(value, emulator::from_bits<T>(values[lane]));
  return value;
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  return reduce_sync(mask, value, [](T a, T b) { return a + b; });
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  return reduce_sync(mask, value, [](T a, T b) { return min(a, b); });
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  return reduce_sync(mask, value, [](T a, T b) { return max(a, b); });
}

template <class T>
T atomicAdd(T* to, T value) {
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
template <class T, class Fold>
T atomic_fold(T* to, T value, Fold fold) {
  T old = __atomic_load_n(to, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(to, &old, fold(old, value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  return old;
}
template <class T>
T atomicMin(T* to, T value) {
  return atomic_fold(to, value, [](T a, T b) { return min(a, b); });
}
template <class T>
T atomicMax(T* to, T value) {
  return atomic_fold(to, value, [](T a, T b) { return max(a, b); });
}
inline void __threadfence() {}
inline void __threadfence_block() {}

inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
constexpr float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyint(a)); }
inline float __double2float_ru(double a) {
  const float rounded = static_cast<float>(a);
  return static_cast<double>(rounded) < a ? std::nextafterf(rounded, HUGE_VALF) : rounded;
}
inline int __ffs(unsigned a) { return __builtin_ffs(static_cast<int>(a)); }
inline int __ffsll(unsigned long long a) { return __builtin_ffsll(static_cast<long long>(a)); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline unsigned __brev(unsigned a) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; ++bit) reversed |= (a >> bit & 1) << (31 - bit);
  return reversed;
}
inline int __clz(unsigned a) { return a == 0 ? 32 : __builtin_clz(a); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  const std::uint64_t both = static_cast<std::uint64_t>(high) << 32 | low;
  return static_cast<unsigned>(both << (shift & 31) >> 32);
}
inline std::size_t __cvta_generic_to_shared(const void* place) {
  const emulator::Block& block = *emulator::self->block;
  const std::ptrdiff_t offset = static_cast<const unsigned char*>(place) - block.shared;
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(emulator::kSharedBytes))
    emulator::host->fail("an address that is not of the block's shared memory");
  return static_cast<std::size_t>(block.rank) << emulator::kRankShift | static_cast<std::size_t>(offset);
}
inline void* __cvta_shared_to_generic(std::size_t address) {
  return emulator::shared_place(static_cast<std::uint32_t>(address));
}
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }
