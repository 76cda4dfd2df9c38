// The accumulators of a tile: update, promotion of partial sums, epilogue (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/power_kind.cuh"

// Functions that are templates of `Sums`, which are Accumulators, look up parts of a kernel only where the plan has
// them: what it lacks is not declared.

struct Accumulators {
  REAL value[THREAD_M][THREAD_N][STATES + (STATES == 0)];
};

// Zeros that come from shared memory, four at a time and in this order, make the compiler keep the accumulators in
// register banks where neighbours do not collide: 1 to 3 % of the time.
template <class Sums>
MERCER_INLINE void start_at_zero(Sums& acc, u32 zeros) {
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

struct PointValues {
  REAL row[THREAD_M][ROW_SLOTS + 1], col[THREAD_N][COL_SLOTS + 1];
  REAL i[THREAD_M], j[THREAD_N];
};


// COUNT operands of a thread from `first` on, in feature kk; `side`: of a slice, the thread's.
template <class PLACES, int STREAMS, int COUNT>
MERCER_INLINE void load_operands(REAL (&operands)[COUNT][STREAMS], const REAL* side, int kk, int first = 0) {
  constexpr int kVector = PLACES::kVector;
#pragma unroll
  for (int s = 0; s < PLACES::kStreams; ++s)
#pragma unroll
    for (int p = 0; p < COUNT; p += kVector) {
      const Pack<REAL, kVector> pack = *(const Pack<REAL, kVector>*)(side + PLACES::of_operand(kk, s, first + p));
#pragma unroll
      for (int c = 0; c < kVector; ++c) operands[p + c][s] = pack.value[c];
    }
}

MERCER_INLINE void start(Accumulators& acc) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) identity(acc.value[i][j]);
}

// The operands of one feature after the other; pair_integers.cuh has its own.
template <bool ON_MIXED_PIPES>
struct SliceOperands : Operands {
  MERCER_METHOD SliceOperands(const REAL* slice, const Position& at) : Operands(operands_of(slice, at)) {}
  MERCER_METHOD void load(REAL (&xs)[THREAD_M][X_STREAMS + (X_STREAMS == 0)],
                          REAL (&zs)[THREAD_N][Z_STREAMS + (Z_STREAMS == 0)], int) {
    load_operands<PlacesX>(xs, x, 0);
    load_operands<PlacesZ>(zs, z, 0);
    x += X_STREAMS * PANEL_X;
    z += Z_STREAMS * PANEL_Z;
  }
};

// The update by what is known of the exponent that is a parameter.
template <int POWER, class State>
MERCER_INLINE void update_pair(State& acc, const REAL* x, const REAL* z, REAL w, const REAL* row, const REAL* col,
                               const REAL* params, REAL i, REAL j, REAL features) {
  if constexpr (POWER_SLOT < 0 || POWER == POWER_ANY)
    update(acc, x, z, w, row, col, params, i, j, features);
  else if constexpr (POWER == POWER_ONE)
    update_one(acc, x, z, w, row, col, params, i, j, features);
  else if constexpr (POWER == POWER_TWO)
    update_two(acc, x, z, w, row, col, params, i, j, features);
  else
    update_moderate(acc, x, z, w, row, col, params, i, j, features);
}

// Feature kk of a slice, at which operands stand. FIRST: the states have no values yet. Pairs go in blocks of two
// rows and four columns: the compiler then finds registers that collide less in their banks.
template <int POWER, bool FIRST, class Sums, class From>
MERCER_INLINE void accumulate(Sums& acc, From& from, int kk, REAL w, const PointValues& points, const REAL* params,
                              REAL features) {
  REAL x[THREAD_M][X_STREAMS + (X_STREAMS == 0)], z[THREAD_N][Z_STREAMS + (Z_STREAMS == 0)];
  from.load(x, z, kk);
  constexpr bool kInBlocks = MIXED != 1 && THREAD_M % 2 == 0 && THREAD_N % 4 == 0;
  constexpr int kRows = kInBlocks ? 2 : 1, kColumns = kInBlocks ? 4 : THREAD_N;
#pragma unroll
  for (int pair = 0; pair < THREAD_M * THREAD_N; ++pair) {
    const int block = pair / (kRows * kColumns), in_block = pair % (kRows * kColumns);
    const int i = block / (THREAD_N / kColumns) * kRows + in_block / kColumns;
    const int c = block % (THREAD_N / kColumns) * kColumns + in_block % kColumns;
    const int j = MIXED == 1 && i % 2 == 1 ? THREAD_N - 1 - c : c;
    if constexpr (ALTERNATIVE_EIGHTHS > 0 && (POWER == POWER_TABLE || POWER_SLOT < 0)) {
      // A checkerboard: neighbours in time take different pipes.
      if ((j + 3 * i) * ALTERNATIVE_EIGHTHS % 8 + ALTERNATIVE_EIGHTHS >= 8) {
        update_alternative(acc.value[i][j], x[i], z[j], w, points.row[i], points.col[j], params, points.i[i],
                           points.j[j], features);
        continue;
      }
    }
    if constexpr (MIXED == 1)
      if (add_integers(acc, i, j, x[i][0], z[j][0], FIRST)) continue;
    if constexpr (FIRST)
      first_update(acc.value[i][j], x[i], z[j], w, points.row[i], points.col[j], params, points.i[i], points.j[j],
                   features);
    else
      update_pair<POWER>(acc.value[i][j], x[i], z[j], w, points.row[i], points.col[j], params, points.i[i],
                         points.j[j], features);
  }
}

// The features of a slice, `left` of them at most.
template <int POWER, class From, class Sums>
MERCER_INLINE void accumulate_slice(Sums& acc, const REAL* slice, const Position& at, int left, const REAL* w,
                                    const PointValues& points, const REAL* params, REAL features) {
  From from(slice, at);
  if constexpr (FIRST_UPDATE)
    accumulate<POWER, true>(acc, from, 0, READS_WEIGHTS ? w[0] : (REAL)0, points, params, features);
  if (EXACT_FEATURES || WHOLE_SLICES || left >= TILE_K) {
#pragma unroll SLICE_UNROLL
    for (int kk = FIRST_UPDATE; kk < TILE_K; ++kk)
      accumulate<POWER, false>(acc, from, kk, READS_WEIGHTS ? w[kk] : (REAL)0, points, params, features);
  } else {
#pragma unroll 1
    for (int kk = 0; kk < left; ++kk)
      accumulate<POWER, false>(acc, from, kk, READS_WEIGHTS ? w[kk] : (REAL)0, points, params, features);
  }
}

// Sums of bytes are integers.
MERCER_INLINE void to_floats(Accumulators& acc) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
    for (int j = 0; j < THREAD_N; ++j) acc.value[i][j][0] = (float)bits_of(acc.value[i][j][0]);
}

// Promoted sums stay in shared memory, each thread at its own place: [state][pair][thread]. Vectors of them settle the
// register banks of accumulators, which sums of differences leave to the compiler (pair_differences.cuh).
#define PROMOTED_TOGETHER (DIFFERENCES == 1 ? 1 : VECTOR_N)
MERCER_STEP void promote(Accumulators& acc, REAL* promoted, bool first, bool last) {
  int slot = 0;
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    if (!is_promoted(s)) continue;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_N; j += PROMOTED_TOGETHER) {
        const int place = ((slot * THREAD_M + i) * THREAD_N + j) * THREADS + threadIdx.x * PROMOTED_TOGETHER;
        Pack<REAL, PROMOTED_TOGETHER>& sum = *(Pack<REAL, PROMOTED_TOGETHER>*)(promoted + place);
        Pack<REAL, PROMOTED_TOGETHER> total;
        if (!first) total = sum;
#pragma unroll
        for (int c = 0; c < PROMOTED_TOGETHER; ++c) {
          REAL& value = acc.value[i][j + c][s];
          total.value[c] = first ? value : total.value[c] + value;
          value = last ? total.value[c] : (REAL)0;
        }
        if (!last) sum = total;
      }
    ++slot;
  }
}

// Promoted sums of TOTALS chunks go to totals of their own, which are not for registers: fewer additions follow one
// another.
#define PROMOTED_WORDS (PROMOTES * THREAD_M * THREAD_N)
template <int WORDS>
MERCER_INLINE void put_away(volatile REAL (&totals)[WORDS], const REAL* promoted, bool is_first) {
  constexpr int kTogether = PROMOTED_TOGETHER;
#pragma unroll 1
  for (int word = 0; word < WORDS; ++word) {
    const REAL sum = promoted[(word / kTogether * THREADS + threadIdx.x) * kTogether + word % kTogether];
    totals[word] = is_first ? sum : totals[word] + sum;
  }
}
template <int WORDS>
MERCER_INLINE void add_totals(Accumulators& acc, const volatile REAL (&totals)[WORDS]) {
  int word = 0;
#pragma unroll
  for (int s = 0; s < STATES; ++s) {
    if (!is_promoted(s)) continue;
#pragma unroll
    for (int i = 0; i < THREAD_M; ++i)
#pragma unroll
      for (int j = 0; j < THREAD_N; ++j) acc.value[i][j][s] += totals[word++];
  }
}

MERCER_INLINE void load_row(REAL (&row)[ROW_SLOTS + 1], const PairArguments& a, i64 x_set, i64 m) {
#pragma unroll
  for (int s = 0; s < ROW_SLOTS; ++s) row[s] = ((const REAL*)a.x.user)[(x_set * ROW_SLOTS + s) * a.x.ld + m];
}
MERCER_INLINE void load_col(REAL (&col)[COL_SLOTS + 1], const PairArguments& a, i64 z_set, i64 n) {
#pragma unroll
  for (int s = 0; s < COL_SLOTS; ++s) col[s] = ((const REAL*)a.z.user)[(z_set * COL_SLOTS + s) * a.z.ld + n];
}
MERCER_INLINE void load_points(PointValues& points, const PairArguments& a, i64 x_set, i64 z_set, i64 m0, i64 n0,
                               const Position& at) {
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    load_row(points.row[i], a, x_set, m0 + row_of(at, i));
    points.i[i] = (REAL)(m0 + row_of(at, i) + a.x.offset);
  }
#pragma unroll
  for (int j = 0; j < THREAD_N; ++j) {
    load_col(points.col[j], a, z_set, n0 + col_of(at, j));
    points.j[j] = (REAL)(n0 + col_of(at, j) + a.z.offset);
  }
}

// Where a tile stands: what its epilogue reads in addition to the accumulators.
struct TilePlace {
  i64 m0, n0, x_set, z_set;
};

// Sums that other kernels stored, after the states of this one. The last row and column repeat, as in panels.
MERCER_INLINE void read_planes(Accumulators& acc, const PairArguments& a, const TilePlace& place, const Position& at) {
  const bool whole = place.n0 + TILE_N <= a.n;
#pragma unroll
  for (int i = 0; i < THREAD_M; ++i) {
    const i64 m = place.m0 + row_of(at, i);
    const REAL* row = (const REAL*)a.planes.data + (m < a.m ? m : a.m - 1) * a.planes.ld;
#pragma unroll
    for (int p = 0; p < PLANES; ++p, row += a.planes.step)
#pragma unroll
      for (int j = 0; j < THREAD_N; j += VECTOR_N) {
        const i64 n = place.n0 + col_of(at, j);
        Pack<REAL, VECTOR_N> pack;
        if (whole) {
          pack = *(const Pack<REAL, VECTOR_N>*)(row + n);
        } else {
#pragma unroll
          for (int c = 0; c < VECTOR_N; ++c) pack.value[c] = row[n + c < a.n ? n + c : a.n - 1];
        }
#pragma unroll
        for (int c = 0; c < VECTOR_N; ++c) acc.value[i][j + c][STATES - PLANES + p] = pack.value[c];
      }
  }
}

// The pairs one after the other, in a loop that stays a loop: a long epilogue would fill the instruction cache, and the
// compiler's time, 64 times over. The accumulators pass through shared memory, some rows at a time, each thread at its
// own place: [row][column][state][thread].
#define SCRATCH_ROW (THREAD_N * (STATES + (STATES == 0)) * THREADS)
#define SCRATCH_FITS (STAGES * SLICE / SCRATCH_ROW)
#define SCRATCH_ROWS (!ONE_TILE || SCRATCH_FITS < 1 ? 1 : SCRATCH_FITS > THREAD_M ? THREAD_M : SCRATCH_FITS)

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
  epilogue(outputs, states, row, col, params, (REAL)(m + a.x.offset), (REAL)(n + a.z.offset), (REAL)a.features);
}
