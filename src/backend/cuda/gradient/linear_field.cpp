#include "backend/cuda/gradient/linear_field.h"

#include <algorithm>

#include "core/integers.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kThreads = 256, kWarps = kThreads / 32, kFloat = sizeof(float);
constexpr std::int64_t kUnit = 32, kRowBytes = 128;      // of the image: points n, and bytes of a row
constexpr std::int64_t kChunkUnits = 32, kWarpRows = 16;  // of the kernels' blocks and warps
constexpr std::int64_t kPadding = 64, kMostRanges = 32;

}  // namespace

LinearField::LinearField(const FieldKernels& kernels, const PairJob& job, std::int64_t rows, Workspace& workspace)
    : kernels_(kernels), plan_(*kernels.plan), job_(job), pass_(plan_.linear_outputs()),
      units_(ceil_div(job.z.count, kUnit)), spread_ld_(units_ * kUnit), products_ld_(columns(pass_)) {
  const std::int64_t blocks = ceil_div(rows, kWarps * kWarpRows);
  ranges_ = std::clamp<std::int64_t>(4 * job.hardware().multiprocessors / blocks, 1, kMostRanges);
  row_side_ = lay_out(rows, workspace);
  column_side_ = lay_out(columns(pass_), workspace);
  state_ = workspace.add(sizeof(SplitState));
  centre_ = workspace.add(round_up(job.features, 4) * kFloat);  // which is read by four
  largest_ = workspace.add((job.features + pass_) * kFloat);
  spread_ = workspace.add(pass_ * spread_ld_ * kFloat);
  row_largest_ = workspace.add(ranges_ * row_side_.ld * kFloat);
  if (plan_.problem.stored.of_product) row_least_ = workspace.add(ranges_ * row_side_.ld * kFloat);
  lossy_ = workspace.add(sizeof(unsigned));
  row_spread_ = workspace.add(ranges_ * pass_ * row_side_.ld * kFloat);
  products_ = workspace.add(rows * products_ld_ * kFloat);
  marks_ = workspace.add(rows * ceil_div(job.features, MERCER_REGION));
  tile_marks_ = workspace.add(ceil_div(rows, MERCER_REGION) * ceil_div(columns(pass_), MERCER_REGION) *
                              static_cast<std::int64_t>(sizeof(unsigned)));
}

std::int64_t LinearField::columns(std::int64_t outputs) const {
  return outputs * plan::linear_columns(job_.features, plan_.of_differences());
}

LinearField::Side LinearField::lay_out(std::int64_t count, Workspace& workspace) const {
  Side side;
  side.ld = round_up(count, kPadding);
  side.image = workspace.add(side.ld * units_ * kRowBytes);
  side.norm = workspace.add(side.ld * kFloat);
  side.scale = workspace.add(side.ld * kFloat);
  return side;
}

LinearSide LinearField::side(const Side& side, std::int64_t count, const Workspace& workspace) const {
  return {workspace.at<unsigned char>(side.image), workspace.at<float>(side.norm), workspace.at<float>(side.scale),
          count, round_up(count, kPadding)};
}

LinearArguments LinearField::arguments(const FieldArguments& field, std::int64_t output,
                                       const Workspace& workspace) const {
  LinearArguments a{};
  a.field = field;
  a.state = workspace.at<SplitState>(state_);
  a.rows = side(row_side_, field.m, workspace);
  a.columns = side(column_side_, columns(field.outputs), workspace);
  a.coefs = coefs_ + output * coefs_ld_;
  a.centre = workspace.at<float>(centre_);
  a.largest = workspace.at<float>(largest_);
  a.spread = workspace.at<float>(spread_);
  a.row_largest = workspace.at<float>(row_largest_);
  a.row_least = workspace.at<float>(row_least_);
  a.lossy = workspace.at<unsigned>(lossy_);
  a.row_spread = workspace.at<float>(row_spread_);
  a.products = workspace.at<float>(products_);
  a.marks = workspace.at<unsigned char>(marks_);
  a.coefs_ld = coefs_ld_;
  a.spread_ld = spread_ld_;
  a.x_row = x_.step;
  a.products_ld = products_ld_;
  a.units = units_;
  a.ranges = static_cast<int>(ranges_);
  return a;
}

void LinearField::launch_step(const char* name, jit::Dim3 grid, LinearArguments& a) const {
  if (job_.rehearsal() != nullptr) return;
  launch_overlapping({kernels_.contraction.linear.module, &kernels_.contraction.linear.module->function(name)}, job_,
                     grid, kThreads, a, 0, Overlap::launch);
}

void LinearField::prepare(const FieldArguments& all, const PlainPanel& coefs, const PointRows& x,
                          const Workspace& workspace) {
  all_ = all;
  x_ = x;
  coefs_ = workspace.at<float>(coefs.place);
  coefs_ld_ = coefs.ld;
}

void LinearField::write_columns(const FieldArguments& all, std::int64_t output, const Workspace& workspace) {
  LinearArguments a = arguments(all, output, workspace);
  launch_step("find_field_centre", {ceil_div(job_.features, kWarps)}, a);
  launch_step("examine_columns", {ceil_div(job_.features + all.outputs, kWarps)}, a);
  if (plan_.of_differences()) launch_step("weigh_points", {ceil_div(spread_ld_, 32)}, a);
  launch_step("write_columns", {a.columns.ld / MERCER_IMAGE_ROWS, ceil_div(units_, kChunkUnits)}, a);
}

void LinearField::run(const FieldArguments& part, std::int64_t first, std::int64_t output,
                      const Workspace& workspace) {
  if (written_ != output) {
    FieldArguments all = all_;
    all.outputs = part.outputs;
    write_columns(all, output, workspace);
    written_ = output;
  }
  LinearArguments a = arguments(part, output, workspace);
  a.x_rows = static_cast<const float*>(x_.points) + first * x_.step;
  launch_step("examine_rows", {ceil_div(part.m, kWarps * kWarpRows), ranges_}, a);
  launch_step("write_rows", {a.rows.ld / MERCER_IMAGE_ROWS, ceil_div(units_, kChunkUnits)}, a);
  BilinearArguments products{};
  PairArguments& pairs = products.pairs;
  pairs.split.state = a.state;
  pairs.split.marks = workspace.at<unsigned>(tile_marks_);
  pairs.out.data = workspace.at<float>(products_);
  pairs.out.row = products_ld_;
  pairs.out.column = 1;
  pairs.members.count = 1;
  pairs.m = part.m;
  pairs.n = a.columns.count;
  pairs.x.ld = a.rows.ld;
  pairs.z.ld = a.columns.ld;
  products.x = {a.rows.image, a.rows.norm, a.rows.norm, a.rows.scale};
  products.z = {a.columns.image, a.columns.norm, a.columns.norm, a.columns.scale};
  products.units = units_;
  products.ranges = 1;
  products.x_end = a.rows.ld;
  products.z_end = a.columns.ld;
  launch_products(kernels_.contraction.linear_tile, *plan_.linear, job_, products,
                  ceil_div(pairs.n, plan_.linear->problem.product.columns));
  // As many warps for a row as it has outputs, up to all of a block's.
  const std::int64_t row_warps = pass_ > 4 ? kWarps : pass_ > 2 ? 4 : pass_;
  launch_step("finish_field", {ceil_div(part.m, kWarps / row_warps)}, a);
}

}  // namespace mercer::cuda
