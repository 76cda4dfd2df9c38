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
#define THREADS (THREADS_M * THREADS_N)
#define VECTOR (16 / (int)sizeof(REAL))
#define VECTOR_M (THREAD_M < VECTOR ? THREAD_M : VECTOR)
#define VECTOR_N (THREAD_N < VECTOR ? THREAD_N : VECTOR)
#define SLICE_X (TILE_K * X_STREAMS * TILE_M)
#define SLICE_Z (TILE_K * Z_STREAMS * TILE_N)
#define SLICE (SLICE_X + SLICE_Z)

enum { STORE, PRODUCT, FOLD };
enum { FOLD_SUM, FOLD_MAX, FOLD_MIN, FOLD_ARGMAX, FOLD_ARGMIN, FOLD_LOGSUMEXP };

struct Position {
  int tx, ty;
};

MERCER_INLINE Position position() {
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  if (THREADS_N % 8 != 0 || THREADS_M % 4 != 0) return {tid % THREADS_N, tid / THREADS_N};
  const int warps_n = THREADS_N / 8 > 0 ? THREADS_N / 8 : 1;
  return {warp % warps_n * 8 + lane % 8, warp / warps_n * 4 + lane / 8};
}
MERCER_INLINE int row_of(const Position& at, int i) {
  return i / VECTOR_M * (TILE_M / (THREAD_M / VECTOR_M)) + at.ty * VECTOR_M + i % VECTOR_M;
}
MERCER_INLINE int col_of(const Position& at, int j) {
  return j / VECTOR_N * (TILE_N / (THREAD_N / VECTOR_N)) + at.tx * VECTOR_N + j % VECTOR_N;
}

// Rows of a slice are contiguous in memory; those behind the last feature are left alone and never read.
template <int STREAMS, int POINTS>
MERCER_INLINE void copy_panel(REAL* to, const REAL* from, i64 ld, int depth) {
  constexpr int kRow = POINTS / VECTOR, kChunks = TILE_K * STREAMS * kRow;
#pragma unroll
  for (int first = 0; first < kChunks; first += THREADS) {
    const int c = first + threadIdx.x, row = c / kRow, at = c % kRow * VECTOR;
    if (row < depth * STREAMS && (kChunks % THREADS == 0 || c < kChunks))
      copy_16(to + row * POINTS + at, from + row * ld + at);
  }
}

struct Accumulators {
  REAL value[THREAD_M][THREAD_N][STATES + (STATES == 0)];
};

struct PointValues {
  REAL row[THREAD_M][ROW_SLOTS + 1], col[THREAD_N][COL_SLOTS + 1];
};

MERCER_INLINE void accumulate(Accumulators& acc, const REAL* slice, int kk, REAL w, const PointValues& points,
                              const REAL* params, REAL features, const Position& at) {
  REAL x[THREAD_M][X_STREAMS], z[THREAD_N][Z_STREAMS];
#pragma unroll
  for (int s = 0; s < X_STREAMS; ++s)
#pragma unroll
    for (int i = 0; i < THREAD_M; i += VECTOR_M) {
      const Pack<REAL, VECTOR_M> pack =
          *(const Pack<REAL, VECTOR_M>*)(slice + (kk * X_STREAMS + s) * TILE_M + row_of(at, i));
#pragma unroll
      for (int c = 0; c < VECTOR_M; ++c) x[i + c][s] = pack.value[c];
    }
#pragma unroll
  for (int s = 0; s < Z_STREAMS; ++s)
#pragma unroll
    for (int j = 0; j < THREAD_N; j += VECTOR_N) {
      const Pack<REAL, VECTOR_N> pack =
          *(const Pack<REAL, VECTOR_N>*)(slice + SLICE_X + (kk * Z_STREAMS + s) * TILE_N + col_of(at, j));
#pragma unroll
      for (int c = 0; c < VECTOR_N; ++c) z[j + c][s] = pack.value[c];
    }
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j)
      update(acc.value[i][j], x[i], z[j], w, points.row[i], points.col[j], params, features);
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
  for (int i = 0; i < THREAD_M; ++i) load_row(points.row[i], a, x_set, m0 + row_of(at, i));
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) load_col(points.col[j], a, z_set, n0 + col_of(at, j));
}

// Where a tile stands: what its epilogue reads besides the accumulators.
struct TilePlace {
  i64 m0, n0, x_set, z_set;
  Position at;
};

// The pairs one after the other, in a loop that stays a loop: a long epilogue would fill the instruction cache, and the
// compiler's time, 64 times over. The accumulators pass through local memory. body(i, j, outputs of VECTOR_N pairs).
template <class Body>
MERCER_INLINE void for_each_pair(const Accumulators& acc, const PairArguments& a, const REAL* params,
                                 const TilePlace& place, Body body) {
  Accumulators local = acc;
#pragma unroll 1
  for (int i = 0; i < THREAD_M; ++i) {
    const i64 m = place.m0 + row_of(place.at, i);
    REAL row[ROW_SLOTS + 1];
    load_row(row, a, place.x_set, m);
#pragma unroll 1
    for (int j = 0; j < THREAD_N; ++j) {
      const i64 n = place.n0 + col_of(place.at, j);
      REAL col[COL_SLOTS + 1], outputs[OUTPUTS];
      load_col(col, a, place.z_set, n);
      epilogue(outputs, local.value[i][j], row, col, params, (REAL)(m + a.i_offset), (REAL)(n + a.j_offset),
               (REAL)a.k);
      body(i, j, m, n, outputs);
    }
  }
}

#if !LONG_EPILOGUE
// The same, unrolled: everything stays in registers.
template <class Body>
MERCER_INLINE void for_each_pair_unrolled(const Accumulators& acc, const PairArguments& a, const REAL* params,
                                          const TilePlace& place, Body body) {
  PointValues points;
  load_points(points, a, place.x_set, place.z_set, place.m0, place.n0, place.at);
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) {
      const i64 m = place.m0 + row_of(place.at, i), n = place.n0 + col_of(place.at, j);
      REAL outputs[OUTPUTS];
      epilogue(outputs, acc.value[i][j], points.row[i], points.col[j], params, (REAL)(m + a.i_offset),
               (REAL)(n + a.j_offset), (REAL)a.k);
      body(i, j, m, n, outputs);
    }
}
#endif

// ---- STORE -----------------------------------------------------------------------------------------------------------
#if CONSUMER == 0
MERCER_INLINE void store_tile(const Accumulators& acc, const PairArguments& a, const REAL* params, OUT* out,
                              const TilePlace& place) {
  // A tile on the diagonal of a symmetric matrix keeps its upper half; whatever is stored is mirrored.
  const bool mirror = a.symmetric, diagonal = mirror && place.m0 == place.n0;
#if !LONG_EPILOGUE
  const bool whole = !mirror && place.m0 + TILE_M <= a.m && place.n0 + TILE_N <= a.n;
  if (whole && a.out_col == 1 && a.out_row % VECTOR_N == 0 && (u64)out % (VECTOR_N * sizeof(OUT)) == 0 &&
      (OUTPUTS == 1 || a.out_plane % VECTOR_N == 0)) {
    Pack<OUT, VECTOR_N> rows[OUTPUTS];
    for_each_pair_unrolled(acc, a, params, place, [&](int, int j, i64 m, i64 n, REAL (&outputs)[OUTPUTS]) {
#pragma unroll
      for (int p = 0; p < OUTPUTS; ++p) {
        convert(rows[p].value[j % VECTOR_N], outputs[p]);
        if (j % VECTOR_N == VECTOR_N - 1)
          *(Pack<OUT, VECTOR_N>*)(out + p * a.out_plane + m * a.out_row + n - (VECTOR_N - 1)) = rows[p];
      }
    });
    return;
  }
#endif
  for_each_pair(acc, a, params, place, [&](int, int, i64 m, i64 n, REAL (&outputs)[OUTPUTS]) {
    if (m >= a.m || n >= a.n || (diagonal && n < m)) return;
#pragma unroll
    for (int p = 0; p < OUTPUTS; ++p) {
      OUT value;
      convert(value, outputs[p]);
      out[p * a.out_plane + m * a.out_row + n * a.out_col] = value;
      if (mirror && n != m) out[p * a.out_plane + n * a.out_row + m * a.out_col] = value;
    }
  });
}
#else
// Values of the tile for a fold over n.
MERCER_INLINE void tile_values(REAL (&values)[THREAD_M][THREAD_N], const Accumulators& acc, const PairArguments& a,
                               const REAL* params, const TilePlace& place) {
  const auto keep = [&](int i, int j, i64, i64, REAL (&outputs)[OUTPUTS]) { values[i][j] = outputs[0]; };
#if LONG_EPILOGUE
  for_each_pair(acc, a, params, place, keep);
#else
  for_each_pair_unrolled(acc, a, params, place, keep);
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
  for (int offset = 4; offset >= 1; offset /= 2) {
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
  for (int offset = 4; offset >= 1 && left > 1; offset /= 2) {
    left /= 2;
    if (lane & offset) row += left;
  }
  return row;
}
MERCER_INLINE bool writes_scattered_row() {
  const int lane = threadIdx.x % 8;
  return THREAD_M >= 8 || lane % (8 / (THREAD_M < 8 ? THREAD_M : 8)) == 0;
}

MERCER_INLINE void fold_tile(Fold& fold, const Accumulators& acc, const PairArguments& a, const REAL* params,
                             const REAL* v, const TilePlace& place) {
  const Position& at = place.at;
  const i64 n0 = place.n0;
  const bool whole = n0 + TILE_N <= a.n;
  REAL values[THREAD_M][THREAD_N];
  tile_values(values, acc, a, params, place);
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
    REAL weights[THREAD_N];
#pragma unroll
    for (int j = 0; j < THREAD_N; j += VECTOR_N) {
      const i64 n = n0 + col_of(at, j);
      Pack<REAL, VECTOR_N> pack;
      if (e < a.columns) pack = *(const Pack<REAL, VECTOR_N>*)(v + e * a.v_ld + n);
#pragma unroll
      for (int c = 0; c < VECTOR_N; ++c)
        weights[j + c] = e < a.columns && (whole || n + c < a.n) ? pack.value[c] : (REAL)0;
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
        for (int offset = 4; offset >= 1; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
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
                             const REAL*, const TilePlace& place) {
  REAL values[THREAD_M][THREAD_N];
  tile_values(values, acc, a, params, place);
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) {
    const i64 n = place.n0 + col_of(place.at, j);
    if (n >= a.n) continue;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i) merge(fold.row[i], state_of(values[i][j], n));
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
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  REAL* const shared = (REAL*)shared_bytes;
  const Position at = position();

  // The block's place: a group of batch items, a tile of m, tiles of n. Eight tiles of m go together through n, so that
  // blocks which run at the same time share panels in the second-level cache.
  const i64 columns_of_blocks = CONSUMER == STORE ? a.tiles_n : a.splits;
  const i64 blocks = a.tiles_m * columns_of_blocks;
  const i64 group = blockIdx.x / blocks, block = blockIdx.x % blocks;
  const i64 strip = block / (8 * columns_of_blocks), in_strip = block % (8 * columns_of_blocks);
  const i64 height = a.tiles_m - strip * 8 < 8 ? a.tiles_m - strip * 8 : 8;
  const i64 tile_m = strip * 8 + in_strip % height, column = in_strip / height;
  const i64 first_tile = CONSUMER == STORE ? column : a.tiles_n * column / a.splits;
  const i64 end_tile = CONSUMER == STORE ? column + 1 : a.tiles_n * (column + 1) / a.splits;
  if (CONSUMER == STORE && a.symmetric && first_tile * TILE_N + TILE_N <= tile_m * TILE_M) return;
  const i64 m0 = tile_m * TILE_M;
  const i64 x_set = batch_offset(a.groups, a.x_step, group), z_set = batch_offset(a.groups, a.z_step, group);
  const i64 item = batch_offset(a.groups, a.item_step, group);
  const REAL* x = (const REAL*)a.x + x_set * a.k * X_STREAMS * a.x_ld + m0;
  const REAL* z = (const REAL*)a.z + z_set * a.k * Z_STREAMS * a.z_ld;
  const REAL* params = a.params ? (const REAL*)a.params + item * a.param_count : (const REAL*)a.numbers;
  const REAL features = (REAL)a.k;

  const int slices = (a.k + TILE_K - 1) / TILE_K;
  const i64 steps = (end_tile - first_tile) * slices;
  i64 copied = 0, copy_tile = first_tile;
  int copy_k = 0, copy_stage = 0;
  auto copy_next = [&] {
    if (copied < steps) {
      const int depth = a.k - copy_k < TILE_K ? a.k - copy_k : TILE_K;
      REAL* slice = shared + copy_stage * SLICE;
      copy_panel<X_STREAMS, TILE_M>(slice, x + copy_k * X_STREAMS * a.x_ld, a.x_ld, depth);
      copy_panel<Z_STREAMS, TILE_N>(slice + SLICE_X, z + copy_k * Z_STREAMS * a.z_ld + copy_tile * TILE_N, a.z_ld, depth);
      copy_k += TILE_K;
      if (copy_k >= a.k) {
        copy_k = 0;
        ++copy_tile;
      }
      if (++copy_stage == STAGES) copy_stage = 0;
      ++copied;
    }
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) copy_next();

  int stage = 0;
#if CONSUMER != 0
  Fold fold;
  start(fold);
  const REAL* v = (const REAL*)a.v + batch_offset(a.groups, a.v_step, group);
#endif
  for (i64 tile = first_tile; tile < end_tile; ++tile) {
    const i64 n0 = tile * TILE_N;
    Accumulators acc;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j) identity(acc.value[i][j]);
    PointValues points;
    if (UPDATE_READS_POINTS) load_points(points, a, x_set, z_set, m0, n0, at);
#if PROMOTES
    int until_promotion = a.chunk;
    bool promoted_before = false;
    REAL* const promoted = shared + STAGES * SLICE;
#endif
    for (int k0 = 0; k0 < a.k; k0 += TILE_K) {
      wait_copies<STAGES - 2>();
      __syncthreads();
      copy_next();
      const REAL* slice = shared + stage * SLICE;
      if (++stage == STAGES) stage = 0;
      const REAL* w = (const REAL*)a.w + k0;
      if (k0 + TILE_K <= a.k) {
#pragma unroll UNROLL
        for (int kk = 0; kk < TILE_K; ++kk)
          accumulate(acc, slice, kk, READS_WEIGHTS ? w[kk] : (REAL)0, points, params, features, at);
      } else {
#pragma unroll 1
        for (int kk = 0; kk < a.k - k0; ++kk)
          accumulate(acc, slice, kk, READS_WEIGHTS ? w[kk] : (REAL)0, points, params, features, at);
      }
#if PROMOTES
      until_promotion -= TILE_K;
      if (until_promotion <= 0 && k0 + TILE_K < a.k) {
        promote(acc, promoted, !promoted_before, false);
        promoted_before = true;
        until_promotion = a.chunk;
      }
#endif
    }
#if PROMOTES
    if (promoted_before) promote(acc, promoted, false, true);
#endif
    const TilePlace place{m0, n0, x_set, z_set, at};
#if CONSUMER == 0
    for (i64 member = 0; member < a.member_count; ++member) {
      const REAL* own = params;
      if (a.params) own += batch_offset(a.members, a.member_item_step, member) * a.param_count;
      OUT* out = (OUT*)a.out + batch_offset(a.groups, a.out_step, group) +
                 batch_offset(a.members, a.member_out_step, member);
      store_tile(acc, a, own, out, place);
    }
#else
    fold_tile(fold, acc, a, params, v, place);
#endif
  }
#if CONSUMER != 0
  wait_copies<0>();
  finish(fold, a, shared, m0, column, group, at);
#endif
}
