// LU of small matrices with partial pivoting, and what is solved with the factors (small_matrix.cuh).
//
//   for k:  p = the row at k or below of the largest |a_pk|, of several the first; rows k and p change places
//           l_ik = a_ik / a_kk;  a_ij -= l_ik a_kj, i, j > k                  row k goes to all members
//
// Rows stay where they are until the end: a member knows the place that its row has come to.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "linalg/small_matrix.cuh"

#define MEMBERS 256  // more than a team has: a place and a member are one number

template <class T> struct KeyOf { typedef u64 type; };
template <> struct KeyOf<float> { typedef u32 type; };

struct SmallPivot {
  KeyOf<REAL>::type key;  // bits of |value| and one more; 0 for a row that is done
  u32 at;                 // place MEMBERS + member
  MERCER_METHOD void take(const SmallPivot& other) {
    if (other.key > key || (other.key == key && other.at < at)) *this = other;
  }
};

// The first largest key of a warp.
MERCER_INLINE SmallPivot first_largest(u32 key, u32 at) {
  const u32 most = __reduce_max_sync(0xffffffffu, key);
  return {most, __reduce_min_sync(0xffffffffu, key == most ? at : 0xffffffffu)};
}
MERCER_INLINE SmallPivot first_largest(u64 key, u32 at) {
  const u32 high = __reduce_max_sync(0xffffffffu, (u32)(key >> 32)), own = key >> 32 == high ? (u32)key : 0;
  const u32 low = __reduce_max_sync(0xffffffffu, own);
  const u64 most = (u64)high << 32 | low;
  return {(KeyOf<REAL>::type)most, __reduce_min_sync(0xffffffffu, key == most ? at : 0xffffffffu)};
}

MERCER_INLINE SmallPivot find_pivot(Team& team, REAL value, int place, int k) {
  SmallPivot best = {place < k ? 0 : bits_of((REAL)fabs(value)) + 1, (u32)(place * MEMBERS + team.member)};
  if (TEAM < 32) {
#pragma unroll
    for (int lanes = TEAM / 2; lanes > 0; lanes /= 2)
      best.take({__shfl_xor_sync(0xffffffffu, best.key, lanes), __shfl_xor_sync(0xffffffffu, best.at, lanes)});
    return best;
  }
  best = first_largest(best.key, best.at);
  if (TEAM == 32) return best;
  SmallPivot all[TEAM / 32 + 1];
  team.get_all(all, best);
#pragma unroll
  for (int w = 1; w < TEAM / 32; ++w) all[0].take(all[w]);
  return all[0];
}

struct SmallLu {
  int row = 0;   // the place of this member's row; negative beyond n
  int swap = 0;  // with which row of the places that of this member's place changed

  // The first pivot that is zero, from 1 on, or 0.
  MERCER_METHOD int run(Team& team, SmallRows& rows, int n) {
    Pack<REAL, 4>(&line)[2][WIDTH / 4 + 1] = team.shared.line[team.index];
    REAL(&value)[WIDTH] = rows.value;
    row = team.member < n ? team.member : -1;
    int bad = 0;
#pragma unroll 1
    for (int first = 0; first < n; first += 4) {
#pragma unroll
      for (int q = 0; q < 4; ++q) {
        const int k = first + q;
        if (k >= n) break;
        const SmallPivot best = find_pivot(team, value[q], row, k);
        const int from = (int)(best.at / MEMBERS);
        if (team.member == (int)(best.at % MEMBERS)) {
#pragma unroll
          for (int t = 0; t < WIDTH; t += 4)
            if (first + t < n) line[q % 2][(first + t) / 4] = {value[t], value[t + 1], value[t + 2], value[t + 3]};
        }
        team.sync();
        const REAL pivot = line[q % 2][first / 4].value[q];
        if (bad == 0 && pivot == 0) bad = k + 1;
        if (team.member == k) swap = from;
        const bool wins = row == from;
        if (wins || row == k) row = wins ? k : from;
        const REAL times = row > k ? Divisor(pivot)(value[q]) : (REAL)0;
        if (row > k) value[q] = times;
        rows.subtract(line[q % 2], times, first, q, n);
      }
      rows.move_on(team.tile(), team.member, first);
    }
    return bad;
  }

  // Places as the swaps of the caller lead to them; false where one is out of range.
  MERCER_METHOD bool follow(Team& team, const i64* pivots, i64 step, int n) {
    int(&order)[WIDTH] = team.shared.order[team.index];
    bool good = true;
    if (team.member < n) {
      const i64 pivot = pivots[team.member * step];
      good = pivot >= team.member && pivot < n;
      order[team.member] = good ? (int)pivot : team.member;
    }
    team.sync();
    row = team.member < n ? team.member : -1;
    for (int i = 0; i < n; ++i) {
      const int other = order[i];
      if (row == i || row == other) row = row == i ? other : i;
    }
    team.sync();
    return good;
  }

  // Where the row at this member's place came from.
  MERCER_METHOD int source(Team& team) const {
    int(&order)[WIDTH] = team.shared.order[team.index];
    if (row >= 0) order[row] = team.member;
    team.sync();
    return row >= 0 ? order[team.member] : team.member;
  }
};

// x = U^-1 L^-1 x; of the transpose, whose factors the tile then holds, L^-T U^-T x.
struct LuSolve {
  Team& team;
  const Divisor divide;
  const int n, row;  // row: of the tile, for this member
  const bool transposed;
  template <int COUNT>
  MERCER_METHOD void operator()(SmallColumns<COUNT>& columns) const {
    columns.template solve<true, false>(team, n, row, !transposed, divide);
    columns.template solve<false, false>(team, n, row, transposed, divide);
  }
};

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, SMALL_BLOCKS)
    small_lu(const __grid_constant__ SmallArguments a) {
  Team team(small_shared());
  const SmallItem item(a, team);
  SmallLu lu;
  int status = factor_small(team, item, lu);
  if (!a.factors && team.any(!lu.follow(team, item.at<const i64>(a.pivots), a.pivots.row, item.n)) && status == 0)
    status = -2;
  const bool failed = status != 0;
  item.tell(team, status);
  if (a.factors && a.pivots.data && team.member < item.n)
    item.at<i64>(a.pivots)[team.member * a.pivots.row] = failed ? team.member : lu.swap;
  const int own = team.member, source = lu.source(team), row = a.factors ? source : own;
  if (a.columns > 0) {
    const REAL diagonal = own < item.n ? team.tile()[row][own] : (REAL)1;
    const LuSolve solve = {team, Divisor(diagonal), a.order, row, a.transposed != 0};
    SmallSides<LuSolve>{item, solve, failed, a.transposed ? own : source, a.transposed ? source : own}.run(team);
  }
  const int* const order = team.shared.order[team.index];
  if (a.out.data) store_tile(team, item.at<REAL>(a.out), a.out.row, a.out.col, item.n, order, false, failed);
}
