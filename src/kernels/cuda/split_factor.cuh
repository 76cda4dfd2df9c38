// Beside the steps of a blocked factorisation in split precision (backend/cuda/split_factor.cpp): pieces carry values
// whose largest is in [2^-50, 2^50], so a matrix far from 1 is multiplied with a power of four, and its factor with the
// power of two that undoes it. Both are exact.
#define FACTOR_THREADS 256
#define LEAST_EXPONENT (-40)  // of the diagonal's largest value
#define MOST_EXPONENT 60

// Half of the exponent to take away, 0 where nothing is to be done; no failure so far.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) find_scale(const __grid_constant__ FactorArguments a) {
  __shared__ float largest[FACTOR_THREADS / 32];
  float most = 0;
  for (i64 i = threadIdx.x; i < a.n; i += FACTOR_THREADS) most = fmaxf(most, fabsf(a.a[i * (a.stride + 1)]));
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < FACTOR_THREADS / 32; ++warp) most = fmaxf(most, largest[warp]);
  const int exponent = most > 0 && most < INFINITY ? ilogbf(most) : 0;
  *a.half = exponent < LEAST_EXPONENT || exponent > MOST_EXPONENT ? exponent / 2 : 0;
  *a.said = 0;
}

// The lower triangle, in columns. `undoes`: of the factor.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) scale_triangle(const __grid_constant__ FactorArguments a) {
  const int half = *a.half;
  if (half == 0) return;
  for (i64 j = blockIdx.x; j < a.n; j += gridDim.x) {
    for (i64 i = j + threadIdx.x; i < a.n; i += FACTOR_THREADS) {
      float& value = a.a[i + j * a.stride];
      value = scalbnf(value, a.undoes ? half : -2 * half);
    }
  }
}

// What a routine said of the `block` columns from `first` on, or the first pivot that is not positive, should it have
// passed by one.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) join_info(const __grid_constant__ FactorArguments a) {
  __shared__ int bad;
  if (threadIdx.x == 0) bad = *a.block_said > 0 ? *a.block_said : 0x7fffffff;
  __syncthreads();
  for (int i = threadIdx.x; i < a.block; i += FACTOR_THREADS)
    if (!(a.a[(a.first + i) * (a.stride + 1)] > 0)) atomicMin(&bad, i + 1);
  __syncthreads();
  if (threadIdx.x == 0 && *a.said == 0 && bad != 0x7fffffff) *a.said = (int)a.first + bad;
}
