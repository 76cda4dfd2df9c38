// Sums of pairs of sparse points, for mercer/_sparse.py.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "arrays.h"
#include "backend/cpu/pairs/sparse_pairs.h"
#include "calls.h"
#include "mercer/error.h"
#include "ops/context.h"
#include "settings.h"
#include "symbols.h"

namespace mercer::python {

using namespace nb::literals;

namespace {

constexpr char kVerb[] = "SparsePairs";

/// An array of NumPy's for the length of a call.
class Held {
 public:
  Held(nb::handle object, const char* name, Access access = Access::read) : array_(object, {kVerb, name}, access) {
    if (array_.on_cuda())
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("{}: {} must lie in memory of the host. Received {}.", kVerb, name,
                              array_.tensor().to_text()));
  }
  const Tensor& tensor() const { return array_.tensor(); }

 private:
  Array array_;
};

/// (starts, columns, values): indptr, indices and data of SciPy's.
struct HeldRows {
  HeldRows(const char* name, const nb::tuple& given)
      : starts(part(name, given, 0), name), columns(part(name, given, 1), name), values(part(name, given, 2), name) {}
  cpu::SparseRows rows() const { return {starts.tensor(), columns.tensor(), values.tensor()}; }
  Held starts, columns, values;

 private:
  static nb::object part(const char* name, const nb::tuple& given, std::size_t index) {
    if (nb::len(given) != 3)
      throw Error(ErrorKind::invalid_argument,
                  fmt::format("{}: {} must be (starts, columns, values). Received {} parts.", kVerb, name,
                              nb::len(given)));
    return given[index];
  }
};

void make(cpu::SparsePairs* self, const nb::tuple& x, std::optional<nb::tuple> z, std::int64_t features, nb::handle w,
          bool unit) {
  const HeldRows left("x", x);
  std::optional<HeldRows> right;
  if (z) right.emplace("z", *z);
  const cpu::SparseRows of_x = left.rows(), of_z = right ? right->rows() : of_x;
  std::optional<Held> weights;
  if (!w.is_none()) weights.emplace(w, "w");
  new (self) cpu::SparsePairs(of_x, right ? &of_z : nullptr, features, weights ? &weights->tensor() : nullptr, unit);
}

template <class Work>
void write(nb::handle out, const Work& work) {
  const CallSettings settings;
  const Held held(out, "out", Access::write);
  Watch(kVerb, false).run([&] { work(held.tensor(), Context::shared().state().pool); });
}

}  // namespace

void bind_sparse(nb::module_& module) {
  using Self = cpu::SparsePairs;
  nb::class_<Self>(module, "SparsePairs",
                   "Sums over the features of pairs of sparse points in float64, for mercer._sparse.")
      .def("__init__", make, "x"_a, "z"_a.none(), "features"_a, "w"_a.none(), "unit"_a = false, nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>(),
           nb::sig("def __init__(self, x: tuple[typing.Any, typing.Any, typing.Any], z: tuple[typing.Any, typing.Any, "
                   "typing.Any] | None, features: int, w: typing.Any | None, unit: bool = False) -> None"),
           "Reads x and z, each (starts, columns, values) of compressed rows; z None: the same points. unit: sums are "
           "those of points divided by their norms. ValueError for columns out of range or out of order.")
      .def(
          "dots",
          [](const Self& self, std::int64_t row, std::int64_t col, nb::handle out) {
            write(out, [&](const Tensor& to, Pool& pool) { self.dots(row, col, to, pool); });
          },
          "row"_a, "col"_a, "out"_a, nb::sig("def dots(self, row: int, col: int, out: typing.Any) -> None"),
          "Writes the sums of w x z for rows from row and columns from col on: out is float64 [count, N - col].")
      .def(
          "squares",
          [](const Self& self, std::int64_t row, std::int64_t col, double near, nb::handle out, bool root) {
            write(out, [&](const Tensor& to, Pool& pool) { self.squares(row, col, near, to, pool, root); });
          },
          "row"_a, "col"_a, "near"_a, "out"_a, "root"_a = false,
          nb::sig("def squares(self, row: int, col: int, near: float, out: typing.Any, root: bool = False) -> None"),
          "Writes the sums of w (x - z)^2 likewise, or their roots; those of at most near of the sums of squares by "
          "differences.");
  module.def(
      "are_plain_rows",
      [](const nb::tuple& points, std::int64_t features, double least, double most) {
        const HeldRows held("points", points);
        return cpu::are_plain(held.rows(), features, least, most);
      },
      "points"_a, "features"_a, "least"_a, "most"_a,
      nb::sig("def are_plain_rows(points: tuple[typing.Any, typing.Any, typing.Any], features: int, least: float, "
              "most: float) -> bool"),
      "Whether (starts, columns, values) are compressed rows with ascending columns and floats of sizes from least to "
      "most.");
  module.def(
      "mirror_rows",
      [](nb::handle matrix, std::int64_t first, std::int64_t last) {
        write(matrix, [&](const Tensor& to, Pool& pool) { cpu::mirror_rows(to, first, last, pool); });
      },
      "matrix"_a, "first"_a, "last"_a,
      nb::sig("def mirror_rows(matrix: typing.Any, first: int, last: int) -> None"),
      "Copies matrix[i, j] to matrix[j, i] for first <= i < last and j > i.");
}

}  // namespace mercer::python
