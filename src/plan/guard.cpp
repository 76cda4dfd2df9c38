#include "plan/guard.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/passes.h"
#include "ir/safe_norm.h"

namespace mercer::plan {
namespace {

using ir::Op;

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// The degree in which a term is homogeneous in the points, or kUnknown. Weights count as numbers.
double degree(const Expr& e) {
  const auto arg = [&](std::size_t i) { return degree(e->args[i]); };
  switch (e->op) {
    case Op::x:
    case Op::z: return 1;
    case Op::constant:
    case Op::w: return 0;
    case Op::neg:
    case Op::abs: return arg(0);
    case Op::sqrt: return arg(0) / 2;
    case Op::mul: return arg(0) + arg(1);
    case Op::add:
    case Op::sub: return arg(0) == arg(1) ? arg(0) : kUnknown;
    case Op::pow: return e->args[1]->op == Op::constant ? arg(0) * e->args[1]->value : kUnknown;
    default: return kUnknown;
  }
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
void narrow(ir::Magnitudes& within, const TypeRange& type, double least_sum, double degree) {
  within.least = std::max(within.least, std::exp2(type.mantissa + std::log2(least_sum) / degree));
  within.most = std::min(within.most, std::exp2((std::log2(type.most) - 20) / degree - 1));
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

PairGuard guard_sums(const ir::Split& split, const std::vector<Expr>& outputs, Dtype type) {
  const bool is_wide = type == Dtype::float64;
  const auto scales = [](const Expr& e) { return !same(ir::safe_norms(e), e); };
  PairGuard guard;
  if (is_wide && std::none_of(outputs.begin(), outputs.end(), scales)) return guard;
  const TypeRange& range = is_wide ? kDouble : kFloat;
  guard.within.most = std::numeric_limits<double>::infinity();
  for (const ir::Reduction& r : split.reductions) {
    if (r.kind != Op::sum) continue;
    const Expr term = term_of(r.update[0], r.first_slot);
    if (term.empty()) continue;
    SumGuard sum;
    sum.state = r.first_slot;
    const bool nonnegative = ir::is_nonnegative(ir::substitute(term, {{ir::leaf(Op::w), Expr(1.0)}}));
    if (const double d = degree(term); nonnegative && d > 1) {
      sum.ranged = true;
      sum.least = d <= kLargestGradual ? range.least : range.least_of_high;
      sum.most = range.most;
      narrow(guard.within, range, sum.least, d);
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
