// What products of gradient fields have in shared memory and in registers, and what a block computes
// (field_products.cuh).
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"

#define FEED_GROUP (TILE_GROUPS / 4)
#define FEED_WARPS 4
#define WIDE (TILE_GROUPS > 12)  // of 16 features; a warp multiplies each
#define FIELD_THREADS (TILE_GROUPS * 32 + 128)
#define STAGE_POINTS 64
#define QUERIES ((WIDE ? 32 : 64) / COLUMNS)
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
#define TOTAL_UNITS (DIGITS ? 0 : QUERIES * HALF_COLUMNS / 4)  // of four floats
#define FLUSH_STAGES (SIGN ? 8 : HALVES ? 4 : 1)
#define GIVEN_BACK (HALVES ? 1.75e-7f : 0.0f)
#define MULTIPLIERS (TILE_GROUPS * 32)
#define TOGETHER (DIGITS ? 4 : 1)  // stages that are multiplied
#define PENDING (HALVES ? 2 : DIGITS && BATCH == 1 && QUERIES >= 4 ? 3 : 1)  // batches under way
#define SLOTS ((PENDING + 1) * BATCH)                                        // left operands of points m
// Registers of a thread, on average those with which it begins: more for the values of powers at once.
#define FEED_REGISTERS (WIDE ? 64 : HALVES ? 56 : 80)
#define MULTIPLY_REGISTERS (WIDE ? 104 : HALVES ? 152 : 144)
#define REGISTERS (WIDE ? 96 : 128)

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

// Descriptor without swizzle: blocks of 8 columns x 16 bytes lie one after the other, the halves of k after them. Its
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

using Sum = Either<DIGITS, int, float>;
struct FieldSums {
  Sum of[QUERIES][PRODUCT_COLUMNS / 2];
  MERCER_METHOD void keep_all() {
#pragma unroll
    for (int q = 0; q < QUERIES; ++q)
#pragma unroll
      for (int i = 0; i < PRODUCT_COLUMNS / 2; ++i) keep(of[q][i]);
  }
};

struct PowerSize {
  float shift, scale;  // two to the shift
};
// What else the factor and the amplitude read; of a lane's two features w, and what gives powers their size.
struct FieldValues {
  float w[2];
  PowerSize size[2];
  const REAL* params;
  REAL features;
};

// Where a piece of sum i of a point m is.
MERCER_INLINE constexpr int place_of(int i, int piece) {
  constexpr int kGroup = GROUP_COLUMNS / 2;
  return (i / kGroup * PIECES + piece) * kGroup + i % kGroup;
}
