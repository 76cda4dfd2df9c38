// Small matrices of a batch, in the registers of a few threads each: what the factorisations of small_cholesky.cuh and
// small_lu.cuh and the eigenvalues of small_eigh.cuh share, and what is solved with factors.
//
//   member i of a team has row i:      value[0 … WIDTH-1]      TEAM, a power of two, and WIDTH are at least n
//
//   warp │ team 0: row 0 … row TEAM-1 │ team 1: row 0 … │ …    up to 32 members: several teams a warp, no barrier
//   block of two warps, or four │ team 0: row 0 …        … row 63 │     64 or 128 members: a team is a block
//
// Factorisations go by four columns, which leave for the tile when they are done; the others move up in the registers,
// so that a loop of some hundred instructions does it all. Written out for each column the instructions themselves are
// what is waited for.
//
// Rows beyond n, and teams without a matrix, are zeros, which change nothing. A step tells all members one row or
// column of the matrix through shared memory. Matrices come and go, and solutions are made, by way of `tile`, whose
// rows and columns are read equally well.
//
//   L y = b    for k:           y_k = x_k / L_kk;  x_i -= L_ik y_k, i > k      one value a step to all members
//   U x = y    for k, falling:  likewise, i < k
//
// A solution's columns go by ONE or FEW at once; matrices that have many are worked on by several teams, each of which
// factors anew.
//
// Floor: bytes, each of the matrices read once, the results written once. Budget: WIDTH registers of REAL and some 40
// more; of shared memory (WIDTH + 3) WIDTH REAL a team.
#pragma once

#include "common/arguments.h"
#include "common/prelude.cuh"

#define ONE 1
#define FEW 4
#define TEAMS (SMALL_THREADS / TEAM)

MERCER_INLINE REAL not_a_number() { return (REAL)__int_as_float(0x7fc00000); }

typedef REAL SmallTile[WIDTH][WIDTH + 1];

struct SmallShared {
  Pack<REAL, 4> line[TEAMS][2][WIDTH / 4 + 1];  // what one member tells the others; what follows is not used
  SmallTile tile[TEAMS];                       // rows of the factors
  int order[TEAMS][WIDTH];
  double box[2][8];  // of a team that is a block
};
#if SMALL_BYTES > 0  // more than a block has without asking
static_assert(sizeof(SmallShared) <= SMALL_BYTES, "of plan/gpu/small_tile.h");
#endif

// The inverse root, to the last place or nearly so.
MERCER_INLINE float inverse_of_root(float x) {
  const float near = rsqrtf(x);
  return mul_add(0.5f * near, mul_add(-x * near, near, 1.0f), near);
}
MERCER_INLINE double inverse_of_root(double x) {
  const bool tiny = x < 0x1p-960;
  return inverse_root(tiny ? x * 0x1p108 : x) * (tiny ? 0x1p54 : 1.0);
}

// Divides by one number, without overflow of its inverse.
struct Divisor {
  REAL inverse, scale;
  MERCER_METHOD explicit Divisor(REAL by) {
    constexpr REAL kFar = sizeof(REAL) == 4 ? (REAL)0x1p100 : (REAL)0x1p900;
    const REAL size = fabs(by);
    scale = size * kFar < 1 ? kFar : size > kFar ? 1 / kFar : (REAL)1;
    inverse = copysign((REAL)inverse_of(size * scale), by);
  }
  MERCER_METHOD REAL operator()(REAL value) const { return value * inverse * scale; }
};

struct Team {
  SmallShared& shared;
  const int member, index;
  int turn = 0;

  MERCER_METHOD explicit Team(SmallShared& memory)
      : shared(memory), member(threadIdx.x % TEAM), index(threadIdx.x / TEAM) {}

  MERCER_METHOD SmallTile& tile() const { return shared.tile[index]; }
  MERCER_METHOD void sync() const {
    if (TEAM <= 32) __syncwarp();
    else __syncthreads();
  }
  // The values of another member.
  template <class T, int COUNT>
  MERCER_METHOD void get(T (&theirs)[COUNT], const T (&own)[COUNT], int other) {
    if (TEAM <= 32) {
#pragma unroll
      for (int c = 0; c < COUNT; ++c) theirs[c] = __shfl_sync(0xffffffffu, own[c], other, TEAM);
    } else {
      T* const box = (T*)shared.box[turn];
#pragma unroll
      for (int c = 0; c < COUNT; ++c)
        if (member == other) box[c] = own[c];
      __syncthreads();
#pragma unroll
      for (int c = 0; c < COUNT; ++c) theirs[c] = box[c];
      turn ^= 1;
    }
  }
  template <class T>
  MERCER_METHOD T get(T own, int other) {
    T theirs[1];
    get(theirs, {own}, other);
    return theirs[0];
  }
  // What the first members of the warps have, in a team of several.
  template <class T>
  MERCER_METHOD void get_all(T (&theirs)[TEAM / 32 + 1], const T& own) {
    static_assert(sizeof(T) * (TEAM / 32) <= sizeof(shared.box[0]), "one for each warp");
    T* const box = (T*)shared.box[turn];
    if (member % 32 == 0) box[member / 32] = own;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < TEAM / 32; ++w) theirs[w] = box[w];
    turn ^= 1;
  }
  // Whether one member of the team says so, and one of any team that runs with it.
  MERCER_METHOD bool any(bool said) const {
    if (TEAM > 32) return __syncthreads_or(said) != 0;
    constexpr unsigned kMembers = TEAM < 32 ? (1u << TEAM % 32) - 1 : 0xffffffffu;
    return (__ballot_sync(0xffffffffu, said) >> threadIdx.x % 32 / TEAM * TEAM & kMembers) != 0;
  }
  MERCER_METHOD bool any_of_teams(bool said) const {
    return TEAM > 32 ? said : __any_sync(0xffffffffu, said) != 0;  // members of a team say the same
  }
  MERCER_METHOD double sum(double value) {
#pragma unroll
    for (int lanes = (TEAM < 32 ? TEAM : 32) / 2; lanes > 0; lanes /= 2)
      value += __shfl_xor_sync(0xffffffffu, value, lanes);
    if (TEAM < 64) return value;
    double all[TEAM / 32 + 1], total = 0;
    get_all(all, value);
#pragma unroll
    for (int w = 0; w < TEAM / 32; ++w) total += all[w];
    return total;
  }
};

MERCER_INLINE SmallShared& small_shared() {
#if SMALL_BYTES > 0
  extern __shared__ __align__(32) unsigned char memory[];
  return *(SmallShared*)memory;
#else
  __shared__ __align__(32) SmallShared shared;
  return shared;
#endif
}

MERCER_INLINE bool steps_less(i64 row, i64 col) { return (row < 0 ? -row : row) <= (col < 0 ? -col : col); }

struct SmallRows {
  REAL value[WIDTH];

  MERCER_METHOD void read(const SmallTile& tile, int member) {
#pragma unroll
    for (int t = 0; t < WIDTH; ++t) value[t] = member < WIDTH ? tile[member][t] : (REAL)0;
  }

  // value -= times line, columns after the q-th of `first` …, which value has from its beginning on.
  MERCER_METHOD void subtract(const Pack<REAL, 4> (&line)[WIDTH / 4 + 1], REAL times, int first, int q, int n) {
#pragma unroll
    for (int t = 0; t < WIDTH; t += 8) {
      if (first + t >= n) break;
#pragma unroll
      for (int half = t; half < t + 8 && half < WIDTH; half += 4) {
        const Pack<REAL, 4> four = line[(first + half) / 4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
          if (half + r > q) value[half + r] = mul_add(-times, four.value[r], value[half + r]);
      }
    }
  }

  // The first four columns into the tile, the others in their place.
  MERCER_METHOD void move_on(SmallTile& tile, int member, int first) {
#pragma unroll
    for (int q = 0; q < 4; ++q)
      if (member < WIDTH) tile[member][first + q] = value[q];
#pragma unroll
    for (int t = 0; t + 4 < WIDTH; ++t) value[t] = value[t + 4];
  }

  // Adds so much times the mean of the diagonal's absolute values to the diagonal, of which this is the member's.
  MERCER_METHOD void raise(Team& team, int n, double own, double amount) {
    const double raised = own + amount * team.sum(fabs(own)) * inverse_of((double)n);
#pragma unroll
    for (int t = 0; t < WIDTH; ++t)
      if (t == team.member && amount > 0) value[t] = (REAL)raised;
  }
};

// Into the tile; `lower`: that triangle alone, the rest is zeros. Whether all of it is finite. Members read what lies
// together. The team must meet before and after.
MERCER_INLINE bool load_tile(Team& team, const REAL* from, i64 row, i64 col, int n, bool lower) {
  const bool down = steps_less(row, col);
  const i64 step = down ? col : row;
  const int member = team.member;
  SmallTile& tile = team.tile();
  from += member * (down ? row : col);
  bool finite = true;
  if (member >= WIDTH) return finite;
#pragma unroll 8
  for (int t = 0; t < WIDTH; ++t) {
    const bool inside = member < n && t < n && (!lower || (down ? t <= member : t >= member));
    const REAL value = inside ? from[t * step] : (REAL)0;
    finite = finite && fabs(value) < INFINITY;
    (down ? tile[member][t] : tile[t][member]) = value;
  }
  return finite;
}

// Stores the tile, whose rows are in this order, or in their own; with zeros above the diagonal, if only the lower
// triangle counts.
MERCER_INLINE void store_tile(Team& team, REAL* to, i64 row, i64 col, int n, const int* order, bool lower,
                              bool failed) {
  const bool down = steps_less(row, col);
  const i64 step = down ? col : row;
  const int member = team.member;
  const SmallTile& tile = team.tile();
  to += member * (down ? row : col);
  if (member >= n) return;
#pragma unroll 8
  for (int t = 0; t < n; ++t) {
    const bool inside = !lower || (down ? t <= member : t >= member);
    const int i = down ? member : t, j = down ? t : member;
    const REAL value = tile[order ? order[i] : i][j];
    to[t * step] = failed ? not_a_number() : inside ? value : (REAL)0;
  }
}

// One member's row of some right-hand sides.
template <int COUNT>
struct SmallColumns {
  REAL x[COUNT];

  // x = T^-1 x, T triangular: this member's row of the tile, or its column for the transpose. Steps go from the first
  // row to the last, or back; a step changes the rows after it. What four steps take is summed before it is taken: of
  // 100 rows that halves the backward error.
  template <bool FORWARD, bool COLUMNS>
  MERCER_METHOD void solve(Team& team, int n, int row, bool unit, const Divisor& divide) {
    constexpr int kTogether = 4;
    const SmallTile& tile = team.tile();
    const int member = team.member;
#pragma unroll 1
    for (int first = 0; first < n; first += kTogether) {
      REAL sum[COUNT] = {};
#pragma unroll
      for (int q = 0; q < kTogether; ++q) {
        if (first + q >= n) break;
        const int k = FORWARD ? first + q : n - 1 - first - q;
        REAL own[COUNT], solved[COUNT];
#pragma unroll
        for (int c = 0; c < COUNT; ++c) own[c] = unit ? x[c] + sum[c] : divide(x[c] + sum[c]);
        team.get(solved, own, k);
        const bool later = FORWARD ? member > k && member < n : member < k;
        const REAL times = later ? COLUMNS ? -tile[k][member] : -tile[row][k] : (REAL)0;
#pragma unroll
        for (int c = 0; c < COUNT; ++c) {
          x[c] = member == k ? solved[c] : x[c];
          sum[c] = member == k ? (REAL)0 : mul_add(times, solved[c], sum[c]);
        }
      }
#pragma unroll
      for (int c = 0; c < COUNT; ++c) x[c] += sum[c];
    }
  }
};

// The matrix of a team.
struct SmallItem {
  const SmallArguments& a;
  i64 matrix;
  int n;  // 0 for a team without a matrix
  MERCER_METHOD SmallItem(const SmallArguments& arguments, const Team& team)
      : a(arguments), matrix((i64)blockIdx.x * TEAMS + team.index), n(matrix < a.matrices ? a.order : 0) {}
  template <class T>
  MERCER_METHOD T* at(const DenseSide& side) const {
    return (T*)side.data + (n > 0 ? batch_offset(a.outer, side.step, matrix) : 0);
  }
  MERCER_METHOD void tell(const Team& team, int status) const {
    if (team.member != 0 || n == 0 || blockIdx.y != 0) return;
    if (a.info.data) *at<i64>(a.info) = status;
    if (!a.status) return;
    a.status[matrix] = status;
    if (status != 0) *a.failed = 1;
  }
};

// All right-hand sides of a matrix, or what this slice of the grid has of them; solve(columns) on some. Row i of b is
// that of member `source`, and x has it likewise at `target`; with sums, x gets those of the squares of what `solve`
// leaves, of 64 bits.
template <class Solve>
struct SmallSides {
  const SmallItem& item;
  const Solve& solve;
  const bool failed;
  const int source, target;

  template <int COUNT>
  MERCER_METHOD void run_part(Team& team, i64 repeat, i64 first, int count) const {
    const SmallArguments& a = item.a;
    const bool inside = team.member < item.n;
    const REAL* const from =
        item.at<const REAL>(a.b) + batch_offset(a.inner, a.b_repeat, repeat) + source * a.b.row + first * a.b.col;
    const i64 to = batch_offset(a.inner, a.x_repeat, repeat) + target * a.x.row + first * a.x.col;
    SmallColumns<COUNT> columns;
#pragma unroll
    for (int c = 0; c < COUNT; ++c) columns.x[c] = inside && c < count ? from[c * a.b.col] : (REAL)0;
    solve(columns);
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      const REAL result = columns.x[c];
      const bool stores = inside && c < count;
      if (a.sums) {
        const double sum = team.sum(inside ? (double)result * (double)result : 0);
        if (stores && team.member == 0) item.at<double>(a.x)[to + c * a.x.col] = failed ? (double)not_a_number() : sum;
      } else if (stores) {
        item.at<REAL>(a.x)[to + c * a.x.col] = failed ? not_a_number() : result;
      }
    }
  }

  MERCER_METHOD void run(Team& team) const {
    const SmallArguments& a = item.a;
    const i64 parts = (a.columns + FEW - 1) / FEW;
    for (i64 part = blockIdx.y; part < a.repeats * parts; part += gridDim.y) {
      const i64 repeat = part / parts, first = part % parts * FEW;
      const int count = (int)(a.columns - first < FEW ? a.columns - first : FEW);
      if (count == 1) run_part<ONE>(team, repeat, first, count);
      else run_part<FEW>(team, repeat, first, count);
    }
  }
};

// The matrix, or its factor with as much of the ladder of jitter as it needs, in the tile. Teams of a warp climb
// together: who is done does the same again. factor.run leaves its factor in the tile, a row where its member is, and
// gives the status.
template <class Factor>
MERCER_INLINE int factor_small(Team& team, const SmallItem& item, Factor& factor) {
  const SmallArguments& a = item.a;
  const REAL* const from = item.at<const REAL>(a.a);
  SmallRows rows;
  double amount = 0;
  int status;
  for (int attempt = 0;; ++attempt) {
    team.sync();
    const bool finite = load_tile(team, from, a.a.row, a.a.col, item.n, a.lower);
    status = team.any(!finite) ? -1 : 0;  // where all of them meet
    if (!a.factors) return status;
    team.sync();
    rows.read(team.tile(), team.member);
    if (attempt > 0)
      rows.raise(team, a.order, team.member < item.n ? (double)from[team.member * (a.a.row + a.a.col)] : 0, amount);
    const int said = factor.run(team, rows, a.order);
    if (status == 0) status = said;
    const bool again = item.n > 0 && status > 0 && attempt < a.attempts;
    if (again) amount = a.jitter[attempt];
    if (!team.any_of_teams(again)) break;
  }
  team.sync();
  return status;
}
