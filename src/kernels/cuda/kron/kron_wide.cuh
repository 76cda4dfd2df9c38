// A pass over two factors at the end of a row of x, or over one factor anywhere, on tensor cores of compute capability
// 9.0:
//
//   pair:    for item, b:     to[j1, j2] = sum_k1 sum_k2 F1[k1, j1] from[k1, k2] F2[k2, j2]
//   single:  for item, b, a:  to[j1, a]  = sum_k1        F1[k1, j1] from[k1, a]
//
// b counts rows and what stands before the factors, a what comes after. A tile T is from[P1][P2] of a b, or
// from[P1][TILE_N] of a piece of a's. It belongs to one row of x and has one scale; or, COLUMN_SCALES, its columns may
// be of different rows, and each has its own.
//
//               c: k2 or a                           j2
//             +------------+                    +------------+
//         k1  | T, image   |                 c  | F2, image  |       images: pieces of 16 bits in shared memory, high
//             +------------+                    +------------+       ones, then low ones
//    +------+ +------------+  pieces   +------+ +------------+
//    | F1^T | | D1 = F1^T T|  ------>  | D1   | | D1 F2      |       j1: 64 rows a warpgroup; D1 stays in registers
//    +------+ +------------+           +------+ +------------+
//
// Every operand is scaled by a power of two, magnitudes below 2^X_EXPONENT, 2^EXPONENT_1 and 2^EXPONENT_2, and split,
// v = high + low, 22 digits: low high + high low first, then high high, for tensor cores truncate what they accumulate.
// docs/kernels/kron.md bounds the error.
//
// Order within images. Depth of the first factor: slot 16 s + 4 t + i is k1 = 16 s + 4 i + t, so that the four rows of
// a lane are neighbours. Columns of T: slot n is c = quad_at(n), so that a lane's sums are four neighbours of the
// output; the depth of the second factor and its outputs follow.
//
// Persistent blocks. GROUPS tiles are under way in a block, each of WARPGROUPS: some multiply while others split or
// store. A thread loads its ITEMS * 16 values of the next tile during the products of this one.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "common/warpgroups.cuh"
#include "kron/kron_values.cuh"

#define GROUP_WARPS (4 * WARPGROUPS)
#define WIDE_THREADS (GROUPS * WARPGROUPS * 128)
#define STEPS_1 ((P1 + 15) / 16)
#define STEPS_2 (TILE_N / 16)
#define ROWS_1 ((Q1 + 63) / 64 * 64)
#define ROWS_2 ((Q2 + 15) / 16 * 16)
#define BLOCKS_OF(steps) (((steps) + 3) / 4)
#define PIECE_1 (BLOCKS_OF(STEPS_1) * ROWS_1 * 128)
#define PIECE_2 (PAIR ? BLOCKS_OF(STEPS_2) * ROWS_2 * 128 : 0)
#define PIECE_X (BLOCKS_OF(STEPS_1) * TILE_N * 128)
#define TAIL (2 * (PIECE_1 + PIECE_2 + GROUPS * PIECE_X))
#define COLUMN_BLOCKS ((TILE_N + 31) / 32)
#define PIECES (STEPS_1 * COLUMN_BLOCKS)
#define ITEMS ((PIECES + GROUP_WARPS - 1) / GROUP_WARPS)
#define COLUMNS_IN (PAIR ? P2 : TILE_N)
#define COLUMN_SLOTS (COLUMN_BLOCKS * 32)
#define MAXIMA_BYTES 256
// Whether all that a thread loads, or stores, is there, WHOLE_N: whatever tile it is.
#define LOADS_WHOLE (P1 % 16 == 0 && PIECES % GROUP_WARPS == 0 && COLUMNS_IN % 32 == 0 && WHOLE_N)
#define STORES_WHOLE (Q1 % 64 == 0 && (PAIR ? Q2 : TILE_N) % 16 == 0 && WHOLE_N)
#define COLUMN_BYTES (COLUMN_SCALES * 2 * GROUPS * COLUMN_SLOTS * 4)
// The stage of each warp, where elements come or go one at a time: 16 rows of 32 columns, and gaps between them so that
// its lanes read four neighbours each without meeting in a bank.
#define STAGE_ROW 40
#define STAGE (16 * STAGE_ROW)

struct WideLane {
  int group, warp, g, t;  // warp within the group; lane = 4 g + t
  MERCER_METHOD WideLane() {
    const int all = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    group = all / GROUP_WARPS;
    warp = all % GROUP_WARPS;
    g = threadIdx.x % 32 / 4;
    t = threadIdx.x % 4;
  }
  // What follows from these is computed again: the compiler would keep dozens of addresses, and spill them.
  MERCER_METHOD void forget() {
    keep(warp);
    keep(g);
    keep(t);
  }
};

MERCER_INLINE void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(GROUP_WARPS * 32) : "memory");
}
MERCER_INLINE void store_pieces(u32 address, u32 x, u32 y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
MERCER_INLINE void store_pieces(u32 address, const u32 (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// ---- scales ---------------------------------------------------------------------------------------------------------
// The least e with a value of these bits below 2^e.
MERCER_INLINE int exponent_above(u32 bits) {
  if (bits == 0) return 0;
  return bits >> 23 ? (int)(bits >> 23) - 126 : -117 - __clz(bits);
}
MERCER_INLINE float near_power(int exponent) { return power_of_two(max(-126, min(exponent, 127))); }
// The exponent may be one that no float has.
MERCER_INLINE float scaled(float v, int exponent) {
  return v * near_power(exponent / 2) * near_power(exponent - exponent / 2);
}

// ---- images ---------------------------------------------------------------------------------------------------------
MERCER_INLINE int quad_at(int n) { return (n & ~15) + 4 * ((n & 7) >> 1) + 2 * ((n >> 3) & 1) + (n & 1); }
// A row of 64 slots is a line; 16-byte chunk c of row r lies at c ^ (r % 8).
MERCER_INLINE u32 chunk_at(u32 rows, u32 row, u32 chunk) {
  return chunk / 8 * (rows * 128) + row * 128 + ((chunk % 8 ^ row % 8) << 4);
}
// An image as an operand; lines of eight rows are 1024 bytes. Then that of 16 slots, so many bytes on: addresses stay
// below the 14 bits that are theirs.
MERCER_INLINE u64 operand_of(u32 image) {
  return (u64)1 << 62 | (u64)64 << 32 | (u64)1 << 16 | (u64)((image & 0x3ffff) >> 4);
}
MERCER_INLINE u64 operand_at(u64 image, int rows, int step, int bytes = 0) {
  return image + ((bytes + step / 4 * (rows * 128) + step % 4 * 32) >> 4);
}

// A thread's part of a factor; SECOND: of a pair. A chunk has eight slots of depth.
template <bool SECOND>
struct WideFactor {
  static constexpr u32 kRows = SECOND ? ROWS_2 : ROWS_1, kChunks = (SECOND ? STEPS_2 : STEPS_1) * 2;
  static constexpr u32 kUnits = (kRows * kChunks + WIDE_THREADS - 1) / WIDE_THREADS;
  static constexpr int kP = SECOND ? P2 : P1, kQ = SECOND ? Q2 : Q1, kPiece = SECOND ? PIECE_2 : PIECE_1;
  float values[kUnits][8];

  // Returns the bits of the largest finite magnitude.
  MERCER_STEP_METHOD u32 load(const KronArguments& k, int item) {
    const KronMatrix& factor = k.factors[SECOND ? 1 : 0];
    const FACTOR* from = (const FACTOR*)factor.data + kron_offset(k.items, factor.item_step, item);
#pragma unroll
    for (u32 unit = 0; unit < kUnits; ++unit) {
      const u32 e = unit * WIDE_THREADS + threadIdx.x, row = e % kRows, chunk = e / kRows;
      const int q = SECOND ? quad_at(row) : row, first = chunk / 2 * 16 + chunk % 2 * 2;
      const FACTOR* place = from + first * factor.p_stride + q * factor.q_stride;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int p = SECOND ? i / 2 * 4 + i % 2 : i % 4 * 4 + i / 4;
        const bool inside = chunk < kChunks && first + p < kP && q < kQ;
        values[unit][i] = inside ? kron_load(place[p * factor.p_stride]) : 0.0f;
      }
    }
    u32 most = 0;
#pragma unroll
    for (u32 e = 0; e < kUnits * 8; ++e) most = max(most, finite_bits(values[e / 8][e % 8]));
    return most;
  }
  // Returns the exponent of the scale.
  MERCER_STEP_METHOD int write(u32 image, u32 most) const {
    const int exponent = most == 0 ? 0 : (SECOND ? EXPONENT_2 : EXPONENT_1) - exponent_above(most);
#pragma unroll
    for (u32 unit = 0; unit < kUnits; ++unit) {
      const u32 e = unit * WIDE_THREADS + threadIdx.x, row = e % kRows, chunk = e / kRows;
      const float(&own)[8] = values[unit];
      u32 high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        split_pair(scaled(own[2 * i], exponent), scaled(own[2 * i + 1], exponent), high[i], low[i]);
      if (chunk >= kChunks) continue;
      const u32 place = image + chunk_at(kRows, row, chunk);
      store_pieces(place, high);
      store_pieces(place + kPiece, low);
    }
    return exponent;
  }
};

// Images of both factors of an item, by all threads of the block; returns the exponent of both scales. `maxima` has
// two words for each warp.
MERCER_STEP int make_images(const KronArguments& k, int item, u32 first, u32 second, u32* maxima) {
  constexpr int kWarps = WIDE_THREADS / 32;
  WideFactor<false> one;
  u32 most[2] = {one.load(k, item), 0};
  WideFactor<true> two;
  if constexpr (PAIR) most[1] = two.load(k, item);
  __syncthreads();  // the images before these have been read
#pragma unroll
  for (int f = 0; f < 1 + PAIR; ++f) {
    most[f] = __reduce_max_sync(0xffffffffu, most[f]);
    if (threadIdx.x % 32 == 0) maxima[f * kWarps + threadIdx.x / 32] = most[f];
  }
  __syncthreads();
#pragma unroll
  for (int f = 0; f < 1 + PAIR; ++f)
#pragma unroll
    for (int i = 0; i < kWarps; ++i) most[f] = max(most[f], maxima[f * kWarps + i]);
  int exponent = one.write(first, most[0]);
  if constexpr (PAIR) exponent += two.write(second, most[1]);
  async_fence();
  __syncthreads();
  return exponent;
}

// ---- tiles in memory ------------------------------------------------------------------------------------------------
// Where a tile lies: from its places on in memory, and for the way out its columns. There are fewer than 2^31 tiles,
// items and rows.
struct WideTile {
  i64 from, to, y, a;
  int columns_out;

  WideTile() = default;
  MERCER_STEP_METHOD WideTile(const KronArguments& k, u32 tile) {
    a = 0;
    if (!PAIR) {
      const u32 a_tiles = (u32)((k.right + TILE_N - 1) / TILE_N), next = tile / a_tiles;
      a = (i64)(tile - next * a_tiles) * TILE_N;
      tile = next;
    }
    int item = 0;
    if (k.item_count != 1) {
      const u32 b_count = (u32)(k.row_count * k.left);
      item = (int)(tile / b_count);
      tile -= (u32)item * b_count;
    }
    const u32 left = (u32)k.left;
    const int row = (int)(left == 1 ? tile : tile / left), l = (int)(tile - (u32)row * left);
    from = place(k, k.from, item, row, l);
    to = place(k, k.to, item, row, l);
    if (FINAL) y = place(k, k.y, item, row, l);
    columns_out = PAIR ? Q2 : columns(k);
  }
  MERCER_METHOD static i64 place(const KronArguments& k, const KronSide& side, int item, int row, int l) {
    i64 at = kron_offset(k.rows, side.row_step, row) + l * side.left;
    if (k.item_count != 1) at += kron_offset(k.items, side.item_step, item);
    return at;
  }
  // Columns from a on.
  MERCER_METHOD int columns(const KronArguments& k) const {
    return WHOLE_N ? TILE_N : (int)min(k.right - a, (i64)TILE_N);
  }
};

// Element (row, column) of a tile from its place on; of a pair `line` elements of the joined axis are a row. VECTORS:
// neighbours are neighbours in memory.
template <bool VECTORS>
MERCER_INLINE i64 element_at(const KronSide& side, int line, i64 a, int row, int column) {
  if (PAIR) return VECTORS ? row * line + column : (i64)(row * line + column) * side.axis;
  if (VECTORS) return row * side.axis + a + column;
  return row * side.axis + (COLUMN_SCALES ? kron_behind(side, a + column) : (a + column) * side.behind);
}

// The step from a row of a tile to the next.
MERCER_INLINE i64 row_step(const KronSide& side, int line) { return PAIR ? line * side.axis : side.axis; }

template <class T, int N>
MERCER_INLINE void load_pack(float* to, const T* from) {
  typedef typename Word<sizeof(T) * N>::type W;
  Pack<T, N> pack;
  *(W*)&pack = *(const W*)from;
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = kron_load(pack.value[i]);
}

typedef float WideValues[ITEMS][4][4];

// One element at a time, neighbours go to neighbouring lanes: row r of a piece, column `lane`, is value r of its item,
// until regroup() has put it where the comment of load_tile says.
#define BY_LANES (IN_WIDTH == 1)
MERCER_INLINE void load_by_lanes(const KronArguments& k, const WideLane& lane, const WideTile& tile, const IN* from,
                                 int columns, WideValues& values) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const u32 piece = item * GROUP_WARPS + (u32)lane.warp;
    const int column = piece % COLUMN_BLOCKS * 32 + threadIdx.x % 32, first = piece / COLUMN_BLOCKS * 16;
    const int rows = column < columns ? P1 - first : 0;
    const IN* at = from + element_at<false>(k.from, P2, tile.a, first, column);
#pragma unroll
    for (int r = 0; r < 16; ++r, at += row_step(k.from, P2)) {
      float& value = values[item][r / 4][r % 4];
      value = 0;
      if (r < rows) value = kron_load(*at);
    }
  }
}
MERCER_INLINE void regroup(const WideLane& lane, WideValues& values, float* stage) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
#pragma unroll
    for (int r = 0; r < 16; ++r) stage[r * STAGE_ROW + threadIdx.x % 32] = values[item][r / 4][r % 4];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_pack<float, 4>(values[item][i], stage + (4 * i + lane.t) * STAGE_ROW + lane.g * 4);
    __syncwarp();
  }
}

// Rows 16 s + 4 i + t and columns 32 b + 4 g ... of a warp's pieces (s, b), zeros beyond the edges.
MERCER_STEP void load_tile(const KronArguments& k, const WideLane& lane, const WideTile& tile, WideValues& values) {
  const IN* from = (const IN*)k.from.data + tile.from;
  const int columns = PAIR ? P2 : tile.columns(k);
  if (BY_LANES) return load_by_lanes(k, lane, tile, from, columns, values);
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const u32 piece = item * GROUP_WARPS + (u32)lane.warp;
    const int column = piece % COLUMN_BLOCKS * 32 + lane.g * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = piece / COLUMN_BLOCKS * 16 + 4 * i + lane.t;
#pragma unroll
      for (int j = 0; j < 4; j += IN_WIDTH) {
        if (!LOADS_WHOLE) {
#pragma unroll
          for (int e = 0; e < IN_WIDTH; ++e) values[item][i][j + e] = 0;
          if (row >= P1 || column + j >= columns) continue;
        }
        load_pack<IN, IN_WIDTH>(&values[item][i][j],
                                from + element_at<(IN_WIDTH > 1)>(k.from, P2, tile.a, row, column + j));
      }
    }
  }
}

// Bits of the largest finite magnitude. Maxima drop NaN.
MERCER_STEP u32 most_of(const WideValues& values) {
  float most = 0;
#pragma unroll
  for (int e = 0; e < ITEMS * 16; ++e) most = fmaxf(most, fabsf(values[e / 16][e / 4 % 4][e % 4]));
  if (most < INFINITY) return bits_of(most);
  most = 0;
#pragma unroll
  for (int e = 0; e < ITEMS * 16; ++e) {
    const float value = fabsf(values[e / 16][e / 4 % 4][e % 4]);
    most = value < INFINITY ? fmaxf(most, value) : most;
  }
  return bits_of(most);
}

// The exponent for values whose largest finite one has these bits.
MERCER_INLINE int x_exponent(u32 most) { return most == 0 ? 0 : X_EXPONENT - exponent_above(most); }

struct TileScale {
  float scale;
  int exponent;
  MERCER_METHOD TileScale(WideValues& values, u32 most) : exponent(x_exponent(most)) {
    const int rest = exponent > 126 ? 100 : 0;  // beyond what one factor can do
    scale = power_of_two(exponent - rest);
    if (rest == 0) return;
#pragma unroll
    for (int e = 0; e < ITEMS * 16; ++e) values[e / 16][e / 4 % 4][e % 4] *= 0x1p100f;
  }
  MERCER_METHOD const TileScale& column(int) const { return *this; }
  MERCER_METHOD float operator()(float v) const { return v * scale; }
};

// COLUMN_SCALES:
struct ColumnScale {
  float first, second;
  MERCER_METHOD float operator()(float v) const { return v * first * second; }
};
struct ColumnScales {
  const u32* most;  // of each column
  MERCER_METHOD ColumnScale column(int c) const {
    const int exponent = x_exponent(most[c]);
    return {near_power(exponent / 2), near_power(exponent - exponent / 2)};
  }
};

// Bits of the largest finite magnitudes of columns, which begin with zeros.
MERCER_INLINE void add_column_maxima(const WideLane& lane, const WideValues& values, u32* most) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const u32 piece = item * GROUP_WARPS + (u32)lane.warp;
    u32 own = 0;  // of column 4 g + t
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      u32 bits = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) bits = max(bits, finite_bits(values[item][i][j]));
      bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, 1));
      bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, 2));
      if (lane.t == j) own = bits;
    }
    atomicMax(most + piece % COLUMN_BLOCKS * 32 + lane.g * 4 + lane.t, own);
  }
}

// Scales the tile and makes its image.
template <class Scale>
MERCER_STEP void write_tile(const WideLane& lane, const WideValues& values, const Scale& scale, u32 image) {
#pragma unroll
  for (int item = 0; item < ITEMS; ++item) {
    const u32 piece = item * GROUP_WARPS + (u32)lane.warp, step = piece / COLUMN_BLOCKS;
    if (PIECES % GROUP_WARPS != 0 && piece >= PIECES) break;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float(&v)[4][4] = values[item];
      const auto& scaled = scale.column(piece % COLUMN_BLOCKS * 32 + lane.g * 4 + j);
      u32 high[2], low[2];
      split_pair(scaled(v[0][j]), scaled(v[1][j]), high[0], low[0]);
      split_pair(scaled(v[2][j]), scaled(v[3][j]), high[1], low[1]);
      const u32 g = lane.g, t = lane.t, n = piece % COLUMN_BLOCKS * 32 + g / 4 * 16 + j / 2 * 8 + g % 4 * 2 + j % 2;
      if (TILE_N % 32 != 0 && n >= TILE_N) continue;
      const u32 place = image + chunk_at(TILE_N, n, step * 2 + t / 2) + t % 2 * 8;
      store_pieces(place, high[0], high[1]);
      store_pieces(place + PIECE_X, low[0], low[1]);
    }
  }
}

// ---- results --------------------------------------------------------------------------------------------------------
// Undoes the scale of a tile, or of a column: value() does it, after prepare() of all the sums of the former. Only
// exponents that no float has, or alpha, need two factors.
struct WideFinish {
  float scale, rest, beta;
  MERCER_METHOD WideFinish(const KronArguments& k, int exponent) {
    const int first = max(-126, min(-exponent, 127));
    scale = power_of_two(first);
    rest = near_power(-exponent - first);
    beta = 0;
    if (!FINAL) return;
    kron_scalar(beta, k.alpha);
    rest *= beta;
    kron_scalar(beta, k.beta);
  }
  MERCER_METHOD const WideFinish& column(int) const { return *this; }
  template <int N>
  MERCER_METHOD void prepare(float (&sums)[N]) const {
    if (rest == 1) return;
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] *= rest;
  }
  MERCER_METHOD float value(float sum) const { return sum * scale; }
};
// COLUMN_SCALES:
struct ColumnUnscale {
  float scale, rest;
  MERCER_METHOD float value(float sum) const { return sum * rest * scale; }
};
struct ColumnFinish {
  const KronArguments& k;
  const u32* most;
  int exponent;  // of the factor
  float beta;
  MERCER_METHOD ColumnFinish(const KronArguments& k, int exponent, const u32* most)
      : k(k), most(most), exponent(exponent), beta(0) {
    if (FINAL) kron_scalar(beta, k.beta);
  }
  MERCER_METHOD ColumnUnscale column(int c) const {
    const WideFinish own(k, exponent + x_exponent(most[c]));
    return {own.scale, own.rest};
  }
  template <int N>
  MERCER_METHOD void prepare(float (&)[N]) const {}
};

// Four neighbours of row j1 from this column on.
MERCER_INLINE void store_quad(const KronArguments& k, float beta, OUT* to, const OUT* y, i64 a, int columns, int row,
                              int column, const float (&values)[4]) {
#pragma unroll
  for (int j = 0; j < 4; j += OUT_WIDTH) {
    if (!STORES_WHOLE && (row >= Q1 || column + j >= columns)) continue;
    Pack<OUT, OUT_WIDTH> pack;
    float added[OUT_WIDTH];
    if (FINAL && k.y.data)
      load_pack<OUT, OUT_WIDTH>(added, y + element_at<(OUT_WIDTH > 1)>(k.y, Q2, a, row, column + j));
#pragma unroll
    for (int e = 0; e < OUT_WIDTH; ++e) {
      float value = values[j + e];
      if (FINAL && k.y.data) value = mul_add(beta, added[e], value);
      kron_store(pack.value[e], value);
    }
    store_pack<OUT, OUT_WIDTH>(to + element_at<(OUT_WIDTH > 1)>(k.to, Q2, a, row, column + j), pack);
  }
}

struct WideOut {
  OUT* to;
  const OUT* y;
  float* stage;
  i64 a;
  int columns, row;
  MERCER_METHOD WideOut(const KronArguments& k, const WideLane& lane, const WideTile& tile, float* stage)
      : stage(stage), a(tile.a), columns(tile.columns_out) {
    to = (OUT*)k.to.data + tile.to;
    y = FINAL && k.y.data ? (const OUT*)k.y.data + tile.y : nullptr;
    row = lane.warp * 16 + lane.g;
  }
  // A lane's sums of 2 N columns from this one on.
  template <int N, class Finish>
  MERCER_STEP_METHOD void store(const KronArguments& k, const WideLane& lane, const Finish& finish, int column,
                                float (&sums)[N]) const {
    finish.prepare(sums);
    if constexpr (OUT_WIDTH == 1) {
#pragma unroll
      for (int p = 0; p + 1 < N / 8; p += 2) store_by_lanes<2>(k, lane, finish, column + 16 * p, sums + 8 * p);
      if constexpr (N / 8 % 2 == 1) store_by_lanes<1>(k, lane, finish, column + 2 * N - 16, sums + N - 8);
    } else {
#pragma unroll
      for (int p = 0; p < N / 8; ++p) {
        const int first = column + 16 * p + 4 * lane.t;
        float values[2][4];
        finish_quads(finish, first, sums + 8 * p, values);
#pragma unroll
        for (int h = 0; h < 2; ++h) store_quad(k, finish.beta, to, y, a, columns, row + 8 * h, first, values[h]);
      }
    }
  }
  // Finishes rows g and g + 8, four columns from this one on.
  template <class Finish>
  MERCER_METHOD static void finish_quads(const Finish& finish, int column, const float* sums, float (&values)[2][4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const auto& own = finish.column(column + j);
#pragma unroll
      for (int h = 0; h < 2; ++h) values[h][j] = own.value(sums[2 * h + j / 2 * 4 + j % 2]);
    }
  }
  // One element at a time: 16 rows of 16 PIECES_N columns, a warp's width a turn. Halves of odd rows change places, so
  // that lanes that write meet in no bank.
  template <int PIECES_N, class Finish>
  MERCER_METHOD void store_by_lanes(const KronArguments& k, const WideLane& lane, const Finish& finish, int first,
                                    const float* sums) const {
    constexpr int LINE = 16 * PIECES_N, STEP = 2 / PIECES_N;  // rows a turn
    const auto at_column = [&](int r, int c) { return r * LINE + (PIECES_N == 2 ? c ^ r % 2 * 16 : c); };
#pragma unroll
    for (int p = 0; p < PIECES_N; ++p) {
      const int column = 16 * p + lane.t * 4;
      alignas(16) float values[2][4];
      finish_quads(finish, first + column, sums + 8 * p, values);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *(Pack<float, 4>*)(stage + at_column(lane.g + 8 * h, column)) = *(const Pack<float, 4>*)values[h];
    }
    __syncwarp();
    const int own = threadIdx.x % 32, column = own % LINE, first_row = own / LINE;
    const int rows = first + column < columns ? Q1 - row_of_warp(lane) - first_row : 0;
    OUT* const at = to + element_at<false>(k.to, Q2, a, row_of_warp(lane) + first_row, first + column);
    const i64 step = row_step(k.to, Q2);
    if (FINAL && y) {
      const OUT* const added = y + element_at<false>(k.y, Q2, a, row_of_warp(lane) + first_row, first + column);
      const i64 y_step = row_step(k.y, Q2);
#pragma unroll
      for (int r = 0; r < 16; r += STEP)
        if (r < rows) {
          const float value = stage[at_column(r + first_row, column)];
          kron_store(at[r * step], mul_add(finish.beta, kron_load(added[r * y_step]), value));
        }
    } else {
#pragma unroll
      for (int r = 0; r < 16; r += STEP)
        if (r < rows) kron_store(at[r * step], stage[at_column(r + first_row, column)]);
    }
    __syncwarp();
  }
  MERCER_METHOD static int row_of_warp(const WideLane& lane) { return lane.warp * 16; }
};

// ---- products -------------------------------------------------------------------------------------------------------
template <int N>
MERCER_INLINE void end_products(float (&sums)[N]) {
  products_commit();
  products_wait<0>();
#pragma unroll
  for (int i = 0; i < N; ++i) keep(sums[i]);
}

// Rows of a warpgroup of F1^T T. `first` begins with them.
MERCER_STEP void multiply_first(float (&sums)[TILE_N / 2], u64 first, u64 image) {
  products_fence();
#pragma unroll
  for (int s = 0; s < STEPS_1; ++s) {
    first_product(sums, operand_at(first, ROWS_1, s, PIECE_1), operand_at(image, TILE_N, s), s > 0);
    first_product(sums, operand_at(first, ROWS_1, s), operand_at(image, TILE_N, s, PIECE_X), 1);
  }
#pragma unroll
  for (int s = 0; s < STEPS_1; ++s)
    first_product(sums, operand_at(first, ROWS_1, s), operand_at(image, TILE_N, s), 1);
  end_products(sums);
}

#if PAIR
// Sums lie as left operands do.
struct WidePieces {
  u32 high[STEPS_2][4], low[STEPS_2][4];
  MERCER_STEP_METHOD explicit WidePieces(const float (&sums)[TILE_N / 2]) {
#pragma unroll
    for (int s = 0; s < STEPS_2; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) split_pair(sums[8 * s + 2 * i], sums[8 * s + 2 * i + 1], high[s][i], low[s][i]);
  }
  // 2 N outputs of the second factor, whose image begins with them.
  template <int N>
  MERCER_STEP_METHOD void multiply(float (&sums)[N], u64 second) const {
    products_fence();
#pragma unroll
    for (int s = 0; s < STEPS_2; ++s) {
      second_product(sums, low[s], operand_at(second, ROWS_2, s), s > 0);
      second_product(sums, high[s], operand_at(second, ROWS_2, s, PIECE_2), 1);
    }
#pragma unroll
    for (int s = 0; s < STEPS_2; ++s) second_product(sums, high[s], operand_at(second, ROWS_2, s), 1);
    end_products(sums);
  }
};

MERCER_STEP void multiply_second(const KronArguments& k, const WideLane& lane, const WideFinish& finish,
                                 const WideOut& out, const float (&sums)[TILE_N / 2], u64 second) {
  const WidePieces pieces(sums);
#if ROWS_2 >= STRIP  // second_product has no other number of outputs where all are in the rest
#pragma unroll
  for (int strip = 0; strip < ROWS_2 / STRIP; ++strip) {
    float results[STRIP / 2];
    pieces.multiply(results, second + strip * (STRIP * 128 / 16));
    out.store(k, lane, finish, strip * STRIP, results);
  }
#endif
#if ROWS_2 % STRIP != 0
  float results[ROWS_2 % STRIP / 2];
  pieces.multiply(results, second + ROWS_2 / STRIP * (STRIP * 128 / 16));
  out.store(k, lane, finish, ROWS_2 / STRIP * STRIP, results);
#endif
}
#endif

// ---- the kernel -----------------------------------------------------------------------------------------------------
struct WideBlock {
  u32 first, second, image;  // in shared memory
  u32* maxima;
  u32* columns;  // COLUMN_SCALES: maxima of columns, of one tile and the next one in turn, for each group
  float* stage;  // of the warp
  int exponent;  // of both factors
};

// Tiles from `tile` on to before `stop`, which share the factors. The first one, at `at`, is in `values`.
MERCER_INLINE void multiply_tiles(const KronArguments& k, WideLane& lane, const WideBlock& block, WideTile& at,
                                  WideValues& values, int& tile, int& turn, int step, int stop) {
  const u32 image = block.image + lane.group * (2 * PIECE_X);
  const u64 first = operand_of(block.first + lane.warp / 4 * (64 * 128)), operand = operand_of(image);
  u32* const maxima = block.maxima + lane.group * GROUP_WARPS;
#pragma unroll 1
  for (; tile < stop; tile += GROUPS * step) {
    lane.forget();
    if (BY_LANES) regroup(lane, values, block.stage);
#if COLUMN_SCALES
    u32* const most = block.columns + (2 * lane.group + turn) * COLUMN_SLOTS;
    turn ^= 1;
    u32* const others = block.columns + (2 * lane.group + turn) * COLUMN_SLOTS;
    add_column_maxima(lane, values, most);
    group_barrier(lane.group);  // also: all of the group have read the image, and the maxima of the tile before
    for (int c = threadIdx.x % (GROUP_WARPS * 32); c < COLUMN_SLOTS; c += GROUP_WARPS * 32) others[c] = 0;
    const ColumnFinish finish(k, block.exponent, most);
    write_tile(lane, values, ColumnScales{most}, image);
#else
    u32 most = __reduce_max_sync(0xffffffffu, most_of(values));
    if (lane.g == 0 && lane.t == 0) maxima[lane.warp] = most;
    group_barrier(lane.group);  // also: all of the group have read the image
#pragma unroll
    for (int i = 0; i < GROUP_WARPS; ++i) most = max(most, maxima[i]);
    const TileScale scale(values, most);
    const WideFinish finish(k, block.exponent + scale.exponent);
    write_tile(lane, values, scale, image);
#endif
    async_fence();
    group_barrier(lane.group);
    const WideOut out(k, lane, at, block.stage);
    const int next = tile + GROUPS * step;
    if (next < stop) {
      at = WideTile(k, next);
      load_tile(k, lane, at, values);
    }
    if (WARPGROUPS * 64 > ROWS_1 && lane.warp >= ROWS_1 / 16) continue;  // has only loaded
    float sums[TILE_N / 2];
    multiply_first(sums, first, operand);
#if PAIR
    multiply_second(k, lane, finish, out, sums, operand_of(block.second));
#else
    out.store(k, lane, finish, 0, sums);
#endif
  }
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS, 1) kron_wide(const __grid_constant__ KronArguments k) {
  extern __shared__ __align__(1024) u8 memory[];
  WideLane lane;
  WideBlock block;
  block.first = shared_address(memory);
  block.second = block.first + 2 * PIECE_1;
  block.image = block.second + 2 * PIECE_2;
  block.maxima = (u32*)(memory + TAIL);
  block.columns = (u32*)(memory + TAIL + MAXIMA_BYTES);
  block.stage = (float*)(memory + TAIL + MAXIMA_BYTES + COLUMN_BYTES) + threadIdx.x / 32 * STAGE;
  for (int c = threadIdx.x; COLUMN_SCALES && c < 2 * GROUPS * COLUMN_SLOTS; c += WIDE_THREADS) block.columns[c] = 0;
  const int item_tiles = (int)(k.row_count * k.left * (PAIR ? 1 : (k.right + TILE_N - 1) / TILE_N));
  bool varies = false;
  for (int axis = 0; axis < k.items.count; ++axis)
    varies |= k.factors[0].item_step[axis] != 0 || (PAIR && k.factors[1].item_step[axis] != 0);
  // Blocks walk side by side, or each through items of its own.
  const int tiles = item_tiles * (int)k.item_count, step = varies ? 1 : gridDim.x;
  int first = varies ? (int)((i64)tiles * blockIdx.x / gridDim.x) : blockIdx.x;
  const int end = varies ? (int)((i64)tiles * (blockIdx.x + 1) / gridDim.x) : tiles;
  int tile = first + lane.group * step, turn = 0;
  WideValues values;
  WideTile at;
#pragma unroll 1
  while (first < end) {
    const int item = varies ? first / item_tiles : 0, stop = varies ? min(end, (item + 1) * item_tiles) : end;
    if (tile < stop) {
      at = WideTile(k, tile);
      load_tile(k, lane, at, values);
    }
    block.exponent = make_images(k, item, block.first, block.second, block.maxima);
    multiply_tiles(k, lane, block, at, values, tile, turn, step, stop);
    first = stop;
  }
}
