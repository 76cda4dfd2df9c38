// What NVRTC knows by itself, for clangd: src/kernels/cuda/compile_flags.txt includes this before a file of device text
// is read.
#pragma once

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ __attribute__((always_inline)) inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
extern __device__ const uint3 threadIdx, blockIdx, blockDim, gridDim;

__device__ void __syncthreads();
__device__ int __syncthreads_or(int);
__device__ void __syncwarp(unsigned = ~0u);
__device__ void __threadfence();
__device__ void __threadfence_block();
__device__ int __any_sync(unsigned, int);
__device__ int __all_sync(unsigned, int);
__device__ unsigned __ballot_sync(unsigned, int);
template <class T> __device__ T __shfl_sync(unsigned, T, int, int = 32);
template <class T> __device__ T __shfl_xor_sync(unsigned, T, int, int = 32);
template <class T> __device__ T __shfl_up_sync(unsigned, T, unsigned, int = 32);
template <class T> __device__ T __reduce_add_sync(unsigned, T);
template <class T> __device__ T __reduce_min_sync(unsigned, T);
template <class T> __device__ T __reduce_max_sync(unsigned, T);
template <class T> __device__ T atomicAdd(T*, T);
template <class T> __device__ T atomicMin(T*, T);
template <class T> __device__ T atomicMax(T*, T);

__device__ unsigned __float_as_uint(float);
__device__ constexpr float __int_as_float(int);
__device__ float __uint_as_float(unsigned);
__device__ long long __double_as_longlong(double);
__device__ double __longlong_as_double(long long);
__device__ float __fmaf_rn(float, float, float);
__device__ double __fma_rn(double, double, double);
__device__ float __fsqrt_rn(float);
__device__ float __double2float_ru(double);
__device__ int __ffs(int);
__device__ int __ffsll(long long);
__device__ int __popc(unsigned);
__device__ int __popcll(unsigned long long);
__device__ int __clz(int);
__device__ unsigned __brev(unsigned);
__device__ unsigned __umulhi(unsigned, unsigned);
__device__ unsigned long long __umul64hi(unsigned long long, unsigned long long);
__device__ unsigned __funnelshift_l(unsigned, unsigned, unsigned);
__device__ unsigned long __cvta_generic_to_shared(const void*);
__device__ void* __cvta_shared_to_generic(unsigned long);

#define MERCER_UNARY(NAME) \
  __device__ float NAME##f(float); \
  __device__ double NAME(double); \
  __device__ float NAME(float);
MERCER_UNARY(cos) MERCER_UNARY(sin) MERCER_UNARY(exp) MERCER_UNARY(exp2) MERCER_UNARY(fabs) MERCER_UNARY(floor)
MERCER_UNARY(log) MERCER_UNARY(log1p) MERCER_UNARY(log2) MERCER_UNARY(rint) MERCER_UNARY(rsqrt) MERCER_UNARY(sqrt)
#undef MERCER_UNARY
#define MERCER_BINARY(NAME) \
  __device__ float NAME##f(float, float); \
  __device__ double NAME(double, double); \
  __device__ float NAME(float, float);
MERCER_BINARY(copysign) MERCER_BINARY(fmax) MERCER_BINARY(fmin)
#undef MERCER_BINARY
__device__ float fma(float, float, float);
__device__ double fma(double, double, double);
__device__ int ilogbf(float);
__device__ float scalbnf(float, int);
__device__ double scalbn(double, int);
template <class A, class B> __device__ constexpr auto min(A a, B b) { return a < b ? a : b; }
template <class A, class B> __device__ constexpr auto max(A a, B b) { return a < b ? b : a; }
