// Operators of mercer.linalg as Python writes them: a matrix, a KernelOperator, or an object with a function of its own
// that multiplies.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <vector>

#include "calls.h"
#include "linalg_call.h"
#include "mercer/linalg.h"

namespace mercer::python {

/// A kernel matrix as it was written down. Everything is checked when it is made, but for what PyTorch follows, which
/// is when it is used.
struct KernelOperator {
  /// Arrays of points, each None where there is none: ridges, weights of the points, and what formulas read.
  struct Sides {
    nb::object ridge, weights, w, row, col;
  };
  KernelOperator(nb::object f, nb::object x, Sides sides, nb::dict params);

  nb::object f, x;
  Sides sides;  // ridge is a float or an array
  nb::dict params;
  double ridge = 0;  // the least one
  std::int64_t order = 0;

 private:
  void read_ridge();
  void write_out(nb::object& values) const;
  void join_row_and_col();
  void require_not_negative(const char* name, nb::handle values) const;
};

/// Whether numbers are written as a list, or an array with axes.
bool is_list_of_numbers(nb::handle object);

/// A number of the caller's; in C++ zero stands for the default, which here None does.
template <class T>
T not_zero(T value, const char* verb, const char* name) {
  if (value == 0)
    throw Error(ErrorKind::invalid_argument, fmt::format("{}: {} must be positive. Received 0.", verb, name));
  return value;
}

/// One call on an operator, its arrays gathered with the GIL held.
class OperatorCall {
 public:
  /// `b`: what it is multiplied with, which says of what order and library a function is; may be null.
  OperatorCall(const char* verb, nb::handle a, nb::handle b = {});
  OperatorCall(const char* verb, const KernelOperator& kernel);

  const linalg::Operator& matrix() const { return *matrix_; }
  /// Null for a matrix.
  const KernelOperator* kernel() const { return kernel_; }
  const Call& kernel_call() const { return *kernel_call_; }
  /// What a KernelOperator, or an object that multiplies, adds to the diagonal; 0 for a matrix.
  double ridge() const { return ridge_; }
  /// Whose array results are like.
  Library& library() const { return *library_; }
  nb::handle like() const { return like_; }
  /// One more array of the call.
  const Tensor& input(nb::handle object, const char* name);
  /// Numbers of a list in float64, as an array of the library of the call on its device.
  nb::object numbers(nb::handle list) const;
  /// The caller's array, or a new one of the caller's library.
  struct Output {
    nb::object object;
    const Tensor* view = nullptr;
  };
  Output output(nb::handle out, const char* name, Dtype dtype, const std::vector<std::int64_t>& shape);
  /// What the arrays' own streams do next waits for the work.
  void finish();

 private:
  void take_kernel();
  void count_products();
  void take_products(nb::handle a);
  nb::object adapted(nb::handle a, nb::handle b) const;

  const char* verb_;
  const KernelOperator* kernel_ = nullptr;
  double ridge_ = 0;
  std::optional<LinalgCall> stored_call_;
  std::optional<Call> kernel_call_;
  std::optional<linalg::Operator> matrix_;
  Library* library_ = nullptr;
  nb::object like_, method_;
};

}  // namespace mercer::python
