#include "backend/cpu/choose_quantiser.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace mercer::cpu {
namespace {

/// Panels of each side that are looked at, and their points; of many pairs more.
constexpr std::int64_t kPanels = 3, kPanelsOfMany = 6, kManyPairs = 1 << 20;
constexpr int kWidth = 8;
/// A tile that is made again costs more than integers save of four tiles.
constexpr int kGoodPerBad = 5;
/// Room for sums larger than those looked at. Points beyond it keep their values.
constexpr float kRoom = 1.5f;
/// By so much a step can get finer where chunks get shorter.
constexpr double kMostFromChunks =
    static_cast<double>(plan::kIntegerChunks[0]) / static_cast<double>(plan::kIntegerChunks[1]);
/// Steps outside of these leave too few normal numbers around the sums.
constexpr int kLeastExponent = -90, kLargestExponent = 60;

using Values = std::vector<float>;           // [k][kWidth]; empty: not all are finite and moderate
using Integers = std::vector<std::int32_t>;  // [line][kWidth]; empty: they do not fit

/// Panels spread over one side.
std::vector<Values> sampled(const Packer<float>& packer, std::int64_t most) {
  const std::int64_t count = std::min(packer.panels(), most);
  std::vector<Values> panels;
  for (std::int64_t i = 0; i < count; ++i) {
    panels.emplace_back(packer.values_size());
    const std::int64_t index = packer.panels() * (2 * i + 1) / (2 * count);
    if (!packer.pack_values(index, panels.back().data(), nullptr)) panels.back().clear();
  }
  return panels;
}

bool all_empty(const std::vector<Values>& panels) {
  return std::all_of(panels.begin(), panels.end(), [](const Values& panel) { return panel.empty(); });
}

/// Per feature, between the medians of three points of either side: one far point moves neither.
Values centres_of(const std::vector<Values>& x, const std::vector<Values>& z, std::int64_t features) {
  Values result(features, 0.0f);
  for (const auto* panels : {&x, &z}) {
    std::vector<const float*> points;
    for (const Values& panel : *panels)
      if (!panel.empty()) points.push_back(panel.data());
    const float *a = points.front(), *b = points[points.size() / 2], *c = points.back();
    for (std::int64_t k = 0; k < features; ++k, a += kWidth, b += kWidth, c += kWidth)
      result[k] += 0.5f * std::max(std::min(*a, *b), std::min(std::max(*a, *b), *c));
  }
  return result;
}

/// How far points are from the centres, in order.
struct Sizes {
  std::vector<float> chunk;  // the largest sum over a chunk
  std::vector<float> total;  // over all features
};

Sizes sizes_of(const std::vector<Values>& panels, const Values& centres, std::int64_t chunk) {
  const auto features = static_cast<std::int64_t>(centres.size());
  Sizes sizes;
  for (const Values& panel : panels) {
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

/// Of the sums over a chunk of all points but a few.
float reach(const Sizes& sizes) { return sizes.chunk[sizes.chunk.size() * 31 / 32]; }

std::vector<Integers> quantised(const std::vector<Values>& panels, const Quantiser& quantiser) {
  std::vector<Integers> list;
  for (const Values& panel : panels) {
    list.emplace_back(panel.empty() ? 0 : quantiser.lines() * kWidth);
    if (!panel.empty() && !quantiser(panel.data(), kWidth, false, list.back().data())) list.back().clear();
  }
  return list;
}

float middle(const std::vector<float>& ordered) { return ordered[ordered.size() / 2]; }

/// The bound of a point in the middle.
float bound_of(const std::vector<Integers>& panels) {
  std::vector<float> bounds;
  for (const Integers& panel : panels)
    for (std::size_t r = panel.size() - (panel.empty() ? 0 : kWidth); r < panel.size(); ++r)
      bounds.push_back(std::bit_cast<float>(panel[r]));
  if (bounds.empty()) return std::numeric_limits<float>::infinity();
  std::sort(bounds.begin(), bounds.end());
  return middle(bounds);
}

/// Tiles between the panels, with the update's kernel. A side that is the other one's copy has the same points at the
/// same places: those do not meet.
class Trial {
 public:
  Trial(const PairProgram& program, const Quantiser& quantiser, std::int64_t features)
      : program_(program), tile_(program.plan().tile), quantiser_(quantiser),
        params_(with_step(program.plan(), {}, quantiser)), x_(quantiser.lines() * tile_.rows),
        z_(quantiser.lines() * tile_.cols()), acc_(static_cast<std::size_t>(tile_.rows) * tile_.cols()) {
    args_.x = x_.data();
    args_.z = z_.data();
    args_.params = params_.data();
    args_.acc = acc_.data();
    args_.identity = &identity_;
    args_.k = features;
    args_.chunk = quantiser.chunk();
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  bool stands(const std::vector<Integers>& x, const std::vector<Integers>& z, std::size_t i) {
    if (x[i].empty()) return false;
    copy(x[i], 0, tile_.rows, tile_.rows, x_);
    // Of numbers that are not negative the patterns are in the same order.
    std::int32_t* bounds = x_.data() + (quantiser_.lines() - 1) * tile_.rows;
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
    program_.kernels.integers()(args_);
    return doubtful == 0;
  }

 private:
  void copy(const Integers& panel, int to, int lanes, int width, Integers& tile) const {
    for (std::int64_t line = 0; line < quantiser_.lines(); ++line)
      std::copy_n(panel.data() + line * kWidth, lanes, tile.data() + line * width + to);
  }

  const PairProgram& program_;
  const plan::TileShape tile_;
  const Quantiser& quantiser_;
  std::vector<float> params_;
  Integers x_, z_;
  std::vector<float> acc_;
  float identity_ = 0;
  plan::UpdateArgs args_{};
};

bool most_stand(Trial&& trial, const std::vector<Integers>& x, const std::vector<Integers>& z) {
  int good = 0;
  for (std::size_t i = 0; i < x.size(); ++i) good += trial.stands(x, z, i);
  return good >= kGoodPerBad * (static_cast<int>(x.size()) - good);
}

}  // namespace

std::vector<float> with_step(const plan::PairPlan& plan, std::vector<float> params, const Quantiser& quantiser) {
  params.resize(plan.integers.step_slot);
  params.push_back(static_cast<float>(static_cast<double>(quantiser.step()) * plan.integers.factor));
  return params;
}

std::shared_ptr<const Quantiser> choose_quantiser(const PairProgram& program, const PairItem& item,
                                                  const std::vector<double>& params) {
  const std::int64_t features = item.x.features;
  const std::int64_t most = item.x.count * item.z.count < kManyPairs ? kPanels : kPanelsOfMany;
  const std::vector<Values> x = sampled(Packer<float>(program.packs.x, item.x, kWidth, item.weights, params), most);
  const std::vector<Values> z = sampled(Packer<float>(program.packs.z, item.z, kWidth, item.weights, params), most);
  if (all_empty(x) || all_empty(z)) return nullptr;
  const Values centres = centres_of(x, z, features);
  float farthest = 0;
  for (float centre : centres) farthest = std::max(farthest, std::fabs(centre));
  const double factor = program.plan().integers.factor;
  std::int64_t tried = 0;
  for (std::int64_t longest : plan::kIntegerChunks) {
    const std::int64_t chunk = plan::integer_chunk(features, longest);
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
    const std::vector<Integers> xs = quantised(x, *quantiser), zs = quantised(z, *quantiser);
    // Points as far apart as they are from the centres, together: bounds beyond that need no trial.
    const double distance = factor * (middle(x_sizes.total) + middle(z_sizes.total));
    const double bound = static_cast<double>(bound_of(xs)) + bound_of(zs);
    if (bound > kMostFromChunks * distance) return nullptr;
    if (bound <= distance && most_stand(Trial(program, *quantiser, features), xs, zs)) return quantiser;
  }
  return nullptr;
}

}  // namespace mercer::cpu
