// A pass over one factor of a Kronecker product in float64, on tensor cores:
//
//   for item, n:  to[q, n] = alpha sum_p F[p, q] from[p, n] + beta y[q, n]
//
// n = (row, l, a) counts rows of x, what stands before the factor's axis and what comes after it. A tile has TILE_Q
// outputs of TILE_N columns. LAST: nothing comes after the factor, and neighbours in memory are p or q, not n.
//
//                    n                                            q
//              +-----------+                                +-----------+
//            p |   from    |                              p |     F     |          a stage: DEPTH p of `from`, copied
//              +-----------+                                +-----------+          while others are multiplied
//   +-------+  +-----------+             LAST   +-------+   +-----------+
//   |  F^T  |  |    to     | q                  | from  |   |    to     | n        results lie in a lane by pairs of
//   +-------+  +-----------+                    +-------+   +-----------+          neighbours in either form
//       p                                           p
//
// Shared memory holds `from` and F as they lie in memory, in lines whose lengths keep the lanes of half a warp in other
// banks. HELD: a persistent block has F for all p, else DEPTH p of it come with each stage. GROUPS groups of a block
// have tiles, stages and barriers of their own: one stores while others multiply.
//
// Padding is zeros on both sides, so what is not finite stays in its own column and its own output.
//
// Floor: 2 P flops an element of `to` at 65 Tflop/s, and bytes at 4.2 TB/s: equal for P = 124. An instruction takes 64
// clocks; sixteen of them, 32 x 64 of a warp, read 12 KB of shared memory. What comes between them is kept to few
// instructions: there is one other warp at most to fill the gap.
// Registers: 128 of 64 sums, 48 of operands.
#pragma once

#include "common/arguments.h"
#include "common/double_units.cuh"
#include "common/prelude.cuh"
#include "kron/kron_values.cuh"

#define STEPS ((P + DEPTH - 1) / DEPTH)
#define GROUP_THREADS (GROUP_WARPS * 32)
#define DOUBLE_THREADS (GROUPS * GROUP_THREADS)
#define WARPS_N (GROUP_WARPS / WARPS_Q)
#define Q_TILES ((Q + TILE_Q - 1) / TILE_Q)
// Tiles of a warp: 16 rows and 8 columns of the result each.
#define ROW_TILES (LAST ? TILE_N / WARPS_N / 16 : TILE_Q / WARPS_Q / 16)
#define COLUMN_TILES (LAST ? TILE_Q / WARPS_Q / 8 : TILE_N / WARPS_N / 8)
#define PITCH(line) (((line) + 15) / 16 * 16 + 4)
#define X_PITCH PITCH(LAST ? DEPTH : TILE_N)
#define X_VALUES ((LAST ? TILE_N : DEPTH) * X_PITCH)
#define F_PITCH PITCH(TILE_Q)
#define HELD_VALUES (HELD ? (P + 15) / 16 * 16 * F_PITCH : 0)
#define STAGE_VALUES (X_VALUES + (HELD ? 0 : DEPTH * F_PITCH))
// Where columns of a tile lie in `from`, `to` and y, of as many tiles as are under way.
#define PLACES (2 + FINAL)
#define SLOTS ((STAGES + STEPS - 1) / STEPS + 1)
#define GROUP_VALUES (STAGES * STAGE_VALUES + SLOTS * PLACES * TILE_N)

struct DoubleLane {
  int group, thread;  // of the group
  MERCER_METHOD DoubleLane() : group(threadIdx.x / GROUP_THREADS), thread(threadIdx.x % GROUP_THREADS) {}
  // What follows from it is computed again: the compiler would keep dozens of addresses, and spill them.
  MERCER_METHOD void forget() { keep(thread); }
  MERCER_METHOD int g() const { return thread % 32 / 4; }
  MERCER_METHOD int t() const { return thread % 4; }
  MERCER_METHOD int warp_q() const { return thread / 32 % WARPS_Q; }
  MERCER_METHOD int warp_n() const { return thread / 32 / WARPS_Q; }
  // The first of the warp's rows and columns of a result that are this lane's.
  MERCER_METHOD int row() const { return (LAST ? warp_n() : warp_q()) * (ROW_TILES * 16) + g(); }
  MERCER_METHOD int column() const { return (LAST ? warp_q() : warp_n()) * (COLUMN_TILES * 8); }
};

MERCER_INLINE void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(GROUP_THREADS) : "memory");
}

// Which part of the output a tile is. HELD: its outputs are those of the block.
struct DoubleTile {
  i64 n;
  int item, q, columns;
  MERCER_METHOD DoubleTile(const KronArguments& k, int tile) {
    const i64 count = k.row_count * k.left * k.right;
    q = (HELD ? blockIdx.x % Q_TILES : tile % Q_TILES) * TILE_Q;
    if (!HELD) tile /= Q_TILES;
    const int n_tiles = (int)((count + TILE_N - 1) / TILE_N);
    item = k.item_count == 1 ? 0 : tile / n_tiles;
    n = (i64)(tile - item * n_tiles) * TILE_N;
    columns = (int)min(count - n, (i64)TILE_N);
  }
};

// ---- copies ---------------------------------------------------------------------------------------------------------
// WIDTH neighbouring outputs at a time, of `depth` p from p0 on.
template <int WIDTH>
MERCER_INLINE void copy_factor(const double* from, i64 p_stride, i64 q_stride, int p0, int q0, int depth, int thread,
                               int threads, double* to) {
  constexpr u32 kLine = TILE_Q / WIDTH;
#pragma unroll 4
  for (u32 e = thread; e < depth * kLine; e += threads) {
    const int p = e / kLine, q = e % kLine * WIDTH;
    const bool inside = p0 + p < P && q0 + q < Q;
    copy_or_clear<8 * WIDTH>(shared_address(to + p * F_PITCH + q),
                             inside ? from + (p0 + p) * p_stride + (q0 + q) * q_stride : from, inside);
  }
}
// F of an item.
struct DoubleFactor {
  const double* data;
  MERCER_METHOD DoubleFactor(const KronArguments& k, int item)
      : data((const double*)k.factors[0].data + kron_offset(k.items, k.factors[0].item_step, item)) {}
  MERCER_METHOD void copy(const KronArguments& k, int p0, int q0, int depth, int thread, int threads,
                          double* to) const {
    const i64 p_stride = k.factors[0].p_stride, q_stride = k.factors[0].q_stride;
    const bool wide = Q % 2 == 0 && q_stride == 1 && (((u64)data | p_stride * 8) & 15) == 0;
    if (wide) copy_factor<2>(data, p_stride, 1, p0, q0, depth, thread, threads, to);
    else copy_factor<1>(data, p_stride, q_stride, p0, q0, depth, thread, threads, to);
  }
};

// Columns of a group's tiles, and the copies of their stages in order.
struct DoubleLoader {
  double* stages;
  i64* places;  // [slot][from, to, y][column]
  DoubleFactor factor;
  int tile, stop, stride, q, step, stage, slot, columns;

  MERCER_METHOD DoubleLoader(const KronArguments& k, double* memory, int first, int end, int by)
      : stages(memory), places((i64*)(memory + STAGES * STAGE_VALUES)), factor(k, 0), tile(first), stop(end),
        stride(by), q(0), step(0), stage(0), slot(0), columns(0) {}
  // Finds the places of the tile that comes next. Others read them after a barrier.
  MERCER_METHOD void start_tile(const KronArguments& k, const DoubleLane& lane) {
    if (tile >= stop) return;
    const DoubleTile at(k, tile);
    columns = at.columns;
    q = at.q;
    if (!HELD) factor = DoubleFactor(k, at.item);
#pragma unroll 1
    for (int e = lane.thread; e < PLACES * TILE_N; e += GROUP_THREADS) {
      const int which = e / TILE_N, column = e % TILE_N;
      const KronSide& side = which == 0 ? k.from : which == 1 ? k.to : k.y;
      if (column >= columns || !side.data) continue;
      const i64 n = at.n + column, b = LAST ? n : kron_quotient(n, k.right), a = LAST ? 0 : n - b * k.right;
      places[slot * (PLACES * TILE_N) + e] = kron_place(k, side, at.item, b) + (LAST ? 0 : kron_behind(side, a));
    }
  }
  // Starts the copies of a stage.
  MERCER_METHOD void next(const KronArguments& k, const DoubleLane& lane) {
    if (tile < stop) {
      copy_x(k, lane);
      if (!HELD)
        factor.copy(k, step * DEPTH, q, DEPTH, lane.thread, GROUP_THREADS, stages + stage * STAGE_VALUES + X_VALUES);
      if (++step == STEPS) {
        step = 0;
        tile += stride;
        slot = slot + 1 == SLOTS ? 0 : slot + 1;
        start_tile(k, lane);
      }
    }
    commit_copies();
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  MERCER_METHOD void copy_x(const KronArguments& k, const DoubleLane& lane) const {
    // A thread's copies are of one column, or of one p: along the line that both forms have they keep their place.
    constexpr u32 kLine = (LAST ? DEPTH : TILE_N) / IN_WIDTH, kLines = LAST ? TILE_N : DEPTH;
    constexpr u32 kAcross = GROUP_THREADS < kLine ? 1 : GROUP_THREADS / kLine, kAlong = GROUP_THREADS / kAcross;
    const double* from = (const double*)k.from.data;
    const i64* column = places + slot * (PLACES * TILE_N);
    const u32 to = shared_address(stages + stage * STAGE_VALUES);
    const int p0 = step * DEPTH;
    const i64 axis = LAST && IN_WIDTH == 2 ? 1 : k.from.axis;
#pragma unroll
    for (u32 first = 0; first < kLine; first += kAlong) {
      const u32 along = (first + lane.thread % kAlong) * IN_WIDTH, line = lane.thread / kAlong;
      const bool holds = LAST ? P % DEPTH == 0 || p0 + (int)along < P : (int)along < columns;
      const double* place = from + (LAST ? (p0 + along) * axis : holds ? column[along] + (p0 + line) * axis : 0);
#pragma unroll
      for (u32 i = 0; i < kLines; i += kAcross) {
        if (kLines % kAcross != 0 && line + i >= kLines) break;
        const bool inside =
            holds && (LAST ? (int)(line + i) < columns : P % DEPTH == 0 || p0 + (int)(line + i) < P);
        const double* at = LAST ? (inside ? place + column[line + i] : from) : (inside ? place + i * axis : from);
        copy_or_clear<8 * IN_WIDTH>(to + ((line + i) * X_PITCH + along) * 8, at, inside);
      }
    }
  }
};

// ---- products -------------------------------------------------------------------------------------------------------
typedef double DoubleSums[ROW_TILES][COLUMN_TILES][4];

// Operands of 16 p, from the lines of both.
MERCER_INLINE void load_left(double (&a)[8], const DoubleLane& lane, int tile, const double* x, const double* f) {
  const int row = lane.row() + tile * 16;
  const double* from = LAST ? x + row * X_PITCH + lane.t() : f + lane.t() * F_PITCH + row;
#pragma unroll
  for (int s = 0; s < 4; ++s)
#pragma unroll
    for (int h = 0; h < 2; ++h) a[2 * s + h] = from[LAST ? 8 * h * X_PITCH + 4 * s : 4 * s * F_PITCH + 8 * h];
}
MERCER_INLINE void load_right(double (&b)[4], const DoubleLane& lane, int tile, const double* x, const double* f) {
  const int column = lane.column() + tile * 8 + lane.g();
  const double* from = lane.t() * (LAST ? F_PITCH : X_PITCH) + column + (LAST ? f : x);
#pragma unroll
  for (int s = 0; s < 4; ++s) b[s] = from[4 * s * (LAST ? F_PITCH : X_PITCH)];
}

MERCER_INLINE void multiply(double (&d)[4], const double (&a)[8], const double (&b)[4]) {
  multiply_16x8(d[0], d[1], d[2], d[3], a, b);
}

// The side with fewer operands stays in registers; `between` comes while the first of them are on their way.
template <class Between>
MERCER_INLINE void multiply_step(DoubleSums& sums, const DoubleLane& lane, const double* x, const double* f,
                                 const Between& between) {
  double a[ROW_TILES][8], b[COLUMN_TILES][4];
  if constexpr (ROW_TILES * 2 <= COLUMN_TILES) {
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) load_left(a[i], lane, i, x, f);
    load_right(b[0], lane, 0, x, f);
    between();
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j) {
      if (j + 1 < COLUMN_TILES) load_right(b[j + 1], lane, j + 1, x, f);
#pragma unroll
      for (int i = 0; i < ROW_TILES; ++i) multiply(sums[i][j], a[i], b[j]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j) load_right(b[j], lane, j, x, f);
    load_left(a[0], lane, 0, x, f);
    between();
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
      if (i + 1 < ROW_TILES) load_left(a[i + 1], lane, i + 1, x, f);
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j) multiply(sums[i][j], a[i], b[j]);
    }
  }
}

// ---- results --------------------------------------------------------------------------------------------------------
// Two neighbours, `step` from each other, as many of them as there are.
MERCER_INLINE void store_pair(const KronArguments& k, double* to, const double* y, i64 step, i64 y_step, int inside,
                              const double* values) {
  double result[2] = {values[0], values[1]};
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    if (!FINAL || e >= inside) continue;
    result[e] *= k.alpha;
    if (k.y.data) result[e] = mul_add(k.beta, y[e * y_step], result[e]);
  }
  if (OUT_WIDTH == 2) {
    if (inside > 0) store_pack<double, 2>(to, {result[0], result[1]});
    return;
  }
  if (inside > 0) to[0] = result[0];
  if (inside > 1) to[step] = result[1];
}

// FULL: nothing of the tile lies beyond the edges.
template <bool FULL>
MERCER_INLINE void store_tile(const KronArguments& k, const DoubleLane& lane, const DoubleTile& at, const i64* places,
                              const DoubleSums& sums) {
  const i64 *const of_to = places + TILE_N, *const of_y = places + 2 * TILE_N;
  double* const to = (double*)k.to.data;
  const double* const y = (const double*)k.y.data;
  const bool adds = FINAL && y;
  const int row = lane.row(), column = lane.column() + 2 * lane.t();
  const i64 axis = LAST && OUT_WIDTH == 2 ? 1 : k.to.axis;
  if constexpr (LAST) {
    const int outputs = Q - at.q - column;
#pragma unroll
    for (int r = 0; r < ROW_TILES * 2; ++r) {
      const int n = row + 8 * r;
      if (!FULL && n >= at.columns) continue;
      double* place = to + of_to[n] + (at.q + column) * axis;
      const double* y_place = adds ? y + of_y[n] + (at.q + column) * k.y.axis : y;
#pragma unroll
      for (int j = 0; j < COLUMN_TILES; ++j)
        store_pair(k, place + 8 * j * axis, adds ? y_place + 8 * j * k.y.axis : y, axis, k.y.axis,
                   FULL ? 2 : outputs - 8 * j, &sums[r / 2][j][r % 2 * 2]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j) {
      const int n = column + 8 * j, inside = FULL ? 2 : at.columns - n;
      if (inside <= 0) continue;
      const i64 first = of_to[n], step = OUT_WIDTH == 2 || inside < 2 ? 0 : of_to[n + 1] - first;
      double* place = to + first + (at.q + row) * axis;
      const i64 y_first = adds ? of_y[n] : 0, y_step = adds && inside > 1 ? of_y[n + 1] - y_first : 0;
      const double* y_place = y + y_first + (at.q + row) * k.y.axis;
#pragma unroll
      for (int r = 0; r < ROW_TILES * 2; ++r) {
        if (FULL || at.q + row + 8 * r < Q)
          store_pair(k, place, y_place, step, y_step, inside, &sums[r / 2][j][r % 2 * 2]);
        place += 8 * axis;
        y_place += 8 * k.y.axis;
      }
    }
  }
}

// ---- the kernel -----------------------------------------------------------------------------------------------------
// A group's tiles from `tile` on to before `stop`, which share F where it is held.
MERCER_INLINE void multiply_tiles(const KronArguments& k, DoubleLane& lane, const double* held, double* memory,
                                  int& tile, int stride, int stop) {
  DoubleLoader loader(k, memory, tile, stop, stride);
  loader.start_tile(k, lane);
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; ++i) {
    group_barrier(lane.group);
    loader.next(k, lane);
  }
  if (HELD) {
    wait_copies<STAGES - 2>();
    __syncthreads();
  }
  int stage = 0, slot = 0;
#pragma unroll 1
  for (; tile < stop; tile += stride) {
    DoubleSums sums;
#pragma unroll
    for (int e = 0; e < ROW_TILES * COLUMN_TILES * 4; ++e) sums[e / 4 / COLUMN_TILES][e / 4 % COLUMN_TILES][e % 4] = 0;
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
      wait_copies<STAGES - 2>();
      group_barrier(lane.group);
      lane.forget();
      const double* x = memory + stage * STAGE_VALUES;
      const double* f = HELD ? held + step * (DEPTH * F_PITCH) : x + X_VALUES;
      // Warps that share a part of the multiprocessor start their copies in turn.
      const int turn = lane.thread / 128 % (DEPTH / 16);
#pragma unroll 1
      for (int part = 0; part < DEPTH / 16; ++part) {
        if ((P + 15) / 16 * 16 % DEPTH != 0 && step * DEPTH + part * 16 >= P) {
          if (part == turn) loader.next(k, lane);
          continue;
        }
        multiply_step(sums, lane, x + part * 16 * (LAST ? 1 : X_PITCH), f + part * 16 * F_PITCH, [&] {
          if (part == turn) loader.next(k, lane);
        });
      }
      stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    lane.forget();
    const DoubleTile at(k, tile);
    const i64* own = loader.places + slot * (PLACES * TILE_N);
    if (at.columns == TILE_N && at.q + TILE_Q <= Q) store_tile<true>(k, lane, at, own, sums);
    else store_tile<false>(k, lane, at, own, sums);
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
  }
}

extern "C" __global__ void __launch_bounds__(DOUBLE_THREADS, 1) kron_double(const __grid_constant__ KronArguments k) {
  extern __shared__ __align__(16) double memory[];
  DoubleLane lane;
  double* const own = memory + HELD_VALUES + lane.group * GROUP_VALUES;
  const int n_tiles = (int)((k.row_count * k.left * k.right + TILE_N - 1) / TILE_N);
  // HELD: blocks of the same outputs share the columns; blocks with other outputs of these columns run next to them.
  const int walkers = HELD ? gridDim.x / Q_TILES : gridDim.x, walker = HELD ? blockIdx.x / Q_TILES : blockIdx.x;
  const int tiles = n_tiles * (int)k.item_count * (HELD ? 1 : Q_TILES);
  bool varies = false;
  for (int axis = 0; HELD && axis < k.items.count; ++axis) varies |= k.factors[0].item_step[axis] != 0;
  // They walk side by side, or each through items of its own.
  const int step = varies ? 1 : walkers;
  int first = varies ? (int)((i64)tiles * walker / walkers) : walker;
  const int end = varies ? (int)((i64)tiles * (walker + 1) / walkers) : tiles;
  int tile = first + lane.group * step;
#pragma unroll 1
  while (first < end) {
    const int item = varies ? first / n_tiles : 0, stop = varies ? min(end, (item + 1) * n_tiles) : end;
    if (HELD) {
      __syncthreads();  // F of the item before has been read
      DoubleFactor(k, item).copy(k, 0, blockIdx.x % Q_TILES * TILE_Q, (P + 15) / 16 * 16, threadIdx.x, DOUBLE_THREADS,
                                 memory);
    }
    multiply_tiles(k, lane, memory, own, tile, GROUPS * step, stop);
    first = stop;
  }
}
