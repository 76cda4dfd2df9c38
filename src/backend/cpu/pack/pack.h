// Packing: strided points of any dtype → panels of the computing type, one column of `width` points after another.
//
//   panel p:  [k][stream][width]      points p * width … p * width + width - 1, short panels padded with the last point
//   slots p:  [slot][width]           row (col) value, index, stage-0 values
//
// Stage 0 and the streams run here, in double, in blocks of features; where the only stream is the feature itself, it
// is copied and transposed. While a panel is hot in cache its values are checked for NaN, Inf and size, and become
// panels of maxima where the call asks for them and they fit (quantise.h, centre.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "backend/cpu/pack/centre.h"
#include "backend/cpu/pack/element_program.h"
#include "backend/cpu/pack/points.h"
#include "backend/cpu/pack/quantise.h"
#include "backend/cpu/pair_sums.h"
#include "core/integers.h"
#include "core/system/aligned.h"
#include "core/system/parallel.h"
#include "plan/cpu/planner.h"

namespace mercer::cpu {

/// Packed points kept at a time; more points take several passes.
inline constexpr std::int64_t kPackedBytes = std::int64_t{256} << 20;

/// Stage 0 and streams of a plan, ready to run.
struct PackPrograms {
  explicit PackPrograms(const plan::PairPlan& plan);
  struct Stage {
    ElementProgram update, finish;
    std::vector<double> identity;
    bool is_squares = false;
  };
  struct Side {
    std::vector<Stage> stages;
    std::vector<ElementProgram> streams;  // an empty entry copies
    std::vector<bool> plain;
    int slots = 0;                        // 0: the programs read no value per point
    ir::Magnitudes magnitudes;
    ir::Magnitudes within;                // points of these need no second look
    struct Size {                         // of a point, for plan::CloseSum
      int slot, stream, power;
      bool weighted;
    };
    std::vector<Size> sizes;
    const SumKernels* sums = nullptr;
    bool copies() const { return plain.size() == 1 && plain[0]; }
  };
  Side x, z;
};

/// What the float64 programs of one panel read in addition to its features.
struct PanelInputs;

/// True when every value is 0 or of one of these magnitudes.
template <class T>
bool all_within(const ir::Magnitudes& magnitudes, const T* values, std::int64_t count);

/// What a packed panel holds: any values, those of the fast variant's magnitudes times its scale, such that keep sums
/// within the range (plan/cpu/guard.h), or what sums of maxima take in place of those.
enum class PanelKind : std::uint8_t { general, far, finite, maxima };

/// What makes panels of maxima.
template <class T>
using MaximaOf = std::conditional_t<std::is_same_v<T, double>, Centring, Quantiser>;

/// What a tile of these two panels computes with.
inline PanelKind common(PanelKind a, PanelKind b) {
  if (a == b) return a;
  return std::min({a, b, PanelKind::finite});
}

template <class T>
class Packer {
 public:
  Packer(const PackPrograms::Side& side, const Points& points, int width, const double* weights,
         const std::vector<double>& params);

  std::int64_t panels() const { return ceil_div(points_.count, width_); }
  std::int64_t panel_size() const {  // elements
    if (part_ > 0) return 0;
    return (maxima_ ? maxima_->lines() : points_.features * streams_) * width_;
  }
  std::int64_t slots_size() const { return static_cast<std::int64_t>(side_.slots) * width_; }
  /// Points of a panel that exist.
  int points_in(std::int64_t panel) const;
  std::int64_t values_size() const { return points_.features * streams_ * width_; }
  int width() const { return width_; }
  /// Panels are packed for maxima from now on, where they fit. `rows`: of the broadcast side.
  void use_maxima(std::shared_ptr<const MaximaOf<T>> maker, bool rows) {
    maxima_ = std::move(maker);
    rows_ = rows;
  }
  /// Panels have no values from now on: the engine packs some features at a time where it needs them.
  void use_parts(std::int64_t features) { part_ = features; }
  /// No panel is finite from now on: what scales its sums is out of what the guard reckons with.
  void look_always() { looks_always_ = true; }
  std::int64_t part_size() const { return part_ * streams_ * width_; }
  PanelKind pack(std::int64_t panel, T* values, T* slots) const;
  /// Its slots alone.
  void pack_slots(std::int64_t panel, T* slots) const;
  /// What parts of a panel are made of: values of its points, stage 0.
  std::shared_ptr<const PanelInputs> inputs_of(std::int64_t panel) const;
  /// Features k … k + count - 1 of a panel; true when all are of the side's magnitudes.
  bool pack_part(const PanelInputs& inputs, std::int64_t panel, std::int64_t k, std::int64_t count, T* values) const;
  /// The values themselves, unscaled, and their kind without maxima. `slots` may be null.
  PanelKind pack_values(std::int64_t panel, T* values, T* slots) const;

 private:
  template <class Out>
  void copy(std::int64_t panel, std::int64_t k0, std::int64_t k1, Out* to) const;
  template <class In, class Out>
  void transpose(std::int64_t panel, std::int64_t k0, std::int64_t k1, Out* to) const;
  /// The point after lane r of a panel: the last one fills a short panel up.
  std::int64_t point(std::int64_t panel, int r) const { return panel * width_ + std::min(r, points_in(panel) - 1); }
  template <class Body>
  void each_block(std::int64_t panel, std::int64_t first, std::int64_t end, Body&& body) const;
  void run_stages(std::int64_t panel, PanelInputs& inputs) const;
  void add_squares(std::int64_t panel, double* sums) const;
  bool fill_squares(std::int64_t panel, T* slots) const;
  void run_streams(const PanelInputs& inputs, std::int64_t panel, std::int64_t first, std::int64_t end,
                   T* values) const;
  void fill_stages(const PanelInputs& inputs, T* slots) const;
  void fill_slots(std::int64_t panel, T* slots) const;
  void add_sizes(const T* values, std::int64_t first, std::int64_t count, T* slots) const;
  void add_sizes_by_parts(const PanelInputs& inputs, std::int64_t panel, T* slots) const;

  const PackPrograms::Side& side_;
  const Points& points_;
  int width_, streams_;
  const double* weights_;
  const std::vector<double>& params_;
  std::shared_ptr<const MaximaOf<T>> maxima_;
  bool rows_ = false, looks_always_ = false;
  std::int64_t part_ = 0;
};

/// A packed panel.
template <class T>
struct PanelView {
  const T* values;
  const T* slots;
  std::int64_t index;
  PanelKind kind;
};

/// All panels of one side, or a range of them.
template <class T>
struct PackedSide {
  AlignedBuffer values, slots;
  std::vector<PanelKind> kinds;  // per panel
  std::int64_t first = 0, count = 0;
  std::int64_t panel_size = 0, slots_size = 0;

  void pack(const Packer<T>& packer, std::int64_t first_panel, std::int64_t panel_count, Pool& pool);
  /// Its two halves: memory for the panels, and panel number first + `at`.
  void reserve(const Packer<T>& packer, std::int64_t first_panel, std::int64_t panel_count);
  void pack_one(const Packer<T>& packer, std::int64_t at) {
    kinds[at] = packer.pack(first + at, values.as<T>() + at * panel_size, slots.as<T>() + at * slots_size);
  }
  const T* panel(std::int64_t p) const { return values.as<T>() + (p - first) * panel_size; }
  const T* slot(std::int64_t p) const { return slots.as<T>() + (p - first) * slots_size; }
  PanelView<T> view(std::int64_t p) const { return {panel(p), slot(p), p, kinds[p - first]}; }
};

extern template class Packer<float>;
extern template class Packer<double>;
extern template struct PackedSide<float>;
extern template struct PackedSide<double>;

}  // namespace mercer::cpu
