#include "backend/cpu/pairs/choose_maxima.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

namespace mercer::cpu {
namespace {

/// Panels of each side that are looked at, and their points; of many pairs more.
constexpr std::int64_t kPanels = 3, kPanelsOfMany = 6, kManyPairs = 1 << 20;
constexpr int kWidth = 8;
/// A tile that is made again costs more than maxima save of four tiles.
constexpr int kGoodPerBad = 5;
/// Integers have room for sums larger by this factor than those looked at. Points beyond it keep their values.
constexpr float kRoom = 1.5f;
/// Integers' steps outside of these leave too few normal numbers around the sums.
constexpr int kLeastExponent = -90, kLargestExponent = 60;

template <class T>
using Values = std::vector<T>;  // [k][kWidth]; empty: not all are finite and moderate
template <class T>
using Panel = std::vector<typename MaximaOf<T>::Element>;  // [line][kWidth]; empty: they do not fit

/// Panels spread over both sides, and what is in their middle.
template <class T>
struct Samples {
  std::vector<Values<T>> x, z;
  Values<T> centres;
};

template <class T>
std::vector<Values<T>> sampled(const Packer<T>& packer, std::int64_t most) {
  const std::int64_t count = std::min(packer.panels(), most);
  std::vector<Values<T>> panels;
  for (std::int64_t i = 0; i < count; ++i) {
    panels.emplace_back(packer.values_size());
    const std::int64_t index = packer.panels() * (2 * i + 1) / (2 * count);
    if (packer.pack_values(index, panels.back().data(), nullptr) == PanelKind::general) panels.back().clear();
  }
  return panels;
}

template <class T>
bool all_empty(const std::vector<Values<T>>& panels) {
  return std::all_of(panels.begin(), panels.end(), [](const Values<T>& panel) { return panel.empty(); });
}

/// Per feature, between the medians of three points of either side: one far point moves neither.
template <class T>
Values<T> centres_of(const std::vector<Values<T>>& x, const std::vector<Values<T>>& z, std::int64_t features) {
  Values<T> result(features, T(0));
  for (const auto* panels : {&x, &z}) {
    std::vector<const T*> points;
    for (const Values<T>& panel : *panels)
      if (!panel.empty()) points.push_back(panel.data());
    const T *a = points.front(), *b = points[points.size() / 2], *c = points.back();
    for (std::int64_t k = 0; k < features; ++k, a += kWidth, b += kWidth, c += kWidth)
      result[k] += T(0.5) * std::max(std::min(*a, *b), std::min(std::max(*a, *b), *c));
  }
  return result;
}

/// How far points are from the centres, in order.
struct Sizes {
  std::vector<float> chunk;  // the largest sum over a chunk
  std::vector<float> total;  // over all features
};

Sizes sizes_of(const std::vector<Values<float>>& panels, const Values<float>& centres, std::int64_t chunk) {
  const auto features = static_cast<std::int64_t>(centres.size());
  Sizes sizes;
  for (const Values<float>& panel : panels) {
    if (panel.empty()) continue;
    float largest[kWidth] = {}, total[kWidth] = {};
    for (std::int64_t first = 0; first < features; first += chunk) {
      float sum[kWidth] = {};
      for (std::int64_t k = first; k < std::min(features, first + chunk); ++k)
        for (int r = 0; r < kWidth; ++r) sum[r] += std::fabs(panel[k * kWidth + r] - centres[k]);
      for (int r = 0; r < kWidth; ++r) {
        largest[r] = std::max(largest[r], sum[r]);
        total[r] += sum[r];
      }
    }
    sizes.chunk.insert(sizes.chunk.end(), largest, largest + kWidth);
    sizes.total.insert(sizes.total.end(), total, total + kWidth);
  }
  std::sort(sizes.chunk.begin(), sizes.chunk.end());
  std::sort(sizes.total.begin(), sizes.total.end());
  return sizes;
}

/// The largest sum over a chunk, of all points but a few.
float reach(const Sizes& sizes) { return sizes.chunk[sizes.chunk.size() * 31 / 32]; }

template <class T>
std::vector<Panel<T>> packed(const std::vector<Values<T>>& panels, const MaximaOf<T>& maker) {
  std::vector<Panel<T>> list;
  for (const Values<T>& panel : panels) {
    list.emplace_back(panel.empty() ? 0 : maker.lines() * kWidth);
    if (!panel.empty() && !maker(panel.data(), kWidth, false, list.back().data())) list.back().clear();
  }
  return list;
}

float middle(const std::vector<float>& ordered) { return ordered[ordered.size() / 2]; }

/// The bound of a point in the middle.
float bound_of(const std::vector<Panel<float>>& panels) {
  std::vector<float> bounds;
  for (const Panel<float>& panel : panels)
    for (std::size_t r = panel.size() - (panel.empty() ? 0 : kWidth); r < panel.size(); ++r)
      bounds.push_back(std::bit_cast<float>(panel[r]));
  if (bounds.empty()) return std::numeric_limits<float>::infinity();
  std::sort(bounds.begin(), bounds.end());
  return middle(bounds);
}

/// Tiles between the panels, with the update's kernel. A side that is the other one's copy has the same points at the
/// same places: those do not meet.
template <class T>
class Trial {
 public:
  Trial(const PairProgram& program, const MaximaOf<T>& maker, std::int64_t features)
      : program_(program), tile_(program.plan().tile), maker_(maker),
        params_(with_scale<T>(program.plan(), {}, maker)), x_(maker.lines() * tile_.rows),
        z_(maker.lines() * tile_.cols()), acc_(static_cast<std::size_t>(tile_.rows) * tile_.cols()) {
    args_.x = x_.data();
    args_.z = z_.data();
    args_.params = params_.data();
    args_.acc = acc_.data();
    args_.identity = &identity_;
    args_.k = features;
    args_.chunk = maker.chunk();
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool stands(const std::vector<Panel<T>>& x, const std::vector<Panel<T>>& z, std::size_t i) {
    if (x[i].empty()) return false;
    copy(x[i], 0, tile_.rows, tile_.rows, x_);
    // Numbers that are not negative are in the order of their bit patterns.
    auto* const bounds = x_.data() + (maker_.lines() - 1) * tile_.rows;
    bounds[0] = *std::max_element(bounds, bounds + tile_.rows);
    std::size_t j = i % z.size();
    for (int c = 0; c < tile_.cols(); c += kWidth) {
      j = (j + 1) % z.size();
      if (j == i && z.size() > 1) j = (j + 1) % z.size();
      if (z[j].empty()) return false;
      copy(z[j], c, std::min(kWidth, tile_.cols() - c), tile_.cols(), z_);
    }
    std::uint32_t doubtful = 1;
    args_.doubtful = &doubtful;
    program_.kernels.maxima()(args_);
    return doubtful == 0;
  }

 private:
  void copy(const Panel<T>& panel, int to, int lanes, int width, Panel<T>& tile) const {
    for (std::int64_t line = 0; line < maker_.lines(); ++line)
      std::copy_n(panel.data() + line * kWidth, lanes, tile.data() + line * width + to);
  }

  const PairProgram& program_;
  const plan::TileShape tile_;
  const MaximaOf<T>& maker_;
  std::vector<T> params_;
  Panel<T> x_, z_;
  std::vector<T> acc_;
  T identity_ = 0;
  plan::UpdateArgs args_{};
};

template <class T>
bool most_stand(Trial<T>&& trial, const std::vector<Panel<T>>& x, const std::vector<Panel<T>>& z) {
  int good = 0;
  for (std::size_t i = 0; i < x.size(); ++i) good += trial.stands(x, z, i);
  return good >= kGoodPerBad * (static_cast<int>(x.size()) - good);
}

/// Steps that are finer for shorter chunks, until most tiles stand.
std::shared_ptr<const Quantiser> choose(const PairProgram& program, const Samples<float>& samples) {
  const auto& [x, z, centres] = samples;
  const auto features = static_cast<std::int64_t>(centres.size());
  float farthest = 0;
  for (float centre : centres) farthest = std::max(farthest, std::fabs(centre));
  const double factor = program.plan().maxima.factor;
  const std::span<const std::int64_t> chunks = plan::maxima_chunks(Dtype::float32);
  // A step can get finer by this factor where chunks get shorter.
  const double most_from_chunks = static_cast<double>(chunks.front()) / static_cast<double>(chunks.back());
  std::int64_t tried = 0;
  for (std::int64_t longest : chunks) {
    const std::int64_t chunk = plan::maxima_chunk(features, longest);
    if (chunk == std::exchange(tried, chunk)) continue;
    const Sizes x_sizes = sizes_of(x, centres, chunk), z_sizes = sizes_of(z, centres, chunk);
    const float largest = kRoom * (farthest + std::max(reach(x_sizes), reach(z_sizes)));
    int exponent = 0;  // largest <= 2^exponent * kLargestSum
    std::frexp(largest / Quantiser::kLargestSum, &exponent);
    const int scaled = exponent + static_cast<int>(std::lround(std::log2(factor)));
    if (largest == 0 || std::min(exponent, scaled) < kLeastExponent || std::max(exponent, scaled) > kLargestExponent)
      return nullptr;
    const float step = std::ldexp(1.0f, exponent);
    auto quantiser = std::make_shared<const Quantiser>(features, chunk, step, factor, centres);
    const std::vector<Panel<float>> xs = packed<float>(x, *quantiser), zs = packed<float>(z, *quantiser);
    // Points as far apart as they are from the centres, together: bounds beyond that need no trial.
    const double distance = factor * (middle(x_sizes.total) + middle(z_sizes.total));
    const double bound = static_cast<double>(bound_of(xs)) + bound_of(zs);
    if (bound > most_from_chunks * distance) return nullptr;
    if (bound <= distance && most_stand(Trial<float>(program, *quantiser, features), xs, zs)) return quantiser;
  }
  return nullptr;
}

std::shared_ptr<const Centring> choose(const PairProgram& program, const Samples<double>& samples) {
  const auto features = static_cast<std::int64_t>(samples.centres.size());
  const std::int64_t chunk = plan::maxima_chunk(features, plan::maxima_chunks(Dtype::float64).front());
  auto centring = std::make_shared<const Centring>(features, chunk, program.plan().maxima.factor, samples.centres);
  const std::vector<Panel<double>> xs = packed<double>(samples.x, *centring), zs = packed<double>(samples.z, *centring);
  return most_stand(Trial<double>(program, *centring, features), xs, zs) ? centring : nullptr;
}

}  // namespace

template <class T>
std::vector<T> with_scale(const plan::PairPlan& plan, std::vector<T> params, const MaximaOf<T>& maker) {
  params.resize(plan.maxima.scale_slot);
  params.push_back(static_cast<T>(static_cast<double>(maker.step()) * plan.maxima.factor));
  return params;
}

template <class T>
std::shared_ptr<const MaximaOf<T>> choose_maxima(const PairProgram& program, const PairItem& item,
                                                 const std::vector<double>& params) {
  const std::int64_t most = item.x.count * item.z.count < kManyPairs ? kPanels : kPanelsOfMany;
  Samples<T> samples;
  samples.x = sampled(Packer<T>(program.packs.x, item.x, kWidth, item.weights, params), most);
  samples.z = sampled(Packer<T>(program.packs.z, item.z, kWidth, item.weights, params), most);
  if (all_empty<T>(samples.x) || all_empty<T>(samples.z)) return nullptr;
  samples.centres = centres_of<T>(samples.x, samples.z, item.x.features);
  return choose(program, samples);
}

template std::vector<float> with_scale<float>(const plan::PairPlan&, std::vector<float>, const Quantiser&);
template std::vector<double> with_scale<double>(const plan::PairPlan&, std::vector<double>, const Centring&);
template std::shared_ptr<const Quantiser> choose_maxima<float>(const PairProgram&, const PairItem&,
                                                               const std::vector<double>&);
template std::shared_ptr<const Centring> choose_maxima<double>(const PairProgram&, const PairItem&,
                                                               const std::vector<double>&);

}  // namespace mercer::cpu
