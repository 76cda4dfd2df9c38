// What a gradient contracts over n: out[o, m, k] = sum over n of coef[o, n] φ(x[m, k], z[n, k], planes of values of
// the pair (m, n)). Several may share the planes of a pass.
//
// For some points n of a block, panel of features and tile of outputs, and some rows m at a time: accumulators over n
// in registers; points n of a panel lie together, and so many of them that the first-level cache keeps them from rows
// to rows. Sums over n run in the computing type over these points, at most a block, then in double. Planes that are
// factors of φ are folded into the coefficients, once per (m, n, o) instead of once per (m, n, k). The fast variant
// of φ runs where all values of the rows of x and of the block of z are of its magnitudes, the scaled one where sums of
// powers left the range (ir/passes/safe_field.h).
//
// A fold has states in place of a sum. Between two runs of the kernel they lie where sums do, as doubles, which hold
// values of the computing type as they are; states that are sums start each run at zero, as sums do.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "backend/cpu/gradient/largest_value.h"
#include "backend/cpu/pairs/operations.h"
#include "core/integers.h"
#include "plan/cpu/registers.h"

namespace mercer::cpu {

/// Bytes of points n that stay in the first-level cache, and of coefficients of rows that share them in the second.
inline constexpr std::int64_t kPointBytes = 24 << 10, kCoefficientBytes = 64 << 10;

/// Features, and coefficients and weights of pairs, that a zero makes zeros of whatever else is multiplied with them.
inline constexpr ir::Magnitudes kMildFeatures{0, 1e18}, kMildFactors{0, 1e9};
/// Products of so large a field with such factors are no infinities.
inline constexpr double kMostMild = 1e37;

/// What is multiplied with the sums of row m over so many points: sums of nothing are 0, whatever that is.
inline double scale_of_row(const Points& scale, std::int64_t m, std::int64_t points) {
  const bool has_scale = scale.data != nullptr && points > 0;
  return has_scale ? read_element(scale.data, scale.dtype, m * scale.point_stride) : 1.0;
}

/// Coefficients [points][OUTPUTS] times a value of each point, by loops that compilers make ones of vectors.
template <class T, int OUTPUTS>
void scale_points(T* to, const T* coef, const T* scale, std::int64_t points) {
  for (std::int64_t n = 0; n < points; ++n)
    for (int h = 0; h < OUTPUTS; ++h) to[n * OUTPUTS + h] = coef[n * OUTPUTS + h] * scale[n];
}
template <class T, std::size_t... OUTPUTS>
constexpr auto scale_table(std::index_sequence<OUTPUTS...>) {
  return std::array{scale_points<T, static_cast<int>(OUTPUTS) + 1>...};
}

/// A worker's own memory.
struct ContractionScratch {
  AlignedBuffer scaled, row, row_values, one, partial, sums;
  std::vector<std::uint8_t> finite;  // of rows that go together
  std::vector<std::uint8_t> beyond;  // those of a block where a unit is not 1
};
/// Rows m0 … m0 + count - 1, and points n0 … n0 + present - 1.
struct PlaneBlock {
  std::int64_t m0, count, n0, present;
};

template <class T>
class Contraction {
 public:
  /// Takes panels of `rows` rows m and blocks of `width` points n.
  Contraction(const FieldItem& item, std::int64_t rows, std::int64_t width)
      : field_(*item.program), plan_(*field_.plan), item_(item), features_(item.z.features),
        cols_(plan_.source(false).cols()), padded_(round_up(features_, cols_)), rows_(rows), width_(width),
        padded_rows_(round_up(rows, std::int64_t{plan_.rows})) {
    if (!plan_.units.empty()) ones_.assign(width_, T(1));
    const std::vector<double> params = with_uniforms(plan_.uniforms, item.params, features_);
    params_.assign(params.begin(), params.end());
    points_ = std::clamp<std::int64_t>(kPointBytes / (cols_ * static_cast<std::int64_t>(sizeof(T))), 1, width_);
    const std::int64_t of_row = tiles() * width_ * plan_.outputs * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t fitting = kCoefficientBytes / of_row / plan_.rows * plan_.rows;
    together_ = plan_.scale_slots.empty() ? padded_rows_ : std::clamp<std::int64_t>(fitting, plan_.rows, padded_rows_);
  }

  /// Rows of the planes that are read, some of them after the last one of a panel.
  std::int64_t padded_rows() const { return padded_rows_; }

  void pack(const RunOptions& run) {
    pack_points(run);
    find_finite_blocks();
    pack_weights();
    pack_coefficients();
    pack_point_values(item_.z, z_values_, round_up(item_.z.count, width_));
  }

  /// Looks, for `adds_nothing`, at all that is multiplied with planes.
  void look_at_factors() {
    const bool is_product = !plan_.fold && plan_.units.empty() && !plan_.scale_slots.empty();
    is_mild_ = is_product && largest_value(plan_.program, kMildFeatures.most) <= kMostMild &&
               (!field_.fast_kernel || largest_value(plan_.fast_program, kMildFeatures.most) <= kMostMild) &&
               all_within(kMildFeatures, z_.as<T>(), item_.z.count * padded_) &&
               all_within(kMildFactors, coef_.as<T>(), tiles() * item_.z.count * plan_.outputs);
    std::vector<T> row(static_cast<std::size_t>(padded_));
    for (std::int64_t m = 0; is_mild_ && item_.x.data != nullptr && m < item_.x.count; ++m) {
      pack_row(item_.x, m, padded_, row.data());
      is_mild_ = all_within(kMildFeatures, row.data(), padded_);
    }
  }
  /// Whether pairs with these values in the first planes add zeros alone, where the other planes are kMildFactors.
  bool adds_nothing(const std::vector<double>& known) const {
    bool has_zero = false;
    for (const int slot : plan_.scale_slots) {
      if (slot >= std::ssize(known)) continue;
      const double value = known[static_cast<std::size_t>(slot)];
      if (!(std::abs(value) <= kMildFactors.most)) return false;
      has_zero = has_zero || value == 0;
    }
    return is_mild_ && has_zero;
  }

  void begin(std::int64_t m0, std::int64_t count, ContractionScratch& w) const {
    w.sums.reserve(rows_ * state() * sizeof(double));
    w.row.reserve(padded_rows_ * padded_ * sizeof(T));
    w.one.reserve(padded_ * sizeof(T));
    w.partial.reserve(plan_.rows * plan_.outputs * plan_.states() * cols_ * sizeof(T));
    w.scaled.reserve(together_ * tiles() * width_ * plan_.outputs * sizeof(T));
    start_states(w.sums.as<double>());
    w.finite.assign(static_cast<std::size_t>(padded_rows_ / plan_.rows), field_.fast_kernel != nullptr);
    for (std::int64_t r = 0; r < padded_rows_; ++r) pack_x(m0, r, count, w);
    w.row_values.reserve(2 * padded_rows_ * sizeof(T));
    std::fill_n(w.row_values.as<T>(), 2 * padded_rows_, T(0));
    for (std::int64_t r = 0; r < count; ++r) {
      T* const values = w.row_values.as<T>() + 2 * r;
      values[plan::kUserSlot] = static_cast<T>(item_.x.user[m0 + r]);
      values[plan::kIndexSlot] = static_cast<T>(m0 + r + item_.x.index_offset);
    }
  }

  /// `planes`: [slot][row][width_].
  void add(const PlaneBlock& block, const T* planes, ContractionScratch& w) const {
    for (std::int64_t first = 0; first < block.count; first += together_)
      add_rows({block, planes, first, std::min(first + together_, block.count)}, w);
  }

  void end(std::int64_t m0, std::int64_t count, ContractionScratch& w) const {
    for (std::int64_t r = 0; r < count; ++r) {
      if (field_.finish) finish_row(r, w);
      write_row(m0 + r, w.sums.as<double>() + r * state());
    }
  }

 private:
  static constexpr auto kScale = scale_table<T>(std::make_index_sequence<plan::kMostFieldOutputs>());

  std::int64_t tiles() const { return ceil_div(item_.outputs, plan_.outputs); }
  std::int64_t of_tile() const { return std::int64_t{plan_.outputs} * plan_.states(); }
  std::int64_t state() const { return tiles() * of_tile() * padded_; }
  bool is_summed(std::int64_t slot) const {
    return !plan_.fold || plan_.fold.summed[static_cast<std::size_t>(slot % plan_.states())];
  }

  /// [row][output][state][padded_]
  void start_states(double* to) const {
    const std::int64_t lines = rows_ * tiles() * of_tile();
    for (std::int64_t line = 0; line < lines; ++line) {
      const auto slot = static_cast<std::size_t>(line % plan_.states());
      std::fill_n(to + line * padded_, padded_, plan_.fold ? plan_.identity[slot] : 0.0);
    }
  }

  /// What a run of the kernel starts with, of the features from k0 on; and what it leaves.
  void load_states(const double* states, T* partial) const {
    for (std::int64_t s = 0; s < of_tile(); ++s, partial += cols_, states += padded_) {
      if (is_summed(s)) std::fill_n(partial, cols_, T(0));
      else std::transform(states, states + cols_, partial, [](double value) { return static_cast<T>(value); });
    }
  }
  void store_states(const T* partial, double* states) const {
    for (std::int64_t s = 0; s < of_tile(); ++s, partial += cols_, states += padded_) {
      if (!is_summed(s)) std::copy_n(partial, cols_, states);
      else
        for (std::int64_t c = 0; c < cols_; ++c) states[c] += static_cast<double>(partial[c]);
    }
  }

  /// The results of a fold take the place of its first states: one step of a kernel of its own, of no point n.
  void finish_row(std::int64_t r, ContractionScratch& w) const {
    T* const partial = w.partial.as<T>();
    plan::FieldArgs args{};
    args.params = params_.data();
    args.row = w.row_values.as<T>() + 2 * r;
    args.acc = partial;
    args.n = 1;
    for (std::int64_t t = 0; t < tiles(); ++t)
      for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_) {
        double* const states = w.sums.as<double>() + r * state() + t * of_tile() * padded_ + k0;
        for (std::int64_t s = 0; s < of_tile(); ++s)
          for (std::int64_t c = 0; c < cols_; ++c) partial[s * cols_ + c] = static_cast<T>(states[s * padded_ + c]);
        (*field_.finish)(args);
        for (std::int64_t s = 0; s < of_tile(); s += plan_.states())
          std::copy_n(partial + s * cols_, cols_, states + s * padded_);
      }
  }

  /// z as [panel of features][point][cols_], in the computing type, padded with zeros.
  void pack_points(const RunOptions& run) {
    const Points& points = item_.z;
    z_ = aligned_array<T>(checked_product({points.count, padded_}));
    constexpr std::int64_t kTask = 64;  // points of a task
    std::vector<AlignedBuffer> rows(static_cast<std::size_t>(run.workers));
    const auto pack = [&](std::int64_t task, int worker) {
      AlignedBuffer& row = rows[static_cast<std::size_t>(worker)];
      row.reserve(padded_ * sizeof(T));
      for (std::int64_t p = task * kTask; p < std::min((task + 1) * kTask, points.count); ++p) {
        pack_row(points, p, padded_, row.as<T>());
        for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_)
          std::copy_n(row.as<T>() + k0, cols_, z_.as<T>() + k0 * points.count + p * cols_);
      }
    };
    run.pool->run(ceil_div(points.count, kTask), pack, nullptr, run.workers);
  }

  void find_finite_blocks() {
    const std::int64_t points = item_.z.count;
    for (std::int64_t n0 = 0; n0 < points; n0 += width_) {
      const std::int64_t present = std::min<std::int64_t>(width_, points - n0);
      bool within = true;
      for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_)
        within = within && all_within(plan_.magnitudes, z_.as<T>() + k0 * points + n0 * cols_, present * cols_);
      z_finite_.push_back(within);
    }
  }

  void pack_weights() {
    weights_.assign(padded_, T(1));
    if (item_.weights) std::copy_n(item_.weights, features_, weights_.begin());
    factors_.assign(features_, 1.0);
    if (plan_.weight.outputs.empty()) return;
    for (std::int64_t k = 0; k < features_; ++k) factors_[k] = ir::run<double>(plan_.weight, {item_.weights[k]})[0];
  }

  /// [tile][n][outputs of the tile], zeros beyond the last output.
  void pack_coefficients() {
    const std::int64_t points = item_.z.count;
    coef_ = aligned_array<T>(checked_product({tiles(), points, plan_.outputs}));
    T* target = coef_.as<T>();
    if (item_.coef == nullptr) {
      std::fill_n(target, tiles() * points * plan_.outputs, T(0));
      return;
    }
    for (std::int64_t t = 0; t < tiles(); ++t)
      for (std::int64_t n = 0; n < points; ++n)
        for (int h = 0; h < plan_.outputs; ++h) {
          const std::int64_t o = t * plan_.outputs + h;
          const std::int64_t index = o * item_.coef_output_stride + n * item_.coef_point_stride;
          *target++ = o < item_.outputs ? static_cast<T>(read_element(item_.coef, item_.coef_dtype, index)) : T(0);
        }
  }

  /// [block of width_][slot][width_]: the caller's value and the index, for fields that read col or j.
  void pack_point_values(const Points& points, std::vector<T>& values, std::int64_t padded) const {
    values.assign(2 * padded, T(0));
    for (std::int64_t n = 0; n < points.count; ++n) {
      T* block = values.data() + n / width_ * 2 * width_;
      block[plan::kUserSlot * width_ + n % width_] = static_cast<T>(points.user[n]);
      block[plan::kIndexSlot * width_ + n % width_] = static_cast<T>(n + points.index_offset);
    }
  }

  /// Row r of the panel as [rows that go together][panel of features][row of these][cols_]; zeros after the last row.
  void pack_x(std::int64_t m0, std::int64_t r, std::int64_t count, ContractionScratch& w) const {
    T* const one = w.one.as<T>();
    if (r < count && item_.x.data != nullptr) pack_row(item_.x, m0 + r, padded_, one);
    else std::fill_n(one, padded_, T(0));
    const std::int64_t group = r / plan_.rows;
    auto& finite = w.finite[static_cast<std::size_t>(group)];
    finite = finite && all_within(plan_.magnitudes, one, padded_);
    T* const to = w.row.as<T>() + group * plan_.rows * padded_ + r % plan_.rows * cols_;
    for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_) std::copy_n(one + k0, cols_, to + k0 * plan_.rows);
  }

  /// Rows first … end - 1 of a block, whose coefficients are made together.
  struct Rows {
    const PlaneBlock& block;
    const T* planes;
    std::int64_t first, end;
  };
  void add_rows(const Rows& rows, ContractionScratch& w) const {
    find_units(rows, w);
    for (std::int64_t t = 0; t < tiles(); ++t)
      for (std::int64_t r = rows.first; r < round_up(rows.end, std::int64_t{plan_.rows}); ++r)
        scale_coefficients(rows, t, r, w);
    for (std::int64_t n = 0; n < rows.block.present; n += points_)
      for (std::int64_t k0 = 0; k0 < padded_; k0 += cols_) {
        constexpr std::int64_t kAskAfter = 256;  // panels of features
        if (k0 / cols_ % kAskAfter == kAskAfter - 1) stop_if_cancelled();
        for (std::int64_t t = 0; t < tiles(); ++t)
          for (std::int64_t r = rows.first; r < rows.end; r += plan_.rows) add_points(rows, n, k0, t, r, w);
      }
  }

  void find_units(const Rows& rows, ContractionScratch& w) const {
    if (plan_.units.empty()) return;
    w.beyond.assign(w.finite.size(), 0);
    for (const int slot : plan_.units)
      for (std::int64_t r = rows.first; r < rows.end; ++r) {
        const T* const units = rows.planes + r * width_ + slot * static_cast<std::int64_t>(plan_.pair_stride);
        const bool all_one = std::memcmp(units, ones_.data(), rows.block.present * sizeof(T)) == 0;
        if (!all_one) w.beyond[static_cast<std::size_t>(r / plan_.rows)] = 1;
      }
  }

  /// The rows from r on that go together, points from n on, features from k0 on, a tile of outputs.
  void add_points(const Rows& all, std::int64_t n, std::int64_t k0, std::int64_t t, std::int64_t r,
                  ContractionScratch& w) const {
    const PlaneBlock& block = all.block;
    const std::int64_t rows = std::min<std::int64_t>(plan_.rows, all.end - r);
    const std::int64_t of_z = block.n0 / width_;
    const auto group = static_cast<std::size_t>(r / plan_.rows);
    const bool fast = w.finite[group] && z_finite_[of_z], beyond = !plan_.units.empty() && w.beyond[group] != 0;
    const jit::FieldKernel& kernel = beyond ? field_.scaled_kernel() : fast ? *field_.fast_kernel : *field_.kernel;
    plan::FieldArgs args{};
    args.params = params_.data();
    args.row = w.row_values.as<T>() + 2 * r;
    args.col = z_values_.data() + of_z * 2 * width_ + n;
    args.pair = all.planes + r * width_ + n;
    args.acc = w.partial.as<T>();
    args.z_stride = cols_ * static_cast<std::int64_t>(sizeof(T));
    args.n = std::min(points_, block.present - n);
    args.x = w.row.as<T>() + r * padded_ + k0 * plan_.rows;
    args.z = z_.as<T>() + k0 * item_.z.count + (block.n0 + n) * cols_;
    args.w = weights_.data() + k0;
    args.coef = (plan_.scale_slots.empty() ? coefficients(block, t) : scaled(all, t, r, w)) + n * plan_.outputs;
    const auto states = [&](std::int64_t i) {
      return w.sums.as<double>() + ((r + i) * tiles() + t) * of_tile() * padded_ + k0;
    };
    if (plan_.fold) load_states(states(0), w.partial.as<T>());  // its rows go one by one
    kernel(args);
    for (std::int64_t i = 0; i < rows; ++i) store_states(w.partial.as<T>() + i * of_tile() * cols_, states(i));
  }

  /// [n][outputs of the tile], of all rows; and of row r, times the pair values that are factors of φ.
  const T* coefficients(const PlaneBlock& block, std::int64_t tile) const {
    return coef_.as<T>() + (tile * item_.z.count + block.n0) * plan_.outputs;
  }
  T* scaled(const Rows& rows, std::int64_t tile, std::int64_t r, ContractionScratch& w) const {
    return w.scaled.as<T>() + (tile * together_ + r - rows.first) * width_ * plan_.outputs;
  }

  /// Zeros for a row that is not there.
  void scale_coefficients(const Rows& rows, std::int64_t tile, std::int64_t r, ContractionScratch& w) const {
    if (plan_.scale_slots.empty()) return;
    const std::int64_t present = rows.block.present;
    const T* coef = coefficients(rows.block, tile);
    T* const to = scaled(rows, tile, r, w);
    if (r >= rows.end) {
      std::fill_n(to, present * plan_.outputs, T(0));
      return;
    }
    for (const int slot : plan_.scale_slots) {
      const T* scale = rows.planes + r * width_ + slot * static_cast<std::int64_t>(plan_.pair_stride);
      kScale[plan_.outputs - 1](to, coef, scale, present);
      coef = to;
    }
  }

  void write_row(std::int64_t m, const double* sums) const {
    const double own = scale_of_row(item_.row_scale, m, item_.z.count);
    for (std::int64_t o = 0; o < item_.outputs; ++o) {
      T* row = static_cast<T*>(item_.out) + o * item_.out_output_stride + m * item_.out_row_stride;
      for (std::int64_t k = 0; k < features_; ++k)
        row[k * item_.out_feature_stride] =
            static_cast<T>(own * factors_[k] * sums[o * plan_.states() * padded_ + k]);
    }
  }

  const FieldProgram& field_;
  const plan::FieldPlan& plan_;
  const FieldItem& item_;
  std::int64_t features_, cols_, padded_, rows_, width_;
  std::int64_t padded_rows_;                // up to those that go together
  std::int64_t points_ = 0, together_ = 0;  // n of one run of the kernel; rows whose coefficients are made together
  std::vector<T> params_, weights_, z_values_, ones_;
  std::vector<double> factors_;             // of the results of a feature
  AlignedBuffer z_, coef_;
  std::vector<std::uint8_t> z_finite_;      // per block of width_ points
  bool is_mild_ = false;
};

/// The dot product of two arrays, in parts that compilers make vectors of, then in double.
template <class T>
double dot(const T* a, const T* b, std::int64_t count) {
  constexpr std::int64_t kParts = 64 / sizeof(T);
  T part[kParts] = {};
  std::int64_t n = 0;
  for (; n + kParts <= count; n += kParts)
    for (std::int64_t i = 0; i < kParts; ++i) part[i] += a[n + i] * b[n + i];
  for (std::int64_t i = 0; n + i < count; ++i) part[i] += a[n + i] * b[n + i];
  double sum = 0;
  for (const T value : part) sum += static_cast<double>(value);
  return sum;
}

/// A sum over n of a plane times coefficients, or times the weights of the pairs.
template <class T>
class PlaneSum {
 public:
  PlaneSum(const SumItem& item, std::int64_t width, std::int64_t stride) : item_(item), width_(width), stride_(stride) {
    const Points& coef = item.coef;
    coef_.resize(coef.data == nullptr ? 0 : coef.count);
    for (std::size_t n = 0; n < coef_.size(); ++n)
      pack_row(coef, static_cast<std::int64_t>(n), 1, &coef_[n]);
  }

  /// `weights`: the plane of them. `sums`: of the rows of a panel.
  void add(const PlaneBlock& block, const T* planes, const T* weights, double* sums) const {
    const T* const plane = planes + item_.plane * stride_;
    for (std::int64_t r = 0; r < block.count; ++r)
      sums[r] += dot(plane + r * width_, coef_.empty() ? weights + r * width_ : coef_.data() + block.n0, block.present);
  }

  /// As those of a contraction.
  void look_at_factors() { is_mild_ = all_within(kMildFactors, coef_.data(), std::ssize(coef_)); }
  bool adds_nothing(const std::vector<double>& known) const {
    return is_mild_ && item_.plane < std::ssize(known) && known[static_cast<std::size_t>(item_.plane)] == 0;
  }

  void end(std::int64_t m0, std::int64_t count, const double* sums) const {
    for (std::int64_t r = 0; r < count; ++r)
      static_cast<T*>(item_.out)[(m0 + r) * item_.out_stride] =
          static_cast<T>(scale_of_row(item_.row_scale, m0 + r, item_.points) * sums[r]);
  }

 private:
  const SumItem& item_;
  std::int64_t width_, stride_;
  std::vector<T> coef_;
  bool is_mild_ = false;
};

}  // namespace mercer::cpu
