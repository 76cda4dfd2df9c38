// Gradient fields: the values of the pairs of some rows first, then φ contracted over n, rows by rows.
#include <algorithm>
#include <deque>

#include "backend/cuda/gradient/few_features.h"
#include "backend/cuda/gradient/field_contraction.h"
#include "backend/cuda/gradient/masked_field.h"
#include "backend/cuda/gradient/rank_field.h"
#include "backend/cuda/gradient/stored_sums.h"
#include "backend/cuda/pairs/operations.h"
#include "backend/cuda/pairs/pair_values.h"
#include "core/integers.h"
#include "plan/gpu/value_products.h"

namespace mercer::cuda {
namespace {

constexpr std::int64_t kFieldThreads = 256, kPadding = 128;
constexpr std::int64_t kPartsOfValues = 4;   // that values times v take at once: launches want many tiles
constexpr std::int64_t kMostBlocks = 65535;  // of rows, of which a grid has the second axis

/// Whether kernels that take 16 bytes of a row at once can read an array, of all batch items, where it is.
bool has_whole_rows(const BatchedArray& array, std::int64_t columns, std::int64_t row_stride, std::int64_t col_stride) {
  constexpr std::int64_t kBytes = 16, kFloats = 4;
  const std::vector<std::int64_t>& steps = array.batch_strides;
  return array.dtype == Dtype::float32 && col_stride == 1 && row_stride % kFloats == 0 && columns % kFloats == 0 &&
         std::all_of(steps.begin(), steps.end(), [](std::int64_t step) { return step % kFloats == 0; }) &&
         reinterpret_cast<std::uintptr_t>(array.data) % kBytes == 0;
}

/// What is read where it is.
struct InPlace {
  bool amplitude = false, x = false;
  std::int64_t step = 0;  // from one row of the amplitude to the next, or column
  InPlace(const PairKernels* pairs, const FieldKernels* field, const PairJob& job, const FieldJob& operands) {
    const JobOperand& own = operands.amplitude;
    plan::StoredValues lie = plan::StoredValues::padded;
    if (pairs == nullptr && own.array.data != nullptr && job.type == Dtype::float32) lie = lie_of(job, own);
    if (field != nullptr && field->plan->problem.stored.tile)
      lie = field->plan->problem.stored.lie;
    else if (lie == plan::StoredValues::columns) lie = plan::StoredValues::padded;
    amplitude = lie != plan::StoredValues::padded;
    step = lie == plan::StoredValues::columns ? own.col_stride : own.row_stride;
    x = job.type == Dtype::float32 &&
        has_whole_rows(job.x.points, job.features, job.x.point_stride, job.x.feature_stride);
  }
};

/// Points z of a batch item that are contracted together; the last range may have less. Parts are those of the first
/// one: scratch memory is.
struct FieldRange {
  std::int64_t first = 0, count = 0, all = 0;
  std::int64_t rows = 0;  // m of a part; 0: as memory allows
  bool several() const { return count < all; }  // there are other ranges
};

/// What is contracted: the points of the pairs, or v, with which no factor reads x.
PairJob contraction_of(const PairJob& job, const FieldJob& operands) {
  PairJob own = job;
  if (!operands.has_v()) return own;
  own.z.points = operands.v.array;
  own.z.point_stride = operands.v.row_stride;
  own.z.feature_stride = operands.v.col_stride;
  own.x.points = {};
  own.features = operands.columns;
  own.same_points = false;
  return own;
}

/// The fields of a gradient: its own, and an extra one, of the same values of the pairs, or null.
struct FieldsOfPairs {
  const FieldKernels *own, *extra;

  template <class Use>
  void each(const FieldJob& operands, const Use& use) const {
    use(*own, FieldResult{operands.out, operands.out_output_stride, operands.out_row_stride,
                          operands.out_feature_stride});
    if (extra != nullptr)
      use(*extra, FieldResult{operands.extra.data, 0, operands.extra.second_stride, operands.extra.first_stride});
  }
};

/// One range of one batch item of a gradient.
class FieldLaunch {
 public:
  /// `job`: what is contracted with the values of the pairs of `pair_job`.
  FieldLaunch(const PairKernels* pairs, const FieldsOfPairs& fields, const PairJob& pair_job, const PairJob& job,
              const FieldJob& operands, InPlace in_place, const FieldRange& range, Workspace& workspace)
      : field_(*fields.own),
        plan_(*field_.plan),
        job_(job),
        operands_(operands),
        in_place_(in_place),
        adds_(range.first > 0),
        ends_(range.first + range.count >= range.all),
        workspace_(workspace),
        params_({&plan_.problem.field.params, &plan_.programs.uniforms, plan_.problem.field.uniforms.size()}, job,
                workspace) {
    size_ = static_cast<std::int64_t>(size_of(job.type));
    planes_ = plan_.problem.planes;
    ld_ = round_up(job.z.count, kPadding);
    const plan::StoredSums* sums = pairs == nullptr ? nullptr : pairs->plan->problem.gradient.stored_sums.get();
    if (sums != nullptr) before_ = sums->planes_before();
    std::int64_t operand_bytes = 0, tile_rows = plan_.tile_r();
    fields.each(operands, [&](const FieldKernels& field, const FieldResult&) {
      operand_bytes += FieldContraction::row_bytes(field, job, range.count);
      tile_rows = std::min<std::int64_t>(tile_rows, field.plan->tile_r());
      is_linear_ |= field.plan->is_linear();
      reads_x_rows_ |= field.plan->is_linear() && field.plan->of_differences();
      reads_row_ |= field.plan->reads.row;
      reads_col_ |= field.plan->reads.col;
      reads_weights_ |= field.plan->reads.weights;
    });
    const bool stores = before_ + planes_ > 0 && !in_place_.amplitude;
    // Operands of all rows at once where they are small; of very many points they are made part by part.
    const bool together = operand_bytes <= job.part_bytes / std::max<std::int64_t>(1, job.x.count);
    const std::int64_t planes_bytes = (before_ + planes_) * round_up(range.count, kPadding) * size_;
    std::int64_t row_bytes = (stores ? planes_bytes : 0) + (together ? 0 : operand_bytes);
    if (operands.has_v()) row_bytes = ceil_div(row_bytes, kPartsOfValues);
    const std::int64_t fitting = row_bytes > 0 ? rows_of_part(job, row_bytes) : job.x.count;
    // The rows of a range are reckoned without the other planes.
    rows_ = range.rows == 0 ? fitting : before_ > 0 ? std::min(range.rows, fitting) : range.rows;
    rows_ = std::min(rows_, kMostBlocks * tile_rows / kPadding * kPadding);
    if (operands.has_v() && range.rows == 0) rows_ = alike_rows(rows_);
    operand_rows_ = together ? job.x.count : rows_;
    if (pairs) pairs_.emplace(*pairs, pair_job, rows_, workspace);
    if (operands.has_rows() || has_ones()) weights_ = pair_weight_kernels(job);
    lay_out_panels(sums);
    if (sums != nullptr) sums_.emplace(*pairs, job, operands, rows_, factor_rows_, factor_columns_, workspace);
    if (stores) pair_place_ = workspace.add((before_ + planes_) * rows_ * ld_ * size_) + before_ * rows_ * ld_ * size_;
    fields.each(operands, [&](const FieldKernels& field, const FieldResult& result) {
      contractions_.emplace_back(field, job, result, operands.results(), FieldRows{rows_, operand_rows_},
                                 RangePlace{adds_, range.several()}, workspace);
    });
  }

  void run() {
    for (const PlainPanel* panel :
         {&x_, &z_, &coef_, &coef_rows_, &x_rows_, &row_, &col_, &w_, &factor_rows_, &factor_columns_})
      if (panel->array.data != nullptr) pack(*panel, job_, workspace_);
    if (has_ones() && job_.z.count > 0) {
      write_ones(coef_.place, coef_.ld * job_.z.count);
      if (is_linear_) write_ones(coef_rows_.place, coef_rows_.ld);
    }
    for (FieldContraction& field : contractions_)
      field.prepare(arguments(0, job_.x.count), coef_rows_, point_rows());
    if (pairs_) pairs_->prepare(workspace_);
    if (sums_) sums_->prepare(workspace_);
    params_.run(field_.uniforms, workspace_);
    for (std::int64_t first = 0; first < job_.x.count; first += rows_) {
      const std::int64_t rows = std::min(rows_, job_.x.count - first);
      if (first % operand_rows_ == 0)
        for (const FieldContraction& field : contractions_)
          field.prepare_rows(arguments(first, std::min(operand_rows_, job_.x.count - first)));
      make_pair_values(first, rows);
      for (FieldContraction& field : contractions_) field.run(arguments(first, rows), first);
    }
    if (scales() && ends_ && job_.z.count > 0)
      for (const FieldContraction& field : contractions_) scale_rows(field.result());
  }

 private:
  /// Rows of a part, so many at most, where all parts have about as many.
  std::int64_t alike_rows(std::int64_t most) const {
    constexpr std::int64_t kCluster = 256;  // of the tiles
    const std::int64_t parts = ceil_div(job_.x.count, std::max<std::int64_t>(1, most));
    return parts == 0 ? most : std::min(most, round_up(ceil_div(job_.x.count, parts), kCluster));
  }

  /// Weights of the pairs, made some rows at a time, are the amplitude; the only output has coefficients of one, as
  /// where the caller gives the amplitude alone.
  bool weighs() const { return operands_.has_rows() && operands_.outputs > 1; }
  bool has_ones() const { return weighs() || operands_.by_matrix || plan_.linear_of_product(); }
  /// A weight of each row is multiplied with the result.
  bool scales() const { return operands_.has_rows() && operands_.outputs == 1; }

  void write_ones(std::int64_t place, std::int64_t count) const {
    PairWeightArguments a{};
    a.out = workspace_.at<>(place);
    a.n = count;
    launch(sibling(weights_, "write_ones", job_), job_, {ceil_div(count, kFieldThreads)}, kFieldThreads, 0, a);
  }

  void scale_rows(const FieldResult& of) const {
    PairWeightArguments a{};
    a.rows = workspace_.at<>(factor_rows_.place);
    a.out = of.data;
    a.m = job_.x.count;
    a.n = job_.features;
    a.out_row = of.row_stride;
    a.out_column = of.feature_stride;
    launch(sibling(weights_, "scale_rows", job_), job_, {ceil_div(a.m * a.n, kFieldThreads)}, kFieldThreads, 0, a);
  }

  void lay_out_panels(const plan::StoredSums* sums) {
    x_ = {job_.x.points, job_.x.count, job_.features, job_.x.point_stride, job_.x.feature_stride, 0, 0, {}};
    z_ = {job_.z.points, job_.z.count, job_.features, job_.z.point_stride, job_.z.feature_stride, 0, 0, {}};
    // Outputs along the rows: a thread reads the coefficients of one n together.
    const BatchedArray coefs = weighs() ? BatchedArray{} : operands_.coef.array;  // without, room for ones
    const std::int64_t outputs = operands_.results();
    coef_ = {coefs, outputs, job_.z.count, operands_.coef.row_stride, operands_.coef.col_stride, 0, 0, {}};
    for (PlainPanel* panel : {&z_, &coef_}) lay_out(*panel, job_, workspace_);
    if (!operands_.has_v()) lay_out(x_, job_, workspace_);
    if (is_linear_) {
      coef_rows_ = {coefs, job_.z.count, outputs, operands_.coef.col_stride, operands_.coef.row_stride, 0, 0, {}};
      lay_out(coef_rows_, job_, workspace_);
      if (reads_x_rows_ && !in_place_.x) {
        x_rows_ = {job_.x.points, job_.features, job_.x.count, job_.x.feature_stride, job_.x.point_stride, 0, 0, {}};
        lay_out(x_rows_, job_, workspace_);
      }
    }
    if (operands_.has_rows())
      factor_rows_ = {operands_.rows.array, job_.x.count, operands_.outputs, operands_.rows.row_stride,
                      operands_.rows.col_stride, 0, 0, {}};
    if (weighs() || (sums != nullptr && !operands_.by_matrix))
      factor_columns_ = {operands_.coef.array, job_.z.count, operands_.outputs, operands_.coef.col_stride,
                         operands_.coef.row_stride, 0, 0, {}};
    const bool reads_row = reads_row_ || (sums != nullptr && sums->reads_row);
    const bool reads_col = reads_col_ || (sums != nullptr && sums->reads_col);
    if (reads_row) row_ = {job_.x.user, job_.x.count, 1, job_.x.user_stride, 0, 0, 0, {}};
    if (reads_col) col_ = {job_.z.user, job_.z.count, 1, job_.z.user_stride, 0, 0, 0, {}};
    if (reads_weights_) w_ = {job_.weights, job_.features, 1, job_.weight_stride, 0, 0, 0, {}};
    for (PlainPanel* panel : {&row_, &col_, &w_, &factor_rows_, &factor_columns_})
      if (panel->array.data != nullptr) lay_out(*panel, job_, workspace_);
  }

  PointRows point_rows() const {
    if (!reads_x_rows_) return {};
    if (in_place_.x) return {job_.x.points.data, job_.x.point_stride};
    return {workspace_.at<>(x_rows_.place), x_rows_.ld};
  }

  void make_pair_values(std::int64_t first, std::int64_t rows) {
    if (pairs_) pairs_->store(workspace_, {first, 0}, rows, plane(-before_), ld_, rows_ * ld_);
    if (weighs() && job_.z.count > 0) weigh(first, rows);
    pack_amplitude(first, rows);
    if (sums_) sums_->run(stored_planes(first), first, rows, adds_, workspace_);
  }

  void pack_amplitude(std::int64_t first, std::int64_t rows) const {
    if (operands_.amplitude.array.data == nullptr || in_place_.amplitude) return;
    // The amplitude, the last plane, is packed like points: n along the rows.
    PlainPanel part{operands_.amplitude.array, job_.z.count, rows, operands_.amplitude.col_stride,
                    operands_.amplitude.row_stride, ld_, pair_place_ + (planes_ - 1) * rows_ * ld_ * size_, {}};
    part.array.data = static_cast<const char*>(part.array.data) +
                      first * operands_.amplitude.row_stride * static_cast<std::int64_t>(size_of(part.array.dtype));
    pack(part, job_, workspace_);
  }

  char* plane(std::int64_t index) const { return workspace_.at<char>(pair_place_) + index * rows_ * ld_ * size_; }

  StoredPlanes stored_planes(std::int64_t first) const {
    return {plane(-before_),
            weighs() || operands_.by_matrix ? plane(planes_ - 1) : nullptr,
            workspace_.at<char>(row_.place) + first * size_,
            workspace_.at<>(col_.place),
            ld_,
            rows_ * ld_};
  }

  void weigh(std::int64_t first, std::int64_t rows) const {
    constexpr std::int64_t kTile = 64;
    PairWeightArguments a{};
    a.rows = workspace_.at<char>(factor_rows_.place) + first * size_;
    a.columns = workspace_.at<>(factor_columns_.place);
    a.out = plane(planes_ - 1);
    a.m = rows;
    a.n = job_.z.count;
    a.rows_ld = factor_rows_.ld;
    a.columns_ld = factor_columns_.ld;
    a.out_row = ld_;
    a.factors = static_cast<int>(operands_.outputs);
    launch(weights_, job_, {ceil_div(a.n, kTile), ceil_div(rows, kTile)}, kFieldThreads, 0, a);
  }

  /// Arguments for rows `first` …, all outputs.
  FieldArguments arguments(std::int64_t first, std::int64_t rows) const {
    FieldArguments a{};
    a.x = workspace_.at<char>(x_.place) + first * size_;
    a.z = workspace_.at<>(z_.place);
    a.row = workspace_.at<char>(row_.place) + first * size_;
    a.col = workspace_.at<>(col_.place);
    a.w = workspace_.at<>(w_.place);
    a.pair = in_place_.amplitude ? static_cast<const char*>(operands_.amplitude.array.data) +
                                       first * operands_.amplitude.row_stride * size_
                                 : workspace_.at<char>(pair_place_);
    a.coef = workspace_.at<>(coef_.place);
    a.m = rows;
    a.n = job_.z.count;
    a.x_ld = x_.ld;
    a.z_ld = z_.ld;
    a.coef_ld = coef_.ld;
    a.pair_row = in_place_.amplitude ? in_place_.step : ld_;
    a.pair_plane = rows_ * ld_;
    a.k = static_cast<int>(job_.features);
    a.outputs = static_cast<int>(operands_.results());
    params_.write_narrow(a.params, a.numbers, workspace_);
    return a;
  }

  const FieldKernels& field_;  // whose parameters, and values of them, the extra one has too
  const plan::GpuFieldPlan& plan_;
  const PairJob& job_;
  const FieldJob& operands_;
  const InPlace in_place_;
  const bool adds_, ends_;
  Workspace& workspace_;
  ParamTable params_;
  std::optional<PairValues> pairs_;
  std::optional<StoredSumsLaunch> sums_;
  std::deque<FieldContraction> contractions_;
  Kernel weights_;
  PlainPanel x_, z_, coef_, coef_rows_, x_rows_, row_, col_, w_, factor_rows_, factor_columns_;
  bool is_linear_ = false, reads_x_rows_ = false, reads_row_ = false, reads_col_ = false, reads_weights_ = false;
  std::int64_t size_ = 4, planes_ = 0, before_ = 0, ld_ = 0, rows_ = 0, operand_rows_ = 0, pair_place_ = 0;
};

FieldJob at(const FieldJob& operands, const PairJob& job, std::int64_t index) {
  FieldJob one = operands;
  for (auto [array, from] :
       {std::pair(&one.coef.array, &operands.coef.array), std::pair(&one.amplitude.array, &operands.amplitude.array),
        std::pair(&one.rows.array, &operands.rows.array), std::pair(&one.v.array, &operands.v.array)}) {
    if (array->data == nullptr) continue;
    array->data = static_cast<const char*>(from->data) +
                  batch_offset(job.batch, from->batch_strides, index) * static_cast<std::int64_t>(size_of(from->dtype));
    array->batch_strides.clear();
  }
  const auto output = [&](void* out, const std::vector<std::int64_t>& strides) -> void* {
    const std::int64_t size = static_cast<std::int64_t>(size_of(job.type));
    return out == nullptr ? nullptr : static_cast<char*>(out) + batch_offset(job.batch, strides, index) * size;
  };
  one.out = output(operands.out, operands.out_batch_strides);
  one.sums.data = output(operands.sums.data, operands.sums.batch_strides);
  one.product.data = output(operands.product.data, operands.product.batch_strides);
  one.extra.data = output(operands.extra.data, operands.extra.batch_strides);
  return one;
}

/// Points z first … first + count - 1 of one batch item.
PairJob points_of(const PairJob& job, std::int64_t first, std::int64_t count) {
  PairJob range = job;
  range.same_points = job.same_points && count == job.z.count;
  range.z.points.data = shifted(job.z.points.data, first * job.z.point_stride, job.z.points.dtype);
  range.z.user.data = shifted(job.z.user.data, first * job.z.user_stride, job.z.user.dtype);
  range.z.index_offset += first;
  range.z.count = count;
  return range;
}
FieldJob points_of(const FieldJob& operands, std::int64_t first) {
  FieldJob range = operands;
  for (JobOperand* operand : {&range.coef, &range.amplitude})
    operand->array.data = shifted(operand->array.data, first * operand->col_stride, operand->array.dtype);
  range.v.array.data = shifted(range.v.array.data, first * range.v.row_stride, range.v.array.dtype);
  return range;
}

/// Points n of which some rows' values fit `job.part_bytes`.
std::int64_t points_of_part(const PairJob& job) {
  constexpr std::int64_t kLeast = 1024;
  const std::int64_t value = static_cast<std::int64_t>(size_of(job.type));
  return std::max(kLeast, job.part_bytes / (kPadding * value) / kPadding * kPadding);
}

plan::LinearSizes sizes_of(const plan::GpuFieldPlan& plan, const PairJob& job, const FieldJob& operands) {
  if (plan.doubles)
    return plan::double_sizes(job.x.count, job.z.count, job.features, operands.results(), plan.problem.planes,
                              job.part_bytes);
  if (operands.has_v())
    return plan::value_product_sizes(job.x.count, job.z.count, operands.columns, job.part_bytes,
                                     job.hardware().multiprocessors);
  return plan::linear_sizes(job.x.count, job.z.count, job.features, operands.results(), job.part_bytes);
}

/// Runs a launch that takes values of the pairs as they come. False where the call ends with the lay-out of its memory.
template <class Launch>
bool run_one(const PairKernels& pairs, const PairJob& job, const FieldJob& operands, Workspace& workspace) {
  const Launch field(pairs, job, operands, workspace);
  if (!workspace.take(job)) return false;
  field.run();
  return true;
}

/// One item of a batch, or a strip of it. False where the call ends with the lay-out of its memory.
struct FieldOfItem {
  const PairKernels* pairs;
  const FieldKernels *field, *extra;
  InPlace in_place;

  /// After so many bytes of the workspace, which are another's.
  bool run(const PairJob& one, const FieldJob& own, Workspace& workspace, std::int64_t kept) const {
    const auto begin = [&] {
      workspace.reuse();
      if (kept > 0) workspace.add(kept);
    };
    if (field == nullptr) {
      begin();
      return pairs->plan->problem.gradient.rank_field ? run_one<RankFieldLaunch>(*pairs, one, own, workspace)
                                                      : run_one<FewFeaturesField>(*pairs, one, own, workspace);
    }
    FieldRange range{0, one.z.count, one.z.count, 0};
    if (field->plan->is_linear()) {
      const plan::LinearSizes sizes = sizes_of(*field->plan, one, own);
      range = {0, sizes.points, one.z.count, sizes.rows};
    } else if (own.has_v()) {
      range.count = std::min(range.count, points_of_part(one));
    }
    for (; range.first == 0 || range.first < one.z.count; range.first += std::max<std::int64_t>(1, range.count)) {
      const std::int64_t count = std::min(range.count, one.z.count - range.first);
      const PairJob points = points_of(one, range.first, count);
      const FieldJob of_points = points_of(own, range.first);
      begin();
      const PairJob contraction = contraction_of(points, of_points);
      FieldLaunch launch(pairs, {field, extra}, points, contraction, of_points, in_place, range, workspace);
      if (!workspace.take(one)) return false;
      launch.run();
    }
    return true;
  }

  bool run_strips(const PairJob& one, const FieldJob& own, MaskedField& masked, Workspace& workspace) const {
    const std::int64_t flags = masked.bytes();
    std::int64_t bytes = 0;
    for (const MaskStrip& strip : masked.strips())
      bytes = std::max(bytes, scratch_bytes(part_of(one, strip), [&](const PairJob& part, Workspace& rehearsed) {
                         run(part, part_of(own, one, strip), rehearsed, 0);
                       }));
    workspace.reuse();
    workspace.add(flags);
    workspace.add(bytes);
    if (!workspace.take(one)) return false;
    masked.find(workspace.at<char>(0));
    for (const MaskStrip& strip : masked.strips()) {
      if (!run(part_of(one, strip), part_of(own, one, strip), workspace, flags)) return false;
      masked.mark(strip);
    }
    return true;
  }
};

}  // namespace

plan::StoredValues lie_of(const PairJob& job, const JobOperand& matrix) {
  if (has_whole_rows(matrix.array, job.z.count, matrix.row_stride, matrix.col_stride)) return plan::StoredValues::rows;
  const bool turned = has_whole_rows(matrix.array, job.x.count, matrix.col_stride, matrix.row_stride);
  return turned ? plan::StoredValues::columns : plan::StoredValues::padded;
}

void gradient(const PairKernels* pairs, const FieldKernels* field, const PairJob& job, const FieldJob& operands,
              const FieldKernels* extra) {
  const JobScope scope(job);
  const InPlace in_place(pairs, field, job, operands);
  Workspace workspace;
  for (std::int64_t index = 0; index < job.items; ++index) {
    const PairJob one = job.item(index);
    const FieldJob own = at(operands, job, index);
    MaskedField masked(pairs, field, one, own);
    const FieldOfItem whole{pairs, field, extra, in_place};
    const bool goes_on =
        masked.strips().empty() ? whole.run(one, own, workspace, 0) : whole.run_strips(one, own, masked, workspace);
    if (!goes_on) return;
  }
}

void product(const PairKernels& pairs, const FieldKernels& field, const PairJob& job, const JobOperand& v,
             std::int64_t columns, const JobMatrix& out) {
  FieldJob operands;
  operands.v = v;
  operands.columns = columns;
  operands.out = out.data;
  operands.out_row_stride = out.row_stride;
  operands.out_feature_stride = out.col_stride;
  operands.out_batch_strides = out.batch_strides;
  gradient(&pairs, &field, job, operands);
}

}  // namespace mercer::cuda
