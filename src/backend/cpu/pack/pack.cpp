#include "backend/cpu/pack/pack.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cpu/pack/widen.h"

namespace mercer::cpu {
namespace {

template <class In>
constexpr bool kIs16 = std::is_same_v<In, Half> || std::is_same_v<In, Bfloat16>;

/// Calls body with a value of the element type of `dtype`.
template <class Body>
auto with_type(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::float16: return body(Half{});
    case Dtype::bfloat16: return body(Bfloat16{});
    case Dtype::float64: return body(double{});
    case Dtype::uint8: return body(std::uint8_t{});
    case Dtype::int8: return body(std::int8_t{});
    case Dtype::int32: return body(std::int32_t{});
    case Dtype::int64: return body(std::int64_t{});
    default: return body(float{});
  }
}

/// Features gathered at a time when stage 0 or streams run: a block of them stays in the second-level cache.
constexpr std::int64_t kFeatureBlock = 128;

using Lanes = std::vector<double>;  // one value per point of a panel

}  // namespace

struct PanelInputs {
  Lanes user, index;
  std::vector<Lanes> stages;  // values of stage 0 so far
  double features = 0;
  const double* weights = nullptr;
  const std::vector<double>& params;

  std::int64_t width() const { return static_cast<std::int64_t>(user.size()); }

  /// The inputs of a stage's program, a step a feature: of the first the values are `x`, its number is k. `states` are
  /// the accumulators.
  std::vector<LaneSource> steps(const ElementProgram& program, const double* x, std::int64_t k,
                                const std::vector<Lanes>& states) const {
    std::vector<LaneSource> list;
    for (const ir::Input& input : program.inputs()) {
      if (input.site == ir::Site::accumulator) list.push_back({states[input.slot].data(), false});
      else if (is_feature(input.site)) list.push_back({x, false, width()});
      else if (input.site == ir::Site::w && weights) list.push_back({weights + k, true, 1});
      else list.push_back(other(input));
    }
    return list;
  }

  /// The inputs of a stream's program, whose lanes are the points of `count` features from k on. `held` keeps them.
  std::vector<LaneSource> lanes(const ElementProgram& program, const double* x, std::int64_t k, std::int64_t count,
                                std::vector<Lanes>& held) const {
    std::vector<LaneSource> list;
    for (const ir::Input& input : program.inputs()) {
      LaneSource source = is_feature(input.site) ? LaneSource{x, false} : other(input);
      const bool is_weight = input.site == ir::Site::w && weights;
      if (!is_feature(input.site) && (is_weight || !source.uniform)) {
        Lanes& values = held.emplace_back();
        for (std::int64_t f = 0; f < count; ++f)
          if (is_weight) values.insert(values.end(), width(), weights[k + f]);
          else values.insert(values.end(), source.data, source.data + width());
        source = {values.data(), false};
      }
      list.push_back(source);
    }
    return list;
  }

 private:
  static bool is_feature(ir::Site site) { return site == ir::Site::x || site == ir::Site::z; }

  /// What is the same for all features.
  LaneSource other(const ir::Input& input) const {
    static constexpr double kOne = 1.0;
    switch (input.site) {
      case ir::Site::w: return {&kOne, true};
      case ir::Site::param: return {&params[input.slot], true};
      case ir::Site::features: return {&features, true};
      case ir::Site::index_i:
      case ir::Site::index_j: return {index.data(), false};
      default: return {input.slot == 0 ? user.data() : stages[input.slot - 1].data(), false};
    }
  }
};

template <class T>
bool all_within(const ir::Magnitudes& magnitudes, const T* values, std::int64_t count) {
  // |v| <= most is false for NaN; a reduction without branches is vectorised.
  const T least = static_cast<T>(magnitudes.least), most = static_cast<T>(magnitudes.most);
  unsigned bad = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const T magnitude = std::abs(values[i]);
    bad |= static_cast<unsigned>(!(magnitude <= most)) | static_cast<unsigned>((magnitude < least) & (magnitude != 0));
  }
  return bad == 0;
}

template bool all_within<float>(const ir::Magnitudes&, const float*, std::int64_t);
template bool all_within<double>(const ir::Magnitudes&, const double*, std::int64_t);

double read_element(const void* data, Dtype dtype, std::int64_t index) {
  return with_type(dtype, [&](auto tag) {
    return static_cast<double>(static_cast<const decltype(tag)*>(data)[index]);
  });
}

template <class T>
void pack_row(const Points& points, std::int64_t p, std::int64_t padded, T* row) {
  const std::int64_t count = points.features, step = points.feature_stride;
  with_type(points.dtype, [&](auto tag) {
    using In = decltype(tag);
    const In* const from = static_cast<const In*>(points.data) + p * points.point_stride;
    if constexpr (std::is_same_v<In, T>) {
      if (step == 1) std::copy_n(from, count, row);
      else
        for (std::int64_t k = 0; k < count; ++k) row[k] = from[k * step];
    } else if (kIs16<In> && std::is_same_v<T, float> && step == 1) {
      if constexpr (kIs16<In> && std::is_same_v<T, float>) widen(from, count, row);
    } else if (sizeof(In) == 1 && step == 1) {
      for (std::int64_t k = 0; k < count; ++k) row[k] = static_cast<T>(from[k]);  // by vectors
    } else {
      for (std::int64_t k = 0; k < count; ++k) row[k] = static_cast<T>(static_cast<double>(from[k * step]));
    }
  });
  std::fill(row + count, row + padded, T(0));
}

template void pack_row<float>(const Points&, std::int64_t, std::int64_t, float*);
template void pack_row<double>(const Points&, std::int64_t, std::int64_t, double*);

PackPrograms::PackPrograms(const plan::PairPlan& plan) {
  for (const plan::Sides::Stage& stage : plan.sides.stages)
    (stage.of_x ? x : z)
        .stages.push_back(
            {ElementProgram(stage.update), ElementProgram(stage.finish), stage.identity, stage.is_squares});
  x.sums = z.sums = &sum_kernels(plan.problem.target);
  auto streams = [](const std::vector<plan::Sides::Stream>& list, Side& side) {
    for (const auto& stream : list) {
      side.plain.push_back(stream.plain);
      side.streams.push_back(stream.plain ? ElementProgram() : ElementProgram(stream.program));
    }
  };
  streams(plan.sides.x_streams, x);
  streams(plan.sides.z_streams, z);
  x.slots = plan.row_slots;
  z.slots = plan.col_slots;
  x.magnitudes = z.magnitudes = plan.best().magnitudes;
  x.within = z.within = plan.guard.within;
  for (const plan::SumGuard& sum : plan.guard.sums) {
    const plan::CloseSum& close = sum.close;
    if (close.power == 0) continue;
    x.sizes.push_back({close.row_slot, close.x_stream, close.power, close.weighted});
    z.sizes.push_back({close.col_slot, close.z_stream, close.power, close.weighted});
  }
}

template <class T>
Packer<T>::Packer(const PackPrograms::Side& side, const Points& points, int width, const double* weights,
                  const std::vector<double>& params)
    : side_(side), points_(points), width_(width), streams_(static_cast<int>(side.plain.size())), weights_(weights),
      params_(params) {}

template <class T>
int Packer<T>::points_in(std::int64_t panel) const {
  return static_cast<int>(std::min<std::int64_t>(width_, points_.count - panel * width_));
}

/// Features k0 … k1 - 1 of a panel, transposed. Long runs of one point let the hardware prefetch it; small squares of
/// 8 x 8 keep the reads and the writes of a step in few cache lines.
template <class T>
template <class In, class Out>
void Packer<T>::transpose(std::int64_t panel, std::int64_t k0, std::int64_t k1, Out* to) const {
  const int present = points_in(panel);
  const std::int64_t step = points_.feature_stride;
  const In* first = static_cast<const In*>(points_.data) + panel * width_ * points_.point_stride;
  constexpr std::int64_t kRun = 64, kAskAfter = 256 * kRun;
  constexpr int kSquare = 8;
  auto source = [&](int r) { return first + std::min(r, present - 1) * points_.point_stride; };
  for (std::int64_t from = k0; from < k1; from += kRun) {
    if (from > k0 && (from - k0) % kAskAfter == 0) stop_if_cancelled();
    const std::int64_t until = std::min(k1, from + kRun);
    int r = 0;
    for (; step == 1 && r + kSquare <= present; r += kSquare) {
      using Read = std::conditional_t<kIs16<In>, float, In>;
      const Read* rows[kSquare];
      [[maybe_unused]] float widened[kIs16<In> ? kSquare * kRun : 1];
      for (int s = 0; s < kSquare; ++s) {
        const In* const row = source(r + s);
        const std::int64_t ahead = std::min(k1, until + kRun);
        for (std::int64_t k = until; k < ahead; k += 64 / sizeof(In)) __builtin_prefetch(row + k);
        if constexpr (kIs16<In>) {
          widen(row + from, until - from, widened + s * kRun);
          rows[s] = widened + s * kRun;
        } else {
          rows[s] = row + from;
        }
      }
      Out* target = to + (from - k0) * width_ + r;
      for (std::int64_t k = 0; k < until - from; ++k, target += width_)
        for (int s = 0; s < kSquare; ++s) target[s] = static_cast<Out>(rows[s][k]);
    }
    for (; r < width_; ++r) {
      const In* row = source(r);
      for (std::int64_t k = from; k < until; ++k) to[(k - k0) * width_ + r] = static_cast<Out>(row[k * step]);
    }
  }
}

template <class T>
template <class Out>
void Packer<T>::copy(std::int64_t panel, std::int64_t k0, std::int64_t k1, Out* to) const {
  with_type(points_.dtype, [&](auto tag) { transpose<decltype(tag)>(panel, k0, k1, to); });
}

template <class T>
void Packer<T>::fill_slots(std::int64_t panel, T* slots) const {
  const int present = points_in(panel);
  const std::int64_t first = panel * width_;
  T *const user = slots + plan::kUserSlot * width_, *const index = slots + plan::kIndexSlot * width_;
  for (int r = 0; r < present; ++r) index[r] = static_cast<T>(first + r + points_.index_offset);
  if (points_.user.data == nullptr) std::fill_n(user, width_, T(0));
  else
    for (int r = 0; r < present; ++r) user[r] = static_cast<T>(points_.user[first + r]);
  for (int r = present; r < width_; ++r) {
    index[r] = index[present - 1];
    user[r] = user[present - 1];
  }
}

template <class T>
void Packer<T>::add_sizes(const T* values, std::int64_t first, std::int64_t count, T* slots) const {
  for (const PackPrograms::Side::Size& size : side_.sizes) {
    T* const sums = slots + size.slot * width_;
    if (first == 0) std::fill_n(sums, width_, T(0));
    for (std::int64_t k = 0; k < count; ++k) {
      const T* const line = values + (k * streams_ + size.stream) * width_;
      const T weight = size.weighted && weights_ ? static_cast<T>(weights_[first + k]) : T(1);
      for (int r = 0; r < width_; ++r) sums[r] += weight * (size.power == 2 ? line[r] * line[r] : std::abs(line[r]));
    }
  }
}

/// The sizes of a panel whose values are packed some features at a time.
template <class T>
void Packer<T>::add_sizes_by_parts(const PanelInputs& inputs, std::int64_t panel, T* slots) const {
  if (side_.sizes.empty()) return;
  thread_local AlignedBuffer values;
  values.reserve(part_size() * static_cast<std::int64_t>(sizeof(T)));
  for (std::int64_t k = 0; k < points_.features; k += part_) {
    stop_if_cancelled();
    const std::int64_t count = std::min(part_, points_.features - k);
    pack_part(inputs, panel, k, count, values.as<T>());
    add_sizes(values.as<T>(), k, count, slots);
  }
}

/// body(first feature, features, their values [feature][width] in double) for one block of features after another.
template <class T>
template <class Body>
void Packer<T>::each_block(std::int64_t panel, std::int64_t first, std::int64_t end, Body&& body) const {
  Lanes block(static_cast<std::size_t>(std::min(kFeatureBlock, end - first) * width_));
  for (std::int64_t k = first; k < end; k += kFeatureBlock) {
    if (k > first) stop_if_cancelled();
    const std::int64_t count = std::min(kFeatureBlock, end - k);
    copy(panel, k, k + count, block.data());
    body(k, count, block.data());
  }
}

/// Sums of squares. Other strides and types are copied first: the order of a sum, and so its bits, is always the same.
template <class T>
void Packer<T>::add_squares(std::int64_t panel, double* sums) const {
  const int present = points_in(panel);
  const auto add = [&](const auto* data) {
    for (int r = 0; r < present; ++r)
      sums[r] = side_.sums->squares(data + point(panel, r) * points_.point_stride, points_.features);
  };
  const bool is_adjacent = points_.feature_stride == 1;
  if (is_adjacent && points_.dtype == Dtype::float32) add(static_cast<const float*>(points_.data));
  else if (is_adjacent && points_.dtype == Dtype::float64) add(static_cast<const double*>(points_.data));
  else {
    Lanes row(static_cast<std::size_t>(points_.features));
    for (int r = 0; r < present; ++r) {
      pack_row<double>(points_, point(panel, r), points_.features, row.data());
      sums[r] = side_.sums->squares(row.data(), points_.features);
    }
  }
  std::fill(sums + present, sums + width_, sums[present - 1]);
}

/// The slots of the only stage, where that is such a sum.
template <class T>
bool Packer<T>::fill_squares(std::int64_t panel, T* slots) const {
  constexpr int kMostPoints = 512;
  double sums[kMostPoints];
  if (side_.slots == 0 || width_ > kMostPoints || !side_.stages[0].is_squares) return false;
  add_squares(panel, sums);
  std::transform(sums, sums + width_, slots + plan::kFirstStageSlot * width_,
                 [](double sum) { return static_cast<T>(sum); });
  return true;
}

/// Stage 0 by sweeps over the features, one per stage because a later one may need the earlier.
template <class T>
void Packer<T>::run_stages(std::int64_t panel, PanelInputs& inputs) const {
  for (int r = 0; r < width_; ++r) {
    inputs.user[r] = points_.user[point(panel, r)];
    inputs.index[r] = static_cast<double>(point(panel, r) + points_.index_offset);
  }
  for (const PackPrograms::Stage& stage : side_.stages) {
    Lanes column(width_);
    if (stage.is_squares) {
      add_squares(panel, column.data());
      inputs.stages.push_back(std::move(column));
      continue;
    }
    std::vector<Lanes> states;
    std::vector<double*> outputs;
    for (double identity : stage.identity) states.emplace_back(width_, identity);
    for (Lanes& state : states) outputs.push_back(state.data());
    each_block(panel, 0, points_.features, [&](std::int64_t k, std::int64_t count, const double* x) {
      stage.update(inputs.steps(stage.update, x, k, states), outputs.data(), width_, count);
    });
    double* value = column.data();
    stage.finish(inputs.steps(stage.finish, nullptr, 0, states), &value, width_);
    inputs.stages.push_back(std::move(column));
  }
}

/// Features first … end - 1, to the start of `values`.
template <class T>
void Packer<T>::run_streams(const PanelInputs& inputs, std::int64_t panel, std::int64_t first, std::int64_t end,
                            T* values) const {
  each_block(panel, first, end, [&](std::int64_t k, std::int64_t count, const double* x) {
    Lanes results(static_cast<std::size_t>(count * width_));
    for (int s = 0; s < streams_; ++s) {
      std::vector<Lanes> held;
      double* result = results.data();
      if (!side_.plain[s])
        side_.streams[s](inputs.lanes(side_.streams[s], x, k, count, held), &result, count * width_);
      const double* from = side_.plain[s] ? x : result;
      for (std::int64_t f = 0; f < count; ++f, from += width_)
        std::transform(from, from + width_, values + ((k - first + f) * streams_ + s) * width_,
                       [](double value) { return static_cast<T>(value); });
    }
  });
}

template <class T>
void Packer<T>::fill_stages(const PanelInputs& inputs, T* slots) const {
  if (side_.slots == 0 || slots == nullptr) return;
  for (std::size_t q = 0; q < inputs.stages.size(); ++q)
    for (int r = 0; r < width_; ++r)
      slots[(plan::kFirstStageSlot + q) * width_ + r] = static_cast<T>(inputs.stages[q][r]);
}

template <class T>
std::shared_ptr<const PanelInputs> Packer<T>::inputs_of(std::int64_t panel) const {
  auto inputs = std::make_shared<PanelInputs>(
      PanelInputs{Lanes(width_), Lanes(width_), {}, static_cast<double>(points_.features), weights_, params_});
  run_stages(panel, *inputs);
  return inputs;
}

template <class T>
bool Packer<T>::pack_part(const PanelInputs& inputs, std::int64_t panel, std::int64_t k, std::int64_t count,
                          T* values) const {
  if (side_.copies()) copy(panel, k, k + count, values);
  else if (streams_ > 0) run_streams(inputs, panel, k, k + count, values);
  return all_within(side_.magnitudes, values, count * streams_ * width_);
}

template <class T>
PanelKind Packer<T>::pack_values(std::int64_t panel, T* values, T* slots) const {
  if (side_.slots > 0 && slots) fill_slots(panel, slots);
  if (side_.copies()) copy(panel, 0, points_.features, values);
  const bool is_filled = side_.copies() && slots != nullptr && side_.stages.size() == 1 && fill_squares(panel, slots);
  if (!is_filled && (!side_.copies() || !side_.stages.empty())) {
    PanelInputs inputs{Lanes(width_), Lanes(width_), {}, static_cast<double>(points_.features), weights_, params_};
    run_stages(panel, inputs);
    if (streams_ > 0 && !side_.copies()) run_streams(inputs, panel, 0, points_.features, values);
    fill_stages(inputs, slots);
  }
  if (slots) add_sizes(values, 0, points_.features, slots);
  const ir::Magnitudes &fast = side_.magnitudes, &within = side_.within;
  const bool looks = within.least > 0;
  if (!looks) return all_within(fast, values, values_size()) ? PanelKind::finite : PanelKind::general;
  const ir::Magnitudes both{std::max(fast.least, within.least), std::min(fast.most, within.most)};  // one pass, mostly
  if (!looks_always_ && all_within(both, values, values_size())) return PanelKind::finite;
  if (!all_within(fast, values, values_size())) return PanelKind::general;
  return !looks_always_ && all_within(within, values, values_size()) ? PanelKind::finite : PanelKind::far;
}

template <class T>
PanelKind Packer<T>::pack(std::int64_t panel, T* values, T* slots) const {
  if (part_ > 0) {
    if (side_.slots > 0) {
      const std::shared_ptr<const PanelInputs> inputs = inputs_of(panel);
      fill_slots(panel, slots);
      fill_stages(*inputs, slots);
      add_sizes_by_parts(*inputs, panel, slots);
    }
    return PanelKind::general;
  }
  if (maxima_) {
    using Element = typename MaximaOf<T>::Element;
    thread_local AlignedBuffer originals;
    originals.reserve(values_size() * static_cast<std::int64_t>(sizeof(T)));
    const PanelKind kind = pack_values(panel, originals.as<T>(), slots);
    if (kind == PanelKind::finite && (*maxima_)(originals.as<T>(), width_, rows_, reinterpret_cast<Element*>(values)))
      return PanelKind::maxima;
    std::copy_n(originals.as<T>(), values_size(), values);
    return kind;
  }
  const PanelKind kind = pack_values(panel, values, slots);
  if (kind == PanelKind::general) return kind;
  if (const T scale = static_cast<T>(side_.magnitudes.scale); scale != 1)
    for (std::int64_t i = 0; i < values_size(); ++i) values[i] *= scale;
  return kind;
}

template <class T>
void Packer<T>::pack_slots(std::int64_t panel, T* slots) const {
  if (side_.slots == 0) return;
  fill_slots(panel, slots);
  if (side_.stages.empty() || (side_.stages.size() == 1 && fill_squares(panel, slots))) return;
  fill_stages(*inputs_of(panel), slots);
}

template <class T>
void PackedSide<T>::reserve(const Packer<T>& packer, std::int64_t first_panel, std::int64_t panel_count) {
  first = first_panel;
  count = panel_count;
  panel_size = packer.panel_size();
  slots_size = packer.slots_size();
  values.reserve(checked_product({panel_count, panel_size, static_cast<std::int64_t>(sizeof(T))}));
  slots.reserve(checked_product({panel_count, slots_size, static_cast<std::int64_t>(sizeof(T))}));
  kinds.assign(panel_count, PanelKind::general);
}

template <class T>
void PackedSide<T>::pack(const Packer<T>& packer, std::int64_t first_panel, std::int64_t panel_count, Pool& pool) {
  reserve(packer, first_panel, panel_count);
  pool.run(panel_count, [&](std::int64_t task, int) { pack_one(packer, task); });
}

template class Packer<float>;
template class Packer<double>;
template struct PackedSide<float>;
template struct PackedSide<double>;

}  // namespace mercer::cpu
