// The passes of plan/kron_gpu.h one after the other, through two arrays in scratch memory. A call that needs more of it
// than it should is taken apart into calls on some of its items, rows or columns, which follow each other.
//
//   first pass   x -> scratch     ...     last pass   scratch -> out, with alpha, beta and y
//
// A pass that may not write where it reads leaves out to the kernel `kron_finish`, as does a call that reads no x.
#include "backend/cuda/kron.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>

#include "backend/cuda/batch.h"
#include "backend/cuda/kernels.h"
#include "backend/cuda/workspace.h"
#include "core/aligned.h"
#include "core/integers.h"
#include "kernels/cuda/arguments.h"
#include "plan/kron_gpu.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30, kFinishThreads = 256;

PairJob place_of(const KronJob& job) {
  PairJob place;
  place.op = job.op;
  place.device = job.device;
  place.queue = job.queue;
  place.type = job.type();
  return place;
}

/// Neighbouring columns of x are neighbours in memory: they stand behind all factors.
bool lies_by_columns(const KronJob& job) {
  return job.rows.back() > 1 && job.k > 1 && std::abs(job.x.row_strides.back()) < std::abs(job.x.stride);
}

/// One call in scratch memory of its own.
class KronPart {
 public:
  explicit KronPart(KronJob job);
  const KronJob& job() const { return job_; }
  /// Of each of `buffers()` arrays.
  std::int64_t buffer_bytes() const;
  int buffers() const { return std::min(passes() - 1 + (copies_ ? 1 : 0), 2); }
  void get_kernels(const PairJob& place);
  void run(const PairJob& place, std::array<char*, 2> buffers) const;

 private:
  int passes() const { return static_cast<int>(plan_.passes.size()); }
  bool reads() const { return job_.k != 0 && job_.alpha != 0; }
  std::int64_t rows() const { return job_.row_count / columns_; }
  /// An array before or behind a pass over an axis of this extent.
  KronSide side_of(const KronArray& array, std::int64_t extent, std::int64_t right) const;
  KronSide side_of(char* buffer, std::int64_t extent, std::int64_t right) const;
  void walk(KronArguments& a, const KronArray* from, const KronArray* to, const KronFactor* factor,
            std::int64_t from_size, std::int64_t to_size) const;
  void run_pass(const PairJob& place, int index, char* from, char* to) const;
  void finish(const PairJob& place, char* from) const;

  KronJob job_;
  std::int64_t columns_ = 1;
  plan::KronGpuPlan plan_;
  bool copies_ = false;  // the last pass may not write into out
  std::vector<Kernel> kernels_;
  Kernel finish_;
};

KronPart::KronPart(KronJob job) : job_(std::move(job)) {
  if (lies_by_columns(job_)) columns_ = job_.rows.back();
  if (!reads()) return;
  plan::KronGpuProblem problem;
  problem.dtype = job_.dtype;
  problem.type = job_.type();
  for (const KronFactor& factor : job_.factors) problem.factors.push_back({factor.p, factor.q});
  problem.rows = rows();
  problem.columns = columns_;
  plan_ = plan_kron_gpu(problem);
  copies_ = job_.in_place && passes() == 1 && !plan_.passes.back().tile.whole();
  if (!copies_) return;
  plan_.passes.back().tile.final = false;
  plan_.passes.back().tile.out = job_.type();
  plan_.widest = job_.j * columns_;
}

std::int64_t KronPart::buffer_bytes() const {
  return checked_product({job_.items, rows(), plan_.widest, static_cast<std::int64_t>(size_of(job_.type()))});
}

void KronPart::get_kernels(const PairJob& place) {
  for (const plan::KronGpuPass& pass : plan_.passes) kernels_.push_back(kron_step_kernel(pass.tile, place));
  if (!reads() || copies_) finish_ = kron_finish_kernel(job_.dtype, place);
}

KronSide KronPart::side_of(const KronArray& array, std::int64_t extent, std::int64_t right) const {
  KronSide side{};
  const std::int64_t behind = right / columns_, column = array.row_strides.back();
  side.data = array.data;
  side.axis = behind * array.stride;
  side.left = extent * side.axis;
  side.columns = columns_;
  side.behind = array.stride;
  side.column = column;
  const bool joined = behind == 1 || array.stride == columns_ * column;
  if (columns_ > 1 && joined) {
    side.columns = 1;
    side.behind = column;
  }
  return side;
}

KronSide KronPart::side_of(char* buffer, std::int64_t extent, std::int64_t right) const {
  KronSide side{};
  side.data = buffer;
  side.axis = right;
  side.left = extent * right;
  side.columns = side.behind = 1;
  return side;
}

/// Steps along items and rows; buffers have neither strides nor gaps, and rows of `size` elements.
void KronPart::walk(KronArguments& a, const KronArray* from, const KronArray* to, const KronFactor* factor,
                    std::int64_t from_size, std::int64_t to_size) const {
  const auto axes = static_cast<std::ptrdiff_t>(job_.rows.size()) - (columns_ > 1 ? 1 : 0);
  BatchWalk items, rows;
  items.extent = job_.outer;
  rows.extent.assign(job_.rows.begin(), job_.rows.begin() + axes);
  const auto add = [&](const KronArray* array, std::int64_t size) {
    auto& item_steps = items.steps.emplace_back(items.extent.size());
    auto& row_steps = rows.steps.emplace_back(rows.extent.size());
    if (array != nullptr) {
      item_steps = array->outer_strides;
      row_steps.assign(array->row_strides.begin(), array->row_strides.begin() + axes);
      return;
    }
    for (std::size_t axis = row_steps.size(); axis-- > 0; size *= rows.extent[axis]) row_steps[axis] = size;
    for (std::size_t axis = item_steps.size(); axis-- > 0; size *= items.extent[axis]) item_steps[axis] = size;
  };
  add(from, from_size);
  add(to, to_size);
  add(job_.y.data != nullptr ? &job_.y : nullptr, 0);
  items.steps.push_back(factor != nullptr ? factor->outer_strides : std::vector<std::int64_t>(items.extent.size()));
  items.merge(job_.op);
  rows.merge(job_.op);
  a.items = items.axes();
  a.rows = rows.axes();
  std::size_t array = 0;
  for (KronSide* side : {&a.from, &a.to, &a.y}) {
    items.write(array, side->item_step);
    rows.write(array++, side->row_step);
  }
  items.write(array, a.factor_step);
  a.item_count = job_.items;
  a.row_count = this->rows();
}

void KronPart::run_pass(const PairJob& place, int index, char* from, char* to) const {
  const plan::KronGpuPass& pass = plan_.passes[static_cast<std::size_t>(index)];
  const plan::KronGpuTile& tile = pass.tile;
  const KronFactor& factor = job_.factors[static_cast<std::size_t>(pass.factor)];
  KronArguments a{};
  a.from = from != nullptr ? side_of(from, tile.p, pass.right) : side_of(job_.x, tile.p, pass.right);
  a.to = to != nullptr ? side_of(to, tile.q, pass.right) : side_of(job_.out, tile.q, pass.right);
  if (tile.final && job_.y.data != nullptr) a.y = side_of(job_.y, tile.q, pass.right);
  walk(a, from != nullptr ? nullptr : &job_.x, to != nullptr ? nullptr : &job_.out, &factor,
       pass.left * tile.p * pass.right, pass.left * tile.q * pass.right);
  a.factor = factor.data;
  a.p_stride = factor.p_stride;
  a.q_stride = factor.q_stride;
  a.left = pass.left;
  a.right = pass.right;
  a.alpha = job_.alpha;
  a.beta = job_.beta;
  const std::int64_t tiles = ceil_div(tile.q, tile.tile_q) * ceil_div(pass.right, tile.tile_a) *
                             ceil_div(rows() * pass.left, tile.tile_b) * job_.items;
  launch(kernels_[static_cast<std::size_t>(index)], place, {std::min(tiles, kMostBlocks)}, tile.threads(),
         tile.shared_bytes(), a);
}

void KronPart::finish(const PairJob& place, char* from) const {
  KronArguments a{};
  if (from != nullptr) a.from = side_of(from, job_.j, columns_);
  a.to = side_of(job_.out, job_.j, columns_);
  if (job_.y.data != nullptr) a.y = side_of(job_.y, job_.j, columns_);
  for (KronSide* side : {&a.from, &a.to, &a.y}) side->left = side->axis;
  walk(a, nullptr, &job_.out, nullptr, job_.j * columns_, 0);
  a.left = job_.j;
  a.right = columns_;
  a.alpha = job_.alpha;
  a.beta = job_.beta;
  const std::int64_t count = job_.items * job_.row_count * job_.j;
  launch(finish_, place, {std::min(ceil_div(count, kFinishThreads), kMostBlocks)}, kFinishThreads, 0, a);
}

void KronPart::run(const PairJob& place, std::array<char*, 2> buffers) const {
  if (!reads()) return finish(place, nullptr);
  char* from = nullptr;
  for (int index = 0; index < passes(); ++index) {
    char* const to = index + 1 < passes() || copies_ ? buffers[static_cast<std::size_t>(index % 2)] : nullptr;
    run_pass(place, index, from, to);
    from = to;
  }
  if (copies_) finish(place, from);
}

/// Indices first .. first + extent - 1 of an axis of the items, or of the rows.
KronJob slice(const KronJob& job, bool of_rows, std::size_t axis, std::int64_t first, std::int64_t extent) {
  KronJob part = job;
  auto& extents = of_rows ? part.rows : part.outer;
  std::int64_t& count = of_rows ? part.row_count : part.items;
  count = count / extents[axis] * extent;
  extents[axis] = extent;
  const bool drops = extent == 1 && (!of_rows || axis + 1 < extents.size());
  const auto at = static_cast<std::ptrdiff_t>(axis);
  if (drops) extents.erase(extents.begin() + at);
  const auto move = [&](auto& data, std::vector<std::int64_t>& strides) {
    if (data != nullptr) data += first * strides[axis] * static_cast<std::int64_t>(size_of(job.dtype));
    if (drops) strides.erase(strides.begin() + at);
  };
  for (KronArray* array : {&part.x, &part.y, &part.out})
    if (array->data != nullptr) move(array->data, of_rows ? array->row_strides : array->outer_strides);
  if (!of_rows)
    for (KronFactor& factor : part.factors) move(factor.data, factor.outer_strides);
  return part;
}

/// Kernels take so many axes of items and of rows, and scratch memory should not be larger than this.
void add_parts(const KronJob& job, std::int64_t most_bytes, std::deque<KronPart>& parts) {
  const auto split = [&](bool of_rows, std::size_t axis, std::int64_t size) {
    const std::int64_t extent = (of_rows ? job.rows : job.outer)[axis];
    for (std::int64_t first = 0; first < extent; first += size)
      add_parts(slice(job, of_rows, axis, first, std::min(size, extent - first)), most_bytes, parts);
  };
  if (job.outer.size() > MERCER_MAX_AXES) return split(false, 0, 1);
  if (job.rows.size() > MERCER_MAX_AXES) return split(true, 0, 1);
  KronPart part(job);
  const double bytes = static_cast<double>(part.buffer_bytes()) * part.buffers();
  if (bytes > static_cast<double>(most_bytes))
    for (const bool of_rows : {false, true}) {
      const auto& extents = of_rows ? job.rows : job.outer;
      for (std::size_t axis = 0; axis < extents.size(); ++axis) {
        if (extents[axis] <= 1) continue;
        const double fits = static_cast<double>(extents[axis]) * static_cast<double>(most_bytes) / bytes;
        return split(of_rows, axis, std::max<std::int64_t>(static_cast<std::int64_t>(fits), 1));
      }
    }
  parts.push_back(std::move(part));
}

}  // namespace

void kron_matmul(const KronJob& job, std::int64_t part_bytes) {
  const PairJob place = place_of(job);
  const JobScope scope(place);
  std::deque<KronPart> parts;
  add_parts(job, part_bytes, parts);
  Workspace workspace;
  std::array<std::int64_t, 2> most{}, places{};
  for (KronPart& part : parts) {
    part.get_kernels(place);
    for (int buffer = 0; buffer < part.buffers(); ++buffer)
      most[static_cast<std::size_t>(buffer)] =
          std::max(most[static_cast<std::size_t>(buffer)], part.buffer_bytes());
  }
  for (std::size_t buffer = 0; buffer < most.size(); ++buffer) places[buffer] = workspace.add(most[buffer]);
  if (workspace.bytes() > 0 && !workspace.take(place)) return;
  for (const KronPart& part : parts) part.run(place, {workspace.at<char>(places[0]), workspace.at<char>(places[1])});
}

}  // namespace mercer::cuda
