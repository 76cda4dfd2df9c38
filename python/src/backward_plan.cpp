// The passes of a backward (ops/pairs/backward_plan.h), for the rules of differentiation in mercer/_torch.
#include "ops/pairs/backward_plan.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/devices/cuda_driver.h"
#include "ops/context.h"
#include "plan/backward/backward_costs.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

std::vector<std::string> words(std::string_view text) {
  std::vector<std::string> found;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (end > 0) found.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return found;
}

/// Tensors of a device may be described where there is no driver.
int capability_of(int device) {
  if (device < 0) return 0;
  constexpr int kDescribed = 90;
  return device < cuda_device_count() ? cuda_device(device).capability() : kDescribed;
}

ops::PairWeights weights_of(const std::string& name) {
  if (name == "factors") return ops::PairWeights::factors;
  return name == "matrix" ? ops::PairWeights::matrix : ops::PairWeights::other;
}

ops::Choice choice_of(int value) { return static_cast<ops::Choice>(value); }

nb::tuple as_tuple(const std::vector<std::string>& names) {
  nb::list list;
  for (const std::string& name : names) list.append(name);
  return nb::tuple(list);
}

void read_facts(ops::BackwardRequest& request, const std::string& facts) {
  const std::pair<const char*, bool*> known[] = {
      {"same_points", &request.same_points}, {"same_row", &request.same_row}, {"same_offsets", &request.same_offsets},
      {"tiny_items", &request.tiny_items},   {"in_memory", &request.in_memory},
      {"recorded", &request.recorded}, {"w", &request.has_w},
      {"row", &request.has_row},             {"col", &request.has_col}};
  for (const std::string& fact : words(facts))
    for (const auto& [name, flag] : known) *flag = *flag || fact == name;
}

ops::BackwardRequest request_of(const Symbol& f, const std::string& weights, const std::string& wanted,
                                std::int64_t m, std::int64_t n, std::int64_t k, int device, const std::string& facts,
                                const std::string& arrays) {
  ops::BackwardRequest request;
  request.formula = f.expr;
  request.weights = weights_of(weights);
  request.wanted = words(wanted);
  request.m = m, request.n = n, request.k = k;
  request.capability = capability_of(device);
  read_facts(request, facts);
  request.arrays = words(arrays);
  return request;
}

nb::list as_list(const std::vector<ops::BackwardPass>& passes) {
  nb::list list;
  for (const ops::BackwardPass& pass : passes)
    list.append(nb::make_tuple(ops::name_of(pass.verb), ops::name_of(pass.rows), as_tuple(pass.by),
                               as_tuple(pass.yields), pass.product, pass.without_weight));
  return list;
}

nb::list py_plan_backward(const Symbol& f, const std::string& weights, const std::string& wanted, std::int64_t m,
                          std::int64_t n, std::int64_t k, std::int64_t columns, bool doubles, int device,
                          const std::string& facts, const std::string& along, const std::string& arrays, int points,
                          int passes, int both_sides) {
  ops::BackwardRequest request = request_of(f, weights, wanted, m, n, k, device, facts, arrays);
  request.columns = columns;
  request.type = doubles ? Dtype::float64 : Dtype::float32;
  request.along = along;
  request.points = choice_of(points);
  request.passes = choice_of(passes);
  request.both_sides = choice_of(both_sides);
  return as_list(ops::dumped(request, ops::plan_backward(request)));
}

nb::list py_plan_parameter_gradient(const Symbol& f, const std::string& weights, const std::string& wanted,
                                    std::int64_t m, std::int64_t n, std::int64_t k, int device,
                                    const std::string& facts, const std::string& arrays) {
  const ops::BackwardRequest request = request_of(f, weights, wanted, m, n, k, device, facts, arrays);
  return as_list(ops::dumped(request, ops::plan_parameter_gradient(request)));
}

}  // namespace

void bind_backward_plan(nb::module_& module) {
  module.def(
      "plan_backward", py_plan_backward, "f"_a, "weights"_a, "wanted"_a, "m"_a, "n"_a, "k"_a, "columns"_a, "doubles"_a,
      "device"_a, "facts"_a, "along"_a, "arrays"_a, "points"_a = 0, "passes"_a = 0, "both_sides"_a = 0,
      nb::sig("def plan_backward(f: Expr, weights: str, wanted: str, m: int, n: int, k: int, columns: int, doubles: "
              "bool, device: int, facts: str, along: str, arrays: str, points: int = 0, passes: int = 0, both_sides: "
              "int = 0) -> "
              "list[tuple[str, str, tuple[str, ...], tuple[str, ...], bool, bool]]"),
      R"(The passes that have the gradients of a weighted sum over pairs by the leaves that are wanted.

weights: "factors", "matrix" or "other", of `columns` columns. wanted: words among x, z, w, row, col, v, p:NAME and d:0,
a direction. device: the index of a CUDA device, -1 for CPUs. facts: words among same_points, same_row (row is col),
same_offsets, tiny_items, in_memory (nobody follows the arrays), recorded, and w, row and col where they are given.
along: targets of the directions. arrays: names of the parameters that have axes or lie on a device. points, passes,
both_sides: 1 never, 2 always makes a choice in place of the plan, for tests.

A pass: its verb, its rows (x, z or both), what it is by, the leaves that its results are added to, whether the product
with v is among them, and whether the field lacks its factor of w.)");
  module.def(
      "plan_field",
      [](const Symbol& f, const std::string& target, const std::string& weights, std::int64_t k, std::int64_t columns,
         bool on_cuda) {
        ops::FieldRequest request{.formula = f.expr, .target = target, .k = k, .columns = columns, .on_cuda = on_cuda};
        for (const std::string& given : words(weights)) {
          request.has_matrix = request.has_matrix || given == "amplitude";
          request.has_u = request.has_u || given == "u";
          request.has_v = request.has_v || given == "v";
        }
        return std::string(ops::name_of(ops::plan_field(request)));
      },
      "f"_a, "target"_a, "weights"_a, "k"_a, "columns"_a, "on_cuda"_a,
      nb::sig("def plan_field(f: Expr, target: str, weights: str, k: int, columns: int, on_cuda: bool) -> str"),
      "How the field by one target is computed, with those of amplitude, u and v as weights that are given.");
  module.def(
      "plan_parameter_gradient", py_plan_parameter_gradient, "f"_a, "weights"_a, "wanted"_a, "m"_a, "n"_a, "k"_a,
      "device"_a, "facts"_a, "arrays"_a,
      nb::sig("def plan_parameter_gradient(f: Expr, weights: str, wanted: str, m: int, n: int, k: int, device: int, "
              "facts: str, arrays: str) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...], bool, bool]]"),
      "The list of parameter_gradient: passes of the engine, and sums by one name.");
  module.def(
      "tiny_batch",
      [](int device) {
        const plan::BackwardCosts& costs = plan::backward_costs(capability_of(device));
        return std::pair{costs.tiny_item, costs.many_items};
      },
      "device"_a, nb::sig("def tiny_batch(device: int) -> tuple[int, int]"),
      "Pairs times features of a tiny item on a CUDA device, and how many items are too many for the engine.");
  module.def(
      "alone_until",
      [](int device) { return Context::shared().state().costs_on({DeviceKind::cuda, device}, {}).dense.alone_until; },
      "device"_a, nb::sig("def alone_until(device: int) -> float"),
      "Operations of a product, n^2 (features + columns), up to which each of several GPUs finds eigenpairs alone.");
}

}  // namespace mercer::python
