// The passes of plan/kron/kron_gpu.h one after the other. What lies between two of them is kept in out, where there is
// room and the second one may write where it reads, else in one of two arrays in scratch memory. A call that needs more
// of that than it should is taken apart into calls on some of its items, rows or columns, which follow each other.
//
//   first pass   x -> out or scratch     ...     last pass   out or scratch -> out, with alpha, beta and y
//
// In a call in place with a pass that may not write where it reads, `kron_finish` writes out, as in a call that reads
// no x.
#include "backend/cuda/kron/kron.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <memory>

#include "backend/cuda/runtime/batch.h"
#include "backend/cuda/runtime/workspace.h"
#include "core/integers.h"
#include "core/key.h"
#include "core/system/aligned.h"
#include "kernels/cuda/common/arguments.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kMostBlocks = std::int64_t{1} << 30, kFinishThreads = 256, kVectorBytes = 16;
static_assert(plan::kMostKronFactors <= MERCER_MAX_KRON);

PairJob place_of(const KronJob& job) {
  PairJob place;
  place.op = job.op;
  place.device = job.device;
  place.queue = job.queue;
  place.type = job.type();
  return place;
}

/// Whether programs are loaded in this call and may be left to the next one.
bool is_kept(const PairJob& place) {
  const Rehearsal* rehearsal = place.rehearsal();
  return rehearsal == nullptr || rehearsal->purpose == Rehearsal::Purpose::kernels;
}

/// Neighbouring columns of x are neighbours in memory: they come after all factors.
bool lies_by_columns(const KronJob& job) {
  return job.rows.back() > 1 && job.k > 1 && std::abs(job.x.row_strides.back()) < std::abs(job.x.stride);
}

/// What tells the parts of a call apart, which may begin anywhere.
std::string part_key(const plan::KronGpuProblem& problem, const KronJob& job) {
  const bool out_is_aligned = reinterpret_cast<std::uintptr_t>(job.out.data) % kVectorBytes == 0;
  std::string key = cache_key(problem.vectors_in, problem.vectors_out, out_is_aligned, job.outer.size());
  const auto add = [&key](const std::vector<std::int64_t>& values) {
    for (const std::int64_t value : values) append_to_key(key, value);
  };
  add(job.outer), add(job.rows);
  for (const KronArray* array : {&job.x, &job.out, &job.y}) add(array->outer_strides), add(array->row_strides);
  for (const KronFactor& factor : job.factors) add(factor.outer_strides);
  return key;
}

/// Without its kernels.
KronProgram plan_program(const plan::KronGpuProblem& problem, const KronJob& job, plan::KronGpuPlan plan) {
  KronProgram program;
  program.problem = problem;
  program.plan = std::move(plan);
  plan::KronGpuPass& last = program.plan.passes.back();
  const bool may_write = std::visit([](const auto& kernel) { return kernel.whole(); }, last.kernel);
  program.copies = job.in_place && program.plan.passes.size() == 1 && !may_write;
  if (!program.copies) return program;
  std::visit(
      [&](auto& kernel) {
        kernel.types.final = false;
        kernel.types.out = job.type();
      },
      last.kernel);
  program.plan.widest = job.j * problem.columns;
  return program;
}

/// One call in scratch memory of its own.
class KronPart {
 public:
  /// `is_whole`: nothing of the call is left.
  KronPart(KronJob job, const PairJob& place, const KronTools& tools, bool is_whole);
  const KronJob& job() const { return job_; }
  const KronProgram& program() const { return *program_; }
  void get_kernels(const PairJob& place, const KronTools& tools);
  KronAddresses addresses() const;

 private:
  void place_between(KronProgram& program) const;
  /// Whether out can hold what this pass leaves.
  bool fits_out(const plan::KronGpuPass& pass) const;
  bool is_aligned(const KronArray& array) const;
  bool reads() const { return job_.k != 0 && job_.alpha != 0; }
  std::int64_t rows() const { return job_.row_count / columns_; }
  /// An array before or after a pass over an axis of this extent.
  KronSide side_of(const KronArray& array, std::int64_t extent, std::int64_t right) const;
  KronSide buffer_side(std::int64_t extent, std::int64_t right) const;
  /// `pass` is null where no factor is multiplied.
  void walk(KronArguments& a, const KronArray* from, const KronArray* to, const plan::KronGpuPass* pass,
            std::int64_t from_size, std::int64_t to_size) const;
  void set_pass(KronProgram& program, std::size_t index) const;
  void set_finish(KronProgram& program) const;

  KronJob job_;
  std::int64_t columns_ = 1;
  std::string key_;  // of the program
  std::shared_ptr<const KronProgram> program_;
};

/// Where a pass reads and where it writes.
int source_of(const KronProgram& program, std::size_t index) {
  return index == 0 ? kKronX : program.between[index - 1];
}
int target_of(const KronProgram& program, std::size_t index) {
  if (index + 1 < program.plan.passes.size()) return program.between[index];
  return program.copies ? 0 : kKronOut;
}

KronPart::KronPart(KronJob job, const PairJob& place, const KronTools& tools, bool is_whole)
    : job_(std::move(job)), key_(tools.key) {
  if (lies_by_columns(job_)) columns_ = job_.rows.back();
  if (!reads()) {
    program_ = std::make_shared<KronProgram>();
    return;
  }
  plan::KronGpuProblem problem;
  problem.dtype = job_.dtype;
  problem.type = job_.type();
  for (const KronFactor& factor : job_.factors) problem.factors.push_back({factor.p, factor.q});
  problem.items = job_.items;
  problem.rows = rows();
  problem.columns = columns_;
  problem.vectors_in = is_aligned(job_.x);
  problem.vectors_out = is_aligned(job_.out) && (job_.y.data == nullptr || is_aligned(job_.y));
  problem.combines = job_.alpha != 1 || job_.y.data != nullptr;
  const CudaDevice& hardware = place.hardware();
  problem.capability = hardware.capability();
  problem.multiprocessors = hardware.multiprocessors;
  problem.shared_per_block = hardware.shared_per_block;
  problem.own_costs = &tools.costs.kron;
  // Making a plan, and finding its kernels by their texts, take longer than a small product does.
  if (!is_whole) key_ += part_key(problem, job_);
  const bool of_this_device = place.rehearsal() == nullptr || place.rehearsal()->device == nullptr;
  program_ = of_this_device ? tools.programs.find(key_) : nullptr;
  if (program_) return;
  KronProgram program = plan_program(problem, job_, tools.plan(problem, place));
  place_between(program);
  program.buffer_bytes = checked_product({job_.items, rows(), program.plan.widest,
                                          static_cast<std::int64_t>(size_of(job_.type()))});
  program_ = std::make_shared<KronProgram>(std::move(program));
}

bool KronPart::fits_out(const plan::KronGpuPass& pass) const {
  const bool is_read = job_.y.data != nullptr && job_.y.data == job_.out.data;
  return job_.type() == job_.dtype && !is_read && is_aligned(job_.out) &&
         pass.place.left * pass.q * pass.place.right <= job_.j * columns_;
}

/// Places results from the last pass to the first. A pass reads and writes the same memory only where blocks replace
/// what they read.
void KronPart::place_between(KronProgram& program) const {
  const std::vector<plan::KronGpuPass>& all = program.plan.passes;
  const auto may_replace = [&](std::size_t index) {
    return all[index].p == all[index].q && std::visit([](const auto& kernel) { return kernel.whole(); },
                                                      all[index].kernel);
  };
  program.buffers = program.copies ? 1 : 0;
  program.between.assign(all.size() - 1, kKronOut);
  int behind = kKronOut;
  for (std::size_t index = all.size() - 1; index-- > 0; behind = program.between[index]) {
    const bool x_is_read = index == 0 && job_.in_place && !may_replace(0);
    if (fits_out(all[index]) && !x_is_read && (behind != kKronOut || may_replace(index + 1))) continue;
    program.between[index] = behind == 0 ? 1 : 0;
    program.buffers = std::max(program.buffers, program.between[index] + 1);
  }
}

/// Whether rows, with their columns as a last axis, are whole in memory and begin at vectors.
bool KronPart::is_aligned(const KronArray& array) const {
  const auto element = static_cast<std::int64_t>(size_of(job_.dtype));
  const bool whole = columns_ == 1 ? array.stride == 1 : array.row_strides.back() == 1 && array.stride == columns_;
  if (!whole || reinterpret_cast<std::uintptr_t>(array.data) % kVectorBytes != 0) return false;
  const auto steps = [&](const std::vector<std::int64_t>& strides, const std::vector<std::int64_t>& extents,
                         std::size_t axes) {
    for (std::size_t axis = 0; axis < axes; ++axis)
      if (extents[axis] > 1 && strides[axis] * element % kVectorBytes != 0) return false;
    return true;
  };
  return steps(array.outer_strides, job_.outer, job_.outer.size()) &&
         steps(array.row_strides, job_.rows, job_.rows.size() - (columns_ > 1 ? 1 : 0));
}

void KronPart::get_kernels(const PairJob& place, const KronTools& tools) {
  if (program_->passes.size() == program_->plan.passes.size() && reads()) return;
  KronProgram program = *program_;
  const bool quickly = tools.quickly && place.rehearsal() == nullptr;
  const std::vector<Kernel> kernels = kron_kernels(program.plan.passes, place, quickly);
  program.passes.resize(kernels.size());
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    program.passes[i].kernel = kernels[i];
    if (auto* chain = std::get_if<plan::KronChain>(&program.plan.passes[i].kernel);
        chain != nullptr && chain->asks() && kernels[i])
      chain->at_once = kernels[i].function->clusters_at_once(chain->cluster, static_cast<int>(chain->threads()),
                                                             chain->shared_bytes());
    set_pass(program, i);
  }
  if (!reads() || program.copies) {
    program.finish.kernel = kron_finish_kernel(job_.dtype, place);
    set_finish(program);
  }
  program_ = std::make_shared<KronProgram>(std::move(program));
  if (reads() && is_kept(place) && !program_->is_quick()) program_ = tools.programs.get(key_, [&] { return program_; });
}

KronSide KronPart::side_of(const KronArray& array, std::int64_t extent, std::int64_t right) const {
  KronSide side{};
  const std::int64_t behind = right / columns_, column = array.row_strides.back();
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

KronSide KronPart::buffer_side(std::int64_t extent, std::int64_t right) const {
  KronSide side{};
  side.axis = right;
  side.left = extent * right;
  side.columns = side.behind = 1;
  return side;
}

/// Steps along items and rows; buffers have neither strides nor gaps, and rows of `size` elements.
void KronPart::walk(KronArguments& a, const KronArray* from, const KronArray* to, const plan::KronGpuPass* pass,
                    std::int64_t from_size, std::int64_t to_size) const {
  const auto axes = static_cast<std::ptrdiff_t>(job_.rows.size()) - (columns_ > 1 ? 1 : 0);
  const int factors = pass != nullptr ? pass->count : 0;
  BatchWalk items, rows;
  items.extent = job_.outer;
  items.steps.reserve(static_cast<std::size_t>(3 + factors));
  rows.extent.assign(job_.rows.begin(), job_.rows.begin() + axes);
  rows.steps.reserve(3);
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
  for (int i = 0; i < factors; ++i)
    items.steps.push_back(job_.factors[static_cast<std::size_t>(pass->first + i)].outer_strides);
  items.merge(job_.op);
  rows.merge(job_.op);
  a.items = items.axes();
  a.rows = rows.axes();
  std::size_t array = 0;
  for (KronSide* side : {&a.from, &a.to, &a.y}) {
    items.write(array, side->item_step);
    rows.write(array++, side->row_step);
  }
  for (int i = 0; i < factors; ++i) {
    const KronFactor& factor = job_.factors[static_cast<std::size_t>(pass->first + i)];
    a.factors[i].p_stride = factor.p_stride;
    a.factors[i].q_stride = factor.q_stride;
    items.write(array++, a.factors[i].item_step);
  }
  a.item_count = job_.items;
  a.row_count = this->rows();
}

void KronPart::set_pass(KronProgram& program, std::size_t index) const {
  const plan::KronGpuPass& pass = program.plan.passes[index];
  const std::int64_t left = pass.place.left, right = pass.place.right;
  const bool is_last = index + 1 == program.plan.passes.size() && !program.copies;
  KronLaunch& launch = program.passes[index];
  KronArguments& a = launch.arguments;
  a.from = index == 0 ? side_of(job_.x, pass.p, right) : buffer_side(pass.p, right);
  a.to = is_last ? side_of(job_.out, pass.q, right) : buffer_side(pass.q, right);
  const bool is_final = std::visit([](const auto& kernel) { return kernel.types.final; }, pass.kernel);
  launch.adds = is_final && job_.y.data != nullptr;
  if (launch.adds) a.y = side_of(job_.y, pass.q, right);
  const auto array_at = [&](int place) {
    return place == kKronX ? &job_.x : place == kKronOut ? &job_.out : nullptr;
  };
  walk(a, array_at(source_of(program, index)), array_at(target_of(program, index)), &pass, left * pass.p * right,
       left * pass.q * right);
  a.left = left;
  a.right = right;
  a.alpha = job_.alpha;
  a.beta = job_.beta;
  std::visit(
      [&](const auto& kernel) {
        launch.blocks = kernel.blocks(pass.place);
        launch.threads = kernel.threads();
        launch.shared_bytes = kernel.shared_bytes();
      },
      pass.kernel);
}

void KronPart::set_finish(KronProgram& program) const {
  KronArguments& a = program.finish.arguments;
  program.finish.adds = job_.y.data != nullptr;
  if (program.copies) a.from = buffer_side(job_.j, columns_);
  a.to = side_of(job_.out, job_.j, columns_);
  if (program.finish.adds) a.y = side_of(job_.y, job_.j, columns_);
  for (KronSide* side : {&a.from, &a.to, &a.y}) side->left = side->axis;
  walk(a, nullptr, &job_.out, nullptr, job_.j * columns_, 0);
  a.left = job_.j;
  a.right = columns_;
  a.alpha = job_.alpha;
  a.beta = job_.beta;
  const std::int64_t count = job_.items * job_.row_count * job_.j;
  program.finish.blocks = std::min(ceil_div(count, kFinishThreads), kMostBlocks);
  program.finish.threads = kFinishThreads;
}

KronAddresses KronPart::addresses() const {
  KronAddresses addresses{job_.x.data, job_.y.data, job_.out.data, {}};
  addresses.factors.reserve(job_.factors.size());
  for (const KronFactor& factor : job_.factors) addresses.factors.push_back(factor.data);
  return addresses;
}

void start(const KronLaunch& launch, const PairJob& place, char* from, char* to, const KronAddresses& arrays,
           const plan::KronGpuPass* pass) {
  KronArguments a = launch.arguments;
  a.from.data = from;
  a.to.data = to;
  if (launch.adds) a.y.data = arrays.y;
  const int first = pass != nullptr ? pass->first : 0, count = pass != nullptr ? pass->count : 0;
  for (int i = 0; i < count; ++i) a.factors[i].data = arrays.factors[static_cast<std::size_t>(first + i)];
  cuda::launch(launch.kernel, place, {launch.blocks}, launch.threads, launch.shared_bytes, a);
}

void start_passes(const KronProgram& program, const PairJob& place, const KronAddresses& arrays,
                  std::array<char*, 2> buffers) {
  const auto address = [&](int at) {
    return at == kKronX ? arrays.x : at == kKronOut ? arrays.out : buffers[static_cast<std::size_t>(at)];
  };
  for (std::size_t index = 0; index < program.passes.size(); ++index)
    start(program.passes[index], place, address(source_of(program, index)), address(target_of(program, index)), arrays,
          &program.plan.passes[index]);
  if (program.passes.empty()) start(program.finish, place, nullptr, arrays.out, arrays, nullptr);
  else if (program.copies) start(program.finish, place, buffers[0], arrays.out, arrays, nullptr);
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
void add_parts(KronJob job, const PairJob& place, const KronTools& tools, std::deque<KronPart>& parts,
               bool is_whole = true) {
  const auto split = [&](bool of_rows, std::size_t axis, std::int64_t size) {
    const std::int64_t extent = (of_rows ? job.rows : job.outer)[axis];
    for (std::int64_t first = 0; first < extent; first += size)
      add_parts(slice(job, of_rows, axis, first, std::min(size, extent - first)), place, tools, parts, false);
  };
  if (job.outer.size() > MERCER_MAX_AXES) return split(false, 0, 1);
  if (job.rows.size() > MERCER_MAX_AXES) return split(true, 0, 1);
  KronPart& part = parts.emplace_back(std::move(job), place, tools, is_whole);
  const double bytes = static_cast<double>(part.program().buffer_bytes) * part.program().buffers;
  if (bytes > static_cast<double>(tools.costs.part_bytes)) {
    job = part.job();
    for (const bool of_rows : {false, true}) {
      const auto& extents = of_rows ? job.rows : job.outer;
      for (std::size_t axis = 0; axis < extents.size(); ++axis) {
        if (extents[axis] <= 1) continue;
        const double fits = static_cast<double>(extents[axis]) * static_cast<double>(tools.costs.part_bytes) / bytes;
        parts.pop_back();
        return split(of_rows, axis, std::max<std::int64_t>(static_cast<std::int64_t>(fits), 1));
      }
    }
  }
}

}  // namespace

void kron_matmul(KronJob job, const KronTools& tools) {
  const PairJob place = place_of(job);
  const JobScope scope(place);
  std::deque<KronPart> parts;
  add_parts(std::move(job), place, tools, parts);
  Workspace workspace;
  std::array<std::int64_t, 2> most{}, places{};
  for (KronPart& part : parts) {
    part.get_kernels(place, tools);
    for (int buffer = 0; buffer < part.program().buffers; ++buffer)
      most[static_cast<std::size_t>(buffer)] =
          std::max(most[static_cast<std::size_t>(buffer)], part.program().buffer_bytes);
  }
  for (std::size_t buffer = 0; buffer < most.size(); ++buffer) places[buffer] = workspace.add(most[buffer]);
  if (workspace.bytes() > 0 && !workspace.take(place)) return;
  for (const KronPart& part : parts)
    start_passes(part.program(), place, part.addresses(),
                 {workspace.at<char>(places[0]), workspace.at<char>(places[1])});
}

void kron_matmul_again(const KronProgram& program, const PairJob& place, const KronAddresses& arrays) {
  const JobScope scope(place);
  Workspace workspace;
  std::array<std::int64_t, 2> places{};
  for (int buffer = 0; buffer < program.buffers; ++buffer)
    places[static_cast<std::size_t>(buffer)] = workspace.add(program.buffer_bytes);
  if (workspace.bytes() > 0 && !workspace.take(place)) return;
  start_passes(program, place, arrays, {workspace.at<char>(places[0]), workspace.at<char>(places[1])});
}

}  // namespace mercer::cuda
