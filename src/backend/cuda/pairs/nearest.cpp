// Nearest neighbours: candidates are found while the pairs are computed (kernels/cuda/nearest/candidates.cuh), or,
// where many are wanted, all values of some rows are stored and the smallest selected.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cuda/pairs/mask_strips.h"
#include "backend/cuda/pairs/operations.h"
#include "backend/cuda/pairs/pair_values.h"
#include "core/integers.h"
#include "kernels/cuda/pairs/skipped.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256;

std::int64_t power_of_two(std::int64_t least) {
  std::int64_t size = 1;
  while (size < least) size *= 2;
  return size;
}

/// Where the results of a call go.
struct Neighbours {
  std::int64_t count;
  const JobMatrix& values;
  const JobMatrix& indices;

  /// Row `row` of item `index`.
  template <class Arguments>
  void write(Arguments& a, const PairJob& job, std::int64_t index, std::int64_t row) const {
    a.out_values = element(values, batch_offset(job.batch, values.batch_strides, index) + row * values.row_stride);
    a.out_indices = element(indices, batch_offset(job.batch, indices.batch_strides, index) + row * indices.row_stride);
    a.out_values_row = values.row_stride;
    a.out_values_col = values.col_stride;
    a.out_indices_row = indices.row_stride;
    a.out_indices_col = indices.col_stride;
  }

 private:
  static void* element(const JobMatrix& matrix, std::int64_t offset) {
    return static_cast<char*>(matrix.data) + offset * static_cast<std::int64_t>(size_of(matrix.dtype));
  }
};

/// False where the call ends with the lay-out of its memory.
bool select_stored(const PairKernels& kernels, const PairJob& job, const Neighbours& to, Workspace& workspace) {
  const std::int64_t size = static_cast<std::int64_t>(size_of(job.type)), keys = power_of_two(to.count);
  const std::int64_t rows = rows_of_part(job, job.z.count * size + keys * 16);
  const std::int64_t ld = (job.z.count + 3) / 4 * 4;
  for (std::int64_t index = 0; index < job.items; ++index) {
    const PairJob one = job.item(index);
    workspace.reuse();
    const PairValues pair_values(kernels, one, rows, workspace);
    const std::int64_t pairs = workspace.add(rows * ld * size), key_place = workspace.add(rows * keys * 16);
    if (!workspace.take(job)) return false;
    const Kernel select = nearest_kernel(job);
    pair_values.prepare(workspace);
    for (std::int64_t first = 0; first < job.x.count; first += rows) {
      const std::int64_t present = std::min(rows, job.x.count - first);
      pair_values.store(workspace, {first, 0}, present, workspace.at<>(pairs), ld, 0);
      NearestArguments a{};
      a.values = workspace.at<>(pairs);
      a.keys = workspace.at<>(key_place);
      a.value_row = ld;
      a.key_row = keys;
      a.n = job.z.count;
      a.count = to.count;
      to.write(a, job, index, first);
      launch(select, job, {present}, kThreads, 0, a);
    }
  }
  return true;
}

/// Candidates of a row that are kept in addition to those wanted, where their values are not the last word.
std::int64_t spare(const plan::GpuPairPlan& plan, std::int64_t count) {
  constexpr std::int64_t kLeast = 8;
  return plan.recomputes() ? std::max(kLeast, count / 4) : 0;
}

/// An order of `blocks` that takes from everywhere: steps near the golden section of all.
std::int64_t stride_through(std::int64_t blocks) {
  constexpr double kGolden = 0.6180339887498949;
  std::int64_t stride = std::max<std::int64_t>(1, std::llround(static_cast<double>(blocks) * kGolden));
  while (std::gcd(stride, blocks) > 1) ++stride;
  return stride;
}

class CandidateSearch {
 public:
  CandidateSearch(const PairKernels& kernels, const PairJob& job, const Neighbours& to, Workspace& workspace)
      : kernels_(kernels), job_(job), to_(to), workspace_(workspace) {
    constexpr std::int64_t kLeastCapacity = 512, kRoom = kGrowth + 2;
    kept_ = std::min(job.z.count, to.count + spare(*kernels.plan, to.count));
    capacity_ = power_of_two(std::max(kLeastCapacity, kRoom * kept_));
    rows_ = rows_of_part(job, capacity_ * kKey);
  }

  /// False where the call ends with the lay-out of its memory.
  bool run() {
    for (std::int64_t index = 0; index < job_.items; ++index) {
      const PairJob one = job_.item(index);
      workspace_.reuse();
      const PairValues pairs(kernels_, one, rows_, workspace_);
      keys_ = workspace_.add(rows_ * capacity_ * kKey);
      counts_ = workspace_.add(rows_ * kWord);
      bounds_ = workspace_.add(rows_ * kWord);
      if (!workspace_.take(job_)) return false;
      pairs.prepare(workspace_);
      for (std::int64_t first = 0; first < job_.x.count; first += rows_)
        search(pairs, index, first, std::min(rows_, job_.x.count - first));
    }
    return true;
  }

 private:
  static constexpr std::int64_t kKey = 8, kWord = 4;
  static constexpr std::int64_t kOfWarp = 1024;  // candidates that one warp sorts
  static constexpr std::int64_t kGrowth = 4;  // of the columns that were looked at

  void search(const PairValues& pairs, std::int64_t index, std::int64_t first, std::int64_t rows) {
    RankArguments rank{};
    rank.pairs = pairs.arguments(workspace_, {first, 0}, rows);
    rank.count = static_cast<unsigned>(to_.count);
    rank.kept = static_cast<unsigned>(kept_);
    to_.write(rank, job_, index, first);
    CandidateArguments& found = rank.pairs.found;
    found = {workspace_.at<unsigned long long>(keys_), workspace_.at<unsigned>(counts_), workspace_.at<float>(bounds_),
             0, 0, 1, 0, static_cast<unsigned>(capacity_)};
    constexpr unsigned kInfinity = 0x7f800000u;
    set_words(counts_, 0, rows);
    set_words(bounds_, kInfinity, rows);
    const std::int64_t whole = job_.z.count / MERCER_COLUMN_BLOCK, blocks = ceil_div(job_.z.count, MERCER_COLUMN_BLOCK);
    found.stride = stride_through(std::max<std::int64_t>(1, whole));
    if (whole > 0) found.inverse = ~std::uint64_t{0} / static_cast<std::uint64_t>(whole);
    // The first columns are all kept; of those that follow, kGrowth - 1 times as many as are kept already.
    found.end = std::min(blocks, std::max<std::int64_t>(1, capacity_ / MERCER_COLUMN_BLOCK));
    for (;; found.first = found.end, found.end = std::min(blocks, static_cast<std::int64_t>(found.end) * kGrowth)) {
      pairs.find(workspace_, {first, 0}, rank.pairs);
      const bool last = found.end == blocks;
      const std::int64_t threads = capacity_ > kOfWarp ? kThreads : 32;
      launch(step(last ? "rank" : "tighten"), job_, {rows}, threads, capacity_ * kKey, rank);
      if (last) break;
    }
    launch(step("scan_rows"), job_, {kScans * job_.hardware().multiprocessors}, kThreads, capacity_ * kKey, rank);
  }

  static constexpr std::int64_t kScans = 4;  // blocks of a multiprocessor

  Kernel step(const char* name) const {
    if (job_.rehearsal() != nullptr) return {};
    const auto& module = kernels_.common.candidates.module;
    return {module, &module->function(name)};
  }

  void set_words(std::int64_t place, unsigned value, std::int64_t count) const {
    fill_words(job_, workspace_.at<>(place), count, value);
  }

  const PairKernels& kernels_;
  const PairJob& job_;
  const Neighbours& to_;
  Workspace& workspace_;
  std::int64_t kept_ = 0, capacity_ = 0, rows_ = 0;
  std::int64_t keys_ = 0, counts_ = 0, bounds_ = 0;
};

bool search(const PairKernels& kernels, const PairJob& job, const Neighbours& to, Workspace& workspace) {
  if (kernels.plan->problem.consumer == plan::Consumer::nearest)
    return CandidateSearch(kernels, job, to, workspace).run();
  return select_stored(kernels, job, to, workspace);
}

/// Neighbours among the columns of a strip, then among all of them.
void search_strips(const PairKernels& kernels, const PairJob& job, const Neighbours& to,
                   const std::vector<MaskStrip>& strips, Workspace& workspace) {
  const auto search_strip = [&](const MaskStrip& strip, const PairJob& part, Workspace& own) {
    const JobMatrix values = part_of(to.values, strip.row, 0), indices = part_of(to.indices, strip.row, 0);
    return search(kernels, part, {to.count, values, indices}, own);
  };
  std::int64_t bytes = 0;
  for (const MaskStrip& strip : strips)
    bytes = std::max(bytes, scratch_bytes(part_of(job, strip), [&](const PairJob& part, Workspace& rehearsed) {
                       search_strip(strip, part, rehearsed);
                     }));
  workspace.add(bytes);
  const Kernel merge = merge_neighbours(job);
  if (!workspace.take(job)) return;
  for (const MaskStrip& strip : strips) {
    if (!search_strip(strip, part_of(job, strip), workspace)) return;
    KnownNeighbourArguments a{};
    a.m = strip.rows;
    a.count = to.count;
    a.values_row = to.values.row_stride;
    a.values_col = to.values.col_stride;
    a.indices_row = to.indices.row_stride;
    a.indices_col = to.indices.col_stride;
    a.column = strip.column;
    a.end = strip.column_end();
    a.n = job.z.count;
    a.before = strip.before;
    a.after = strip.after;
    const FixedAxes items(job.batch, std::vector<bool>(job.batch.size(), true));
    for (std::int64_t index = 0; index < job.items; ++index) {
      a.values = part_of(to.values.at(items, index), strip.row, 0).data;
      a.indices = static_cast<long long*>(part_of(to.indices.at(items, index), strip.row, 0).data);
      launch(merge, job, {ceil_div(a.m, kThreads)}, kThreads, 0, a);
    }
  }
}

}  // namespace

void nearest(const PairKernels& kernels, const PairJob& job, std::int64_t count, const JobMatrix& values,
             const JobMatrix& indices) {
  const JobScope scope(job);
  const Neighbours to{count, values, indices};
  Workspace workspace;
  const std::vector<MaskStrip> strips = mask_strips(*kernels.plan, job, false, count);
  if (strips.empty())
    search(kernels, job, to, workspace);
  else
    search_strips(kernels, job, to, strips, workspace);
}

}  // namespace mercer::cuda
