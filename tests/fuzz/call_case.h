// A call of the fuzzer, as numbers and a formula: every array follows from them, so that a line of text makes the call
// again, and a smaller case keeps the values that it still has.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "core/half.h"
#include "fuzz/formula_generator.h"
#include "ir/expr/evaluate.h"
#include "ops/testing.h"

namespace mercer::fuzz {

using testing_support::Array;
using testing_support::Shape;

enum class Verb : std::uint8_t {
  derivative,  // of the formula alone: differentiate against central differences of the oracle
  pairwise, kernel_product, kernel_reduce, knn, kernel_gradient, gradient_field, kernel_agop,
  product_gradient, product_backward, pairwise_backward,
  kron, solve,  // of matrices: matrix_check.h
};
inline constexpr const char* kVerbs[] = {"derivative",     "pairwise",         "kernel_product",    "kernel_reduce",
                                         "knn",            "kernel_gradient",  "gradient_field",    "kernel_agop",
                                         "product_gradient", "product_backward", "pairwise_backward",
                                         "kron",           "solve"};

inline constexpr Dtype kPointDtypes[] = {Dtype::float32,  Dtype::float64, Dtype::float16, Dtype::bfloat16,
                                         Dtype::uint8, Dtype::int8, Dtype::int32};

/// What the values are like.
enum class DataKind : std::uint8_t { normal, coincident, clusters, heavy_tails, offset, whole, zeros, specials, ends };
inline constexpr int kDataKinds = 9;

struct Case {
  Expr formula;
  Verb verb = Verb::pairwise;
  Dtype dtype = Dtype::float32;
  std::int64_t m = 1, n = 1, k = 1;
  std::int64_t count = 1;   // columns of a product, outputs of a gradient, neighbours; 0: v or coef without that axis
  std::int64_t option = 0;  // kind of a reduction, dtype of pairwise's output, z = nullptr: see below
  std::int64_t data = 0, layout = 0, batch = 0, arrays = 0, same = 0, offset = 0;
  std::uint64_t values = 1;

  /// The numbers by the names that the command line has for them.
  template <class Self, class Visit>
  static void each_number(Self& self, const Visit& visit) {
    visit("m", self.m), visit("n", self.n), visit("k", self.k), visit("count", self.count);
    visit("option", self.option), visit("data", self.data), visit("layout", self.layout), visit("batch", self.batch);
    visit("arrays", self.arrays), visit("same", self.same), visit("offset", self.offset);
  }

  std::string to_text() const {
    std::string text = fmt::format("--verb {} --dtype {} --values {}", kVerbs[static_cast<int>(verb)], name_of(dtype),
                                   values);
    each_number(*this, [&](const char* name, std::int64_t value) { text += fmt::format(" --{} {}", name, value); });
    return text + fmt::format(" --formula '{}'", formula.to_text());
  }
};

/// Numbers that depend on what they are for alone.
class Hash {
 public:
  template <class... Parts>
  explicit Hash(Parts... parts) {
    ((state_ = mixed(state_ ^ static_cast<std::uint64_t>(parts))), ...);
  }
  std::uint64_t operator()() { return state_ = mixed(state_); }
  std::uint64_t below(std::uint64_t n) { return (*this)() % n; }
  double uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }
  double normal() {
    return std::sqrt(-2 * std::log(uniform() + 0x1p-54)) * std::cos(2 * std::numbers::pi * uniform());
  }

 private:
  static std::uint64_t mixed(std::uint64_t v) {
    v += 0x9e3779b97f4a7c15;
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9;
    v = (v ^ (v >> 27)) * 0x94d049bb133111eb;
    return v ^ (v >> 31);
  }
  std::uint64_t state_ = 0x2545f4914f6cdd1d;
};

// ---- Drawing a case. ------------------------------------------------------------------------------------------------

inline Expr drawn_formula(std::uint64_t seed) {
  Hash h(seed, 1);
  Expr f = FormulaGenerator(seed)();
  // So many programs at once that registers run out.
  if (h.below(12) == 0)
    for (std::uint64_t more = 2 + h.below(3); more > 0; --more) f = f + FormulaGenerator(h())();
  return f;
}

inline void draw_sizes(Case& c, Hash& h) {
  const auto up_to = [&](std::uint64_t most) { return static_cast<std::int64_t>(1 + h.below(most)); };
  switch (h.below(8)) {
    case 0: c.m = up_to(3), c.n = up_to(4), c.k = up_to(600); break;      // several chunks of features
    case 1: c.m = up_to(20), c.n = up_to(150), c.k = up_to(4); break;     // several panels of points
    case 2: c.m = up_to(70), c.n = up_to(20), c.k = up_to(20); break;
    default: c.m = up_to(5), c.n = up_to(9), c.k = up_to(20);
  }
}

inline Case drawn_case(std::uint64_t seed, std::optional<Verb> verb = {}) {
  Hash h(seed, 2);
  Case c;
  c.values = seed;
  c.formula = drawn_formula(seed);
  c.verb = verb ? *verb : static_cast<Verb>(h.below(std::size(kVerbs)));
  c.dtype = kPointDtypes[h.below(2) ? h.below(2) : h.below(std::size(kPointDtypes))];
  draw_sizes(c, h);
  c.count = h.below(4) == 0 ? 0 : static_cast<std::int64_t>(1 + h.below(h.below(4) ? 3 : 20));
  if (c.verb == Verb::knn) c.count = 1 + static_cast<std::int64_t>(h.below(static_cast<std::uint64_t>(c.n)));
  c.option = static_cast<std::int64_t>(h.below(6));
  c.data = static_cast<std::int64_t>(h.below(2) ? h.below(kDataKinds) : h.below(2));
  c.layout = h.below(2) ? 0 : static_cast<std::int64_t>(1 + h.below(1000));
  c.batch = h.below(3) ? 0 : static_cast<std::int64_t>(1 + h.below(4));
  c.arrays = static_cast<std::int64_t>(h.below(3));
  c.same = h.below(4) == 0 && c.verb != Verb::gradient_field;
  c.offset = h.below(4) == 0;
  if (c.same && c.verb == Verb::knn) c.count = std::min(c.count, c.m);
  return c;
}

// ---- Arrays of a case. ----------------------------------------------------------------------------------------------

/// An array and how many of its leading axes are those of a batch.
struct Operand {
  Array array;
  int lead = 0;
};

/// The part of an operand that item `index` of a batch reads, by the rule of broadcasting.
inline Tensor part_of(const Operand& operand, const Shape& index) {
  const Tensor t = operand.array;
  Shape at;
  for (int axis = 0; axis < operand.lead; ++axis) {
    const auto place = static_cast<std::size_t>(axis) + index.size() - static_cast<std::size_t>(operand.lead);
    at.push_back(t.shape[static_cast<std::size_t>(axis)] == 1 ? 0 : index[place]);
  }
  return testing_support::item(t, at);
}

/// Strides of arrays in turn: rows, columns, with gaps, backwards, and the first axis repeated (of inputs alone).
inline Shape drawn_strides(const Shape& shape, std::int64_t layout, std::uint64_t which, bool is_output) {
  Shape strides = testing_support::row_major(shape);
  if (layout == 0 || shape.empty()) return strides;
  switch (Hash(layout, which).below(is_output ? 4 : 5)) {
    case 1:
      if (shape.size() > 1) strides = testing_support::column_major(shape);
      break;
    case 2:
      for (std::size_t axis = 0; axis < shape.size(); ++axis)
        strides[axis] = strides[axis] * 2 + (axis + 1 < shape.size());
      for (std::size_t axis = shape.size(); axis-- > 1;)
        strides[axis - 1] = std::max(strides[axis - 1], shape[axis] * strides[axis] + 1);
      break;
    case 3:
      for (auto& stride : strides) stride = -stride;
      break;
    case 4: strides[0] = 0; break;
    default: break;
  }
  return strides;
}

inline double drawn_value(DataKind kind, Hash h, bool single) {
  const double g = h.normal();
  switch (kind) {
    case DataKind::heavy_tails: return std::copysign(std::exp(2 * std::abs(g)) - 1, g);
    case DataKind::offset: return 1000 + g;
    case DataKind::whole: return static_cast<double>(h.below(4));
    case DataKind::zeros: return h.below(4) ? 0.0 : g;
    case DataKind::specials: {
      static constexpr double kSpecials[] = {NAN, INFINITY, -INFINITY, -0.0};
      return h.below(24) ? g : kSpecials[h.below(4)];
    }
    case DataKind::ends: {
      const double ends[] = {1, single ? 1e18 : 1e150, single ? 1e-19 : 1e-154, single ? 1e-38 : 1e-308};
      return g * ends[h.below(4)];
    }
    default: return h.below(6) ? g : static_cast<double>(h.below(3));
  }
}

/// What the element type can hold of a value.
inline double held(double v, Dtype dtype) {
  const bool is_byte = dtype == Dtype::uint8;
  if (!is_byte && dtype != Dtype::int8 && dtype != Dtype::int32) return v;
  const double most = is_byte ? 255 : dtype == Dtype::int8 ? 127 : 2147483647;
  if (!std::isfinite(v)) return most;
  return std::clamp(std::round(3 * (is_byte ? std::abs(v) : v)), -most, most);
}

/// Which array a value is for.
enum class Role : std::uint8_t { x, z, w, row, col, param, v, weights, coef, amplitude, out };

/// What a call is given: the formula, or its derivative by x as a field, which may read less.
inline Formula formula_of(const Case& c) {
  if (c.verb != Verb::gradient_field) return Formula(c.formula);
  return Formula::field(differentiate(Formula(c.formula).expression(), points().x));
}

class Operands {
 public:
  explicit Operands(const Case& c) : case_(c), leads_(leads_of(c.batch)) {
    const Formula formula = formula_of(c);
    const ir::Uses uses = ir::uses(c.verb == Verb::gradient_field ? formula.expression() : c.formula);
    x = points(Role::x, leads_[0], c.m);
    if (!c.same) z = points(Role::z, leads_[1], c.n);
    if (uses.w) w = values(Role::w, {}, {c.k}, narrow(Role::w));
    if (uses.row) row = values(Role::row, c.layout % 2 ? leads_[0] : Shape{}, {c.m}, narrow(Role::row));
    // Values of the columns are those of the rows where the points are the same: what makes a formula symmetric.
    if (uses.col) {
      if (c.same && row) col = row;
      else col = values(Role::col, c.layout % 2 ? leads_[1] : Shape{}, {n()}, narrow(Role::col));
    }
    add_params(c.verb == Verb::gradient_field ? formula.expression() : c.formula);
    batch = batch_shape(formula, x->array, zs() ? *zs() : Tensor(x->array), arguments());
    const Dtype wide = c.dtype;
    const bool full = c.layout % 3 != 0;  // operands of the second stage of every item, or one for all
    const Shape lead = full ? batch : Shape{};
    const Shape columns = c.count ? Shape{c.count} : Shape{};
    switch (c.verb) {
      case Verb::kernel_product: v = values(Role::v, c.count ? lead : Shape{}, with({n()}, columns), wide); break;
      case Verb::product_gradient:
      case Verb::product_backward: {
        const std::int64_t e = std::max<std::int64_t>(1, c.count);
        v = values(Role::v, lead, {n(), e}, wide);
        weights = values(Role::weights, lead, {c.m, e}, wide);
        break;
      }
      case Verb::pairwise_backward: weights = values(Role::weights, lead, {c.m, n()}, wide); break;
      case Verb::gradient_field: amplitude = values(Role::amplitude, lead, {c.m, n()}, wide); [[fallthrough]];
      case Verb::kernel_gradient:
      case Verb::kernel_agop:
        coef = values(Role::coef, c.count ? lead : Shape{}, with(columns, {n()}), wide);
        break;
      default: break;
    }
  }

  std::int64_t n() const { return case_.same ? case_.m : case_.n; }
  /// Points z, or null where they are x.
  const Tensor* zs() const {
    if (!z) return nullptr;
    z_tensor_ = z->array.tensor();
    return &z_tensor_;
  }

  Arguments arguments() const {
    Arguments a;
    for (const auto& [name, array] : params) a.params[name] = array.array.tensor();
    for (const auto& [name, number] : numbers) a.params[name] = number;
    if (w) a.w = w->array.tensor();
    if (row) a.row = row->array.tensor();
    if (col) a.col = col->array.tensor();
    a.i_offset = 3 * case_.offset, a.j_offset = case_.offset;
    return a;
  }

  /// An output of `shape` per item.
  Array output(Dtype dtype, const Shape& shape, std::uint64_t which, bool batched = true) const {
    const Shape whole = batched ? with(batch, shape) : shape;
    return Array(dtype, whole, drawn_strides(whole, case_.layout, 100 + which, true));
  }

  static Shape with(Shape a, const Shape& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }

  std::optional<Operand> x, z, w, row, col, v, weights, coef, amplitude;
  std::map<std::string, Operand> params;
  std::map<std::string, double> numbers;
  Shape batch;

 private:
  static std::vector<Shape> leads_of(std::int64_t batch) {
    switch (batch) {
      case 1: return {{2}, {}};
      case 2: return {{2, 1}, {3}};
      case 3: return {{}, {2}};
      case 4: return {{2}, {2}};
      default: return {{}, {}};
    }
  }

  Dtype narrow(Role role) const {
    if (case_.layout == 0) return case_.dtype;
    const Dtype drawn = kPointDtypes[Hash(case_.layout, role, 7).below(std::size(kPointDtypes))];
    const bool is_refused = drawn == Dtype::int32 && compute_type(case_.dtype) == Dtype::float32;
    return is_refused ? Dtype::int8 : drawn;
  }

  /// The kind of data is that of the points; other operands are plain, but for NaN and infinities among them.
  DataKind kind_of(Role role) const {
    const auto kind = static_cast<DataKind>(case_.data);
    if (role == Role::x || role == Role::z) return kind;
    return kind == DataKind::whole ? kind : DataKind::normal;
  }

  double drawn(Role role, const Shape& index) const {
    Hash h(case_.values, role, 11);
    for (const std::int64_t at : index) h = Hash(h(), at);
    return drawn_value(kind_of(role), h, compute_type(case_.dtype) == Dtype::float32);
  }

  Operand values(Role role, const Shape& lead, const Shape& own, Dtype dtype) const {
    const Shape shape = with(lead, own);
    Array array(dtype, shape, drawn_strides(shape, case_.layout, static_cast<std::uint64_t>(role), false));
    testing_support::each_index(shape, [&](const Shape& at) { array.set(at, held(drawn(role, at), dtype)); });
    return {std::move(array), static_cast<int>(lead.size())};
  }

  /// Some points of z are points of x, or nearly, in kinds of data that say so.
  Operand points(Role role, const Shape& lead, std::int64_t count) const {
    Operand p = values(role, lead, {count, case_.k}, case_.dtype);
    const auto kind = static_cast<DataKind>(case_.data);
    if (role != Role::z || (kind != DataKind::coincident && kind != DataKind::clusters)) return p;
    testing_support::each_index(p.array.shape(), [&](const Shape& at) {
      const std::int64_t n = at[lead.size()], feature = at[lead.size() + 1];
      if (Hash(case_.values, n, 12).below(3) == 0) return;
      Shape source(x->array.shape().size(), 0);
      source[source.size() - 2] = n % case_.m, source.back() = feature;
      const double near = kind == DataKind::clusters ? 1e-6 * Hash(case_.values, n, feature, 13).normal() : 0;
      p.array.set(at, held(testing_support::read(x->array, source) + near, case_.dtype));
    });
    return p;
  }

  void add_params(const Expr& formula) {
    static const std::map<std::string, double> kUsual = {{"a", 1.25}, {"b", 1.5}, {"c", 0.375}};
    for (const auto& [name, usual] : parameters(formula)) {
      const double value = kUsual.count(name) ? kUsual.at(name) : usual.value_or(1);
      if (case_.arrays == 0) {
        numbers[name] = value;
        continue;
      }
      static const Shape kShapes[] = {{2}, {2}, {2, 1, 1}, {3, 1}, {2}};
      const Shape shape = case_.arrays == 1 ? Shape{} : kShapes[case_.batch];
      Array array(Hash(case_.values, name[0]).below(2) ? Dtype::float32 : Dtype::float64, shape);
      testing_support::each_index(
          shape, [&](const Shape& at) { array.set(at, value + (at.empty() ? 0 : 0.25 * static_cast<double>(at[0]))); });
      params.emplace(name, Operand{std::move(array), static_cast<int>(shape.size())});
    }
  }

  Case case_;
  std::vector<Shape> leads_;
  mutable Tensor z_tensor_;
};

/// One item of a batch, dense and in double: what the oracle reads.
class Item {
 public:
  Item(const Case& c, const Operands& all, const Shape& index)
      : m(c.m), n(all.n()), k(c.k), offset_(c.offset), x_(dense(part_of(*all.x, index))),
        z_(all.z ? dense(part_of(*all.z, index)) : x_) {
    const auto optional = [&](const std::optional<Operand>& o) {
      return o ? dense(part_of(*o, index)) : std::vector<double>();
    };
    w_ = optional(all.w), row_ = optional(all.row), col_ = optional(all.col);
    params_ = all.numbers;
    for (const auto& [name, array] : all.params) params_[name] = dense(part_of(array, index))[0];
  }

  ir::PairInputs pair(std::int64_t i, std::int64_t j) const {
    ir::PairInputs in;
    in.x = x_.data() + i * k, in.z = z_.data() + j * k;
    in.w = w_.empty() ? nullptr : w_.data();
    in.features = k;
    in.row = row_.empty() ? 0 : row_[static_cast<std::size_t>(i)];
    in.col = col_.empty() ? 0 : col_[static_cast<std::size_t>(j)];
    in.i = static_cast<double>(i + 3 * offset_), in.j = static_cast<double>(j + offset_);
    in.params = &params_;
    return in;
  }

  static std::vector<double> dense(const Tensor& t) {
    std::vector<double> all;
    testing_support::each_index(t.shape, [&](const Shape& at) { all.push_back(testing_support::read(t, at)); });
    return all;
  }

  std::int64_t m, n, k;

 private:
  std::int64_t offset_;
  std::vector<double> x_, z_, w_, row_, col_;
  std::map<std::string, double> params_;
};

}  // namespace mercer::fuzz
