// The steps of a blocked factorisation in split precision (backend/cuda/split_factor.cpp) beside its products. Pieces carry rows
// whose largest value is in [2^-50, 2^50], so the factorisation is that of D a D, with powers of two D that bring the
// diagonal into [1, 4). Then no value of the factor is over 2, and what is below 2^-50 changes nothing that float32
// would show. L = D^-1 L'. Both are exact, but for values that vanish beside the diagonal.
#define FACTOR_THREADS 256
#define FACTOR_WIDTH 64  // columns that are factored at once
#define FACTOR_ROWS 128  // of a block of solve_rows
#define MOST_OF_FACTOR 0x1p50f

// Up to 64 columns from `first` on: the square of the diagonal, by one block; thread i has row i in registers. Step k:
// column k to all, and what it takes from the columns behind. Floor: 64 steps of a trip through shared memory and a
// quotient, some 150 cycles each: 5.5 us.
extern "C" __global__ void __launch_bounds__(FACTOR_WIDTH) factor_square(const __grid_constant__ FactorArguments a) {
  __shared__ __align__(16) float column[2][FACTOR_WIDTH];
  const int i = threadIdx.x, n = a.block;
  float* const own = a.a + a.first * (a.stride + 1) + i;
  float row[FACTOR_WIDTH];
#pragma unroll
  for (int j = 0; j < FACTOR_WIDTH; ++j) row[j] = j <= i && i < n ? own[j * a.stride] : i == j ? 1.0f : 0.0f;
  int bad = 0;
#pragma unroll
  for (int k = 0; k < FACTOR_WIDTH; ++k) {
    float* const shared = column[k % 2];
    shared[i] = row[k];
    __syncthreads();
    const float pivot = shared[k], part = row[k] / pivot;
    if (!(pivot > 0) && bad == 0) bad = k + 1;
#pragma unroll
    for (int j = k + 1; j < FACTOR_WIDTH; ++j) row[j] = __fmaf_rn(-part, shared[j], row[j]);
    row[k] = i == k ? __fsqrt_rn(pivot) : row[k] / __fsqrt_rn(pivot);
  }
#pragma unroll
  for (int j = 0; j < FACTOR_WIDTH; ++j)
    if (j <= i && i < n) own[j * a.stride] = row[j];
  if (i == 0 && bad != 0) atomicMin(a.bad, (int)a.first + bad);
}

// The rows below: x L^T = a, a thread a row, in registers. Floor of m rows: 2016 m multiply-adds, 512 m bytes.
extern "C" __global__ void __launch_bounds__(FACTOR_ROWS) solve_rows(const __grid_constant__ FactorArguments a) {
  __shared__ __align__(16) float factor[FACTOR_WIDTH][FACTOR_WIDTH];  // [column][row]
  __shared__ float inverses[FACTOR_WIDTH];
  const int n = a.block;
  const float* const square = a.a + a.first * (a.stride + 1);
  for (int e = threadIdx.x; e < FACTOR_WIDTH * FACTOR_WIDTH; e += FACTOR_ROWS) {
    const int r = e % FACTOR_WIDTH, c = e / FACTOR_WIDTH;
    factor[c][r] = r >= c && r < n ? square[r + c * a.stride] : r == c ? 1.0f : 0.0f;
  }
  __syncthreads();
  if (threadIdx.x < FACTOR_WIDTH) inverses[threadIdx.x] = 1.0f / factor[threadIdx.x][threadIdx.x];
  __syncthreads();
  const i64 i = a.first + n + (i64)blockIdx.x * FACTOR_ROWS + threadIdx.x;
  if (i >= a.n) return;
  float* const own = a.a + i + a.first * a.stride;
  float row[FACTOR_WIDTH];
#pragma unroll
  for (int j = 0; j < FACTOR_WIDTH; ++j) row[j] = j < n ? own[j * a.stride] : 0.0f;
  bool carried = true;
#pragma unroll
  for (int j = 0; j < FACTOR_WIDTH; ++j) {
    row[j] *= inverses[j];
    carried = carried && fabsf(row[j]) <= MOST_OF_FACTOR;
    if (j < n) own[j * a.stride] = row[j];
#pragma unroll
    for (int c = j + 1; c < FACTOR_WIDTH; ++c) row[c] = __fmaf_rn(-row[j], factor[j][c], row[c]);
  }
  if (!carried) atomicMin(a.bad, (int)i + 1);
}

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

// The first failure of all: a pivot that is not positive, or a row that pieces cannot carry, whose pivot, of what is left
// of at most 4, would not be.
extern "C" __global__ void say_info(const __grid_constant__ FactorArguments a) {
  *a.said = *a.bad == 0x7fffffff ? 0 : *a.bad;
}
