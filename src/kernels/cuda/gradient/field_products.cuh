// Gradient fields whose φ is an amplitude of the pair times a factor of the feature, on tensor cores of compute
// capability 9.0. For one point m,
//
//   out[o][m][k] = sum over n of G_m[n][o] * S_m[k][n]      G_m[n][o] = coef[o][n] * amplitude[m][n]
//                                                           S_m[k][n] = factor(x[m][k], z[n][k])
//
// is a product of matrices: S is made in registers, as tensor cores take a left operand, G by a warpgroup of its own in
// shared memory.
//
//      64 points n a stage                     groups multiply: 64 features x QUERIES points m each
//   k  ┌───────────┐      G of a point m       one makes G and feeds: images of z and of the coefficients, rows of
//  192 │ image of  │  x  64 n x (COLUMNS x     the pairs' values
//      │ z         │      PIECES)
//      └───────────┘
//
// A wide tile has 256 features, and half as many points m.
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
#include "common/split_pieces.cuh"
#include "common/warpgroups.cuh"
#include "gradient/field_shape.cuh"
#include "gradient/row_units.cuh"

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
// such parts, where the tile is not wide. Quarters of all points m are shared out among the blocks.
struct OwnPart {
  static constexpr int kTurns = QUERIES * COLUMNS / 32 / CLUSTER, kQuarters = 128 / COLUMNS;  // of all threads
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
      scale[turn] = 1;
      if constexpr (IN_UNITS) {
        const i64 wanted = work.m0 + query[turn], m = wanted < a.field.m ? wanted : a.field.m - 1;
        scale[turn] = unit_scale(a.row_units[m], a.column_units[column]);
      }
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
    g[i] = made_of(amplitude(values, params, (REAL)a.field.k), coef[i], own.scale[turn], i);
  }
}

// A warp's bytes of G are in a row; of 64 columns in 16 bits, of which it has half, by halves of k.
MERCER_INLINE void pass_on(const FieldShared& shared, const FieldWork& work, const OwnPart& own, int stage,
                           int inputs) {
  async_fence();
  __syncwarp();
  if (threadIdx.x % 32 != 0) return;
  barrier_arrive(shared.inputs_empty(inputs));
  if constexpr (CLUSTER > 1) {
    constexpr int kApart = COLUMNS > 32 && !DIGITS ? 2 : 1;
#pragma unroll
    for (int half = 0; half < kApart; ++half)
      copy_to_block(shared.g(stage) + own.first_of_warp + half * (PRODUCT_COLUMNS * 16),
                    SHARED_G_BYTES / FEED_WARPS / kApart, shared.made(stage), work.rank ^ 1);
    if (threadIdx.x % 128 == 0) return barrier_expect(shared.made(stage), SHARED_G_BYTES);
  }
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
      // Places after the last point have what was there before.
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
      float value = sum_of(sums, q, i);
      // Apart from the scale, which a small weight may leave few bits.
      if constexpr (HALVES) value *= power_of_two(-a.power_shifts[k < f.k ? k : f.k - 1]) / LARGEST;
      value *= scale[h];
      if (o >= f.outputs || k >= f.k) continue;
      if constexpr (IN_UNITS) value *= a.row_units[m] * a.column_units[o];
      finite = finite && fabsf(value) < INFINITY;
      out[o * f.out_output + m * f.out_row + k * f.out_feature] = value;
    }
    if (!finite) a.marks[m * ((f.k + 63) / 64) + k0 / 64] = 1;
  }
}

MERCER_INLINE void leave_stage(const FieldShared& shared, int stage) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  if constexpr (CLUSTER > 1) {
    if (lane < CLUSTER) arrive_at(shared.empty(stage), lane);
  } else if (lane == 0) {
    barrier_arrive(shared.empty(stage));
  }
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
    if constexpr (HALVES) values.size[h] = {(float)a.power_shifts[k], power_of_two(a.power_shifts[k])};
  }
  FieldRows x;
  FieldSums sums;
#pragma unroll
  for (int q = 0; q < QUERIES; ++q)
#pragma unroll
    for (int i = 0; i < PRODUCT_COLUMNS / 2; ++i) sums.of[q][i] = 0;
  Ring<STAGES> ring = {0, 0};
  int stages = 0;  // since the sums began
  bool begins = true;
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
    if (!DIGITS && stages == FLUSH_STAGES && index < work.end) {
      flush(sums, shared, stages, begins, false);
      begins = false;
      stages = 0;
    }
  }
  flush(sums, shared, stages, begins, true);
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
  start_factors();
  synchronise_blocks();
  const REAL* params = a.field.params ? (const REAL*)a.field.params : (const REAL*)a.field.numbers;
  if (threadIdx.x / 128 == FEED_GROUP) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(FEED_REGISTERS));
    feed(a, shared, work, params);
    if constexpr (FALLBACK) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLY_REGISTERS));
    multiply(a, shared, work, params);
    if constexpr (FALLBACK) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
  }
  // A block's memory stays while another one may still write into it or arrive at it, and is read to the end.
  if (FALLBACK) async_fence();
  if (CLUSTER > 1 || FALLBACK) synchronise_blocks();
}

// Mostly nothing is wanted, and blocks take 10 ns each to leave: one a multiprocessor looks through what 32 would have,
// a lane each. Blocks of a cluster have the same points m. What is next is kept in shared memory, as registers are
// short.
MERCER_INLINE void contract_wanted(const FieldProductArguments& a, const FieldShared& shared, u8* memory) {
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
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(FIELD_THREADS, 1)
    field_products(const __grid_constant__ FieldProductArguments a) {
  extern __shared__ __align__(1024) u8 memory[];
  const FieldShared shared(shared_address(memory));
  if constexpr (FALLBACK) {
    contract_wanted(a, shared, memory);
  } else {
    const FieldWork work(a, blockIdx.x);
    if (is_wanted(a, work)) contract(a, shared, work);  // nor by the other blocks of the cluster, of the same points m
  }
}
