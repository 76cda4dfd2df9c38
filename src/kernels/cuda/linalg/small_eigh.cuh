// Eigenvalues and eigenvectors of small symmetric matrices by Jacobi's method, in rounds of rotations that have no row
// in common (R. P. Brent, F. T. Luk, The solution of singular-value and symmetric eigenvalue problems on multiprocessor
// arrays, SIAM J. Sci. Stat. Comput. 6, 1985); small_matrix.cuh. WIDTH is TEAM.
//
//   member i has row i of a, row i of v and a_ii      until no a_pq that is met in WIDTH - 1 rounds is worth a rotation
//     for pairs (p, q) = (0, 1), (2, 3) …:  a = J^T a J;  v = v J;  a_pq is 0 then
//     the columns change places, and the rows likewise, so that other pairs meet
//
// A round takes a J in a member's own registers, and J^T (a J) too, since the tile turns what is symmetric: the second
// product is the first once more. Places go round as in a tournament, and after WIDTH - 1 rounds all are back.
//
//   x = x - s (y + u x), y = y + s (x - u y), u = s / (1 + c)        small angles change little, and err little (H.
//                                                                    Rutishauser, Numer. Math. 9, 1966)
//
// Floor of a round: of shared memory 2.5 WIDTH reads and writes of a warp, and some 7 WIDTH instructions; of 32 rows
// 90 cycles of a multiprocessor. A matrix of 32 takes 6 to 8 times 31 rounds.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"
#include "linalg/small_matrix.cuh"

#define MOST_SWEEPS 30

// What is worth a rotation, of matrices whose largest value is in [1, 2), and of what is left off the diagonal, against
// the norm: four roundings.
#define LEAST_ANGLE ((REAL)(sizeof(REAL) == 4 ? 0x1p-40 : 0x1p-90))
#define ENOUGH ((REAL)(sizeof(REAL) == 4 ? 0x1p-22 : 0x1p-51))

// 2^-e of a value in [2^e, 2^(e + 1)), and of both ends of the range what can still be undone.
MERCER_INLINE float scale_to_one(float most) {
  const int exponent = (int)(bits_of(most) >> 23) - 127;
  return most > 0 ? float_of((u32)(127 - max(min(exponent, 126), -126)) << 23) : 1.0f;
}
MERCER_INLINE double scale_to_one(double most) {
  const int exponent = (int)(bits_of(most) >> 52) - 1023;
  return most > 0 ? __longlong_as_double((long long)(1023 - max(min(exponent, 1022), -1022)) << 52) : 1.0;
}

// Where column p of a round is in the next one, and where column p has been.
MERCER_INLINE constexpr int next_place(int p) {
  return p == 0 ? 0 : p == 1 ? 2 : p == WIDTH - 2 ? WIDTH - 1 : p % 2 == 0 ? p + 2 : p - 2;
}
MERCER_INLINE int last_place(int p) {
  return p == 0 ? 0 : p == 2 ? 1 : p == WIDTH - 1 ? WIDTH - 2 : p % 2 == 0 ? p - 2 : p + 2;
}

struct Rotations {
  const Pack<REAL, 4>* pairs;  // s and u of two

  // Both columns of pair i.
  MERCER_METHOD void turn(int i, REAL& x, REAL& y) const {
    const Pack<REAL, 4>& four = pairs[i / 2];
    const REAL s = four.value[i % 2 * 2], u = four.value[i % 2 * 2 + 1], old = x;
    x = mul_add(-s, mul_add(u, old, y), old);
    y = mul_add(s, mul_add(-u, y, old), y);
  }
};

struct SmallEigen {
  REAL a[WIDTH], v[WIDTH], diagonal;
  REAL most;  // off the diagonal, of what this member has met in a sweep

  // The element of the member's pair, by selections: no register has an index that is not known.
  MERCER_METHOD REAL off_diagonal(int pair) const {
    REAL of[WIDTH / 2];
#pragma unroll
    for (int i = 0; i < WIDTH / 2; ++i) of[i] = a[2 * i + 1];
#pragma unroll
    for (int half = WIDTH / 4; half > 0; half /= 2)
#pragma unroll
      for (int i = 0; i < half; ++i) of[i] = pair & half ? of[i + half] : of[i];
    return of[0];
  }

  MERCER_METHOD void find_rotation(Team& team, Pack<REAL, 4>* pairs) {
    const bool even = team.member % 2 == 0;
    const REAL other = __shfl_xor_sync(0xffffffffu, diagonal, 1, TEAM);
    const REAL across = __shfl_sync(0xffffffffu, off_diagonal(team.member / 2), team.member & ~1, TEAM);
    const REAL half = (REAL)0.5 * (even ? other - diagonal : diagonal - other);
    const REAL square = mul_add(half, half, across * across);
    const bool turns = fabs(across) > LEAST_ANGLE;
    const REAL root = square * inverse_of_root(turns ? square : (REAL)1);
    const REAL tangent = turns ? across * (REAL)inverse_of(half + copysign(root, half)) : (REAL)0;
    const REAL c = inverse_of_root(mul_add(tangent, tangent, (REAL)1)), s = tangent * c;
    most = fmax(most, fabs(across));
    diagonal = mul_add(even ? -tangent : tangent, across, diagonal);
    diagonal = __shfl_sync(0xffffffffu, diagonal, last_place(team.member), TEAM);
    REAL* const own = &pairs[team.member / 4].value[team.member % 4];
    if (even) own[0] = s, own[1] = s * (REAL)inverse_of(1 + c);
  }

  MERCER_METHOD void sweep(Team& team, bool wants_vectors) {
    SmallTile& tile = team.tile();
    most = 0;
#pragma unroll 1
    for (int round = 0; round < WIDTH - 1; ++round) {
      Pack<REAL, 4>* const pairs = team.shared.line[team.index][round % 2];
      const Rotations rotations = {pairs};
      find_rotation(team, pairs);
      team.sync();
#pragma unroll
      for (int i = 0; i < WIDTH / 2; ++i) {
        rotations.turn(i, a[2 * i], a[2 * i + 1]);
        tile[team.member][next_place(2 * i)] = a[2 * i];
        tile[team.member][next_place(2 * i + 1)] = a[2 * i + 1];
      }
      if (wants_vectors) {
        REAL turned[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH / 2; ++i) {
          rotations.turn(i, v[2 * i], v[2 * i + 1]);
          turned[next_place(2 * i)] = v[2 * i];
          turned[next_place(2 * i + 1)] = v[2 * i + 1];
        }
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) v[i] = turned[i];
      }
      team.sync();
#pragma unroll
      for (int i = 0; i < WIDTH / 2; ++i) {
        REAL x = tile[2 * i][team.member], y = tile[2 * i + 1][team.member];
        rotations.turn(i, x, y);
        a[next_place(2 * i)] = x;
        a[next_place(2 * i + 1)] = y;
      }
    }
    team.sync();  // its rotations come first of all again
  }

  // Whether some member of this team met more.
  MERCER_METHOD bool goes_on(Team& team, REAL norm) const { return team.any(most > ENOUGH * norm); }
};

// Vector j, in the tile's column that its place among the eigenvalues says; the ones from `first` on are wanted.
MERCER_INLINE void store_vectors(Team& team, const SmallItem& item, bool failed) {
  const SmallArguments& a = item.a;
  const bool down = steps_less(a.out.row, a.out.col);
  const SmallTile& tile = team.tile();
  REAL* const to = item.at<REAL>(a.out);
  const int member = team.member, own = down ? item.n : a.count, along = down ? a.count : item.n;
  if (item.n == 0 || member >= own) return;
#pragma unroll 4
  for (int t = 0; t < along; ++t) {
    const int i = down ? member : t, j = down ? t : member;
    to[i * a.out.row + j * a.out.col] = failed ? not_a_number() : tile[i][a.skipped + j];
  }
}

extern "C" __global__ void __launch_bounds__(SMALL_THREADS, SMALL_BLOCKS)
    small_eigh(const __grid_constant__ SmallArguments a) {
  Team team(small_shared());
  const SmallItem item(a, team);
  const int member = team.member;
  const bool wants_vectors = a.out.data != nullptr;
  const bool finite = load_tile(team, item.at<const REAL>(a.a), a.a.row, a.a.col, item.n, true);
  int status = team.any(!finite) ? -1 : 0;
  team.sync();
  SmallEigen eigen;
  REAL largest = 0;
#pragma unroll
  for (int t = 0; t < WIDTH; ++t) {
    const REAL value = t <= member ? team.tile()[member][t] : team.tile()[t][member];
    eigen.a[t] = status == 0 ? value : (REAL)0;
    eigen.v[t] = t == member ? 1 : 0;
    largest = fmax(largest, fabs(eigen.a[t]));
  }
#pragma unroll
  for (int lanes = TEAM / 2; lanes > 0; lanes /= 2)
    largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, lanes, TEAM));
  const REAL scale = scale_to_one(largest);
#pragma unroll
  for (int t = 0; t < WIDTH; ++t) eigen.a[t] *= scale;
  const REAL own = team.tile()[member][member];
  eigen.diagonal = status == 0 ? own * scale : (REAL)0;
  team.sync();
  REAL squares = 0;
#pragma unroll
  for (int t = 0; t < WIDTH; ++t) squares = mul_add(eigen.a[t], eigen.a[t], squares);
  const REAL norm = (REAL)sqrt(team.sum((double)squares));
  bool again = true;
  for (int sweep = 0; again && sweep < MOST_SWEEPS; ++sweep) {
    eigen.sweep(team, wants_vectors);
    again = team.any_of_teams(eigen.goes_on(team, norm));
  }
  if (eigen.goes_on(team, norm) && status == 0) status = 1;
  item.tell(team, status);
  const bool failed = status != 0;
  // Rows beyond n have met no rotation, and their zeros are no eigenvalues.
  int place = 0;
#pragma unroll 4
  for (int other = 0; other < item.a.order; ++other) {
    const REAL value = __shfl_sync(0xffffffffu, eigen.diagonal, other, TEAM);
    place += value < eigen.diagonal || (value == eigen.diagonal && other < member);
  }
  if (member >= item.a.order) place = member;
  const int wanted = place - a.skipped;
  if (member < item.n && wanted >= 0 && wanted < a.count)
    item.at<REAL>(a.x)[wanted * a.x.row] = failed ? not_a_number() : eigen.diagonal * (1 / scale);
  if (!wants_vectors) return;
  int(&places)[WIDTH] = team.shared.order[team.index];
  places[member] = place;
  team.sync();
#pragma unroll
  for (int t = 0; t < WIDTH; ++t) team.tile()[member][places[t]] = eigen.v[t];
  team.sync();
  store_vectors(team, item, failed);
}
