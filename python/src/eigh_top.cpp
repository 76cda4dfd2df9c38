// mercer.linalg.eigh_top.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <optional>

#include "linalg_docs.h"
#include "operators.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

linalg::Which to_which(const std::string& name) {
  if (name == "largest") return linalg::Which::largest;
  if (name == "smallest") return linalg::Which::smallest;
  if (name == "magnitude") return linalg::Which::magnitude;
  throw Error(ErrorKind::invalid_argument,
              fmt::format("eigh_top: which must be largest, smallest or magnitude. Received \"{}\".", name));
}

/// What an operator's products are called with, and where its results live.
struct Ends {
  const linalg::Operator& matrix;
  Library* library;
  nb::object like;
};

nb::object solve(const Ends& ends, std::int64_t k, linalg::TopOptions options, bool check) {
  const std::int64_t n = ends.matrix.order;
  if (k < 1 || k > n)
    throw Error(ErrorKind::invalid_argument,
                fmt::format("eigh_top: k must be from 1 to the order of the operator ({}). Received {}.", n, k));
  const Dtype dtype = ends.matrix.dtype;
  nb::object w = make_array(*ends.library, ends.like, dtype, {k}, {"eigh_top", "w"});
  nb::object rows = make_array(*ends.library, ends.like, dtype, {k, n}, {"eigh_top", "v"});
  const Array values(w, {"eigh_top", "w"}, Access::fresh), vectors(rows, {"eigh_top", "v"}, Access::fresh);
  Tensor columns(vectors.tensor().data, dtype, {n, k}, {1, n});
  columns.device = vectors.tensor().device;
  std::int64_t missed = 0;
  if (!check) options.unconverged = &missed;
  Watch("eigh_top", false).run([&] { linalg::eigh_top(ends.matrix, values.tensor(), columns, options); });
  nb::object v =
      nb::hasattr(rows, "swapaxes") ? nb::object(rows.attr("swapaxes")(-1, -2)) : nb::object(rows.attr("mT"));
  const nb::object pairs = nb::make_tuple(w, v);
  return check ? pairs : nb::object(nb::make_tuple(pairs, nb::int_(missed)));
}

nb::object py_eigh_top(nb::handle a, std::int64_t k, const std::string& which, nb::handle tol, nb::handle max_basis,
                       std::uint64_t seed, bool check) {
  linalg::TopOptions options;
  options.which = to_which(which);
  if (!tol.is_none()) options.tolerance = not_zero(to_number(tol, "eigh_top", "tol"), "eigh_top", "tol");
  if (!max_basis.is_none())
    options.most_basis = not_zero(to_offset(max_basis, "eigh_top", "max_basis"), "eigh_top", "max_basis");
  options.seed = seed;
  OperatorCall call("eigh_top", a);
  const nb::object pairs = solve({call.matrix(), &call.library(), nb::borrow(call.like())}, k, options, check);
  call.finish();
  return pairs;
}

}  // namespace

void bind_eigh_top(nb::module_& module) {
  module.def("eigh_top", py_eigh_top, "a"_a, "k"_a, nb::kw_only(), "which"_a = "largest", "tol"_a = nb::none(),
             "max_basis"_a = nb::none(), "seed"_a = 0, "check"_a = true, nb::sig(kEighTopChecked), kEighTopDoc);
  module.def("eigh_top", py_eigh_top, "a"_a, "k"_a, nb::kw_only(), "which"_a = "largest", "tol"_a = nb::none(),
             "max_basis"_a = nb::none(), "seed"_a = 0, "check"_a, nb::sig(kEighTopUnchecked));
}

}  // namespace mercer::python
