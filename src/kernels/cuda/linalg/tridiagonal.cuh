// Eigenpairs of one symmetric matrix h of some hundred rows, in double precision, in the shared memory of a cluster.
//
//   scale_symmetric     a power of two brings |h| (Frobenius) to at most 1
//   reduce_symmetric    Q^T h Q = T, tridiagonal, by Householder's reflections H_k = 1 - tau_k v_k v_k^T
//   tridiagonal_values  all eigenvalues of T by bisection: signs of Sturm's sequence are counted
//   tridiagonal_vectors y = (T - w)^-1 y, three times from random numbers, for some of them
//   reflect             Q y = H_0 H_1 … y
//
// Golub, Van Loan, Matrix Computations, 4th edition, sections 8.3.1, 8.4.1 and 8.4.2 (LAPACK's sytd2, stebz, stein).
//
// The matrix lies by columns in turn: column j in block j % CLUSTER, in whole, both triangles. Warp j / CLUSTER %
// TRIDIAGONAL_WARPS has it, lane l the rows l, l + 32, …. A step passes over it once:
//
//   all       w = p - (tau / 2) (p v) v;  column k -= v w_k + w v_k;  the next v, tau from it      in every warp
//   column j  -= v w_j + w v_j, the last step's;  p_j = tau (column j . next v), to all blocks;    of every warp
//             column k + 1, for all blocks
//   cluster barrier
//
// so there is one barrier a step, and all that blocks tell one another are m numbers p, by shared memory, a run of them
// at once, for numbers that go alone take their time; and m of a column, by L2, for a block that stored it to 8 others
// would take some 2400 cycles, at 12 bytes a cycle. Floor: 4 m^3 / 3
// multiply-adds, at 64 a cycle of CLUSTER multiprocessors: 0.13 ms for m = 448; what a step waits for (a sum over a
// warp twice, a root, a quotient, p and the column from other blocks, the barrier: some 2000 cycles) comes to 0.5 ms.
// Budget: 255 registers, 8 m^2 / CLUSTER + 24 m + 8 m / CLUSTER bytes of shared memory a block.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "common/warpgroups.cuh"

#define TRIDIAGONAL_WARPS 8
#define TRIDIAGONAL_THREADS (32 * TRIDIAGONAL_WARPS)
#define ROWS (32 * LANE_ROWS)  // at most
#define CHUNK 8

MERCER_INLINE double warp_sum(double value) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

// *place = value in the shared memory of another block of the cluster; `place` is this block's.
MERCER_INLINE void store_at(u32 place, u32 block, double value) {
  asm volatile("{.reg .b32 to; mapa.shared::cluster.u32 to, %0, %1; st.shared::cluster.f64 [to], %2;}" ::"r"(place),
               "r"(block), "d"(value)
               : "memory");
}

// One block; the sum of squares takes two passes where it might overflow: by the largest.
extern "C" __global__ void __launch_bounds__(1024) scale_symmetric(const __grid_constant__ TridiagonalArguments a) {
  __shared__ double parts[32];
  const int m = (int)a.m, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto over_block = [&](double value, bool adds) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      const double other = __shfl_xor_sync(0xffffffffu, value, lanes);
      value = adds ? value + other : fmax(value, other);
    }
    __syncthreads();
    if (lane == 0) parts[warp] = value;
    __syncthreads();
    value = 0;
    for (int w = 0; w < 32; ++w) value = adds ? value + parts[w] : fmax(value, parts[w]);
    return value;
  };
  double largest = 0, sum = 0;
  for (int j = warp; j < m; j += 32)
    for (int i = lane; i <= j; i += 32) largest = fmax(largest, fabs(a.h[i + j * a.stride]));
  largest = over_block(largest, false);
  // 2^-e for largest in [2^e, 2^(e + 1)); denormal numbers count as zero.
  const u64 exponent = bits_of(largest) >> 52;
  const bool counts = exponent != 0 && exponent <= 2045;
  const double first = counts ? __longlong_as_double((long long)((2046 - exponent) << 52)) : 0;
  for (int j = warp; j < m; j += 32)
    for (int i = lane; i <= j; i += 32) {
      const double value = first * a.h[i + j * a.stride];
      sum = fma(i == j ? value : 2 * value, value, sum);
    }
  const double root = sqrt(over_block(sum, true));
  const u64 second = bits_of(root) >> 52;
  if (threadIdx.x == 0) *a.scale = first == 0 ? 0 : first * __longlong_as_double((long long)((2045 - second) << 52));
}

// An element of h - v w^T - w v^T.
MERCER_INLINE double after_step(double value, double v_i, double w_i, double v_j, double w_j) {
  return fma(-v_i, w_j, fma(-w_i, v_j, value));
}

// What a thread knows of the reduction: a warp's rows of the vectors, and of its own columns a number each.
struct Reduction {
  static constexpr int kSlots = (ROWS + TRIDIAGONAL_WARPS * CLUSTER - 1) / (TRIDIAGONAL_WARPS * CLUSTER);
  static_assert(kSlots <= 32, "a lane for each column of a warp");

  const TridiagonalArguments& a;
  const int m, rank, lane, warp, share;  // share: columns of a block
  double* const columns;                 // [share][m]
  double* const told;                    // p [parity][block][share]
  double* const column;                  // [m]
  double* const own_p;                   // [share]
  const int own;                         // the column of the lane's slot
  double v[LANE_ROWS], w[LANE_ROWS];     // of the last step
  double next[LANE_ROWS];                // column k after it, then the next v
  double own_v = 0, own_w = 0, tau = 0;  // at the lane's column

  MERCER_METHOD Reduction(const TridiagonalArguments& arguments, u8* memory)
      : a(arguments), m((int)a.m), rank((int)cluster_rank()), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
        share((m + CLUSTER - 1) / CLUSTER), columns((double*)memory), told(columns + (i64)share * m),
        column(told + 2 * CLUSTER * share), own_p(column + m), own(column_of(lane)) {}

  MERCER_METHOD int column_of(int slot) const { return rank + CLUSTER * (warp + TRIDIAGONAL_WARPS * slot); }

  MERCER_METHOD void load() {
    const double factor_of_h = *a.scale;
    const auto element = [&](i64 i, i64 j) { return factor_of_h * a.h[min(i, j) + max(i, j) * a.stride]; };
    for (int l = warp; rank + CLUSTER * l < m; l += TRIDIAGONAL_WARPS)
      for (int i = lane; i < m; i += 32) columns[l * m + i] = element(i, rank + CLUSTER * l);
    for (int i = threadIdx.x; i < m; i += TRIDIAGONAL_THREADS) column[i] = element(i, 0);
    for (int i = threadIdx.x; i < CLUSTER * share; i += TRIDIAGONAL_THREADS) told[CLUSTER * share + i] = 0;
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) v[t] = 0;
  }

  // What is left of the last step, and column k after it; the sum of squares of what the next reflection takes away.
  MERCER_METHOD double finish_step(int k, double& last_at_k, double& w_at_k) {
    const int first = k / 32;
    const double* const all_p = told + (k % 2 == 0 ? CLUSTER * share : 0);
    const auto p = [&](int i) { return all_p[i % CLUSTER * share + i / CLUSTER]; };
    if (k > 0) {
      const volatile double* const from = a.columns + k % 2 * m;
      for (int i = 32 * first + (int)threadIdx.x; i < m; i += TRIDIAGONAL_THREADS) column[i] = from[i];
      __syncthreads();
    }
    double sums[4] = {0, 0, 0, 0};
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) {
      const int i = lane + 32 * t;
      w[t] = t >= first && i < m && i >= k ? p(i) : 0;
      sums[t % 4] = fma(w[t], v[t], sums[t % 4]);
    }
    const double factor = 0.5 * tau * warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    last_at_k = k > 0 ? 1 : 0, w_at_k = k > 0 ? p(k) - factor : 0;
    double parts[4] = {0, 0, 0, 0};
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) {
      const int i = lane + 32 * t;
      w[t] = fma(-factor, v[t], w[t]);
      next[t] = t >= first && i < m && i >= k ? after_step(column[i], v[t], w[t], last_at_k, w_at_k) : 0;
      if (i > k + 1) parts[t % 4] = fma(next[t], next[t], parts[t % 4]);
    }
    const double squares = warp_sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
    own_w = own < m ? fma(-factor, own_v, p(own)) : 0;
    return squares;
  }

  // The reflection that takes the column to (diagonal, beta, 0, …): the next v in place of the column, and at the
  // lane's own one; the result is the next tau.
  MERCER_METHOD double reflect(int k, double squares, double diagonal, double last_at_k, double w_at_k,
                               double& own_next) {
    double alpha = 0;
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t)
      if (lane + 32 * t == k + 1) alpha = next[t];
    alpha = __shfl_sync(0xffffffffu, alpha, (k + 1) % 32);
    const bool flat = !(squares > 0x1p-900);
    const double length = fma(alpha, alpha, squares), inverse = flat ? 0 : inverse_root(length);
    const double beta = flat ? alpha : -copysign(length * inverse, alpha);
    // tau = (beta - alpha) / beta; 1 / (alpha - beta) = (|alpha| + |beta|)^-1 with the sign of alpha.
    const double next_tau = flat ? 0 : fma(fabs(alpha), inverse, 1.0);
    const double scale = flat ? 0 : copysign(inverse_of(fabs(alpha) + fabs(beta)), alpha);
    if (rank == k % CLUSTER && warp == 0 && lane == 0) {
      a.d[k] = diagonal;
      a.e[k] = beta;
      a.tau[k] = next_tau;
    }
    own_next = 0;
    if (own < m && own > k)
      own_next = own == k + 1 ? 1 : after_step(column[own], own_v, own_w, last_at_k, w_at_k) * scale;
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) {
      const int i = lane + 32 * t;
      next[t] = i > k + 1 ? next[t] * scale : i == k + 1 ? 1 : 0;
      // It takes the place of column k, which nobody reads any more.
      if (rank == k % CLUSTER && warp == 0 && t >= k / 32 && i < m) columns[(i64)(k / CLUSTER) * m + i] = next[t];
    }
    return next_tau;
  }

  // One pass over the columns, which takes the last step from them; their products with the next v go over the warp
  // together, and the lane gets that of its own.
  MERCER_METHOD double pass_over(int k) {
    double dots[kSlots];
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int j = column_of(slot);
      dots[slot] = 0;
      if (j <= k || j >= m) continue;
      double* const mine = columns + (i64)(j / CLUSTER) * m;
      const double v_j = __shfl_sync(0xffffffffu, own_v, slot), w_j = __shfl_sync(0xffffffffu, own_w, slot);
      double dot[4] = {0, 0, 0, 0};
#pragma unroll
      for (int t = 0; t < LANE_ROWS; ++t) {
        const int i = lane + 32 * t;
        if (t < k / 32 || i >= m) continue;
        const double value = after_step(mine[i], v[t], w[t], v_j, w_j);
        mine[i] = value;
        dot[t % 4] = fma(value, next[t], dot[t % 4]);
        if (j == k + 1) a.columns[(k + 1) % 2 * m + i] = value;
      }
      dots[slot] = (dot[0] + dot[1]) + (dot[2] + dot[3]);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) dots[slot] += __shfl_xor_sync(0xffffffffu, dots[slot], lanes);
    double own_dot = 0;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) own_dot = lane == slot ? dots[slot] : own_dot;
    return own_dot;
  }

  // p of the block's columns to all blocks.
  MERCER_METHOD void tell(int k, double own_value) {
    if (warp + TRIDIAGONAL_WARPS * lane < share) own_p[warp + TRIDIAGONAL_WARPS * lane] = own_value;
    __syncthreads();
    const u32 run = shared_address(told + (k % 2 == 0 ? 0 : CLUSTER * share) + rank * share);
    for (u32 block = warp; block < CLUSTER; block += TRIDIAGONAL_WARPS)
      for (int l = lane; l < share; l += 32) store_at(run + 8 * l, block, own_p[l]);
  }
};

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(TRIDIAGONAL_THREADS, 1)
    reduce_symmetric(const __grid_constant__ TridiagonalArguments a) {
  extern __shared__ __align__(16) u8 memory[];
  Reduction r(a, memory);
  r.load();
  cluster_barrier();
  for (int k = 0; k < r.m; ++k) {
    double last_at_k, w_at_k, own_next;
    const double squares = r.finish_step(k, last_at_k, w_at_k);
    const double diagonal = r.column[k] - 2 * last_at_k * w_at_k;
    if (k == r.m - 1) {
      if (r.rank == 0 && threadIdx.x == 0) a.d[k] = diagonal;
      break;
    }
    const double next_tau = r.reflect(k, squares, diagonal, last_at_k, w_at_k, own_next);
    r.tell(k, next_tau * r.pass_over(k));
    r.tau = next_tau;
    r.own_v = own_next;
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) r.v[t] = r.next[t];
    cluster_barrier();
  }
  cluster_barrier();  // nobody writes into a block that has ended
  for (int l = r.warp; r.rank + CLUSTER * l < r.m - 1; l += TRIDIAGONAL_WARPS)
    for (int i = r.lane; i < r.m; i += 32)
      a.v[(i64)(r.rank + CLUSTER * l) * r.m + i] = r.columns[(i64)l * r.m + i];
}

// Eigenvalues of T below x. p_i / p_{i-1} are the pivots of T - x; one that is zero counts as a tiny negative number.
MERCER_INLINE int values_below(const double* d, const double* squares, int m, double x) {
  double before = 1, p = d[0] - x;
  if (p == 0) p = -0x1p-60;
  int count = p < 0;
  for (int i = 1; i < m; ++i) {
    double next = fma(d[i] - x, p, -squares[i - 1] * before);
    if (next == 0) next = -p * 0x1p-60;
    count += (next < 0) != (p < 0);
    before = p;
    p = next;
    if (i % 4 == 0) {  // |d - x| is at most 2, squares at most 1: exact powers of two keep both in range
      const u64 exponent = bits_of(p) >> 52 & 0x7ff;
      const double scale = __longlong_as_double((long long)((2046 - exponent) << 52));
      before *= scale;
      p *= scale;
    }
  }
  return count;
}

// A warp has an eigenvalue; the host has scaled h so that all are in [-1, 1], as then all of T is.
extern "C" __global__ void __launch_bounds__(TRIDIAGONAL_THREADS)
    tridiagonal_values(const __grid_constant__ TridiagonalArguments a) {
  extern __shared__ __align__(16) u8 memory[];
  const int m = (int)a.m, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  double *const d = (double*)memory, *const squares = d + m;
  for (int i = threadIdx.x; i < m; i += TRIDIAGONAL_THREADS) {
    d[i] = a.d[i];
    squares[i] = i < m - 1 ? a.e[i] * a.e[i] : 0;
  }
  __syncthreads();
  const int index = blockIdx.x * TRIDIAGONAL_WARPS + warp;
  if (index >= m) return;
  double low = -1 - 0x1p-40, high = 1 + 0x1p-40;
  for (int round = 0; round < 14 && high - low > 0x1p-52; ++round) {
    const double step = (high - low) / 33, x = low + (lane + 1) * step;
    // Lanes whose point has more than `index` values below it: the value is below the first of them.
    const unsigned above = __ballot_sync(0xffffffffu, values_below(d, squares, m, x) > index);
    const int first = above == 0 ? 32 : __ffs((int)above) - 1;
    const double top = first < 32 ? low + (first + 1) * step : high;
    low = first > 0 ? low + first * step : low;
    high = top;
  }
  if (lane == 0) a.w[index] = 0.5 * (low + high);
}

MERCER_INLINE double random_number(unsigned long long x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (double)(long long)(x ^ (x >> 31)) * 0x1p-63;
}

// A thread has a vector: column blockIdx.x 32 + threadIdx.x of y, for wanted[column]. T - w = P L U by rows, U with two
// diagonals next to its own; rows[.][i][column] keeps 1 / u_ii, u_i,i+1, u_i,i+2, l_i and whether rows i and i + 1 are
// swapped (in the sign of nothing else: 2 is added to l, whose size is at most 1).
extern "C" __global__ void __launch_bounds__(32) tridiagonal_vectors(const __grid_constant__ TridiagonalArguments a) {
  const i64 column = (i64)blockIdx.x * 32 + threadIdx.x, m = a.m, count = a.count;
  if (column >= count) return;
  const double shift = a.wanted[column];
  const auto row = [&](int what, i64 i) -> double& { return a.rows[(what * m + i) * count + column]; };
  double* const y = a.y + column * m;
  double u0 = a.d[0] - shift, u1 = m > 1 ? a.e[0] : 0;
  for (i64 i = 0; i < m; ++i) {
    double below = i < m - 1 ? a.e[i] : 0, d = i < m - 1 ? a.d[i + 1] - shift : 0, u2 = 0, l = 0;
    const double right = i < m - 2 ? a.e[i + 1] : 0;
    const bool swaps = fabs(below) > fabs(u0);
    if (swaps) {
      const double kept0 = u0, kept1 = u1;
      u0 = below, u1 = d, u2 = right;
      below = kept0, d = kept1;
    }
    if (fabs(u0) < 0x1p-52) u0 = copysign(0x1p-52, u0);
    const double inverse = 1 / u0;
    l = below * inverse;
    row(0, i) = inverse, row(1, i) = u1, row(2, i) = u2, row(3, i) = swaps ? l + 4 : l;
    const double next0 = d - l * u1, next1 = (swaps ? 0 : right) - l * u2;
    u0 = next0, u1 = next1;
  }
  for (i64 i = 0; i < m; ++i) y[i] = random_number((unsigned long long)(column * m + i) + a.seed);
  double unit = 1;
  for (int pass = 0; pass < 3; ++pass) {
    // Rows come by chunks: the loads of one are on their way together.
    double carried = y[0] * unit;
    for (i64 start = 0; start < m - 1; start += CHUNK) {
      double coded[CHUNK], next[CHUNK];
#pragma unroll
      for (int c = 0; c < CHUNK; ++c)
        if (start + c < m - 1) coded[c] = row(3, start + c), next[c] = y[start + c + 1] * unit;
#pragma unroll
      for (int c = 0; c < CHUNK; ++c) {
        if (start + c >= m - 1) break;
        const bool swaps = coded[c] > 2;
        const double l = swaps ? coded[c] - 4 : coded[c], top = swaps ? next[c] : carried;
        y[start + c] = top;
        carried = fma(-l, top, swaps ? carried : next[c]);
      }
    }
    y[m - 1] = carried;
    double after = 0, second = 0, sum = 0;
    for (i64 start = m - 1; start >= 0; start -= CHUNK) {
      double inverse[CHUNK], u1[CHUNK], u2[CHUNK], value[CHUNK];
#pragma unroll
      for (int c = 0; c < CHUNK; ++c) {
        const i64 i = start - c;
        if (i >= 0) inverse[c] = row(0, i), u1[c] = row(1, i), u2[c] = row(2, i), value[c] = y[i];
      }
#pragma unroll
      for (int c = 0; c < CHUNK; ++c) {
        if (start - c < 0) break;
        value[c] = fma(-u1[c], after, fma(-u2[c], second, value[c])) * inverse[c];
        y[start - c] = value[c];
        second = after;
        after = value[c];
        sum = fma(after, after, sum);
      }
    }
    unit = 1 / sqrt(sum);
  }
  for (i64 i = 0; i < m; ++i) y[i] *= unit;
}

// A warp has a column of y, in place.
extern "C" __global__ void __launch_bounds__(32) reflect(const __grid_constant__ TridiagonalArguments a) {
  const int m = (int)a.m, lane = threadIdx.x;
  double* const y = a.y + (i64)blockIdx.x * m;
  double z[LANE_ROWS], v[LANE_ROWS];
#pragma unroll
  for (int t = 0; t < LANE_ROWS; ++t) z[t] = lane + 32 * t < m ? y[lane + 32 * t] : 0;
  const auto load = [&](int k) {
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) {
      const int i = lane + 32 * t;
      v[t] = k >= 0 && i > k && i < m ? a.v[(i64)k * m + i] : 0;
    }
  };
  load(m - 3);
  for (int k = m - 3; k >= 0; --k) {
    double sum = 0, kept[LANE_ROWS];
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) {
      kept[t] = v[t];
      sum = fma(v[t], z[t], sum);
    }
    load(k - 1);  // on its way while the sum is made
    const double factor = a.tau[k] * warp_sum(sum);
#pragma unroll
    for (int t = 0; t < LANE_ROWS; ++t) z[t] = fma(-factor, kept[t], z[t]);
  }
#pragma unroll
  for (int t = 0; t < LANE_ROWS; ++t)
    if (lane + 32 * t < m) y[lane + 32 * t] = z[t];
}
