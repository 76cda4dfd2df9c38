// A tile of pairs: accumulate over the features in registers, then the epilogue, then what the verb makes of the values.
//
//   acc[s][m][n] = fold over k of update(acc, x[k][·][m], z[k][·][n], w[k], …)
//   value        = epilogue(acc, row[m], col[n], i, j, …)
//   STORE        out[m][n] = value             PRODUCT  out[m][e] = sum over n of value * v[n][e]
//   FOLD         out[m] = max, argmin, … over n
//
//             TILE_N: thread tx owns THREAD_N columns, in groups of VECTOR, TILE_N / groups apart
//            ┌──────────────────────────────┐
//   TILE_M   │ warp: 4 x 8 threads          │     shared memory: STAGES x TILE_K features of both panels, copied
//            │ thread: THREAD_M x THREAD_N  │     asynchronously; partial sums promoted every `chunk` features
//            └──────────────────────────────┘
//
// A block owns one tile of m and one tile of n (STORE) or a range of them. Steps over (tile of n, slice of k) form one
// pipeline, so that it never drains between tiles. Configuration: the #defines and functions that codegen puts before.
#define THREADS_N (TILE_N / THREAD_N)
#define THREADS_M (TILE_M / THREAD_M)
#undef THREADS
#define THREADS (THREADS_M * THREADS_N)
#define VECTOR (16 / (int)sizeof(REAL))
#define VECTOR_M (THREAD_M < VECTOR ? THREAD_M : VECTOR)
#define VECTOR_N (THREAD_N < VECTOR ? THREAD_N : VECTOR)
// A slice holds the points' panels one behind the other, as they lie in memory: [panel][k][stream][point].
#define PANEL_X (TILE_M < MERCER_PANEL ? TILE_M : MERCER_PANEL)
#define PANEL_Z (TILE_N < MERCER_PANEL ? TILE_N : MERCER_PANEL)
#define SLICE_X (TILE_K * X_STREAMS * TILE_M)
#define SLICE_Z (TILE_K * Z_STREAMS * TILE_N)
#define SLICE (SLICE_X + SLICE_Z)
#define PROMOTED_SIZE (PROMOTES * TILE_M * TILE_N)
// Tiles that follow each other in a block have slices on their way while one is finished; a tile alone uses their memory.
#define ONE_TILE (CONSUMER == STORE && !MANY_TILES)
#define SCRATCH_PLACE (ONE_TILE ? 0 : STAGES * SLICE + (a.k > a.chunk ? PROMOTED_SIZE : 0))
// The number of features, where it is part of the kernel.
#define FEATURES (EXACT_FEATURES ? EXACT_FEATURES : a.k)

enum { STORE, PRODUCT, FOLD };
enum { FOLD_SUM, FOLD_MAX, FOLD_MIN, FOLD_ARGMAX, FOLD_ARGMIN, FOLD_LOGSUMEXP };

struct Position {
  int tx, ty;
};

MERCER_INLINE Position position() {
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  if (THREADS_N % 8 != 0 || THREADS_M % 4 != 0) return {tid % THREADS_N, tid / THREADS_N};
  const int warps_n = THREADS_N / 8 > 0 ? THREADS_N / 8 : 1;
  // Of every two lanes that read at once, one shares its rows and one its columns: a third fewer reads of shared memory
  // than with rows of eight lanes.
  return {warp % warps_n * 8 + lane % 16 / 2, warp / warps_n * 4 + lane / 16 * 2 + lane % 2};
}
MERCER_INLINE int row_of(const Position& at, int i) {
  return i / VECTOR_M * (TILE_M / (THREAD_M / VECTOR_M)) + at.ty * VECTOR_M + i % VECTOR_M;
}
MERCER_INLINE int col_of(const Position& at, int j) {
  return j / VECTOR_N * (TILE_N / (THREAD_N / VECTOR_N)) + at.tx * VECTOR_N + j % VECTOR_N;
}

// Where point p of feature kk lies in its side of a slice.
template <int STREAMS, int PANEL>
MERCER_INLINE int place_of(int kk, int s, int p) {
  return p / PANEL * (TILE_K * STREAMS * PANEL) + (kk * STREAMS + s) * PANEL + p % PANEL;
}

// `depth` features of a tile's points; what lies behind the last feature is never read.
template <int STREAMS, int POINTS, int PANEL>
MERCER_INLINE void copy_panels(REAL* to, const REAL* from, i64 panel_size, int depth) {
  constexpr int kRow = PANEL / VECTOR, kChunks = TILE_K * STREAMS * kRow;
#pragma unroll
  for (int panel = 0; panel < POINTS / PANEL; ++panel)
#pragma unroll
    for (int first = 0; first < kChunks; first += THREADS) {
      const int c = first + threadIdx.x, row = c / kRow, at = c % kRow * VECTOR;
      if (row < depth * STREAMS && (kChunks % THREADS == 0 || c < kChunks))
        copy_16(to + (panel * TILE_K * STREAMS + row) * PANEL + at,
                from + panel * panel_size + row * MERCER_PANEL + at);
    }
}

#if BULK
template <int STREAMS, int POINTS>
MERCER_INLINE void copy_panels_bulk(REAL* to, const REAL* from, i64 panel_size, int depth, u32 barrier) {
#pragma unroll
  for (int panel = 0; panel < POINTS / MERCER_PANEL; ++panel)
    copy_bulk(shared_address(to + panel * TILE_K * STREAMS * MERCER_PANEL), from + panel * panel_size,
              depth * STREAMS * MERCER_PANEL * sizeof(REAL), barrier);
}
#endif

// The block's place and the progress of its copies. In shared memory: registers are for accumulators.
struct Block {
  const REAL *x, *z;            // panels of the tile of m; panels of all n
  i64 x_panel, z_panel;         // elements of a panel
  i64 m0, x_set, z_set, item, group, column;
  int first_tile, end_tile;
  // Slices still to be copied; where the next one comes from and goes to.
  int left, tile, copy_k, stage;
  const REAL *next_x, *next_z;
};

MERCER_INLINE void find_sources(Block& b) {
  const i64 n0 = (i64)b.tile * TILE_N;
  b.next_x = b.x;
  b.next_z = b.z + n0 / MERCER_PANEL * b.z_panel + n0 % MERCER_PANEL;
}

// Blocks are numbered so that eight tiles of m go together through n: those that run at the same time share panels in
// the second-level cache.
MERCER_INLINE void find_place(Block& b, const PairArguments& a) {
  const u32 tiles_m = (u32)a.tiles_m, columns = (u32)(ONE_TILE ? a.tiles_n : a.splits);
  u32 block = blockIdx.x;
  b.group = 0;
  if (a.groups.count > 0) {
    b.group = block / (tiles_m * columns);
    block %= tiles_m * columns;
  }
  const u32 strip = block / (8 * columns), in_strip = block % (8 * columns);
  const u32 height = tiles_m - strip * 8 < 8 ? tiles_m - strip * 8 : 8;
  b.m0 = (i64)(strip * 8 + in_strip % height) * TILE_M;
  b.column = in_strip / height;
  b.first_tile = (int)(ONE_TILE ? b.column : a.tiles_n * b.column / a.splits);
  b.end_tile = (int)(ONE_TILE ? b.column + 1 : a.tiles_n * (b.column + 1) / a.splits);
  // Nothing of a symmetric matrix lies below the diagonal.
  if (CONSUMER == STORE && a.symmetric && b.first_tile < b.m0 / TILE_N) b.first_tile = (int)(b.m0 / TILE_N);
  b.x_set = batch_offset(a.groups, a.x_step, b.group);
  b.z_set = batch_offset(a.groups, a.z_step, b.group);
  b.item = batch_offset(a.groups, a.item_step, b.group);
  b.x_panel = (i64)a.k * X_STREAMS * MERCER_PANEL;
  b.z_panel = (i64)a.k * Z_STREAMS * MERCER_PANEL;
  b.x = (const REAL*)a.x + (b.x_set * (a.x_ld / MERCER_PANEL) + b.m0 / MERCER_PANEL) * b.x_panel + b.m0 % MERCER_PANEL;
  b.z = (const REAL*)a.z + b.z_set * (a.z_ld / MERCER_PANEL) * b.z_panel;
  b.left = b.first_tile < b.end_tile ? (b.end_tile - b.first_tile) * ((FEATURES + TILE_K - 1) / TILE_K) : 0;
  b.tile = b.first_tile;
  b.copy_k = b.stage = 0;
  find_sources(b);
}

// Asks for the next slice. BULK: one thread, the copy engine; a barrier counts the bytes in.
MERCER_INLINE void copy_slice(Block& b, REAL* shared, int k, u64* full) {
  const int depth = k - b.copy_k < TILE_K ? k - b.copy_k : TILE_K;
  REAL* slice = shared + b.stage * SLICE;
  const REAL *x = b.next_x, *z = b.next_z;
#if BULK
  const u32 barrier = shared_address(full + b.stage);
  barrier_expect(barrier, depth * (X_STREAMS * TILE_M + Z_STREAMS * TILE_N) * sizeof(REAL));
  copy_panels_bulk<X_STREAMS, TILE_M>(slice, x, b.x_panel, depth, barrier);
  copy_panels_bulk<Z_STREAMS, TILE_N>(slice + SLICE_X, z, b.z_panel, depth, barrier);
#else
  copy_panels<X_STREAMS, TILE_M, PANEL_X>(slice, x, b.x_panel, depth);
  copy_panels<Z_STREAMS, TILE_N, PANEL_Z>(slice + SLICE_X, z, b.z_panel, depth);
#endif
  b.copy_k += TILE_K;
  b.next_x = x + TILE_K * X_STREAMS * MERCER_PANEL;
  b.next_z = z + TILE_K * Z_STREAMS * MERCER_PANEL;
  if (b.copy_k >= k) {
    b.copy_k = 0;
    ++b.tile;
    find_sources(b);
  }
  if (++b.stage == STAGES) b.stage = 0;
  --b.left;
}

struct Accumulators {
  REAL value[THREAD_M][THREAD_N][STATES + (STATES == 0)];
};

#if ZERO_IDENTITY
// Zeros that come from shared memory, four at a time and in this order, make the compiler keep the accumulators in
// register banks where neighbours do not collide: 1 to 3 % of the time.
MERCER_INLINE void start_at_zero(Accumulators& acc, u32 zeros) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j + 3 < THREAD_N; j += 4)
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(acc.value[i][j + 1][0]), "=f"(acc.value[i][j][0]), "=f"(acc.value[i][j + 3][0]),
                     "=f"(acc.value[i][j + 2][0])
                   : "r"(zeros));
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = THREAD_N / 4 * 4; j < THREAD_N; ++j) acc.value[i][j][0] = 0;
}
#endif

// Parameters of a batch item; there is one row for all of them where they came by value.
MERCER_INLINE const REAL* params_of(const PairArguments& a, i64 item) {
  if (NUMBERS) return (const REAL*)a.numbers;
  return a.params ? (const REAL*)a.params + item * a.param_count : (const REAL*)a.numbers;
}

struct PointValues {
  REAL row[THREAD_M][ROW_SLOTS + 1], col[THREAD_N][COL_SLOTS + 1];
  REAL i[THREAD_M], j[THREAD_N];
};

#if MIXED == 1
// Pairs of a thread whose sums are unsigned integers, kept as bits: five in eight, so that both sets of pipes are busy.
// With the additions in columns 1, 2 and 5 fewest operands share a register bank; others cost 2 to 4 ms of 52.
MERCER_INLINE constexpr bool on_integers(int i, int j) {
  const int place = (i * THREAD_N + j) % 8;
  return place != 1 && place != 2 && place != 5;
}
MERCER_INLINE void add_difference(float& sum, float x, float z) {
  u32 bits = bits_of(sum);
  asm("sad.u32 %0, %1, %2, %0;" : "+r"(bits) : "r"(bits_of(x)), "r"(bits_of(z)));
  sum = float_of(bits);
}
// All sums as floats. Those of a chunk fit: 512 differences below 2^23.
MERCER_INLINE void settle(Accumulators& acc) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j)
      if (on_integers(i, j)) acc.value[i][j][0] = (float)bits_of(acc.value[i][j][0]);
}
#endif

MERCER_INLINE void accumulate(Accumulators& acc, const REAL* slice, int kk, REAL w, const PointValues& points,
                              const REAL* params, REAL features, const Position& at) {
  REAL x[THREAD_M][X_STREAMS + (X_STREAMS == 0)], z[THREAD_N][Z_STREAMS + (Z_STREAMS == 0)];
#pragma unroll
  for (int s = 0; s < X_STREAMS; ++s)
#pragma unroll
    for (int i = 0; i < THREAD_M; i += VECTOR_M) {
      const Pack<REAL, VECTOR_M> pack =
          *(const Pack<REAL, VECTOR_M>*)(slice + place_of<X_STREAMS, PANEL_X>(kk, s, row_of(at, i)));
#pragma unroll
      for (int c = 0; c < VECTOR_M; ++c) x[i + c][s] = pack.value[c];
    }
#pragma unroll
  for (int s = 0; s < Z_STREAMS; ++s)
#pragma unroll
    for (int j = 0; j < THREAD_N; j += VECTOR_N) {
      const Pack<REAL, VECTOR_N> pack =
          *(const Pack<REAL, VECTOR_N>*)(slice + SLICE_X + place_of<Z_STREAMS, PANEL_Z>(kk, s, col_of(at, j)));
#pragma unroll
      for (int c = 0; c < VECTOR_N; ++c) z[j + c][s] = pack.value[c];
    }
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
#if ALTERNATIVE_EIGHTHS
      // A checkerboard: neighbours in time take different pipes.
      if ((j + 3 * i) * ALTERNATIVE_EIGHTHS % 8 + ALTERNATIVE_EIGHTHS >= 8) {
        update_alternative(acc.value[i][j], x[i], z[j], w, points.row[i], points.col[j], params, points.i[i],
                           points.j[j], features);
        continue;
      }
#endif
#if MIXED == 1
      if (on_integers(i, j)) {
        add_difference(acc.value[i][j][0], x[i][0], z[j][0]);
        continue;
      }
#endif
      update(acc.value[i][j], x[i], z[j], w, points.row[i], points.col[j], params, points.i[i], points.j[j], features);
    }
}

#if PROMOTES
// Promoted sums stay in shared memory, each thread at its own place: [state][pair][thread].
MERCER_INLINE void promote(Accumulators& acc, REAL* promoted, bool first, bool last) {
  int slot = 0;
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    if (!is_promoted(s)) continue;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_N; j += VECTOR_N) {
        Pack<REAL, VECTOR_N>& sum =
            *(Pack<REAL, VECTOR_N>*)(promoted + ((slot * THREAD_M + i) * THREAD_N + j) * THREADS + threadIdx.x * VECTOR_N);
        Pack<REAL, VECTOR_N> total;
        if (!first) total = sum;
#pragma unroll
        for (int c = 0; c < VECTOR_N; ++c) {
          REAL& value = acc.value[i][j + c][s];
          total.value[c] = first ? value : total.value[c] + value;
          value = last ? total.value[c] : (REAL)0;
        }
        if (!last) sum = total;
      }
    ++slot;
  }
}
#endif

MERCER_INLINE void load_row(REAL (&row)[ROW_SLOTS + 1], const PairArguments& a, i64 x_set, i64 m) {
#pragma unroll
  for (int s = 0; s < ROW_SLOTS; ++s) row[s] = ((const REAL*)a.row)[(x_set * ROW_SLOTS + s) * a.x_ld + m];
}
MERCER_INLINE void load_col(REAL (&col)[COL_SLOTS + 1], const PairArguments& a, i64 z_set, i64 n) {
#pragma unroll
  for (int s = 0; s < COL_SLOTS; ++s) col[s] = ((const REAL*)a.col)[(z_set * COL_SLOTS + s) * a.z_ld + n];
}
MERCER_INLINE void load_points(PointValues& points, const PairArguments& a, i64 x_set, i64 z_set, i64 m0, i64 n0,
                               const Position& at) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    load_row(points.row[i], a, x_set, m0 + row_of(at, i));
    points.i[i] = (REAL)(m0 + row_of(at, i) + a.i_offset);
  }
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) {
    load_col(points.col[j], a, z_set, n0 + col_of(at, j));
    points.j[j] = (REAL)(n0 + col_of(at, j) + a.j_offset);
  }
}

// Where a tile stands: what its epilogue reads besides the accumulators.
struct TilePlace {
  i64 m0, n0, x_set, z_set;
};

#if MIXED == 1
static __device__ __noinline__ void list_pair(const PairArguments& a, i64 m, i64 n) {
  if (m >= a.m || n >= a.n || (a.symmetric && n < m)) return;
  const u32 at = atomicAdd(&a.mixed->listed, 1u);
  if (at < a.mixed->capacity) a.repairs[at] = (u64)m << 32 | (u64)n;
}

// Sums of integers become sums of values; those that may have lost too much are listed. A point is not listed with itself.
MERCER_INLINE void to_values(Accumulators& acc, const PairArguments& a, const TilePlace& place, const Position& at) {
  const float step = a.mixed->step;
  float z_errors[THREAD_N];
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) z_errors[j] = a.z_errors[place.n0 + col_of(at, j)];
  u64 doubtful = 0;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    const float x_error = a.x_errors[place.m0 + row_of(at, i)];
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      float& sum = acc.value[i][j][0];
      sum *= step;
      if (is_doubtful(x_error + z_errors[j], sum)) doubtful |= (u64)1 << (i * THREAD_N + j);
    }
  }
  for (; doubtful; doubtful &= doubtful - 1) {
    const int pair = __ffsll((long long)doubtful) - 1;
    const i64 m = place.m0 + row_of(at, pair / THREAD_N), n = place.n0 + col_of(at, pair % THREAD_N);
    if (a.x != a.z || m != n) list_pair(a, m, n);
  }
}
#endif

// The pairs one after the other, in a loop that stays a loop: a long epilogue would fill the instruction cache, and the
// compiler's time, 64 times over. The accumulators pass through shared memory, some rows at a time, each thread at its
// own place: [row][column][state][thread].
#define SCRATCH_ROW (THREAD_N * (STATES + (STATES == 0)) * THREADS)
#if CONSUMER == 0 && !MANY_TILES
#define SCRATCH_ROWS (STAGES * SLICE / SCRATCH_ROW > THREAD_M ? THREAD_M : STAGES * SLICE / SCRATCH_ROW > 1 ? STAGES * SLICE / SCRATCH_ROW : 1)
#else
#define SCRATCH_ROWS 1
#endif

// Accumulators of the rows `first` … into the thread's own places.
MERCER_INLINE void to_scratch(const Accumulators& acc, int first, REAL* own) {
#pragma unroll
  for (int i = 0; i < SCRATCH_ROWS; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j)
#pragma unroll
      for (int s = 0; s < STATES; ++s)
        if (first + i < THREAD_M)
          own[((i * THREAD_N + j) * (STATES + (STATES == 0)) + s) * THREADS] = acc.value[first + i][j][s];
}

// The epilogue of one pair whose accumulators lie in scratch memory.
MERCER_INLINE void epilogue_of(REAL (&outputs)[OUTPUTS], const REAL* own, int pair, i64 m, i64 n,
                               const PairArguments& a, const REAL* params, const TilePlace& place) {
  REAL row[ROW_SLOTS + 1], col[COL_SLOTS + 1], states[STATES + (STATES == 0)];
  load_row(row, a, place.x_set, m);
  load_col(col, a, place.z_set, n);
#pragma unroll
  for (int s = 0; s < STATES; ++s) states[s] = own[(pair * (STATES + (STATES == 0)) + s) * THREADS];
  epilogue(outputs, states, row, col, params, (REAL)(m + a.i_offset), (REAL)(n + a.j_offset), (REAL)a.features);
}

// ---- STORE -----------------------------------------------------------------------------------------------------------
#if CONSUMER == 0
// Rows `first` … of the thread's pairs, one after the other, with all that can be asked of a store: edges, any strides,
// the mirrored half. A function of its own: its registers are not the fast path's.
static __device__ __noinline__ void store_rows(const PairArguments& a, const REAL* params, OUT* out, i64 m0, i64 n0,
                                               i64 x_set, i64 z_set, const REAL* own, int first) {
  const TilePlace place{m0, n0, x_set, z_set};
  // Of a symmetric matrix, pairs on and above the diagonal are kept; whatever is stored is mirrored.
  const bool mirror = a.symmetric, diagonal = mirror && place.n0 < place.m0 + TILE_M;
#pragma unroll 1
  for (int pair = 0; pair < SCRATCH_ROWS * THREAD_N && first + pair / THREAD_N < THREAD_M; ++pair) {
    const i64 m = place.m0 + row_of(position(), first + pair / THREAD_N);
    const i64 n = place.n0 + col_of(position(), pair % THREAD_N);
    if (m >= a.m || n >= a.n || (diagonal && n < m)) continue;
    REAL outputs[OUTPUTS];
    epilogue_of(outputs, own, pair, m, n, a, params, place);
#pragma unroll
    for (int p = 0; p < OUTPUTS; ++p) {
      OUT value;
      convert(value, outputs[p]);
      out[p * a.out_plane + m * a.out_row + n * a.out_col] = value;
      if (mirror && n != m) out[p * a.out_plane + n * a.out_row + m * a.out_col] = value;
    }
  }
}

MERCER_INLINE void store_tile(const Accumulators& acc, const PairArguments& a, const REAL* params, OUT* out,
                              const TilePlace& place, REAL* scratch) {
#if !LONG_EPILOGUE
  const bool whole = !a.symmetric && place.m0 + TILE_M <= a.m && place.n0 + TILE_N <= a.n;
  if (whole && a.out_col == 1 && a.out_row % VECTOR_N == 0 && (u64)out % (VECTOR_N * sizeof(OUT)) == 0 &&
      (OUTPUTS == 1 || a.out_plane % VECTOR_N == 0)) {
    const Position at = position();
    OUT* row = out + (place.m0 + row_of(at, 0)) * a.out_row + place.n0 + col_of(at, 0);
    REAL own[PARAMS + 1];
#pragma unroll
    for (int p = 0; p < PARAMS; ++p) own[p] = params[p];
    PointValues points;
    load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, position());
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
      if (i > 0) row += (row_of(at, i) - row_of(at, i - 1)) * a.out_row;
#pragma unroll
      for (int j0 = 0; j0 < THREAD_N; j0 += VECTOR_N) {
        Pack<OUT, VECTOR_N> pack[OUTPUTS];
#pragma unroll
        for (int c = 0; c < VECTOR_N; ++c) {
          REAL outputs[OUTPUTS];
          epilogue(outputs, acc.value[i][j0 + c], points.row[i], points.col[j0 + c], own, points.i[i],
                   points.j[j0 + c], (REAL)a.features);
#pragma unroll
          for (int p = 0; p < OUTPUTS; ++p) convert(pack[p].value[c], outputs[p]);
        }
#pragma unroll
        for (int p = 0; p < OUTPUTS; ++p)
          store_pack(row + p * a.out_plane + (col_of(at, j0) - col_of(at, 0)), pack[p]);
      }
    }
    return;
  }
#endif
  // The slices are done with: their memory is scratch.
  if (ONE_TILE) __syncthreads();
#pragma unroll
  for (int first = 0; first < THREAD_M; first += SCRATCH_ROWS) {
    to_scratch(acc, first, scratch + threadIdx.x);
    store_rows(a, params, out, place.m0, place.n0, place.x_set, place.z_set, scratch + threadIdx.x, first);
  }
}
#else
// Values of the tile for a fold over n.
MERCER_INLINE void tile_values(REAL (&values)[THREAD_M][THREAD_N], const Accumulators& acc, const PairArguments& a,
                               const REAL* params, const TilePlace& place, REAL* scratch) {
#if LONG_EPILOGUE
  // A row's values take the places of its first states.
  REAL* own = scratch + threadIdx.x;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    to_scratch(acc, i, own);
#pragma unroll 1
    for (int j = 0; j < THREAD_N; ++j) {
      REAL outputs[OUTPUTS];
      epilogue_of(outputs, own, j, place.m0 + row_of(position(), i), place.n0 + col_of(position(), j), a, params, place);
      own[j * (STATES + (STATES == 0)) * THREADS] = outputs[0];
    }
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) values[i][j] = own[j * (STATES + (STATES == 0)) * THREADS];
  }
#else
  PointValues points;
  load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, position());
  REAL numbers[PARAMS + 1];
#pragma unroll
  for (int p = 0; p < PARAMS; ++p) numbers[p] = params[p];
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      REAL outputs[OUTPUTS];
      epilogue(outputs, acc.value[i][j], points.row[i], points.col[j], numbers, points.i[i], points.j[j], (REAL)a.features);
      values[i][j] = outputs[0];
    }
#endif
}
#endif

// ---- PRODUCT: sums over n of value * v[n][e], COLUMNS of v at a time -------------------------------------------------
#if CONSUMER == 1
// With several columns, the eight threads of a row group end up with one row's sum each (a reduce-scatter).
#define SCATTERED (COLUMNS > 1)
struct Fold {
  REAL sum[SCATTERED ? 1 : THREAD_M][COLUMNS];
};
MERCER_INLINE void start(Fold& fold) {
#pragma unroll
  for (int i = 0; i < (SCATTERED ? 1 : THREAD_M); ++i)
#pragma unroll
    for (int e = 0; e < COLUMNS; ++e) fold.sum[i][e] = 0;
}

// rows[THREAD_M] of eight threads → the sum of row `scattered_row` in each thread.
MERCER_INLINE REAL reduce_scatter(REAL (&rows)[THREAD_M]) {
  const int lane = threadIdx.x % 32;
  int left = THREAD_M;
#pragma unroll
  for (int offset = 8; offset >= 2; offset /= 2) {
    if (left > 1) {
      left /= 2;
      const bool upper = lane & offset;
#pragma unroll
      for (int r = 0; r < left; ++r) {
        const REAL mine = upper ? rows[r + left] : rows[r], other = upper ? rows[r] : rows[r + left];
        rows[r] = mine + __shfl_xor_sync(0xffffffffu, other, offset);
      }
    } else {
      rows[0] += __shfl_xor_sync(0xffffffffu, rows[0], offset);
    }
  }
  return rows[0];
}
MERCER_INLINE int scattered_row() {
  const int lane = threadIdx.x % 32;
  int row = 0, left = THREAD_M;
  for (int offset = 8; offset >= 2 && left > 1; offset /= 2) {
    left /= 2;
    if (lane & offset) row += left;
  }
  return row;
}
MERCER_INLINE bool writes_scattered_row() {
  const int lane = threadIdx.x % 16 / 2;
  return THREAD_M >= 8 || lane % (8 / (THREAD_M < 8 ? THREAD_M : 8)) == 0;
}

MERCER_INLINE void fold_tile(Fold& fold, const Accumulators& acc, const PairArguments& a, const REAL* params,
                             const REAL* v, const TilePlace& place, REAL* scratch) {
  const Position at = position();
  const i64 n0 = place.n0;
  const bool whole = n0 + TILE_N <= a.n;
  REAL values[THREAD_M][THREAD_N];
  tile_values(values, acc, a, params, place, scratch);
  if (!whole) {
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      if (n0 + col_of(at, j) < a.n) continue;
#pragma unroll
      for (int i = 0; i < THREAD_M; ++i) values[i][j] = 0;
    }
  }
#pragma unroll
  for (int e = 0; e < COLUMNS; ++e) {
    // Columns that there are not repeat the last one; nobody stores them.
    const REAL* column = v + (e < a.columns ? e : a.columns - 1) * a.v_ld + n0;
    REAL weights[THREAD_N];
#pragma unroll
    for (int j = 0; j < THREAD_N; j += VECTOR_N) {
      const Pack<REAL, VECTOR_N> pack = *(const Pack<REAL, VECTOR_N>*)(column + col_of(at, j));
#pragma unroll
      for (int c = 0; c < VECTOR_N; ++c) weights[j + c] = pack.value[c];
    }
    if (!whole) {
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j)
        if (n0 + col_of(at, j) >= a.n) weights[j] = 0;
    }
    REAL rows[THREAD_M];
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
      rows[i] = values[i][0] * weights[0];
#pragma unroll
      for (int j = 1; j < THREAD_N; ++j) rows[i] = mul_add(values[i][j], weights[j], rows[i]);
      if (!SCATTERED) fold.sum[i][e] += rows[i];
    }
    if (SCATTERED) fold.sum[0][e] += reduce_scatter(rows);
  }
}

MERCER_INLINE void finish(Fold& fold, const PairArguments& a, REAL* shared, i64 m0, i64 split, i64 group,
                          const Position& at) {
  REAL* partial = (REAL*)a.out + (group * a.splits + split) * a.columns * a.partial_ld;
  const int strips = THREADS_N / 8, strip = at.tx / 8;
#pragma unroll
  for (int e = 0; e < COLUMNS; ++e) {
    if (e >= a.columns) break;
    __syncthreads();
    if (SCATTERED) {
      if (writes_scattered_row()) shared[strip * TILE_M + row_of(at, scattered_row())] = fold.sum[0][e];
    } else {
#pragma unroll
      for (int i = 0; i < THREAD_M; ++i) {
        REAL sum = fold.sum[SCATTERED ? 0 : i][e];
        for (int offset = 8; offset >= 2; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        if (at.tx % 8 == 0) shared[strip * TILE_M + row_of(at, i)] = sum;
      }
    }
    __syncthreads();
    for (int r = threadIdx.x; r < TILE_M; r += THREADS) {
      REAL sum = shared[r];
      for (int s = 1; s < strips; ++s) sum += shared[s * TILE_M + r];
      if (m0 + r < a.m) partial[e * a.partial_ld + m0 + r] = sum;
    }
  }
}
#endif

// ---- FOLD: one state a row ---------------------------------------------------------------------------------------------
#if CONSUMER == 2
struct Fold {
  FoldState row[THREAD_M];
};
MERCER_INLINE void start(Fold& fold) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) fold.row[i] = empty_state();
}
MERCER_INLINE void fold_tile(Fold& fold, const Accumulators& acc, const PairArguments& a, const REAL* params,
                             const REAL*, const TilePlace& place, REAL* scratch) {
  REAL values[THREAD_M][THREAD_N];
  tile_values(values, acc, a, params, place, scratch);
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    // The tile's values first: long sums in order would lose the contract.
    FoldState tile = empty_state();
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      const i64 n = place.n0 + col_of(position(), j);
      if (n < a.n) merge(tile, state_of(values[i][j], n));
    }
    merge(fold.row[i], tile);
  }
}
MERCER_INLINE void finish(Fold& fold, const PairArguments& a, REAL* shared, i64 m0, i64 split, i64 group,
                          const Position& at) {
  FoldState* states = (FoldState*)shared;
  const i64 first = (group * a.splits + split) * a.partial_ld;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    __syncthreads();
    states[at.ty * THREADS_N + at.tx] = fold.row[i];
    __syncthreads();
    if (at.tx == 0) {
      FoldState state = states[at.ty * THREADS_N];
      for (int t = 1; t < THREADS_N; ++t) merge(state, states[at.ty * THREADS_N + t]);
      const i64 m = m0 + row_of(at, i);
      if (m < a.m) ((FoldState*)a.out)[first + m] = state;
    }
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) pair_tile(const __grid_constant__ PairArguments a) {
  extern __shared__ __align__(128) unsigned char shared_bytes[];
  REAL* const shared = (REAL*)shared_bytes;
  const Position at = position();
  const REAL features = (REAL)a.features;
#if MIXED
  // One thread asks: the answer changes when the list of repairs overflows.
  __shared__ bool is_wanted;
  if (threadIdx.x == 0) is_wanted = a.mixed == nullptr || mixed_stands(*a.mixed) == (MIXED == 1);
  __syncthreads();
  if (!is_wanted) return;
#endif
#if ZERO_IDENTITY
  __shared__ __align__(16) float zeros[4];
  if (threadIdx.x < 4) zeros[threadIdx.x] = 0;
#endif
#if ALTERNATIVE_EIGHTHS
  load_power_table();
#endif
#if BULK
  // A slice's place is filled again one step after it was read, so that no warp waits for the slowest.
  __shared__ __align__(8) u64 full[STAGES], empty[STAGES];
  __shared__ Block block;
  if (threadIdx.x == 0) {
    find_place(block, a);
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(shared_address(full + s), 1);
      barrier_init(shared_address(empty + s), THREADS / 32);
    }
    barrier_init_done();
#pragma unroll 1
    for (int s = 0; s < STAGES && block.left > 0; ++s) copy_slice(block, shared, FEATURES, full);
  }
  __syncthreads();
  bool first_step = true;
  u32 parity = 0;
#else
  Block block;
  find_place(block, a);
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (block.left > 0) copy_slice(block, shared, FEATURES, nullptr);
    commit_copies();
  }
  __syncthreads();
#endif
#if CONSUMER != 0
  Fold fold;
  start(fold);
#if CONSUMER == 1
  const REAL* const v = (const REAL*)a.v + batch_offset(a.groups, a.v_step, block.group);
#else
  const REAL* const v = nullptr;
#endif
#endif
  int stage = 0;
  const int end_tile = block.end_tile;
  for (int tile = block.first_tile; tile < end_tile; ++tile) {
    Accumulators acc;
#if ZERO_IDENTITY
    start_at_zero(acc, shared_address(zeros));
#else
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j) identity(acc.value[i][j]);
#endif
    PointValues points;
    const REAL* params = nullptr;
#if UPDATE_READS_POINTS
    load_points(points, a, block.x_set, block.z_set, block.m0, (i64)tile * TILE_N, at);
#endif
#if UPDATE_READS_PARAMS
    params = params_of(a, block.item);
#endif
#if PROMOTES
    bool promoted_before = false;
    REAL* const promoted = shared + STAGES * SLICE;
#endif
    // Two loops: with promotion inside the inner one, accumulators would not stay in their registers.
    for (int k0 = 0; k0 < FEATURES;) {
      const int chunk_end = PROMOTES && a.chunk < FEATURES - k0 ? k0 + a.chunk : FEATURES;
#pragma unroll 1
      for (; k0 < chunk_end; k0 += TILE_K) {
#if BULK
        barrier_wait(shared_address(full + stage), parity);
#else
        wait_copies<STAGES - 2>();
        __syncthreads();
        if (block.left > 0) copy_slice(block, shared, FEATURES, nullptr);
        commit_copies();
#endif
        const REAL* slice = shared + stage * SLICE;
        const REAL* w = (const REAL*)a.w + k0;
        if (EXACT_FEATURES || k0 + TILE_K <= FEATURES) {
#pragma unroll UNROLL
          for (int kk = 0; kk < TILE_K; ++kk)
            accumulate(acc, slice, kk, READS_WEIGHTS ? w[kk] : (REAL)0, points, params, features, at);
        } else {
#pragma unroll 1
          for (int kk = 0; kk < FEATURES - k0; ++kk)
            accumulate(acc, slice, kk, READS_WEIGHTS ? w[kk] : (REAL)0, points, params, features, at);
        }
#if BULK
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(empty + stage));
        if (threadIdx.x == 0 && !first_step && block.left > 0) {
          barrier_wait(shared_address(empty + (stage == 0 ? STAGES - 1 : stage - 1)), stage == 0 ? parity ^ 1 : parity);
          copy_slice(block, shared, FEATURES, full);
        }
        first_step = false;
        if (stage == STAGES - 1) parity ^= 1;
#endif
        if (++stage == STAGES) stage = 0;
      }
#if PROMOTES
      if (k0 < FEATURES) {
#if MIXED == 1
        settle(acc);
#endif
        promote(acc, promoted, !promoted_before, false);
        promoted_before = true;
      }
#endif
    }
#if MIXED == 1
    settle(acc);
#endif
#if PROMOTES
    if (promoted_before) promote(acc, promoted, false, true);
#endif
#if BYTES
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j) acc.value[i][j][0] = (float)bits_of(acc.value[i][j][0]);
#endif
    const TilePlace place{block.m0, (i64)tile * TILE_N, block.x_set, block.z_set};
#if MIXED == 1
    to_values(acc, a, place, at);
#endif
#if CONSUMER == 0
    OUT* out = (OUT*)a.out + batch_offset(a.groups, a.out_step, block.group);
#if NUMBERS
    store_tile(acc, a, params_of(a, 0), out, place, shared + SCRATCH_PLACE);
#else
#pragma unroll 1
    for (i64 member = 0; member < a.member_count; ++member)
      store_tile(acc, a, params_of(a, block.item + batch_offset(a.members, a.member_item_step, member)),
                 out + batch_offset(a.members, a.member_out_step, member), place, shared + SCRATCH_PLACE);
#endif
#else
    fold_tile(fold, acc, a, params_of(a, block.item), v, place, shared + SCRATCH_PLACE);
#endif
  }
#if CONSUMER != 0
  finish(fold, a, shared, block.m0, block.column, block.group, at);
#endif
}
