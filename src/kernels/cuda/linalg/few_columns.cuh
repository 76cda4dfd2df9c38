// Products of a matrix with few columns: out [rows, columns] = alpha a v + beta b, in REAL.
//
// Columns that lie together, a[k][m] (multiply_*_columns):            Rows that do, a[m][k] (multiply_rows):
//
//             rows, a tile                                              depth, a part
//         ┌────────────┐                                              ┌────────────┐
//   depth │ a slice:   │  v [8][COLUMNS]                              │ 8 rows:    │  v, the same part of 8 columns
//   of a  │  [8][tile] │                                              │ 64 sums a  │
//   part  └────────────┘                                              └───thread───┘
//   four slices on their way to shared memory                         straight from memory
//
//   sums of a part: sums[part][column][m]; add_parts adds them in their order.
//
// Each value of a is used once, by COLUMNS multiply-adds. A part is no deeper than sums in float32 should be.
//
// Floor on an H200: a at 4.3 TB/s, 250 us of 16384 x 16384 in float32; with 32 columns multiply-adds, as long.
// Measured: 1.02, 1.07 and 1.7 of that for 8, 16 and 32 columns; with 32 a fifth of the multiply-adds wait for a bank
// of registers.
// Budget: 128 threads. A thread that goes by columns has 16 x 8 of 512 x 32 sums in float32, 8 x 8 of 256 x 32 in
// float64, or a vector of each column; 68 KB of shared memory. One that goes by rows has 128 and 168 registers.
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"

#define FEW_THREADS 128
#define FEW_VECTOR (16 / (int)sizeof(REAL))
#define FEW_ROWS (FEW_THREADS * FEW_VECTOR)
#define FEW_DEPTH 8
#define FEW_STAGES 4

typedef Pack<REAL, FEW_VECTOR> FewVector;

template <int COLUMNS>
struct FewColumns {
  static constexpr int kGroups = COLUMNS > 16 ? 4 : 1;  // of columns, each a thread's
  static constexpr int kColumns = COLUMNS / kGroups;
  static constexpr int kVectors = kGroups;              // of rows, a thread's
  static constexpr int kRows = kVectors * FEW_VECTOR;
  static constexpr int kPitch = COLUMNS + FEW_VECTOR;  // threads that copy eight rows meet in no bank
  static constexpr int kApart = FEW_ROWS / kVectors;

  struct Shared {
    alignas(16) REAL a[FEW_STAGES][FEW_DEPTH][FEW_ROWS];
    alignas(16) REAL v[FEW_STAGES][FEW_DEPTH][kPitch];
    alignas(16) float zeros[4];
  };

  static constexpr int kVCopies = (FEW_DEPTH * COLUMNS + FEW_THREADS - 1) / FEW_THREADS;

  const FewColumnsArguments& given;
  Shared& shared;
  i64 m0, column0, first, end;
  // Where the next slice comes from: this thread's part of its first row, and of v.
  const REAL *next_a, *next_v[kVCopies];
  bool has_rows, has_column[kVCopies];  // all rows of the tile are there; the column is

  MERCER_METHOD FewColumns(const FewColumnsArguments& arguments, Shared& memory)
      : given(arguments), shared(memory), m0((i64)blockIdx.x * FEW_ROWS), column0((i64)blockIdx.z * COLUMNS),
        first((i64)blockIdx.y * arguments.part), end(min(first + arguments.part, arguments.depth)) {
    next_a = (const REAL*)given.a + first * given.stride + m0 + threadIdx.x * (given.vectors ? FEW_VECTOR : 1);
    has_rows = m0 + FEW_ROWS <= given.rows;
#pragma unroll
    for (int i = 0; i < kVCopies; ++i) {
      const int column = column_of(i);
      has_column[i] = column < COLUMNS && column0 + column < given.columns;
      next_v[i] = (const REAL*)given.v;
      if (has_column[i]) next_v[i] += (column0 + column) * given.v_stride + first + feature_of();
    }
  }
  MERCER_METHOD static int feature_of() { return threadIdx.x % FEW_DEPTH; }
  MERCER_METHOD static int column_of(int i) { return (i * FEW_THREADS + threadIdx.x) / FEW_DEPTH; }

  // The next slice, of `left` rows of v at most; zeros beyond these, the matrix and the columns.
  MERCER_METHOD void copy(int stage, i64 left) {
    if (has_rows && left >= FEW_DEPTH)
      copy_rows<true>(shared.a[stage], FEW_DEPTH);
    else
      copy_rows<false>(shared.a[stage], left);
    next_a += FEW_DEPTH * given.stride;
#pragma unroll
    for (int i = 0; i < kVCopies; ++i) {
      if (column_of(i) >= COLUMNS) break;
      const bool inside = has_column[i] && feature_of() < left;
      copy_or_clear<sizeof(REAL)>(shared_address(&shared.v[stage][feature_of()][column_of(i)]),
                                  inside ? next_v[i] : given.v, inside);
      next_v[i] += FEW_DEPTH;
    }
  }

  template <bool WHOLE>
  MERCER_METHOD void copy_rows(REAL (&to)[FEW_DEPTH][FEW_ROWS], i64 left) const {
    const REAL* from = next_a;
    const i64 rows = given.rows - m0;  // that there are
    const int own = threadIdx.x * FEW_VECTOR;
#pragma unroll
    for (int kk = 0; kk < FEW_DEPTH; ++kk, from += given.stride) {
      const bool inside = WHOLE || kk < left;
      if (given.vectors && (WHOLE || own + FEW_VECTOR <= rows || own >= rows)) {
        const bool has_own = inside && (WHOLE || own < rows);
        copy_or_clear<16>(shared_address(&to[kk][own]), has_own ? from : given.a, has_own);
        continue;
      }
      // One by one, at the edge those that a vector would have.
#pragma unroll
      for (int c = 0; c < FEW_VECTOR; ++c) {
        const int row = given.vectors ? own + c : threadIdx.x + c * FEW_THREADS;
        const bool has_row = inside && (WHOLE || row < rows);
        copy_or_clear<sizeof(REAL)>(shared_address(&to[kk][row]),
                                    has_row ? from + (given.vectors ? c : c * FEW_THREADS) : given.a, has_row);
      }
    }
  }

  // Zeros that come from shared memory, four at a time and in this order: so the compiler keeps sums where they and the
  // values of v lie in different register banks more often.
  MERCER_METHOD void start_at_zero(float (&sum)[kRows][kColumns]) const {
    if (threadIdx.x < 4) shared.zeros[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; c += 4)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(sum[i][c + 1]), "=f"(sum[i][c]), "=f"(sum[i][c + 3]), "=f"(sum[i][c + 2])
                     : "r"(shared_address(shared.zeros)));
  }
  MERCER_METHOD void start_at_zero(double (&sum)[kRows][kColumns]) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[i][c] = 0;
  }

  MERCER_METHOD void run() {
    const int group = threadIdx.x % kGroups, row = threadIdx.x / kGroups * FEW_VECTOR;
    REAL sum[kRows][kColumns];
    start_at_zero(sum);
    int stage = 0, free = FEW_STAGES - 1;
    i64 left = end - first;
#pragma unroll
    for (int s = 0; s < FEW_STAGES - 1; ++s) {
      if (left > s * FEW_DEPTH) copy(s, left - s * FEW_DEPTH);
      commit_copies();
    }
#pragma unroll 1
    for (; left > 0; left -= FEW_DEPTH) {
      wait_copies<FEW_STAGES - 2>();
      __syncthreads();
      const i64 ahead = left - (FEW_STAGES - 1) * FEW_DEPTH;
      if (ahead > 0) copy(free, ahead);
      commit_copies();
#pragma unroll
      for (int kk = 0; kk < FEW_DEPTH; ++kk) {
        FewVector a[kVectors], v[kColumns / FEW_VECTOR];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) a[i] = *(const FewVector*)&shared.a[stage][kk][i * kApart + row];
#pragma unroll
        for (int c = 0; c < kColumns / FEW_VECTOR; ++c)
          v[c] = *(const FewVector*)&shared.v[stage][kk][group * kColumns + c * FEW_VECTOR];
#pragma unroll
        for (int i = 0; i < kRows; ++i)
#pragma unroll
          for (int c = 0; c < kColumns; ++c)
            sum[i][c] = mul_add(a[i / FEW_VECTOR].value[i % FEW_VECTOR], v[c / FEW_VECTOR].value[c % FEW_VECTOR],
                                sum[i][c]);
      }
      free = stage;
      stage = stage + 1 == FEW_STAGES ? 0 : stage + 1;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const i64 column = column0 + group * kColumns + c;
      if (column >= given.columns) break;
      REAL* const to = (REAL*)given.sums + (blockIdx.y * given.columns + column) * given.sums_stride + m0 + row;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (m0 + i * kApart + row >= given.sums_stride) break;  // a multiple of a vector
        FewVector values;
#pragma unroll
        for (int e = 0; e < FEW_VECTOR; ++e) values.value[e] = sum[i * FEW_VECTOR + e][c];
        *(FewVector*)(to + i * kApart) = values;
      }
    }
  }
};

template <int COLUMNS>
MERCER_INLINE void multiply_few(const FewColumnsArguments& a) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  wait_for_kernel_ahead();
  FewColumns<COLUMNS> product(a, *(typename FewColumns<COLUMNS>::Shared*)shared_bytes);
  product.run();
}

extern "C" __global__ void __launch_bounds__(FEW_THREADS, 3)
    multiply_8_columns(const __grid_constant__ FewColumnsArguments a) {
  multiply_few<8>(a);
}
extern "C" __global__ void __launch_bounds__(FEW_THREADS, 3)
    multiply_16_columns(const __grid_constant__ FewColumnsArguments a) {
  multiply_few<16>(a);
}
extern "C" __global__ void __launch_bounds__(FEW_THREADS, 2)
    multiply_32_columns(const __grid_constant__ FewColumnsArguments a) {
  multiply_few<32>(a);
}

// The sums over the lanes of a warp of `COUNT` values; lane l gets those of value l COUNT / 32 and on. Each step sends
// half of what a lane has left.
template <int COUNT>
MERCER_INLINE void sum_over_lanes(REAL (&value)[COUNT]) {
#pragma unroll
  for (int lanes = 16, left = COUNT / 2; lanes > 0; lanes /= 2, left /= 2) {
    const bool upper = threadIdx.x & lanes;
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const REAL given = upper ? value[i] : value[i + left], kept = upper ? value[i + left] : value[i];
      value[i] = kept + __shfl_xor_sync(0xffffffffu, given, lanes);
    }
  }
}

// blockIdx.x = tile * groups + group, of eight rows and eight columns: groups share what the second-level cache holds.
extern "C" __global__ void __launch_bounds__(FEW_THREADS) multiply_rows(const __grid_constant__ FewColumnsArguments a) {
  constexpr int kTile = 8, kSums = kTile * kTile;
  __shared__ REAL warps[FEW_THREADS / 32][kSums];
  wait_for_kernel_ahead();
  const i64 groups = (a.columns + kTile - 1) / kTile, m0 = blockIdx.x / groups * kTile,
            column0 = blockIdx.x % groups * kTile;
  const i64 first = (i64)blockIdx.y * a.part, end = min(first + a.part, a.depth);
  const REAL *from[kTile], *v[kTile];
#pragma unroll
  for (int e = 0; e < kTile; ++e) {
    from[e] = (const REAL*)a.a + min(m0 + e, a.rows - 1) * a.stride;  // sums beyond the last are not stored
    v[e] = (const REAL*)a.v + min(column0 + e, a.columns - 1) * a.v_stride;
  }
  REAL sum[kSums] = {};
#pragma unroll 1
  for (i64 k = first + threadIdx.x; k < end; k += FEW_THREADS) {
    REAL left[kTile], right[kTile];
#pragma unroll
    for (int e = 0; e < kTile; ++e) left[e] = from[e][k];
#pragma unroll
    for (int e = 0; e < kTile; ++e) right[e] = column0 + e < a.columns ? v[e][k] : (REAL)0;
#pragma unroll
    for (int i = 0; i < kTile; ++i)
#pragma unroll
      for (int c = 0; c < kTile; ++c) sum[i * kTile + c] = mul_add(left[i], right[c], sum[i * kTile + c]);
  }
  sum_over_lanes(sum);
  const int lane = threadIdx.x % 32;
  warps[threadIdx.x / 32][2 * lane] = sum[0];
  warps[threadIdx.x / 32][2 * lane + 1] = sum[1];
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  REAL total = warps[0][threadIdx.x];
  for (int warp = 1; warp < FEW_THREADS / 32; ++warp) total += warps[warp][threadIdx.x];
  const i64 row = m0 + threadIdx.x / kTile, column = column0 + threadIdx.x % kTile;
  if (row < a.rows && column < a.columns)
    ((REAL*)a.sums)[(blockIdx.y * a.columns + column) * a.sums_stride + row] = total;
}

// A thread a vector of rows of a column.
extern "C" __global__ void __launch_bounds__(FEW_THREADS) add_parts(const __grid_constant__ FewColumnsArguments a) {
  const i64 row = ((i64)blockIdx.x * FEW_THREADS + threadIdx.x) * FEW_VECTOR, column = blockIdx.y;
  wait_for_kernel_ahead();
  if (row >= a.rows) return;
  const REAL* from = (const REAL*)a.sums + column * a.sums_stride + row;
  FewVector sum = *(const FewVector*)from;
#pragma unroll 4
  for (int part = 1; part < a.parts; ++part) {
    from += a.columns * a.sums_stride;
    const FewVector next = *(const FewVector*)from;
#pragma unroll
    for (int c = 0; c < FEW_VECTOR; ++c) sum.value[c] += next.value[c];
  }
  REAL* const out = (REAL*)a.out + column * a.out_stride;
#pragma unroll
  for (int c = 0; c < FEW_VECTOR; ++c) {
    if (row + c >= a.rows) break;
    double value = a.alpha * (double)sum.value[c];
    if (a.b != nullptr) value += a.beta * (double)((const REAL*)a.b)[column * a.b_stride + row + c];
    out[row + c] = (REAL)value;
  }
}
