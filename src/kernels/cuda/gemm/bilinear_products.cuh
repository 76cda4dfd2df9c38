// Products of matrices in split precision: a warp feeds a ring of units of both images, two warpgroups multiply
// (bilinear_tile.cuh). LAST_FEEDS: there is no such warp.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "gemm/bilinear_shared.cuh"
#include "gemm/bilinear_walk.cuh"

#define FEED_WARP 8

// Descriptor of rows of 128 bytes in the 128-byte swizzle: address / 16, eight rows 1024 bytes apart.
MERCER_INLINE u64 descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (1ull << 16) | ((u64)(1024 >> 4) << 32) | (1ull << 62);
}

// ---- what feeds ----------------------------------------------------------------------------------------------------
// A unit of the x that lies at block `first` of its image.
MERCER_INLINE void feed_rows(const BilinearArguments& a, i64 first, int unit, u32 to, u32 full) {
  constexpr int kBlock = MERCER_IMAGE_ROWS * ROW_BYTES;
#pragma unroll
  for (int b = 0; b < TILE_M / MERCER_IMAGE_ROWS; ++b)
    copy_bulk(to + b * kBlock, a.x.image + (image_block(first + b, a.x_end) * a.units + unit) * kBlock, kBlock, full);
}

// Units of values, `own` of them, then those of weights, which lie after all that the image has room for.
MERCER_INLINE int unit_of_image(const BilinearArguments& a, int unit, int own) {
  return WEIGHT_UNITS == 0 || unit < own ? unit : (int)a.units - WEIGHT_UNITS + unit - own;
}

#define TILE_UNITS (SINGLE ? 1 : BRIEF)
// A warp calls this, and its lanes have a copy each: where from and to is found out for all of them at once.
MERCER_INLINE void feed_tile(const BilinearArguments& a, const BilinearShared& shared, const Walk& walk,
                             Ring<STAGES> ring, u32 columns) {
  constexpr int kBlock = MERCER_IMAGE_ROWS * ROW_BYTES, kBlocksX = TILE_M / MERCER_IMAGE_ROWS,
                kBlocks = kBlocksX + TILE_N / MERCER_IMAGE_ROWS, kCopies = TILE_UNITS * kBlocks;
  const int lane = threadIdx.x % 32, first = ring.stage;
  const i64 left = a.z_end - walk.n0;
  const u32 plane_bytes = (u32)(left < TILE_N ? left : TILE_N) * 4;
  if (lane == 0) {
#pragma unroll
    for (int unit = 0; unit < TILE_UNITS; ++unit, ring.advance())
      barrier_expect(shared.full(ring.stage), STAGE_BYTES + (unit == 0 ? plane_bytes * COLUMN_PLANES : 0));
  }
  __syncwarp();
#pragma unroll 1
  for (int copy = lane; copy < kCopies + COLUMN_PLANES; copy += 32) {
    const u8* from;
    u32 to, bytes;
    int stage = first;
    if (copy < kCopies) {
      const int unit = copy / kBlocks, block = copy % kBlocks;
      const bool of_x = block < kBlocksX;
      const i64 wanted = of_x ? walk.m0 / MERCER_IMAGE_ROWS + block : walk.n0 / MERCER_IMAGE_ROWS + block - kBlocksX;
      stage = (first + unit) % STAGES;
      from = (of_x ? a.x : a.z).image + (image_block(wanted, of_x ? a.x_end : a.z_end) * a.units + unit) * kBlock;
      to = shared.stages + stage * STAGE_BYTES + block * kBlock;
      bytes = kBlock;
    } else {
      from = (const u8*)column_plane(a, copy - kCopies, walk.n0);
      to = columns + (copy - kCopies) * PLANE_ROW * 4;
      bytes = plane_bytes;
    }
    copy_bulk(to, from, bytes, shared.full(stage));
  }
  __syncwarp();
}

template <class Walk>
MERCER_INLINE void feed(const BilinearArguments& a, const BilinearShared& shared, int units, int rank) {
  constexpr int kBlock = MERCER_IMAGE_ROWS * ROW_BYTES, kColumnBlocks = TILE_N / MERCER_IMAGE_ROWS / CLUSTER;
  Ring<STAGES> ring = {0, 0};
  Ring<V_STAGES> v_ring = {0, 0};
  u32 columns_parity = 0, rows_parity = 0;
  Walk walk(a);
#pragma unroll 1
  while (walk.next()) {
    if (walk.is_below()) continue;
    const i64 x_first = (walk.m0 + rank * TILE_M) / MERCER_IMAGE_ROWS;
    const i64 z_first = walk.n0 / MERCER_IMAGE_ROWS + rank * kColumnBlocks;
    if constexpr (RESIDENT)
      if (walk.starts_range()) {
        barrier_await(shared.rows_empty(), rows_parity ^ 1);
        rows_parity ^= 1;
        const int all = units + WEIGHT_UNITS;
        barrier_expect(shared.rows_full(), all * UNIT_BYTES_X);
        for (int unit = 0; unit < all; ++unit)
          feed_rows(a, x_first, unit_of_image(a, unit, units), shared.rows + unit * UNIT_BYTES_X, shared.rows_full());
      }
#pragma unroll 1
    for (int own = walk.first_unit(units); own < walk.end_unit(units) + WEIGHT_UNITS; ++own) {
      const int unit = unit_of_image(a, own, units);
      barrier_await(shared.empty(ring.stage), ring.parity ^ 1);
      const u32 full = shared.full(ring.stage), to = shared.stages + ring.stage * STAGE_BYTES;
      barrier_expect(full, STAGE_BYTES);
      if (!RESIDENT) feed_rows(a, x_first, unit, to, full);
#pragma unroll
      for (int b = 0; b < kColumnBlocks; ++b) {
        const u8* from = a.z.image + (image_block(z_first + b, a.z_end) * a.units + unit) * kBlock;
        const u32 place = to + STAGE_ROWS_X * ROW_BYTES + (rank * kColumnBlocks + b) * kBlock;
        if (CLUSTER > 1)
          copy_bulk_to_all(place, from, kBlock, full);
        else
          copy_bulk(place, from, kBlock, full);
      }
      ring.advance();
    }
    if constexpr (COLUMN_PLANES > 0) {
      // What the epilogue reads of the columns; the one before has left.
      const i64 left = a.z_end - walk.n0;
      const u32 bytes = (u32)(left < TILE_N ? left : TILE_N) * 4, full = shared.columns_full();
      barrier_await(shared.columns_empty(), columns_parity ^ 1);
      columns_parity ^= 1;
      barrier_expect(full, bytes * COLUMN_PLANES);
#pragma unroll
      for (int plane = 0; plane < COLUMN_PLANES; ++plane)
        copy_bulk(shared.columns + plane * PLANE_ROW * 4, column_plane(a, plane, walk.n0), bytes, full);
    }
    if constexpr (WIDE > 0) feed_v(a, shared, v_ring, walk.n0, rank);
  }
}

// ---- the multiplying warps -----------------------------------------------------------------------------------------
MERCER_INLINE void release(const BilinearShared& shared, int stage) {
  if (LAST_FEEDS) return;  // all at once
  const int lane = threadIdx.x % 32;
  if (CLUSTER > 1) {
    if (lane < CLUSTER) arrive_at(shared.empty(stage), lane);
  } else if (lane == 0) {
    barrier_arrive(shared.empty(stage));
  }
}

MERCER_INLINE void products_begin(float (&acc)[SUMS]) {
#pragma unroll
  for (int i = 0; i < SUMS; ++i) keep(acc[i]);
  products_fence();
}

// Products of a unit with both pieces: those that multiply a low one, and those that do not.
MERCER_INLINE void low_products(float (&acc)[SUMS], u64 x, u64 z, bool adds) {
  product(acc, descriptor_at<!WIDE>(x, 64), z, adds);
  product(acc, descriptor_at<!WIDE>(x, 96), descriptor_at<!WIDE>(z, 32), 1);
  product(acc, x, descriptor_at<!WIDE>(z, 64), 1);
  product(acc, descriptor_at<!WIDE>(x, 32), descriptor_at<!WIDE>(z, 96), 1);
}
MERCER_INLINE void high_products(float (&acc)[SUMS], u64 x, u64 z, bool adds) {
  product(acc, x, z, adds);
  product(acc, descriptor_at<!WIDE>(x, 32), descriptor_at<!WIDE>(z, 32), 1);
}

// COUNT units into accumulators that start at zero; HIGH: of high pieces alone. Small products come
// first: what truncation takes grows with the sum. Unrolled: across the turns of a loop the compiler would wait for
// every product.
template <bool HIGH, int COUNT>
MERCER_INLINE void run_chunk(float (&acc)[SUMS], const BilinearShared& shared, Ring<STAGES>& ring, u64 x, u64 z) {
  int stage[COUNT];
  u64 xs[COUNT], zs[COUNT];
#pragma unroll
  for (int unit = 0; unit < COUNT; ++unit) {
    stage[unit] = ring.stage;
    const int behind = ring.stage * STAGE_BYTES;
    xs[unit] = descriptor_at<!WIDE>(x, RESIDENT ? unit * UNIT_BYTES_X : behind);
    zs[unit] = descriptor_at<!WIDE>(z, behind);
    barrier_wait(shared.full(ring.stage), ring.parity);
    ring.advance();
    if (unit == 0)
      products_begin(acc);
    else if (WIDE)
      products_fence();
    if (!HIGH) low_products(acc, xs[unit], zs[unit], unit > 0);
  }
#pragma unroll
  for (int unit = 0; unit < COUNT; ++unit) {
    high_products(acc, xs[unit], zs[unit], !HIGH || unit > 0);
    if (HIGH) {
      product(acc, descriptor_at<!WIDE>(xs[unit], 64), descriptor_at<!WIDE>(zs[unit], 64), 1);
      product(acc, descriptor_at<!WIDE>(xs[unit], 96), descriptor_at<!WIDE>(zs[unit], 96), 1);
    }
    products_commit();
  }
  if (COUNT > 1) {
    products_wait<1>();
    release(shared, stage[0]);
  }
  products_wait<0>();
#pragma unroll
  for (int i = 0; i < SUMS; ++i) keep(acc[i]);
  release(shared, stage[COUNT - 1]);
}

// The chunk of values, VALUE_UNITS of a brief tile, and that of weights, waited for together.
template <int VALUE_UNITS>
MERCER_INLINE void run_both(float (&values)[SUMS], float (&weights)[SUMS], const BilinearShared& shared,
                            Ring<STAGES>& ring, u64 x, u64 z) {
  constexpr int kUnits = VALUE_UNITS + WEIGHT_UNITS;
  int stage[kUnits];
  u64 xs[kUnits], zs[kUnits];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    stage[unit] = ring.stage;
    xs[unit] = descriptor_at<!WIDE>(x, unit * UNIT_BYTES_X);
    zs[unit] = descriptor_at<!WIDE>(z, ring.stage * STAGE_BYTES);
    barrier_wait(shared.full(ring.stage), ring.parity);
    ring.advance();
    if (unit == 0) products_begin(values);
    if (unit == VALUE_UNITS) products_begin(weights);
    if (unit > 0) products_fence();
    low_products(unit < VALUE_UNITS ? values : weights, xs[unit], zs[unit], unit != 0 && unit != VALUE_UNITS);
  }
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit)
    high_products(unit < VALUE_UNITS ? values : weights, xs[unit], zs[unit], true);
  products_commit();
  products_wait<0>();
#pragma unroll
  for (int i = 0; i < SUMS; ++i) {
    keep(values[i]);
    keep(weights[i]);
  }
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) release(shared, stage[unit]);
}

// BRIEF: a chunk is all there is, of one kind, so that all threads are seen to take the same path; on paths that could
// differ the compiler waits for every product. What follows is for tiles of more.
//
// A quick kernel has the products of the other `run_chunk` in its order, each waited for: there is one in the text, in
// a loop. With low pieces product i takes part i of z and i ^ 2 of x, with high ones part i of both.
MERCER_INLINE void run_chunk(float (&acc)[SUMS], const BilinearShared& shared, Ring<STAGES>& ring, u64 x, u64 z,
                             bool high, int count) {
  constexpr int kPart = ROW_BYTES / 4;
  const Ring<STAGES> first = ring;
  bool adds = false;
#pragma unroll 1
  for (int turn = high ? count : 0; turn < 2 * count; ++turn) {
    const bool is_low = turn < count;
    if (turn == count) ring = first;
    const int behind = ring.stage * STAGE_BYTES, parts = is_low || high ? 4 : 2;
    barrier_wait(shared.full(ring.stage), ring.parity);
#pragma unroll 1
    for (int i = 0; i < parts; ++i, adds = true) {
      products_begin(acc);
      product(acc, descriptor_at<!WIDE>(x, behind + (is_low ? i ^ 2 : i) * kPart),
              descriptor_at<!WIDE>(z, behind + i * kPart), adds);
      products_commit();
      products_wait<0>();
    }
    if (!is_low) release(shared, ring.stage);
    ring.advance();
  }
#pragma unroll
  for (int i = 0; i < SUMS; ++i) keep(acc[i]);
}

MERCER_INLINE void add_units(float (&sum)[SUMS], const BilinearShared& shared, Ring<STAGES>& ring, u64 x, u64 z,
                             int units, bool high) {
  float acc[SUMS];
  volatile float total[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sum[i] = 0;
#pragma unroll 1
  for (int unit = 0; unit < units; unit += 2) {
    run_chunk(acc, shared, ring, x, z, high, unit + 2 <= units ? 2 : 1);
    add_sums(sum, acc);
    if (unit % UNITS_OF_SUM == UNITS_OF_SUM - 2 && unit + 2 < units) put_away(total, sum, unit < UNITS_OF_SUM);
  }
  if (units > UNITS_OF_SUM) add_sums(sum, total);
}

template <bool HIGH>
MERCER_INLINE void add_units(float (&sum)[SUMS], const BilinearShared& shared, Ring<STAGES>& ring, u64 x, u64 z,
                             int units) {
  float acc[SUMS];
  volatile float total[SUMS];
#pragma unroll
  for (int i = 0; i < SUMS; ++i) sum[i] = 0;
  int unit = 0;
#pragma unroll 1
  for (; unit + 2 <= units; unit += 2) {
    run_chunk<HIGH, 2>(acc, shared, ring, x, z);
    add_sums(sum, acc);
    if (unit % UNITS_OF_SUM == UNITS_OF_SUM - 2 && unit + 2 < units) put_away(total, sum, unit < UNITS_OF_SUM);
  }
  if (unit < units) {
    run_chunk<HIGH, 1>(acc, shared, ring, x, z);
    add_sums(sum, acc);
  }
  if (units > UNITS_OF_SUM) add_sums(sum, total);
}
