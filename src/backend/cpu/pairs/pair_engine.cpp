#include "backend/cpu/pairs/pair_engine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "backend/cpu/pairs/choose_maxima.h"
#include "backend/cpu/pairs/second_look.h"
#include "core/error.h"
#include "ir/passes/safe_field.h"
#include "ir/passes/safe_norm.h"
#include "plan/promotion.h"

namespace mercer::cpu {

std::vector<double> with_uniforms(const ir::Program& uniforms, const std::vector<double>& params,
                                  std::int64_t features) {
  std::vector<double> values = params;
  if (uniforms.outputs.empty()) return values;
  std::vector<double> inputs;
  for (const ir::Input& input : uniforms.inputs)
    inputs.push_back(input.site == ir::Site::features ? static_cast<double>(features) : params[input.slot]);
  const std::vector<double> results = ir::run<double>(uniforms, inputs);
  values.insert(values.end(), results.begin(), results.end());
  return values;
}

const PairProgram& PairProgram::wide() const {
  wide_once_.call([this] {
    plan::PairProblem problem = plan().problem;
    if (!problem.again.empty()) problem.outputs = std::exchange(problem.again, {});
    for (Expr& output : problem.outputs) {
      output = ir::safe_powers(output);
      if (problem.type == Dtype::float64) output = ir::safe_norms(output);
    }
    problem.type = Dtype::float64;
    problem.block_columns = 0;
    wide_ = std::make_unique<const PairProgram>(plan::plan_pairs(problem));
  });
  return *wide_;
}

template <class T>
T PairProgram::output_below(T bound) const {
  using Bits = std::conditional_t<std::is_same_v<T, float>, std::uint32_t, std::uint64_t>;
  constexpr T kMargin = T(1 + 1e-5);  // of roots that do not quite rise
  constexpr int kMantissa = std::numeric_limits<T>::digits - 1, kBias = std::numeric_limits<T>::max_exponent - 1;
  constexpr std::size_t kExponents = 2 * kBias + 1;
  outputs_once_.call([this] {
    const ir::Program& epilogue = plan().general.epilogue;
    for (std::size_t e = 0; e < kExponents; ++e) {
      const T sum = e == 0 ? T(0) : std::ldexp(T(1), static_cast<int>(e) - kBias);
      outputs_.push_back(kMargin * ir::run<T>(epilogue, std::vector<T>(epilogue.inputs.size(), sum))[0]);
    }
  });
  const auto bits = std::bit_cast<Bits>(bound);
  const auto exponent = static_cast<std::size_t>((bits + (Bits(1) << kMantissa) - 1) >> kMantissa);
  return exponent < kExponents ? static_cast<T>(outputs_[exponent]) : std::numeric_limits<T>::infinity();
}

template float PairProgram::output_below(float) const;
template double PairProgram::output_below(double) const;

template <class T>
ParamBlock<T>::ParamBlock(const plan::PairPlan& plan, const std::vector<double>& params, std::int64_t features)
    : wide(with_uniforms(plan.general.uniforms, params, features)) {
  general.assign(wide.begin(), wide.end());
  if (!plan.has_fast) return;
  const std::vector<double> values = with_uniforms(plan.fast.uniforms, params, features);
  fast.assign(values.begin(), values.end());
  auto all_normal = [&](const ir::Program& program) {
    for (int u : plan.fast.reciprocals) {
      const int slot = static_cast<int>(params.size()) + u;
      const auto& inputs = program.inputs;
      const bool read = std::find(inputs.begin(), inputs.end(), ir::Input{ir::Site::param, slot}) != inputs.end();
      if (read && !std::isnormal(fast[slot])) return false;
    }
    return true;
  };
  fast_update = all_normal(plan.fast.update);
  fast_epilogue = all_normal(plan.fast.epilogue);
}

template <class T>
const ParamBlock<double>& ParamBlock<T>::again(const PairProgram& program, std::int64_t features) const {
  return again_.get([&] {
    const plan::PairPlan& plan = program.wide().plan();
    const auto given = static_cast<std::ptrdiff_t>(plan.general.split.params.size());
    return std::make_unique<ParamBlock<double>>(plan, std::vector(wide.begin(), wide.begin() + given), features);
  });
}

namespace {

/// Whether all are 0 or between 1 / most and most; so they are where there is no such bound.
bool are_moderate(const double* values, std::int64_t count, double most) {
  return most == 0 || std::all_of(values, values + count, [&](double value) {
    const double size = std::abs(value);
    return size == 0 || (size >= 1 / most && size <= most);
  });
}

}  // namespace

template <class T>
PairEngine<T>::PairEngine(const PairProgram& program, const PairItem& item, const ParamBlock<T>& params)
    : program_(program), item_(item), params_(params),
      x_packer_(program.packs.x, item.x, program.plan().tile.rows, item.weights, params.wide),
      z_packer_(program.packs.z, item.z, program.plan().tile.cols(), item.weights, params.wide),
      scales_(program.plan().best().magnitudes.scale != 1), chunk_(program.plan().chunk(item.x.features)),
      part_features_(program.plan().part_features(item.x.features)),
      totals_(program.plan().sums_parts(item.x.features)),
      identity_(program.plan().general.identity.begin(), program.plan().general.identity.end()) {
  x_packer_.use_parts(part_features_);
  z_packer_.use_parts(part_features_);
  fused_[0] = totals_ ? nullptr : program.kernels.fused(false);
  fused_[1] = !totals_ && params.fast_update && params.fast_epilogue ? program.kernels.fused(true) : nullptr;
  if (item.weights) weights_.assign(item.weights, item.weights + item.x.features);
  if (plan().guard.sums.empty()) return;
  second_pass_ = std::make_shared<const MadeOnce<SecondPass>>();
  const plan::PairGuard& guard = plan().guard;
  const double* const weights = item.weights;
  if (are_moderate(params.wide.data(), std::ssize(params.wide), guard.most_param) &&
      (weights == nullptr || are_moderate(weights, item.x.features, guard.most_weight)))
    return;
  x_packer_.look_always();
  z_packer_.look_always();
}

template <class T>
void PairEngine<T>::look(double least_gain) {
  if (!plan().pays_maxima(item_.x.count, item_.z.count, item_.x.features, least_gain)) return;
  maxima_ = choose_maxima<T>(program_, item_, params_.wide);
  if (!maxima_) return;
  x_packer_.use_maxima(maxima_, true);
  z_packer_.use_maxima(maxima_, false);
  const bool fits = !totals_ && (!plan().has_fast || params_.fast_epilogue);
  fused_maxima_ = fits ? program_.kernels.fused_maxima() : nullptr;
  maxima_params_ = with_scale<T>(plan(), plan().has_fast ? params_.fast : params_.general, *maxima_);
}

template <class T>
void PairEngine<T>::ask_now_and_then(TileScratch& scratch, std::int64_t tiles) const {
  constexpr std::int64_t kOften = std::int64_t{1} << 24;  // pairs times features: milliseconds, of few formulas more
  scratch.since_asked += tiles * tile_size() * std::max<std::int64_t>(item_.x.features, 1);
  if (scratch.since_asked < kOften) return;
  scratch.since_asked = 0;
  stop_if_cancelled();
}

template <class T>
plan::UpdateArgs PairEngine<T>::arguments(const PanelView<T>& x, const PanelView<T>& z, bool fast, T* acc) const {
  plan::UpdateArgs args{};
  args.x = x.values;
  args.z = z.values;
  args.w = weights_.data();
  args.params = (fast ? params_.fast : params_.general).data();
  args.row = x.slots;
  args.col = z.slots;
  args.acc = acc;
  args.identity = identity_.data();
  args.k = item_.x.features;
  args.chunk = chunk_;
  return args;
}

template <class T>
plan::UpdateArgs PairEngine<T>::maxima_arguments(const PanelView<T>& x, const PanelView<T>& z,
                                                  TileScratch& scratch, T* acc, std::int64_t tiles) const {
  plan::UpdateArgs args = arguments(x, z, false, acc);
  args.params = maxima_params_.data();
  args.chunk = maxima_->chunk();
  scratch.doubtful.resize(std::max<std::size_t>(scratch.doubtful.size(), tiles));
  args.doubtful = scratch.doubtful.data();
  return args;
}

template <class T>
PanelView<T> PairEngine<T>::values_for(PanelKind other, const Packer<T>& packer, const PanelView<T>& panel,
                                       TileScratch::Values& values) const {
  if (!packed_again(other, panel.kind)) return panel;
  if (values.index != panel.index) {
    values.values.reserve(packer.values_size() * static_cast<std::int64_t>(sizeof(T)));
    const PanelKind kind = packer.pack_values(panel.index, values.values.as<T>(), nullptr);
    values.kind = scales_ ? PanelKind::general : kind;
    values.index = panel.index;
  }
  return {values.values.as<T>(), panel.slots, panel.index, values.kind};
}

template <class T>
void PairEngine<T>::compute(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* out,
                            std::int64_t out_stride, std::int64_t tiles) const {
  if (tiles > 1 && plan().problem.outputs.size() > 1)  // a second tile would write over the first one's planes
    fail(ErrorKind::compile, "pairs: kernels of several outputs take one tile a call. Received {}.", tiles);
  ask_now_and_then(scratch, tiles);
  T* acc = scratch.acc.as<T>();
  if (part_features_ > 0) {
    scratch.parts.sums.reserve(tiles * accumulator_size() * static_cast<std::int64_t>(sizeof(T)));
    acc = scratch.parts.sums.as<T>();
    scratch.counts.values += tiles;
    accumulate_parts(x, z, scratch, acc, tiles);
    for (std::int64_t t = 0; t < tiles; ++t)
      finish(acc + t * accumulator_size(), panel_after(x, t), z, params_, out + t * tile().rows * out_stride,
             out_stride);
    return;
  }
  if (common(x.kind, z.kind) == PanelKind::maxima) return compute_maxima(x, z, scratch, out, out_stride, tiles);
  scratch.counts.values += tiles;
  const PanelView<T> zs = values_for(x.kind, z_packer_, z, scratch.z);
  // Between panels of values there are gaps where others hold maxima, which take more lines.
  if (!maxima_ && !packed_again(z.kind, x.kind)) return compute_values(x, zs, acc, out, out_stride, tiles);
  for (std::int64_t t = 0; t < tiles; ++t)
    compute_values(values_for(z.kind, x_packer_, panel_after(x, t), scratch.x), zs, acc,
                   out + t * tile().rows * out_stride, out_stride, 1);
}

template <class T>
void PairEngine<T>::compute_maxima(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* out,
                                     std::int64_t out_stride, std::int64_t tiles) const {
  T* acc = scratch.acc.as<T>();
  if (!fused_maxima_) {
    for (std::int64_t t = 0; t < tiles; ++t) {
      const PanelView<T> one = panel_after(x, t);
      accumulate(one, z, scratch, acc);
      finish(acc, one, z, params_, out + t * tile().rows * out_stride, out_stride);
    }
    return;
  }
  plan::UpdateArgs args = maxima_arguments(x, z, scratch, acc, tiles);
  args.out = out;
  args.out_stride = out_stride * static_cast<std::int64_t>(sizeof(T));
  args.tiles = tiles;
  (*fused_maxima_)(args);
  scratch.counts.maxima += tiles;
  for (std::int64_t t = 0; t < tiles; ++t) {
    if (scratch.doubtful[t] == 0) continue;
    compute_values(values_for(z.kind, x_packer_, panel_after(x, t), scratch.x),
                   values_for(x.kind, z_packer_, z, scratch.z), acc, out + t * tile().rows * out_stride, out_stride, 1);
    --scratch.counts.maxima;
    ++scratch.counts.doubtful;
  }
}

template <class T>
void PairEngine<T>::compute_values(const PanelView<T>& x, const PanelView<T>& z, T* acc, T* out,
                                   std::int64_t out_stride, std::int64_t tiles) const {
  const bool finite = common(x.kind, z.kind) != PanelKind::general;
  const bool fast = finite && params_.fast_update;
  const bool looks = looks_again(x, z);
  const bool one_kernel = fast == (finite && params_.fast_epilogue) && fused_[fast];
  const bool fits = one_kernel && (!looks || plan().guard.shows_in_output);
  if (fits) {
    plan::UpdateArgs args = arguments(x, z, fast, acc);
    args.out = out;
    args.out_stride = out_stride * static_cast<std::int64_t>(sizeof(T));
    args.tiles = tiles;
    (*fused_[fast])(args);
    if (!looks) return;
  }
  for (std::int64_t t = 0;; ++t) {
    if (fits) t = next_to_look_at<T>(program_, {x, z, x_packer_.slots_size(), out, out_stride, tiles}, t);
    if (t >= tiles) return;
    const PanelView<T> one = panel_after(x, t);
    T* const of_tile = out + t * tile().rows * out_stride;
    accumulate_values(one, z, acc);
    if (fits) look_again(acc, one, z, params_, of_tile, out_stride);
    else finish(acc, one, z, params_, of_tile, out_stride);
  }
}

template <class T>
void PairEngine<T>::look_again(const T* acc, const PanelView<T>& x, const PanelView<T>& z,
                               const ParamBlock<T>& params, T* out, std::int64_t out_stride) const {
  second_look<T>(program_, item_, *second_pass_, params_, params, {acc, x, z, out, out_stride});
}

template <class T>
void PairEngine<T>::accumulate_values(const PanelView<T>& x, const PanelView<T>& z, T* acc) const {
  const bool fast = common(x.kind, z.kind) != PanelKind::general && params_.fast_update;
  const jit::UpdateKernel* update = program_.kernels.variant(fast).update.get();
  if (!update) return;
  const plan::UpdateArgs args = arguments(x, z, fast, acc);
  if (!totals_) return (*update)(args);
  const auto streams = [](const auto& list) { return static_cast<std::int64_t>(list.size()); };
  add_parts(*update, args, {plan::kFeaturesOfTotal, plan::kFeaturesOfTotal * streams(plan().sides.x_streams),
                            plan::kFeaturesOfTotal * streams(plan().sides.z_streams)});
}

template <class T>
void PairEngine<T>::accumulate_maxima(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch,
                                      T* acc) const {
  const plan::UpdateArgs args = maxima_arguments(x, z, scratch, acc, 1);
  if (!totals_) return program_.kernels.maxima()(args);
  const std::int64_t chunk = maxima_->chunk(), chunks = plan::kFeaturesOfTotal / chunk, lines = chunks * (chunk + 1);
  add_parts(program_.kernels.maxima(), args, {chunks * chunk, lines, lines});
  // The kernel compares a part's sums with what it takes for bounds.
  const T *const x_bound = x.values + (maxima_->lines() - 1) * tile().rows,
                 *const z_bounds = z.values + (maxima_->lines() - 1) * tile().cols();
  scratch.doubtful[0] = 0;
  for (std::int64_t i = 0; i < tile_size(); ++i)
    if (!(acc[i] - z_bounds[i % tile().cols()] >= *x_bound)) scratch.doubtful[0] = 1;
}

template <class T>
void PairEngine<T>::add_parts(const jit::UpdateKernel& kernel, plan::UpdateArgs args, const Part& part) const {
  const auto *const x = static_cast<const T*>(args.x), *const z = static_cast<const T*>(args.z);
  T* const acc = static_cast<T*>(args.acc);
  const std::int64_t features = args.k;
  AlignedBuffer own;
  own.reserve(accumulator_size() * static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t first = 0, index = 0; first < features; first += part.features, ++index) {
    stop_if_cancelled();
    args.x = x + index * part.x_lines * tile().rows;
    args.z = z + index * part.z_lines * tile().cols();
    args.w = weights_.empty() ? nullptr : weights_.data() + first;
    args.k = std::min(part.features, features - first);
    args.acc = first == 0 ? acc : own.as<T>();
    kernel(args);
    for (std::int64_t i = 0; first > 0 && i < accumulator_size(); ++i) acc[i] += own.as<T>()[i];
  }
}

template <class T>
void PairEngine<T>::accumulate_parts(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* acc,
                                     std::int64_t tiles) const {
  if (plan().promoted.empty()) return;
  TileScratch::Parts& parts = scratch.parts;
  parts.x.reserve(x_packer_.part_size() * static_cast<std::int64_t>(sizeof(T)));
  parts.z.reserve(z_packer_.part_size() * static_cast<std::int64_t>(sizeof(T)));
  parts.part.reserve(accumulator_size() * static_cast<std::int64_t>(sizeof(T)));
  const std::shared_ptr<const PanelInputs> of_z = z_packer_.inputs_of(z.index);
  std::vector<std::shared_ptr<const PanelInputs>> of_x;
  for (std::int64_t t = 0; t < tiles; ++t) of_x.push_back(x_packer_.inputs_of(x.index + t));
  for (std::int64_t k = 0; k < item_.x.features; k += part_features_) {
    stop_if_cancelled();
    const std::int64_t count = std::min(part_features_, item_.x.features - k);
    const bool z_finite = z_packer_.pack_part(*of_z, z.index, k, count, parts.z.as<T>());
    for (std::int64_t t = 0; t < tiles; ++t) {
      const PanelView<T> one = panel_after(x, t);
      const bool finite = x_packer_.pack_part(*of_x[t], one.index, k, count, parts.x.as<T>()) && z_finite;
      // The fast variant of scaled values is left to panels: a part of z serves tiles of both kinds.
      const bool fast = finite && params_.fast_update && !scales_;
      plan::UpdateArgs args = arguments({parts.x.as<T>(), one.slots, one.index, one.kind},
                                        {parts.z.as<T>(), z.slots, z.index, z.kind}, fast, nullptr);
      args.w = weights_.empty() ? nullptr : weights_.data() + k;
      args.k = count;
      accumulate_part(args, fast, acc + t * accumulator_size(), parts, k == 0);
    }
  }
}

template <class T>
void PairEngine<T>::accumulate_part(plan::UpdateArgs args, bool fast, T* acc, TileScratch::Parts& parts,
                                    bool is_first) const {
  args.acc = is_first || !totals_ ? acc : parts.part.as<T>();
  const bool continues = !is_first && !totals_;
  (continues ? program_.kernels.continued(fast) : *program_.kernels.variant(fast).update)(args);
  for (std::int64_t i = 0; !is_first && totals_ && i < accumulator_size(); ++i) acc[i] += parts.part.as<T>()[i];
}

template <class T>
void PairEngine<T>::accumulate(const PanelView<T>& x, const PanelView<T>& z, TileScratch& scratch, T* acc) const {
  ask_now_and_then(scratch, 1);
  if (part_features_ > 0) {
    ++scratch.counts.values;
    return accumulate_parts(x, z, scratch, acc, 1);
  }
  const bool maxima = common(x.kind, z.kind) == PanelKind::maxima;
  if (maxima) {
    accumulate_maxima(x, z, scratch, acc);
    ++(scratch.doubtful[0] == 0 ? scratch.counts.maxima : scratch.counts.doubtful);
    if (scratch.doubtful[0] == 0) return;
  } else {
    ++scratch.counts.values;
  }
  accumulate_values(values_for(z.kind, x_packer_, x, scratch.x), values_for(x.kind, z_packer_, z, scratch.z), acc);
}

template <class T>
void PairEngine<T>::finish(const T* acc, const PanelView<T>& x, const PanelView<T>& z, const ParamBlock<T>& params,
                           T* out, std::int64_t out_stride) const {
  const bool fast = common(x.kind, z.kind) != PanelKind::general && params.fast_epilogue;
  const plan::EpilogueArgs args{acc, x.slots, z.slots, (fast ? params.fast : params.general).data(), out,
                                out_stride * static_cast<std::int64_t>(sizeof(T)), tile().rows};
  (*program_.kernels.variant(fast).epilogue)(args);
  if (looks_again(x, z)) look_again(acc, x, z, params, out, out_stride);
}

template struct ParamBlock<float>;
template struct ParamBlock<double>;
template class PairEngine<float>;
template class PairEngine<double>;

}  // namespace mercer::cpu
