// Neighbouring factors of a Kronecker product in one pass over memory: a tile lies in shared memory while one axis
// after the other is multiplied in place (plan/kron/kron_chain.h; the phases are kron_phases.cuh and kron_eights.cuh).
//
//   x  --- cp.async --->  tile [TILE_L][axis 0] ... [axis n-1][TILE_R]  --- phases --->  the same places  --->  out
//                           ^                                                                 |
//                           '----- what a thread has written to memory it fills with the next tile's values
//
// A row may be shared by the blocks of a cluster, each of which has some elements of the first axis. That axis comes
// last: a block multiplies a part of what comes after it, reads the others' shared memory, and writes to memory. Or
// the last two axes come last, and blocks have parts of the first of them: then a block takes a part of what stands
// before them.
//
//   block 0   [p of axis 0: 0, 1][axes 1 ... n-1]  -- phases of axes n-1 ... 1 -->  |           [axis 0][first half]
//   block 1   [p of axis 0: 2, 3][axes 1 ... n-1]  -- in place, each its own   -->  | barrier   [axis 0][second half]
//
// Where a block is alone on its multiprocessor, phases alternate their order from tile to tile: the last one of a tile
// is the first one of the next. A warp then has the same items twice in turn, and begins as soon as those have arrived
// that it asked for itself, while other warps still multiply the tile before.
//
// Blocks are persistent. Operands of the axes are made from the factors by the block itself, and again where the next
// tile belongs to another item of the batch.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/split_pieces.cuh"
#include "common/warpgroups.cuh"
#include "kron/kron_values.cuh"

#define CHAIN_WARPS (CHAIN_THREADS / 32)
#define CHAIN_VECTOR (16 / (int)sizeof(Value))
#if CHAIN_CLUSTER == 1
#undef __cluster_dims__
#define __cluster_dims__(...)  // which older devices do not know
#endif
MERCER_INLINE int chain_rank() { return CHAIN_CLUSTER == 1 ? 0 : (int)cluster_rank(); }
#define CHAIN_NOWHERE (-(1ll << 62))  // offset of a row beyond the last

// Where a tile begins.
struct ChainPlace {
  i64 item, b, a;
};

MERCER_INLINE i64 chain_tiles(const KronArguments& k) {
  const i64 b_tiles = (k.row_count * k.left + TILE_L - 1) / TILE_L, a_tiles = (k.right + TILE_R - 1) / TILE_R;
  return k.item_count * b_tiles * a_tiles;
}
MERCER_INLINE ChainPlace chain_place(const KronArguments& k, i64 index) {
  const i64 b_tiles = (k.row_count * k.left + TILE_L - 1) / TILE_L, a_tiles = (k.right + TILE_R - 1) / TILE_R;
  ChainPlace at;
  const i64 rest = TILE_R == 1 ? index : kron_quotient(index, a_tiles);
  at.a = TILE_R == 1 ? 0 : (index - rest * a_tiles) * TILE_R;
  at.item = k.item_count == 1 ? 0 : kron_quotient(rest, b_tiles);
  at.b = (rest - at.item * b_tiles) * TILE_L;
  return at;
}
// Offsets of the tile's rows in an array, `first` elements on.
MERCER_STEP void write_places(const KronArguments& k, const KronSide& side, const ChainPlace& at, i64* places,
                              int first = 0) {
  const i64 count = k.row_count * k.left;
  for (int l = threadIdx.x; l < TILE_L; l += CHAIN_THREADS)
    places[l] = TILE_L == 1 || at.b + l < count ? kron_place(k, side, at.item, at.b + l) + first * side.axis
                                                : CHAIN_NOWHERE;
}
// An element `more` after element `rest` of a row, neighbours after the axes fastest; `more` begins at the first.
template <bool VECTORS>
MERCER_INLINE i64 chain_offset(const KronSide& side, i64 a, int rest, int more) {
  if (TILE_R == 1) return VECTORS ? (i64)rest + more : (rest + more) * side.axis;
  a += rest % TILE_R;
  return (rest / TILE_R + more / TILE_R) * side.axis + (VECTORS ? a : kron_behind(side, a));
}
// Whether an element of a row that begins at `place` is there.
MERCER_INLINE bool is_inside(const KronArguments& k, const ChainPlace& at, i64 place, int rest) {
  return (TILE_L == 1 || place != CHAIN_NOWHERE) && (WHOLE_R || at.a + rest % TILE_R < k.right);
}

// ---- from memory and back -------------------------------------------------------------------------------------------
#define IN_STEP (VECTORS_IN ? CHAIN_VECTOR : 1)
#define OUT_STEP (VECTORS_OUT ? CHAIN_VECTOR : 1)

// Elements of TILE_L rows of SIZE, STEP at a time: body(l, row(l), rest, more), element rest + more. ADDS: places of
// `rest` and `more` add up, so that `rest` stays and all that is made from `more` is known to the compiler.
template <int SIZE, int STEP, bool ADDS, class Row, class Body>
MERCER_INLINE void each_vector(const Row& row, const Body& body) {
  constexpr int STRIDE = CHAIN_THREADS * STEP;
  const int first = threadIdx.x * STEP;
  if (STRIDE % SIZE == 0) {
#pragma unroll 4
    for (int l = first / SIZE; l < TILE_L; l += STRIDE / SIZE) body(l, row(l), first % SIZE, 0);
  } else if (SIZE % STRIDE == 0 && ADDS) {
#pragma unroll 1
    for (int l = 0; l < TILE_L; ++l) {
      const auto of_row = row(l);
#pragma unroll 16
      for (int more = 0; more < SIZE; more += STRIDE) body(l, of_row, first, more);
    }
  } else {
#pragma unroll 4
    for (int e = first; e < TILE_L * SIZE; e += STRIDE) body(e / SIZE, row(e / SIZE), e % SIZE, 0);
  }
}

// Fills a vector of a tile's input; zeros where nothing is, so that they widen no scale.
MERCER_INLINE void fill_vector(const KronArguments& k, const ChainPlace& at, i64 place, int l, int rest, int more,
                               Value* tile) {
  Value* to = tile + l * STEP_L + chain_in(rest) + chain_in(more);
  const bool inside = is_inside(k, at, place, rest);
  const IN* from = (const IN*)k.from.data + place +
                   chain_offset<VECTORS_IN>(k.from, at.a, chain_from(rest), chain_from(more));
  if constexpr (VECTORS_IN && IN_IS_VALUE) {
    if (inside) copy_16(to, from);
    else *(Pack<Value, CHAIN_VECTOR>*)to = {};
  } else if constexpr (VECTORS_IN) {
    Pack<IN, CHAIN_VECTOR> values = {};
    if (inside) values = *(const Pack<IN, CHAIN_VECTOR>*)from;
#pragma unroll
    for (int i = 0; i < CHAIN_VECTOR; ++i) to[i] = kron_load(values.value[i]);
  } else {
    *to = inside ? kron_load(*from) : (Value)0;
  }
}

MERCER_STEP void fill_tile(const KronArguments& k, const ChainPlace& at, const i64* places, Value* tile) {
  each_vector<IN_SIZE, IN_STEP, CHAIN_IN_ADDS>(
      [&](int l) { return places[l]; },
      [&](int l, i64 place, int rest, int more) { fill_vector(k, at, place, l, rest, more, tile); });
  commit_copies();
}

// Asks the second-level cache for a tile's input, so that memory works while the phases of another one run.
MERCER_INLINE void fetch_tile(const KronArguments& k, const ChainPlace& at, const i64* places) {
  if (!VECTORS_IN) return;
  constexpr int LINE = 128 / (int)sizeof(IN), STEP = TILE_R == 1 || TILE_R > LINE ? LINE : TILE_R;
  for (int e = threadIdx.x * STEP; e < TILE_L * IN_SIZE; e += CHAIN_THREADS * STEP) {
    const i64 place = places[e / IN_SIZE];
    const int rest = e % IN_SIZE;
    if (is_inside(k, at, place, rest))
      prefetch_line((const IN*)k.from.data + place + chain_offset<true>(k.from, at.a, chain_from(rest), 0));
  }
}

struct ChainRow {
  i64 to, y, next;
};

MERCER_INLINE void write_vector(const KronArguments& k, const KronEnd& end, const ChainPlace& at, const ChainRow& row,
                                int rest, int more, Pack<Value, OUT_STEP> values) {
  if (!is_inside(k, at, row.to, rest)) return;
  if constexpr (FINAL) {
    const i64 y_place = end.y ? row.y + chain_offset<VECTORS_OUT>(k.y, at.a, rest, more) : 0;
#pragma unroll
    for (int i = 0; i < OUT_STEP; ++i) values.value[i] = end(values.value[i], y_place + i);
  }
  Pack<OUT, OUT_STEP> stored;
#pragma unroll
  for (int i = 0; i < OUT_STEP; ++i) kron_store(stored.value[i], values.value[i]);
  store_pack((OUT*)k.to.data + row.to + chain_offset<VECTORS_OUT>(k.to, at.a, rest, more), stored);
}

// Where the phases leave their results. begin(left): before an item's values are read, `left` items of this warp being
// still to come; filled(): after the refills of an item. In the tile,
struct InTile {
  template <class F, class Vector>
  MERCER_METHOD void store(Value* to, int, int, int, const Vector& values, int = 0) const { *(Vector*)to = values; }
  template <class F>
  MERCER_METHOD void refill(Value*, int, int, int) const {}
  MERCER_METHOD void begin(int) const {}
  MERCER_METHOD void filled() const {}
};
// the same while values still come, each item's by a group of copies of the threads that multiply it;
struct Arriving : InTile {
  MERCER_METHOD void begin(int left) const {
    switch (left) {
      case 0: return wait_copies<0>();
      case 1: return wait_copies<1>();
      case 2: return wait_copies<2>();
      default: return wait_copies<3>();
    }
  }
};
// or, after the last phase, in memory; its places are filled with the next tile's values. Elements
// [outer][a + more][n], `more` known to the compiler.
struct InMemory {
  const KronArguments& k;
  const KronEnd& end;
  const ChainPlace &at, &next;
  const i64 *to, *y, *next_from;
  bool refills;
  ChainRow first;

  MERCER_METHOD InMemory(const KronArguments& k, const KronEnd& end, const ChainPlace& at, const ChainPlace& next,
                         const i64* to, const i64* y, const i64* next_from, bool refills)
      : k(k), end(end), at(at), next(next), to(to), y(y), next_from(next_from), refills(refills), first(load(0)) {}
  MERCER_METHOD ChainRow load(int l) const {
    return {to[l], FINAL && end.y ? y[l] : 0, CHAIN_REFILLS && refills ? next_from[l] : 0};
  }
  MERCER_METHOD ChainRow row(int l) const { return TILE_L == 1 ? first : load(l); }
  template <class F, class Vector>
  MERCER_METHOD void store(Value*, int outer, int a, int n, const Vector& values, int more = 0) const {
    constexpr int ROWS = F::OUTER / TILE_L;
    const int of_row = TILE_L == 1 ? outer : outer % ROWS;  // one sum with `more`
    write_vector(k, end, at, row(outer / ROWS), (of_row * F::Q_A + a) * F::BEHIND_A + n, more * F::BEHIND_A, values);
  }
  template <class F>
  MERCER_METHOD void refill(Value* place, int outer, int a, int n) const {
    constexpr int ROWS = F::OUTER / TILE_L;
    if (!CHAIN_DIRECT || !CHAIN_REFILLS || !refills) return;
    const int rest = (outer % ROWS * F::P_A + a) * F::BEHIND_A + n;
    const i64 from = row(outer / ROWS).next;
    if (is_inside(k, next, from, rest))
      copy_16(place, (const IN*)k.from.data + from + chain_offset<true>(k.from, next.a, rest, 0));
    else *(Pack<Value, CHAIN_VECTOR>*)place = {};
  }
  MERCER_METHOD void begin(int) const {}
  MERCER_METHOD void filled() const {
    if (CHAIN_ALTERNATES) commit_copies();
  }
};

// Either of the two, so that a kernel compiled quickly has each phase once.
struct ArrivingOrInMemory : InMemory {
  bool last;
  template <class... Arguments>
  MERCER_METHOD explicit ArrivingOrInMemory(bool last, const Arguments&... of_memory)
      : InMemory(of_memory...), last(last) {}
  template <class F, class Vector>
  MERCER_METHOD void store(Value* to, int outer, int a, int n, const Vector& values, int more = 0) const {
    if (last) InMemory::store<F>(to, outer, a, n, values, more);
    else *(Vector*)to = values;
  }
  template <class F>
  MERCER_METHOD void refill(Value* place, int outer, int a, int n) const {
    if (last) InMemory::refill<F>(place, outer, a, n);
  }
  MERCER_METHOD void begin(int left) const {
    if (!last) Arriving().begin(left);
  }
  MERCER_METHOD void filled() const {
    if (last) InMemory::filled();
  }
};

// ---- operands -------------------------------------------------------------------------------------------------------
// Element [p][q] of a factor.
MERCER_INLINE const FACTOR* chain_factor_at(const KronArguments& k, int factor, i64 item, int p, int q) {
  const KronMatrix& f = k.factors[factor];
  return (const FACTOR*)f.data + kron_offset(k.items, f.item_step, item) + p * f.p_stride + q * f.q_stride;
}
MERCER_INLINE Value chain_factor(const KronArguments& k, int factor, i64 item, int p, int q) {
  return kron_load(*chain_factor_at(k, factor, item, p, q));
}

// [P][Q] with rows of whole vectors.
template <class A>
MERCER_STEP void write_multiplied(const KronArguments& k, i64 item, u8* operands) {
  Value* to = (Value*)(operands + A::AT);
  constexpr int PITCH = (A::Q + 3) / 4 * 4;
  for (int e = threadIdx.x; e < A::P * PITCH; e += CHAIN_THREADS)
    to[e] = e % PITCH < A::Q ? A::load(k, item, e / PITCH, e % PITCH) : (Value)0;
}

// ---- operands of tensor cores ---------------------------------------------------------------------------------------
// The exponent e of 2^e that brings a value of these bits below 2^(top + 1), and what keeps 2^e and 2^-e finite.
MERCER_INLINE int scale_exponent(u32 bits, int top) {
  const int exponent = top + 127 - (int)(bits >> 23);
  return exponent > 120 ? 120 : exponent < -120 ? -120 : exponent;
}

// Rows of results in an order of which neighbours are 2 apart: with steps of 8 modulo 32, vectors that lanes write
// together have no banks in common.
MERCER_INLINE int apart_row(int g) { return (g & 4) | (g & 1) << 1 | (g >> 1 & 1); }

// Pieces of an axis as a warp's registers have them. The first of two axes is multiplied from the left: rows are q. Its
// slots of p are such that a lane takes rows t, 4 + t, 8 + t, 12 + t of x. The second comes from the right, columns q;
// which p and q they are says the phase.
template <class A>
MERCER_INLINE uint4 fragment(const float* raw, float scale, int at, int lane) {
  const int g = lane / 4, t = lane % 4;
  u32 high[4], low[4];
  constexpr int P_STEPS = (A::P + 15) / 16;
  const int piece = A::FROM_LEFT ? at % 2 : 0, step = A::FROM_LEFT ? at / 2 % P_STEPS : at / A::COLUMN_TILES;
#pragma unroll
  for (int i = 0; i < (A::FROM_LEFT ? 4 : 2); ++i) {
    float pair[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int half = A::FROM_LEFT ? i / 2 : i;
      const int p = A::FROM_LEFT ? 16 * step + 4 * (2 * half + e) + t : A::column_in(2 * step + half, 2 * t + e);
      const int q = A::FROM_LEFT ? 16 * (at / 2 / P_STEPS) + A::row_out(g) + 8 * (i % 2)
                                 : A::column_out(at % A::COLUMN_TILES, g);
      pair[e] = p < A::P && q < A::Q ? raw[p * A::Q + q] * scale : 0;
    }
    split_pair(pair[0], pair[1], high[i], low[i]);
  }
  if (!A::FROM_LEFT) return {high[0], high[1], low[0], low[1]};
  return piece == 0 ? uint4{high[0], high[1], high[2], high[3]} : uint4{low[0], low[1], low[2], low[3]};
}

// First all axes are read: `raw` is shared memory for [P][Q] of each, `most` for what a warp finds. All are asked for
// before any is waited for.
template <class A, class Body>
MERCER_INLINE void each_of_factor(const Body& body) {
#pragma unroll 1
  for (int e = threadIdx.x; e < A::P * A::Q; e += CHAIN_THREADS) body(e);
}
template <class A>
MERCER_STEP void ask_for_factor(const KronArguments& k, i64 item, float* raw) {
  each_of_factor<A>([&](int e) {
    const int p = e / A::Q, q = e % A::Q;
    float* const to = raw + A::RAW + e;
    if constexpr (A::ALONE >= 0 && sizeof(FACTOR) == sizeof(float))
      copy_or_clear<4>(shared_address(to), chain_factor_at(k, A::ALONE, item, p, q), true);
    else *to = A::load(k, item, p, q);  // a product of several
  });
}
// The threads that have asked for a factor measure it.
template <class A>
MERCER_STEP void measure_factor(const float* raw, u32* most) {
  u32 bits = 0;
  each_of_factor<A>([&](int e) { bits = max(bits, finite_bits(raw[A::RAW + e])); });
  bits = __reduce_max_sync(0xffffffffu, bits);
  if (threadIdx.x % 32 == 0) most[A::INDEX * CHAIN_WARPS + threadIdx.x / 32] = bits;
}
template <class A>
MERCER_INLINE int factor_exponent(const u32* most) {
  u32 bits = 0;
  for (int w = 0; w < CHAIN_WARPS; ++w) bits = max(bits, most[A::INDEX * CHAIN_WARPS + w]);
  return scale_exponent(bits, A::TOP);
}
template <class A>
MERCER_STEP void write_fragments(const float* raw, const u32* most, u8* operands, int* exponents) {
  const int exponent = factor_exponent<A>(most);
  if (threadIdx.x == 0) exponents[A::INDEX] = -exponent;
  uint4* to = (uint4*)(operands + A::AT);
  for (int e = threadIdx.x; e < A::FRAGMENTS * 32; e += CHAIN_THREADS)
    to[e] = fragment<A>(raw + A::RAW, power_of_two(exponent), e / 32, e % 32);
}
// As `write_fragments`, where all axes have no more fragments than threads: a thread's own one.
template <class A>
MERCER_STEP void make_fragment(const float* raw, const u32* most, uint4& own, int* exponents) {
  const int e = (int)threadIdx.x - A::AT / (int)sizeof(uint4);
  if (e < 0 || e >= A::FRAGMENTS * 32) return;
  const int exponent = factor_exponent<A>(most);
  if (e == 0) exponents[A::INDEX] = -exponent;
  own = fragment<A>(raw + A::RAW, power_of_two(exponent), e / 32, e % 32);
}
