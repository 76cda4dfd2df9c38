#include "backend/cuda/pairs/mask_strips.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "backend/cuda/runtime/panels.h"
#include "core/integers.h"
#include "kernels/cuda/pairs/skipped.h"
#include "plan/gpu/costs/costs.h"

namespace mercer::cuda {
namespace {

static_assert(kStripPoints % MERCER_SKIPPED_POINTS == 0);
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMostStrips = 256;
constexpr std::int64_t kColumnUnits = 256;    // the columns of a strip are found to this part of n
constexpr std::int64_t kMostColumns = 65535;  // of v: blocks along an axis of a grid
constexpr std::int64_t kSkippedThreads = 256;

/// A product has no column for a value other than 0.
LeftOut left_out_by(const plan::GpuPairProblem& problem) {
  return {.is_any = problem.consumer != plan::Consumer::product};
}

bool has_same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

/// Where a mask has pairs that must be computed.
class OpenPairs {
 public:
  OpenPairs(const plan::PairMask& mask, const PairJob& job, std::vector<double> params, const LeftOut& left_out)
      : mask_(mask), job_(job), params_(std::move(params)), left_out_(left_out),
        known_(static_cast<std::size_t>(mask.outputs())) {}

  /// Columns of rows `row` … `end` - 1 that must be, in units of `unit`. None of them: they end before they begin.
  MaskStrip strip(std::int64_t row, std::int64_t end, std::int64_t unit) {
    const std::int64_t n = job_.z.count, units = ceil_div(n, unit);
    const Rows rows{row, end};
    MaskStrip strip{row, end - row, 0, n, left_out_.neutral, left_out_.neutral};
    if (left_out_.is_any) {
      strip.before = value_of(rows, 0, unit).value_or(0);
      strip.after = value_of(rows, (units - 1) * unit, n).value_or(0);
    }
    const std::int64_t first = find(rows, unit, 0, units, true, strip.before);
    if (first == units) {
      strip.column = n;
      strip.columns = -n;
      strip.after = strip.before;
      return strip;
    }
    const std::int64_t last = find(rows, unit, first, units, false, strip.after);
    strip.column = first * unit;
    strip.columns = std::min(n, (last + 1) * unit) - strip.column;
    return strip;
  }

 private:
  struct Rows {
    std::int64_t first, end;
  };

  /// The first or the last unit among first … end - 1 with such pairs; `end` where all have `value`.
  std::int64_t find(const Rows& rows, std::int64_t unit, std::int64_t first, std::int64_t end, bool is_first,
                    double value) {
    const plan::MaskAnswer answer = answer_of(rows, first * unit, end * unit, value);
    if (answer == plan::MaskAnswer::known) return end;
    if (answer == plan::MaskAnswer::computed || end - first == 1) return is_first ? first : end - 1;
    const std::int64_t middle = first + (end - first) / 2;
    if (is_first) {
      const std::int64_t low = find(rows, unit, first, middle, true, value);
      return low < middle ? low : find(rows, unit, middle, end, true, value);
    }
    const std::int64_t high = find(rows, unit, middle, end, false, value);
    if (high < end) return high;
    const std::int64_t low = find(rows, unit, first, middle, false, value);
    return low < middle ? low : end;
  }

  /// `known`: all of them have this value. Where another one is known, parts may yet have it.
  plan::MaskAnswer answer_of(const Rows& rows, std::int64_t first, std::int64_t end, double value) {
    const plan::MaskAnswer answer = ask(rows, first, end);
    if (answer != plan::MaskAnswer::known) return answer;
    const bool is_same = std::ranges::all_of(
        known_, [&](double known) { return left_out_.is_any ? has_same_bits(known, value) : known == value; });
    return is_same ? plan::MaskAnswer::known : plan::MaskAnswer::computed;
  }

  std::optional<double> value_of(const Rows& rows, std::int64_t first, std::int64_t end) {
    return ask(rows, first, end) == plan::MaskAnswer::known ? std::optional(known_[0]) : std::nullopt;
  }

  plan::MaskAnswer ask(const Rows& rows, std::int64_t first, std::int64_t end) {
    const auto indices = [](const JobSide& side, std::int64_t from, std::int64_t to) {
      return plan::Interval{static_cast<double>(side.index_offset + from),
                            static_cast<double>(side.index_offset + to - 1)};
    };
    const plan::Interval any{-kInfinity, kInfinity, true};  // values of points lie on the device
    const std::int64_t last = std::min(job_.z.count, end);
    const plan::Rectangle pairs{indices(job_.x, rows.first, rows.end), indices(job_.z, first, last), any, any};
    return mask_.of(pairs, params_, job_.features, known_.data());
  }

  const plan::PairMask& mask_;
  const PairJob& job_;
  std::vector<double> params_;
  LeftOut left_out_;
  std::vector<double> known_;  // outputs of the last answer
};

/// Whether the kernels' indices are those of the mask: float32 has no others from 2^24 on.
bool has_exact_indices(const PairJob& job) {
  const std::int64_t most = std::int64_t{1} << (job.type == Dtype::float64 ? 53 : 24);
  const auto is_exact = [&](const JobSide& side) {
    return side.index_offset >= -most && side.index_offset <= most - side.count;
  };
  return is_exact(job.x) && is_exact(job.z);
}

/// Both strips as one, of `n` columns in all. Columns on a side that have several values are computed.
MaskStrip joined(const MaskStrip& a, const MaskStrip& b, std::int64_t n) {
  MaskStrip one = a;
  one.rows += b.rows;
  const std::int64_t a_end = a.column_end(), b_end = b.column_end();
  one.column = std::min(a.column, b.column);
  if (one.column > 0 && !has_same_bits(a.before, b.before)) one.column = 0;
  std::int64_t end = std::max(a_end, b_end);
  if (end < n && !has_same_bits(a.after, b.after)) end = n;
  one.columns = end - one.column;
  return one;
}

/// Neighbours joined, so that `count` are left.
std::vector<MaskStrip> joined(const std::vector<MaskStrip>& strips, std::int64_t count, std::int64_t n) {
  const auto fine = static_cast<std::int64_t>(strips.size());
  std::vector<MaskStrip> result;
  for (std::int64_t at = 0; at < count; ++at) {
    const auto first = strips.begin() + fine * at / count, end = strips.begin() + fine * (at + 1) / count;
    MaskStrip one = *first;
    for (auto next = first + 1; next != end; ++next) one = joined(one, *next, n);
    result.push_back(one);
  }
  return result;
}

/// The strip as it is run.
MaskStrip settled(MaskStrip strip, std::int64_t n, const MaskedWork& work) {
  if (strip.columns <= 0) strip.column = strip.columns = 0;
  if (strip.columns < work.least) {
    const std::int64_t least = round_up(work.least, kStripPoints), end = std::min(n, strip.column + least);
    strip.column = std::min(strip.column, std::max<std::int64_t>(0, end - least) / kStripPoints * kStripPoints);
    strip.columns = end - strip.column;
  }
  if (work.symmetric && strip.column < strip.row) {
    strip.columns = std::max<std::int64_t>(0, strip.column_end() - strip.row);
    strip.column = strip.row;
  }
  return strip;
}

/// What the device could do while the launches of a strip begin and end.
double strip_cost(const PairJob& job, const MaskedWork& work) {
  return work.strip * job.costs().mask_strip * job.hardware().multiprocessors;
}

/// Twice as many as serve a diagonal: of s strips, 1/s of the pairs is left.
std::int64_t most_strips(std::int64_t blocks, double work_of_strips) {
  const double wanted = std::ceil(2 * std::sqrt(work_of_strips));
  const std::int64_t most = std::min(kMostStrips, blocks);
  return wanted >= static_cast<double>(most) ? most : static_cast<std::int64_t>(wanted);
}

double cost_of(const MaskStrip& one, const PairJob& job, const MaskedWork& work) {
  const double all = static_cast<double>(job.z.count - (work.symmetric ? one.row : 0));
  const double computed = static_cast<double>(one.columns);
  return strip_cost(job, work) + static_cast<double>(one.rows) * (work.pair * computed + work.known * (all - computed));
}

MaskedWork work_of(const plan::GpuPairPlan& plan, const PairJob& job) {
  constexpr double kEpilogue = 16, kOfTensorCores = 8;
  MaskedWork work{.least = plan.problem.consumer == plan::Consumer::store ? 0 : 1};
  work.pair = kEpilogue + 2 * static_cast<double>(job.features) / (plan.products.bilinear ? kOfTensorCores : 1);
  if (plan.problem.consumer != plan::Consumer::store) return work;
  work.known = job.costs().mask_byte * static_cast<double>(size_of(plan.problem.arrays.out));
  work.pair = std::max(work.pair, work.known);
  return work;
}

}  // namespace

double MaskedWork::all(const PairJob& job) const {
  return pair * static_cast<double>(job.x.count) * static_cast<double>(job.z.count) / (symmetric ? 2 : 1);
}

bool pays_strips(const PairJob& job, const MaskedWork& work) {
  return job.x.count > 0 && job.z.count > 0 && has_exact_indices(job) && work.all(job) >= 4 * strip_cost(job, work);
}

std::vector<MaskStrip> mask_strips(const plan::PairMask& mask, const PairJob& job, std::vector<double> params,
                                   const LeftOut& left_out, const MaskedWork& work) {
  if (params.empty() && mask.reads(ir::Op::param)) return {};
  const std::int64_t m = job.x.count, n = job.z.count;
  OpenPairs open(mask, job, std::move(params), left_out);
  const std::int64_t blocks = ceil_div(m, kStripPoints);
  const std::int64_t most = most_strips(blocks, work.all(job) / strip_cost(job, work));
  const std::int64_t unit = kStripPoints * ceil_div(ceil_div(n, kStripPoints), kColumnUnits);
  std::vector<MaskStrip> fine, best;
  for (std::int64_t s = 0; s < most; ++s)
    fine.push_back(
        open.strip(blocks * s / most * kStripPoints, std::min(m, blocks * (s + 1) / most * kStripPoints), unit));
  double least = work.all(job);
  for (std::int64_t count = most; count > 0; count /= 2) {
    std::vector<MaskStrip> strips = joined(fine, count, n);
    double cost = 0;
    for (MaskStrip& one : strips) {
      one = settled(one, n, work);
      cost += cost_of(one, job, work);
    }
    if (cost >= least) continue;
    least = cost;
    best = std::move(strips);
  }
  return best;
}

std::vector<MaskStrip> mask_strips(const plan::GpuPairPlan& plan, const PairJob& job, bool symmetric,
                                   std::int64_t least) {
  if (!plan.mask) return {};
  MaskedWork work = work_of(plan, job);
  work.symmetric = symmetric;
  if (least > 0) {
    constexpr double kSearch = 50;  // 23 strips of a band took 24 ms more than their pairs: 1e5 points, 8 features
    work.least = least;
    work.strip = kSearch;
    work.known = 0;  // values of neighbours are stored for a part of the rows, if at all
  }
  if (!pays_strips(job, work)) return {};
  return mask_strips(plan.mask, job, number_values(param_plan(plan), job), left_out_by(plan.problem), work);
}

std::int64_t scratch_bytes(const PairJob& job, const std::function<void(const PairJob&, Workspace&)>& run) {
  Rehearsal rehearsal{.purpose = Rehearsal::Purpose::workspace};
  if (job.rehearsal() != nullptr) rehearsal.device = job.rehearsal()->device;
  Queue queue = *job.queue;
  queue.rehearsal = &rehearsal;
  PairJob rehearsed = job;
  rehearsed.queue = &queue;
  Workspace workspace;
  run(rehearsed, workspace);
  return rehearsal.bytes;
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

JobMatrix part_of(const JobMatrix& out, std::int64_t row, std::int64_t column) {
  JobMatrix part = out;
  part.data = const_cast<void*>(shifted(out.data, row * out.row_stride + column * out.col_stride, out.dtype));
  return part;
}

JobOperand part_of(const JobOperand& v, const MaskStrip& strip) {
  JobOperand part = v;
  part.array.data = shifted(v.array.data, strip.column * v.row_stride, v.array.dtype);
  return part;
}

KnownValues::KnownValues(const PairJob& job, const JobMatrix& out, bool symmetric)
    : job_(job), out_(out), symmetric_(symmetric), mark_(skipped_kernels(job.type, out.dtype, job)) {}

void KnownValues::fill(const Rectangle& pairs, double value) const {
  if (pairs.rows <= 0 || pairs.columns <= 0) return;
  constexpr std::int64_t kMostRows = 65535;
  const JobMatrix part = part_of(out_, pairs.row, pairs.column);
  KnownArguments a{};
  a.m = pairs.rows;
  a.n = pairs.columns;
  a.out_row = part.row_stride;
  a.out_column = part.col_stride;
  a.value = value;
  if (part.col_stride != 1 && part.row_stride == 1) {  // lanes go along what is contiguous
    std::swap(a.m, a.n);
    std::swap(a.out_row, a.out_column);
  }
  const std::int64_t wide = MERCER_KNOWN_BYTES / static_cast<std::int64_t>(size_of(part.dtype));
  const FixedAxes items(job_.batch, std::vector<bool>(job_.batch.size(), true));
  for (std::int64_t index = 0; index < job_.items; ++index) {
    a.out = part.at(items, index).data;
    launch(sibling(mark_, "fill_known", job_), job_,
           {ceil_div(ceil_div(a.n, wide), kSkippedThreads), std::min<std::int64_t>(a.m, kMostRows)}, kSkippedThreads, 0,
           a);
  }
}

void KnownValues::fill(const MaskStrip& strip) const {
  const std::int64_t first = symmetric_ ? strip.row : 0, n = job_.z.count, end = strip.column_end();
  fill({strip.row, strip.rows, first, strip.column - first}, strip.before);
  fill({strip.row, strip.rows, end, n - end}, strip.after);
  if (!symmetric_) return;
  fill({first, strip.column - first, strip.row, strip.rows}, strip.before);
  fill({end, n - end, strip.row, strip.rows}, strip.after);
}

void KnownValues::mirror(const MaskStrip& strip) const {
  if (!symmetric_ || strip.columns == 0) return;
  MirrorArguments a{};
  a.m = strip.rows;
  a.n = strip.columns;
  a.out_row = out_.row_stride;
  a.out_column = out_.col_stride;
  a.ahead = strip.column - strip.row;
  const FixedAxes items(job_.batch, std::vector<bool>(job_.batch.size(), true));
  for (std::int64_t index = 0; index < job_.items; ++index) {
    const JobMatrix one = out_.at(items, index);
    a.from = part_of(one, strip.row, strip.column).data;
    a.to = part_of(one, strip.column, strip.row).data;
    launch(sibling(mark_, "mirror_pairs", job_), job_,
           {ceil_div(a.n, MERCER_MIRROR_SIDE), ceil_div(a.m, MERCER_MIRROR_SIDE)}, kSkippedThreads, 0, a);
  }
}

SkippedRows::SkippedRows(const PairJob& job, const JobOperand& v, std::int64_t columns, Dtype out)
    : job_(job), v_(v), columns_(columns), blocks_(ceil_div(job.z.count, MERCER_SKIPPED_POINTS)),
      mark_(skipped_kernels(v.array.dtype, out, job)) {}

void SkippedRows::find(char* flags) const {
  SkippedArguments a{};
  a.v = v_.array.data;
  a.flags = reinterpret_cast<unsigned char*>(flags);
  a.n = job_.z.count;
  a.points = MERCER_SKIPPED_POINTS;
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
  a.out = part_of(out, strip.row, 0).data;
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
