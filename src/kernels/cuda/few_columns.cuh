// out = a v for a symmetric a [n, n] of float32 and few columns v, by columns.
//
//             n, 512 rows a tile
//         ┌────────────┐
//   depth │ a slice:   │  v [8][COLUMNS]      a[k][m], read along m; four slices on their way to shared memory
//   of a  │  [8][512]  │
//   part  └────────────┘
//   sum of a part: sums[part][column][m]; add_parts adds them in their order.
//
// Each value of a is used once, by COLUMNS multiply-adds. A part is no deeper than sums in float32 should be.
//
// Floor on an H200: a at 4.3 TB/s, 250 us of 16384 rows; with 32 columns multiply-adds, as long. Measured: 1.02, 1.07
// and 1.7 of that for 8, 16 and 32 columns; with 32 a fifth of the multiply-adds wait for a bank of registers.
// Budget: 128 threads, a thread 16 x 8 of 512 x 32 sums or 4 x COLUMNS; 68 KB of shared memory.
#define FEW_THREADS 128
#define FEW_ROWS 512
#define FEW_DEPTH 8
#define FEW_STAGES 4

template <int COLUMNS>
struct FewColumns {
  static constexpr int kGroups = COLUMNS > 16 ? 4 : 1;  // of columns, each a thread's
  static constexpr int kColumns = COLUMNS / kGroups;
  static constexpr int kVectors = FEW_ROWS * kGroups / FEW_THREADS / 4;  // of four rows, a thread's
  static constexpr int kPitch = COLUMNS + 4;                            // threads that copy eight rows meet in no bank
  static constexpr int kApart = FEW_ROWS / kVectors;

  struct Shared {
    alignas(16) float a[FEW_STAGES][FEW_DEPTH][FEW_ROWS];
    alignas(16) float v[FEW_STAGES][FEW_DEPTH][kPitch];
    alignas(16) float zeros[4];
  };

  static constexpr int kVCopies = (FEW_DEPTH * COLUMNS + FEW_THREADS - 1) / FEW_THREADS;

  const FewColumnsArguments& given;
  Shared& shared;
  i64 m0, column0, first, end;
  // Where the next slice comes from: this thread's part of its first row, and of v.
  const float *next_a, *next_v[kVCopies];
  bool has_rows, has_column[kVCopies];  // all rows of the tile are there; the column is

  MERCER_METHOD FewColumns(const FewColumnsArguments& arguments, Shared& memory)
      : given(arguments), shared(memory), m0((i64)blockIdx.x * FEW_ROWS), column0((i64)blockIdx.z * COLUMNS),
        first((i64)blockIdx.y * arguments.depth), end(min(first + arguments.depth, arguments.n)) {
    next_a = given.a + first * given.stride + m0 + threadIdx.x * (given.vectors ? 4 : 1);
    has_rows = m0 + FEW_ROWS <= given.n;
#pragma unroll
    for (int i = 0; i < kVCopies; ++i) {
      const int column = column_of(i);
      has_column[i] = column < COLUMNS && column0 + column < given.columns;
      next_v[i] = has_column[i] ? given.v + (column0 + column) * given.v_stride + first + feature_of() : given.v;
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
      copy_or_clear<4>(shared_address(&shared.v[stage][feature_of()][column_of(i)]), inside ? next_v[i] : given.v,
                       inside);
      next_v[i] += FEW_DEPTH;
    }
  }

  template <bool WHOLE>
  MERCER_METHOD void copy_rows(float (&to)[FEW_DEPTH][FEW_ROWS], i64 left) const {
    const float* from = next_a;
    const i64 rows = given.n - m0;  // that there are
    const int own = threadIdx.x * 4;
#pragma unroll
    for (int kk = 0; kk < FEW_DEPTH; ++kk, from += given.stride) {
      const bool inside = WHOLE || kk < left;
      if (given.vectors && (WHOLE || own + 4 <= rows || own >= rows)) {
        const bool has_own = inside && (WHOLE || own < rows);
        copy_or_clear<16>(shared_address(&to[kk][own]), has_own ? from : given.a, has_own);
        continue;
      }
      // One by one, at the edge the four that a vector would have.
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = given.vectors ? own + c : threadIdx.x + c * FEW_THREADS;
        const bool has_row = inside && (WHOLE || row < rows);
        copy_or_clear<4>(shared_address(&to[kk][row]), has_row ? from + (given.vectors ? c : c * FEW_THREADS) : given.a,
                         has_row);
      }
    }
  }

  // Zeros that come from shared memory, four at a time and in this order: so the compiler keeps sums where they and the
  // values of v lie in different register banks more often.
  MERCER_METHOD void start_at_zero(float (&sum)[kVectors * 4][kColumns]) const {
    if (threadIdx.x < 4) shared.zeros[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kVectors * 4; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; c += 4)
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(sum[i][c + 1]), "=f"(sum[i][c]), "=f"(sum[i][c + 3]), "=f"(sum[i][c + 2])
                     : "r"(shared_address(shared.zeros)));
  }

  MERCER_METHOD void run() {
    const int group = threadIdx.x % kGroups, row = threadIdx.x / kGroups * 4;
    float sum[kVectors * 4][kColumns];
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
        Pack<float, 4> a[kVectors], v[kColumns / 4];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) a[i] = *(const Pack<float, 4>*)&shared.a[stage][kk][i * kApart + row];
#pragma unroll
        for (int c = 0; c < kColumns / 4; ++c)
          v[c] = *(const Pack<float, 4>*)&shared.v[stage][kk][group * kColumns + c * 4];
#pragma unroll
        for (int i = 0; i < kVectors * 4; ++i)
#pragma unroll
          for (int c = 0; c < kColumns; ++c)
            sum[i][c] = __fmaf_rn(a[i / 4].value[i % 4], v[c / 4].value[c % 4], sum[i][c]);
      }
      free = stage;
      stage = stage + 1 == FEW_STAGES ? 0 : stage + 1;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const i64 column = column0 + group * kColumns + c;
      if (column >= given.columns) break;
      float* const to = given.sums + ((i64)blockIdx.y * given.columns + column) * given.sums_stride + m0 + row;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const float* const four = &sum[i * 4][c];
        if (m0 + i * kApart + row < given.sums_stride)  // a multiple of four
          *(Pack<float, 4>*)(to + i * kApart) = {four[0], four[kColumns], four[2 * kColumns], four[3 * kColumns]};
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

// A thread four rows of a column.
extern "C" __global__ void __launch_bounds__(FEW_THREADS) add_parts(const __grid_constant__ FewColumnsArguments a) {
  const i64 row = ((i64)blockIdx.x * FEW_THREADS + threadIdx.x) * 4, column = blockIdx.y;
  wait_for_kernel_ahead();
  if (row >= a.n) return;
  const float* from = a.sums + column * a.sums_stride + row;
  Pack<float, 4> sum = *(const Pack<float, 4>*)from;
#pragma unroll 4
  for (int part = 1; part < a.parts; ++part) {
    from += a.columns * a.sums_stride;
    const Pack<float, 4> next = *(const Pack<float, 4>*)from;
#pragma unroll
    for (int c = 0; c < 4; ++c) sum.value[c] += next.value[c];
  }
#pragma unroll
  for (int c = 0; c < 4; ++c)
    if (row + c < a.n) a.out[column * a.out_stride + row + c] = sum.value[c];
}
