// Beside the steps of a blocked factorisation in split precision (backend/cuda/split_factor.cpp). Pieces carry rows
// whose largest value is in [2^-50, 2^50], so the factorisation is that of D a D, with powers of two D that bring the
// diagonal into [1, 4). Then no value of the factor is over 2, and what is below 2^-50 changes nothing that float32
// would show. L = D^-1 L'. Both are exact, but for values that vanish beside the diagonal.
#define FACTOR_THREADS 256
#define FACTOR_COLUMNS 64      // of a panel, that a block looks at
#define MOST_OF_FACTOR 0x1p50f

extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) find_scales(const __grid_constant__ FactorArguments a) {
  const i64 i = (i64)blockIdx.x * FACTOR_THREADS + threadIdx.x;
  if (i >= a.n) return;
  const float pivot = a.a[i * (a.stride + 1)];
  const int exponent = pivot > 0 && pivot < INFINITY ? ilogbf(pivot) : 0;
  const int half = exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2);
  a.halves[i] = half;
  if (half != 0) *a.scales = 1;
}

// The lower triangle, in columns; `undoes`: of the factor.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) scale_triangle(const __grid_constant__ FactorArguments a) {
  if (*a.scales == 0) return;
  for (i64 j = blockIdx.x; j < a.n; j += gridDim.x) {
    const int own = a.halves[j];
    for (i64 i = j + threadIdx.x; i < a.n; i += FACTOR_THREADS) {
      float& value = a.a[i + j * a.stride];
      value = a.undoes ? scalbnf(value, a.halves[i]) : scalbnf(scalbnf(value, -a.halves[i]), -own);
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
  if (threadIdx.x == 0 && bad != 0x7fffffff) atomicMin(a.bad, (int)a.first + bad);
}

// Rows of the panel beside that pieces cannot carry: their pivots, of what is left of at most 4, would not be positive.
extern "C" __global__ void __launch_bounds__(FACTOR_THREADS) check_panel(const __grid_constant__ FactorArguments a) {
  const i64 i = a.first + a.block + (i64)blockIdx.x * FACTOR_THREADS + threadIdx.x;
  if (i >= a.n) return;
  bool carried = true;
#pragma unroll 8
  for (int c = 0; c < FACTOR_COLUMNS; ++c) {
    const i64 j = (i64)blockIdx.y * FACTOR_COLUMNS + c;
    if (j < a.block) carried = carried && fabsf(a.a[i + (a.first + j) * a.stride]) <= MOST_OF_FACTOR;
  }
  if (!carried) atomicMin(a.bad, (int)i + 1);
}

// The first failure of all.
extern "C" __global__ void say_info(const __grid_constant__ FactorArguments a) {
  *a.said = *a.bad == 0x7fffffff ? 0 : *a.bad;
}
