// What a column of conjugate gradients does next, for the host and the device, and the arguments of the kernels of
// cg.cuh. Columns share their products with the operator and nothing else: each has a state of its own, and in every
// round its column of the operand is one of
//
//   a direction p    x += alpha p, r -= alpha a p  with alpha = r^T z / p^T a p
//   x itself         r = b - a x, where the recurrence says that r is small enough: only that ends a column
//   zeros            when it has ended
//
// a is the operator plus the column's own ridge, which is added to every product: a p = product + ridge p.
//
// Minimal residuals go the same way (minres_turn). Their direction is the next vector of Lanczos's recurrence, v:
//
//   beta' v' = a v - alpha v - beta v_before;  w' = (v - delta w - epsilon w_before) / gamma;  x += phi w'
#pragma once

#ifndef MERCER_INLINE
#define MERCER_INLINE inline
#endif

enum CgStatus {
  kCgLive = 0,
  kCgConverged = 1,
  kCgStopped = 2,     // out of rounds
  kCgNotFinite = 3,
  kCgNotPositive = 4, // p^T a p <= 0
  kCgStagnated = 5    // what is measured does not fall any more
};
enum CgOperand { kCgZeros = 0, kCgDirection = 1, kCgSolution = 2 };
// What the next direction is made of.
enum CgSource { kCgOfPreconditioned = 0, kCgOfResidual = 1 };

// Vectors of a column are worked on divided by `scale`, a power of two: its largest |b| is from 1 to 2. Products with a
// and ridges are multiplied with `of_product` as they are read, the power of two near max |p| / max |a p| of the first
// direction p, and x is divided by it; it is 0, and none of that is done, before it is known. P^-1 r is multiplied with
// `inverse`, which brings the first direction to about 1.
struct CgColumn {
  double scale, of_product, inverse;
  double ridge;
  double right;     // |b|^2, of the scaled b
  double product;   // r^T z of the last direction
  double measured;  // |b - a x|^2 when that was last measured
  long long rounds;
  int status, operand;
  // minres alone: the recurrence, its rotation, and the residual that it promises.
  double beta, cosine, sine, bar, epsilon, left, size;
  double mark;       // left^2 when it last fell, after so many rounds
  long long marked;
  int is_flat;       // it falls no more
};

// Sums over a column, after the round's product.
struct CgSums {
  double residual;        // r^T r
  double preconditioned;  // r^T z
  double curvature;       // p^T a p
};

struct CgTurn {
  int first;       // r = b: nothing has been multiplied yet
  int measures;    // whatever is live is measured next
  int last;        // no round is left
  double part;     // squared tolerance
  double least;    // squared residuals below this are taken for small enough to be measured
  double unit;     // what products lose
};

// of_product and inverse of the state, from the round on in which they become known. In that round p and x are
// multiplied with of_direction and of_solution, and a p is of_direction (factor product + of_vector p), of p as it was.
struct CgUnit {
  double of_product, inverse, factor, of_vector, of_direction, of_solution;
};

struct CgNext {
  double beta;  // direction = source + beta direction
  int source;
};

// The recurrence must undershoot: what is measured lies above it by what products lose.
#define MERCER_CG_UNDERSHOOT 0.25
// A measured residual that has not fallen to this part of the one before, squared, never will.
#define MERCER_CG_FALL 0.5625

// A residual of minimal residuals, squared, falls where it comes below this part of itself. Where it has not for half
// of the rounds and some, or for a tenth while a is little compared with its size on it, or for a few before a
// direction that a hardly moves, it is at its least: a is singular, and more rounds add rounding to x.
#define MERCER_MINRES_FALL 0.9999
#define MERCER_MINRES_WAIT 40
#define MERCER_MINRES_FEW 5

MERCER_INLINE int cg_is_finite(double value) { return value - value == 0.0; }

// The power of two at or below a positive number, at least the smallest normal one.
MERCER_INLINE double cg_power_below(double value) {
#ifdef __CUDACC_RTC__
  const double power = __longlong_as_double(__double_as_longlong(value) & 0x7ff0000000000000ll);
#else
  const double power = value > 0.0 ? ldexp(1.0, ilogb(value)) : 0.0;
#endif
  return power >= 0x1p-1022 ? power : 0x1p-1022;
}

// How a round reads its vectors, whose operand p has the largest |p| and |a p|, both 0 where they were not looked for.
// `turns`: directions may have any length, and this first one becomes about 1.
MERCER_INLINE struct CgUnit cg_unit(const struct CgColumn* c, double vector, double product, int turns) {
  const int is_known = c->of_product != 0.0;
  const double factor = is_known ? c->of_product : 1.0;
  struct CgUnit unit = {c->of_product, is_known ? c->inverse : 1.0, factor, c->ridge * factor, 1.0, 1.0};
  if (is_known || c->operand != kCgDirection || !(vector > 0.0) || !(product > 0.0)) return unit;
  if (!cg_is_finite(vector) || !cg_is_finite(product)) return unit;
  const double length = cg_power_below(vector), quotient = length / cg_power_below(product);
  unit.of_product = quotient < 0x1p-1022 ? 0x1p-1022 : quotient > 0x1p1022 ? 0x1p1022 : quotient;
  unit.of_solution = 1.0 / unit.of_product;
  unit.factor = unit.of_product;
  unit.of_vector = c->ridge * unit.factor;
  if (turns) unit.inverse = unit.of_direction = 1.0 / length;
  return unit;
}

// x of the caller's scale. The product of two powers is exact where it is in range; else that of all three, which ends
// out of range like it, is no less right.
MERCER_INLINE double cg_solution(const struct CgColumn* c, double x) {
  const double factor = c->of_product == 0.0 ? 1.0 : c->of_product, power = c->scale * factor;
  return cg_is_finite(power) && power >= 0x1p-1022 ? x * power : x * c->scale * factor;
}

// What `info` says of a column that ended so.
MERCER_INLINE long long cg_info(const struct CgColumn* c) {
  if (c->status == kCgConverged) return 0;
  if (c->status == kCgStagnated) return -2;
  return c->status == kCgStopped ? c->rounds : -1;
}

// The state after a round, and the next direction where the operand is one.
MERCER_INLINE struct CgNext cg_turn(struct CgColumn* c, struct CgSums sums, struct CgTurn turn) {
  struct CgNext next = {0.0, kCgOfPreconditioned};
  const int was = c->operand;
  const double before = c->measured;
  if (c->status != kCgLive) return next;
  if (turn.first) {
    c->right = sums.residual;
    c->measured = turn.measures ? -1.0 : sums.residual;  // nothing is known of a guess
    if (!cg_is_finite(sums.residual)) c->status = kCgNotFinite;
    else if (sums.residual == 0.0) c->status = kCgConverged;
  } else {
    c->rounds += 1;
    if (!cg_is_finite(sums.residual) || !cg_is_finite(sums.curvature)) c->status = kCgNotFinite;
    else if (was == kCgDirection && !(sums.curvature > 0.0)) c->status = kCgNotPositive;
    else if (was == kCgSolution) {
      c->measured = sums.residual;
      if (sums.residual <= turn.part * c->right) c->status = kCgConverged;
      else if (turn.last) c->status = kCgStopped;
      else if (before >= 0.0 && sums.residual > MERCER_CG_FALL * before) c->status = kCgStagnated;
    }
  }
  c->operand = kCgZeros;
  if (c->status != kCgLive) return next;
  const double wanted = MERCER_CG_UNDERSHOOT * turn.part * c->right;
  const int is_small = sums.residual <= wanted || sums.residual <= turn.least;
  c->operand = turn.measures || (was == kCgDirection && is_small) ? kCgSolution : kCgDirection;
  if (c->operand == kCgSolution) return next;
  // A preconditioner whose product is lost in rounding is left out for this direction.
  const int serves = cg_is_finite(sums.preconditioned) && sums.preconditioned > 0.0;
  if (serves && was == kCgDirection) next.beta = sums.preconditioned / c->product;
  if (!serves) next.source = kCgOfResidual;
  c->product = serves ? sums.preconditioned : sums.residual;
  return next;
}

// What the vectors of a column become; see minres_turn.
struct MinresNext {
  double of_w, of_before, scale;  // w' = scale (v - of_w w - of_before w_before)
  double step;                    // x += step w'
  double of_residual;             // v' = of_residual r
  int moves, begins;              // w, w_before and v_before move on; or are zeros
};

// What a round of minimal residuals says of a column: its status, what was measured, and its rounds.
MERCER_INLINE void minres_look(struct CgColumn* c, struct CgSums sums, struct CgTurn turn) {
  const double before = c->measured;
  if (turn.first) {
    c->right = sums.residual;
    c->measured = turn.measures ? -1.0 : sums.residual;
    if (!cg_is_finite(sums.residual)) c->status = kCgNotFinite;
    else if (sums.residual == 0.0) c->status = kCgConverged;
    return;
  }
  c->rounds += 1;
  if (!cg_is_finite(sums.residual) || !cg_is_finite(sums.curvature)) c->status = kCgNotFinite;
  else if (c->operand == kCgSolution) {
    c->measured = sums.residual;
    if (sums.residual <= turn.part * c->right) c->status = kCgConverged;
    else if (c->is_flat) c->status = kCgStagnated;
    else if (turn.last) c->status = kCgStopped;
    else if (before >= 0.0 && sums.residual > MERCER_CG_FALL * before) c->status = kCgStagnated;
  }
}

// The state after a round of minimal residuals, where sums.curvature is alpha and sums.residual |r|^2, of what is to be
// the next v or of what was measured.
MERCER_INLINE struct MinresNext minres_turn(struct CgColumn* c, struct CgSums sums, struct CgTurn turn) {
  struct MinresNext next = {0.0, 0.0, 0.0, 0.0, 0.0, 0, 0};
  const int was = c->operand;
  if (c->status != kCgLive) return next;
  minres_look(c, sums, turn);
  c->operand = kCgZeros;
  if (c->status != kCgLive) return next;
  const double beta = sqrt(sums.residual);
  int is_small = 0;
  if (was == kCgDirection) {
    const double alpha = sums.curvature, row = sqrt(c->beta * c->beta + alpha * alpha + beta * beta);
    const double delta = c->cosine * c->bar + c->sine * alpha, bar = c->sine * c->bar - c->cosine * alpha;
    const double gamma = sqrt(bar * bar + beta * beta);
    c->size = row > c->size ? row : c->size;
    next.moves = 1;
    next.of_w = delta;
    next.of_before = c->epsilon;
    c->epsilon = c->sine * beta;
    c->bar = -c->cosine * beta;
    // |a r| / |r| of the last x, which for a singular matrix goes to zero where r does not.
    const double slope = sqrt(bar * bar + c->bar * c->bar);
    // For a singular matrix the last direction moves nothing, and looks as if it did.
    const long long flat = c->rounds - c->marked;
    const int is_lost = flat > MERCER_MINRES_FEW && gamma <= sqrt(turn.unit) * c->size;
    const int serves = gamma > turn.unit * c->size && !is_lost;
    if (serves) {
      next.scale = 1.0 / gamma;
      c->cosine = bar / gamma;
      c->sine = beta / gamma;
      next.step = c->cosine * c->left;
    } else {
      c->cosine = 0.0;
      c->sine = 1.0;
    }
    c->left *= c->sine;
    const double left = c->left * c->left;
    if (left < MERCER_MINRES_FALL * c->mark) {
      c->mark = left;
      c->marked = c->rounds;
    }
    c->is_flat = is_lost || 2 * flat > c->rounds + MERCER_MINRES_WAIT ||
                 (10 * flat > c->rounds + 2 * MERCER_MINRES_WAIT && slope <= sqrt(turn.unit) * c->size);
    is_small = left <= MERCER_CG_UNDERSHOOT * turn.part * c->right || left <= turn.least || !serves ||
               beta <= turn.unit * turn.unit * c->size || c->is_flat;
  } else {
    next.begins = 1;
    c->left = beta;
    c->mark = sums.residual;
    c->marked = c->rounds;
    c->cosine = -1.0;
    c->sine = c->bar = c->epsilon = 0.0;
  }
  c->beta = was == kCgDirection ? beta : 0.0;
  c->operand = turn.measures || is_small ? kCgSolution : kCgDirection;
  if (beta > 0.0) next.of_residual = 1.0 / beta;
  return next;
}

// Vectors are [columns][rows]; b, guess and out have the caller's strides.
struct CgArguments {
  const void *b, *guess, *ridges;
  void* out;
  long long *info, *rounds_out;  // of the caller, or null
  void *right, *x, *r, *p, *product;
  void *w, *w_before, *v_before;  // of minimal residuals
  const void* z;             // the preconditioned r, or r
  double *largest, *sums;    // [columns][parts], and five of them for the sums
  struct CgColumn* state;      // [columns]
  struct CgColumn* state_next; // written by cg_turn_columns alone
  int* flags;                  // [columns] of status
  long long rows, columns, parts;
  long long b_row, b_col, guess_row, guess_col, out_row, out_col, info_step, rounds_step;
  long long ridge_step;
  int ridge_is_double;  // ridges: [columns], of either type; null: `amount` for all
  struct CgTurn turn;
  double amount;         // the ridge of all columns
};

// Arguments of the kernel in cg_condition.cuh.
struct CgConditionArguments {
  const int* flags;  // [columns] of status
  long long* left;   // rounds
  long long columns, rounds;
  unsigned long long condition;
  int begins;  // with so many rounds; else one has gone by
};

// sum_rows: out[i, j] = sqrt(weights[i]) from[i, j] + (amount + ridges[i]) v[i, j], without what is null.
struct RowSumArguments {
  const void *from, *v, *weights, *ridges;
  void* out;
  long long rows, columns;
  long long from_row, from_col, v_row, v_col, out_row, out_col, weights_step, ridges_step;
  double amount;
};

// gather_rows: row indices[i] of `from` is row i of `to`, which is packed; elements of 1, 2, 4 or 8 bytes.
struct GatherArguments {
  const void* from;
  void* to;
  const long long* indices;
  long long rows, columns, from_row, from_col;
  int element;
};
