#include "backend/cuda/gradient/field_products.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kOperandThreads = 1024;
constexpr std::int64_t kGroupFeatures = 16, kStagePoints = 64, kMarkFeatures = 64;
constexpr std::int64_t kCodePoints = 94 * kStagePoints;
/// Sums of 32 bits hold so many stages of signs of 64 times digits of 128.
constexpr std::int64_t kMostDigitStages = 4000;
constexpr std::int64_t kRowThreads = 256, kBlockRows = 128, kJudgedRows = 64;

}  // namespace

std::int64_t FieldProducts::row_bytes(const plan::GpuFieldPlan& plan, const PairJob& job, std::int64_t points) {
  if (!plan.of_signs()) return 0;
  return ceil_div(points, kCodePoints) * job.features * static_cast<std::int64_t>(sizeof(unsigned short));
}

FieldProducts::FieldProducts(const FieldKernels& kernels, const PairJob& job, std::int64_t outputs, std::int64_t rows,
                             Workspace& workspace)
    : kernels_(kernels), job_(job), outputs_(outputs), rows_(rows), pass_(kernels.plan->pass_outputs()),
      groups_(round_up(ceil_div(job.features, kGroupFeatures), std::int64_t{kernels.plan->product_groups()})),
      mark_groups_(ceil_div(job.features, kMarkFeatures)) {
  constexpr std::int64_t kFloat = sizeof(float);
  image_ = workspace.add(stages() * groups_ * (kStagePoints / 16) * kernels.plan->group_bytes());
  codes_ = workspace.add(rows * row_bytes(*kernels.plan, job, job.z.count));
  coefs_ = workspace.add(ceil_div(outputs, pass_) * coef_floats() * kFloat);
  marks_ = workspace.add(round_up(rows * mark_groups_, kFloat));
  if (!kernels.plan->has_units()) return;
  const std::int64_t columns = kernels.plan->product_columns();
  row_units_ = workspace.add(rows * kFloat);
  column_units_ = workspace.add(ceil_div(outputs, pass_) * columns * kFloat);
  // Ranges of n where rows alone do not fill the device.
  constexpr std::int64_t kMostRanges = 8;
  ranges_ = std::clamp<std::int64_t>(4 * job.hardware().multiprocessors / ceil_div(rows, kBlockRows), 1, kMostRanges);
  row_amplitudes_ = workspace.add(ranges_ * rows * static_cast<std::int64_t>(sizeof(RowAmplitudes)));
  row_sums_ = workspace.add(ranges_ * columns * rows * kFloat);
  left_ = workspace.add(rows * mark_groups_);
  if (kernels.plan->of_signs()) return;
  shifts_ = workspace.add(job.features * static_cast<std::int64_t>(sizeof(int)));
  refused_ = workspace.add(sizeof(unsigned));
}

std::int64_t FieldProducts::stages() const { return ceil_div(job_.z.count, kStagePoints); }

std::int64_t FieldProducts::coef_floats() const { return stages() * kStagePoints * kernels_.plan->product_columns(); }

std::int64_t FieldProducts::blocks(std::int64_t rows) const {
  return groups_ / kernels_.plan->product_groups() * ceil_div(rows, kernels_.plan->product_queries());
}

FieldProductArguments FieldProducts::arguments(const FieldArguments& field, const Workspace& workspace) const {
  FieldProductArguments a{};
  a.field = field;
  a.z_image = workspace.at<unsigned char>(image_);
  a.x_codes = workspace.at<unsigned short>(codes_);
  a.coefs = workspace.at<float>(coefs_);
  a.marks = workspace.at<unsigned char>(marks_);
  a.codes_ld = rows_;
  a.row_units = workspace.at<float>(row_units_);
  a.column_units = workspace.at<float>(column_units_);
  a.row_amplitudes = workspace.at<RowAmplitudes>(row_amplitudes_);
  a.row_sums = workspace.at<float>(row_sums_);
  a.left = workspace.at<unsigned char>(left_);
  a.power_shifts = workspace.at<int>(shifts_);
  a.refused = workspace.at<unsigned>(refused_);
  a.ranges = static_cast<int>(ranges_);
  a.groups = static_cast<int>(groups_);
  return a;
}

void FieldProducts::prepare(const FieldArguments& rows, const Workspace& workspace) const {
  const auto step = [&](const char* name) { return sibling(kernels_.contraction.operands, name, job_); };
  FieldProductArguments a = arguments(rows, workspace);
  if (job_.rehearsal() == nullptr)
    check_cuda(cuda_driver()->set_words_async(reinterpret_cast<CuPointer>(a.marks), 0,
                                              ceil_div(rows.m * mark_groups_, 4), job_.stream()),
               job_.op);
  if (kernels_.plan->of_signs()) {
    launch(step("write_points"), job_, {job_.features, ceil_div(job_.z.count, kCodePoints)}, kOperandThreads, 0, a);
  } else {
    const std::int64_t packs = stages() * groups_ * (kStagePoints / 16) * 64;
    const std::int64_t most = std::int64_t{8} * job_.hardware().multiprocessors;
    launch(step("write_points"), job_, {std::min(ceil_div(packs, kOperandThreads), most)}, kOperandThreads, 0, a);
    if (kernels_.plan->has_units()) measure_points(a);
  }
  for (std::int64_t o = 0; o < outputs_; o += pass_) {
    FieldProductArguments pass = a;
    pass.coefs += o / pass_ * coef_floats();
    pass.field.coef = static_cast<const float*>(rows.coef) + o;
    pass.field.outputs = static_cast<int>(std::min(pass_, outputs_ - o));
    launch(step("write_coefs"), job_, {ceil_div(coef_floats(), kOperandThreads)}, kOperandThreads, 0, pass);
    if (kernels_.plan->has_units()) measure_coefs(pass, o / pass_);
  }
}

void FieldProducts::measure_points(const FieldProductArguments& a) const {
  if (job_.rehearsal() != nullptr) return;
  check_cuda(cuda_driver()->set_words_async(reinterpret_cast<CuPointer>(a.refused), 0, 1, job_.stream()), job_.op);
  launch(sibling(kernels_.contraction.rows, "measure_points", job_), job_, {job_.features}, kRowThreads, 0, a);
}

void FieldProducts::measure_coefs(FieldProductArguments pass, std::int64_t number) const {
  if (job_.rehearsal() != nullptr) return;
  const std::int64_t columns = kernels_.plan->product_columns();
  pass.column_units += number * columns;
  check_cuda(cuda_driver()->set_words_async(reinterpret_cast<CuPointer>(pass.column_units), 0,
                                            static_cast<std::size_t>(columns), job_.stream()),
             job_.op);
  const Kernel measure{kernels_.contraction.rows.module, &kernels_.contraction.rows.module->function("measure_coefs")};
  launch(measure, job_, {columns, ranges_}, kRowThreads, 0, pass);
}

void FieldProducts::run_units(FieldProductArguments& a, std::int64_t splits) const {
  const plan::GpuFieldPlan& plan = *kernels_.plan;
  const Kernel examine = sibling(kernels_.contraction.rows, "examine_amplitudes", job_);
  launch(examine, job_, {ceil_div(a.field.m, kBlockRows), ranges_}, kRowThreads, 0, a);
  launch(kernels_.contraction.rows, job_, {ceil_div(a.field.m, kJudgedRows)}, kRowThreads, 0, a);
  launch(kernels_.contraction.units, job_, {blocks(a.field.m), splits}, plan.product_threads(),
         plan.product_shared_bytes(plan.product_stages(true), true), a);
  a.wanted = a.left;
}

void FieldProducts::run(const FieldArguments& part, std::int64_t first, std::int64_t pass, std::int64_t splits,
                        const unsigned char* wanted, const Workspace& workspace) const {
  FieldProductArguments a = arguments(part, workspace);
  a.wanted = wanted;
  if (kernels_.plan->of_signs()) a.x_codes += first;
  a.coefs += pass * coef_floats();
  a.marks += first * mark_groups_;
  a.column_units += pass * kernels_.plan->product_columns();
  if (kernels_.plan->has_units() && (!kernels_.plan->of_signs() || stages() / splits <= kMostDigitStages))
    run_units(a, splits);
  std::int64_t blocks_of_rows = blocks(part.m);
  if (kernels_.plan->products_are_fallback()) {
    const std::int64_t cluster = kernels_.plan->problem.contraction.cluster;
    blocks_of_rows = std::min(blocks_of_rows, job_.hardware().multiprocessors / cluster * cluster);
  }
  launch(kernels_.contraction.products, job_, {blocks_of_rows, splits}, kernels_.plan->product_threads(),
         kernels_.plan->product_shared_bytes(kernels_.plan->product_stages()), a);
}

const unsigned char* FieldProducts::marks(std::int64_t first, const Workspace& workspace) const {
  return workspace.at<unsigned char>(marks_) + first * mark_groups_;
}

}  // namespace mercer::cuda
