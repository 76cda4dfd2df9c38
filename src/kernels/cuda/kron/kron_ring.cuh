// Rows whose axes have five to eight elements each, one at a time on a multiprocessor: the phases
// (plan/kron/kron_chain.h).
//
//   x  --- copy engine --->  ring [slot][first axis][RING_COLUMNS]  --- first axis --->  tile  --- pairs --->  out
//
// A warp of the block asks for chunks of rows as slots become free, whatever the others do: memory brings the next row
// while this one is multiplied. Floor: bytes at 4.2 TB/s; about 30 issue slots an element for five axes.
//
// Values are two pieces of tf32, which have the exponents of float32: nothing is scaled. What both leave of a value is
// at most 2^-22 of it, or 2^-126 (docs/kernels/kron.md has the bound). Three of four products of pieces are formed, or
// all, those of a low piece first, since the units cut sums off. Lane 4 g + t:
//
//   one axis      out[n][q] = sum_p x[p][n] F[p][q]    rows of an instruction: 16 of 32 columns n
//   first of two  sums[q_a][n] = sum_p A[q_a][p] x[p][n]    rows: both pieces of A; n = fifth(2 t), fifth(2 t + 1)
//   second        out[q_a][q_b] = sum_n sums[q_a][n] B[n][q_b]    rows: two such matrices; sums lie as operands do
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_phases.cuh"

typedef Pack<float, 4> Four;

// The compiler knows which digits units take. With a mask unknown to it, it keeps two pieces, not the value too.
__constant__ u32 tf32_digits = 0xffffe000u;
MERCER_INLINE void split_value(float value, float& high, float& low) {
  high = float_of(bits_of(value) & tf32_digits);
  low = float_of(bits_of(value - high) + 0x1000u);  // rounds: units take no more than its upper 19 bits
}

// An order of eight in which neighbours are 4 apart: with it, and with steps as the plan chooses them, no lanes of a
// vector access share a bank.
MERCER_INLINE int fifth(int i) { return i % 2 * 4 + i / 2; }

// d += x F for x in pieces, f = {high, high, low, low}.
MERCER_INLINE void multiply_pieces(float (&d)[4], const float (&x)[4], const Four& f) {
  float high[4], low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) split_value(x[i], high[i], low[i]);
  multiply_16x8(d, low, f.value[0], f.value[1]);
  multiply_16x8(d, high, f.value[2], f.value[3]);
  multiply_16x8(d, high, f.value[0], f.value[1]);
}

// LEFT: the first of two axes, {high, low, high, low}. LAST: of a row.
template <class A, bool LEFT, bool LAST>
MERCER_STEP void write_ring_operand(const KronArguments& k, i64 item, u8* operands) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  if (lane >= 32) return;
  const int q = LAST ? g : fifth(g);
  float high[2], low[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int p = 4 * h + t;
    split_value(p < A::P && q < A::Q ? A::load(k, item, p, q) : 0.f, high[h], low[h]);
  }
  Four* const to = (Four*)(operands + A::AT) + lane;
  if (LEFT) *to = {high[0], low[0], high[1], low[1]};
  else *to = {high[0], high[1], low[0], low[1]};
}
MERCER_INLINE Four ring_operand(const u8* operands, int at) { return ((const Four*)(operands + at))[threadIdx.x % 32]; }

// ---- one axis -------------------------------------------------------------------------------------------------------
struct RingVectors {
  Four x[2];  // rows t and t + 4 of a vector of columns
  template <class F>
  MERCER_METHOD void load(const float* from, int step, bool inside) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int p = threadIdx.x % 4 + 4 * h;
      x[h] = {};
      if (p < F::P_A && inside) x[h] = *(const Four*)(from + p * step);
    }
  }
  // Rows t and t + 4 of the results.
  MERCER_METHOD void multiply(const Four& f, Four (&out)[2]) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float a[4] = {x[0].value[2 * j], x[0].value[2 * j + 1], x[1].value[2 * j], x[1].value[2 * j + 1]};
      float d[4] = {};
      multiply_pieces(d, a, f);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        out[e].value[2 * j] = d[e];
        out[e].value[2 * j + 1] = d[2 + e];
      }
    }
  }
  template <class F>
  MERCER_METHOD void multiply(const Four& f, float* to, bool inside) const {
    Four out[2];
    multiply(f, out);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int q = threadIdx.x % 4 + 4 * e;
      if (q < F::Q_A && inside) *(Four*)(to + q * F::STEP_A) = out[e];
    }
  }
};

template <class F>
MERCER_STEP void ring_one(float* tile, const u8* operands) {
  const Four f = ring_operand(operands, F::OPERAND_A);
  const ItemPlaces<F> places(threadIdx.x / 4);
#pragma unroll(F::ADDS ? 32 : 1)
  for (int more = 0; more < F::ITEMS; more += CHAIN_THREADS / 4) {
    const bool inside = F::ADDS || places.first + more < F::ITEMS;
    float* const base = tile + places(more);
    RingVectors vectors;
    vectors.load<F>(base, F::STEP_A, inside);
    __syncwarp();
    vectors.multiply<F>(f, base, inside);
  }
}

// ---- two axes -------------------------------------------------------------------------------------------------------
// Rows fifth(g) of the first axis' results of a matrix, columns fifth(2 t) and fifth(2 t + 1).
MERCER_INLINE void multiply_first(const Four& f, float x0, float x1, float& first, float& second) {
  float high[2], low[2], d[4] = {};
  split_value(x0, high[0], low[0]);
  split_value(x1, high[1], low[1]);
  multiply_16x8(d, f.value, low[0], low[1]);
  multiply_16x8(d, f.value, high[0], high[1]);
  first = d[0] + d[2];
  second = d[1] + d[3];
}
// Two matrices; d = {two elements of the first one, two of the other}.
MERCER_INLINE void multiply_both(float (&d)[4], const Four& left, const Four& right, const float (&x)[2][2]) {
  float a[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) multiply_first(left, x[i][0], x[i][1], a[i], a[2 + i]);
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = 0;
  multiply_pieces(d, a, right);
}

template <class F>
MERCER_INLINE bool is_item(const ItemPlaces<F>& places, int more) {
  return F::ADDS ? more < F::ITEMS : places.first + more < F::ITEMS;
}

// WIDTH neighbours after the axes.
template <class F>
MERCER_STEP void ring_two(float* tile, const u8* operands) {
  const int lane = threadIdx.x % 32, t = lane % 4, n = fifth(lane / 4);
  const Four left = ring_operand(operands, F::OPERAND_A), right = ring_operand(operands, F::OPERAND_B);
  const ItemPlaces<F> places(threadIdx.x / 32);
  float* const from = tile + n * F::STEP_B + t * F::STEP_A;
  float* const to = tile + n * F::STEP_A + t * F::STEP_B;
#pragma unroll(F::ADDS ? 32 : 1)
  for (int more = 0; more < F::ITEMS; more += CHAIN_WARPS) {
    const bool is_there = is_item(places, more);
    Four x[2] = {}, out[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (4 * h + t < F::P_A && n < F::P_B && is_there) x[h] = *(const Four*)(from + places(more) + 4 * h * F::STEP_A);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float z[2][2] = {{x[0].value[2 * j], x[1].value[2 * j]}, {x[0].value[2 * j + 1], x[1].value[2 * j + 1]}};
      float d[4];
      multiply_both(d, left, right, z);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        out[e].value[2 * j] = d[e];
        out[e].value[2 * j + 1] = d[2 + e];
      }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (4 * e + t < F::Q_B && n < F::Q_A && is_there) *(Four*)(to + places(more) + 4 * e * F::STEP_B) = out[e];
  }
}

// The last two axes, to memory: matrices lie there one after the other. store(e, more, two values, of element e + more
// and the next one), read(): after the last read of the tile. Values are read while those before them are multiplied.
template <class F, class Store, class Read>
MERCER_STEP void ring_last(const float* tile, const u8* operands, const Store& store, const Read& read) {
  constexpr int STEP = CHAIN_WARPS * 2;
  const int lane = threadIdx.x % 32, t = lane % 4, n = fifth(lane / 4);
  const Four left = ring_operand(operands, F::OPERAND_A), right = ring_operand(operands, F::OPERAND_B);
  const ItemPlaces<F> places(threadIdx.x / 32);
  const float* const from = tile + t * F::STEP_A + n;
  const int to = (places.first * F::Q_A + n) * F::Q_B + 2 * t;
  float next[2][2];
  const auto load = [&](int more) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int at = more + m * CHAIN_WARPS;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        next[m][h] = 0;
        if (4 * h + t < F::P_A && is_item(places, at)) next[m][h] = from[places(at) + 4 * h * F::STEP_A];
      }
    }
  };
  load(0);
#pragma unroll(F::ADDS ? 32 : 1)
  for (int more = 0; more < F::ITEMS; more += STEP) {
    const float x[2][2] = {{next[0][0], next[0][1]}, {next[1][0], next[1][1]}};
    if (more + STEP < F::ITEMS) load(more + STEP);
    __syncwarp();  // or the compiler leaves all stores to the end, where they wait for each other
    if (more + STEP >= F::ITEMS) read();
    float d[4];
    multiply_both(d, left, right, x);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int at = more + m * CHAIN_WARPS;
      if (n < F::Q_A && is_item(places, at)) store(to, at * (F::Q_A * F::Q_B), d[2 * m], d[2 * m + 1]);
    }
  }
}
