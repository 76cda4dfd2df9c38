// Makes the call of a case on every context and compares what it wrote with what it may be.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/call_bounds.h"
#include "fuzz/call_case.h"

namespace mercer::fuzz {

using testing_support::TestContext;
using Contexts = std::vector<std::unique_ptr<TestContext>>;

struct CallCounts {
  std::int64_t values = 0, known = 0, tight = 0, refused = 0;
  void add(const Range& r) {
    ++values;
    known += r.known;
    tight += r.known && (r.nan || r.high - r.low <= 1e-3L * r.magnitude() + 1e-30L);
  }
};

class CallCheck {
 public:
  CallCheck(const Case& c, CallCounts& counts) : case_(c), all_(c), formula_(formula_of(c)), counts_(counts) {
    const Verb v = c.verb;
    if (v == Verb::pairwise || v == Verb::kernel_product || v == Verb::kernel_reduce || v == Verb::knn) return;
    phi_ = v == Verb::gradient_field ? formula_.expression() : differentiate(formula_.expression(), points().x);
    if (v != Verb::product_backward && v != Verb::pairwise_backward) return;
    for (const auto& [name, usual] : parameters(formula_.expression()))
      if (by_.size() < 8 && ir::uses(formula_.expression()).param) by_.push_back(name);
    if (ir::uses(formula_.expression()).row) by_.push_back("row");
    if (by_.size() > 8) by_.resize(8);
    for (const std::string& name : by_)
      by_derivatives_.push_back(differentiate(formula_.expression(), name == "row" ? row_value() : param(name)));
    if (ir::uses(formula_.expression()).w) by_weights_ = differentiate(formula_.expression(), weights());
  }

  std::string fault(const Contexts& contexts) {
    for (const auto& context : contexts) {
      Results results{context->name(), {}, true};
      make_outputs(results);
      results.written = call(results, *context);
      if (!results.written) {
        for (const Array& out : results.outs)
          if (!out.untouched()) return fmt::format("{}: written by a call that gave false", context->name());
        continue;
      }
      for (const Array& out : results.outs)
        if (!gaps_untouched(out)) return fmt::format("{}: written between the elements of an output", context->name());
      all_results_.push_back(std::move(results));
    }
    std::string found;
    std::int64_t items = 0;
    testing_support::each_index(all_.batch, [&](const Shape& index) {
      if (found.empty() && items++ < 4 && !all_results_.empty()) found = item_fault(index, contexts.front()->on_cuda());
    });
    return found;
  }

 private:
  struct Results {
    const char* name;
    std::vector<Array> outs;
    bool written;
  };

  Dtype wide() const { return compute_type(case_.dtype); }
  Dtype pairwise_type() const {
    if (wide() == Dtype::float64) return Dtype::float64;
    return case_.option == 1 ? Dtype::float16 : case_.option == 2 ? Dtype::bfloat16 : Dtype::float32;
  }
  ReduceKind kind() const { return static_cast<ReduceKind>(case_.option); }
  bool is_index() const { return kind() == ReduceKind::argmax || kind() == ReduceKind::argmin; }
  std::int64_t columns() const { return std::max<std::int64_t>(1, case_.count); }

  void make_outputs(Results& results) const {
    const auto add = [&](Dtype dtype, const Shape& shape) {
      results.outs.push_back(all_.output(dtype, shape, results.outs.size()));
    };
    const std::int64_t m = case_.m, n = all_.n(), k = case_.k;
    const Shape outputs = case_.count ? Shape{case_.count} : Shape{};
    switch (case_.verb) {
      case Verb::pairwise: return add(pairwise_type(), {m, n});
      case Verb::kernel_product: return add(wide(), Operands::with({m}, outputs));
      case Verb::kernel_reduce: return add(is_index() ? Dtype::int64 : wide(), {m});
      case Verb::knn: return add(wide(), {m, case_.count}), add(Dtype::int64, {m, case_.count});
      case Verb::kernel_agop: return add(wide(), {k, k});
      case Verb::product_gradient: return add(wide(), {m, k});
      case Verb::product_backward:
      case Verb::pairwise_backward:
        add(wide(), {m, k});
        if (case_.verb == Verb::product_backward) add(wide(), {m, columns()});
        if (!by_.empty()) add(wide(), {static_cast<std::int64_t>(by_.size()), m});
        if (!by_weights_.empty()) add(wide(), {k, m});
        return;
      default: return add(wide(), Operands::with(outputs, {m, k}));
    }
  }

  bool call(const Results& results, TestContext& context) const {
    const Tensor x = all_.x->array, *z = all_.zs();
    const Arguments arguments = all_.arguments();
    std::vector<Tensor> outs(results.outs.begin(), results.outs.end());
    const auto of = [](const std::optional<Operand>& o) { return o->array.tensor(); };
    namespace t = testing_support;
    switch (case_.verb) {
      case Verb::pairwise: t::pairwise(formula_, x, z, outs[0], arguments, context); break;
      case Verb::kernel_product: t::kernel_product(formula_, x, z, of(all_.v), outs[0], arguments, context); break;
      case Verb::kernel_reduce: t::kernel_reduce(formula_, x, z, kind(), outs[0], arguments, context); break;
      case Verb::knn: t::knn(formula_, x, z, case_.count, outs[0], outs[1], arguments, context); break;
      case Verb::kernel_gradient: t::kernel_gradient(formula_, x, z, of(all_.coef), outs[0], arguments, context); break;
      case Verb::kernel_agop: t::kernel_agop(formula_, x, z, of(all_.coef), outs[0], arguments, context); break;
      case Verb::gradient_field:
        t::gradient_field(formula_, x, *z, of(all_.amplitude), of(all_.coef), outs[0], arguments, context);
        break;
      case Verb::product_gradient:
        t::product_gradient(formula_, x, z, of(all_.weights), of(all_.v), outs[0], arguments, context);
        break;
      default: return backward(x, z, arguments, outs, context);
    }
    return true;
  }

  bool backward(const Tensor& x, const Tensor* z, const Arguments& arguments, const std::vector<Tensor>& outs,
                TestContext& context) const {
    ExtraOutputs extra;
    std::size_t next = 1;
    if (case_.verb == Verb::product_backward) extra.product = &outs[next++];
    extra.by = by_;
    if (!by_.empty()) extra.sums = &outs[next++];
    if (!by_weights_.empty()) extra.by_weights = &outs[next];
    namespace t = testing_support;
    const Tensor w = all_.weights->array;
    if (case_.verb == Verb::pairwise_backward)
      return t::pairwise_backward(formula_, x, z, w, outs[0], extra, arguments, context);
    return t::product_backward(formula_, x, z, w, all_.v->array, outs[0], extra, arguments, context);
  }

  /// Bytes that belong to no element keep the pattern of a fresh array.
  static bool gaps_untouched(const Array& out) {
    const Tensor t = out;
    std::vector<bool> own(out.bytes().size(), false);
    const auto size = static_cast<std::int64_t>(size_of(t.dtype));
    const std::int64_t base = static_cast<const char*>(t.data) - out.bytes().data();
    testing_support::each_index(t.shape, [&](const Shape& at) {
      std::int64_t offset = 0;
      for (std::size_t axis = 0; axis < at.size(); ++axis) offset += at[axis] * t.strides[axis];
      const auto first = own.begin() + base + offset * size;
      std::fill(first, first + size, true);
    });
    for (std::size_t byte = 0; byte < own.size(); ++byte)
      if (!own[byte] && out.bytes()[byte] != Array::kPattern) return false;
    return true;
  }

  // ---- What it may be. ----------------------------------------------------------------------------------------------

  /// The value that each context wrote at `at` of output `which`, after the indices of the batch.
  std::string compare(std::size_t which, const Shape& index, const Shape& at, const Range& range) {
    counts_.add(range);
    if (!range.known) return "";
    for (const Results& r : all_results_) {
      const Tensor out = r.outs[which];
      const double v = testing_support::read(out, Operands::with(index, at));
      if (stored(range, out.dtype).contains(v)) continue;
      std::string place;
      for (const std::int64_t i : Operands::with(index, at)) place += (place.empty() ? "" : ",") + std::to_string(i);
      return fmt::format("{}: output {} has {} at ({}), which must {}", r.name, which, v, place,
                         range.nan ? "be NaN"
                                   : fmt::format("lie in [{}, {}]", static_cast<double>(range.low),
                                                 static_cast<double>(range.high)));
    }
    return "";
  }

  /// Rounded to a 16-bit type: half a unit of the last place, subnormal ones too. Where it may overflow it is anything.
  static Range stored(const Range& r, Dtype dtype) {
    if (r.is_special() || (dtype != Dtype::float16 && dtype != Dtype::bfloat16)) return r;
    const bool half = dtype == Dtype::float16;
    const long double error = r.magnitude() * (half ? 0x1p-11L : 0x1p-8L) + (half ? 0x1p-25L : 0x1p-134L);
    if (half && r.magnitude() > 65000) return {-INFINITY, INFINITY};
    return {r.low - error, r.high + error};
  }

  std::string item_fault(const Shape& index, bool on_cuda) {
    const Item item(case_, all_, index);
    const ItemBounds bounds(case_, item, on_cuda);
    if (case_.verb == Verb::kernel_agop) return agop_fault(index, item, bounds);
    for (std::int64_t i = 0; i < item.m; ++i)
      if (is_looked_at(i, item)) {
        std::string found = row_fault(index, i, item, bounds);
        if (!found.empty()) return found;
      }
    return "";
  }

  /// All rows of small calls, some of large ones, the last among them.
  bool is_looked_at(std::int64_t i, const Item& item) const {
    const std::int64_t work = item.n * item.k * (phi_.empty() ? 1 : 4);
    const std::int64_t most = std::max<std::int64_t>(2, 600 / (work + 1));
    const std::uint64_t drawn = Hash(case_.values, i, 31).below(static_cast<std::uint64_t>(item.m));
    return item.m <= most || i + 1 == item.m || drawn < static_cast<std::uint64_t>(most - 1);
  }

  std::string row_fault(const Shape& index, std::int64_t i, const Item& item, const ItemBounds& bounds) {
    switch (case_.verb) {
      case Verb::pairwise: return pairs_fault(index, i, bounds.row(formula_.expression(), i));
      case Verb::kernel_product: return product_fault(0, index, i, item, bounds);
      case Verb::kernel_reduce: return reduce_fault(index, i, bounds.row(formula_.expression(), i), bounds.rules());
      case Verb::knn: return nearest_fault(index, i, bounds.row(formula_.expression(), i));
      default: return gradient_fault(index, i, item, bounds);
    }
  }

  std::string pairs_fault(const Shape& index, std::int64_t i, const std::vector<Range>& row) {
    std::string found;
    for (std::size_t j = 0; j < row.size() && found.empty(); ++j)
      found = compare(0, index, {i, static_cast<std::int64_t>(j)}, row[j]);
    return found;
  }

  std::string product_fault(std::size_t which, const Shape& index, std::int64_t i, const Item& item,
                            const ItemBounds& bounds) {
    const std::vector<Range> row = bounds.row(formula_.expression(), i);
    const Tensor v = part_of(*all_.v, index);
    for (std::int64_t e = 0; e < columns(); ++e) {
      std::vector<Range> column;
      for (std::int64_t j = 0; j < item.n; ++j)
        column.push_back(ItemBounds::exactly(testing_support::read(v, v.ndim() == 2 ? Shape{j, e} : Shape{j})));
      const Shape at = case_.verb == Verb::kernel_product && case_.count == 0 ? Shape{i} : Shape{i, e};
      if (std::string found = compare(which, index, at, bounds.weighted(row, column)); !found.empty()) return found;
    }
    return "";
  }

  std::string reduce_fault(const Shape& index, std::int64_t i, const std::vector<Range>& row, const ErrorBound& rules) {
    if (!is_index()) return compare(0, index, {i}, folded(kind(), row, rules, 2 * testing_support::unit(wide())));
    for (const Results& r : all_results_) {
      const double at = testing_support::read(r.outs[0], Operands::with(index, {i}));
      if (!may_be_best(kind(), row, static_cast<std::int64_t>(at)))
        return fmt::format("{}: row {} has its {} at {}, where it cannot be", r.name, i, mercer::name_of(kind()), at);
    }
    return "";
  }

  std::string nearest_fault(const Shape& index, std::int64_t i, const std::vector<Range>& row) {
    for (const Results& r : all_results_) {
      std::vector<double> values, indices;
      for (std::int64_t place = 0; place < case_.count; ++place) {
        values.push_back(testing_support::read(r.outs[0], Operands::with(index, {i, place})));
        indices.push_back(testing_support::read(r.outs[1], Operands::with(index, {i, place})));
      }
      if (std::string found = neighbours_fault(row, values, indices); !found.empty())
        return fmt::format("{}: row {}: {}", r.name, i, found);
    }
    return "";
  }

  /// [o][n] what multiplies the derivatives of row i.
  std::vector<std::vector<Range>> weights_of(const Shape& index, std::int64_t i, const Item& item,
                                             const ItemBounds& bounds) const {
    using testing_support::read;
    std::vector<std::vector<Range>> all;
    const ErrorBound rules = bounds.rules();
    if (case_.verb == Verb::pairwise_backward) {
      const Tensor w = part_of(*all_.weights, index);
      all.emplace_back();
      for (std::int64_t j = 0; j < item.n; ++j) all[0].push_back(ItemBounds::exactly(read(w, {i, j})));
    } else if (case_.verb == Verb::product_gradient || case_.verb == Verb::product_backward) {
      const Tensor w = part_of(*all_.weights, index), v = part_of(*all_.v, index);
      all.emplace_back();
      for (std::int64_t j = 0; j < item.n; ++j) {
        std::vector<Range> terms;
        for (std::int64_t e = 0; e < columns(); ++e)
          terms.push_back(rules.times(ItemBounds::exactly(read(w, {i, e})), ItemBounds::exactly(read(v, {j, e}))));
        all[0].push_back(rules.sum_of(terms));
      }
    } else {
      const Tensor coef = part_of(*all_.coef, index);
      for (std::int64_t o = 0; o < columns(); ++o) {
        all.emplace_back();
        for (std::int64_t j = 0; j < item.n; ++j) {
          Range r = ItemBounds::exactly(coef.ndim() == 2 ? read(coef, {o, j}) : read(coef, {j}));
          if (all_.amplitude) r = rules.times(r, ItemBounds::exactly(read(part_of(*all_.amplitude, index), {i, j})));
          all.back().push_back(r);
        }
      }
    }
    return all;
  }

  std::string gradient_fault(const Shape& index, std::int64_t i, const Item& item, const ItemBounds& bounds) {
    const auto weights = weights_of(index, i, item, bounds);
    const auto field = bounds.field(phi_, i, weights);
    const bool has_outputs = case_.verb == Verb::kernel_gradient || case_.verb == Verb::gradient_field;
    for (std::size_t o = 0; o < field.size(); ++o)
      for (std::int64_t k = 0; k < item.k; ++k) {
        const Shape at = has_outputs && case_.count ? Shape{static_cast<std::int64_t>(o), i, k} : Shape{i, k};
        std::string found = compare(0, index, at, field[o][static_cast<std::size_t>(k)]);
        if (!found.empty()) return found;
      }
    if (case_.verb != Verb::product_backward && case_.verb != Verb::pairwise_backward) return "";
    return extra_fault(index, i, item, bounds, weights);
  }

  std::string extra_fault(const Shape& index, std::int64_t i, const Item& item, const ItemBounds& bounds,
                          const std::vector<std::vector<Range>>& weights) {
    std::size_t next = 1;
    if (case_.verb == Verb::product_backward)
      if (std::string found = product_fault(next++, index, i, item, bounds); !found.empty()) return found;
    for (std::size_t r = 0; r < by_.size(); ++r) {
      const Range sum = bounds.weighted(bounds.row(by_derivatives_[r], i), weights[0]);
      std::string found = compare(next, index, {static_cast<std::int64_t>(r), i}, sum);
      if (!found.empty()) return "by " + by_[r] + ": " + found;
    }
    next += !by_.empty();
    if (by_weights_.empty()) return "";
    const auto field = bounds.field(by_weights_, i, weights);
    for (std::int64_t k = 0; k < item.k; ++k)
      if (std::string found = compare(next, index, {k, i}, field[0][static_cast<std::size_t>(k)]); !found.empty())
        return "by w: " + found;
    return "";
  }

  std::string agop_fault(const Shape& index, const Item& item, const ItemBounds& bounds) {
    std::vector<std::vector<Range>> rows;  // of all outputs and points
    for (std::int64_t i = 0; i < item.m; ++i)
      for (auto& of_output : bounds.field(phi_, i, weights_of(index, i, item, bounds)))
        rows.push_back(std::move(of_output));
    const ErrorBound rules = bounds.rules();
    for (std::int64_t k = 0; k < item.k; ++k)
      for (std::int64_t l = 0; l < item.k; ++l) {
        std::vector<Range> terms;
        for (const auto& row : rows)
          terms.push_back(rules.times(row[static_cast<std::size_t>(k)], row[static_cast<std::size_t>(l)]));
        if (std::string found = compare(0, index, {k, l}, rules.sum_of(terms)); !found.empty()) return found;
      }
    return "";
  }

  Case case_;
  Operands all_;
  Formula formula_;
  Expr phi_, by_weights_;
  std::vector<std::string> by_;
  std::vector<Expr> by_derivatives_;
  CallCounts& counts_;
  std::vector<Results> all_results_;
};

}  // namespace mercer::fuzz
