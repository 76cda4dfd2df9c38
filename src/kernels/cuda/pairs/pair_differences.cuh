// A tile whose differences are products of tensor cores of compute capability 9.0 (pair_tile.cuh), from the pieces that
// difference_pieces.cuh writes.
//
//   x[m] - z[n] = (x1 + x2 + x3) 1 + 1 (-z1 - z2 - z3)        64 x 128 pairs of a warpgroup, one product a feature
//
//            numbers 0 .. 7                 8 .. 15
//   left     ones where the feature is      x1 x2 x3 0 of two features      64 rows
//   right    -z1 -z2 -z3 0 of the same      ones where the feature is       128 columns
//
// Products with ones are exact, and what a tensor core loses of their sum is 2^-23 of it at most. The ones select which
// of two features that lie together. While the differences of the next feature are made, the formula takes these.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"
#include "pairs/pair_slices.cuh"
#include "pairs/pair_update.cuh"

#define PAIR_OF_FEATURES_BYTES (MERCER_DIFFERENCE_PANEL * 16)
#define DIFFERENCES_A_THREAD 64

MERCER_INLINE void write_ones(u8* to, int rows) {
  constexpr u32 kTwo = 0x3f803f80u, kOne = 0x3f80u;
  for (int row = threadIdx.x; row < 2 * rows; row += THREADS)
    *(uint4*)(to + row * 16) = row < rows ? uint4{kTwo, kOne, 0, 0} : uint4{0, 0, kTwo, kOne};
}
// Before the slices of x and after those of z.
MERCER_INLINE void write_ones(const FedSlices&, REAL* shared) {
  write_ones((u8*)shared - 2 * ONES_X_BYTES, 64);
  write_ones((u8*)(shared + STAGES * SLICE), 128);
  async_fence();
}

// Blocks of eight rows lie one after the other; the second half of the numbers lies elsewhere, farther on.
MERCER_INLINE u64 difference_operand(u32 first_half, u32 second_half) {
  return (u64)(128 / 16) << 32 | (u64)((second_half - first_half) / 16) << 16 | (u64)(first_half / 16);
}

// Descriptors of the first and the second feature of a pair.
struct DifferenceOperands {
  u64 x[2], z[2];

  MERCER_METHOD DifferenceOperands(u32 ones_x, u32 slice, u32 ones_z) {
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const u32 points_x = slice + group * (64 * 16), points_z = slice + SLICE_X * (u32)sizeof(REAL);
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      x[f] = difference_operand(ones_x + f * ONES_X_BYTES, points_x);
      z[f] = difference_operand(points_z, ones_z + f * ONES_Z_BYTES);
    }
  }
  // So many bytes farther on: the second half of x, the first one of z.
  MERCER_METHOD void move(u32 bytes) {
    const u64 step = bytes / 16;
#pragma unroll
    for (int f = 0; f < 2; ++f) {
      x[f] += step << 16;
      z[f] = z[f] + step - (step << 16);
    }
  }
};

MERCER_INLINE DifferenceOperands operands_of_block(const FedSlices&, const REAL* shared) {
  return DifferenceOperands(shared_address((const u8*)shared - 2 * ONES_X_BYTES), shared_address(shared),
                            shared_address(shared + STAGES * SLICE));
}

MERCER_INLINE void ask_differences(float (&d)[DIFFERENCES_A_THREAD], u64 x, u64 z) {
#pragma unroll
  for (int i = 0; i < DIFFERENCES_A_THREAD; ++i) keep(d[i]);
  products_fence();
  differences(d, x, z, 0);
  products_commit();
}

MERCER_INLINE void wait_for_differences(float (&d)[DIFFERENCES_A_THREAD]) {
  products_wait<0>();
#pragma unroll
  for (int i = 0; i < DIFFERENCES_A_THREAD; ++i) keep(d[i]);
}

// Differences go in the order of the product's registers, the last ones first: the compiler then finds banks in which
// a sum, a difference and what is made of it meet least. Points of a warp are stored so that row_of and col_of hold.
// Formulas read nothing else here (plan/gpu/sums/differences.cpp).
MERCER_INLINE void add_differences(Accumulators& acc, const float (&d)[DIFFERENCES_A_THREAD]) {
#pragma unroll
  for (int at = DIFFERENCES_A_THREAD - 1; at >= 0; --at) {
    const int i = at / 2 % 2, j = at / 4 * 2 + at % 2;
    const REAL x[1] = {d[at]}, z[1] = {0};  // x - 0 is x, whatever x
    update(acc.value[i][j], x, z, 0, nullptr, nullptr, nullptr, 0, 0, 0);
    keep(acc.value[i][j][0]);  // otherwise squares of several features are gathered first, and spill
  }
}

// Products never run across a branch, where the compiler would wait for them. All of these find `first` made, and make
// `second` or the next `first` while they take the other.
struct DifferenceSteps {
  Accumulators& acc;
  float first[DIFFERENCES_A_THREAD], second[DIFFERENCES_A_THREAD];

  MERCER_METHOD explicit DifferenceSteps(Accumulators& sums) : acc(sums) {}
  MERCER_METHOD void start(const DifferenceOperands& at) {
    ask_differences(first, at.x[0], at.z[0]);
    wait_for_differences(first);
  }
  MERCER_METHOD void take_first(const DifferenceOperands& at) {
    ask_differences(second, at.x[1], at.z[1]);
    add_differences(acc, first);
    wait_for_differences(second);
  }
  MERCER_METHOD void take_second(const DifferenceOperands& next) {
    ask_differences(first, next.x[0], next.z[0]);
    add_differences(acc, second);
    wait_for_differences(first);
  }
};

// `count` features, from the slice on at which `turns` stands.
template <class Turns>
MERCER_INLINE void accumulate_differences(Accumulators& acc, const DifferenceOperands& slices, Turns& turns,
                                          int count) {
  const auto here = [&] {
    DifferenceOperands at = slices;
    at.move(turns.stage * (SLICE * (u32)sizeof(REAL)));
    return at;
  };
  DifferenceSteps steps(acc);
  turns.wait();
  DifferenceOperands at = here();
  steps.start(at);
  int k = 0;
  const auto pass_pair = [&] {
    steps.take_first(at);
    at.move(PAIR_OF_FEATURES_BYTES);
    steps.take_second(at);
    k += 2;
  };
#pragma unroll 1
  while (true) {
    const int end = count - k > TILE_K ? k + TILE_K : count;
    if (WHOLE_SLICES || end - k == TILE_K) {
#pragma unroll SLICE_UNROLL
      for (int pair = 1; pair < TILE_K / 2; ++pair) pass_pair();
    } else {
#pragma unroll 1
      while (k + 2 < end) pass_pair();
    }
    steps.take_first(at);
    turns.next();
    if (end == count) break;
    turns.wait();
    at = here();
    steps.take_second(at);
    k = end;
  }
  if (WHOLE_SLICES || k + 1 < count) add_differences(acc, steps.second);
}
