// Phases of kron_chain.cuh: one axis of the tile, or two neighbouring ones, multiplied in place. A phase F has P_A,
// Q_A, STEP_A and OPERAND_A of its axis, the same of B for the second one, ITEMS how many such matrices (or WIDTH of
// them side by side) a tile has, place(item) where one begins.
#pragma once

#include "common/prelude.cuh"
#include "kron/kron_chain.cuh"
#include "kron/kron_values.cuh"

// ---- multiply-adds: an item a thread, all of it in registers --------------------------------------------------------
template <int N>
MERCER_INLINE void load_operands(float (&row)[N], const u8* operands, int at) {
  const u32 address = shared_address(operands) + at * 4;
#pragma unroll
  for (int j = 0; j < N; j += 4) shared_floats(*(float(*)[4]) & row[j], address + j * 4);
}
template <int N, class T>
MERCER_INLINE void load_operands(T (&row)[N], const u8* operands, int at) {
#pragma unroll
  for (int j = 0; j < N; ++j) row[j] = ((const T*)operands)[at + j];
}

// Where a block's items of a phase begin, or end.
template <class F>
MERCER_INLINE int item_bound(int count, bool begin) {
  if (F::BLOCKS == 1) return begin ? 0 : count;
  return (int)((u32)count * (chain_rank() + !begin) / F::BLOCKS);
}
// Where items lie on which a lane works: `first`, then each `more` after it, which is known to the compiler where
// places add up.
template <class F>
struct ItemPlaces {
  int first, place;
  MERCER_METHOD explicit ItemPlaces(int first) : first(first), place(F::ADDS ? F::place(first) : 0) {}
  MERCER_METHOD int operator()(int more) const { return F::ADDS ? place + F::place(more) : F::place(first + more); }
};
// A vector of row p of axis a, whose rows the blocks of a cluster have in turn; `base` is where row 0 of one lies.
template <class F, class Vector>
MERCER_INLINE Vector load_row(const Value* base, int p) {
  if constexpr (F::BLOCKS > 1) {
    constexpr int OWN = F::P_A / F::BLOCKS;
    const u32 place = address_in_block(shared_address(base + p % OWN * F::STEP_A), p / OWN);
    if constexpr (sizeof(Vector) == 16) {
      const uint4 bits = load_four_of_cluster(place);
      return *(const Vector*)&bits;
    } else {
      const uint2 bits = load_two_of_cluster(place);
      return *(const Vector*)&bits;
    }
  }
  return *(const Vector*)(base + p * F::STEP_A);
}

template <class F, class Results>
MERCER_STEP void multiply_one(Value* tile, const u8* operands, const Results& results) {
  constexpr int W = F::WIDTH, PITCH = (F::Q_A + 3) / 4 * 4, CHUNK = PITCH < 8 ? PITCH : PITCH % 8 ? 4 : 8;
  typedef Pack<Value, W> Vector;
  const int end = item_bound<F>(F::ITEMS, false);
#pragma unroll 1
  for (int item = item_bound<F>(F::ITEMS, true) + threadIdx.x; item < end; item += CHAIN_THREADS) {
    constexpr int GROUPS = F::INNER / W;
    const int outer = item / GROUPS, n = item % GROUPS * W;
    Value* const base = tile + F::place(item);
    Vector x[F::P_A];
#pragma unroll
    for (int p = 0; p < F::P_A; ++p) x[p] = load_row<F, Vector>(base, p);
#pragma unroll
    for (int p = 0; p < F::P_A; ++p) results.template refill<F>(base + p * F::STEP_A, outer, p, n);
#pragma unroll
    for (int q0 = 0; q0 < F::Q_A; q0 += CHUNK) {
      Vector sums[CHUNK] = {};
#pragma unroll
      for (int p = 0; p < F::P_A; ++p) {
        Value f[CHUNK];
        load_operands(f, operands + F::OPERAND_A, p * PITCH + q0);
#pragma unroll
        for (int q = 0; q < CHUNK; ++q)
#pragma unroll
          for (int w = 0; w < W; ++w)
            sums[q].value[w] = kron_mul_add(x[p].value[w], f[q], sums[q].value[w]);
      }
#pragma unroll
      for (int q = 0; q < CHUNK; ++q)
        if (q0 + q < F::Q_A) results.template store<F>(base + (q0 + q) * F::STEP_A, outer, q0 + q, n, sums[q]);
    }
  }
}

// Rows (or with ACROSS columns) of `values` times an operand, four of them at a time.
template <int P, int Q, int COUNT, bool ACROSS, int N_A, int N_B>
MERCER_INLINE void multiply_values(Value (&values)[N_A][N_B], const u8* operands) {
  constexpr int PITCH = (Q + 3) / 4 * 4;
#pragma unroll
  for (int first = 0; first < COUNT; first += 4) {
    Value sums[4][PITCH] = {};
#pragma unroll
    for (int p = 0; p < P; ++p) {
      Value f[PITCH];
      load_operands(f, operands, p * PITCH);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first + i < COUNT) {
          const Value x = ACROSS ? values[p][first + i] : values[first + i][p];
#pragma unroll
          for (int q = 0; q < Q; ++q) sums[i][q] = kron_mul_add(x, f[q], sums[i][q]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int q = 0; q < Q; ++q)
        if (first + i < COUNT) (ACROSS ? values[q][first + i] : values[first + i][q]) = sums[i][q];
  }
}

template <class F>
MERCER_STEP void multiply_two(Value* tile, const u8* operands) {
  constexpr int W = F::ALONG ? CHAIN_VECTOR : 1;
  constexpr int N_A = F::P_A > F::Q_A ? F::P_A : F::Q_A, N_B = F::P_B > F::Q_B ? F::P_B : F::Q_B;
  typedef Pack<Value, W> Vector;
#pragma unroll 1
  for (int item = threadIdx.x; item < F::ITEMS; item += CHAIN_THREADS) {
    Value* const base = tile + F::place(item);
    Value values[N_A][N_B];
#pragma unroll
    for (int a = 0; a < F::P_A; ++a)
#pragma unroll
      for (int b = 0; b < F::P_B; b += W) {
        const Vector x = *(const Vector*)(base + a * F::STEP_A + b * F::STEP_B);
#pragma unroll
        for (int w = 0; w < W; ++w) values[a][b + w] = x.value[w];
      }
    multiply_values<F::P_B, F::Q_B, F::P_A, false>(values, operands + F::OPERAND_B);
    multiply_values<F::P_A, F::Q_A, F::Q_B, true>(values, operands + F::OPERAND_A);
#pragma unroll
    for (int a = 0; a < F::Q_A; ++a)
#pragma unroll
      for (int b = 0; b < F::Q_B; b += W) {
        Vector x;
#pragma unroll
        for (int w = 0; w < W; ++w) x.value[w] = values[a][b + w];
        *(Vector*)(base + a * F::STEP_A + b * F::STEP_B) = x;
      }
  }
}

// ---- tensor cores: an item a warp -----------------------------------------------------------------------------------
// Values as two 16-bit pieces, scaled by a power of two of their own; three of four products are formed, those of a
// low piece first, since the units cut sums off. Lane 4 g + t.
//
//   first axis   sums[q_a][n] = sum_p A[q_a][p] x[p][n]       x is the operand of columns n: elements after, or axis b
//   second axis  out[q_a][q_b] = sum_n sums[q_a][n] B[n][q_b]   the sums lie as an operand of rows: nothing moves
template <int STEPS, int TILES, int W>
MERCER_INLINE int scale_values(float (&x)[STEPS * 4][TILES][W]) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < STEPS * 4; ++i)
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int w = 0; w < W; ++w) most = fmaxf(most, fabsf(x[i][j][w]));  // not of NaN
  u32 bits = __reduce_max_sync(0xffffffffu, bits_of(most));
  if (bits >= 0x7f800000) {
    bits = 0;
#pragma unroll
    for (int i = 0; i < STEPS * 4; ++i)
#pragma unroll
      for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int w = 0; w < W; ++w) bits = max(bits, finite_bits(x[i][j][w]));
    bits = __reduce_max_sync(0xffffffffu, bits);
  }
  const int exponent = scale_exponent(bits, 5);
  const float scale = power_of_two(exponent);
#pragma unroll
  for (int i = 0; i < STEPS * 4; ++i)
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int w = 0; w < W; ++w) x[i][j][w] *= scale;
  return -exponent;
}

// 2^exponent as two factors, the second one 1 unless one is not enough.
struct Unscale {
  float first, second;
  MERCER_METHOD explicit Unscale(int exponent) {
    const int most = exponent > 250 ? 250 : exponent < -250 ? -250 : exponent;
    const int half = most > 120 || most < -120 ? most / 2 : most;
    first = power_of_two(half);
    second = power_of_two(most - half);
  }
  // In one place for all values: what comes before and after does not mix with a loop. Without one, products go where
  // they are wanted, which saves a tenth of the instructions of 16^4, and it takes 2 % more time by what spills.
  template <int N, int M, int W>
  MERCER_METHOD void operator()(float (&values)[N][M][W]) const {
    float factor = first;
#pragma unroll 1
    for (int pass = second == 1; pass < 2; ++pass, factor = second)
#pragma unroll
      for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < M; ++j)
#pragma unroll
          for (int w = 0; w < W; ++w) values[i][j][w] *= factor;
  }
  template <int N>
  MERCER_METHOD void operator()(float (&values)[N][4]) const {
    (*this)((float(&)[1][N][4])values);
  }
};

// sums += x (or rows) times pieces: z is {high, high, low, low}.
MERCER_INLINE void add_low(float (&sums)[4], const u32 (&high)[4], const u32 (&low)[4], const uint4& z) {
  multiply_16x8(sums, low, z.x, z.y);
  multiply_16x8(sums, high, z.z, z.w);
}

template <int STEPS, int TILES>
struct Columns {
  uint4 z[STEPS][TILES];
  template <int W>
  MERCER_METHOD void split(const float (&x)[STEPS * 4][TILES][W], int w) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int j = 0; j < TILES; ++j) {
        split_pair(x[4 * s][j][w], x[4 * s + 1][j][w], z[s][j].x, z[s][j].z);
        split_pair(x[4 * s + 2][j][w], x[4 * s + 3][j][w], z[s][j].y, z[s][j].w);
      }
  }
  // 16 rows of the first axis.
  MERCER_METHOD void multiply(float (&sums)[TILES][4], const uint4* operand, int row_tile) const {
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0;
    alignas(16) u32 high[STEPS][4];
    alignas(16) u32 low[STEPS][4];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
      *(uint4*)high[s] = operand[(row_tile * STEPS + s) * 64];
      *(uint4*)low[s] = operand[(row_tile * STEPS + s) * 64 + 32];
#pragma unroll
      for (int j = 0; j < TILES; ++j) add_low(sums[j], high[s], low[s], z[s][j]);
    }
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
      for (int j = 0; j < TILES; ++j) multiply_16x8(sums[j], high[s], z[s][j].x, z[s][j].y);
  }
};

// Sums of the first axis times the second one.
template <int TILES, int OUT_TILES>
MERCER_INLINE void multiply_sums(float (&out)[OUT_TILES][4], const float (&sums)[TILES][4], const uint4* operand) {
#pragma unroll
  for (int j = 0; j < OUT_TILES; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[j][i] = 0;
  u32 high[TILES / 2][4], low[TILES / 2][4];
#pragma unroll
  for (int s = 0; s < TILES / 2; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      split_pair(sums[2 * s + i / 2][i % 2 * 2], sums[2 * s + i / 2][i % 2 * 2 + 1], high[s][i], low[s][i]);
#pragma unroll
    for (int j = 0; j < OUT_TILES; ++j) add_low(out[j], high[s], low[s], operand[(s * OUT_TILES + j) * 32]);
  }
#pragma unroll
  for (int s = 0; s < TILES / 2; ++s)
#pragma unroll
    for (int j = 0; j < OUT_TILES; ++j) {
      const uint4 z = operand[(s * OUT_TILES + j) * 32];
      multiply_16x8(out[j], high[s], z.x, z.y);
    }
}

template <int W>
MERCER_INLINE void load_wide(float (&to)[W], const float* from, bool inside) {
  Pack<float, W> x = {};
  if (inside) x = *(const Pack<float, W>*)from;
#pragma unroll
  for (int w = 0; w < W; ++w) to[w] = x.value[w];
}

// WIDTH 4: a lane's four neighbours belong to four tiles of columns, and lanes write 64 neighbouring bytes.
MERCER_INLINE int vector_at(int n) { return n % 2 * 16 + n / 2 * 4; }

// Rows of one axis with 32 elements after it from n0 on. WIDTH 4: their places are filled anew.
template <class F, int STEPS, class Results>
MERCER_INLINE void load_one(float (&x)[STEPS * 4][4][1], float* base, int outer, int n0, int g, int t,
                            const Results& results) {
  constexpr int W = F::WIDTH;
  const int n = n0 + vector_at(g);
#pragma unroll
  for (int i = 0; i < STEPS * 4; ++i) {
    const int p = 4 * i + t;
    if (W == 4) {
      Pack<float, 4> row = {};
      if (p < F::P_A && n < F::INNER) row = load_row<F, Pack<float, 4>>(base + F::inner(n), p);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[i][j][0] = row.value[j];
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_wide(x[i][j], base + p * F::STEP_A + F::inner(n0 + 8 * j + g),
                  p < F::P_A && n0 + 8 * j + g < F::INNER);
    }
  }
  __syncwarp();
  if (W != 4) return;
#pragma unroll
  for (int i = 0; i < STEPS * 4; ++i) {
    const int p = 4 * i + t;
    if (p < F::P_A && n < F::INNER) results.template refill<F>(base + p * F::STEP_A + F::inner(n), outer, p, n);
  }
}

// Sums of rows q and q + 8.
template <class F, class Results>
MERCER_INLINE void store_one(const float (&sums)[4][4], float* base, int outer, int n0, int first, int t,
                             const Results& results) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int q = first + 8 * half;
    if (q >= F::Q_A) continue;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (F::WIDTH == 4) {
        const Pack<float, 4> out = {sums[0][2 * half + e], sums[1][2 * half + e], sums[2][2 * half + e],
                                    sums[3][2 * half + e]};
        const int n = n0 + vector_at(2 * t + e);
        if (n < F::INNER) results.template store<F>(base + q * F::STEP_A + F::inner(n), outer, q, n, out);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int n = n0 + 8 * j + 2 * t + e;
        if (n < F::INNER) base[q * F::STEP_A + F::inner(n)] = sums[j][2 * half + e];
      }
    }
  }
}

// One axis and 32 elements after it.
template <class F, class Results>
MERCER_STEP void tensor_one(float* tile, const u8* operands, const int* exponents, const Results& results) {
  constexpr int STEPS = (F::P_A + 15) / 16, GROUP = 32;
  constexpr int GROUPS = (F::INNER + GROUP - 1) / GROUP;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint4* const operand = (const uint4*)(operands + F::OPERAND_A) + lane;
  const int end = item_bound<F>(F::OUTER * GROUPS, false);
#pragma unroll 1
  for (int item = item_bound<F>(F::OUTER * GROUPS, true) + threadIdx.x / 32; item < end; item += CHAIN_WARPS) {
    const int n0 = item % GROUPS * GROUP, outer = item / GROUPS;
    float* const base = tile + F::outer(outer);
    float x[STEPS * 4][4][1];
    results.begin((end - 1 - item) / CHAIN_WARPS);
    load_one<F, STEPS>(x, base, outer, n0, g, t, results);
    results.filled();
    const Unscale unscale(scale_values<STEPS, 4, 1>(x) + exponents[F::INDEX_A]);
    Columns<STEPS, 4> columns;
    columns.split(x, 0);
#pragma unroll
    for (int m = 0; m < (F::Q_A + 15) / 16; ++m) {
      float sums[4][4];
      columns.multiply(sums, operand, m);
      unscale(sums);
      store_one<F>(sums, base, outer, n0, 16 * m + g, t, results);
    }
  }
}

// Rows a and a + 8 of two axes, of item `outer` or so many rows after it.
template <class F, int OUT_TILES, class Results>
MERCER_INLINE void store_rows(float* base, const float (&out)[OUT_TILES][4], int outer, int first, int t,
                              const Results& results, int behind = 0) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (first + 8 * half >= F::Q_A) continue;
    float* const row = base + (first + 8 * half) * F::STEP_A;
#pragma unroll
    for (int j = 0; j < OUT_TILES; j += 2) {
      const float v[4] = {out[j][2 * half], out[j][2 * half + 1], out[j + 1][2 * half], out[j + 1][2 * half + 1]};
      if (F::ALONG) {
        const Pack<float, 4> four = {v[0], v[1], v[2], v[3]};
        results.template store<F>(row + 8 * j + 4 * t, outer, first, 8 * j + 4 * t, four, behind + 8 * half);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int b = 8 * j + t + 4 * i;
        if (b < F::Q_B) row[b * F::STEP_B] = v[i];
      }
    }
  }
}

// Rows 4 i + t of the first axis, at item 0; of what blocks of a cluster have by turns, addresses in those blocks.
template <class F, int STEPS, int TILES>
struct RowPlaces {
  u32 of[STEPS * 4];
  MERCER_METHOD RowPlaces(const float* tile, int g, int t) {
    if (CHAIN_CLUSTER == 1) return;
    constexpr int OWN = F::P_A / F::BLOCKS;
#pragma unroll
    for (int i = 0; i < STEPS * 4; ++i) {
      const int p = min(4 * i + t, F::P_A - 1);  // a block that there is
      of[i] = address_in_block(shared_address(tile + p % OWN * F::STEP_A + g * TILES), p / OWN);
    }
  }
  // MORE: values after `place`.
  template <int MORE>
  MERCER_METHOD Pack<float, TILES> load(const float* tile, int place, int i, int g, int t) const {
    if constexpr (F::BLOCKS > 1) {
      if constexpr (TILES == 2) {
        const uint2 bits = load_two_of_cluster<MORE * 4>(of[i] + place * 4);
        return *(const Pack<float, TILES>*)&bits;
      } else {
        const uint4 bits = load_four_of_cluster<MORE * 4>(of[i] + place * 4);
        return *(const Pack<float, TILES>*)&bits;
      }
    }
    return *(const Pack<float, TILES>*)(tile + place + MORE + (4 * i + t) * F::STEP_A + g * TILES);
  }
};

// Two axes; lane 4 g + t has rows 4 i + t and a column of each tile of columns.
template <class F, int STEPS, int TILES, int W, int MORE = 0, int N>
MERCER_INLINE void load_two(float (&x)[STEPS * 4][TILES][N], int at, const float* tile, int place,
                            const RowPlaces<F, STEPS, TILES>& rows, int g, int t) {
#pragma unroll
  for (int i = 0; i < STEPS * 4; ++i) {
    const int p = 4 * i + t;
    if constexpr (F::ALONG) {
      Pack<float, TILES> row = {};
      if (p < F::P_A) row = rows.template load<MORE>(tile, place, i, g, t);
#pragma unroll
      for (int j = 0; j < TILES; ++j) x[i][j][at] = row.value[j];
      continue;
    }
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      float own[W];
      load_wide(own, tile + place + MORE + p * F::STEP_A + (8 * j + g) * F::STEP_B, p < F::P_A && 8 * j + g < F::P_B);
#pragma unroll
      for (int w = 0; w < W; ++w) x[i][j][at + w] = own[w];
    }
  }
}

// Two axes.
template <class F, class Results>
MERCER_STEP void tensor_two(float* tile, const u8* operands, const int* exponents, const Results& results) {
  constexpr int STEPS = (F::P_A + 15) / 16, TILES = (F::P_B + 15) / 16 * 2, OUT_TILES = (F::Q_B + 15) / 16 * 2;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint4* const first = (const uint4*)(operands + F::OPERAND_A) + lane;
  const uint4* const second = (const uint4*)(operands + F::OPERAND_B) + lane;
  const RowPlaces<F, STEPS, TILES> rows(tile, g, t);
  const int end = item_bound<F>(F::ITEMS, false), own = exponents[F::INDEX_A] + exponents[F::INDEX_B];
#pragma unroll 1
  for (int item = item_bound<F>(F::ITEMS, true) + threadIdx.x / 32; item < end; item += CHAIN_WARPS) {
    float* const base = tile + F::place(item);
    float x[STEPS * 4][TILES][1];
    results.begin((end - 1 - item) / CHAIN_WARPS);
    load_two<F, STEPS, TILES, 1>(x, 0, tile, F::place(item), rows, g, t);
    __syncwarp();
    if (F::ALONG) {
#pragma unroll
      for (int i = 0; i < STEPS * 4; ++i) {
        const int p = 4 * i + t, n = g * TILES;
        if (p < F::P_A && n < F::P_B) results.template refill<F>(base + p * F::STEP_A + n, item, p, n);
      }
    }
    results.filled();
    const Unscale unscale(scale_values<STEPS, TILES, 1>(x) + own);
    Columns<STEPS, TILES> columns;
    columns.split(x, 0);
#pragma unroll
    for (int m = 0; m < (F::Q_A + 15) / 16; ++m) {
      float sums[TILES][4], out[OUT_TILES][4];
      columns.multiply(sums, first, m);
      multiply_sums(out, sums, second);
      unscale(out);
      store_rows<F>(base, out, item, 16 * m + g, t, results);
    }
  }
}

// As `tensor_two`, where both have at most 16 elements: results take the place of x in registers. WIDTH such matrices
// side by side, or two of one row; they share a scale.
template <class F, class Results>
MERCER_STEP void tensor_squares(float* tile, const u8* operands, const int* exponents, const Results& results) {
  constexpr int W = F::WIDTH, COUNT = W > 1 || TILE_L > 1 ? 1 : 2, N = W * COUNT;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint4* const first = (const uint4*)(operands + F::OPERAND_A) + lane;
  const uint4* const second = (const uint4*)(operands + F::OPERAND_B) + lane;
  const RowPlaces<F, 1, 2> rows(tile, g, t);
  const int end = item_bound<F>(F::ITEMS, false), own = exponents[F::INDEX_A] + exponents[F::INDEX_B];
#pragma unroll 1
  for (int item = item_bound<F>(F::ITEMS, true) + threadIdx.x / 32; item < end; item += CHAIN_WARPS * COUNT) {
    // Pairs of items are as many steps apart everywhere, or looked for.
    constexpr bool PAIRS = COUNT == 2 && F::PAIR_STEP > 0;
    const bool has_next = PAIRS || (COUNT == 2 && item + CHAIN_WARPS < end);
    const int place = F::place(item), next_place = PAIRS ? place + F::PAIR_STEP : F::place(item + CHAIN_WARPS);
    float x[4][2][N] = {};
    load_two<F, 1, 2, W>(x, 0, tile, place, rows, g, t);
    if (PAIRS) load_two<F, 1, 2, W, F::PAIR_STEP>(x, N - W, tile, place, rows, g, t);
    else if (has_next) load_two<F, 1, 2, W>(x, N - W, tile, next_place, rows, g, t);
    __syncwarp();
    const Unscale unscale(scale_values<1, 2, N>(x) + own);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      Columns<1, 2> columns;
      columns.split(x, n);
      float sums[2][4], out[2][4];
      columns.multiply(sums, first, 0);
      multiply_sums(out, sums, second);
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i][j][n] = out[j][i];
    }
    unscale(x);
#pragma unroll
    for (int m = 0; m < COUNT; ++m) {
      if (m == 1 && !has_next) break;
      float* const base = tile + (m == 1 ? next_place : place);
      if constexpr (W == 1) {
        float out[2][4];
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) out[j][i] = x[i][j][m];
        store_rows<F>(base, out, item, g, t, results, m * CHAIN_WARPS * F::Q_A);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int a = apart_row(g) + i / 2 * 8, b = t + 4 * (2 * j + i % 2);
          Pack<float, W> values;
#pragma unroll
          for (int w = 0; w < W; ++w) values.value[w] = x[i][j][w];
          if (a < F::Q_A && b < F::Q_B) *(Pack<float, W>*)(base + a * F::STEP_A + b * F::STEP_B) = values;
        }
    }
  }
}
