// Which tiles of a call need no computation, by the mask of its formula (plan/forms/pair_mask.h).
//
//   panels of z  ─▶  · · · m m m 0 0     m  open: halved, down to single tiles
//                    · · m m 0 0 0 0     0  known: filled, or skipped by a fold to which they add nothing
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cpu/pack/points.h"
#include "plan/cpu/planner.h"

namespace mercer::cpu {

/// Whether a call is so large that looking for known tiles takes little of its time. `least_gain`: as of maxima
/// (plan::kLeastGain); 0: every call is.
inline bool mask_pays(std::int64_t m, std::int64_t n, std::int64_t features, double least_gain) {
  constexpr double kLeastWork = 1 << 23, kEpilogue = 16;  // pairs times features, of which an epilogue is so many
  const double work = static_cast<double>(m) * static_cast<double>(n) * (static_cast<double>(features) + kEpilogue);
  return work * plan::kLeastGain >= kLeastWork * least_gain;
}

/// The intervals of the values of points, for runs of panels.
class PanelIntervals {
 public:
  PanelIntervals() = default;
  PanelIntervals(const Points& points, int width, Dtype type);
  /// The interval of panels first … end - 1; 0 to 0 where no values were read.
  plan::Interval of(std::int64_t first, std::int64_t end) const;

 private:
  std::int64_t leaves_ = 0;
  std::vector<plan::Interval> tree_;  // node i has the nodes 2 i and 2 i + 1 below it
};

/// Panels of rows that are all of one kind against a panel of columns.
struct MaskRun {
  std::int64_t first = 0, end = 0;
  bool is_known = false;
  double value = 0;
};

class TileMask {
 public:
  /// `params`: those of each member of a call, in the plan's order. All that it is given must outlive it.
  TileMask(const plan::PairPlan& plan, const PairItem& item, const std::vector<std::span<const double>>& params,
           double least_gain);
  /// A call with one member.
  TileMask(const plan::PairPlan& plan, const PairItem& item, const std::vector<double>& params, double least_gain);

  explicit operator bool() const { return !params_.empty(); }
  /// Numbers that an answer has: the outputs of each member.
  std::size_t values() const { return params_.size() * static_cast<std::size_t>(mask_.outputs()); }
  /// Panels x0 … x1 - 1 of rows against z0 … z1 - 1 of columns. `known`: values() numbers.
  plan::MaskAnswer of(std::int64_t x0, std::int64_t x1, std::int64_t z0, std::int64_t z1, double* known) const;
  /// The runs of panels x0 … x1 - 1 against panel z, for one member with one output. Without a mask it is one run.
  void runs(std::int64_t x0, std::int64_t x1, std::int64_t z, std::vector<MaskRun>& to) const;
  /// body(z, end, known, is_open) for panels z0 … z1 - 1, in order: `known` points to values() numbers where all pairs
  /// of panels z … end - 1 with rows x0 … x1 - 1 have them. Elsewhere it is null, one panel is given at a time, and
  /// is_open says whether some tiles may have them.
  template <class Body>
  void each_panel(std::int64_t x0, std::int64_t x1, std::int64_t z0, std::int64_t z1, const Body& body) const {
    if (z0 >= z1) return;
    std::vector<double> known(values());
    const plan::MaskAnswer answer = *this ? of(x0, x1, z0, z1, known.data()) : plan::MaskAnswer::computed;
    if (answer == plan::MaskAnswer::open && z1 - z0 > 1) {
      const std::int64_t middle = z0 + (z1 - z0) / 2;
      each_panel(x0, x1, z0, middle, body);
      return each_panel(x0, x1, middle, z1, body);
    }
    if (answer == plan::MaskAnswer::known) return body(z0, z1, known.data(), false);
    for (std::int64_t z = z0; z < z1; ++z) body(z, z + 1, nullptr, answer == plan::MaskAnswer::open);
  }

 private:
  /// Whether some of 64 spread tiles are known. With a mask that decides no tile alone, all of them would be asked for,
  /// which takes longer than a tile of few features.
  bool knows_enough() const;
  void add_runs(std::int64_t x0, std::int64_t x1, std::int64_t z, std::vector<MaskRun>& to) const;

  const plan::PairMask& mask_;
  const PairItem& item_;
  std::vector<std::span<const double>> params_;  // of no member where there is no mask, or none that pays
  std::int64_t rows_, cols_;
  PanelIntervals row_values_, col_values_;
};

}  // namespace mercer::cpu
