// Geometry of a tile, and its slices of features: from memory to shared memory, STAGES of them on their way
// (pair_tile.cuh).
#pragma once

#include "common/arguments.h"
#include "common/overlap.cuh"
#include "common/prelude.cuh"

#define SLICE_UNROLL (MERCER_QUICK && UNROLL > 4 ? 4 : UNROLL)  // features of a slice
#define THREADS_N (TILE_N / THREAD_N)
#define THREADS_M (TILE_M / THREAD_M)
#undef THREADS
#define THREADS (THREADS_M * THREADS_N)
#define VECTOR (16 / (int)sizeof(REAL))
#define VECTOR_M (THREAD_M < VECTOR ? THREAD_M : VECTOR)
#define VECTOR_N (THREAD_N < VECTOR ? THREAD_N : VECTOR)
// A slice holds the points' panels one after the other, as they lie in memory: [panel][k][stream][point]. Pieces of a
// value (pair_differences.cuh) take as much as two, and lie by two features.
#define BY_DIFFERENCES (DIFFERENCES == 1)
#define PANEL_POINTS (BY_DIFFERENCES ? MERCER_DIFFERENCE_PANEL : MERCER_PANEL)
#define WORDS_X (BY_DIFFERENCES ? 2 : X_STREAMS)
#define WORDS_Z (BY_DIFFERENCES ? 2 : Z_STREAMS)
#define ONES_X_BYTES (64 * 16)   // of either feature of a pair; before the slices
#define ONES_Z_BYTES (128 * 16)  // and after them
#define WORDS_BEFORE (BY_DIFFERENCES ? 2 * ONES_X_BYTES / 4 : 0)
#define WORDS_BEHIND (BY_DIFFERENCES ? 2 * ONES_Z_BYTES / 4 : 0)
#define FEEDING_THREADS (BY_DIFFERENCES ? 128 : 0)
MERCER_INLINE constexpr int panel_rows(int k) { return BY_DIFFERENCES ? (k + 1) / 2 * 2 : k; }
#define PANEL_X (TILE_M < PANEL_POINTS ? TILE_M : PANEL_POINTS)
#define PANEL_Z (TILE_N < PANEL_POINTS ? TILE_N : PANEL_POINTS)
#define SLICE_X (TILE_K * WORDS_X * TILE_M)
#define SLICE_Z (TILE_K * WORDS_Z * TILE_N)
#define SLICE (SLICE_X + SLICE_Z)
#define PROMOTED_SIZE (PROMOTES * TILE_M * TILE_N)
// Tiles that follow each other in a block have slices on their way while one is finished; a tile alone uses their
// memory.
#define ONE_TILE (CONSUMER == STORE && !MANY_TILES)
#define SCRATCH_PLACE \
  (ONE_TILE ? 0 : STAGES * SLICE + WORDS_BEHIND + (!BY_DIFFERENCES && a.k > a.chunk ? PROMOTED_SIZE : 0))
// The number of features, where it is part of the kernel.
#define FEATURES (EXACT_FEATURES ? EXACT_FEATURES : a.k)

// What other tiles have done already, most often: a few blocks, which take all tiles by turns. A block for each tile
// took some 20 us of nothing but leaving, 16384 of them.
#define FEW_BLOCKS (BY_TURNS || (CONSUMER == 0 && (DIFFERENCES == 2 || (MIXED == 2 && !DIFFERENCES))))

// Blocks find their places and start their barriers before they wait for the kernel ahead, where they know without it
// that they are wanted, or ask only for the first slices.
#define EARLY_PLACE \
  (BULK && CONSUMER == 0 && (MIXED == 1 || !(MIXED || DIFFERENCES)) && !REGIONS && !DOUBLE_PRODUCTS)

enum { STORE, PRODUCT, FOLD, NEAREST };
enum { FOLD_SUM, FOLD_MAX, FOLD_MIN, FOLD_ARGMAX, FOLD_ARGMIN, FOLD_LOGSUMEXP };

struct Position {
  int tx, ty;
};

MERCER_INLINE Position position() {
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  if (THREADS_N % 8 != 0 || THREADS_M % 4 != 0) return {tid % THREADS_N, tid / THREADS_N};
  const int warps_n = THREADS_N / 8 > 0 ? THREADS_N / 8 : 1;
  if (DOUBLE_PRODUCTS) return {warp % warps_n * 8 + lane / 4, warp / warps_n * 4 + lane % 4};
  // Among every two lanes that read at once, one shares its rows and one its columns: a third fewer reads of shared
  // memory than with rows of eight lanes.
  return {warp % warps_n * 8 + lane % 16 / 2, warp / warps_n * 4 + lane / 16 * 2 + lane % 2};
}
// Lanes from one thread of a row to the next.
#define LANES_TX (DOUBLE_PRODUCTS ? 4 : 2)
MERCER_INLINE int row_of(const Position& at, int i) {
  return i / VECTOR_M * (TILE_M / (THREAD_M / VECTOR_M)) + at.ty * VECTOR_M + i % VECTOR_M;
}
MERCER_INLINE int col_of(const Position& at, int j) {
  return j / VECTOR_N * (TILE_N / (THREAD_N / VECTOR_N)) + at.tx * VECTOR_N + j % VECTOR_N;
}

// Where point p of feature kk lies in its side of a slice.
template <int STREAMS, int PANEL>
MERCER_INLINE constexpr int place_of(int kk, int s, int p) {
  return p / PANEL * (TILE_K * STREAMS * PANEL) + (kk * STREAMS + s) * PANEL + p % PANEL;
}
// A thread's operands: their part of the place that is the thread's, which loops leave alone, and the rest, which is
// known to the compiler.
template <int STREAMS, int PANEL, int POINTS, int COUNT>
struct OperandPlaces {
  static constexpr int kStreams = STREAMS, kVector = COUNT < VECTOR ? COUNT : VECTOR;
  static constexpr int kGroup = POINTS / (COUNT / kVector);
  static MERCER_METHOD int of_thread(int t) { return place_of<STREAMS, PANEL>(0, 0, t * kVector); }
  static MERCER_METHOD constexpr int of_operand(int kk, int s, int i) {
    static_assert(kGroup % PANEL == 0 || PANEL % kGroup == 0, "a group of threads' operands lies in whole panels");
    return place_of<STREAMS, PANEL>(kk, s, i / kVector * kGroup + i % kVector);
  }
};
using PlacesX = OperandPlaces<WORDS_X, PANEL_X, TILE_M, THREAD_M>;
using PlacesZ = OperandPlaces<WORDS_Z, PANEL_Z, TILE_N, THREAD_N>;


// The thread's operands of a slice, at its first feature.
struct Operands {
  const REAL *x, *z;
};
MERCER_INLINE Operands operands_of(const REAL* slice, const Position& at) {
  return {slice + PlacesX::of_thread(at.ty), slice + SLICE_X + PlacesZ::of_thread(at.tx)};
}

// `depth` features of a tile's points; what follows the last feature is never read.
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
                from + panel * panel_size + row * PANEL_POINTS + at);
    }
}

template <int STREAMS, int POINTS>
MERCER_INLINE void copy_panels_bulk(REAL* to, const REAL* from, i64 panel_size, int depth, u32 barrier) {
#pragma unroll
  for (int panel = 0; panel < POINTS / PANEL_POINTS; ++panel)
    copy_bulk(shared_address(to + panel * TILE_K * STREAMS * PANEL_POINTS), from + panel * panel_size,
              depth * STREAMS * PANEL_POINTS * sizeof(REAL), barrier);
}

// Points that are not packed. The last one repeats, as in panels.
template <int STREAMS, int POINTS, int PANEL, class Point>
MERCER_INLINE void copy_points(REAL* to, const Point* from, i64 first, i64 count, i64 point_stride, i64 feature_stride,
                               int k0, int depth) {
  if (STREAMS == 0) return;
  for (int c = threadIdx.x; c < TILE_K * POINTS; c += THREADS) {
    const int p = c / TILE_K, kk = c % TILE_K;
    if (kk >= depth) continue;
    const i64 point = first + p < count ? first + p : count - 1;
    to[place_of<1, PANEL>(kk, 0, p)] = widen<REAL>(from[point * point_stride + (k0 + kk) * feature_stride]);
  }
}

// The features of a block where it has a range of them (pair_ranges.cuh), else nothing.
template <bool BY_RANGES>
struct BlockFeatures {
  enum { first_k = 0, end_k = 0 };
};
template <>
struct BlockFeatures<true> {
  int range, first_k, end_k;
  u32 place;  // of the tile in this launch
};
#define FIRST_FEATURE ((int)block.first_k)
#define END_FEATURE (RANGES ? (int)block.end_k : FEATURES)

// What a block computes.
struct BlockPlace {
  const REAL *x, *z;            // panels of the tile of m; panels of all n
  i64 x_panel, z_panel;         // elements of a panel
  i64 m0, x_set, z_set, item, group, column;
  int first_tile, end_tile;
};
// That and the progress of its copies. In shared memory: registers are for accumulators.
struct Block : BlockPlace, BlockFeatures<RANGES> {
  // Slices still to be copied; where the next one comes from and goes to. Apart from what all threads read at once.
  alignas(16) int left;
  int tile, copy_k, stage;
  const REAL *next_x, *next_z;
};

template <class Arguments>
MERCER_INLINE i64 column_of(const Arguments& a, int tile) {
  if constexpr (CONSUMER == NEAREST)
    return candidate_column(a.found, a.n, tile);
  else
    return (i64)tile * TILE_N;
}

MERCER_INLINE void find_sources(Block& b, const PairArguments& a) {
  const i64 n0 = column_of(a, b.tile);
  b.next_x = b.x;
  b.next_z = b.z + n0 / PANEL_POINTS * b.z_panel + n0 % PANEL_POINTS;
}

// Blocks that follow one another have the ranges of one tile; returns its place.
template <class Place>
MERCER_INLINE u32 take_range(Place& b, const PairArguments& a, u32 place) {
  b.range = place % a.ranges.count;
  b.place = place / a.ranges.count;
  b.first_k = b.range * a.ranges.length;
  b.end_k = a.k - b.first_k < a.ranges.length ? a.k : b.first_k + a.ranges.length;
  return b.place + (u32)a.ranges.first_place;
}

// Blocks are numbered so that eight tiles of m go together through n: those that run at the same time share panels in
// the second-level cache.
MERCER_INLINE void find_place(Block& b, const PairArguments& a, u32 place) {
  if constexpr (RANGES) place = take_range(b, a, place);
  const u32 tiles_m = (u32)a.tiles_m, columns = (u32)(ONE_TILE ? a.tiles_n : a.splits);
  b.group = 0;
  if (a.groups.count > 0) {
    b.group = place / (tiles_m * columns);
    place %= tiles_m * columns;
  }
  const u32 strip = place / (8 * columns), in_strip = place % (8 * columns);
  const u32 height = tiles_m - strip * 8 < 8 ? tiles_m - strip * 8 : 8;
  b.m0 = (i64)(strip * 8 + in_strip % height) * TILE_M;
  b.column = in_strip / height;
  b.first_tile = (int)(ONE_TILE ? b.column : a.tiles_n * b.column / a.splits);
  b.end_tile = (int)(ONE_TILE ? b.column + 1 : a.tiles_n * (b.column + 1) / a.splits);
  // Nothing of a symmetric matrix lies below the diagonal.
  if (CONSUMER == STORE && a.symmetric && b.first_tile < b.m0 / TILE_N) b.first_tile = (int)(b.m0 / TILE_N);
  b.x_set = batch_offset(a.groups, a.x.step, b.group);
  b.z_set = batch_offset(a.groups, a.z.step, b.group);
  b.item = batch_offset(a.groups, a.params.step, b.group);
  b.x_panel = (i64)panel_rows(a.k) * WORDS_X * PANEL_POINTS;
  b.z_panel = (i64)panel_rows(a.k) * WORDS_Z * PANEL_POINTS;
  b.x = (const REAL*)a.x.points + (b.x_set * (a.x.ld / PANEL_POINTS) + b.m0 / PANEL_POINTS) * b.x_panel +
        b.m0 % PANEL_POINTS;
  b.z = (const REAL*)a.z.points + b.z_set * (a.z.ld / PANEL_POINTS) * b.z_panel;
  const int features = RANGES ? (int)b.end_k - (int)b.first_k : FEATURES;
  b.left = b.first_tile < b.end_tile ? (b.end_tile - b.first_tile) * ((features + TILE_K - 1) / TILE_K) : 0;
  b.tile = b.first_tile;
  b.copy_k = b.stage = 0;
  find_sources(b, a);
  if constexpr (RANGES) {
    b.copy_k = b.first_k;
    b.next_x += (i64)b.first_k * WORDS_X * PANEL_POINTS;
    b.next_z += (i64)b.first_k * WORDS_Z * PANEL_POINTS;
  }
}

// Asks for the next slice. BULK: one thread, the copy engine; a barrier counts the bytes in.
MERCER_INLINE void copy_slice(Block& b, const PairArguments& a, REAL* shared, u64* full) {
  const int k = RANGES ? (int)b.end_k : FEATURES;
  const int depth = WHOLE_SLICES || k - b.copy_k >= TILE_K ? TILE_K : panel_rows(k - b.copy_k);
  REAL* slice = shared + b.stage * SLICE;
  const REAL *x = b.next_x, *z = b.next_z;
  if constexpr (DIRECT) {
    copy_points<X_STREAMS, TILE_M, PANEL_X>(slice, (const POINT*)a.x.points + b.x_set, b.m0, a.m, a.x.point,
                                            a.x.feature, b.copy_k, depth);
    copy_points<Z_STREAMS, TILE_N, PANEL_Z>(slice + SLICE_X, (const POINT*)a.z.points + b.z_set, (i64)b.tile * TILE_N,
                                            a.n, a.z.point, a.z.feature, b.copy_k, depth);
  } else if constexpr (BULK) {
    const u32 barrier = shared_address(full + b.stage);
    barrier_expect(barrier, depth * (WORDS_X * TILE_M + WORDS_Z * TILE_N) * sizeof(REAL));
    copy_panels_bulk<WORDS_X, TILE_M>(slice, x, b.x_panel, depth, barrier);
    copy_panels_bulk<WORDS_Z, TILE_N>(slice + SLICE_X, z, b.z_panel, depth, barrier);
  } else {
    copy_panels<WORDS_X, TILE_M, PANEL_X>(slice, x, b.x_panel, depth);
    copy_panels<WORDS_Z, TILE_N, PANEL_Z>(slice + SLICE_X, z, b.z_panel, depth);
  }
  b.copy_k += TILE_K;
  b.next_x = x + TILE_K * WORDS_X * PANEL_POINTS;
  b.next_z = z + TILE_K * WORDS_Z * PANEL_POINTS;
  if (b.copy_k >= k) {
    b.copy_k = 0;
    ++b.tile;
    find_sources(b, a);
  }
  if (++b.stage == STAGES) b.stage = 0;
  --b.left;
}

MERCER_INLINE void init_barriers(u64* full, u64* empty) {
  for (int s = 0; s < STAGES; ++s) {
    barrier_init(shared_address(full + s), 1);
    barrier_init(shared_address(empty + s), THREADS / 32);
  }
  barrier_init_done();
}

// A warp of its own asks for the slices of differences: those that multiply go in step, and would all wait for the one
// that asks.
struct FedSlices {
  u64 *full, *empty;
  int stage = 0;
  u32 parity = 0;

  template <class Wanted>
  MERCER_METHOD void start(Block& block, const PairArguments& a, u32 place_of_block, REAL*, const Wanted&) const {
    if (threadIdx.x == 0) {
      find_place(block, a, place_of_block);
      init_barriers(full, empty);
    }
    __syncthreads();
  }
  MERCER_METHOD void feed(Block& block, const PairArguments& a, REAL* shared) {
    if (threadIdx.x != THREADS) return;
    while (block.left > 0) {
      barrier_await(shared_address(empty + stage), parity ^ 1);
      copy_slice(block, a, shared, full);
      advance();
    }
  }
  MERCER_METHOD void wait() const { barrier_wait(shared_address(full + stage), parity); }
  // Products have been waited for, and nothing else reads a slice.
  MERCER_METHOD void next() {
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(empty + stage));
    advance();
  }

 private:
  MERCER_METHOD void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// A block's way through the places of its slices. A place is filled again one step after it was read, so that no warp
// waits for the slowest; and warps take turns in asking for slices, since the first ones of all blocks share a
// scheduler.
struct BulkPlaces {
  u64 *full, *empty;  // barriers of the places
  int stage = 0;      // the place that is read

  template <class Wanted>
  MERCER_METHOD void start(Block& block, const PairArguments& a, u32 place_of_block, REAL* shared,
                           const Wanted& is_wanted) {
    if (threadIdx.x == 0) {
      find_place(block, a, place_of_block);
      init_barriers(full, empty);
    }
    if constexpr (EARLY_PLACE) wait_for_kernel_ahead();
    if (threadIdx.x == 0) {
      if (!is_wanted()) block.left = 0;
#pragma unroll 1
      for (int s = 0; s < STAGES && block.left > 0; ++s) copy_slice(block, a, shared, full);
    }
    __syncthreads();
  }
  // Asks for the slice that takes the place of the one before that which was read.
  MERCER_METHOD void ask(Block& block, const PairArguments& a, REAL* shared, u32 parity) {
    barrier_wait(shared_address(empty + (stage == 0 ? STAGES - 1 : stage - 1)), stage == 0 ? parity ^ 1 : parity);
    if (block.left > 0) copy_slice(block, a, shared, full);
  }
  // So that another tile can have barriers in their place.
  MERCER_METHOD void end() const {
    __syncthreads();
    if (threadIdx.x == 0)
      for (int s = 0; s < STAGES; ++s) {
        barrier_end(shared_address(full + s));
        barrier_end(shared_address(empty + s));
      }
    __syncthreads();
  }
};

// Addresses of the barriers stay in registers. `next` is called after the slice that was read.
struct BulkSlices : BulkPlaces {
  u32 parity = 0, first_full, full_at;
  bool is_first_lane;
  int turn;

  template <class Wanted>
  MERCER_METHOD void start(Block& block, const PairArguments& a, u32 place_of_block, REAL* shared,
                           const Wanted& is_wanted) {
    BulkPlaces::start(block, a, place_of_block, shared, is_wanted);
    first_full = full_at = shared_address(full);
    is_first_lane = threadIdx.x % 32 == 0;
    turn = !is_first_lane ? 0x7fffffff : threadIdx.x == 0 ? THREADS / 32 : threadIdx.x / 32;
  }
  MERCER_METHOD void wait(Block&, const PairArguments&, REAL*) const { barrier_wait(full_at, parity); }
  MERCER_METHOD void next(Block& block, const PairArguments& a, REAL* shared) {
    if (turn-- == 0) {
      turn = THREADS / 32 - 1;
      ask(block, a, shared, parity);
    }
    async_fence();
    __syncwarp();
    if (is_first_lane) barrier_arrive(full_at + STAGES * (u32)sizeof(u64));
    full_at += sizeof(u64);
    if (stage == STAGES - 1) parity ^= 1, full_at = first_full;
    if (++stage == STAGES) stage = 0;
  }
};

// On mixed pipes addresses are found anew, as those of operands.
struct MixedSlices : BulkPlaces {
  u32 step = 0, parity = 0;
  bool is_first = true;

  MERCER_METHOD void wait(Block&, const PairArguments&, REAL*) const {
    barrier_wait(shared_address(full + stage), parity);
  }
  MERCER_METHOD void next(Block& block, const PairArguments& a, REAL* shared) {
    if (threadIdx.x == step * 32 && !is_first) ask(block, a, shared, parity);
    async_fence();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(shared_address(empty + stage));
    is_first = false;
    if (++step == THREADS / 32) step = 0;
    if (stage == STAGES - 1) parity ^= 1;
    if (++stage == STAGES) stage = 0;
  }
};

// All threads copy a part of each slice, and meet before they read one.
struct SharedSlices {
  int stage = 0;
  template <class Wanted>
  MERCER_METHOD void start(Block& block, const PairArguments& a, u32 place_of_block, REAL* shared,
                           const Wanted&) const {
    find_place(block, a, place_of_block);
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
      if (block.left > 0) copy_slice(block, a, shared, nullptr);
      commit_copies();
    }
    __syncthreads();
  }
  MERCER_METHOD void wait(Block& block, const PairArguments& a, REAL* shared) const {
    wait_copies<STAGES - 2>();
    __syncthreads();
    if (block.left > 0) copy_slice(block, a, shared, nullptr);
    commit_copies();
  }
  MERCER_METHOD void next(Block&, const PairArguments&, REAL*) {
    if (++stage == STAGES) stage = 0;
  }
};

// What a block knows of its operands apart from slices: nothing; pair_differences.cuh has more.
struct NoOperands {};
template <class Turns>
MERCER_INLINE NoOperands operands_of_block(const Turns&, const REAL*) {
  return {};
}

using SliceTurns =
    Either<BY_DIFFERENCES, FedSlices, Either<!BULK, SharedSlices, Either<MIXED == 1, MixedSlices, BulkSlices>>>;
