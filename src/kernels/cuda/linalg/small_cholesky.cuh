// Cholesky's factorisation of small matrices, with its ladder of jitter, and what is solved with the factor
// (small_matrix.cuh). The lower triangle: an upper one is that of the transpose.
//
//   for k:  L_kk = sqrt(a_kk);  L_ik = a_ik / L_kk, i > k;  a_ij -= L_ik L_jk, j > k      column k goes to all members
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "linalg/small_matrix.cuh"

// The inverse of the root, and the root, to the last place or nearly so.
struct Root {
  REAL inverse, root;
  MERCER_METHOD explicit Root(REAL x) {
    inverse = (REAL)inverse_of_root(x);
    root = x * inverse;
    root = mul_add((REAL)0.5 * inverse, mul_add(-root, root, x), root);
  }
};

struct SmallCholesky {
  // The order of the first leading minor that is not positive, or 0.
  static MERCER_METHOD int run(Team& team, SmallRows& rows, int n) {
    Pack<REAL, 4>(&line)[2][WIDTH / 4 + 1] = team.shared.line[team.index];
    REAL(&value)[WIDTH] = rows.value;
    int bad = 0;
#pragma unroll 1
    for (int first = 0; first < n; first += 4) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int k = first + q;
        if (k >= n) break;
        const REAL pivot = team.get(value[q], k);
        if (bad == 0 && !(pivot > 0)) bad = k + 1;
        const Root root(pivot);
        value[q] = team.member == k ? root.root : value[q] * root.inverse;
        if (team.member < WIDTH) line[q % 2][team.member / 4].value[team.member % 4] = value[q];
        team.sync();
        rows.subtract(line[q % 2], value[q], first, q, n);
      }
      rows.move_on(team.tile(), team.member, first);
    }
    return bad;
  }
};

// x = (L L^T)^-1 x, or, on the way to sums, L^-1 x.
struct CholeskySolve {
  Team& team;
  const Divisor divide;
  const int n;
  const bool halfway;
  template <int COUNT>
  MERCER_METHOD void operator()(SmallColumns<COUNT>& columns) const {
    columns.template solve<true, false>(team, n, team.member, false, divide);
    if (!halfway) columns.template solve<false, true>(team, n, team.member, false, divide);
  }
};

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, SMALL_BLOCKS)
    small_cholesky(const __grid_constant__ SmallArguments a) {
  Team team(small_shared());
  const SmallItem item(a, team);
  SmallCholesky cholesky;
  const int status = factor_small(team, item, cholesky);
  item.tell(team, status);
  const bool failed = status != 0;
  const REAL diagonal = team.member < item.n ? team.tile()[team.member][team.member] : (REAL)1;
  if (a.logdet.data && blockIdx.y == 0) {
    const double sum = team.sum(log((double)diagonal));
    if (team.member == 0 && item.n > 0) *item.at<double>(a.logdet) = failed ? (double)not_a_number() : 2 * sum;
  }
  if (a.columns > 0) {
    const CholeskySolve solve = {team, Divisor(diagonal), a.order, a.sums != 0};
    SmallSides<CholeskySolve>{item, solve, failed, team.member, team.member}.run(team);
  }
  if (a.out.data) store_tile(team, item.at<REAL>(a.out), a.out.row, a.out.col, item.n, nullptr, true, failed);
}
