#include "plan/cpu/guard.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/passes/passes.h"
#include "ir/passes/safe_field.h"
#include "ir/passes/safe_norm.h"
#include "plan/cpu/planner.h"

namespace mercer::plan {
namespace {

using ir::ExprMap;
using ir::Op;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// The degree in which a term is homogeneous in the points, or kUnknown. Weights and parameters count as numbers.
double degree(const Expr& e) {
  const auto arg = [&](std::size_t i) { return degree(e->args[i]); };
  switch (e->op) {
    case Op::x:
    case Op::z: return 1;
    case Op::constant:
    case Op::w:
    case Op::param: return 0;
    case Op::neg:
    case Op::abs: return arg(0);
    case Op::sqrt: return arg(0) / 2;
    case Op::mul: return arg(0) + arg(1);
    case Op::div: return arg(0) - arg(1);
    case Op::add:
    case Op::sub: return arg(0) == arg(1) ? arg(0) : kUnknown;
    case Op::pow: return e->args[1]->op == Op::constant ? arg(0) * e->args[1]->value : kUnknown;
    default: return kUnknown;
  }
}

/// Weights and parameters may have any sign.
Expr with_unit_scales(const Expr& term) {
  ExprMap<Expr> ones;
  ir::for_each(term, [&](const Expr& e) {
    if (e->op == Op::w || e->op == Op::param) ones[e] = Expr(1.0);
  });
  return ir::simplify(ir::substitute(term, ones));
}

/// What is added to state `slot`, or an empty expression.
Expr term_of(const Expr& update, int slot) {
  if (update->op != Op::add) return {};
  for (std::size_t i : {0, 1})
    if (update->args[i]->op == Op::accumulator && update->args[i]->slot == slot) return update->args[1 - i];
  return {};
}

/// The range of sums of one type: what terms lose below the smallest normal number, in 2^20 of them, is less than the
/// rounding of a sum from `least` on. Terms of a degree above 16 lose all of it, float64 powers of any degree may.
struct TypeRange {
  int mantissa;
  double least, least_of_high, most;
};
constexpr double kLargestGradual = 16;
constexpr TypeRange kFloat{23, 0x1p-118, 0x1p-96, 0x1p120}, kDouble{52, 0x1p-940, 0x1p-940, 0x1p1016};

/// Differences of two values of at least 2^b are 0 or at least 2^(b - mantissa); up to 2^20 terms are added.
/// Weights and parameters have some binary digits of a sum each.
void narrow(PairGuard& guard, const TypeRange& type, const Expr& term, double least_sum, double degree) {
  constexpr double kDigits = 12;
  double margin = 0;
  const auto leave_room = [&](bool reads, double& most) {
    if (!reads) return;
    margin += kDigits;
    const double own = std::exp2(kDigits / std::max(1.0, degree));
    most = most == 0 ? own : std::min(most, own);
  };
  leave_room(ir::uses(term).w, guard.most_weight);
  leave_room(ir::uses(term).param, guard.most_param);
  ir::Magnitudes& within = guard.within;
  within.least = std::max(within.least, std::exp2(type.mantissa + (std::log2(least_sum) + margin) / degree));
  within.most = std::min(within.most, std::exp2((std::log2(type.most) - 20 - margin) / degree - 1));
}

/// The guard of terms that read made streams, by squares or magnitudes of their difference.
CloseSum close_sum(const ir::Split& split, const Expr& term) {
  const auto is_made = [&](const Expr& e) {
    if (e->op != Op::x && e->op != Op::z) return false;
    const Expr& stream = (e->op == Op::x ? split.x_streams : split.z_streams)[static_cast<std::size_t>(e->slot)];
    return stream->op != e->op;
  };
  CloseSum close;
  ir::for_each(term, [&](const Expr& e) {
    const bool square = (e->op == Op::mul && same(e->args[0], e->args[1])) ||
                        (e->op == Op::pow && e->args[1]->op == Op::constant && e->args[1]->value == 2);
    if (!square && e->op != Op::abs) return;
    const Expr& d = e->args[0];
    if (d->op != Op::sub || !is_made(d->args[0]) || !is_made(d->args[1]) || d->args[0]->op == d->args[1]->op) return;
    close.power = square ? 2 : 1;
    const bool x_first = d->args[0]->op == Op::x;
    close.x_stream = d->args[x_first ? 0 : 1]->slot;
    close.z_stream = d->args[x_first ? 1 : 0]->slot;
    close.weighted = ir::uses(term).w;
  });
  return close;
}

}  // namespace

PairGuard guard_sums(const ir::Split& split, const PairProblem& problem) {
  const bool is_wide = problem.type == Dtype::float64;
  const auto any = [](const std::vector<Expr>& list, auto changes) {
    return std::any_of(list.begin(), list.end(), [&](const Expr& e) { return !same(changes(e), e); });
  };
  // Powers of a difference next to those of its sum: they are smaller by 22 binary digits.
  const bool is_field = !problem.again.empty() || any(problem.outputs, ir::safe_powers);
  PairGuard guard;
  const auto norms = [](const Expr& e) { return ir::safe_norms(e); };
  if (is_wide && !is_field && !any(problem.outputs, norms)) return guard;
  const TypeRange& range = is_wide ? kDouble : kFloat;
  guard.within.most = std::numeric_limits<double>::infinity();
  for (const ir::Reduction& r : split.reductions) {
    if (r.kind != Op::sum) continue;
    const Expr term = term_of(r.update[0], r.first_slot);
    if (term.empty()) continue;
    SumGuard sum;
    sum.state = r.first_slot;
    const bool nonnegative = ir::is_nonnegative(with_unit_scales(term));
    if (const double d = degree(term); nonnegative && d > 1) {
      sum.ranged = true;
      sum.least = d <= kLargestGradual && !is_field ? range.least : range.least_of_high;
      sum.most = range.most;
      sum.scaled = ir::uses(term).w || ir::uses(term).param;
      narrow(guard, range, term, sum.least, d);
    }
    if (!is_wide) sum.close = close_sum(split, term);
    if (sum.close.power > 0) sum.close.row_slot = sum.close.col_slot = guard.close_sums++;
    if (sum.ranged || sum.close.power > 0) guard.sums.push_back(sum);
  }
  const bool one = guard.sums.size() == 1 && split.states == 1 && split.epilogue.size() == 1;
  guard.shows_in_output =
      one && split.nonnegative_slots({Op::sum})[0] && ir::rises_with_accumulator(split.epilogue[0], true);
  return guard;
}

}  // namespace mercer::plan
