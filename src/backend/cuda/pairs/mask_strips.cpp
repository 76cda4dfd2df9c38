#include "backend/cuda/pairs/mask_strips.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "backend/cuda/runtime/panels.h"
#include "core/integers.h"
#include "kernels/cuda/pairs/skipped.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::cuda {
namespace {

static_assert(kStripPoints % MERCER_SKIPPED_POINTS == 0);
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostStrips = 32;
constexpr std::int64_t kColumnUnits = 256;    // the columns of a strip are found to this part of n
constexpr std::int64_t kMostColumns = 65535;  // of v: blocks along an axis of a grid
constexpr std::int64_t kSkippedThreads = 256;

/// The value that adds nothing to what becomes of a row.
std::optional<double> neutral_value(const plan::GpuPairProblem& problem) {
  if (problem.consumer == plan::Consumer::product) return 0;
  if (problem.consumer != plan::Consumer::fold) return {};
  switch (problem.use.fold) {
    case ReduceKind::sum: return 0;
    case ReduceKind::max:
    case ReduceKind::logsumexp: return -kInfinity;
    case ReduceKind::min: return kInfinity;
    default: return {};  // the index of a value that others equal
  }
}

/// Where a mask has pairs that must be computed.
class OpenPairs {
 public:
  OpenPairs(const plan::GpuPairPlan& plan, const PairJob& job, std::vector<double> params, double neutral)
      : mask_(plan.mask), job_(job), params_(std::move(params)), neutral_(neutral) {}

  /// Columns of rows `row` … `end` - 1 that must be, in units of `unit`; none of them: a single one.
  MaskStrip strip(std::int64_t row, std::int64_t end, std::int64_t unit) const {
    const std::int64_t n = job_.z.count, units = ceil_div(n, unit);
    const std::int64_t first = find({row, end}, unit, 0, units, true);
    if (first == units) return {row, end - row, 0, std::min(n, unit)};
    const std::int64_t last = find({row, end}, unit, first, units, false);
    return {row, end - row, first * unit, std::min(n, (last + 1) * unit) - first * unit};
  }

 private:
  struct Rows {
    std::int64_t first, end;
  };

  /// The first or the last unit among first … end - 1 with such pairs; `end` where there is none.
  std::int64_t find(const Rows& rows, std::int64_t unit, std::int64_t first, std::int64_t end, bool is_first) const {
    const plan::MaskAnswer answer = answer_of(rows, first * unit, std::min(job_.z.count, end * unit));
    if (answer == plan::MaskAnswer::known) return end;
    if (answer == plan::MaskAnswer::computed || end - first == 1) return is_first ? first : end - 1;
    const std::int64_t middle = first + (end - first) / 2;
    if (is_first) {
      const std::int64_t low = find(rows, unit, first, middle, true);
      return low < middle ? low : find(rows, unit, middle, end, true);
    }
    const std::int64_t high = find(rows, unit, middle, end, false);
    if (high < end) return high;
    const std::int64_t low = find(rows, unit, first, middle, false);
    return low < middle ? low : end;
  }

  plan::MaskAnswer answer_of(const Rows& rows, std::int64_t first, std::int64_t end) const {
    const auto indices = [](const JobSide& side, std::int64_t from, std::int64_t to) {
      return plan::Interval{static_cast<double>(side.index_offset + from),
                            static_cast<double>(side.index_offset + to - 1)};
    };
    const plan::Interval any{-kInfinity, kInfinity, true};  // values of points lie on the device
    double known = 0;
    const plan::Rectangle pairs{indices(job_.x, rows.first, rows.end), indices(job_.z, first, end), any, any};
    const plan::MaskAnswer answer = mask_.of(pairs, params_, job_.features, &known);
    if (answer != plan::MaskAnswer::known) return answer;
    return known == neutral_ ? plan::MaskAnswer::known : plan::MaskAnswer::computed;
  }

  const plan::PairMask& mask_;
  const PairJob& job_;
  std::vector<double> params_;
  double neutral_;
};

/// Whether the kernels' indices are those of the mask: float32 has no others from 2^24 on.
bool has_exact_indices(const PairJob& job) {
  const std::int64_t most = std::int64_t{1} << (job.type == Dtype::float64 ? 53 : 24);
  const auto is_exact = [&](const JobSide& side) {
    return side.index_offset >= -most && side.index_offset <= most - side.count;
  };
  return is_exact(job.x) && is_exact(job.z);
}

/// Neighbours joined, so that `count` are left.
std::vector<MaskStrip> joined(const std::vector<MaskStrip>& strips, std::int64_t count) {
  const auto fine = static_cast<std::int64_t>(strips.size());
  std::vector<MaskStrip> result;
  for (std::int64_t at = 0; at < count; ++at) {
    const auto first = strips.begin() + fine * at / count, end = strips.begin() + fine * (at + 1) / count;
    MaskStrip one = *first;
    for (auto next = first + 1; next != end; ++next) {
      const std::int64_t column_end = std::max(one.column + one.columns, next->column + next->columns);
      one.column = std::min(one.column, next->column);
      one.columns = column_end - one.column;
      one.rows += next->rows;
    }
    result.push_back(one);
  }
  return result;
}

}  // namespace

std::vector<MaskStrip> mask_strips(const plan::GpuPairPlan& plan, const PairJob& job) {
  const std::optional<double> neutral = neutral_value(plan.problem);
  const std::int64_t m = job.x.count, n = job.z.count;
  if (!plan.mask || !neutral || m == 0 || n == 0 || !has_exact_indices(job)) return {};
  // In operations of a lane: of a pair, and what the device could do while the launches of a strip begin and end.
  const double pair = 2 * static_cast<double>(job.features) + 16;
  const double strip = job.costs().mask_strip * job.hardware().multiprocessors;
  const double all = pair * static_cast<double>(m) * static_cast<double>(n);
  if (all < 4 * strip) return {};
  std::vector<double> params = number_values(param_plan(plan), job);
  if (params.empty() && plan.mask.reads(ir::Op::param)) return {};
  const OpenPairs open(plan, job, std::move(params), *neutral);
  const std::int64_t blocks = ceil_div(m, kStripPoints), most = std::min(kMostStrips, blocks);
  const std::int64_t unit = kStripPoints * ceil_div(ceil_div(n, kStripPoints), kColumnUnits);
  std::vector<MaskStrip> fine, best;
  for (std::int64_t s = 0; s < most; ++s)
    fine.push_back(
        open.strip(blocks * s / most * kStripPoints, std::min(m, blocks * (s + 1) / most * kStripPoints), unit));
  double least = all;
  for (std::int64_t count = most; count > 0; count /= 2) {
    const std::vector<MaskStrip> strips = joined(fine, count);
    double cost = strip * static_cast<double>(count);
    for (const MaskStrip& one : strips) cost += pair * static_cast<double>(one.rows) * static_cast<double>(one.columns);
    if (cost >= least) continue;
    least = cost;
    best = strips;
  }
  return best;
}

PairJob part_of(const PairJob& job, const MaskStrip& strip) {
  PairJob part = job;
  const auto cut = [](JobSide& side, std::int64_t first, std::int64_t count) {
    side.points.data = shifted(side.points.data, first * side.point_stride, side.points.dtype);
    side.user.data = shifted(side.user.data, first * side.user_stride, side.user.dtype);
    side.count = count;
    side.index_offset += first;
  };
  cut(part.x, strip.row, strip.rows);
  cut(part.z, strip.column, strip.columns);
  part.same_points = false;
  return part;
}

JobMatrix part_of(const JobMatrix& out, const MaskStrip& strip) {
  JobMatrix part = out;
  part.data = const_cast<void*>(shifted(out.data, strip.row * out.row_stride, out.dtype));
  return part;
}

JobOperand part_of(const JobOperand& v, const MaskStrip& strip) {
  JobOperand part = v;
  part.array.data = shifted(v.array.data, strip.column * v.row_stride, v.array.dtype);
  return part;
}

SkippedRows::SkippedRows(const PairJob& job, const JobOperand& v, std::int64_t columns, Dtype out)
    : job_(job), v_(v), columns_(columns), blocks_(ceil_div(job.z.count, MERCER_SKIPPED_POINTS)),
      mark_(skipped_kernels(v.array.dtype, out, job)) {}

void SkippedRows::find(char* flags) const {
  SkippedArguments a{};
  a.v = v_.array.data;
  a.flags = reinterpret_cast<unsigned char*>(flags);
  a.n = job_.z.count;
  a.columns = columns_;
  a.v_row = v_.row_stride;
  a.v_column = v_.col_stride;
  a.blocks = blocks_;
  launch(sibling(mark_, "find_not_finite", job_), job_, {ceil_div(blocks_ * columns_, kSkippedThreads)},
         kSkippedThreads, 0, a);
}

void SkippedRows::mark(const MaskStrip& strip, const JobMatrix& out, char* flags) const {
  SkippedArguments a{};
  a.flags = reinterpret_cast<unsigned char*>(flags);
  a.out = part_of(out, strip).data;
  a.columns = columns_;
  a.blocks = blocks_;
  a.m = strip.rows;
  a.out_row = out.row_stride;
  a.out_column = out.col_stride;
  a.first = strip.column / MERCER_SKIPPED_POINTS;
  a.end = ceil_div(strip.column + strip.columns, MERCER_SKIPPED_POINTS);
  launch(mark_, job_, {ceil_div(strip.rows, kSkippedThreads), columns_}, kSkippedThreads, 0, a);
}

}  // namespace mercer::cuda
