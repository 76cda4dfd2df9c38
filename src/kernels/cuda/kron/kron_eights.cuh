// Phases of kron_chain.cuh in float64 whose axes have five to eight elements, on tensor cores: an item a warp, lane
// 4 g + t.
//
//   first axis   sums[q_a][n] = sum_p A[q_a][p] x[p][n]         a lane has x[t][g] and x[t + 4][g], sums[g][2 t] and
//                                                               sums[g][2 t + 1]
//   second axis  out[q_a][q_b] = sum_n sums[q_a][n] B[n][q_b]   sums lie as an operand of rows: nothing moves
#pragma once

#include "common/arguments.h"
#include "common/double_units.cuh"
#include "common/prelude.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_phases.cuh"
#include "kron/kron_values.cuh"

typedef Pack<Value, 2> Eight;  // what a lane has of a row, or of a column

MERCER_INLINE Eight multiply_eight(const Eight& rows, const Eight& columns) {
  Eight d = {};
  multiply_8x8(d.value[0], d.value[1], rows.value[0], columns.value[0]);
  multiply_8x8(d.value[0], d.value[1], rows.value[1], columns.value[1]);
  return d;
}

template <class A>
MERCER_STEP void write_eights(const KronArguments& k, i64 item, u8* operands) {
  for (int lane = threadIdx.x; lane < 32; lane += CHAIN_THREADS) {
    const int g = lane / 4, t = lane % 4;
    Value pair[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int p = A::FROM_LEFT ? 4 * h + t : 2 * t + h;
      pair[h] = p < A::P && g < A::Q ? A::load(k, item, p, g) : (Value)0;
    }
    ((Eight*)(operands + A::AT))[lane] = {pair[0], pair[1]};
  }
}

// One axis, eight of the vectors after it at a time. Lanes write half lines: column n is vector n % 2 * 4 + n / 2.
template <class F, class Results>
MERCER_STEP void eights_one(Value* tile, const u8* operands, const Results& results) {
  constexpr int W = F::WIDTH, GROUPS = F::INNER / W, STEP = 8 * CHAIN_WARPS;
  typedef Pack<Value, W> Vector;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const Eight a = ((const Eight*)(operands + F::OPERAND_A))[lane];
  const auto column = [](int n) { return n % 2 * 4 + n / 2; };
  const int begin = 8 * item_bound<F>((F::ITEMS + 7) / 8, true) + threadIdx.x / 32 * 8;
  const int end = 8 * item_bound<F>((F::ITEMS + 7) / 8, false);
  const ItemPlaces<F> read(begin + column(g)), first(begin + column(2 * t)), second(begin + column(2 * t + 1));
  const int count = F::ADDS ? F::ITEMS / F::BLOCKS : end - begin;
#pragma unroll(F::ADDS ? 32 : 1)
  for (int more = 0; more < count; more += STEP) {
    const int v = read.first + more;
    Value* const from = tile + read(more);
    Vector x[2] = {}, sums[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (4 * h + t < F::P_A && (F::ADDS || v < F::ITEMS)) x[h] = load_row<F, Vector>(from, 4 * h + t);
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int p = 4 * h + t;
      if (p < F::P_A && (F::ADDS || v < F::ITEMS))
        results.template refill<F>(from + p * F::STEP_A, v / GROUPS, p, v % GROUPS * W);
    }
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const Eight d = multiply_eight(a, {x[0].value[w], x[1].value[w]});
      sums[0].value[w] = d.value[0];
      sums[1].value[w] = d.value[1];
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const ItemPlaces<F>& to = e ? second : first;
      const int u = to.first + more;
      if (g < F::Q_A && (F::ADDS || u < F::ITEMS))
        results.template store<F>(tile + to(more) + g * F::STEP_A, u / GROUPS, g, u % GROUPS * W, sums[e]);
    }
  }
}

// Two axes.
template <class F>
MERCER_STEP void eights_two(Value* tile, const u8* operands) {
  constexpr int W = F::WIDTH;
  typedef Pack<Value, W> Vector;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const Eight a = ((const Eight*)(operands + F::OPERAND_A))[lane];
  const Eight b = ((const Eight*)(operands + F::OPERAND_B))[lane];
  const ItemPlaces<F> item(threadIdx.x / 32);
  const int count = F::ADDS ? F::ITEMS : F::ITEMS - item.first;
#pragma unroll(F::ADDS ? 32 : 1)
  for (int more = 0; more < count; more += CHAIN_WARPS) {
    Value* const base = tile + item(more);
    Vector x[2] = {}, out[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int p = 4 * h + t;
      if (p < F::P_A && g < F::P_B) x[h] = *(const Vector*)(base + p * F::STEP_A + g * F::STEP_B);
    }
    __syncwarp();
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const Eight d = multiply_eight(multiply_eight(a, {x[0].value[w], x[1].value[w]}), b);
      out[0].value[w] = d.value[0];
      out[1].value[w] = d.value[1];
    }
    if (g >= F::Q_A) continue;
    Value* const row = base + g * F::STEP_A;
    if constexpr (F::ALONG) {
      if (2 * t < F::Q_B) *(Eight*)(row + 2 * t) = {out[0].value[0], out[1].value[0]};
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (2 * t + e < F::Q_B) *(Vector*)(row + (2 * t + e) * F::STEP_B) = out[e];
    }
  }
}
