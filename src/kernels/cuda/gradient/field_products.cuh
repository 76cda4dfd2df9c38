// Gradient fields whose φ is an amplitude of the pair times a factor of the feature, on tensor cores of compute
// capability 9.0. For one point m,
//
//   out[o][m][k] = sum over n of G_m[n][o] * S_m[k][n]      G_m[n][o] = coef[o][n] * amplitude[m][n]
//                                                           S_m[k][n] = factor(x[m][k], z[n][k])
//
// is a product of matrices: S is made in registers, as tensor cores take a left operand, G by a warpgroup of its own in
// shared memory.
//
//      64 points n a stage                     three groups multiply: 64 features x QUERIES points m each
//   k  ┌───────────┐      G of a point m       one makes G and feeds: images of z and of the coefficients, rows of
//  192 │ image of  │  x  64 n x (COLUMNS x     the pairs' values
//      │ z         │      PIECES)
//      └───────────┘
//
// The CLUSTER blocks of a cluster have other features of the same points m: each makes its part of G for all of them.
//
//   SIGN     factor = sign(x - z): S of {-2, 0, 2} from the ranks of x and z (field_operands.cuh), two elements in two
//            instructions, exact in any 16 bits; G in three pieces of bfloat16
//   DIGITS   the same, S of {-64, 0, 64} in bytes; G as integers of three signed bytes, on a scale of the point m and
//            the column. Sums are exact. Rows whose largest values are too far above the mean are left to the pieces
//            (field_rows.cuh).
//   HALVES   factor = |x - z|^EXPONENT, or of max(|x - z|, LEAST), with the sign of x - z: S and G in two pieces of
//            16-bit floats, in half as many instructions as tf32 takes. S has a power of two of the feature
//            (power_range.cuh), G the scales of digits.
//   else     S and G in two pieces of tf32, three products. Both have the exponents of float32: nothing is scaled.
//
// FALLBACK: others have been before, and few rows are wanted, mostly none.
//
// Tensor cores truncate what they accumulate in floats, so sums of FLUSH_STAGES stages go to float32 in shared memory.
// A sum of powers, whose flushes are far apart, is made larger by GIVEN_BACK a stage: half of what sums of one sign
// lose (measured: 3.3e-7), so that neither they nor sums that lose nothing are off by 1e-6.
// Results that are not finite are marked; field.cuh computes their tiles again.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"

#define FEED_GROUP 3
#define FEED_WARPS 4
#define FIELD_THREADS 512
#define TILE_GROUPS 12  // of 16 features
#define STAGE_POINTS 64
#define QUERIES (64 / COLUMNS)
#define PIECES (SIGN ? 3 : 2)
#define PRODUCT_COLUMNS (COLUMNS * PIECES)
#define HALF_COLUMNS (COLUMNS / 2)  // accumulators of a piece
// Columns of a piece that follow one another; of signs few, so that what a warp makes lies in a row.
#define GROUP_COLUMNS (SIGN && COLUMNS > 16 ? 16 : COLUMNS)
#define STEP_BYTES (PRODUCT_COLUMNS * 32)  // of G: 32 points in bytes, 16 in 16 bits, 8 in 32
#define IN_UNITS (DIGITS || HALVES)  // of rows and columns (row_units.cuh)
#define STEPS (DIGITS ? 2 : SIGN || HALVES ? 4 : 8)  // of a stage
#define QUARTER_BYTES (STEPS * STEP_BYTES / 4)  // of 16 points
#define GROUP_BYTES (SIGN ? 512 : 1024)    // of the image: 16 features, 16 points
#define Z_BYTES (TILE_GROUPS * 4 * GROUP_BYTES)
#define COEF_BYTES (COLUMNS * STAGE_POINTS * 4)
#define PAIR_BYTES (OWN_QUERIES * PLANES * STAGE_POINTS * 4)
#define G_BYTES (QUERIES * STEPS * STEP_BYTES)
#define STAGE_BYTES (Z_BYTES + G_BYTES)
#define INPUT_BYTES (COEF_BYTES + PAIR_BYTES)
#define SHARED_G_BYTES (G_BYTES - G_BYTES / CLUSTER)  // what the other blocks make
#define OWN_QUERIES (QUERIES < CLUSTER ? 1 : QUERIES / CLUSTER)
#define PAIR_ROWS (OWN_QUERIES * PLANES)
#define TOTAL_UNITS (DIGITS ? 0 : 8)  // of four floats: QUERIES * HALF_COLUMNS sums
#define FLUSH_STAGES (SIGN ? 8 : HALVES ? 4 : 1)
#define GIVEN_BACK (HALVES ? 1.75e-7f : 0.0f)
#define MULTIPLIERS 384
#define TOGETHER (DIGITS ? 4 : 1)  // stages that are multiplied
#define PENDING (HALVES ? 2 : DIGITS && BATCH == 1 && QUERIES >= 4 ? 3 : 1)  // batches under way
#define SLOTS ((PENDING + 1) * BATCH)                                        // left operands of points m
// Registers of a thread, 128 on average: more for the values of powers at once.
#define FEED_REGISTERS (HALVES ? 56 : 80)
#define MULTIPLY_REGISTERS (HALVES ? 152 : 144)
#define REGISTERS 128  // with which threads begin

static_assert(STAGES > 1, "a stage is left while the next one is multiplied");

struct FieldShared {
  u32 totals, stages, inputs, bars;
  MERCER_METHOD FieldShared(u32 base) {
    totals = base;
    stages = totals + TOTAL_UNITS * MULTIPLIERS * 16;
    inputs = stages + STAGES * STAGE_BYTES;
    bars = inputs + INPUT_STAGES * INPUT_BYTES;
  }
  MERCER_METHOD u32 z(int stage) const { return stages + stage * STAGE_BYTES; }
  MERCER_METHOD u32 g(int stage) const { return z(stage) + Z_BYTES; }
  MERCER_METHOD u32 coefs(int stage) const { return inputs + stage * INPUT_BYTES; }
  MERCER_METHOD u32 pairs(int stage) const { return coefs(stage) + COEF_BYTES; }
  MERCER_METHOD u32 full(int stage) const { return bars + 8 * stage; }  // z is there
  MERCER_METHOD u32 made(int stage) const { return bars + 8 * (STAGES + stage); }  // so is G
  MERCER_METHOD u32 empty(int stage) const { return bars + 8 * (2 * STAGES + stage); }
  MERCER_METHOD u32 inputs_full(int stage) const { return bars + 8 * (3 * STAGES + stage); }
  MERCER_METHOD u32 inputs_empty(int stage) const { return bars + 8 * (3 * STAGES + INPUT_STAGES + stage); }
  // FALLBACK: the tile from which on to look, and a bit for each one before that is wanted.
  MERCER_METHOD u32* search(u8* memory) const { return (u32*)(memory + (inputs_empty(INPUT_STAGES) - totals)); }
};

// What a block computes: features of a tile, points m, a range of stages of n.
struct FieldWork {
  int feature_tile;
  i64 m0;
  int first, end;  // stages
  int rank, own_query;  // in the cluster; the first point m of which this block makes G
  MERCER_METHOD FieldWork(const FieldProductArguments& a, u32 block) {
    const u32 tiles = a.groups / TILE_GROUPS;
    rank = CLUSTER > 1 ? (int)cluster_rank() : 0;
    own_query = rank * QUERIES / CLUSTER;
    feature_tile = (int)(block % tiles);
    m0 = (i64)(block / tiles) * QUERIES;
    const i64 stages = (a.field.n + STAGE_POINTS - 1) / STAGE_POINTS;
    first = (int)(stages * blockIdx.y / gridDim.y);
    end = (int)(stages * (blockIdx.y + 1) / gridDim.y);
  }
};

// A row is wanted as a whole (linear_field.cuh leaves some; some are left here, field_rows.cuh).
MERCER_INLINE bool is_wanted(const FieldProductArguments& a, i64 m) {
  const i64 place = m * ((a.field.k + 63) / 64);
  if (IN_UNITS && a.left[place] != 0) return false;
  return a.wanted == nullptr || a.wanted[place] != 0;
}
// All of a block's are asked for at once: blocks that leave are many, one at a time on a multiprocessor.
MERCER_INLINE bool is_wanted(const FieldProductArguments& a, const FieldWork& work) {
  bool wanted = false;
#pragma unroll
  for (int q = 0; q < QUERIES; ++q)
    wanted |= is_wanted(a, work.m0 + q < a.field.m ? work.m0 + q : a.field.m - 1);
  return wanted;
}

MERCER_INLINE float rounded(float v) { return float_of((bits_of(v) + 0x1000u) & 0xffffe000u); }

// ---- the group that feeds and makes G ------------------------------------------------------------------------------
// A warp feeds; a lane of it, but for the rows, of which each lane has one.
MERCER_INLINE void feed_z(const FieldProductArguments& a, const FieldShared& shared, const FieldWork& work, int index,
                          int stage) {
  if (threadIdx.x % 32 != 0) return;
  barrier_expect(shared.full(stage), Z_BYTES);
  copy_bulk(shared.z(stage), a.z_image + ((i64)index * a.groups + work.feature_tile * TILE_GROUPS) * 4 * GROUP_BYTES,
            Z_BYTES, shared.full(stage));
}

// Only the last stage may be short.
MERCER_INLINE int points_of(const FieldProductArguments& a, int index) {
  return index == (int)((a.field.n - 1) / STAGE_POINTS) ? (int)((a.field.n - 1) % STAGE_POINTS) + 1 : STAGE_POINTS;
}

MERCER_INLINE void feed_inputs(const FieldProductArguments& a, const FieldShared& shared, const FieldWork& work,
                               int index, int stage) {
  const u32 full = shared.inputs_full(stage), bytes = (u32)(points_of(a, index) + 3) / 4 * 16;
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
    barrier_expect(full, COEF_BYTES + PAIR_ROWS * bytes);
    copy_bulk(shared.coefs(stage), a.coefs + (i64)index * (COEF_BYTES / 4), COEF_BYTES, full);
  }
#pragma unroll 1
  for (int row = lane; row < PAIR_ROWS; row += 32) {
    const int query = row / (PLANES + (PLANES == 0)), plane = row - query * PLANES;
    const i64 wanted = work.m0 + work.own_query + query, m = wanted < a.field.m ? wanted : a.field.m - 1;
    const float* from = (const float*)a.field.pair + plane * a.field.pair_plane + m * a.field.pair_row;
    copy_bulk(shared.pairs(stage) + row * STAGE_POINTS * 4, from + (i64)index * STAGE_POINTS, bytes, full);
  }
}

// A value of G, as write_g takes it, and that of no point.
#if DIGITS
typedef u32 Made;
#define DIGIT_OFFSET (12582912.0f + 0x8080)
#define NOTHING bits_of(DIGIT_OFFSET)
#else
typedef float Made;
#define NOTHING 0.0f
#endif

// Points are taken in the order in which a lane has them of the left operand: four in a row.
#if DIGITS
MERCER_INLINE u32 bytes_of(u32 first, u32 second, u32 which) {
  u32 word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(first), "r"(second), "r"(which));
  return word;
}
// A value of G as an integer of three digits of 256: bits of a float whose ulp is one, with 128 on top of both lower
// digits and 64 on top of the last. What is rounded has one of sixteen evenly spread parts of a unit added, so that of
// values that are all equal no more than 1/32 is lost on average.
MERCER_INLINE u32 integer_of(float g, float scale, int point) {
  const int order = point % 2 * 8 + point / 2 % 2 * 4 + point / 4 % 2 * 2 + point / 8;
  return bits_of(mul_add(g, scale, ((float)order + 0.5f) / 16 - 0.5f) + DIGIT_OFFSET);
}
MERCER_INLINE void write_g(u32 to, const u32 (&integers)[16]) {
  u32 words[PIECES][4];
#pragma unroll
  for (int quad = 0; quad < 4; ++quad) {
    const u32* const four = integers + quad * 4;
    const u32 low01 = bytes_of(four[0], four[1], 0x5140), low23 = bytes_of(four[2], four[3], 0x5140);
    words[0][quad] = bytes_of(low01, low23, 0x5410) ^ 0x80808080u;
    words[1][quad] = bytes_of(low01, low23, 0x7632) ^ 0x80808080u;
    const u32 high = bytes_of(bytes_of(four[0], four[1], 0x0062), bytes_of(four[2], four[3], 0x0062), 0x5410);
    words[2][quad] = (high + 0x40404040u) ^ 0x80808080u;
  }
#pragma unroll
  for (int piece = 0; piece < PIECES; ++piece) store_words(to + piece * (GROUP_COLUMNS * 16), words[piece]);
}
#elif SIGN
MERCER_INLINE u32 bfloat_pair(float first, float second) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
// 16 values of a column of G in three pieces: k = 2 q + j % 2 + 8 (j / 2) of the product is point 4 q + j.
MERCER_INLINE void write_g(u32 to, const float (&g)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float rest[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) rest[i] = g[i / 2 * 4 + half * 2 + i % 2];
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
      u32 words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        words[w] = bfloat_pair(rest[2 * w], rest[2 * w + 1]);
        rest[2 * w] -= float_of(words[w] << 16);
        rest[2 * w + 1] -= float_of(words[w] & 0xffff0000u);
      }
      store_words(to + half * (PRODUCT_COLUMNS * 16) + piece * (GROUP_COLUMNS * 16), words);
    }
  }
}
#elif HALVES
// Writes two pieces, the low one first: k as of signs.
MERCER_INLINE void write_g(u32 to, const float (&g)[16]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    u32 high[4], low[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) split_pair(g[w * 4 + half * 2], g[w * 4 + half * 2 + 1], high[w], low[w]);
    const u32 at = to + half * (PRODUCT_COLUMNS * 16);
    store_words(at, low);
    store_words(at + COLUMNS * 16, high);
  }
}
#else
// Writes two pieces, the low one first: k = q + 4 i of product s is point 4 q + 2 s + i.
MERCER_INLINE void write_g(u32 to, const float (&g)[16]) {
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    float high[4], low[4];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      high[q] = rounded(g[4 * q + part]);
      low[q] = g[4 * q + part] - high[q];
    }
    const u32 at = to + part / 2 * STEP_BYTES + part % 2 * (PRODUCT_COLUMNS * 16);
    store_floats(at, low);
    store_floats(at + COLUMNS * 16, high);
  }
}
#endif

// Values of a pair's points, 16 of a quarter of the stage.
MERCER_INLINE void load_points(float (&values)[16], u32 from, u32 step) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float part[4];
    shared_floats(part, from + j * step);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[j * 4 + e] = part[e];
  }
}

// The part of G that is a thread's: 16 points of a column, a quarter of the stage of a point m; without a cluster two
// such parts. Quarters of all points m are shared out among the blocks.
struct OwnPart {
  static constexpr int kTurns = 2 / CLUSTER, kQuarters = 128 / COLUMNS;  // of all threads
  int column, quarter[kTurns], query[kTurns];
  u32 place[kTurns], first_of_warp;  // in G
  float scale[kTurns];
  MERCER_METHOD OwnPart(const FieldProductArguments& a, const FieldWork& work) {
    const int thread = threadIdx.x % 128;
    column = thread % COLUMNS;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int own = (work.rank * kTurns + turn) * kQuarters + thread / COLUMNS;
      quarter[turn] = own % 4;
      query[turn] = own / 4;
      place[turn] = query[turn] * (STEPS * STEP_BYTES) + quarter[turn] * QUARTER_BYTES;
      place[turn] += column / GROUP_COLUMNS * (PIECES * GROUP_COLUMNS * 16);
#if IN_UNITS
      const i64 wanted = work.m0 + query[turn], m = wanted < a.field.m ? wanted : a.field.m - 1;
      scale[turn] = unit_scale(a.row_units[m], a.column_units[column]);
#else
      scale[turn] = 1;
#endif
    }
    first_of_warp = __shfl_sync(0xffffffffu, place[0], 0);
  }
};

MERCER_INLINE void make_g(Made (&g)[16], const FieldProductArguments& a, const FieldShared& shared,
                          const FieldWork& work, const OwnPart& own, int turn, int inputs, const REAL* params) {
  const int query = own.query[turn] - work.own_query, first = own.quarter[turn] * 16;
  float coef[16], pairs[PLANES + 1][16];
  load_points(coef, shared.coefs(inputs) + (first / 4 * COLUMNS + own.column) * 16, COLUMNS * 16);
#pragma unroll
  for (int p = 0; p < PLANES; ++p)
    load_points(pairs[p], shared.pairs(inputs) + ((query * PLANES + p) * STAGE_POINTS + first) * 4, 16);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float values[PLANES + 1];
#pragma unroll
    for (int p = 0; p < PLANES; ++p) values[p] = pairs[p][i];
    const float value = amplitude(values, params, (REAL)a.field.k);
#if DIGITS
    g[i] = integer_of(value * coef[i], own.scale[turn], i);
#else
    g[i] = IN_UNITS ? value * own.scale[turn] * coef[i] : value * coef[i];
#endif
  }
}

// A warp's bytes of G are in a row; of 64 columns in 16 bits, of which it has half, by halves of k.
MERCER_INLINE void pass_on(const FieldShared& shared, const FieldWork& work, const OwnPart& own, int stage,
                           int inputs) {
  async_fence();
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  barrier_arrive(shared.inputs_empty(inputs));
#if CLUSTER > 1
  constexpr int kApart = COLUMNS > 32 && !DIGITS ? 2 : 1;
#pragma unroll
  for (int half = 0; half < kApart; ++half)
    copy_to_block(shared.g(stage) + own.first_of_warp + half * (PRODUCT_COLUMNS * 16),
                  SHARED_G_BYTES / FEED_WARPS / kApart, shared.made(stage), work.rank ^ 1);
  if (threadIdx.x % 128 == 0) return barrier_expect(shared.made(stage), SHARED_G_BYTES);
#endif
  barrier_arrive(shared.made(stage));
}

MERCER_INLINE void feed(const FieldProductArguments& a, const FieldShared& shared, const FieldWork& work,
                        const REAL* params) {
  const u32 warp = threadIdx.x % 128 / 32;
  const OwnPart own(a, work);
  if (warp == 0)
    for (int s = 0; s < INPUT_STAGES - 1 && work.first + s < work.end; ++s)
      feed_inputs(a, shared, work, work.first + s, s);
  Ring<STAGES> ring = {0, 0};
  Ring<INPUT_STAGES> read = {0, 0}, fed = {INPUT_STAGES - 1, 0};
#pragma unroll 1
  for (int index = work.first; index < work.end; ++index) {
    barrier_wait(shared.inputs_full(read.stage), read.parity);
#pragma unroll
    for (int turn = 0; turn < OwnPart::kTurns; ++turn) {
      Made g[16];
      make_g(g, a, shared, work, own, turn, read.stage, params);
      if (turn == 0) {
        barrier_wait(shared.empty(ring.stage), ring.parity ^ 1);
        // Warps feed in turns: one that fed every stage would be the last to make its part of all of them.
        if ((u32)(index - work.first) % FEED_WARPS == warp) {
          feed_z(a, shared, work, index, ring.stage);
          if (index + INPUT_STAGES - 1 < work.end) {
            barrier_wait(shared.inputs_empty(fed.stage), fed.parity ^ 1);
            feed_inputs(a, shared, work, index + INPUT_STAGES - 1, fed.stage);
          }
        }
        __syncwarp();
      }
      // Places behind the last point have what was there before.
      const int points = points_of(a, index) - own.quarter[turn] * 16;
      if (points < 16)
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (i >= points) g[i] = NOTHING;
      const int column = own.column % GROUP_COLUMNS;
      write_g(shared.g(ring.stage) + own.place[turn] + column / 8 * 128 + column % 8 * 16, g);
    }
    pass_on(shared, work, own, ring.stage, read.stage);
    ring.advance();
    read.advance();
    fed.advance();
  }
}

// ---- the groups that multiply --------------------------------------------------------------------------------------
// Descriptor without swizzle: blocks of 8 columns x 16 bytes lie one after the other, the halves of k behind them. Its
// lower word has the address, which `bytes` do not carry out of its field.
struct Descriptor {
  u32 low;
  MERCER_METHOD explicit Descriptor(u32 address) : low((address & 0x3ffff) >> 4 | PRODUCT_COLUMNS << 16) {}
  MERCER_METHOD u64 at(u32 bytes) const { return (u64)(128 / 16) << 32 | (low + bytes / 16); }
};

// What a lane has of x, as bits: codes in both halves or values of two features of each point m.
struct FieldRows {
  u32 of[QUERIES][2];
  MERCER_METHOD void load(const FieldProductArguments& a, const FieldWork& work, i64 k0, i64 block) {
#pragma unroll
    for (int q = 0; q < QUERIES; ++q)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const i64 k = k0 + 8 * h < a.field.k ? k0 + 8 * h : a.field.k - 1;
        const i64 m = work.m0 + q < a.field.m ? work.m0 + q : a.field.m - 1;
        of[q][h] = SIGN ? a.x_codes[(block * a.field.k + k) * a.codes_ld + m] * 0x10001u
                        : bits_of(((const float*)a.field.x)[k * a.field.x_ld + m]);
      }
  }
};

#if DIGITS
typedef int Sum;
#else
typedef float Sum;
#endif
struct FieldSums {
  Sum of[QUERIES][PRODUCT_COLUMNS / 2];
  MERCER_METHOD void keep_all() {
#pragma unroll
    for (int q = 0; q < QUERIES; ++q)
#pragma unroll
      for (int i = 0; i < PRODUCT_COLUMNS / 2; ++i) keep(of[q][i]);
  }
};

#if HALVES
struct PowerSize {
  float shift, scale;  // two to the shift
};
template <bool BY_TABLE>
MERCER_INLINE float power(float d, const PowerSize& size) {
  const float base = BOUNDED ? fmaxf(fabsf(d), LEAST) : fabsf(d);  // NaN is refused by measure_points
#if IS_ROOT
  const float magnitude = sqrt_unit(base) * size.scale;
#elif TABLE_EIGHTHS > 0
  const float magnitude = BY_TABLE ? power_scale(base) * size.scale * power_poly(base)
                                   : exp2_unit(mul_add(EXPONENT, log2_unit(base), size.shift));
#else
  const float magnitude = exp2_unit(mul_add(EXPONENT, log2_unit(base), size.shift));
#endif
  return copysignf(magnitude, d);
}
// Element i of eight, an even one: so many by table and polynomial keep the special-function unit and the other pipes
// equally busy.
MERCER_INLINE constexpr bool is_by_table(int i) { return i * TABLE_EIGHTHS % 8 < TABLE_EIGHTHS; }
#else
struct PowerSize {};
#endif

// What else the factor and the amplitude read; of a lane's two features w, and what gives powers their size.
struct FieldValues {
  float w[2];
  PowerSize size[2];
  const REAL* params;
  REAL features;
};

// Left operands of one step: element i of four has feature i % 2 of the lane, and points as write_g puts them.
#if DIGITS
struct LeftOperands {
  u32 codes[2][4], left[SLOTS][4];
  MERCER_METHOD void load(u32 z, int step) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(codes[half][0]), "=r"(codes[half][1]), "=r"(codes[half][2]), "=r"(codes[half][3])
                   : "r"(z + (step * 2 + half) * GROUP_BYTES)
                   : "memory");
  }
  MERCER_METHOD void make(int slot, int q, int, const FieldRows& x, const FieldValues&) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 differences[2];
#pragma unroll
      for (int pair = 0; pair < 2; ++pair)
        asm("add.f16x2 %0, %1, %2;"
            : "=r"(differences[pair])
            : "r"(x.of[q][i % 2]), "r"(codes[i / 2][pair * 2 + i % 2]));
      left[slot][i] = bytes_of(differences[0], differences[1], 0x7531) & 0xc0c0c0c0u;
    }
  }
  MERCER_METHOD void multiply(FieldSums& sums, int slot, int q, Descriptor g, u32 at, bool adds) const {
    product(sums.of[q], left[slot], g.at(at), adds);
  }
};
#elif SIGN
struct LeftOperands {
  u32 codes[4], left[SLOTS][4];
  MERCER_METHOD void load(u32 z, int step) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
                 : "r"(z + step * GROUP_BYTES)
                 : "memory");
  }
  MERCER_METHOD void make(int slot, int q, int, const FieldRows& x, const FieldValues&) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 difference;
      asm("add.f16x2 %0, %1, %2;" : "=r"(difference) : "r"(x.of[q][i % 2]), "r"(codes[i]));
      left[slot][i] = difference & 0xc000c000u;
    }
  }
  MERCER_METHOD void multiply(FieldSums& sums, int slot, int q, Descriptor g, u32 at, bool adds) const {
    product(sums.of[q], left[slot], g.at(at), adds);
  }
};
#else
struct LeftOperands {
  float points[2][4];
  u32 high[SLOTS][4], low[SLOTS][4];
  MERCER_METHOD void load(u32 z, int step) {
    constexpr int kSteps = STEPS / 4;  // of one load
    if (step % kSteps != 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) shared_floats(points[h], z + step / kSteps * GROUP_BYTES + h * 512);
  }
#if HALVES
  MERCER_METHOD void make(int slot, int q, int, const FieldRows& x, const FieldValues& v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float own = float_of(x.of[q][i % 2]), *const two = points[i % 2] + i / 2 * 2;
      const PowerSize& size = v.size[i % 2];
      const float first = is_by_table(2 * i) ? power<true>(own - two[0], size) : power<false>(own - two[0], size);
      split_pair(first, power<false>(own - two[1], size), high[slot][i], low[slot][i]);
    }
  }
#else
  MERCER_METHOD void make(int slot, int q, int step, const FieldRows& x, const FieldValues& v) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value =
          factor(float_of(x.of[q][i % 2]), points[i % 2][step % 2 * 2 + i / 2], v.w[i % 2], v.params, v.features);
      high[slot][i] = bits_of(high_piece(value));
      low[slot][i] = bits_of(value - high_piece(value));
    }
  }
#endif
  // Low times high joins the sums of high times low: each addition to the largest sums costs digits.
  MERCER_METHOD void multiply(FieldSums& sums, int slot, int q, Descriptor g, u32 at, bool adds) const {
    product(sums.of[q], high[slot], g.at(at), adds);
    product_low(sums.of[q], low[slot], g.at(at + COLUMNS * 16), 1);
  }
};
#endif

// Left operands of the next BATCH points m are made while the products of the last are on their way. `leave` is called
// when those of the stage before are done.
template <class Leave>
MERCER_INLINE void multiply_stage(FieldSums& sums, const FieldRows& x, u32 z, Descriptor g, bool adds,
                                  const FieldValues& values, const Leave& leave) {
  LeftOperands left;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    left.load(z, step);
#pragma unroll
    for (int first = 0; first < QUERIES; first += BATCH) {
      products_wait<PENDING>();
      if (step * QUERIES + first == PENDING * BATCH) leave();
#pragma unroll
      for (int q = first; q < first + BATCH; ++q) left.make((step * QUERIES + q) % SLOTS, q, step, x, values);
      products_fence();
#pragma unroll
      for (int q = first; q < first + BATCH; ++q)
        left.multiply(sums, (step * QUERIES + q) % SLOTS, q, g, (q * STEPS + step) * STEP_BYTES, adds || step > 0);
      products_commit();
    }
  }
}

// Where a piece of sum i of a point m is.
MERCER_INLINE constexpr int place_of(int i, int piece) {
  constexpr int kGroup = GROUP_COLUMNS / 2;
  return (i / kGroup * PIECES + piece) * kGroup + i % kGroup;
}
#if DIGITS
MERCER_INLINE float sum_of(const FieldSums& sums, int q, int i) {
  constexpr float kUnit = 1 / (64 * LARGEST);
  return kUnit * mul_add((float)sums.of[q][place_of(i, 2)], 65536.0f,
                         mul_add((float)sums.of[q][place_of(i, 1)], 256.0f, (float)sums.of[q][place_of(i, 0)]));
}
#else
MERCER_INLINE float sum_of(const FieldSums& sums, int q, int i) { return sums.of[q][place_of(i, 0)]; }
// Sums of the pieces, of so many stages, are added to the totals, or begin them; `last`: the totals stay in the sums.
MERCER_INLINE void flush(FieldSums& sums, const FieldShared& shared, int stages, bool begins, bool last) {
  const u32 totals = shared.totals + threadIdx.x * 16;
  const float grown = 1 + GIVEN_BACK * stages;
#pragma unroll
  for (int unit = 0; unit < TOTAL_UNITS; ++unit) {
    const u32 place = totals + unit * (MULTIPLIERS * 16);
    float total[4] = {};
    if (!begins) shared_floats(total, place);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = (unit * 4 + i) / HALF_COLUMNS, c = (unit * 4 + i) % HALF_COLUMNS;
      float part = sums.of[q][place_of(c, 1)];
      if (PIECES == 3) part += sums.of[q][place_of(c, 2)];
      part += sums.of[q][place_of(c, 0)];
      total[i] = GIVEN_BACK > 0 ? mul_add(part, grown, total[i]) : total[i] + part;
      if (last) sums.of[q][place_of(c, 0)] = total[i];
    }
    if (!last) store_floats(place, total);
  }
}
#endif

MERCER_INLINE void store_field(const FieldProductArguments& a, const FieldSums& sums, const FieldWork& work, i64 k0,
                               const float (&scale)[2]) {
  const FieldArguments& f = a.field;
  float* out = (float*)f.out + (i64)blockIdx.y * f.out_split;
  const int pair = threadIdx.x % 4 * 2;
#pragma unroll
  for (int q = 0; q < QUERIES; ++q) {
    const i64 m = work.m0 + q;
    if (m >= f.m || !is_wanted(a, m)) continue;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < HALF_COLUMNS; ++i) {
      const int o = i / 4 * 8 + pair + i % 2, h = i / 2 % 2;
      const i64 k = k0 + 8 * h;
#if HALVES
      // Apart from the scale, which a small weight may leave few bits.
      float value = sum_of(sums, q, i) * (power_of_two(-a.power_shifts[k < f.k ? k : f.k - 1]) / LARGEST) * scale[h];
#else
      float value = sum_of(sums, q, i) * scale[h];
#endif
      if (o >= f.outputs || k >= f.k) continue;
#if IN_UNITS
      value *= a.row_units[m] * a.column_units[o];
#endif
      finite = finite && fabsf(value) < INFINITY;
      out[o * f.out_output + m * f.out_row + k * f.out_feature] = value;
    }
    if (!finite) a.marks[m * ((f.k + 63) / 64) + k0 / 64] = 1;
  }
}

MERCER_INLINE void leave_stage(const FieldShared& shared, int stage) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
#if CLUSTER > 1
  if (lane < CLUSTER) arrive_at(shared.empty(stage), lane);
#else
  if (lane == 0) barrier_arrive(shared.empty(stage));
#endif
}

// COUNT stages; then nothing is on its way.
template <int COUNT>
MERCER_INLINE void multiply_stages(FieldSums& sums, const FieldRows& x, const FieldShared& shared, Ring<STAGES>& ring,
                                   bool adds, const FieldValues& values) {
  const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  sums.keep_all();
  int before = 0;
#pragma unroll
  for (int s = 0; s < COUNT; ++s) {
    barrier_wait(shared.full(ring.stage), ring.parity);
    barrier_wait(shared.made(ring.stage), ring.parity);
    const u32 z = shared.z(ring.stage) + warp * 4 * GROUP_BYTES + lane * 16;
    multiply_stage(sums, x, z, Descriptor(shared.g(ring.stage)), adds || s > 0, values, [&] {
      if (s > 0) leave_stage(shared, before);
    });
    before = ring.stage;
    ring.advance();
  }
  products_wait<0>();
  sums.keep_all();
  leave_stage(shared, before);
}

MERCER_INLINE void multiply(const FieldProductArguments& a, const FieldShared& shared, const FieldWork& work,
                            const REAL* params) {
  const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const i64 k0 = (i64)(work.feature_tile * TILE_GROUPS + warp) * 16 + lane / 4;
  FieldValues values = {{}, {}, params, (REAL)a.field.k};
  float scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const i64 k = k0 + 8 * h < a.field.k ? k0 + 8 * h : a.field.k - 1;
    values.w[h] = READS_WEIGHTS ? ((const float*)a.field.w)[k] : 0.0f;
    scale[h] = WEIGHTED ? SCALE * weight_of(values.w[h]) : SCALE;
#if HALVES
    values.size[h] = {(float)a.power_shifts[k], power_of_two(a.power_shifts[k])};
#endif
  }
  FieldRows x;
  FieldSums sums;
#pragma unroll
  for (int q = 0; q < QUERIES; ++q)
#pragma unroll
    for (int i = 0; i < PRODUCT_COLUMNS / 2; ++i) sums.of[q][i] = 0;
  Ring<STAGES> ring = {0, 0};
  int stages = 0;  // since the sums began
#if !DIGITS
  bool begins = true;
#endif
  int next_block = work.first;  // where other codes begin
#pragma unroll 1
  for (int index = work.first; index < work.end;) {
    if (index == next_block) {
      const int block = SIGN ? index / CODE_STAGES : 0;
      next_block = SIGN ? (block + 1) * CODE_STAGES : work.end;
      x.load(a, work, k0, block);
    }
    const int left = (next_block < work.end ? next_block : work.end) - index;
    const int count = TOGETHER > 1 && left >= TOGETHER ? TOGETHER : 1;
    if (count == TOGETHER)
      multiply_stages<TOGETHER>(sums, x, shared, ring, stages > 0, values);
    else
      multiply_stages<1>(sums, x, shared, ring, stages > 0, values);
    index += count;
    stages += count;
#if !DIGITS
    if (stages == FLUSH_STAGES && index < work.end) {
      flush(sums, shared, stages, begins, false);
      begins = false;
      stages = 0;
    }
#endif
  }
#if !DIGITS
  flush(sums, shared, stages, begins, true);
#endif
  store_field(a, sums, work, k0, scale);
}

MERCER_INLINE void synchronise_blocks() {
  if (CLUSTER > 1)
    cluster_barrier();
  else
    __syncthreads();
}

MERCER_INLINE void contract(const FieldProductArguments& a, const FieldShared& shared, const FieldWork& work) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      barrier_init(shared.full(s), 1);
      barrier_init(shared.made(s), FEED_WARPS);
      barrier_init(shared.empty(s), CLUSTER * (MULTIPLIERS / 32));
    }
    for (int s = 0; s < INPUT_STAGES; ++s) {
      barrier_init(shared.inputs_full(s), 1);
      barrier_init(shared.inputs_empty(s), FEED_WARPS);
    }
    barrier_init_done();
  }
#if HALVES && TABLE_EIGHTHS > 0
  load_power_table();
#endif
  synchronise_blocks();
  const REAL* params = a.field.params ? (const REAL*)a.field.params : (const REAL*)a.field.numbers;
  if (threadIdx.x / 128 == FEED_GROUP) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEED_REGISTERS));
    feed(a, shared, work, params);
#if FALLBACK
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLY_REGISTERS));
    multiply(a, shared, work, params);
#if FALLBACK
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
  }
  // A block's memory stays while another one may still write into it or arrive at it, and is read to the end.
  if (FALLBACK) async_fence();
  if (CLUSTER > 1 || FALLBACK) synchronise_blocks();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(FIELD_THREADS, 1)
    field_products(const __grid_constant__ FieldProductArguments a) {
  extern __shared__ __align__(1024) u8 memory[];
  const FieldShared shared(shared_address(memory));
#if FALLBACK
  // Mostly nothing is wanted, and blocks take 10 ns each to leave: one a multiprocessor looks through what 32 would
  // have, a lane each. Blocks of a cluster have the same points m. What is next is kept in shared memory, as registers
  // are short.
  volatile u32* const search = shared.search(memory);
  if (threadIdx.x == 0) search[0] = blockIdx.x, search[1] = 0;
  __syncthreads();
  const u32 step = 32 * gridDim.x;
#pragma unroll 1
  while (true) {
    const u32 blocks = (u32)((a.field.m + QUERIES - 1) / QUERIES) * (a.groups / TILE_GROUPS);
    u32 next = search[0], wanted = search[1];
#pragma unroll 1
    for (; wanted == 0; next += step) {
      if (next >= blocks) return;
      const u32 mine = next + threadIdx.x % 32 * gridDim.x;
      wanted = __ballot_sync(0xffffffffu, mine < blocks && is_wanted(a, FieldWork(a, mine)));
    }
    __syncthreads();
    if (threadIdx.x == 0) search[0] = next, search[1] = wanted & (wanted - 1);
    contract(a, shared, FieldWork(a, next - step + (__ffs(wanted) - 1) * gridDim.x));
    if (threadIdx.x == 0)
      for (int b = 0; b < 3 * STAGES + 2 * INPUT_STAGES; ++b) barrier_end(shared.bars + 8 * b);
  }
#else
  const FieldWork work(a, blockIdx.x);
  if (is_wanted(a, work)) contract(a, shared, work);  // nor by the other blocks of the cluster, of the same points m
#endif
}
