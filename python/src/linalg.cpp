// mercer.linalg: mercer/linalg.h for arrays of any library.
#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include "linalg_call.h"
#include "linalg_docs.h"
#include "ops/linalg/call.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

using Shape = std::vector<std::int64_t>;
using Layout = LinalgCall::Layout;
using Output = LinalgCall::Output;

Shape joined(Shape batch, std::initializer_list<std::int64_t> rest) {
  batch.insert(batch.end(), rest);
  return batch;
}

/// Two arrays or none.
std::pair<nb::object, nb::object> pair_of(nb::handle object, const char* verb, const char* name, const char* rule) {
  if (object.is_none()) return {nb::none(), nb::none()};
  if (PyTuple_Check(object.ptr()) && PyTuple_Size(object.ptr()) == 2)
    return {nb::object(object[0]), nb::object(object[1])};
  throw nb::type_error(
      fmt::format("{}: {} must be a pair of arrays ({}). Received {}", verb, name, rule, type_text(object)).c_str());
}

/// x of the call: b itself, the caller's out or a new array.
Output solution(LinalgCall& call, const ops::DenseCall& checked, nb::handle b, const Tensor& rhs, bool overwrite_b,
                nb::handle out) {
  if (overwrite_b) return call.in_place(b, rhs, out, "overwrite_b");
  return call.output(out, "out", checked.type(), checked.of_columns(checked.order()));
}

nb::object py_cholesky(nb::handle a, bool lower, bool overwrite_a, nb::handle jitter, bool check, nb::handle out,
                       nb::handle workspace) {
  LinalgCall call("cholesky", "a", a, overwrite_a, workspace);
  call.options().lower = lower;
  call.read_jitter(jitter);
  const ops::DenseCall checked(call.verb(), "a", call.a(), call.options());
  const Output factor = overwrite_a ? call.in_place(a, call.a(), out, "overwrite_a")
                                    : call.output(out, "out", checked.type(), call.a().shape);
  return call.run(check, checked.a_batch(), factor.object,
                  [&](const linalg::Options& options) { linalg::cholesky(call.a(), *factor.view, options); });
}

nb::object py_solve_cholesky(nb::handle a, nb::handle b, bool lower, bool overwrite_a, bool overwrite_b,
                             nb::handle jitter, bool check, nb::handle out, nb::handle workspace) {
  LinalgCall call("solve_cholesky", "a", a, overwrite_a, workspace);
  call.options().lower = lower;
  call.options().overwrite_a = overwrite_a;
  call.read_jitter(jitter);
  const Tensor& rhs = call.input(b, "b", overwrite_b);
  ops::DenseCall checked(call.verb(), "a", call.a(), call.options());
  checked.right_hand_side(rhs);
  const Output x = solution(call, checked, b, rhs, overwrite_b, out);
  return call.run(check, checked.a_batch(), x.object,
                  [&](const linalg::Options& options) { linalg::solve_cholesky(call.a(), rhs, *x.view, options); });
}

nb::object py_cho_solve(nb::handle factor, nb::handle b, bool lower, bool overwrite_b, nb::handle out,
                        nb::handle workspace) {
  LinalgCall call("cho_solve", "factor", factor, false, workspace);
  call.options().lower = lower;
  const Tensor& rhs = call.input(b, "b", overwrite_b);
  ops::DenseCall checked(call.verb(), "factor", call.a(), call.options());
  checked.right_hand_side(rhs);
  const Output x = solution(call, checked, b, rhs, overwrite_b, out);
  call.run([&](const linalg::Options& options) { linalg::cho_solve(call.a(), rhs, *x.view, options); });
  return x.object;
}

nb::object py_cho_inverse(nb::handle factor, bool lower, bool overwrite_factor, nb::handle out, nb::handle workspace) {
  LinalgCall call("cho_inverse", "factor", factor, overwrite_factor, workspace);
  call.options().lower = lower;
  const ops::DenseCall checked(call.verb(), "factor", call.a(), call.options());
  const Output inverse = overwrite_factor ? call.in_place(factor, call.a(), out, "overwrite_factor")
                                          : call.output(out, "out", checked.type(), call.a().shape);
  call.run([&](const linalg::Options& options) { linalg::cho_inverse(call.a(), *inverse.view, options); });
  return inverse.object;
}

nb::object py_cho_inverse_diagonal(nb::handle factor, bool lower, nb::handle out, nb::handle workspace) {
  LinalgCall call("cho_inverse_diagonal", "factor", factor, false, workspace);
  call.options().lower = lower;
  const ops::DenseCall checked(call.verb(), "factor", call.a(), call.options());
  const Output diagonal = call.output(out, "out", checked.type(), joined(checked.a_batch(), {checked.order()}));
  call.run([&](const linalg::Options& options) { linalg::cho_inverse_diagonal(call.a(), *diagonal.view, options); });
  return diagonal.object;
}

nb::object py_solve_triangular(nb::handle a, nb::handle b, bool lower, bool transposed, bool unit_diagonal,
                               bool overwrite_b, nb::handle out, nb::handle workspace) {
  LinalgCall call("solve_triangular", "a", a, false, workspace);
  call.options().lower = lower;
  const Tensor& rhs = call.input(b, "b", overwrite_b);
  ops::DenseCall checked(call.verb(), "a", call.a(), call.options());
  checked.right_hand_side(rhs);
  const Output x = solution(call, checked, b, rhs, overwrite_b, out);
  call.run([&](const linalg::Options& options) {
    linalg::solve_triangular(call.a(), rhs, *x.view, transposed, unit_diagonal, options);
  });
  return x.object;
}

nb::object py_inv_quad_logdet(nb::handle a, nb::handle b, bool lower, bool overwrite_a, nb::handle jitter, bool check,
                              nb::handle out, nb::handle workspace) {
  LinalgCall call("inv_quad_logdet", "a", a, overwrite_a, workspace);
  call.options().lower = lower;
  call.options().overwrite_a = overwrite_a;
  call.read_jitter(jitter);
  const Tensor& rhs = call.input(b, "b");
  ops::DenseCall checked(call.verb(), "a", call.a(), call.options());
  checked.right_hand_side(rhs);
  const auto [given_quad, given_logdet] = pair_of(out, call.verb(), "out", "inv_quad, logdet");
  const Output quad = call.output(given_quad, "out[0]", Dtype::float64, checked.of_columns(-1));
  const Output logdet = call.output(given_logdet, "out[1]", Dtype::float64, checked.a_batch());
  return call.run(check, checked.a_batch(), nb::make_tuple(quad.object, logdet.object),
                  [&](const linalg::Options& options) {
                    linalg::inv_quad_logdet(call.a(), rhs, *quad.view, *logdet.view, options);
                  });
}

nb::object py_lu_factor(nb::handle a, bool overwrite_a, bool check, nb::handle out, nb::handle workspace) {
  LinalgCall call("lu_factor", "a", a, overwrite_a, workspace);
  const ops::DenseCall checked(call.verb(), "a", call.a(), call.options(), ops::DenseCall::Matrices::any);
  const auto [given_lu, given_pivots] = pair_of(out, call.verb(), "out", "lu, pivots");
  const Output lu = overwrite_a ? call.in_place(a, call.a(), given_lu, "overwrite_a")
                                : call.output(given_lu, "out[0]", checked.type(), call.a().shape, Layout::columns);
  const Output pivots = call.output(given_pivots, "out[1]", Dtype::int64, joined(checked.a_batch(), {checked.order()}));
  return call.run(
      check, checked.a_batch(), nb::make_tuple(lu.object, pivots.object),
      [&](const linalg::Options& options) { linalg::lu_factor(call.a(), *lu.view, *pivots.view, options); });
}

nb::object py_lu_solve(nb::handle lu_and_pivots, nb::handle b, bool transposed, bool overwrite_b, nb::handle out,
                       nb::handle workspace) {
  const auto [lu, given_pivots] = pair_of(lu_and_pivots, "lu_solve", "lu_and_pivots", "lu, pivots");
  LinalgCall call("lu_solve", "lu", lu, false, workspace);
  const Tensor& pivots = call.input(given_pivots, "pivots");
  const Tensor& rhs = call.input(b, "b", overwrite_b);
  ops::DenseCall checked(call.verb(), "lu", call.a(), call.options());
  checked.right_hand_side(rhs);
  const Output x = solution(call, checked, b, rhs, overwrite_b, out);
  call.run(
      [&](const linalg::Options& options) { linalg::lu_solve(call.a(), pivots, rhs, *x.view, transposed, options); });
  return x.object;
}

nb::object py_solve_lu(nb::handle a, nb::handle b, bool overwrite_a, bool overwrite_b, bool check, nb::handle out,
                       nb::handle workspace) {
  LinalgCall call("solve_lu", "a", a, overwrite_a, workspace);
  call.options().overwrite_a = overwrite_a;
  const Tensor& rhs = call.input(b, "b", overwrite_b);
  ops::DenseCall checked(call.verb(), "a", call.a(), call.options());
  checked.right_hand_side(rhs);
  const Output x = solution(call, checked, b, rhs, overwrite_b, out);
  return call.run(check, checked.a_batch(), x.object,
                  [&](const linalg::Options& options) { linalg::solve_lu(call.a(), rhs, *x.view, options); });
}

std::optional<linalg::Subset> to_subset(nb::handle subset) {
  if (subset.is_none()) return std::nullopt;
  std::int64_t ends[2] = {};
  bool fits = PySequence_Check(subset.ptr()) && !PyUnicode_Check(subset.ptr()) && nb::len(subset) == 2;
  for (std::size_t end = 0; fits && end < 2; ++end) fits = nb::try_cast(nb::object(subset[end]), ends[end]);
  if (fits) return linalg::Subset{ends[0], ends[1]};
  throw nb::type_error(fmt::format("eigh: subset_by_index must be two whole numbers (first, last). Received {}",
                                   nb::cast<std::string>(nb::repr(subset)))
                           .c_str());
}

nb::object py_eigh(nb::handle a, bool lower, bool overwrite_a, bool eigvals_only, nb::handle subset_by_index,
                   bool check, nb::handle out, nb::handle workspace) {
  LinalgCall call("eigh", "a", a, overwrite_a, workspace);
  call.options().lower = lower;
  call.options().overwrite_a = overwrite_a;
  const std::optional<linalg::Subset> subset = to_subset(subset_by_index);
  const ops::DenseCall checked(call.verb(), "a", call.a(), call.options());
  const std::int64_t n = checked.order(), count = ops::check_subset(checked, subset);
  nb::object given_w = nb::borrow(out), given_v = nb::none();
  if (!eigvals_only) std::tie(given_w, given_v) = pair_of(out, call.verb(), "out", "w, v");
  const Output w =
      call.output(given_w, eigvals_only ? "out" : "out[0]", checked.type(), joined(checked.a_batch(), {count}));
  Output v;
  if (!eigvals_only)
    v = overwrite_a && count == n && given_v.is_none()
            ? Output{nb::borrow(a), &call.a()}
            : call.output(given_v, "out[1]", checked.type(), joined(checked.a_batch(), {n, count}), Layout::columns);
  const nb::object result = eigvals_only ? w.object : nb::object(nb::make_tuple(w.object, v.object));
  return call.run(check, checked.a_batch(), result,
                  [&](const linalg::Options& options) { linalg::eigh(call.a(), *w.view, v.view, subset, options); });
}

}  // namespace

void bind_linalg(nb::module_& module) {
#define MERCER_LOWER "lower"_a = true
#define MERCER_LAST "out"_a = nb::none(), "workspace"_a = nb::none()
  // The second of each pair is never reached: it tells type checkers what check=False gives.
  module.def("cholesky", py_cholesky, "a"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false,
             "jitter"_a = nb::none(), "check"_a = true, MERCER_LAST, nb::sig(kCholeskyChecked), kCholeskyDoc);
  module.def("cholesky", py_cholesky, "a"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false,
             "jitter"_a = nb::none(), "check"_a, MERCER_LAST, nb::sig(kCholeskyUnchecked));
  module.def("solve_cholesky", py_solve_cholesky, "a"_a, "b"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false,
             "overwrite_b"_a = false, "jitter"_a = nb::none(), "check"_a = true, MERCER_LAST,
             nb::sig(kSolveCholeskyChecked), kSolveCholeskyDoc);
  module.def("solve_cholesky", py_solve_cholesky, "a"_a, "b"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false,
             "overwrite_b"_a = false, "jitter"_a = nb::none(), "check"_a, MERCER_LAST,
             nb::sig(kSolveCholeskyUnchecked));
  module.def("cho_solve", py_cho_solve, "factor"_a, "b"_a, nb::kw_only(), MERCER_LOWER, "overwrite_b"_a = false,
             MERCER_LAST, nb::sig(kChoSolveSignature), kChoSolveDoc);
  module.def("cho_inverse", py_cho_inverse, "factor"_a, nb::kw_only(), MERCER_LOWER, "overwrite_factor"_a = false,
             MERCER_LAST, nb::sig(kChoInverseSignature), kChoInverseDoc);
  module.def("cho_inverse_diagonal", py_cho_inverse_diagonal, "factor"_a, nb::kw_only(), MERCER_LOWER, MERCER_LAST,
             nb::sig(kChoInverseDiagonalSignature), kChoInverseDiagonalDoc);
  module.def("solve_triangular", py_solve_triangular, "a"_a, "b"_a, nb::kw_only(), MERCER_LOWER,
             "transposed"_a = false, "unit_diagonal"_a = false, "overwrite_b"_a = false, MERCER_LAST,
             nb::sig(kSolveTriangularSignature), kSolveTriangularDoc);
  module.def("inv_quad_logdet", py_inv_quad_logdet, "a"_a, "b"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false,
             "jitter"_a = nb::none(), "check"_a = true, MERCER_LAST, nb::sig(kInvQuadLogdetChecked), kInvQuadLogdetDoc);
  module.def("inv_quad_logdet", py_inv_quad_logdet, "a"_a, "b"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false,
             "jitter"_a = nb::none(), "check"_a, MERCER_LAST, nb::sig(kInvQuadLogdetUnchecked));
  module.def("lu_factor", py_lu_factor, "a"_a, nb::kw_only(), "overwrite_a"_a = false, "check"_a = true, MERCER_LAST,
             nb::sig(kLuFactorChecked), kLuFactorDoc);
  module.def("lu_factor", py_lu_factor, "a"_a, nb::kw_only(), "overwrite_a"_a = false, "check"_a, MERCER_LAST,
             nb::sig(kLuFactorUnchecked));
  module.def("lu_solve", py_lu_solve, "lu_and_pivots"_a, "b"_a, nb::kw_only(), "transposed"_a = false,
             "overwrite_b"_a = false, MERCER_LAST, nb::sig(kLuSolveSignature), kLuSolveDoc);
  module.def("solve_lu", py_solve_lu, "a"_a, "b"_a, nb::kw_only(), "overwrite_a"_a = false, "overwrite_b"_a = false,
             "check"_a = true, MERCER_LAST, nb::sig(kSolveLuChecked), kSolveLuDoc);
  module.def("solve_lu", py_solve_lu, "a"_a, "b"_a, nb::kw_only(), "overwrite_a"_a = false, "overwrite_b"_a = false,
             "check"_a, MERCER_LAST, nb::sig(kSolveLuUnchecked));
  module.def("eigh", py_eigh, "a"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false, "eigvals_only"_a = false,
             "subset_by_index"_a = nb::none(), "check"_a = true, MERCER_LAST, nb::sig(kEighChecked), kEighDoc);
  module.def("eigh", py_eigh, "a"_a, nb::kw_only(), MERCER_LOWER, "overwrite_a"_a = false, "eigvals_only"_a = false,
             "subset_by_index"_a = nb::none(), "check"_a, MERCER_LAST, nb::sig(kEighUnchecked));
#undef MERCER_LAST
#undef MERCER_LOWER
}

}  // namespace mercer::python
